#include <stdlib.h>

#include "base/half.h"
#include "calibrate/calibrate_private.h"
#include "op/kv_format.h"

#define GAIN_MIN 0.03 /* of the mean squared range; a dimension costs 2 bytes a token and layer */

/* The two largest and smallest values of a group's dimensions that are still in it; dimensions of the outermost. */
typedef struct extremes {
    float high, next_high, low, next_low;
    int32_t at_high, at_low;
} extremes;

static extremes find_extremes(const float *values, const bool *removed, int32_t first, int32_t n) {
    extremes x = {0};
    int32_t seen = 0;
    for (int32_t i = first; i < first + n; i++) {
        float v = values[i];
        if (removed[i]) continue;
        if (seen == 0) {
            x = (extremes){v, v, v, v, i, i};
        } else {
            if (v > x.high) x.next_high = x.high, x.high = v, x.at_high = i;
            else if (v > x.next_high || seen == 1) x.next_high = v;
            if (v < x.low) x.next_low = x.low, x.low = v, x.at_low = i;
            else if (v < x.next_low || seen == 1) x.next_low = v;
        }
        seen++;
    }
    return x;
}

static double squared(float high, float low) {
    return ((double)high - (double)low) * ((double)high - (double)low);
}

/* Mean squared range of all groups; gain[d] becomes how much of the sum removing d takes away. */
static double measure_ranges(const fl_calibrate_latents *l, const bool *removed, double *gain) {
    double sum = 0;
    int32_t n_groups = l->dim / l->group;
    for (int32_t i = 0; i < l->dim; i++) gain[i] = 0;
    for (int32_t t = 0; t < l->n_tokens; t++)
        for (int32_t g = 0; g < n_groups; g++) {
            const float *values = l->values + (int64_t)t * l->dim;
            extremes x = find_extremes(values, removed, g * l->group, l->group);
            double range = squared(x.high, x.low);
            sum += range;
            gain[x.at_high] += range - squared(x.next_high, x.low);
            gain[x.at_low] += range - squared(x.high, x.next_low);
        }
    return sum / ((double)l->n_tokens * n_groups);
}

fl_err fl_calibrate_find_outliers(const fl_calibrate_latents *latents, fl_calibrate_outliers *out) {
    double *gain = calloc((size_t)latents->dim, sizeof(double));
    bool *removed = calloc((size_t)latents->dim, sizeof(bool));
    fl_err err = FL_ERR_OK;
    if (!gain || !removed) {
        err = FL_FAIL(FL_ERR_NOMEM, "%d dimensions", latents->dim);
        goto fail;
    }
    for (int32_t i = 0; i <= FL_KV_OUTLIERS_MAX; i++) {
        int32_t best = 0;
        out->range[i] = measure_ranges(latents, removed, gain);
        if (i == FL_KV_OUTLIERS_MAX) break;
        while (removed[best]) best++;
        for (int32_t d = best + 1; d < latents->dim; d++)
            if (!removed[d] && gain[d] > gain[best]) best = d;
        removed[best] = true;
        out->dims[i] = (uint16_t)best;
    }
fail:
    free(gain);
    free(removed);
    return err;
}

static int compare_dims(const void *a, const void *b) {
    return (int)*(const uint16_t *)a - (int)*(const uint16_t *)b;
}

static fl_err find_all(fl_calibrating *c, fl_calibrate_outliers *layers) {
    size_t dim = (size_t)c->e->kv_shape.latent_dim, n = (size_t)c->n_latents * dim;
    float *values = malloc(n * sizeof(float));
    fl_err err = values ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "%zu latents", n);
    for (int32_t layer = 0; err == FL_ERR_OK && layer < c->out->layers; layer++) {
        const uint16_t *stored = c->latents + (size_t)layer * (size_t)c->latents_max * dim;
        for (size_t i = 0; i < n; i++) values[i] = fl_f32_of_bf16(stored[i]);
        const fl_calibrate_latents latents = {values, c->n_latents, (int32_t)dim, c->out->group};
        err = fl_calibrate_find_outliers(&latents, &layers[layer]);
    }
    free(values);
    return err;
}

/* As many for every layer, as long as one more takes at least GAIN_MIN of what is left, on average over layers. */
fl_err fl_calibrate_choose_outliers(fl_calibrating *c) {
    int32_t n_layers = c->out->layers, n = FL_KV_OUTLIERS_MAX;
    fl_calibration *chosen = &c->out->chosen;
    fl_calibrate_outliers *layers = calloc((size_t)n_layers, sizeof *layers);
    fl_err err = layers ? find_all(c, layers) : FL_FAIL(FL_ERR_NOMEM, "outliers of %d layers", n_layers);
    if (err != FL_ERR_OK) goto fail;
    for (int32_t i = FL_KV_OUTLIERS_MAX - 1; i >= 0; i--) {
        double gain = 0;
        for (int32_t layer = 0; layer < n_layers; layer++) {
            const double *range = layers[layer].range;
            gain += range[i] > 0 ? (1 - range[i + 1] / range[i]) / n_layers : 0;
        }
        c->out->outlier_gain[i] = gain;
        if (gain < GAIN_MIN) n = i;
    }
    chosen->n_outliers = n;
    if (n == 0) goto fail;
    chosen->outliers = calloc((size_t)n_layers * (size_t)n, sizeof(uint16_t));
    if (!chosen->outliers) {
        err = FL_FAIL(FL_ERR_NOMEM, "%d outliers", n);
        goto fail;
    }
    for (int32_t layer = 0; layer < n_layers; layer++) {
        uint16_t *dims = chosen->outliers + (size_t)layer * (size_t)n;
        for (int32_t i = 0; i < n; i++) dims[i] = layers[layer].dims[i];
        qsort(dims, (size_t)n, sizeof *dims, compare_dims);
    }
fail:
    free(layers);
    return err;
}
