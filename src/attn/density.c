#include "attn/density.h"

#include <math.h>
#include <stdlib.h>

#include "base/order.h"

enum { BISECTIONS = 100 };

/* Of shares from 1/2 on, from 1/4 on, and so forth; the last of all that are less. */
static const char signs[] = "@%#*+=-:.";

/* The entry of n_from at the relative place of entry i of n. */
static int32_t place_of(int32_t i, int32_t n, int32_t n_from) {
    return (int32_t)(((int64_t)2 * i + 1) * n_from / ((int64_t)2 * n));
}

/* Of n sorted values, of which the i-th stands at (i + 1/2) / n. */
static double quantile(const double *sorted, int32_t n, double at) {
    double x = at * n - 0.5;
    if (x <= 0) return sorted[0];
    if (x >= n - 1) return sorted[n - 1];
    int32_t i = (int32_t)x;
    return sorted[i] + (x - i) * (sorted[i + 1] - sorted[i]);
}

/* Heads whose place has less, and of those that have as much the ones before h. */
static int32_t rank_of(const float *from, int32_t n_from, int32_t h, int32_t n) {
    float own = from[place_of(h, n, n_from)];
    int32_t rank = 0;
    for (int32_t i = 0; i < n; i++) {
        float other = from[place_of(i, n, n_from)];
        rank += other < own || (other == own && i < h);
    }
    return rank;
}

fl_err fl_density_map(const fl_density_table *from, const fl_density_table *out) {
    double *sorted = malloc((size_t)from->heads * sizeof *sorted);
    if (!sorted) return FL_FAIL(FL_ERR_NOMEM, "densities of %d heads", from->heads);
    for (int32_t layer = 0; layer < out->layers; layer++) {
        const float *row = from->share + (int64_t)place_of(layer, out->layers, from->layers) * from->heads;
        float *to = out->share + (int64_t)layer * out->heads;
        for (int32_t i = 0; i < from->heads; i++) sorted[i] = (double)row[i];
        qsort(sorted, (size_t)from->heads, sizeof *sorted, fl_compare_doubles);
        for (int32_t h = 0; h < out->heads; h++) {
            double at = (rank_of(row, from->heads, h, out->heads) + 0.5) / out->heads;
            to[h] = (float)quantile(sorted, from->heads, at);
        }
    }
    free(sorted);
    return FL_ERR_OK;
}

static double scaled_mean(const fl_density_table *t, double factor) {
    int64_t n = (int64_t)t->layers * t->heads;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += fmin(factor * (double)t->share[i], 1);
    return sum / (double)n;
}

void fl_density_scale(const fl_density_table *t, double mean) {
    int64_t n = (int64_t)t->layers * t->heads;
    double low = 0, high = 1 / fl_density_range_of(t).least; /* there all shares are 1 */
    for (int32_t i = 0; i < BISECTIONS; i++) {
        double middle = (low + high) / 2;
        if (scaled_mean(t, middle) < mean) low = middle;
        else high = middle;
    }
    for (int64_t i = 0; i < n; i++) t->share[i] = (float)fmin(high * (double)t->share[i], 1);
}

fl_density_range fl_density_range_of(const fl_density_table *t) {
    int64_t n = (int64_t)t->layers * t->heads;
    fl_density_range range = {.least = INFINITY};
    for (int64_t i = 0; i < n; i++) {
        range.least = fmin(range.least, (double)t->share[i]);
        range.most = fmax(range.most, (double)t->share[i]);
        range.mean += (double)t->share[i] / (double)n;
    }
    return range;
}

static char sign_of(double share) {
    const char *sign = signs;
    double least = 0.5;
    while (sign[1] && share < least) sign++, least /= 2;
    return *sign;
}

void fl_density_print(FILE *f, const fl_density_table *t) {
    fprintf(f, "  layer  a sign a head: @ 50%% and more, then halves: %s\n", signs + 1);
    for (int32_t layer = 0; layer < t->layers; layer++) {
        const fl_density_table row = {1, t->heads, t->share + (int64_t)layer * t->heads};
        const fl_density_range range = fl_density_range_of(&row);
        fprintf(f, "  %5d  ", layer);
        for (int32_t h = 0; h < t->heads; h++) fputc(sign_of((double)row.share[h]), f);
        fprintf(f, "  %.2f%% to %.2f%%, mean %.2f%%\n", 100 * range.least, 100 * range.most,
                100 * range.mean);
    }
}
