/* The memory plan on the counting backend: what recordings of steps take, which nobody reserves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/shapes.h"
#include "plan/memory_plan.h"

static fl_memory_plan plan_on(const char *backend, bool eager) {
    fl_config config;
    fl_backend *be;
    fl_dry_run *dry;
    fl_memory_plan plan;
    assert_int_equal(fl_shape_find("spark-66m", &config), FL_ERR_OK);
    assert_int_equal(fl_backend_open(backend, 1, &be), FL_ERR_OK);
    const fl_kv_shape kv = fl_kv_shape_of_config(&config, FL_KV_BF16);
    assert_int_equal(fl_dry_run_open(&config, be, &kv, NULL, &dry), FL_ERR_OK);
    const fl_memory_sizes sizes = {
        .ctx_tokens = 8192, .kv_tokens = 8192, .span_tokens = 4096, .eager = eager, .kv = kv};
    assert_int_equal(fl_memory_plan_make(dry, &config, &sizes, &plan), FL_ERR_OK);
    fl_dry_run_close(dry);
    fl_backend_close(be);
    return plan;
}

static int64_t reserved(const fl_memory_plan *p) {
    return p->weights_bytes + p->kv_bytes + p->scratch_bytes + p->logits_bytes + p->draw_bytes;
}

/* By hand: each of spark-66m's 8 layers has at least norms (4), products (q_a, q_b, kv_a, keys and values, o, two of
 * the feed-forward), KV written and read, attention of document and of tail rows, and fewer than 36 ops in all. 4,608
 * bytes each, 64 times, whole pages; none where nothing is recorded. */
static void recordings_are_a_line_of_the_plan(void **state) {
    (void)state;
    const fl_memory_plan cuda = plan_on("count:cuda", false), eager = plan_on("count:cuda", true),
                         cpu = plan_on("count:avx2", false);
    int64_t a_layer = (int64_t)FL_GRAPHS_MAX * 8 * 4608;
    assert_true(cuda.recordings_bytes > 15 * a_layer && cuda.recordings_bytes < 36 * a_layer);
    assert_int_equal(cuda.recordings_bytes % FL_DRIVER_PAGE_BYTES, 0);
    assert_int_equal(cuda.total_bytes, reserved(&cuda) + cuda.recordings_bytes);
    assert_int_equal(eager.recordings_bytes, 0);
    assert_int_equal(eager.total_bytes, reserved(&cuda));
    assert_int_equal(cpu.recordings_bytes, 0);
    assert_int_equal(cpu.total_bytes, reserved(&cpu));
}

static void a_device_without_room_for_them_is_refused(void **state) {
    (void)state;
    const fl_memory_plan plan = plan_on("count:cuda", false), eager = plan_on("count:cuda", true);
    assert_int_equal(fl_memory_plan_check_free(&plan, plan.recordings_bytes), FL_ERR_OK);
    assert_int_equal(fl_memory_plan_check_free(&plan, plan.recordings_bytes - 1), FL_ERR_NOMEM);
    assert_int_equal(fl_memory_plan_check_free(&eager, 0), FL_ERR_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recordings_are_a_line_of_the_plan),
        cmocka_unit_test(a_device_without_room_for_them_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
