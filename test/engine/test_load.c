/* One thread that looks after many requests, and what an engine tells of its work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <firstlight/firstlight.h>

#include "support/asking.h"
#include "support/golden.h"

enum { CTX = 2048, MANY = 24, READY = 5 };

static fl_engine *open_engine(void) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.deterministic = true; /* of a GPU; CPUs always are */
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = CTX;
    s.kv_tokens = 4 * CTX;
    s.span_tokens = 1024;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

typedef struct asked {
    fl_session *session;
    int32_t n_tokens;
    bool done;
} asked;

static fl_request *submit_for(fl_session *s, const golden *g, int64_t n, void *context) {
    fl_request_params p;
    fl_request *r = NULL;
    fl_request_params_default(&p);
    p.tokens = g->ids;
    p.n_tokens = n;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    p.context = context;
    if (fl_submit(s, &p, &r) != FL_ERR_OK) fail_msg("submit: %s", fl_err_detail());
    return r;
}

/* All events that are there; true if DONE was one, then the request is closed. */
static bool take_events(fl_request *r) {
    fl_event e;
    asked *a = fl_request_context(r);
    assert_false(a->done);
    while (fl_poll(r, 0, &e) == FL_ERR_OK && e.type != FL_EVENT_NONE) {
        a->n_tokens += e.type == FL_EVENT_TOKEN;
        if (e.type != FL_EVENT_DONE) continue;
        assert_int_equal(e.finish, FL_FINISH_LENGTH);
        a->done = true;
        fl_request_close(r);
        return true;
    }
    return false;
}

static void one_thread_looks_after_many(void **state) {
    golden g;
    asked all[MANY] = {{0}};
    fl_request *ready[READY];
    int32_t n_done = 0;
    golden_read("doc2k", &g);
    fl_engine *e = *state;
    assert_int_equal(fl_engine_wait(e, 0, ready, READY), 0);
    assert_int_equal(fl_engine_wait(e, 0.01, ready, READY), 0);
    for (int32_t i = 0; i < MANY; i++) {
        assert_int_equal(fl_session_open(e, &all[i].session), FL_ERR_OK);
        submit_for(all[i].session, &g, 20 + i, &all[i]);
    }
    while (n_done < MANY) {
        int32_t n = fl_engine_wait(e, 60, ready, READY);
        assert_in_range(n, 1, READY);
        for (int32_t i = 0; i < n; i++) n_done += take_events(ready[i]);
    }
    for (int32_t i = 0; i < MANY; i++) {
        assert_int_equal(all[i].n_tokens, ANSWER);
        assert_int_equal(fl_session_close(all[i].session), FL_ERR_OK);
    }
    assert_int_equal(fl_engine_wait(e, 0, ready, READY), 0);
    golden_free(&g);
}

static void closed_requests_are_not_named(void **state) {
    golden g;
    asked a[3] = {{0}};
    fl_request *r[3], *ready[READY];
    fl_event event;
    golden_read("doc2k", &g);
    fl_engine *e = *state;
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(fl_session_open(e, &a[i].session), FL_ERR_OK);
        r[i] = submit_for(a[i].session, &g, 20, &a[i]);
    }
    for (int32_t i = 0; i < 3; i++) {
        do assert_int_equal(fl_poll(r[i], 60, &event), FL_ERR_OK);
        while (event.type != FL_EVENT_DONE);
    }
    fl_request_close(r[1]); /* all three wait to be named: the middle one, then an end of the list */
    fl_request_close(r[2]);
    assert_int_equal(fl_engine_wait(e, 0, ready, READY), 1);
    assert_ptr_equal(ready[0], r[0]);
    assert_int_equal(fl_engine_wait(e, 0, ready, READY), 0); /* no further event */
    fl_request_close(r[0]);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(fl_session_close(a[i].session), FL_ERR_OK);
    golden_free(&g);
}

static int64_t steps(fl_engine *e) {
    fl_engine_load load;
    fl_engine_get_load(e, &load);
    return load.n_steps;
}

/* A queued request is cancelled while others are being read: it is done before the next step, which its end
 * must not wait for. Steps take 0.1 s; a slow machine may see one pass by chance, but not always. */
static bool close_waits(fl_engine *e, const golden *g) {
    asked a[3] = {{0}};
    fl_request *r[3];
    fl_event event;
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(fl_session_open(e, &a[i].session), FL_ERR_OK);
        r[i] = submit_for(a[i].session, g, i < 2 ? g->n - i : 20, &a[i]);
    }
    fl_cancel(r[2]);
    do assert_int_equal(fl_poll(r[2], 60, &event), FL_ERR_OK);
    while (event.type != FL_EVENT_DONE);
    int64_t before = steps(e);
    fl_request_close(r[2]);
    bool waited = steps(e) > before;
    for (int32_t i = 0; i < 2; i++) fl_request_close(r[i]);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(fl_session_close(a[i].session), FL_ERR_OK);
    return waited;
}

static void closing_after_done_waits_for_no_step(void **state) {
    golden g;
    int32_t n_waits = 0;
    golden_read("doc2k", &g);
    fl_engine *e = *state;
    for (int32_t i = 0; i < 3; i++) n_waits += close_waits(e, &g);
    assert_true(n_waits < 3);
    golden_free(&g);
}

static void counters_pages_and_costs_are_told(void **state) {
    (void)state;
    golden g;
    fl_engine_load before, after;
    fl_mark marks[64];
    fl_event event;
    asked a = {0};
    double prefill_s = 0;
    golden_read("doc2k", &g);
    fl_engine *e = open_engine();
    fl_engine_get_load(e, &before);
    assert_int_equal(before.kv_pages, 4 * CTX / 64);
    assert_int_equal(before.kv_pages_free, before.kv_pages);
    assert_int_equal(before.n_costs, 2);
    assert_int_equal(before.cost_tokens[0], 1024);
    assert_int_equal(before.cost_tokens[1], CTX);
    assert_true(before.cost_s[0] > 0 && before.cost_s[1] > before.cost_s[0]);
    assert_int_equal(fl_session_open(e, &a.session), FL_ERR_OK);
    fl_request *r = submit_for(a.session, &g, 1024, &a);
    do assert_int_equal(fl_poll(r, 60, &event), FL_ERR_OK);
    while (event.type != FL_EVENT_DONE);
    int32_t n = fl_request_timeline(r, marks, 64);
    for (int32_t i = 0; i < n; i++)
        if (strcmp(marks[i].name, "prefill") == 0) prefill_s += marks[i].end_s - marks[i].start_s;
    fl_request_close(r);
    fl_engine_get_load(e, &after);
    assert_int_equal(after.prompt_tokens, 1024);
    assert_int_equal(after.cached_tokens, 0);
    assert_int_equal(after.computed_tokens, 1024);
    assert_int_equal(after.answer_tokens, ANSWER);
    assert_int_equal(after.n_running + after.n_waiting, 0);
    assert_true(after.n_steps >= ANSWER && after.n_layers > before.n_layers);
    assert_true(after.kv_pages_free < after.kv_pages); /* the session's, which the cache shares */
    assert_true(!after.lost);
    /* Predicted for the same size: what it took. */
    if (after.cost_s[0] < 0.9 * prefill_s || after.cost_s[0] > 1.1 * prefill_s)
        fail_msg("predicted %g s, took %g s", after.cost_s[0], prefill_s);
    assert_int_equal(fl_session_close(a.session), FL_ERR_OK);
    fl_engine_get_load(e, &after);
    assert_int_equal(after.kv_pages_free + after.kv_pages_cached, after.kv_pages);
    fl_engine_close(e);
    golden_free(&g);
}

static int open_for_all(void **state) {
    *state = open_engine();
    return 0;
}

static int close_for_all(void **state) {
    fl_engine_close(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_looks_after_many),
        cmocka_unit_test(closed_requests_are_not_named),
        cmocka_unit_test(closing_after_done_waits_for_no_step),
        cmocka_unit_test(counters_pages_and_costs_are_told),
    };
    return cmocka_run_group_tests(tests, open_for_all, close_for_all);
}
