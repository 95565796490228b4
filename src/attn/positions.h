/* Rotary positions: the frequencies of a model (YaRN included) and the table of rotations the rope op takes. */
#ifndef FL_ATTN_POSITIONS_H
#define FL_ATTN_POSITIONS_H

#include "base/err.h"

enum { FL_ROPE_DIM_MAX = 256 };

/* YaRN (Peng et al. 2023) as DeepSeek-V3's inference code applies it; factor 1 = plain RoPE. */
typedef struct fl_rope_params {
    int32_t dim; /* rotated dimensions of a head, even, <= FL_ROPE_DIM_MAX */
    double theta;
    double factor;               /* > 1: positions are stretched */
    double original_positions;   /* trained length before the extension */
    double beta_fast, beta_slow; /* rotations over the trained length between which frequencies blend */
    double mscale, mscale_all_dim;
} fl_rope_params;

typedef struct fl_rope {
    int32_t dim;
    double frequency[FL_ROPE_DIM_MAX / 2]; /* radians a position */
    double amplitude;                      /* multiplies cos and sin */
    double softmax_factor;                 /* multiplies the softmax scale: m^2 when extended, else 1 */
} fl_rope;

void fl_rope_init(const fl_rope_params *params, fl_rope *out);

/* table[r][i] = {cos, sin} of position pos + r at frequency i, computed in double: f32 would lose the phase of
 * positions beyond 1e5. */
void fl_rope_table(const fl_rope *rope, int64_t pos, int32_t rows, float *table);

#endif
