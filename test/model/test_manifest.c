/* The manifest against published facts: numbers of tensors and parameters of known models. And the search for values
 * that are not finite. */
#include "model/manifest.h"

#include "base/half.h"
#include "model/finite.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct sums {
    int64_t tensors, linears;
    int64_t always, routed, lookup; /* parameters */
    int64_t stop_after;             /* tensors; -1 = never */
    char last[160];
} sums;

static fl_err add(void *context, const fl_manifest_tensor *t) {
    sums *s = context;
    int64_t n = t->dims[0] * (t->ndim == 2 ? t->dims[1] : 1);
    s->tensors++;
    s->linears += t->kind == FL_MANIFEST_LINEAR;
    if (t->use == FL_MANIFEST_USE_ALWAYS) s->always += n;
    if (t->use == FL_MANIFEST_USE_ROUTED) s->routed += n;
    if (t->use == FL_MANIFEST_USE_LOOKUP) s->lookup += n;
    strncpy(s->last, t->name, sizeof s->last - 1);
    return s->tensors == s->stop_after ? FL_FAIL(FL_ERR_CANCELLED, "enough") : FL_ERR_OK;
}

static fl_config v3(void) {
    return (fl_config){.model_type = FL_MODEL_DEEPSEEK_V3,
                       .hidden = 7168,
                       .layers = 61,
                       .heads = 128,
                       .q_lora_rank = 1536,
                       .kv_lora_rank = 512,
                       .qk_nope_head_dim = 128,
                       .qk_rope_head_dim = 64,
                       .v_head_dim = 128,
                       .intermediate = 18432,
                       .moe_intermediate = 2048,
                       .n_routed_experts = 256,
                       .n_shared_experts = 1,
                       .experts_per_token = 8,
                       .first_k_dense_replace = 3,
                       .moe_layer_freq = 1,
                       .topk_method = FL_TOPK_NOAUX_TC,
                       .vocab_size = 129280,
                       .n_mtp_layers = 1};
}

static sums sum(const fl_config *config) {
    sums s = {.stop_after = -1};
    assert_int_equal(fl_manifest_visit(config, add, &s), FL_ERR_OK);
    return s;
}

/* 91,991 tensors are published, of which the multi-token layer has 1,564; 671 B parameters, 37 B active. */
static void test_deepseek_v3(void **state) {
    (void)state;
    fl_config c = v3();
    sums s = sum(&c);
    assert_int_equal(s.tensors + s.linears, 91991 - 1564);
    int64_t all = s.always + s.routed + s.lookup, active = s.always + s.lookup + s.routed / 256 * 8;
    assert_true(all > 670500000000 && all < 671500000000);
    assert_true(active > 36500000000 && active < 38000000000);
    assert_string_equal(s.last, "model.layers.60.mlp.experts.255.down_proj.weight");
}

/* DeepSeek-V2-Lite: 15.7 B parameters, 2.4 B active without the two vocabulary tables' 0.4 B. */
static void test_deepseek_v2_lite(void **state) {
    (void)state;
    fl_config c = v3();
    c.model_type = FL_MODEL_DEEPSEEK_V2;
    c.topk_method = FL_TOPK_GREEDY;
    c.hidden = 2048;
    c.layers = 27;
    c.heads = 16;
    c.q_lora_rank = 0;
    c.intermediate = 10944;
    c.moe_intermediate = 1408;
    c.n_routed_experts = 64;
    c.n_shared_experts = 2;
    c.first_k_dense_replace = 1;
    c.vocab_size = 102400;
    sums s = sum(&c);
    int64_t all = s.always + s.routed + s.lookup, active = s.always + s.lookup + s.routed / 64 * 6;
    assert_true(all > 15650000000 && all < 15750000000);
    assert_true(active > 2350000000 && active < 2850000000);
    assert_int_equal(s.tensors, 3 + 27 * 7 + 3 + 26 * (1 + 3 + 3 * 64));
}

static void test_stops(void **state) {
    (void)state;
    fl_config c = v3();
    sums s = {.stop_after = 5};
    assert_int_equal(fl_manifest_visit(&c, add, &s), FL_ERR_CANCELLED);
    assert_int_equal(s.tensors, 5);
}

static void test_ignored(void **state) {
    (void)state;
    fl_config c = v3();
    assert_true(fl_manifest_ignores(&c, "model.layers.61.eh_proj.weight"));
    assert_true(fl_manifest_ignores(&c, "model.layers.0.self_attn.rotary_emb.inv_freq"));
    static const char *const surplus[] = {"model.layers.62.eh_proj.weight",
                                          "model.layers.60.eh_proj.weight",
                                          "model.layers.-1.x",
                                          "model.layers.61",
                                          "model.layers.61x.y",
                                          "model.layers.99999999999999999999.x",
                                          "model.layers.",
                                          "model.layers.0.rotary_emb.inv_freq",
                                          "model.layer.61.x",
                                          "layers.61.x"};
    for (size_t i = 0; i < sizeof surplus / sizeof surplus[0]; i++)
        if (fl_manifest_ignores(&c, surplus[i])) fail_msg("%s is not to be ignored", surplus[i]);
}

/* Each code alone, at an odd address, against what the C library says of its value. */
static void test_finite_codes(void **state) {
    (void)state;
    unsigned char buffer[8];
    for (uint32_t code = 0; code < 65536; code++) {
        uint16_t half = (uint16_t)code;
        uint32_t word = code << 16 | (code & 1);
        memcpy(buffer + 1, &half, 2);
        assert_int_equal(fl_finite_find_bad(FL_DTYPE_BF16, buffer + 1, 1),
                         isfinite(fl_f32_of_bf16(half)) ? -1 : 0);
        assert_int_equal(fl_finite_find_bad(FL_DTYPE_F16, buffer + 1, 1),
                         isfinite(fl_f32_of_f16(half)) ? -1 : 0);
        memcpy(buffer + 1, &word, 4);
        assert_int_equal(fl_finite_find_bad(FL_DTYPE_F32, buffer + 1, 1),
                         isfinite(fl_f32_of_bits(word)) ? -1 : 0);
        buffer[1] = (unsigned char)code;
        assert_int_equal(fl_finite_find_bad(FL_DTYPE_F8_E4M3, buffer + 1, 1),
                         isfinite(fl_f32_of_e4m3(buffer[1])) ? -1 : 0);
    }
}

/* The first bad one of several is found, in the last element and across blocks too. */
static void test_finite_places(void **state) {
    (void)state;
    enum { N = 10000 };
    static const int places[] = {0, 1, 63, 4095, 4096, 8191, 9998, 9999};
    for (int d = 0; d < FL_N_DTYPES; d++) {
        size_t size = fl_dtype_bytes((fl_dtype)d);
        unsigned char *data = calloc(N, size);
        assert_non_null(data);
        assert_int_equal(fl_finite_find_bad((fl_dtype)d, data, N), -1);
        assert_int_equal(fl_finite_find_bad((fl_dtype)d, data, 0), -1);
        for (size_t i = sizeof places / sizeof places[0]; i-- > 0;) {
            memset(data + (size_t)places[i] * size, 0xff, size);
            assert_int_equal(fl_finite_find_bad((fl_dtype)d, data, N), places[i]);
        }
        free(data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deepseek_v3),  cmocka_unit_test(test_deepseek_v2_lite),
        cmocka_unit_test(test_stops),        cmocka_unit_test(test_ignored),
        cmocka_unit_test(test_finite_codes), cmocka_unit_test(test_finite_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
