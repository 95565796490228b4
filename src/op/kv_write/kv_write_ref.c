#include "op/kv_write/kv_write.h"

#include <math.h>
#include <string.h>

#include "op/act.h"
#include "op/kv_format.h"
#include "op/ref.h"

static void put_bytes(uint8_t *at, const void *value, size_t bytes) {
    memcpy(at, value, bytes);
}

static void write_fp8(const fl_kv_layer *kv, uint8_t *piece, int32_t slot, const float *x) {
    const fl_kv_layout at = fl_kv_layout_of(kv);
    for (int32_t g = 0; g < at.groups; g++) {
        int32_t first = g * FL_KV_FP8_GROUP, end = first + FL_KV_FP8_GROUP;
        if (end > kv->latent_dim) end = kv->latent_dim;
        float top = 0;
        for (int32_t j = first; j < end; j++) top = fmaxf(top, fabsf(x[j])); /* fmax prefers numbers to NaN */
        float scale = fmaxf(top / 448, FL_KV_FP8_SCALE_MIN);
        put_bytes(piece + at.scales_bytes + (slot * at.groups + g) * (int64_t)sizeof scale, &scale,
                  sizeof scale);
        for (int32_t j = first; j < end; j++) piece[slot * kv->latent_dim + j] = fl_e4m3_of_f32(x[j] / scale);
    }
}

static bool is_outlier(const fl_kv_layer *kv, int32_t dim) {
    bool found = false;
    for (int32_t i = 0; i < kv->n_outliers; i++) found = found || kv->outliers[i] == dim;
    return found;
}

static void write_int4(const fl_kv_layer *kv, uint8_t *piece, int32_t slot, const float *x) {
    const fl_kv_layout at = fl_kv_layout_of(kv);
    for (int32_t g = 0; g < at.groups; g++) {
        float low = INFINITY, high = -INFINITY;
        bool bad = false;
        for (int32_t j = g * kv->group; j < (g + 1) * kv->group; j++) {
            if (is_outlier(kv, j)) continue;
            low = fminf(low, x[j]);
            high = fmaxf(high, x[j]);
            bad = bad || isnan(x[j]) || fabsf(x[j]) > 65504;
        }
        uint16_t minimum = bad ? 0x7e00 : fl_f16_floor_of_f32(low);
        uint16_t scale = bad ? 0x7e00 : fl_f16_ceiling_of_f32((high - fl_f32_of_f16(minimum)) / 15);
        uint8_t *fit = piece + at.scales_bytes + (slot * at.groups + g) * 4;
        put_bytes(fit, &scale, 2);
        put_bytes(fit + 2, &minimum, 2);
        for (int32_t j = g * kv->group; j < (g + 1) * kv->group; j++) {
            uint8_t *byte = piece + (slot * kv->latent_dim + j) / 2;
            int code = 0;
            if (!bad && !is_outlier(kv, j) && fl_f32_of_f16(scale) > 0)
                code = (int)fminf(15, rintf((x[j] - fl_f32_of_f16(minimum)) / fl_f32_of_f16(scale)));
            *byte = (uint8_t)(j % 2 ? (*byte & 0x0f) | code << 4 : code);
        }
    }
    for (int32_t i = 0; i < kv->n_outliers; i++)
        fl_act_store(piece + at.outliers_bytes, FL_DTYPE_BF16, slot * kv->n_outliers + i, x[kv->outliers[i]]);
}

/* All latents of one timeline in this call: the smallest, the largest. */
typedef struct extent {
    float low, high;
} extent;

static extent find_extent(const fl_kv_write_args *a, const fl_kv_rows *seq) {
    extent e = {INFINITY, -INFINITY};
    for (int32_t i = 0; i < seq->n_rows; i++)
        for (int32_t j = 0; j < a->kv.latent_dim; j++) {
            float x = ((const float *)a->latent)[(seq->row + i) * a->latent_stride + j];
            e.low = fminf(e.low, x);
            e.high = fmaxf(e.high, x);
        }
    return e;
}

static float naive_value(extent e, float code_max, float value) {
    float scale = (e.high - e.low) / code_max, code = 0;
    if (isnan(value)) return value;
    if (scale > 0) code = rintf((value - e.low) / scale);
    return e.low + (code > code_max ? code_max : code) * scale;
}

static void write_latent(const fl_kv_write_args *a, uint8_t *piece, int32_t slot, const float *x, extent e) {
    const fl_kv_layer *kv = &a->kv;
    float code_max = (float)fl_kv_naive_code_max(kv->format);
    if (kv->format == FL_KV_FP8) write_fp8(kv, piece, slot, x);
    else if (kv->format == FL_KV_INT4) write_int4(kv, piece, slot, x);
    else
        for (int32_t j = 0; j < kv->latent_dim; j++)
            fl_act_store(piece, fl_kv_format_dtype(kv->format), slot * kv->latent_dim + j,
                         code_max > 0 ? naive_value(e, code_max, x[j]) : x[j]);
}

static void write_k_pe(const fl_kv_write_args *a, uint8_t *piece, int32_t slot, int64_t row) {
    const fl_kv_layer *kv = &a->kv;
    const float *x = a->k_pe + row * a->k_pe_stride, *rotation = a->table + row * kv->rope_dim;
    uint8_t *to = piece + fl_kv_layout_of(kv).k_pe_bytes;
    for (int32_t j = 0; j < kv->rope_dim; j += 2) {
        double even = (double)x[j], odd = (double)x[j + 1];
        double cosine = (double)rotation[j], sine = (double)rotation[j + 1];
        fl_dtype dtype = fl_kv_format_dtype(kv->format);
        fl_act_store(to, dtype, slot * kv->rope_dim + j, (float)(even * cosine - odd * sine));
        fl_act_store(to, dtype, slot * kv->rope_dim + j + 1, (float)(even * sine + odd * cosine));
    }
}

fl_err fl_kv_write_ref(fl_backend *be, const fl_kv_write_args *a) {
    (void)be;
    FL_TRY(fl_kv_write_validate(a));
    const fl_kv_layer *kv = &a->kv;
    for (int32_t s = 0; s < a->n_seqs; s++) {
        const fl_kv_rows *seq = &a->seqs[s];
        extent e = find_extent(a, seq);
        for (int32_t i = 0; i < seq->n_rows; i++) {
            int32_t row = seq->row + i, pos = seq->pos + i, slot = pos % FL_KV_PAGE_TOKENS;
            uint8_t *piece = fl_kv_piece(kv, seq->pages[pos / FL_KV_PAGE_TOKENS]);
            write_latent(a, piece, slot, (const float *)a->latent + row * a->latent_stride, e);
            write_k_pe(a, piece, slot, row);
        }
    }
    return FL_ERR_OK;
}
