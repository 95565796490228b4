/* Ops that are timed: by kind on the host; on a device by marks that are read when a step is done. The device is made
 * of the counting backend, with a clock that moves when an op is issued. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/timed.h"
#include "base/clock.h"

enum { MARKS = 12 };

static struct device {
    double now_s, marks_s[MARKS], mark_takes_s;
    int32_t n_waits, n_ranges, n_holds;
} device;

static fl_err mark(fl_backend *be, int32_t i) {
    (void)be;
    assert_in_range(i, 0, MARKS - 1);
    device.marks_s[i] = device.now_s;
    device.now_s += device.mark_takes_s;
    return FL_ERR_OK;
}

static fl_err hold(fl_backend *be, double time_s) {
    (void)be;
    device.now_s += time_s;
    device.n_holds++;
    return FL_ERR_OK;
}

static bool mark_time(fl_backend *be, int32_t i, double *time_s) {
    (void)be;
    *time_s = device.marks_s[i] - device.marks_s[0];
    return true;
}

static fl_err wait(fl_backend *be) {
    (void)be;
    device.n_waits++;
    return FL_ERR_OK;
}

static void range_begin(fl_backend *be, const char *name) {
    (void)be;
    assert_non_null(name);
    device.n_ranges++;
}

static void range_end(fl_backend *be) {
    (void)be;
    device.n_ranges--;
}

typedef struct fixture {
    fl_backend *be;
    fl_timed *timed;
    fl_trace *trace;
} fixture;

static fixture open_fixture(bool on_device) {
    fixture f = {0};
    device = (struct device){0};
    assert_int_equal(fl_backend_open("count:reference", 0, &f.be), FL_ERR_OK);
    assert_int_equal(fl_trace_open(&f.trace), FL_ERR_OK);
    if (on_device) {
        f.be->marks_max = MARKS;
        f.be->mark = mark;
        f.be->mark_time = mark_time;
        f.be->hold = hold;
        f.be->wait = wait;
        f.be->range_begin = range_begin;
        f.be->range_end = range_end;
    }
    f.be->trace = f.trace;
    assert_int_equal(fl_timed_open(f.be, &f.timed), FL_ERR_OK);
    return f;
}

static void close_fixture(fixture *f) {
    fl_timed_close(f->timed, f->be);
    assert_ptr_equal(f->be->op, &fl_op_table_count);
    assert_int_equal(device.n_ranges, 0);
    fl_backend_close(f->be);
    fl_trace_close(f->trace);
}

static void multiply(fixture *f, int32_t groups) {
    const fl_weight w[2] = {{.n = 8, .k = 4}, {.n = 8, .k = 4}};
    const fl_matmul_args a = {.w = w, .n_groups = groups, .rows = 2, .x_stride = 4, .y_stride = 8};
    assert_int_equal(f->be->op->matmul(f->be, &a), FL_ERR_OK);
}

static double kind_s(const fixture *f, fl_trace_kind kind) {
    return atomic_load(&f->timed->kind_s[kind]);
}

static void close_to(double found, double wanted) {
    assert_true(found > wanted - 1e-9 && found < wanted + 1e-9);
}

/* A span on the device's own clock. */
static void span(fixture *f, const char *name, fl_trace_kind kind, double takes_s) {
    fl_timed_span s = {.name = name, .kind = kind};
    fl_timed_begin(f->be, &s);
    device.now_s += takes_s;
    fl_timed_end(f->be, &s);
}

static void the_host_counts_by_kind(void **state) {
    (void)state;
    fixture f = open_fixture(false);
    fl_timed_step_begin(f.be, 2, true);
    multiply(&f, 1);
    assert_true(kind_s(&f, FL_TRACE_LINEAR) > 0);
    assert_true(kind_s(&f, FL_TRACE_EXPERTS) == 0);
    multiply(&f, 2); /* groups of rows: experts */
    assert_true(kind_s(&f, FL_TRACE_EXPERTS) > 0);
    span(&f, "all_reduce", FL_TRACE_COMM, 0);
    span(&f, "layer", FL_TRACE_LAYER, 0); /* holds others: no kind of its own */
    fl_timed_step_issued(f.be);
    fl_timed_step_end(f.be);
    double sum_s = 0;
    for (int i = 0; i < FL_TRACE_N_METERED; i++) sum_s += atomic_load(&f.timed->kind_s[i]);
    assert_true(sum_s <= atomic_load(&f.timed->step_s));
    close_to(atomic_load(&f.timed->times_s.matmul),
             kind_s(&f, FL_TRACE_LINEAR) + kind_s(&f, FL_TRACE_EXPERTS));
    assert_string_equal(atomic_load(&f.timed->comm[0].name), "all_reduce");
    assert_int_equal(atomic_load(&f.timed->n_steps), 1);
    fl_timed_reset(f.timed);
    assert_true(kind_s(&f, FL_TRACE_LINEAR) == 0 && atomic_load(&f.timed->step_s) == 0);
    close_fixture(&f);
}

static void a_device_is_read_when_the_step_is_done(void **state) {
    (void)state;
    fixture f = open_fixture(true);
    fl_timed_step_begin(f.be, 64, true);
    span(&f, "a", FL_TRACE_ATTENTION, 2);
    device.now_s += 1; /* idle */
    span(&f, "b", FL_TRACE_KV, 3);
    fl_timed_step_issued(f.be);
    assert_true(kind_s(&f, FL_TRACE_ATTENTION) == 0); /* not yet */
    fl_timed_step_end(f.be);
    close_to(kind_s(&f, FL_TRACE_ATTENTION), 2);
    close_to(kind_s(&f, FL_TRACE_KV), 3);
    assert_true(kind_s(&f, FL_TRACE_RECORDED) == 0);
    assert_int_equal(device.n_waits, 0); /* nothing waited */
    close_fixture(&f);
}

static void more_ops_than_marks_are_all_counted(void **state) {
    (void)state;
    fixture f = open_fixture(true);
    fl_timed_step_begin(f.be, 64, true);
    for (int i = 0; i < 20; i++) span(&f, "a", FL_TRACE_ATTENTION, 1);
    fl_timed_step_issued(f.be);
    fl_timed_step_end(f.be);
    close_to(kind_s(&f, FL_TRACE_ATTENTION), 20);
    assert_true(device.n_waits > 0);
    close_fixture(&f);
}

static void short_steps_are_one_span_unless_somebody_looks(void **state) {
    (void)state;
    fixture f = open_fixture(true);
    fl_timed_step_begin(f.be, 1, false);
    span(&f, "a", FL_TRACE_ATTENTION, 1);
    fl_timed_step_issued(f.be);
    fl_timed_step_end(f.be);
    assert_true(kind_s(&f, FL_TRACE_ATTENTION) == 0);
    assert_true(kind_s(&f, FL_TRACE_RECORDED) > 0); /* the host's time of the whole step */
    fl_timed_watch(f.be, true);
    assert_true(f.be->watched);
    fl_timed_reset(f.timed);
    fl_timed_step_begin(f.be, 1, false);
    span(&f, "a", FL_TRACE_ATTENTION, 1);
    fl_timed_step_issued(f.be);
    fl_timed_step_end(f.be);
    close_to(kind_s(&f, FL_TRACE_ATTENTION), 1);
    fl_timed_watch(f.be, false);
    close_fixture(&f);
}

/* A replay: no op is issued, the trace shows one span on the device's lane, and the ops of a recording get no marks. */
static void a_replayed_step_is_one_span_of_the_trace(void **state) {
    (void)state;
    fixture f = open_fixture(true);
    fl_trace_event e;
    int32_t on_device = 0;
    assert_int_equal(fl_trace_start(f.trace, 0), FL_ERR_OK);
    fl_timed_step_begin(f.be, 1, false);
    f.be->recording = true;
    span(&f, "a", FL_TRACE_ATTENTION, 1);
    f.be->recording = false;
    device.now_s += 5;
    fl_timed_step_issued(f.be);
    fl_timed_step_end(f.be);
    assert_true(kind_s(&f, FL_TRACE_ATTENTION) == 0);
    close_to(kind_s(&f, FL_TRACE_RECORDED), 6);
    for (int64_t i = 0; i < fl_trace_get_counts(f.trace).kept; i++) {
        assert_true(fl_trace_get(f.trace, i, &e));
        if (e.lane != FL_LANE_DEVICE) continue;
        on_device++;
        assert_int_equal(e.kind, FL_TRACE_RECORDED);
        close_to(e.end_s - e.begin_s, 6);
    }
    assert_int_equal(on_device, 1);
    close_fixture(&f);
}

/* Answers between the layers of a prompt's step are part of it. */
static void a_step_inside_of_a_step_counts_once(void **state) {
    (void)state;
    fixture f = open_fixture(true);
    fl_timed_step_begin(f.be, 64, true);
    span(&f, "a", FL_TRACE_ATTENTION, 2);
    fl_timed_step_begin(f.be, 1, false);
    span(&f, "b", FL_TRACE_KV, 1);
    fl_timed_step_issued(f.be);
    fl_timed_step_end(f.be);
    assert_true(kind_s(&f, FL_TRACE_KV) == 0 && atomic_load(&f.timed->step_s) == 0);
    span(&f, "a", FL_TRACE_ATTENTION, 2);
    fl_timed_step_issued(f.be);
    double before_s = fl_now_s() - f.timed->step.begin_s;
    fl_timed_step_end(f.be);
    close_to(kind_s(&f, FL_TRACE_ATTENTION), 4);
    close_to(kind_s(&f, FL_TRACE_KV), 1);
    assert_true(atomic_load(&f.timed->step_s) >= before_s);
    assert_int_equal(atomic_load(&f.timed->n_steps), 1);
    close_fixture(&f);
}

typedef struct call {
    int32_t n, n_times;
    fl_op_id op;
    double time_s;
} call;

static void hear(void *context, fl_op_id op, const void *args, double time_s) {
    call *c = context;
    assert_non_null(args);
    assert_true(time_s == 0); /* not known yet */
    c->op = op;
    c->n++;
}

static void hear_time(void *context, double time_s) {
    call *c = context;
    c->time_s += time_s;
    c->n_times++;
}

static void calls_are_told_and_then_their_times(void **state) {
    (void)state;
    fixture f = open_fixture(true);
    call heard = {0};
    f.timed->on_call = hear;
    f.timed->on_time = hear_time;
    f.timed->context = &heard;
    f.timed->hold_s = 5;
    device.mark_takes_s = 0.25;
    fl_timed_step_begin(f.be, 64, true);
    multiply(&f, 1);
    span(&f, "between", FL_TRACE_COMM, 1); /* no call */
    multiply(&f, 1);
    fl_timed_step_issued(f.be);
    assert_int_equal(heard.n, 2);
    assert_int_equal(heard.op, FL_OP_matmul);
    assert_int_equal(heard.n_times, 0);
    assert_int_equal(device.n_waits, 0); /* nothing waits for a call */
    fl_timed_step_end(f.be);
    assert_int_equal(heard.n_times, 2);
    close_to(heard.time_s, 2 * 0.25);
    assert_int_equal(device.n_holds, 1); /* before the first */
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_counts_by_kind),
        cmocka_unit_test(a_device_is_read_when_the_step_is_done),
        cmocka_unit_test(more_ops_than_marks_are_all_counted),
        cmocka_unit_test(short_steps_are_one_span_unless_somebody_looks),
        cmocka_unit_test(a_replayed_step_is_one_span_of_the_trace),
        cmocka_unit_test(a_step_inside_of_a_step_counts_once),
        cmocka_unit_test(calls_are_told_and_then_their_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
