/* Loads and stores of bf16 rows for *_avx512.c files. Masked-off lanes are neither read nor written. */
#ifndef FL_OP_VEC_AVX512_H
#define FL_OP_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Lanes of the vector that starts at element i of n. */
static inline __mmask16 fl_lanes_avx512(int32_t i, int32_t n) {
    return n - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (n - i)) - 1u);
}

static inline __m512 fl_load_bf16_avx512(__mmask16 lanes, const uint16_t *from) {
    __m256i half = _mm256_maskz_loadu_epi16(lanes, from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Round to nearest, ties to even (subnormals to zero). */
static inline void fl_store_bf16_avx512(uint16_t *to, __mmask16 lanes, __m512 value) {
    _mm256_mask_storeu_epi16(to, lanes, (__m256i)_mm512_cvtneps_pbh(value));
}

#endif
