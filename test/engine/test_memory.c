/* Memory is what the plan says: the scratch high-water mark stays within it, the process grows by no more than it, and
 * it is bounded by the span, not by the prompt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <firstlight/firstlight.h>

static int64_t anonymous_bytes(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long long kib = -1;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "RssAnon:", 8) == 0) kib = strtoll(line + 8, NULL, 10);
    }
    fclose(file);
    assert_true(kib > 0);
    return kib * 1024;
}

static fl_engine *open_engine(int64_t ctx, int32_t span) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = ctx;
    s.span_tokens = span;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

static void ask(fl_engine *e, int64_t n) {
    fl_session *s = NULL;
    fl_request *r = NULL;
    fl_event event;
    fl_request_params p;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    uint32_t random = 12345;
    assert_non_null(ids);
    for (int64_t i = 0; i < n; i++) {
        random = random * 1664525u + 1013904223u;
        ids[i] = 5 + (int32_t)(random >> 8) % 8000;
    }
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = n;
    p.max_tokens = 2;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    assert_int_equal(fl_submit(s, &p, &r), FL_ERR_OK);
    do assert_int_equal(fl_poll(r, 1, &event), FL_ERR_OK);
    while (event.type != FL_EVENT_DONE);
    if (event.finish == FL_FINISH_ERROR) fail_msg("%s", event.err_detail);
    fl_request_close(r);
    fl_session_close(s);
    free(ids);
}

static void memory_stays_within_the_plan(void **state) {
    (void)state;
    const char *lengths = getenv("FL_TEST_TOKENS"); /* nightly: 32000 */
    int64_t most = lengths ? strtoll(lengths, NULL, 10) : 6000;
    fl_engine *e = open_engine(most + 64, 1024);
    fl_engine_info info;
    int64_t base = anonymous_bytes();
    for (int64_t n = 2000; n < most; n *= 2) ask(e, n);
    ask(e, most);
    fl_engine_get_info(e, &info);
    int64_t grown = anonymous_bytes() - base, plan = info.kv_bytes + info.scratch_bytes;
    print_message("planned %.1f MiB of KV and scratch, grown by %.1f MiB; scratch peak %.1f of %.1f MiB\n",
                  (double)plan / 1048576, (double)grown / 1048576, (double)info.scratch_peak_bytes / 1048576,
                  (double)info.scratch_bytes / 1048576);
    assert_true(info.scratch_peak_bytes <= info.scratch_bytes);
    assert_true(info.scratch_peak_bytes > info.scratch_bytes / 2);
    assert_true(grown <= plan);
    fl_engine_close(e);
}

static void scratch_is_bounded_by_the_span(void **state) {
    (void)state;
    fl_engine_info near, far, wide;
    fl_engine *e = open_engine(16384, 1024);
    fl_engine_get_info(e, &near);
    fl_engine_close(e);
    e = open_engine(131072, 1024);
    fl_engine_get_info(e, &far);
    fl_engine_close(e);
    e = open_engine(16384, 2048);
    fl_engine_get_info(e, &wide);
    fl_engine_close(e);
    assert_int_equal(near.weights_bytes, far.weights_bytes);
    assert_true(far.scratch_bytes <= near.scratch_bytes + near.scratch_bytes / 10);
    assert_true(wide.scratch_bytes > near.scratch_bytes);
    assert_int_equal(far.kv_bytes, 8 * near.kv_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_stays_within_the_plan),
        cmocka_unit_test(scratch_is_bounded_by_the_span),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
