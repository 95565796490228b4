#include "attn/positions.h"

#include <math.h>

/* The dimension whose wave turns `rotations` times over the trained length. */
static double turning_dim(const fl_rope_params *p, double rotations) {
    return p->dim * log(p->original_positions / (2 * M_PI * rotations)) / (2 * log(p->theta));
}

static double attention_scale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

void fl_rope_init(const fl_rope_params *p, fl_rope *out) {
    *out = (fl_rope){.dim = p->dim, .amplitude = 1, .softmax_factor = 1};
    double low = 0, high = 1;
    bool extended = p->factor > 1;
    if (extended) {
        low = fmax(floor(turning_dim(p, p->beta_fast)), 0);
        high = fmin(ceil(turning_dim(p, p->beta_slow)), p->dim - 1);
        if (low == high) high += 0.001;
        double m = attention_scale(p->factor, p->mscale_all_dim);
        out->softmax_factor = p->mscale_all_dim == 0 ? 1 : m * m;
        out->amplitude = attention_scale(p->factor, p->mscale) / m;
    }
    for (int32_t i = 0; i < p->dim / 2; i++) {
        double plain = pow(p->theta, -2.0 * i / p->dim);
        double stretched = clamp((i - low) / (high - low), 0, 1); /* share of the interpolated frequency */
        out->frequency[i] = extended ? plain / p->factor * stretched + plain * (1 - stretched) : plain;
    }
}

double fl_rope_ntk_theta(double theta, int32_t dim, double factor) {
    return theta * pow(factor, dim / (dim - 2.0));
}

void fl_rope_split(fl_rope *rope, double trained_positions, double factor, int32_t near_tokens) {
    rope->near_tokens = near_tokens;
    rope->far_divisor = (factor * trained_positions - near_tokens) / (trained_positions - near_tokens);
}

static double place(const fl_rope *rope, fl_rotation rotation, double position) {
    if (rotation == FL_ROTATION_EXACT) return position;
    double far = position / rope->far_divisor;
    return rotation == FL_ROTATION_FAR_KEY ? far : far + rope->near_tokens * (1 - 1 / rope->far_divisor);
}

void fl_rope_table(const fl_rope *rope, fl_rotation rotation, int64_t pos, int32_t rows, float *table) {
    int32_t half = rope->dim / 2;
    for (int32_t r = 0; r < rows; r++) {
        double position = place(rope, rotation, (double)(pos + r));
        for (int32_t i = 0; i < half; i++) {
            double angle = rope->frequency[i] * position;
            float *pair = table + ((int64_t)r * half + i) * 2;
            pair[0] = (float)(cos(angle) * rope->amplitude);
            pair[1] = (float)(sin(angle) * rope->amplitude);
        }
    }
}
