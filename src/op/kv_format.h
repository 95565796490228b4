/* How the KV of a page is stored, in every format. The piece of a layer in a page of FL_KV_PAGE_TOKENS tokens:
 *
 *   f32, bf16          latent[64][latent_dim], k_pe[64][rope_dim]
 *   fp8                e4m3 codes[64][latent_dim], f32 scales[64][groups], bf16 k_pe[64][rope_dim];
 *                      groups of 128 dimensions, the last one may be shorter
 *   int4               codes[64][latent_dim / 2] (dimension 2i in the low half of byte i), f16 {scale, minimum}
 *                      [64][groups], bf16 outliers[64][n_outliers], bf16 k_pe[64][rope_dim]; groups of `group`
 *   int4-naive, int2-naive   as bf16: what kv_write put there was rounded to 16 or 4 levels
 *
 * With several planes there are as many k_pe parts, one behind the other: the same keys by another rotation each.
 *
 * A token's bytes depend on that token alone (the naive controls aside), so a page written token by token equals one
 * written at once. What a latent reads as is exact in f32 arithmetic without fused operations, then rounded to the
 * format it is read in:
 *
 *   fp8    code * scale; scale = max |x| / 448 of the group, but at least 2^-117, so that no product is subnormal;
 *          code = e4m3(x / scale). A NaN reads as NaN, and all of a group with an infinity does.
 *   int4   minimum + code * scale; minimum = f16 not above min x, scale = f16 not below (max x - minimum) / 15,
 *          code = nearest to (x - minimum) / scale, ties to even. Outliers have no part in minimum and maximum, their
 *          codes are 0, they read as their bf16 copies. A group with a NaN or with a magnitude above 65504 reads as
 *          NaN, whole; latents, being normalised, stay below the root of latent_dim. */
#ifndef FL_OP_KV_FORMAT_H
#define FL_OP_KV_FORMAT_H

#include "op/op_types.h"

enum { FL_KV_FP8_GROUP = 128, FL_KV_INT4_CODE_MAX = 15 };

/* Smallest scale of fp8. */
#define FL_KV_FP8_SCALE_MIN 0x1p-117f

/* "f32", "bf16", "fp8", "int4", "int4-naive", "int2-naive". */
const char *fl_kv_format_name(fl_kv_format format);

/* False if there is no such name. */
bool fl_kv_format_parse(const char *name, fl_kv_format *out);

/* Dimensions that share a scale if nothing else is asked for: fl_kv_layer.group, 0 for formats without. */
int32_t fl_kv_format_group(fl_kv_format format, int32_t latent_dim);

/* Pages hold latents and k_pe as they are, in fl_kv_format_dtype. */
static inline bool fl_kv_format_is_plain(fl_kv_format format) {
    return format != FL_KV_FP8 && format != FL_KV_INT4;
}

/* Of k_pe, and of latents in plain formats. */
static inline fl_dtype fl_kv_format_dtype(fl_kv_format format) {
    return format == FL_KV_F32 ? FL_DTYPE_F32 : FL_DTYPE_BF16;
}

/* Highest code of a naive format, 0 for the others. */
static inline int32_t fl_kv_naive_code_max(fl_kv_format format) {
    return format == FL_KV_INT4_NAIVE ? 15 : format == FL_KV_INT2_NAIVE ? 3 : 0;
}

/* Where the parts of a piece begin, in bytes; latents or their codes at 0. Parts are multiples of 64 bytes. */
typedef struct fl_kv_layout {
    int32_t groups;       /* of a token; 0 in plain formats */
    int64_t scales_bytes; /* offset of the scales */
    int64_t outliers_bytes;
    int64_t k_pe_bytes;  /* of the plane in use */
    int64_t piece_bytes; /* of the whole piece */
} fl_kv_layout;

fl_kv_layout fl_kv_layout_of(const fl_kv_layer *layer);

int64_t fl_kv_piece_bytes(const fl_kv_layer *layer);

/* Bytes of a token's latent and of its k_pe in one plane: what an op reads or writes of it, for cost functions. */
double fl_kv_token_bytes(const fl_kv_layer *layer);

/* ---- one token or a few, portable ------------------------------------------------------------------------------ */

/* The definition: what dimension `dim` of the token in `slot` reads as, before rounding. */
float fl_kv_latent_at(const fl_kv_layer *layer, const uint8_t *piece, int32_t slot, int32_t dim);

/* k_pe of the token in `slot`: [rope_dim] of fl_kv_format_dtype, those of later slots behind it. */
const void *fl_kv_k_pe(const fl_kv_layer *layer, const uint8_t *piece, int32_t slot);

/* Stores what is one token's: latent [latent_dim], k_pe [rope_dim], of `act` (F32 or BF16). */
void fl_kv_latent_store(const fl_kv_layer *layer, uint8_t *piece, int32_t slot, const void *latent,
                        fl_dtype act);
void fl_kv_k_pe_store(const fl_kv_layer *layer, uint8_t *piece, int32_t slot, const void *k_pe, fl_dtype act);

/* Slots first .. first + n - 1 of a page. */
typedef struct fl_kv_slots {
    int32_t first, n;
} fl_kv_slots;

/* Latents of some slots into out [n][latent_dim] of `act` (F32 or BF16). */
void fl_kv_latents_read(const fl_kv_layer *layer, const uint8_t *piece, fl_kv_slots slots, fl_dtype act,
                        void *out);

/* The same in bf16 with AVX-512, bit for bit; for *_avx512.c files. */
void fl_kv_latents_read_avx512(const fl_kv_layer *layer, const uint8_t *piece, fl_kv_slots slots,
                               uint16_t *out);

#endif
