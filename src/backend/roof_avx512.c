/* Dot products of BF16 pairs, operands and sums in registers: 24 independent chains cover the latency of any core. */
#include "backend/roof.h"

#include <immintrin.h>

enum { CHAINS = 24, FLOPS_EACH = 64 };

float fl_roof_burn_avx512(int64_t rounds, double *flops) {
    __m512 sum[CHAINS];
    __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1.0f), _mm512_set1_ps(1.0f));
    __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0x1p-20f), _mm512_set1_ps(0x1p-20f));
#pragma GCC unroll 24 /* every loop over sum[]: else it lives on the stack, and loads are timed */
    for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
            __asm__ volatile("" : "+v"(sum[i])); /* no folding of rounds */
        }
    }
#pragma GCC unroll 24
    for (int i = 1; i < CHAINS; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    *flops = (double)rounds * CHAINS * FLOPS_EACH;
    return _mm512_reduce_add_ps(sum[0]);
}
