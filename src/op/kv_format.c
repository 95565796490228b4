#include "op/kv_format.h"

#include <math.h>
#include <string.h>

#include "op/op_convert.h"

static const char *const names[] = {[FL_KV_F32] = "f32",
                                    [FL_KV_BF16] = "bf16",
                                    [FL_KV_FP8] = "fp8",
                                    [FL_KV_INT4] = "int4",
                                    [FL_KV_INT4_NAIVE] = "int4-naive",
                                    [FL_KV_INT2_NAIVE] = "int2-naive"};

const char *fl_kv_format_name(fl_kv_format format) {
    return names[format];
}

bool fl_kv_format_parse(const char *name, fl_kv_format *out) {
    for (int i = 0; i < FL_N_KV_FORMATS; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (fl_kv_format)i;
            return true;
        }
    return false;
}

int32_t fl_kv_format_group(fl_kv_format format, int32_t latent_dim) {
    if (format != FL_KV_INT4) return 0;
    return latent_dim < 256 ? 32 : 64;
}

fl_kv_layout fl_kv_layout_of(const fl_kv_layer *layer) {
    int64_t latent = layer->latent_dim, element = (int64_t)fl_dtype_bytes(fl_kv_format_dtype(layer->format));
    int64_t codes = latent * element, scales = 0, outliers = 0;
    fl_kv_layout at = {0};
    if (layer->format == FL_KV_FP8) {
        at.groups = (layer->latent_dim + FL_KV_FP8_GROUP - 1) / FL_KV_FP8_GROUP;
        codes = latent;
        scales = at.groups * (int64_t)sizeof(float);
    } else if (layer->format == FL_KV_INT4) {
        at.groups = layer->latent_dim / layer->group;
        codes = latent / 2;
        scales = at.groups * 2 * (int64_t)sizeof(uint16_t);
        outliers = layer->n_outliers * (int64_t)sizeof(uint16_t);
    }
    at.scales_bytes = FL_KV_PAGE_TOKENS * codes;
    at.outliers_bytes = at.scales_bytes + FL_KV_PAGE_TOKENS * scales;
    int64_t planes = layer->planes > 0 ? layer->planes : 1;
    int64_t plane_bytes = FL_KV_PAGE_TOKENS * layer->rope_dim * element;
    at.k_pe_bytes = at.outliers_bytes + FL_KV_PAGE_TOKENS * outliers + layer->plane * plane_bytes;
    at.piece_bytes = at.k_pe_bytes + (planes - layer->plane) * plane_bytes;
    return at;
}

int64_t fl_kv_piece_bytes(const fl_kv_layer *layer) {
    return fl_kv_layout_of(layer).piece_bytes;
}

double fl_kv_token_bytes(const fl_kv_layer *layer) {
    fl_kv_layer one_plane = *layer;
    one_plane.planes = one_plane.plane = 0;
    return (double)fl_kv_piece_bytes(&one_plane) / FL_KV_PAGE_TOKENS;
}

/* ---- the definition ---- */

static bool is_outlier(const fl_kv_layer *layer, int32_t dim, int32_t *index) {
    for (*index = 0; *index < layer->n_outliers; ++*index)
        if (layer->outliers[*index] == dim) return true;
    return false;
}

float fl_kv_latent_at(const fl_kv_layer *layer, const uint8_t *piece, int32_t slot, int32_t dim) {
    const fl_kv_layout at = fl_kv_layout_of(layer);
    int64_t element = (int64_t)slot * layer->latent_dim + dim;
    if (layer->format == FL_KV_F32) return ((const float *)(const void *)piece)[element];
    if (fl_kv_format_is_plain(layer->format))
        return fl_f32_of_bf16(((const uint16_t *)(const void *)piece)[element]);
    if (layer->format == FL_KV_FP8) {
        const float *scales = (const float *)(const void *)(piece + at.scales_bytes);
        return fl_f32_of_e4m3(piece[element]) * scales[slot * at.groups + dim / FL_KV_FP8_GROUP];
    }
    const uint16_t *scales = (const uint16_t *)(const void *)(piece + at.scales_bytes);
    const uint16_t *outliers = (const uint16_t *)(const void *)(piece + at.outliers_bytes);
    int32_t outlier, code = piece[element / 2] >> dim % 2 * 4 & 0xf;
    if (is_outlier(layer, dim, &outlier)) return fl_f32_of_bf16(outliers[slot * layer->n_outliers + outlier]);
    scales += (slot * at.groups + dim / layer->group) * 2;
    return fl_f32_of_f16(scales[1]) + (float)code * fl_f32_of_f16(scales[0]);
}

/* ---- storing ---- */

/* To the nearest whole number, ties to even, for magnitudes below 2^22: in a form that compilers vectorise. */
static float round_even(float value) {
    return value + 0x1.8p23f - 0x1.8p23f;
}

static float magnitude_max(const float *x, int32_t n) {
    float top = 0;
    for (int32_t i = 0; i < n; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top; /* a NaN is never above */
    return top;
}

static void store_fp8(const fl_kv_layer *layer, uint8_t *piece, int32_t slot, const float *x) {
    const fl_kv_layout at = fl_kv_layout_of(layer);
    float *scales = (float *)(void *)(piece + at.scales_bytes) + slot * at.groups;
    uint8_t *codes = piece + (int64_t)slot * layer->latent_dim;
    for (int32_t g = 0, first = 0; g < at.groups; g++, first += FL_KV_FP8_GROUP) {
        int32_t n = layer->latent_dim - first < FL_KV_FP8_GROUP ? layer->latent_dim - first : FL_KV_FP8_GROUP;
        float scale = magnitude_max(x + first, n) / 448;
        if (scale < FL_KV_FP8_SCALE_MIN) scale = FL_KV_FP8_SCALE_MIN;
        scales[g] = scale;
        for (int32_t i = first; i < first + n; i++) codes[i] = fl_e4m3_of_f32(x[i] / scale);
    }
}

/* Takes the outliers of a row out: keeps their values, and puts an ordinary value of their group in their place. A
 * group has more dimensions than there are outliers. */
static void take_outliers(const fl_kv_layer *layer, float *x, uint16_t *kept) {
    for (int32_t i = 0; i < layer->n_outliers; i++) kept[i] = fl_bf16_of_f32(x[layer->outliers[i]]);
    for (int32_t i = 0; i < layer->n_outliers; i++) {
        int32_t ordinary = layer->outliers[i] / layer->group * layer->group, index;
        while (is_outlier(layer, ordinary, &index)) ordinary++;
        x[layer->outliers[i]] = x[ordinary];
    }
}

/* Scale and minimum of a group, as f16. */
static void fit_int4(const float *x, int32_t n, uint16_t fit[2]) {
    float low = x[0], high = x[0];
    bool fits = true;
    for (int32_t i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        fits &= fabsf(x[i]) <= 65504;
    }
    fit[1] = fl_f16_floor_of_f32(low);
    fit[0] = fl_f16_ceiling_of_f32((high - fl_f32_of_f16(fit[1])) / FL_KV_INT4_CODE_MAX);
    if (!fits) fit[0] = fit[1] = 0x7e00; /* NaN */
}

static void store_int4(const fl_kv_layer *layer, uint8_t *piece, int32_t slot, float *x) {
    const fl_kv_layout at = fl_kv_layout_of(layer);
    int32_t n = layer->group;
    uint8_t *codes = piece + (int64_t)slot * layer->latent_dim / 2;
    uint16_t *fits = (uint16_t *)(void *)(piece + at.scales_bytes) + slot * at.groups * 2;
    take_outliers(layer, x, (uint16_t *)(void *)(piece + at.outliers_bytes) + slot * layer->n_outliers);
    for (int32_t g = 0; g < at.groups; g++) {
        const float *group = x + g * n;
        fit_int4(group, n, fits + 2 * g);
        float scale = fl_f32_of_f16(fits[2 * g]), minimum = fl_f32_of_f16(fits[2 * g + 1]);
        int32_t code[64] = {0};
        for (int32_t i = 0; scale > 0 && i < n; i++) { /* not for NaN, nor where all are the minimum */
            float nearest = round_even((group[i] - minimum) / scale);
            code[i] = (int32_t)(nearest < FL_KV_INT4_CODE_MAX ? nearest : FL_KV_INT4_CODE_MAX);
        }
        for (int32_t i = 0; i < n / 2; i++)
            codes[g * n / 2 + i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
    }
    for (int32_t i = 0; i < layer->n_outliers; i++)
        codes[layer->outliers[i] / 2] &= layer->outliers[i] % 2 ? 0x0f : 0xf0;
}

void fl_kv_latent_store(const fl_kv_layer *layer, uint8_t *piece, int32_t slot, const void *latent,
                        fl_dtype act) {
    fl_dtype dtype = fl_kv_format_dtype(layer->format);
    float x[FL_ATTN_HEAD_DIM_MAX];
    if (fl_kv_format_is_plain(layer->format)) {
        fl_convert_row(fl_element_mut(piece, dtype, (int64_t)slot * layer->latent_dim), dtype, latent, act,
                       layer->latent_dim);
        return;
    }
    fl_convert_row(x, FL_DTYPE_F32, latent, act, layer->latent_dim);
    if (layer->format == FL_KV_FP8) store_fp8(layer, piece, slot, x);
    else store_int4(layer, piece, slot, x);
}

void fl_kv_k_pe_store(const fl_kv_layer *layer, uint8_t *piece, int32_t slot, const void *k_pe,
                      fl_dtype act) {
    fl_dtype dtype = fl_kv_format_dtype(layer->format);
    uint8_t *k_pes = piece + fl_kv_layout_of(layer).k_pe_bytes;
    fl_convert_row(fl_element_mut(k_pes, dtype, (int64_t)slot * layer->rope_dim), dtype, k_pe, act,
                   layer->rope_dim);
}

/* ---- reading ---- */

const void *fl_kv_k_pe(const fl_kv_layer *layer, const uint8_t *piece, int32_t slot) {
    return fl_element(piece + fl_kv_layout_of(layer).k_pe_bytes, fl_kv_format_dtype(layer->format),
                      (int64_t)slot * layer->rope_dim);
}

/* As fl_f32_of_e4m3, without branches: compilers vectorise it. */
static float widen_e4m3(uint8_t code) {
    uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
    uint32_t normal = (magnitude << 20) + (120u << 23);
    uint32_t subnormal = fl_bits_of_f32((float)(int32_t)magnitude * 0x1p-9f);
    uint32_t bits = magnitude < 8 ? subnormal : magnitude == 0x7fu ? 0x7fc00000u : normal;
    return fl_f32_of_bits(sign | bits);
}

static void read_fp8(const fl_kv_layer *layer, const uint8_t *piece, int32_t slot, float *x) {
    const fl_kv_layout at = fl_kv_layout_of(layer);
    const float *scales = (const float *)(const void *)(piece + at.scales_bytes) + slot * at.groups;
    const uint8_t *codes = piece + (int64_t)slot * layer->latent_dim;
    for (int32_t g = 0, first = 0; g < at.groups; g++, first += FL_KV_FP8_GROUP) {
        int32_t n = layer->latent_dim - first < FL_KV_FP8_GROUP ? layer->latent_dim - first : FL_KV_FP8_GROUP;
        float scale = scales[g];
        for (int32_t i = first; i < first + n; i++) x[i] = widen_e4m3(codes[i]) * scale;
    }
}

static void read_int4(const fl_kv_layer *layer, const uint8_t *piece, int32_t slot, float *x) {
    const fl_kv_layout at = fl_kv_layout_of(layer);
    const uint8_t *codes = piece + (int64_t)slot * layer->latent_dim / 2;
    const uint16_t *fits = (const uint16_t *)(const void *)(piece + at.scales_bytes) + slot * at.groups * 2;
    const uint16_t *kept = (const uint16_t *)(const void *)(piece + at.outliers_bytes);
    for (int32_t g = 0; g < at.groups; g++) {
        float scale = fl_f32_of_f16(fits[2 * g]), minimum = fl_f32_of_f16(fits[2 * g + 1]);
        for (int32_t i = g * layer->group / 2; i < (g + 1) * layer->group / 2; i++) {
            x[2 * i] = minimum + (float)(codes[i] & 0xf) * scale;
            x[2 * i + 1] = minimum + (float)(codes[i] >> 4) * scale;
        }
    }
    for (int32_t i = 0; i < layer->n_outliers; i++)
        x[layer->outliers[i]] = fl_f32_of_bf16(kept[slot * layer->n_outliers + i]);
}

void fl_kv_latents_read(const fl_kv_layer *layer, const uint8_t *piece, fl_kv_slots slots, fl_dtype act,
                        void *out) {
    int32_t dim = layer->latent_dim;
    fl_dtype dtype = fl_kv_format_dtype(layer->format);
    if (fl_kv_format_is_plain(layer->format)) {
        fl_convert_row(out, act, fl_element(piece, dtype, (int64_t)slots.first * dim), dtype, slots.n * dim);
        return;
    }
    for (int32_t i = 0; i < slots.n; i++) {
        float x[FL_ATTN_HEAD_DIM_MAX];
        if (layer->format == FL_KV_FP8) read_fp8(layer, piece, slots.first + i, x);
        else read_int4(layer, piece, slots.first + i, x);
        fl_convert_row(fl_element_mut(out, act, (int64_t)i * dim), act, x, FL_DTYPE_F32, dim);
    }
}
