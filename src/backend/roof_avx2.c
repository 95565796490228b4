/* Fused multiply-adds of floats, operands and sums in registers: 12 chains are what 16 registers hold. */
#include "backend/roof.h"

#include <immintrin.h>

enum { CHAINS = 12, FLOPS_EACH = 16 };

float fl_roof_burn_avx2(int64_t rounds, double *flops) {
    __m256 sum[CHAINS], a = _mm256_set1_ps(1.0f), b = _mm256_set1_ps(0x1p-20f);
#pragma GCC unroll 12 /* every loop over sum[]: else it lives on the stack, and loads are timed */
    for (int i = 0; i < CHAINS; i++) sum[i] = _mm256_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
            __asm__ volatile("" : "+x"(sum[i])); /* no folding of rounds */
        }
    }
#pragma GCC unroll 12
    for (int i = 1; i < CHAINS; i++) sum[0] = _mm256_add_ps(sum[0], sum[i]);
    float out[8];
    _mm256_storeu_ps(out, sum[0]);
    *flops = (double)rounds * CHAINS * FLOPS_EACH;
    return out[0] + out[1] + out[2] + out[3] + out[4] + out[5] + out[6] + out[7];
}
