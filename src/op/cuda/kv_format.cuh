/* How stored KV reads and is written on the device: the device side of op/kv_format.h, bit for bit.
 *
 * A layer travels as fl_kv_cuda, a kernel parameter: `const __grid_constant__ fl_kv_cuda kv`, because its arrays
 * are indexed at run time and would be copied to local memory otherwise. Latents are read in runs of 8 dimensions:
 * fetch brings a run's bytes and its scale, decode makes 8 floats of them, so that a kernel can have several
 * fetches under way before it decodes the first.
 *
 * Reading is exact: an e4m3 code and an f16 are exact in f32, code * scale of int4 has at most 15 significant
 * bits, so the fused multiply-add rounds as the two operations of the definition do; fp8 is one product.
 *
 * Writing needs IEEE division without flushed subnormals, which __fdiv_rn is; the roundings to e4m3 and to f16
 * (down, up) are those of the conversion instructions, which agree with base/half.h on every number. */
#ifndef FL_OP_CUDA_KV_FORMAT_CUH
#define FL_OP_CUDA_KV_FORMAT_CUH

#include <cuda_fp16.h>
#include <string.h>

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"

extern "C" {
#include "op/kv_format.h"
}

enum { FL_KV_RUN = 8 }; /* dimensions read at a time; every group of a scale is a multiple */

/* A layer's KV as kernels see it. */
typedef struct fl_kv_cuda {
    uint8_t *base;
    int64_t page_stride_bytes;
    fl_kv_format format; /* any but f32 */
    int32_t latent_dim, rope_dim;
    int32_t group;  /* dimensions that share a scale: 32 or 64 for int4, 128 for fp8, else 0 */
    int32_t groups; /* of a token */
    int32_t scales_bytes, outliers_bytes, k_pe_bytes; /* offsets in a piece, k_pe of the plane in use */
    int32_t n_outliers;
    uint16_t outliers[FL_KV_OUTLIERS_MAX];
    uint32_t outlier_runs[(int)FL_ATTN_HEAD_DIM_MAX / (FL_KV_RUN * 32)]; /* bit r: run r holds outliers */
    bool wide_latent, wide_k_pe; /* whole runs at addresses that take one access each */
} fl_kv_cuda;

/* For valid layers; f32 is refused. */
static inline fl_err fl_kv_cuda_of(const char *op, const fl_kv_layer *layer, fl_kv_cuda *out) {
    if (layer->format == FL_KV_F32)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "%s: kv.format is f32, which the CUDA backend does not store", op);
    const fl_kv_layout at = fl_kv_layout_of(layer);
    memset(out, 0, sizeof *out);
    out->base = layer->base;
    out->page_stride_bytes = layer->page_stride_bytes;
    out->format = layer->format;
    out->latent_dim = layer->latent_dim;
    out->rope_dim = layer->rope_dim;
    out->group = layer->format == FL_KV_FP8    ? FL_KV_FP8_GROUP
                 : layer->format == FL_KV_INT4 ? layer->group
                                               : 0;
    out->groups = at.groups;
    out->scales_bytes = (int32_t)at.scales_bytes;
    out->outliers_bytes = (int32_t)at.outliers_bytes;
    out->k_pe_bytes = (int32_t)at.k_pe_bytes;
    out->n_outliers = layer->format == FL_KV_INT4 ? layer->n_outliers : 0;
    for (int32_t i = 0; i < out->n_outliers; i++) {
        int32_t run = layer->outliers[i] / FL_KV_RUN;
        out->outliers[i] = layer->outliers[i];
        out->outlier_runs[run / 32] |= 1u << run % 32;
    }
    bool aligned = ((uintptr_t)layer->base | (uintptr_t)layer->page_stride_bytes) % 16 == 0;
    out->wide_latent = aligned && layer->latent_dim % FL_KV_RUN == 0;
    out->wide_k_pe = aligned && layer->rope_dim % FL_KV_RUN == 0;
    return FL_ERR_OK;
}

FL_DEVICE bool fl_kv_is_plain(fl_kv_format format) {
    return format != FL_KV_FP8 && format != FL_KV_INT4;
}

FL_DEVICE uint8_t *fl_kv_piece_at(const fl_kv_cuda &kv, int32_t page) {
    return kv.base + page * kv.page_stride_bytes;
}

FL_DEVICE float fl_kv_f32_of_bf16(uint16_t half) {
    return __uint_as_float((uint32_t)half << 16);
}

/* As fl_bf16_of_f32, payloads of NaNs included. */
FL_DEVICE uint16_t fl_kv_bf16_of_f32(float value) {
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Two e4m3 codes, the first in the low byte. */
FL_DEVICE float2 fl_kv_f32x2_of_e4m3x2(uint32_t codes) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)codes));
    return make_float2(__half2float(__ushort_as_half((uint16_t)halves)),
                       __half2float(__ushort_as_half((uint16_t)(halves >> 16))));
}

/* e4m3 of two values, `low` in the low byte. */
FL_DEVICE uint32_t fl_kv_e4m3x2_of_f32(float low, float high) {
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}

/* Whole numbers below 2^23 without the slow conversion. */
FL_DEVICE float fl_kv_f32_of_code(uint32_t code) {
    return __uint_as_float(0x4b000000u | code) - 8388608.0f;
}

/* ---- reading runs of 8 --------------------------------------------------------------------------------------- */

/* A run as stored. */
typedef struct fl_kv_run {
    uint4 codes;    /* bf16: 16 bytes; fp8: 8 bytes in x, y; int4: 4 bytes in x */
    uint32_t scale; /* fp8: bits of the f32; int4: f16 scale in the low half, f16 minimum in the high one */
} fl_kv_run;

/* Dimensions dim .. dim + 7 of `slot`'s latent; dim a multiple of 8, kv.wide_latent. */
FL_DEVICE fl_kv_run fl_kv_latent_fetch8(const fl_kv_cuda &kv, const uint8_t *piece, int32_t slot,
                                        int32_t dim) {
    fl_kv_run run = {};
    int32_t element = slot * kv.latent_dim + dim;
    if (fl_kv_is_plain(kv.format)) {
        run.codes = *(const uint4 *)(piece + (int64_t)element * 2);
        return run;
    }
    const uint32_t *scales = (const uint32_t *)(piece + kv.scales_bytes) + slot * kv.groups;
    if (kv.format == FL_KV_FP8) {
        uint2 codes = *(const uint2 *)(piece + element);
        run.codes.x = codes.x;
        run.codes.y = codes.y;
        run.scale = scales[dim / FL_KV_FP8_GROUP];
    } else {
        run.codes.x = *(const uint32_t *)(piece + element / 2);
        run.scale = scales[kv.group == 64 ? dim / 64 : dim / 32];
    }
    return run;
}

FL_DEVICE void fl_kv_decode8_bf16(uint4 x, float out[8]) {
    out[0] = fl_low_of_bf16x2(x.x);
    out[1] = fl_high_of_bf16x2(x.x);
    out[2] = fl_low_of_bf16x2(x.y);
    out[3] = fl_high_of_bf16x2(x.y);
    out[4] = fl_low_of_bf16x2(x.z);
    out[5] = fl_high_of_bf16x2(x.z);
    out[6] = fl_low_of_bf16x2(x.w);
    out[7] = fl_high_of_bf16x2(x.w);
}

FL_DEVICE void fl_kv_decode8_fp8(uint2 codes, float scale, float out[8]) {
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        uint32_t word = i < 2 ? codes.x : codes.y;
        float2 pair = fl_kv_f32x2_of_e4m3x2(word >> i % 2 * 16 & 0xffffu);
        out[2 * i] = __fmul_rn(pair.x, scale);
        out[2 * i + 1] = __fmul_rn(pair.y, scale);
    }
}

/* Without the outliers. */
FL_DEVICE void fl_kv_decode8_int4(uint32_t codes, uint32_t fit, float out[8]) {
    float scale = __half2float(__ushort_as_half((uint16_t)fit));
    float minimum = __half2float(__ushort_as_half((uint16_t)(fit >> 16)));
#pragma unroll
    for (int32_t i = 0; i < 8; i++)
        out[i] = __fmaf_rn(fl_kv_f32_of_code(codes >> 4 * i & 0xfu), scale, minimum);
}

/* Puts the outliers of a run in their places. */
FL_DEVICE void fl_kv_put_outliers8(const fl_kv_cuda &kv, const uint8_t *piece, int32_t slot, int32_t dim,
                                   float out[8]) {
    if ((kv.outlier_runs[dim / (FL_KV_RUN * 32)] >> dim / FL_KV_RUN % 32 & 1u) == 0) return;
    const uint16_t *kept = (const uint16_t *)(piece + kv.outliers_bytes) + slot * kv.n_outliers;
    for (int32_t k = 0; k < kv.n_outliers; k++) {
        int32_t at = kv.outliers[k] - dim;
        if (at < 0 || at >= FL_KV_RUN) continue;
        float value = fl_kv_f32_of_bf16(kept[k]);
#pragma unroll
        for (int32_t i = 0; i < FL_KV_RUN; i++) out[i] = at == i ? value : out[i];
    }
}

/* The floats of a fetched run; piece, slot and dim as for the fetch. */
FL_DEVICE void fl_kv_latent_decode8(const fl_kv_cuda &kv, fl_kv_run run, const uint8_t *piece, int32_t slot,
                                    int32_t dim, float out[8]) {
    if (kv.format == FL_KV_FP8) {
        fl_kv_decode8_fp8(make_uint2(run.codes.x, run.codes.y), __uint_as_float(run.scale), out);
    } else if (kv.format == FL_KV_INT4) {
        fl_kv_decode8_int4(run.codes.x, run.scale, out);
        fl_kv_put_outliers8(kv, piece, slot, dim, out);
    } else {
        fl_kv_decode8_bf16(run.codes, out);
    }
}

/* Any dimension in any layer: the definition. */
FL_DEVICE float fl_kv_latent_load(const fl_kv_cuda &kv, const uint8_t *piece, int32_t slot, int32_t dim) {
    int32_t element = slot * kv.latent_dim + dim;
    if (fl_kv_is_plain(kv.format)) return fl_kv_f32_of_bf16(((const uint16_t *)piece)[element]);
    if (kv.format == FL_KV_FP8) {
        const float *scales = (const float *)(piece + kv.scales_bytes) + slot * kv.groups;
        return __fmul_rn(fl_kv_f32x2_of_e4m3x2(piece[element]).x, scales[dim / FL_KV_FP8_GROUP]);
    }
    const uint16_t *kept = (const uint16_t *)(piece + kv.outliers_bytes) + slot * kv.n_outliers;
    for (int32_t k = 0; k < kv.n_outliers; k++)
        if (kv.outliers[k] == dim) return fl_kv_f32_of_bf16(kept[k]);
    const uint16_t *fit =
        (const uint16_t *)(piece + kv.scales_bytes) + (slot * kv.groups + dim / kv.group) * 2;
    float code = fl_kv_f32_of_code((uint32_t)piece[element / 2] >> dim % 2 * 4 & 0xfu);
    return __fmaf_rn(code, __half2float(__ushort_as_half(fit[0])), __half2float(__ushort_as_half(fit[1])));
}

/* A run of any layer: zeros where it goes beyond latent_dim. */
FL_DEVICE void fl_kv_latent_load8(const fl_kv_cuda &kv, const uint8_t *piece, int32_t slot, int32_t dim,
                                  float out[8]) {
    if (kv.wide_latent) {
        fl_kv_latent_decode8(kv, fl_kv_latent_fetch8(kv, piece, slot, dim), piece, slot, dim, out);
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++)
        out[i] = dim + i < kv.latent_dim ? fl_kv_latent_load(kv, piece, slot, dim + i) : 0.0f;
}

/* The k_pe of `slot` in the plane in use: [rope_dim] bf16, those of later slots behind it. */
FL_DEVICE const uint16_t *fl_kv_k_pe_at(const fl_kv_cuda &kv, const uint8_t *piece, int32_t slot) {
    return (const uint16_t *)(piece + kv.k_pe_bytes) + slot * kv.rope_dim;
}

/* A run of k_pe; zeros where it goes beyond rope_dim. */
FL_DEVICE void fl_kv_k_pe_load8(const fl_kv_cuda &kv, const uint8_t *piece, int32_t slot, int32_t dim,
                                float out[8]) {
    const uint16_t *k_pe = fl_kv_k_pe_at(kv, piece, slot) + dim;
    if (kv.wide_k_pe) {
        fl_kv_decode8_bf16(*(const uint4 *)k_pe, out);
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++)
        out[i] = dim + i < kv.rope_dim ? fl_kv_f32_of_bf16(k_pe[i]) : 0.0f;
}

/* ---- writing by one warp, 32 runs at a time ------------------------------------------------------------------- */

enum { FL_KV_WARP_DIMS = 32 * FL_KV_RUN }; /* whole groups of every format */

/* Dimensions dim .. dim + 7 of a row of n in bf16, zeros behind; `wide`: n whole runs at 16-byte addresses. */
FL_DEVICE uint4 fl_kv_row_fetch8(const uint16_t *row, int32_t dim, int32_t n, bool wide) {
    if (wide) return dim < n ? *(const uint4 *)(row + dim) : make_uint4(0, 0, 0, 0);
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++)
        if (dim + i < n) words[i / 2] |= (uint32_t)row[dim + i] << i % 2 * 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Of two pairs of bf16: the larger ones, numbers preferred to NaN; the smaller ones, NaN preferred. -0 is below 0. */
FL_DEVICE uint32_t fl_kv_max_bf16x2(uint32_t a, uint32_t b) {
    uint32_t larger;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

FL_DEVICE uint32_t fl_kv_min_nan_bf16x2(uint32_t a, uint32_t b) {
    uint32_t smaller;
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
    return smaller;
}

/* 1 / x of a normal number, within two units in the last place. */
FL_DEVICE float fl_kv_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* x / by to nearest from a reciprocal of `by` that may be off by three units in its last place. This is IEEE's quotient
 * only where the exact one stays away from the middle between two floats, which divisors of few bits provide (f16, 15,
 * 448): the remainder is exact then, and what the reciprocal lacks too small to matter. */
FL_DEVICE float fl_kv_quotient(float x, float by, float reciprocal) {
    float near = __fmul_rn(x, reciprocal);
    return __fmaf_rn(__fmaf_rn(-near, by, x), reciprocal, near);
}

/* Codes of a run. A scale has 24 bits, but few values (a bf16 over 448), and x is a bf16: all pairs were tried,
 * with reciprocals off by three units, and all codes are those of IEEE's quotient. Below 2^-90 remainders could be
 * subnormal, and infinity has no reciprocal: plain division. Signs, of zeros and NaNs too, are those of x. */
FL_DEVICE uint2 fl_kv_fp8_codes(const uint32_t words[4], float scale) {
    uint32_t codes[4], signs = 0x80808080u;
    if (scale >= 0x1p-90f && scale < INFINITY) {
        float reciprocal = fl_kv_reciprocal(scale);
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            codes[i] = fl_kv_e4m3x2_of_f32(fl_kv_quotient(fl_low_of_bf16x2(words[i]), scale, reciprocal),
                                           fl_kv_quotient(fl_high_of_bf16x2(words[i]), scale, reciprocal));
    } else {
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            codes[i] = fl_kv_e4m3x2_of_f32(__fdiv_rn(fl_low_of_bf16x2(words[i]), scale),
                                           __fdiv_rn(fl_high_of_bf16x2(words[i]), scale));
    }
    return make_uint2(codes[0] | codes[1] << 16 | (__byte_perm(words[0], words[1], 0x7531) & signs),
                      codes[2] | codes[3] << 16 | (__byte_perm(words[2], words[3], 0x7531) & signs));
}

/* This lane's run of an fp8 token; 16 lanes side by side share a group. All lanes of the warp take part. */
FL_DEVICE void fl_kv_store_fp8(const fl_kv_cuda &kv, uint8_t *piece, int32_t slot, int32_t dim, uint4 run) {
    const uint32_t words[4] = {run.x, run.y, run.z, run.w}, magnitude = 0x7fff7fffu;
    uint32_t top2 = words[0] & magnitude;
#pragma unroll
    for (int32_t i = 1; i < 4; i++) top2 = fl_kv_max_bf16x2(top2, words[i] & magnitude);
#pragma unroll
    for (int32_t step = 8; step > 0; step /= 2)
        top2 = fl_kv_max_bf16x2(top2, __shfl_xor_sync(~0u, top2, step));
    float top = fmaxf(fmaxf(fl_low_of_bf16x2(top2), fl_high_of_bf16x2(top2)), 0.0f); /* 0: of NaNs alone */
    float scale = fmaxf(fl_kv_quotient(top, 448.0f, 1.0f / 448.0f), FL_KV_FP8_SCALE_MIN);
    if (!(top < INFINITY)) scale = INFINITY;
    if (dim >= kv.latent_dim) return;
    uint2 codes = fl_kv_fp8_codes(words, scale);
    uint8_t *to = piece + slot * kv.latent_dim + dim;
    if (kv.wide_latent) {
        *(uint2 *)to = codes;
    } else {
#pragma unroll
        for (int32_t i = 0; i < FL_KV_RUN; i++)
            if (dim + i < kv.latent_dim) to[i] = (uint8_t)((i < 4 ? codes.x : codes.y) >> i % 4 * 8);
    }
    if (dim % FL_KV_FP8_GROUP == 0)
        ((float *)(piece + kv.scales_bytes))[slot * kv.groups + dim / FL_KV_FP8_GROUP] = scale;
}

/* Stores the outliers of a run; bit i: dimension i of the run is one. */
FL_DEVICE uint32_t fl_kv_store_outliers8(const fl_kv_cuda &kv, uint8_t *piece, int32_t slot, int32_t dim,
                                         const uint32_t words[4]) {
    if (kv.n_outliers == 0 || (kv.outlier_runs[dim / FL_KV_WARP_DIMS] >> dim / FL_KV_RUN % 32 & 1u) == 0)
        return 0;
    uint16_t *kept = (uint16_t *)(piece + kv.outliers_bytes) + slot * kv.n_outliers;
    uint32_t found = 0;
    for (int32_t k = 0; k < kv.n_outliers; k++) {
        int32_t at = kv.outliers[k] - dim;
        if (at < 0 || at >= FL_KV_RUN) continue;
#pragma unroll
        for (int32_t i = 0; i < FL_KV_RUN; i++)
            if (at == i)
                kept[k] = fl_kv_bf16_of_f32(i % 2 ? fl_high_of_bf16x2(words[i / 2])
                                                  : fl_low_of_bf16x2(words[i / 2]));
        found |= 1u << at;
    }
    return found;
}

/* The halves of a pair of words that bits 0 and 1 of `pair` do not name. */
FL_DEVICE uint32_t fl_kv_kept(uint32_t pair) {
    return (pair & 1u ? 0 : 0xffffu) | (pair & 2u ? 0 : 0xffff0000u);
}

/* {minimum, negated maximum} of a run in bf16, NaN if it holds one; `skipped` dimensions have no part. */
FL_DEVICE uint32_t fl_kv_extent8(const uint32_t words[4], uint32_t skipped) {
    uint32_t low[4], high[4];
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        low[i] = words[i];
        high[i] = words[i] ^ 0x80008000u;
    }
    if (skipped != 0) { /* those become infinity */
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            uint32_t keep = fl_kv_kept(skipped >> 2 * i);
            low[i] = (low[i] & keep) | (0x7f807f80u & ~keep);
            high[i] = (high[i] & keep) | (0x7f807f80u & ~keep);
        }
    }
#pragma unroll
    for (int32_t i = 1; i < 4; i++) {
        low[0] = fl_kv_min_nan_bf16x2(low[0], low[i]);
        high[0] = fl_kv_min_nan_bf16x2(high[0], high[i]);
    }
    return fl_kv_min_nan_bf16x2((low[0] & 0xffffu) | high[0] << 16, low[0] >> 16 | (high[0] & 0xffff0000u));
}

/* Codes of a run whose group begins at `minimum`; no x is below it, nor above 15 steps but by rounding. Adding
 * 1.5 * 2^23 to a quotient rounds it to a whole number, ties to even, in the low bits. */
FL_DEVICE uint32_t fl_kv_int4_codes(const uint32_t words[4], float minimum, float step) {
    const float shift = 12582912.0f;
    uint32_t codes = 0, shifts = 0;
    float reciprocal = fl_kv_reciprocal(step);
#pragma unroll
    for (int32_t i = FL_KV_RUN - 1; i >= 0; i--) {
        float x = i % 2 ? fl_high_of_bf16x2(words[i / 2]) : fl_low_of_bf16x2(words[i / 2]);
        float quotient = fl_kv_quotient(__fsub_rn(x, minimum), step, reciprocal);
        codes = (codes << 4) + __float_as_uint(__fadd_rn(quotient, shift));
        shifts = (shifts << 4) + 0x4b400000u; /* the bits of shift, taken off together */
    }
    return codes - shifts;
}

/* A group's minimum and scale as stored, and as numbers. */
typedef struct fl_kv_fit {
    uint32_t stored;
    float minimum, step; /* of a group that is no numbers: 0 or NaN */
} fl_kv_fit;

/* From {minimum, negated maximum} in bf16, NaN if the group holds one. */
FL_DEVICE fl_kv_fit fl_kv_fit_int4(uint32_t extent) {
    fl_kv_fit fit;
    float low = fl_low_of_bf16x2(extent), high = -fl_high_of_bf16x2(extent);
    bool fits = low >= -65504.0f && high <= 65504.0f; /* not for NaN either */
    uint16_t minimum = __half_as_ushort(__float2half_rd(low));
    fit.minimum = __half2float(__ushort_as_half(minimum));
    float range = __fsub_rn(high, fit.minimum);
    uint16_t scale = __half_as_ushort(__float2half_ru(fl_kv_quotient(range, 15.0f, 1.0f / 15.0f)));
    if (!fits) minimum = scale = 0x7e00; /* NaN */
    fit.step = __half2float(__ushort_as_half(scale));
    fit.stored = (uint32_t)minimum << 16 | scale;
    return fit;
}

/* Codes of a run; those of outliers are 0. */
FL_DEVICE uint32_t fl_kv_run_codes(uint32_t words[4], uint32_t outliers, const fl_kv_fit &fit,
                                   uint32_t low2) {
    uint32_t codes = 0;
    if (outliers != 0) { /* out of the way: they could be beyond 15 steps */
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            uint32_t keep = fl_kv_kept(outliers >> 2 * i);
            words[i] = (words[i] & keep) | (low2 & ~keep);
        }
    }
    if (fit.step > 0)
        codes = fl_kv_int4_codes(words, fit.minimum, fit.step); /* else all the minimum, or NaN */
    for (; outliers != 0; outliers &= outliers - 1) codes &= ~(0xfu << 4 * (__ffs((int32_t)outliers) - 1));
    return codes;
}

/* This lane's two runs of an int4 token, from `dim` on; 2 or 4 lanes side by side share a group. All lanes of the warp
 * take part. */
FL_DEVICE void fl_kv_store_int4(const fl_kv_cuda &kv, uint8_t *piece, int32_t slot, int32_t dim, uint4 first,
                                uint4 second) {
    uint32_t front[4] = {first.x, first.y, first.z, first.w};
    uint32_t back[4] = {second.x, second.y, second.z, second.w}, outliers[2] = {0, 0};
    bool inside = dim < kv.latent_dim;
    if (inside) {
        outliers[0] = fl_kv_store_outliers8(kv, piece, slot, dim, front);
        outliers[1] = fl_kv_store_outliers8(kv, piece, slot, dim + FL_KV_RUN, back);
    }
    uint32_t extent =
        fl_kv_min_nan_bf16x2(fl_kv_extent8(front, outliers[0]), fl_kv_extent8(back, outliers[1]));
    extent = fl_kv_min_nan_bf16x2(extent, __shfl_xor_sync(~0u, extent, 1));
    if (kv.group == 64) extent = fl_kv_min_nan_bf16x2(extent, __shfl_xor_sync(~0u, extent, 2));
    if (!inside) return;
    fl_kv_fit fit = fl_kv_fit_int4(extent);
    uint32_t low2 = __byte_perm(extent, 0, 0x1010),
             *to = (uint32_t *)(piece + (slot * kv.latent_dim + dim) / 2);
    uint2 codes = make_uint2(fl_kv_run_codes(front, outliers[0], fit, low2),
                             fl_kv_run_codes(back, outliers[1], fit, low2));
    if (kv.wide_latent) {
        *(uint2 *)to = codes;
    } else {
        to[0] = codes.x;
        to[1] = codes.y;
    }
    if (dim % kv.group == 0)
        ((uint32_t *)(piece + kv.scales_bytes))[slot * kv.groups + (kv.group == 64 ? dim / 64 : dim / 32)] =
            fit.stored;
}

#endif
