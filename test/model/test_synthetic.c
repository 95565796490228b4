/* Synthetic models: shapes by name, the router's skew, weights that repeat. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/fill.h"
#include "engine/attend_config.h"
#include "model/shapes.h"
#include "model/weights.h"
#include "plan/memory_plan.h"

static void shapes_are_found_by_name(void **state) {
    fl_config c;
    (void)state;
    assert_int_equal(fl_shape_find("moonlight-16b-a3b", &c), FL_ERR_OK);
    assert_int_equal(c.layers, 27);
    assert_int_equal(c.hidden, 2048);
    assert_int_equal(c.quantisation.type, FL_QUANTISATION_NONE);
    assert_true(c.max_position_embeddings > 524288);
    assert_int_equal(fl_shape_find("deepseek-v3:4", &c), FL_ERR_OK);
    assert_int_equal(c.layers, 4);
    assert_true(!fl_config_layer_is_moe(&c, 2) && fl_config_layer_is_moe(&c, 3));
    assert_int_equal(c.quantisation.block_rows, 128);
    assert_true(c.rope_scaling.type == FL_ROPE_SCALING_YARN && c.rope_scaling.factor == 40);
    static const char *const wrong[] = {
        "",   "deepseek",       "deepseek-v3:",   "deepseek-v3:0", "deepseek-v3:62",
        ":4", "deepseek-v3:4x", "deepseek-v3:-4", "deepseek-v3: 4"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(fl_shape_find(wrong[i], &c), FL_ERR_INVALID);
}

static void routers_are_skewed_as_asked(void **state) {
    static const char *const names[] = {"moonlight-16b-a3b", "deepseek-v3", "spark-66m"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fl_config c;
        fl_synthetic made;
        assert_int_equal(fl_shape_find(names[i], &c), FL_ERR_OK);
        assert_int_equal(fl_synthetic_make(&c, 3, 1, &made), FL_ERR_OK);
        assert_true(made.hot_bias == 0 && made.skew == 1);
        for (int32_t halves = 3; halves <= 4; halves++) {
            double skew = 0.5 * halves;
            assert_int_equal(fl_synthetic_make(&c, 3, skew, &made), FL_ERR_OK);
            assert_true(fabs(made.skew - skew) <= 0.05 && made.hot_bias > 0);
        }
        assert_int_equal(fl_synthetic_make(&c, 3, 60, &made), FL_ERR_INVALID);
    }
}

/* Mean and deviation of the generator, and the same values whatever the threads. */
static void values_are_normal_and_repeat(void **state) {
    enum { N = 3 << 20 };
    static uint16_t one[N], three[N];
    double sum = 0, squares = 0;
    fl_backend *be = NULL;
    (void)state;
    for (int64_t i = 0; i < N; i++) {
        double x = (double)fl_fill_normal(5, i);
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / N) < 0.003 && fabs(squares / N - 1) < 0.003);
    for (int32_t threads = 1; threads <= 3; threads += 2) {
        const fl_fill_args args = {.to = threads == 1 ? one : three,
                                   .dtype = FL_DTYPE_BF16,
                                   .count = N - 7,
                                   .seed = 5,
                                   .deviation = 0.5f};
        assert_int_equal(fl_backend_open("reference", threads, &be), FL_ERR_OK);
        assert_int_equal(be->fill(be, &args), FL_ERR_OK);
        fl_backend_close(be);
    }
    assert_memory_equal(one, three, sizeof one);
    assert_true(one[N - 8] != 0 && one[N - 7] == 0);
}

static void weights_are_filled(const char *backend, bool codes) {
    fl_config c;
    fl_synthetic made;
    fl_backend *be = NULL;
    fl_weights *w[2];
    assert_int_equal(fl_shape_find("spark-66m:2", &c), FL_ERR_OK);
    assert_int_equal(fl_synthetic_make(&c, 7, 1.5, &made), FL_ERR_OK);
    assert_int_equal(fl_backend_open(backend, 2, &be), FL_ERR_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(fl_weights_synthetic(be, &c, &made, NULL, NULL, &w[i]), FL_ERR_OK);
    assert_memory_equal(w[0]->memory, w[1]->memory, (size_t)w[0]->memory_bytes);
    const fl_layer *routed = &w[0]->layers[1];
    assert_true(routed->attn_norm[0] == 1 && routed->router[0] != 0 && w[0]->embed != NULL);
    int32_t n_hot = 0;
    for (int32_t e = 0; e < c.n_routed_experts; e++) n_hot += routed->router_bias[e] == made.hot_bias;
    assert_int_equal(n_hot, 2);
    assert_true((routed->o.scale != NULL) == codes);
    assert_true(memcmp(routed->expert_down[0].data, routed->expert_down[1].data, 1024) != 0);
    for (int i = 0; i < 2; i++) fl_weights_close(w[i]);
    fl_backend_close(be);
}

static void weights_are_filled_and_repeat(void **state) {
    (void)state;
    weights_are_filled("reference", false);
    weights_are_filled("reference-w8a8", true);
}

/* What one engine would reserve on a GPU for 512K tokens in one step. */
static int64_t planned_bytes(const char *shape, const char *backend, const char *policy, double density) {
    enum { SPAN = 524288, CTX = SPAN + FL_ATTN_LIST_ROWS };
    const fl_settings settings = {.synthetic = shape, .policy = policy, .block_density = density};
    fl_config c;
    fl_attend_config attending;
    fl_backend *be = NULL;
    fl_dry_run *dry = NULL;
    fl_memory_plan plan;
    assert_int_equal(fl_shape_find(shape, &c), FL_ERR_OK);
    assert_int_equal(fl_backend_open(backend, 1, &be), FL_ERR_OK);
    assert_int_equal(fl_attend_config_open(&c, &settings, CTX, &attending), FL_ERR_OK);
    const fl_memory_sizes sizes = {.ctx_tokens = CTX,
                                   .kv_tokens = CTX,
                                   .span_tokens = SPAN,
                                   .kv = fl_kv_shape_of_config(&c, FL_KV_BF16)};
    assert_int_equal(fl_dry_run_open(&c, be, &sizes.kv, &attending.attend, &dry), FL_ERR_OK);
    assert_int_equal(fl_memory_plan_make(dry, &c, &sizes, &plan), FL_ERR_OK);
    fl_dry_run_close(dry);
    fl_attend_config_close(&attending);
    fl_backend_close(be);
    return plan.total_bytes;
}

static void half_a_million_tokens_fit_one_gpu(void **state) {
    const int64_t most = (int64_t)95 * 1000 * 1000 * 1000;
    (void)state;
    assert_true(planned_bytes("moonlight-16b-a3b", "count:cuda", "full", 0) < most);
    assert_true(planned_bytes("moonlight-16b-a3b", "count:cuda", "window-anchors:window=16k,stride=4k", 0) <
                most);
    assert_true(planned_bytes("moonlight-16b-a3b", "count:cuda", "blocks", 0.1) < most);
    assert_true(planned_bytes("moonlight-16b-a3b-fp8", "count:cuda-w8a8", "full", 0) < most);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_found_by_name),          cmocka_unit_test(routers_are_skewed_as_asked),
        cmocka_unit_test(values_are_normal_and_repeat),      cmocka_unit_test(weights_are_filled_and_repeat),
        cmocka_unit_test(half_a_million_tokens_fit_one_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
