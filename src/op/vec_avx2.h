/* Vector pieces shared by *_avx2.c files: partial loads and stores, sums, powers of 2. */
#ifndef FL_OP_VEC_AVX2_H
#define FL_OP_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

/* All-ones in the first n lanes (n <= 0: none, n >= 8: all). */
static inline __m256i fl_lanes_avx2(int32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Elements i..i+7 of n; those past the end are not touched and read as 0. */
static inline __m256 fl_load_avx2(const float *from, int32_t i, int32_t n) {
    return n - i >= 8 ? _mm256_loadu_ps(from + i) : _mm256_maskload_ps(from + i, fl_lanes_avx2(n - i));
}

static inline void fl_store_avx2(float *to, int32_t i, int32_t n, __m256 value) {
    if (n - i >= 8) _mm256_storeu_ps(to + i, value);
    else _mm256_maskstore_ps(to + i, fl_lanes_avx2(n - i), value);
}

/* Sum of the lanes, pairwise. */
static inline float fl_sum_avx2(__m256 value) {
    __m128 quad = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    __m128 pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

/* 2^x, relative error below 2e-7; exactly 1 at 0, 0 below -126.5 and at -inf, inf from 127.5, NaN stays. Range
 * reduction to |x| <= 1/2, then the minimax polynomial of degree 5 with constant term 1. */
static inline __m256 fl_exp2_avx2(__m256 x) {
    x = _mm256_min_ps(_mm256_set1_ps(128.0f), _mm256_max_ps(_mm256_set1_ps(-127.0f), x));
    __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 part = _mm256_sub_ps(x, whole);
    __m256 power = _mm256_set1_ps(0x1.5bba18p-10f);
    power = _mm256_fmadd_ps(power, part, _mm256_set1_ps(0x1.3cea8cp-7f));
    power = _mm256_fmadd_ps(power, part, _mm256_set1_ps(0x1.c6b752p-5f));
    power = _mm256_fmadd_ps(power, part, _mm256_set1_ps(0x1.ebf9bcp-3f));
    power = _mm256_fmadd_ps(power, part, _mm256_set1_ps(0x1.62e42ap-1f));
    power = _mm256_fmadd_ps(power, part, _mm256_set1_ps(1.0f));
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_mul_ps(power, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

/* Even and odd elements of 16 bf16 (or of one pair, broadcast), widened. */
static inline __m256 fl_bf16_even_avx2(__m256i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
}

static inline __m256 fl_bf16_odd_avx2(__m256i halves) {
    return _mm256_castsi256_ps(_mm256_and_si256(halves, _mm256_set1_epi32((int)0xffff0000)));
}

#endif
