/* Lines of the log: one an event, whatever the values are. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "server/log.h"

/* What three awkward events and one that is left out write. */
static char *written(bool json) {
    static char text[1 << 16];
    static char long_text[8192];
    int ends[2];
    fl_log *log = NULL;
    memset(long_text, '"', sizeof long_text - 1);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fl_log_open(ends[1], json, FL_LOG_INFO, &log), FL_ERR_OK);
    FL_LOG(log, FL_LOG_DEBUG, "left_out", FL_LOG_INT("a", 1));
    FL_LOG(log, FL_LOG_INFO, "plain", FL_LOG_TEXT("path", "/v1/models"), FL_LOG_INT("status", 200),
           FL_LOG_REAL("seconds", 0.25), FL_LOG_TEXT("none", (const char *)NULL));
    FL_LOG(log, FL_LOG_WARN, "forged",
           FL_LOG_TEXT("path", "/x\nlevel=error event=\"lie\" \x1b[31m\x7f\xc3\x28 \\ \"quoted\""));
    FL_LOG(log, FL_LOG_ERROR, "long", FL_LOG_TEXT("a", long_text), FL_LOG_TEXT("b", long_text),
           FL_LOG_TEXT("c", long_text), FL_LOG_TEXT("d", long_text), FL_LOG_REAL("infinite", 1e308 * 10));
    fl_log_close(log);
    close(ends[1]);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    close(ends[0]);
    return text;
}

static void lines_are_whole_and_plain(const char *text, int wanted) {
    int n = 0;
    for (const char *c = text; *c; c++) {
        n += *c == '\n';
        if (*c != '\n' && (*c < 0x20 || *c > 0x7e)) fail_msg("a control byte in: %s", text);
    }
    assert_int_equal(n, wanted);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

static void json_lines_are_json(void **state) {
    char *rest = NULL, *text = written(true);
    int n = 0;
    (void)state;
    lines_are_whole_and_plain(text, 3);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), n++) {
        json_error_t error;
        json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        if (!root) fail_msg("%s in %s", error.text, line);
        assert_true(json_is_string(json_object_get(root, "time")) &&
                    json_is_string(json_object_get(root, "level")));
        if (n == 0) {
            assert_string_equal(json_string_value(json_object_get(root, "path")), "/v1/models");
            assert_int_equal(json_integer_value(json_object_get(root, "status")), 200);
            assert_true(json_real_value(json_object_get(root, "seconds")) == 0.25);
        }
        if (n == 1) assert_string_equal(json_string_value(json_object_get(root, "event")), "forged");
        json_decref(root);
    }
}

static void logfmt_lines_cannot_be_forged(void **state) {
    char *text = written(false);
    (void)state;
    lines_are_whole_and_plain(text, 3);
    assert_non_null(
        strstr(text, " level=info event=plain path=/v1/models status=200 seconds=0.25 none=\"\"\n"));
    assert_non_null(strstr(text, " event=forged path=\"/x\\u000alevel=error event=\\\"lie\\\" \\u001b[31m"));
}

/* A reader that does not read stops nobody. */
static void a_blocked_reader_holds_nobody_up(void **state) {
    int ends[2];
    fl_log *log = NULL;
    char text[4096];
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fl_log_open(ends[1], true, FL_LOG_INFO, &log), FL_ERR_OK);
    for (int i = 0; i < 30000; i++) FL_LOG(log, FL_LOG_INFO, "line", FL_LOG_INT("number", i));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    while (read(ends[0], text, sizeof text) > 0) continue;
    close(ends[0]); /* what is left goes nowhere: the signal is off, as in the server */
    fl_log_close(log);
    close(ends[1]);
}

static double cpu_s(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* Nor does one whose pipe does not block cost a CPU: the log waits for room, and no line is lost. */
static void a_full_pipe_is_waited_for(void **state) {
    enum { LINES = 2000 }; /* more than a pipe holds, less than the log's queue */
    int ends[2], n = 0;
    fl_log *log = NULL;
    char text[4096];
    ssize_t got;
    (void)state;
    assert_int_equal(pipe(ends), 0);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    assert_int_equal(fl_log_open(ends[1], true, FL_LOG_INFO, &log), FL_ERR_OK);
    for (int i = 0; i < LINES; i++) FL_LOG(log, FL_LOG_INFO, "line", FL_LOG_INT("number", i));
    double before_s = cpu_s();
    nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    if (cpu_s() - before_s > 0.1) fail_msg("%g s of CPU for 0.4 s of waiting", cpu_s() - before_s);
    while (n < LINES && (got = read(ends[0], text, sizeof text)) > 0)
        for (ssize_t i = 0; i < got; i++) n += text[i] == '\n';
    assert_int_equal(n, LINES);
    fl_log_close(log);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_lines_are_json),
        cmocka_unit_test(logfmt_lines_cannot_be_forged),
        cmocka_unit_test(a_full_pipe_is_waited_for),
        cmocka_unit_test(a_blocked_reader_holds_nobody_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
