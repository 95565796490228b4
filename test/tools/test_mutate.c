#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const SAMPLE = "#include <x.h> /* a < b */\n"
                                  "enum { SIZE = 4 };\n"
                                  "static float sum(const float *x, int n) {\n"
                                  "    float part[SIZE + 1][2] = {0}, *y = part[1];\n"
                                  "    for (int i = 0; i < n; i++) *y += x[i] * 2.5f; /* 3 > 2 */\n"
                                  "    return n > 0x7f && *y != -1 ? *y : (float)strlen(\"1 + 1\");\n"
                                  "}\n";

static const char *const FAULTS[] = {
    "4\t0 -> 1",       "4\t[ -> [1 + ", "4\t1 -> 2",   "5\t0 -> 1",       "5\t< -> >=",
    "5\t+= -> -=",     "5\t[ -> [1 + ", "5\t* -> +",   "5\t2.5f -> 3.5f", "6\t> -> <=",
    "6\t0x7f -> 0x80", "6\t&& -> ||",   "6\t!= -> ==", "6\t1 -> 2",
};
enum { N_FAULTS = sizeof FAULTS / sizeof *FAULTS };

static void first_line(const char *command, char *line, int space) {
    FILE *f = popen(command, "r"); /* all words are constants of this test */
    assert_non_null(f);
    assert_non_null(fgets(line, space, f));
    line[strcspn(line, "\n")] = '\0';
    pclose(f);
}

static void the_faults_are_those_that_can_change_a_result(void **state) {
    (void)state;
    char path[] = "/tmp/mutate-XXXXXX", command[256], line[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, SAMPLE, strlen(SAMPLE)), strlen(SAMPLE));
    close(fd);
    for (int i = 0; i < N_FAULTS; i++) {
        snprintf(command, sizeof command, "%s %s %d 2>&1 >%s.out", FL_MUTATE, path, i, path);
        first_line(command, line, sizeof line);
        assert_string_equal(line, FAULTS[i]);
        snprintf(command, sizeof command, "diff %s %s.out | grep -c '^>'", path, path);
        first_line(command, line, sizeof line);
        assert_string_equal(line, "1");
    }
    snprintf(command, sizeof command, "%s %s; rm %s %s.out", FL_MUTATE, path, path, path);
    first_line(command, line, sizeof line);
    assert_int_equal(strtol(line, NULL, 10), N_FAULTS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_faults_are_those_that_can_change_a_result)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
