/* What the AVX-512 attention kernels share: 2^x, bf16 pair arithmetic and a 16 x 16 transpose. Only files
 * named
 * *_avx512.c may include this. */
#ifndef FL_OP_SIMD_AVX512_H
#define FL_OP_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Every use sits in an inner loop whose registers the compiler must see as one. */
#define FL_SIMD static inline __attribute__((always_inline))

/* acc[lane] += a[2 lane] b[2 lane] + a[2 lane + 1] b[2 lane + 1], a and b 32 bf16. */
FL_SIMD __m512 fl_simd_dot2(__m512 acc, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

/* Two adjacent bf16 (a "pair", the unit of dot2) in every lane. */
FL_SIMD __m512i fl_simd_pair(const uint32_t *pair) {
    return _mm512_set1_epi32((int)*pair);
}

/* Four adjacent bf16 in every two lanes. */
FL_SIMD __m512i fl_simd_quad(const uint16_t *quad) {
    return _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(const void *)quad));
}

/* 2^f for |f| <= 1/2, minimax under p(0) = 1: relative error 1.0e-4, a twentieth of a bf16 rounding. */
FL_SIMD __m512 fl_simd_exp2_part(__m512 f) {
    __m512 p = _mm512_set1_ps(5.5008941e-2f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4221104e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9328294e-1f));
    return _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
}

/* 2^x, exactly 1 at 0, 0 for very negative finite x; relative error 1.0e-4. For weights that become bf16. */
FL_SIMD __m512 fl_simd_exp2_weight(__m512 x) {
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(fl_simd_exp2_part(_mm512_sub_ps(x, n)), n);
}

/* 32 bf16: of each lane, `even` then `odd`. Two f32 rows become one row of pairs. */
FL_SIMD __m512i fl_simd_pack_pairs(__m512 even, __m512 odd, __m512i interleave) {
    return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* The `interleave` of fl_simd_pack_pairs: word 2i from i, word 2i + 1 from 16 + i. */
FL_SIMD __m512i fl_simd_interleave_index(void) {
    __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
}

/* One round of a transpose: exchanges the odd halves of r[i] with the even halves of r[i + step]. */
FL_SIMD void fl_simd_transpose_rounds_in_lanes(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
}

/* Transposes 16 rows of 16 dwords in place. */
FL_SIMD void fl_simd_transpose(__m512i r[16]) {
    __m512i t[16];
    fl_simd_transpose_rounds_in_lanes(r);
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Puts `n_rows` rows of `n_pairs` bf16 pairs (`stride` elements apart) side by side: out[n_pairs][width], width a
 * multiple of 16, 64-byte aligned; lanes beyond n_rows are 0. */
FL_SIMD void fl_simd_pack_rows(const uint16_t *rows, int64_t stride, int32_t n_rows, int32_t n_pairs,
                               int32_t width, uint32_t *out) {
    for (int32_t p = 0; p < n_pairs; p += 16) {
        int32_t n = n_pairs - p < 16 ? n_pairs - p : 16;
        __mmask16 some = (__mmask16)((1u << n) - 1);
        for (int32_t first = 0; first < width; first += 16) {
            __m512i r[16];
            for (int i = 0; i < 16; i++)
                r[i] = first + i < n_rows
                           ? _mm512_maskz_loadu_epi32(some, rows + (first + i) * stride + 2 * p)
                           : _mm512_setzero_si512();
            fl_simd_transpose(r);
            for (int i = 0; i < n; i++) _mm512_store_si512(out + (p + i) * width + first, r[i]);
        }
    }
}

#endif
