/* Meters and trace as callers of the library see them: shares that fit into the steps' time, memory within the
 * plan, the warning about communication, and a trace whose every request and layer is there. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <firstlight/firstlight.h>
#include <jansson.h>

enum { PROMPT = 200, ANSWER = 4, LAYERS = 2 };

static fl_engine *open_engine(int64_t trace_events) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.synthetic = "spark-66m:2";
    s.ctx_tokens = 512;
    s.n_threads = 2;
    s.enforce_eager = true; /* a recorded step has no ops to time */
    s.trace_events = trace_events;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

static void ask(fl_engine *e) {
    fl_session *s = NULL;
    fl_request *r = NULL;
    fl_event event;
    fl_request_params p;
    int32_t ids[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = 1 + 37 * i % 8000;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = PROMPT;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    assert_int_equal(fl_submit(s, &p, &r), FL_ERR_OK);
    do assert_int_equal(fl_poll(r, 1, &event), FL_ERR_OK);
    while (event.type != FL_EVENT_DONE);
    assert_int_equal(event.finish, FL_FINISH_LENGTH);
    fl_request_close(r);
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
}

static void shares_fit_into_the_steps(void **state) {
    (void)state;
    fl_meters m;
    fl_engine *e = open_engine(0);
    fl_engine_get_meters(e, &m);
    assert_int_equal(m.steps, 0); /* those that warm are not counted */
    assert_true(m.step_s == 0);
    ask(e);
    fl_engine_get_meters(e, &m);
    assert_int_equal(m.steps, 1 + ANSWER - 1); /* document and last row together; each token but the first */
    double parts_s = m.attention_s + m.linear_s + m.experts_s + m.kv_s + m.other_s;
    assert_true(m.attention_s > 0 && m.linear_s > 0 && m.experts_s > 0 && m.kv_s > 0 && m.other_s > 0);
    assert_true(parts_s <= m.step_s && parts_s > m.step_s / 2);
    assert_true(m.comm_s == 0 && m.recorded_s == 0 && m.comm_slowest == NULL);
    assert_true(m.peak_bytes <= m.planned_bytes && m.peak_bytes > 0);
    assert_int_equal(fl_engine_trace_write(e, "/tmp/never", NULL), FL_ERR_INVALID); /* none was started */
    fl_engine_close(e);
}

/* 3 ranks of 10 s of steps. Rank 0 waits 4 s, rank 1 5 s, rank 2 1 s: the worst share is 50%, above 30%, and the
 * others wait for rank 2, which waits least. */
static void too_much_communication_names_the_slowest_rank(void **state) {
    (void)state;
    char text[256];
    fl_meters ranks[3] = {{.step_s = 10, .comm_s = 4, .comm_slowest = "all_gather"},
                          {.step_s = 10, .comm_s = 5, .comm_slowest = "all_to_all"},
                          {.step_s = 10, .comm_s = 1, .comm_slowest = "all_gather"}};
    assert_true(fl_meters_warning(ranks, 3, text, sizeof text));
    assert_non_null(strstr(text, "50% of rank 1"));
    assert_non_null(strstr(text, "all_to_all"));
    assert_non_null(strstr(text, "rank 2"));
    assert_non_null(strstr(text, "10%"));
    char small[8];
    assert_true(fl_meters_warning(ranks, 3, small, sizeof small));
    assert_int_equal(strlen(small), sizeof small - 1);
    ranks[0].comm_s = ranks[1].comm_s = 3; /* 30%: not above */
    assert_false(fl_meters_warning(ranks, 3, text, sizeof text));
    ranks[1].comm_s = 3.1;
    assert_true(fl_meters_warning(ranks, 2, text, sizeof text));
    const fl_meters none = {0}, alone = {.step_s = 1, .comm_s = 0.5};
    assert_false(fl_meters_warning(&none, 1, text, sizeof text));
    assert_false(fl_meters_warning(&none, 0, text, sizeof text));
    assert_true(fl_meters_warning(&alone, 1, text, sizeof text));
    assert_null(strstr(text, "waits"));
}

/* ---- the trace ---- */

static int32_t count(json_t *events, const char *name, const char *phase, bool engine_lane) {
    json_t *event;
    size_t i;
    int32_t n = 0;
    json_array_foreach(events, i, event) {
        bool same = strcmp(json_string_value(json_object_get(event, "name")), name) == 0 &&
                    strcmp(json_string_value(json_object_get(event, "ph")), phase) == 0;
        if (same && (!engine_lane || json_integer_value(json_object_get(event, "tid")) == 0)) n++;
    }
    return n;
}

/* Steps hold layers hold ops, all on one lane: nothing may overlap in part. Times are written in whole nanoseconds. */
static void assert_nested(json_t *events) {
    size_t n = json_array_size(events);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) {
            json_t *a = json_array_get(events, i), *b = json_array_get(events, j);
            if (!json_object_get(a, "dur") || !json_object_get(b, "dur")) continue;
            if (!json_equal(json_object_get(a, "tid"), json_object_get(b, "tid"))) continue;
            double a0 = json_number_value(json_object_get(a, "ts")),
                   b0 = json_number_value(json_object_get(b, "ts"));
            double a1 = a0 + json_number_value(json_object_get(a, "dur")),
                   b1 = b0 + json_number_value(json_object_get(b, "dur"));
            bool apart = a1 <= b0 + 0.002 || b1 <= a0 + 0.002;
            bool nested = (a0 <= b0 + 0.002 && b1 <= a1 + 0.002) || (b0 <= a0 + 0.002 && a1 <= b1 + 0.002);
            if (!apart && !nested)
                fail_msg("%s and %s overlap", json_string_value(json_object_get(a, "name")),
                         json_string_value(json_object_get(b, "name")));
        }
}

static void a_trace_has_every_layer_of_every_step(void **state) {
    (void)state;
    char path[64];
    int64_t n_lost = -1;
    fl_engine *e = open_engine(1 << 16);
    ask(e);
    fl_engine_trace_stop(e);
    snprintf(path, sizeof path, "/tmp/firstlight-meters-%ld.json", (long)getpid());
    assert_int_equal(fl_engine_trace_write(e, path, &n_lost), FL_ERR_OK);
    assert_int_equal(n_lost, 0);
    json_t *root = json_load_file(path, 0, NULL), *events = json_object_get(root, "traceEvents");
    assert_non_null(events);
    assert_int_equal(count(events, "step", "X", true), ANSWER);
    assert_int_equal(count(events, "layer", "X", true), ANSWER * LAYERS);
    assert_int_equal(count(events, "sample", "X", true), ANSWER);
    assert_int_equal(count(events, "load weights", "X", false), 1);
    assert_true(count(events, "attn_absorbed", "X", true) >= ANSWER * LAYERS);
    const char *phases[] = {"queue", "prefill", "first_token", "decode", "request"};
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        assert_int_equal(count(events, phases[i], "b", false), 1);
        assert_int_equal(count(events, phases[i], "e", false), 1);
    }
    assert_nested(events);
    json_decref(root);
    assert_int_equal(fl_engine_trace_start(e, 0), FL_ERR_OK); /* forgets what there was */
    fl_engine_trace_stop(e);
    assert_int_equal(fl_engine_trace_write(e, path, &n_lost), FL_ERR_OK);
    root = json_load_file(path, 0, NULL);
    assert_int_equal(count(json_object_get(root, "traceEvents"), "step", "X", false), 0);
    json_decref(root);
    remove(path);
    fl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_fit_into_the_steps),
        cmocka_unit_test(too_much_communication_names_the_slowest_rank),
        cmocka_unit_test(a_trace_has_every_layer_of_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
