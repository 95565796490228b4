#include "support/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmocka.h>

int run_command(const char *command, char *text, size_t room) {
    FILE *pipe = popen(command, "r"); /* NOLINT(cert-env33-c): the command is of the test's own constants */
    assert_non_null(pipe);
    size_t n = fread(text, 1, room - 1, pipe);
    text[n] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

double number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("%s is no number", key);
    return json_number_value(value);
}

int remove_tree(const char *path) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", path);
    return system(command); /* NOLINT(cert-env33-c): a folder that mkdtemp named */
}
