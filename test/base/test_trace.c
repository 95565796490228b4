/* The trace: what is off costs nothing and keeps nothing; a full ring keeps the newest; events written by many threads
 * beside a reader are whole; what is written is JSON whatever the names, and spans of a lane nest. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/trace.h"

static fl_trace *open_trace(int64_t events) {
    fl_trace *t = NULL;
    assert_int_equal(fl_trace_open(&t), FL_ERR_OK);
    if (events > 0) assert_int_equal(fl_trace_start(t, events), FL_ERR_OK);
    return t;
}

static void add(fl_trace *t, const char *name, double begin_s, int64_t count) {
    const fl_trace_event e = {.name = name,
                              .kind = FL_TRACE_LINEAR,
                              .lane = 3,
                              .begin_s = begin_s,
                              .end_s = begin_s + 1,
                              .flops = 1e9f,
                              .bytes = 2e6f,
                              .count = count};
    fl_trace_add(t, &e);
}

static void off_keeps_nothing(void **state) {
    (void)state;
    fl_trace *t = open_trace(0);
    add(t, "early", 1, 1);
    assert_false(fl_trace_on(t));
    assert_false(fl_trace_on(NULL));
    assert_true(fl_trace_now(t) == 0);
    assert_int_equal(fl_trace_get_counts(t).kept, 0);
    assert_int_equal(fl_trace_start(t, 100), FL_ERR_INVALID);
    assert_int_equal(fl_trace_start(t, 2000), FL_ERR_OK);
    assert_int_equal(t->capacity, 2048);
    fl_trace_span(t, FL_TRACE_TEXT, "began while off", 0, 1);
    assert_int_equal(fl_trace_get_counts(t).kept, 0);
    fl_trace_stop(t);
    add(t, "late", 1, 1);
    assert_int_equal(fl_trace_get_counts(t).kept, 0);
    fl_trace_close(t);
    fl_trace_close(NULL);
}

static void a_full_ring_keeps_the_newest(void **state) {
    (void)state;
    fl_trace *t = open_trace(FL_TRACE_EVENTS_MIN);
    fl_trace_event e;
    for (int64_t i = 0; i < 3000; i++) add(t, "op", (double)i, i);
    fl_trace_counts counts = fl_trace_get_counts(t);
    assert_int_equal(counts.kept, FL_TRACE_EVENTS_MIN);
    assert_int_equal(counts.lost, 3000 - FL_TRACE_EVENTS_MIN);
    for (int64_t i = 0; i < counts.kept; i++) {
        assert_true(fl_trace_get(t, i, &e));
        assert_int_equal(e.count, 3000 - FL_TRACE_EVENTS_MIN + i);
        assert_true(e.begin_s == (double)e.count && e.end_s == e.begin_s + 1);
        assert_string_equal(e.name, "op");
        assert_int_equal(e.lane, 3);
        assert_int_equal(e.kind, FL_TRACE_LINEAR);
        assert_true(e.flops == 1e9f && e.bytes == 2e6f && e.id == 0);
    }
    assert_false(fl_trace_get(t, counts.kept, &e));
    assert_int_equal(fl_trace_start(t, 0), FL_ERR_OK); /* forgets */
    assert_int_equal(fl_trace_get_counts(t).kept, 0);
    assert_int_equal(fl_trace_get_counts(t).lost, 0);
    assert_false(fl_trace_get(t, 0, &e));
    fl_trace_close(t);
}

/* ---- threads ---- */

enum { THREADS = 4, EACH = 20000 };

static void *write_many(void *context) {
    fl_trace *t = context;
    for (int64_t i = 0; i < EACH; i++) {
        const fl_trace_event e = {.name = "x",
                                  .lane = fl_trace_lane(),
                                  .begin_s = (double)i,
                                  .end_s = 2 * (double)i,
                                  .id = (uint64_t)(3 * i),
                                  .count = 4 * i};
        fl_trace_add(t, &e);
    }
    return NULL;
}

/* Every field of an event is made of the same number: a mixture of two would show. */
static int64_t check_all(const fl_trace *t) {
    fl_trace_event e;
    int64_t n = 0, kept = fl_trace_get_counts(t).kept;
    for (int64_t i = 0; i < kept; i++) {
        if (!fl_trace_get(t, i, &e)) continue;
        assert_true(e.end_s == 2 * e.begin_s && (double)e.count == 4 * e.begin_s);
        assert_true((double)e.id == 3 * e.begin_s);
        assert_string_equal(e.name, "x");
        n++;
    }
    return n;
}

static void threads_write_whole_events(void **state) {
    (void)state;
    fl_trace *t = open_trace(FL_TRACE_EVENTS_MIN); /* small: it wraps often, writers meet */
    pthread_t threads[THREADS];
    bool seen[FL_LANES_MAX] = {false};
    fl_trace_event e;
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, write_many, t), 0);
    for (int i = 0; i < 50; i++) check_all(t);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    int64_t n = check_all(t), lanes = 0;
    fl_trace_counts counts = fl_trace_get_counts(t);
    assert_true(n > FL_TRACE_EVENTS_MIN / 2);
    assert_true(n + counts.lost >= THREADS * EACH); /* nothing is lost untold */
    for (int64_t i = 0; i < counts.kept; i++)
        if (fl_trace_get(t, i, &e) && !seen[e.lane]) {
            seen[e.lane] = true;
            assert_in_range(e.lane, FL_LANE_CALLER, FL_LANE_DEVICE - 1);
            lanes++;
        }
    assert_in_range(lanes, 1, THREADS);
    fl_trace_close(t);
}

/* ---- what is written ---- */

static json_t *write_and_read(const fl_trace *t) {
    char path[64];
    json_error_t error;
    snprintf(path, sizeof path, "/tmp/firstlight-trace-%ld.json", (long)getpid());
    assert_int_equal(fl_trace_write(t, path), FL_ERR_OK);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s:%d: %s", path, error.line, error.text);
    remove(path);
    return root;
}

static json_t *find(json_t *root, const char *name, const char *phase) {
    json_t *events = json_object_get(root, "traceEvents"), *event;
    size_t i;
    json_array_foreach(events, i, event) {
        if (strcmp(json_string_value(json_object_get(event, "name")), name) != 0) continue;
        if (strcmp(json_string_value(json_object_get(event, "ph")), phase) == 0) return event;
    }
    fail_msg("no event '%s' of phase %s", name, phase);
    return NULL;
}

static void what_is_written_is_json(void **state) {
    (void)state;
    fl_trace *t = open_trace(FL_TRACE_EVENTS_MIN);
    double s = t->start_s;
    add(t, "quote \" back \\ line \n tab \t high \xff end", s + 1, 1);
    const fl_trace_event request = {
        .name = "request", .kind = FL_TRACE_REQUEST, .begin_s = s, .end_s = s + 2.5, .id = 7, .count = 100};
    const fl_trace_event odd = {
        .name = "odd", .begin_s = s + 1, .end_s = s, .lane = FL_LANE_DEVICE, .flops = 1.0f / 0.0f};
    const fl_trace_event nowhere = {.name = "nowhere", .begin_s = s, .end_s = s, .lane = FL_LANES_MAX};
    fl_trace_add(t, &request);
    fl_trace_add(t, &odd);
    fl_trace_add(t, &nowhere);
    t->rank = 2;
    json_t *root = write_and_read(t);
    json_t *op = find(root, "quote \" back \\ line \n tab \t high \xc3\xbf end", "X");
    assert_float_equal(json_number_value(json_object_get(op, "ts")), 1e6, 0.002);
    assert_float_equal(json_number_value(json_object_get(op, "dur")), 1e6, 0.002);
    assert_int_equal(json_integer_value(json_object_get(op, "tid")), 3);
    assert_int_equal(json_integer_value(json_object_get(op, "pid")), 2);
    assert_string_equal(json_string_value(json_object_get(op, "cat")), "linear");
    json_t *args = json_object_get(op, "args");
    assert_float_equal(json_number_value(json_object_get(args, "flops")), 1e9, 1);
    assert_int_equal(json_integer_value(json_object_get(args, "rows")), 1);
    json_t *begin = find(root, "request", "b"), *end = find(root, "request", "e");
    assert_string_equal(json_string_value(json_object_get(begin, "id")), "0x7");
    assert_string_equal(json_string_value(json_object_get(end, "id")), "0x7");
    assert_float_equal(json_number_value(json_object_get(end, "ts")), 2.5e6, 0.002);
    assert_float_equal(json_number_value(json_object_get(find(root, "odd", "X"), "dur")), 0, 0);
    json_t *other = json_object_get(root, "otherData");
    assert_int_equal(json_integer_value(json_object_get(other, "events")), 3);
    assert_int_equal(json_integer_value(json_object_get(other, "events_lost")), 1);
    json_decref(root);
    assert_int_equal(fl_trace_write(t, "/no such folder/trace.json"), FL_ERR_IO);
    fl_trace_close(t);
}

/* ---- nesting ---- */

static void busy(void *context, int32_t task, int32_t worker) {
    (void)context;
    (void)task;
    (void)worker;
    double end_s = fl_now_s() + 20e-6;
    while (fl_now_s() < end_s) continue;
}

/* Spans of one lane lie inside of each other or apart: what viewers draw, and what shows a lost end. */
static void spans_of_a_lane_nest(void **state) {
    (void)state;
    fl_trace *t = open_trace(FL_TRACE_EVENTS_MIN);
    fl_pool *pool = NULL;
    fl_trace_event a, b;
    int64_t of_members = 0;
    assert_int_equal(fl_pool_open(3, &pool), FL_ERR_OK);
    fl_pool_set_trace(pool, t);
    fl_pool_set_name(pool, "busy");
    fl_trace_set_lane(0);
    for (int i = 0; i < 20; i++) {
        double outer_s = fl_trace_now(t), inner_s = fl_trace_now(t);
        fl_pool_run(pool, 12, busy, NULL);
        fl_trace_span(t, FL_TRACE_LINEAR, "op", inner_s, 0);
        fl_trace_span(t, FL_TRACE_LAYER, "layer", outer_s, i);
    }
    int64_t n = fl_trace_get_counts(t).kept;
    for (int64_t i = 0; i < n; i++) {
        assert_true(fl_trace_get(t, i, &a));
        assert_true(a.begin_s <= a.end_s);
        of_members += a.lane > 0 && strcmp(a.name, "busy") == 0;
        for (int64_t j = 0; j < n; j++) {
            assert_true(fl_trace_get(t, j, &b));
            if (a.lane != b.lane) continue;
            bool apart = a.end_s <= b.begin_s || b.end_s <= a.begin_s;
            bool nested = (a.begin_s <= b.begin_s && b.end_s <= a.end_s) ||
                          (b.begin_s <= a.begin_s && a.end_s <= b.end_s);
            assert_true(apart || nested);
        }
    }
    assert_true(of_members > 0);
    fl_pool_close(pool);
    fl_trace_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_keeps_nothing),          cmocka_unit_test(a_full_ring_keeps_the_newest),
        cmocka_unit_test(threads_write_whole_events), cmocka_unit_test(what_is_written_is_json),
        cmocka_unit_test(spans_of_a_lane_nest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
