/* The stored formats of KV: layouts and sizes, exact bytes by hand, error bounds, outliers, hostile values, and that
 * the vector version, the portable one and the definition agree bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "op/act.h"
#include "op/kv_format.h"

enum { LATENT_MAX = 512, ROPE_MAX = 64, PIECE_MAX = 64 * (LATENT_MAX + ROPE_MAX) * 4 };

static const uint16_t some_outliers[FL_KV_OUTLIERS_MAX] = {0, 5, 6, 40, 63, 64, 90, 127};

static _Alignas(64) uint8_t piece[PIECE_MAX];
static uint32_t random_state;

/* Roughly normal. */
static float noise(void) {
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        random_state = random_state * 1664525u + 1013904223u;
        sum += (float)(random_state >> 8) / 0x1p23f - 1;
    }
    return sum;
}

static fl_kv_layer layer_of(fl_kv_format format, int32_t latent, int32_t rope) {
    fl_kv_layer layer = {.latent_dim = latent, .rope_dim = rope, .format = format};
    layer.group = fl_kv_format_group(format, latent);
    layer.outliers = some_outliers;
    layer.base = piece;
    layer.page_stride_bytes = fl_kv_piece_bytes(&layer);
    return layer;
}

static float stored(const fl_kv_layer *layer, int32_t slot, int32_t dim) {
    return fl_kv_latent_at(layer, piece, slot, dim);
}

/* Scale and minimum of a group of int4. */
static void fit_of(const fl_kv_layer *layer, int32_t slot, int32_t group, double fit[2]) {
    const fl_kv_layout at = fl_kv_layout_of(layer);
    const uint16_t *fits = (const uint16_t *)(const void *)(piece + at.scales_bytes);
    for (int i = 0; i < 2; i++) fit[i] = (double)fl_f32_of_f16(fits[(slot * at.groups + group) * 2 + i]);
}

static void names(void **state) {
    (void)state;
    fl_kv_format format;
    for (int i = 0; i < FL_N_KV_FORMATS; i++) {
        assert_true(fl_kv_format_parse(fl_kv_format_name((fl_kv_format)i), &format));
        assert_int_equal(format, i);
    }
    assert_string_equal(fl_kv_format_name(FL_KV_INT4_NAIVE), "int4-naive");
    assert_false(fl_kv_format_parse("int8", &format));
    assert_false(fl_kv_format_parse("", &format));
}

static void assert_token_bytes(fl_kv_layer layer, double expected) {
    assert_true(fabs(fl_kv_token_bytes(&layer) - expected) <= 0);
    assert_int_equal(fl_kv_piece_bytes(&layer), (int64_t)expected * FL_KV_PAGE_TOKENS);
}

static void sizes(void **state) {
    (void)state;
    assert_token_bytes(layer_of(FL_KV_F32, 512, 64), 2304);
    assert_token_bytes(layer_of(FL_KV_BF16, 512, 64), 1152);
    assert_token_bytes(layer_of(FL_KV_INT2_NAIVE, 512, 64), 1152);
    assert_token_bytes(layer_of(FL_KV_FP8, 512, 64), 656);
    fl_kv_layer v3 = layer_of(FL_KV_INT4, 512, 64);
    assert_int_equal(v3.group, 64);
    assert_token_bytes(v3, 416);
    assert_true(fl_kv_token_bytes(&v3) <= 0.362 * 1152);
    v3.n_outliers = 8;
    assert_token_bytes(v3, 416 + 16);
    v3.n_outliers = 0;
    v3.group = 32;
    assert_token_bytes(v3, 448);
    assert_true(fl_kv_token_bytes(&v3) <= 0.389 * 1152);
    assert_token_bytes(layer_of(FL_KV_BF16, 128, 32), 320);
    assert_token_bytes(layer_of(FL_KV_FP8, 128, 32), 196);
    assert_token_bytes(layer_of(FL_KV_INT4, 128, 32), 144);
}

/* Two planes: two k_pe parts; an op that works on one counts one. */
static void planes(void **state) {
    (void)state;
    fl_kv_layer layer = layer_of(FL_KV_FP8, 128, 32);
    int64_t one = fl_kv_piece_bytes(&layer);
    float k_pe[2][32];
    layer.planes = 2;
    assert_int_equal(fl_kv_piece_bytes(&layer), one + 64 * 32 * 2);
    assert_true(fabs(fl_kv_token_bytes(&layer) - 196) <= 0);
    memset(piece, 0, sizeof piece);
    for (int32_t plane = 0; plane < 2; plane++) {
        layer.plane = plane;
        assert_int_equal(fl_kv_piece_bytes(&layer), one + 64 * 32 * 2);
        for (int i = 0; i < 32; i++) k_pe[plane][i] = (float)(100 * plane + i);
        fl_kv_k_pe_store(&layer, piece, 63, k_pe[plane], FL_DTYPE_F32);
    }
    for (int32_t plane = 0; plane < 2; plane++) {
        layer.plane = plane;
        for (int i = 0; i < 32; i++)
            assert_int_equal(((const uint16_t *)fl_kv_k_pe(&layer, piece, 63))[i],
                             fl_bf16_of_f32(k_pe[plane][i]));
    }
}

/* Bytes written down by hand. */
static void literal_bytes(void **state) {
    (void)state;
    float x[128];
    fl_kv_layer layer = layer_of(FL_KV_INT4, 64, 2);
    fl_kv_layout at = fl_kv_layout_of(&layer);
    for (int i = 0; i < 64; i++) x[i] = i < 32 ? (float)(i % 16) : 3 + 0.5f * (float)(i % 16);
    x[40] = 3 + 0.25f; /* between codes 0 and 1: to the even one */
    x[41] = 3 + 0.75f; /* between codes 1 and 2 */
    fl_kv_latent_store(&layer, piece, 1, x, FL_DTYPE_F32);
    for (int i = 0; i < 16; i++) assert_int_equal(piece[32 + i], (2 * i % 16) | (2 * i + 1) % 16 << 4);
    assert_int_equal(piece[32 + 20], 0x20);
    const uint16_t *fits = (const uint16_t *)(const void *)(piece + at.scales_bytes) + 4;
    assert_int_equal(fits[0], 0x3c00); /* 1 */
    assert_int_equal(fits[1], 0);
    assert_int_equal(fits[2], 0x3800); /* 1/2 */
    assert_int_equal(fits[3], 0x4200); /* 3 */
    layer = layer_of(FL_KV_FP8, 128, 2);
    at = fl_kv_layout_of(&layer);
    for (int i = 0; i < 128; i++) x[i] = fl_f32_of_e4m3((uint8_t)(i < 127 ? i : 0xfe));
    fl_kv_latent_store(&layer, piece, 2, x, FL_DTYPE_F32);
    float scale;
    memcpy(&scale, piece + at.scales_bytes + 2 * sizeof scale, sizeof scale);
    assert_true(fabsf(scale - 1) <= 0);
    for (int i = 0; i < 128; i++) assert_int_equal(piece[2 * 128 + i], i < 127 ? i : 0xfe);
}

/* The nearest of the 16 values, and so within half a step. */
static void check_int4_row(const fl_kv_layer *layer, const float *x) {
    fl_kv_latent_store(layer, piece, 7, x, FL_DTYPE_F32);
    for (int32_t i = 0; i < layer->latent_dim; i++) {
        double fit[2], value = (double)x[i], error = fabs((double)stored(layer, 7, i) - value);
        double rounding = fabs(value) * 0x1p-22 + 1e-30;
        fit_of(layer, 7, i / layer->group, fit);
        assert_true(error <= fit[0] / 2 + rounding);
        for (int code = 0; code < 16; code++)
            assert_true(error <= fabs(fit[1] + code * fit[0] - value) + rounding);
    }
}

static void check_fp8_row(const fl_kv_layer *layer, const float *x) {
    fl_kv_latent_store(layer, piece, 7, x, FL_DTYPE_F32);
    for (int32_t i = 0; i < layer->latent_dim; i++) {
        double top = 0, value = (double)x[i];
        for (int32_t k = i / 128 * 128; k < layer->latent_dim && k < i / 128 * 128 + 128; k++)
            top = fmax(top, fabs((double)x[k]));
        double bound = fmax(fabs(value) / 16, top / 448 / 1024) * (1 + 1e-6) + 0x1p-127;
        assert_true(fabs((double)stored(layer, 7, i) - value) <= bound);
    }
}

static void errors_are_bounded(void **state) {
    (void)state;
    const float scales[] = {1, 1e-3f, 20, 1000, 1e-7f}, offsets[] = {0, 1, -30, 1234.5f, 1e-7f};
    const int32_t dims[] = {32, 128, 512};
    random_state = 1;
    for (int d = 0; d < 3; d++)
        for (int round = 0; round < 200; round++) {
            float x[LATENT_MAX];
            fl_kv_layer int4 = layer_of(FL_KV_INT4, dims[d], 8), fp8 = layer_of(FL_KV_FP8, dims[d], 8);
            if (round % 2 && dims[d] > 32) int4.group = 64;
            for (int32_t i = 0; i < dims[d]; i++) x[i] = noise() * scales[round % 5] + offsets[round / 5 % 5];
            check_int4_row(&int4, x);
            check_fp8_row(&fp8, x);
        }
}

/* Outliers read as bf16, whatever they are; the others' bytes do not depend on them. */
static void outliers_are_kept_apart(void **state) {
    (void)state;
    const float wild[] = {1e4f, -1e30f, 0, 3.14159f, INFINITY, -70000, 1e-30f, 5};
    fl_kv_layer layer = layer_of(FL_KV_INT4, 128, 8);
    layer.n_outliers = FL_KV_OUTLIERS_MAX;
    fl_kv_layout at = fl_kv_layout_of(&layer);
    uint8_t tame[64 + 4 * 4];
    float x[128];
    random_state = 2;
    for (int i = 0; i < 128; i++) x[i] = noise();
    fl_kv_latent_store(&layer, piece, 0, x, FL_DTYPE_F32);
    memcpy(tame, piece, 64);
    memcpy(tame + 64, piece + at.scales_bytes, 16);
    for (int i = 0; i < FL_KV_OUTLIERS_MAX; i++) x[some_outliers[i]] = wild[i];
    fl_kv_latent_store(&layer, piece, 0, x, FL_DTYPE_F32);
    assert_memory_equal(tame, piece, 64);
    assert_memory_equal(tame + 64, piece + at.scales_bytes, 16);
    for (int i = 0; i < FL_KV_OUTLIERS_MAX; i++) {
        int dim = some_outliers[i];
        assert_int_equal(fl_bits_of_f32(stored(&layer, 0, dim)), (uint32_t)fl_bf16_of_f32(wild[i]) << 16);
        assert_int_equal(piece[dim / 2] >> dim % 2 * 4 & 0xf, 0);
    }
    x[some_outliers[3]] = NAN;
    fl_kv_latent_store(&layer, piece, 0, x, FL_DTYPE_F32);
    assert_memory_equal(tame, piece, 64);
    assert_true(isnan(stored(&layer, 0, some_outliers[3])));
}

/* Two groups, the second ordinary: it must not notice what is in the first. */
static void store_beside(const fl_kv_layer *layer, const float *first, int32_t n) {
    float x[256];
    int32_t exact =
        layer->format == FL_KV_FP8 ? 8 : 16; /* whole numbers below it are, if all are in a group */
    for (int32_t i = 0; i < 256; i++) x[i] = i < n ? first[i] : (float)(i % exact);
    fl_kv_latent_store(layer, piece, 3, x, FL_DTYPE_F32);
    for (int32_t i = n; i < 256; i++) assert_true(fabsf(stored(layer, 3, i) - x[i]) <= 0);
}

static void zeros_and_equal_values(void **state) {
    (void)state;
    const float values[] = {0, 1, -3.3f, 22.6f, 6e4f, 1e-5f, -1e-9f};
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        fl_kv_layer int4 = layer_of(FL_KV_INT4, 256, 8), fp8 = layer_of(FL_KV_FP8, 256, 8);
        float x[128];
        for (int i = 0; i < 128; i++) x[i] = values[k];
        store_beside(&int4, x, 64);
        double bound = fabs((double)values[k]) * 0x1p-14 + 0x1p-25;
        for (int i = 0; i < 64; i++) assert_true(fabs((double)(stored(&int4, 3, i) - values[k])) <= bound);
        store_beside(&fp8, x, 128);
        bound = fabs((double)values[k]) * 0x1p-22;
        for (int i = 0; i < 128; i++) assert_true(fabs((double)(stored(&fp8, 3, i) - values[k])) <= bound);
    }
}

/* What int4 cannot hold makes its group NaN, never a number that looks right. */
static void hostile_values(void **state) {
    (void)state;
    const float hostile[] = {NAN, -NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 65505};
    for (size_t k = 0; k < sizeof hostile / sizeof *hostile; k++) {
        fl_kv_layer int4 = layer_of(FL_KV_INT4, 256, 8), fp8 = layer_of(FL_KV_FP8, 256, 8);
        float x[128];
        for (int i = 0; i < 128; i++) x[i] = (float)i;
        x[k * 9] = hostile[k];
        store_beside(&int4, x, 64);
        for (int i = 0; i < 64; i++) assert_true(isnan(stored(&int4, 3, i)));
        store_beside(&fp8, x, 128);
        for (int i = 0; i < 128; i++) {
            float got = stored(&fp8, 3, i);
            if (isinf(hostile[k]) || isnan(x[i])) assert_true(isnan(got));
            else
                assert_true(fabsf(got - x[i]) <= fmaxf(fabsf(x[i]) / 15, fabsf(hostile[k]) / 448 / 512) ||
                            (isnan(hostile[k]) && fabsf(got - x[i]) <= 8));
        }
    }
}

/* Naive formats: NaN stays, few levels, k_pe untouched. */
static void naive_controls(void **state) {
    (void)state;
    fl_backend *be = NULL;
    assert_int_equal(fl_backend_open("reference", 1, &be), FL_ERR_OK);
    fl_kv_layer layer = layer_of(FL_KV_INT2_NAIVE, 64, 8);
    float latent[2 * 64], k_pe[2 * 8], straight[2 * 8];
    const int32_t page = 0;
    const fl_kv_rows seq = {.n_rows = 2, .pos = 4, .pages = &page};
    for (int i = 0; i < 128; i++) latent[i] = (float)(i % 61) / 20 - 1; /* -1 .. 2 */
    latent[77] = NAN;
    for (int i = 0; i < 16; i++) {
        k_pe[i] = 0.1f * (float)i;
        straight[i] = (float)(i % 2 == 0);
    }
    const fl_kv_write_args args = {.latent = latent,
                                   .latent_stride = 64,
                                   .k_pe = k_pe,
                                   .k_pe_stride = 8,
                                   .table = straight,
                                   .kv = layer,
                                   .seqs = &seq,
                                   .n_seqs = 1};
    assert_int_equal(be->op->kv_write(be, &args), FL_ERR_OK);
    for (int i = 0; i < 128; i++) {
        float got = stored(&layer, 4 + i / 64, i % 64);
        if (i == 77) assert_true(isnan(got));
        else {
            assert_true(fabsf(got - roundf(got)) <= 0 && got >= -1 && got <= 2);
            assert_true(fabsf(got - latent[i]) <= 0.5001f);
        }
    }
    for (int i = 0; i < 16; i++)
        assert_int_equal(((const uint16_t *)fl_kv_k_pe(&layer, piece, 4))[i], fl_bf16_of_f32(k_pe[i]));
    fl_backend_close(be);
}

static void a_page_in_parts(fl_backend *be, fl_kv_layer layer) {
    enum { ROWS = 64, WIDE = 128, ROPE = 32 };
    _Alignas(64) static uint8_t rows[ROWS * WIDE * 4], whole[PIECE_MAX];
    static float k_pe[ROWS * ROPE], table[ROWS * ROPE];
    const int32_t page = 0;
    fl_kv_rows seq = {.n_rows = ROWS, .pages = &page};
    fl_kv_write_args args = {.latent = rows, .latent_stride = WIDE, .k_pe = k_pe, .k_pe_stride = ROPE};
    args.table = table;
    args.kv = layer;
    args.seqs = &seq;
    args.n_seqs = 1;
    for (int i = 0; i < ROWS * WIDE; i++) fl_act_store(rows, be->act_dtype, i, noise());
    for (int i = 0; i < ROWS * ROPE; i++) {
        k_pe[i] = noise();
        table[i] = noise();
    }
    memset(piece, 0xaa, sizeof piece);
    assert_int_equal(be->op->kv_write(be, &args), FL_ERR_OK);
    memcpy(whole, piece, sizeof whole);
    memset(piece, 0x55, sizeof piece);
    for (int32_t i = 0; i < ROWS; i++) {
        seq = (fl_kv_rows){.row = i, .n_rows = 1, .pos = i, .pages = &page};
        assert_int_equal(be->op->kv_write(be, &args), FL_ERR_OK);
    }
    assert_memory_equal(piece, whole, (size_t)fl_kv_piece_bytes(&layer));
}

static void token_by_token_equals_at_once(void **state) {
    (void)state;
    random_state = 3;
    for (const char *const *name = fl_backend_names(); *name; name++) {
        fl_backend *be = NULL;
        if (!fl_backend_available(*name)) continue;
        assert_int_equal(fl_backend_open(*name, 1, &be), FL_ERR_OK);
        if (be->pool) {
            const fl_kv_format formats[] = {FL_KV_BF16, FL_KV_FP8, FL_KV_INT4};
            for (int i = 0; i < 3; i++) {
                fl_kv_layer layer = layer_of(formats[i], 128, 32);
                layer.n_outliers = formats[i] == FL_KV_INT4 ? 3 : 0;
                layer.page_stride_bytes = fl_kv_piece_bytes(&layer);
                a_page_in_parts(be, layer);
            }
        }
        fl_backend_close(be);
    }
}

/* Every way of reading a page, on the same bytes. */
static void check_reading(const fl_kv_layer *layer, fl_kv_slots slots) {
    static _Alignas(64) float wide[64 * LATENT_MAX];
    static _Alignas(64) uint16_t half[64 * LATENT_MAX + 64], fast[64 * LATENT_MAX + 64];
    int32_t dim = layer->latent_dim, n = slots.n * dim;
    fl_kv_latents_read(layer, piece, slots, FL_DTYPE_F32, wide);
    fl_kv_latents_read(layer, piece, slots, FL_DTYPE_BF16, half);
    for (int32_t i = 0; i < n; i++) {
        float value = stored(layer, slots.first + i / dim, i % dim);
        assert_int_equal(fl_bits_of_f32(wide[i]), fl_bits_of_f32(value));
        assert_int_equal(half[i], fl_bf16_of_f32(value));
    }
    if (!fl_backend_available("avx512")) return;
    memset(fast, 0xee, sizeof fast);
    fl_kv_latents_read_avx512(layer, piece, slots, fast);
    assert_memory_equal(fast, half, (size_t)n * sizeof *half);
    for (int32_t i = n; i < n + 64; i++) assert_int_equal(fast[i], 0xeeee);
}

static void reading_is_one_function(void **state) {
    (void)state;
    const int32_t dims[] = {32, 128, 192, 512};
    const fl_kv_slots parts[] = {{0, 64}, {0, 1}, {63, 1}, {5, 17}};
    random_state = 4;
    for (int d = 0; d < 4; d++)
        for (int k = 0; k < 4; k++) {
            fl_kv_layer int4 = layer_of(FL_KV_INT4, dims[d], 8), fp8 = layer_of(FL_KV_FP8, dims[d] - k, 8);
            float x[LATENT_MAX];
            if (dims[d] >= 128) int4.n_outliers = 2 * k;
            if (k == 3 && dims[d] > 32) int4.group = 64;
            for (int32_t slot = 0; slot < 64; slot++) {
                for (int32_t i = 0; i < dims[d]; i++) x[i] = noise() * (i % 3 ? 1.0f : 0.01f);
                if (slot == 9) x[2] = NAN;
                fl_kv_latent_store(&int4, piece, slot, x, FL_DTYPE_F32);
            }
            check_reading(&int4, parts[k]);
            for (int32_t slot = 0; slot < 64; slot++) {
                for (int32_t i = 0; i < dims[d]; i++) x[i] = noise() * (i % 3 ? 1.0f : 1e-5f);
                if (slot == 9) x[2] = NAN;
                if (slot == 10) memset(x, 0, sizeof x);
                fl_kv_latent_store(&fp8, piece, slot, x, FL_DTYPE_F32);
            }
            check_reading(&fp8, parts[k]);
        }
    fl_kv_layer fp8 = layer_of(FL_KV_FP8, 256, 8); /* every code */
    for (int i = 0; i < 256; i++) piece[i] = (uint8_t)i;
    const float scales[2] = {0.37f, FL_KV_FP8_SCALE_MIN};
    memcpy(piece + fl_kv_layout_of(&fp8).scales_bytes, scales, sizeof scales);
    check_reading(&fp8, (fl_kv_slots){0, 1});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(sizes),
        cmocka_unit_test(planes),
        cmocka_unit_test(literal_bytes),
        cmocka_unit_test(errors_are_bounded),
        cmocka_unit_test(outliers_are_kept_apart),
        cmocka_unit_test(zeros_and_equal_values),
        cmocka_unit_test(hostile_values),
        cmocka_unit_test(naive_controls),
        cmocka_unit_test(token_by_token_equals_at_once),
        cmocka_unit_test(reading_is_one_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
