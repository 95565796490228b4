/* Dequantising latents to bf16, AVX-512 with VBMI and BF16. Bound by the stores: some ten instructions for 32 values
 * of int4, some twenty for 64 of fp8. */
#include "op/kv_format.h"

#include <immintrin.h>

#include "op/simd_avx512.h"

/* bf16 of the 128 e4m3 magnitudes, its low and its high bytes: 4 exponent bits, then 3 of mantissa; magnitudes below 8
 * are subnormal, 127 is NaN. */
#define LOW8          0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0
#define LOW16         0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, LOW8
#define FOUR(byte)    (byte), (byte), (byte), (byte)
#define SIXTEEN(byte) FOUR(byte), FOUR(byte), FOUR(byte), FOUR(byte)
static const _Alignas(64) uint8_t low_bytes[128] = {
    0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, LOW8, LOW16, LOW16, LOW16, LOW16, LOW16, LOW16, 0x00,
    0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0,  0xb0,  0xc0,  0xd0,  0xe0,  0xc0};
static const _Alignas(64) uint8_t high_bytes[128] = {
    0x00,          0x3b,          0x3b,          0x3b,          FOUR(0x3c),    FOUR(0x3c),    FOUR(0x3c),
    SIXTEEN(0x3d), SIXTEEN(0x3e), SIXTEEN(0x3f), SIXTEEN(0x40), SIXTEEN(0x41), SIXTEEN(0x42), FOUR(0x43),
    FOUR(0x43),    FOUR(0x43),    0x43,          0x43,          0x43,          0x7f};

typedef struct widener {
    __m512i low[2], high[2];
} widener;

/* 32 bf16 times `scale`, rounded to bf16. */
FL_SIMD __m512i scale_words(__m512i words, __m512 scale) {
    __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words));
    __m512i second = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1));
    __m512 low = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(first, 16)), scale);
    __m512 high = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(second, 16)), scale);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* 64 codes to values: words[0] of the first 32, words[1] of the others. */
FL_SIMD void widen_fp8(const widener *w, __m512i codes, __m512 scale, __m512i words[2]) {
    const __m512i halves_beside =
        _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0); /* so that unpacking restores the order */
    __m512i c = _mm512_permutexvar_epi64(halves_beside, codes);
    __m512i low = _mm512_permutex2var_epi8(w->low[0], c, w->low[1]);
    __m512i high = _mm512_permutex2var_epi8(w->high[0], c, w->high[1]);
    high = _mm512_or_si512(high, _mm512_and_si512(c, _mm512_set1_epi8((char)0x80)));
    words[0] = scale_words(_mm512_unpacklo_epi8(low, high), scale);
    words[1] = scale_words(_mm512_unpackhi_epi8(low, high), scale);
}

static __mmask64 first_bytes(int32_t n) {
    return n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1;
}

static void read_fp8(const fl_kv_layer *layer, const uint8_t *codes, const float *scales, uint16_t *out,
                     const widener *w) {
    for (int32_t d = 0; d < layer->latent_dim; d += 64) {
        __m512i words[2];
        __m512 scale = _mm512_set1_ps(scales[d / FL_KV_FP8_GROUP]);
        __mmask64 some = first_bytes(layer->latent_dim - d);
        if (~some == 0) { /* a masked store is slow */
            widen_fp8(w, _mm512_loadu_si512(codes + d), scale, words);
            _mm512_storeu_si512(out + d, words[0]);
            _mm512_storeu_si512(out + d + 32, words[1]);
            continue;
        }
        widen_fp8(w, _mm512_maskz_loadu_epi8(some, codes + d), scale, words);
        _mm512_mask_storeu_epi16(out + d, (__mmask32)some, words[0]);
        _mm512_mask_storeu_epi16(out + d + 32, (__mmask32)(some >> 32), words[1]);
    }
}

/* The 16 values of a group, twice: the index's fifth bit does not matter. */
FL_SIMD __m512i values_of(const uint16_t fit[2]) {
    const __m512 codes = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512 scale = _mm512_cvtph_ps(_mm256_set1_epi16((short)fit[0]));
    __m512 minimum = _mm512_cvtph_ps(_mm256_set1_epi16((short)fit[1]));
    __m512 values = _mm512_add_ps(minimum, _mm512_mul_ps(codes, scale));
    return _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(values));
}

static void read_int4(const fl_kv_layer *layer, const uint8_t *codes, const uint16_t *fits, uint16_t *out) {
    for (int32_t first = 0; first < layer->latent_dim; first += layer->group, fits += 2) {
        __m512i values = values_of(fits);
        for (int32_t d = first; d < first + layer->group; d += 32) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(codes + d / 2));
            __m512i pairs =
                _mm512_cvtepu8_epi32(bytes); /* codes 2i, 2i + 1 to the low bits of words 2i, 2i + 1 */
            pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 12));
            _mm512_storeu_si512(out + d, _mm512_permutexvar_epi16(pairs, values));
        }
    }
}

void fl_kv_latents_read_avx512(const fl_kv_layer *layer, const uint8_t *piece, fl_kv_slots slots,
                               uint16_t *out) {
    const fl_kv_layout at = fl_kv_layout_of(layer);
    int32_t dim = layer->latent_dim;
    if (layer->format == FL_KV_FP8) {
        const float *scales = (const float *)(const void *)(piece + at.scales_bytes);
        widener w;
        for (int i = 0; i < 2; i++) {
            w.low[i] = _mm512_load_si512(low_bytes + 64 * i);
            w.high[i] = _mm512_load_si512(high_bytes + 64 * i);
        }
        for (int32_t i = slots.first; i < slots.first + slots.n; i++, out += dim)
            read_fp8(layer, piece + (int64_t)i * dim, scales + i * at.groups, out, &w);
    } else if (layer->format == FL_KV_INT4) {
        const uint16_t *fits = (const uint16_t *)(const void *)(piece + at.scales_bytes);
        const uint16_t *kept = (const uint16_t *)(const void *)(piece + at.outliers_bytes);
        for (int32_t i = slots.first; i < slots.first + slots.n; i++, out += dim) {
            read_int4(layer, piece + (int64_t)i * dim / 2, fits + i * at.groups * 2, out);
            for (int32_t k = 0; k < layer->n_outliers; k++)
                out[layer->outliers[k]] = kept[i * layer->n_outliers + k];
        }
    } else fl_kv_latents_read(layer, piece, slots, FL_DTYPE_BF16, out);
}
