#include "support/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/command.h"

char folder[] = "/tmp/firstlight-test-XXXXXX";

int folder_make(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

int folder_remove(void **state) {
    (void)state;
    return remove_tree(folder);
}

char *text_read(const char *name) {
    char *text = NULL;
    size_t n_bytes;
    if (fl_file_read(folder, name, 1 << 20, &text, &n_bytes) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    return text;
}

void text_write(const char *name, const char *text) {
    if (fl_file_write(folder, name, text, strlen(text)) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
}
