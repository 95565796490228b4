/* Rotary positions: the frequencies of a model, its extensions beyond the trained length, and the tables of rotations
 * the rope op takes.
 *
 * Two paths. Keys nearer than near_tokens (W) keep their exact distance d; a farther key is seen at W + (d - W) / k, so
 * that distances stay within those trained and go on without a step at the edge (Leaky ReRoPE, Su 2023). Queries are
 * rotated for p / k + W (1 - 1 / k) there and keys for t / k: one more rotation of each, no frequency is lowered. */
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
    int32_t near_tokens;                   /* W; 0 = one path */
    double far_divisor;                    /* k */
} fl_rope;

typedef enum fl_rotation { FL_ROTATION_EXACT, FL_ROTATION_FAR_QUERY, FL_ROTATION_FAR_KEY } fl_rotation;

void fl_rope_init(const fl_rope_params *params, fl_rope *out);

/* NTK-aware scaling (2023): the base whose lowest frequency is stretched by `factor` and whose highest stays. */
double fl_rope_ntk_theta(double theta, int32_t dim, double factor);

/* Turns a rope into two paths, for `factor` times the trained positions with exact distances below near_tokens. */
void fl_rope_split(fl_rope *rope, double trained_positions, double factor, int32_t near_tokens);

/* table[r][i] = {cos, sin} of position pos + r at frequency i, computed in double: f32 would lose the phase of
 * positions beyond 1e5. */
void fl_rope_table(const fl_rope *rope, fl_rotation rotation, int64_t pos, int32_t rows, float *table);

#endif
