/* Rates from timed calls: least squares with three unknowns that may not be negative, so small that every choice of
 * unknowns is tried. */
#include <math.h>
#include <stdlib.h>

#include "plan/rates.h"

enum { SAMPLES_MAX = 1 << 22, UNKNOWNS = 3, CHOICES = 1 << UNKNOWNS };

fl_err fl_rate_samples_add(fl_rate_samples *s, const fl_rate_sample *sample) {
    if (s->n == SAMPLES_MAX) return FL_FAIL(FL_ERR_LIMIT, "more than %d timed calls", SAMPLES_MAX);
    if (s->n == s->capacity) {
        int64_t capacity = s->capacity > 0 ? 2 * s->capacity : 1024;
        fl_rate_sample *items = realloc(s->items, (size_t)capacity * sizeof *items);
        if (!items) return FL_FAIL(FL_ERR_NOMEM, "%lld timed calls", (long long)capacity);
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->n++] = *sample;
    return FL_ERR_OK;
}

void fl_rate_samples_close(fl_rate_samples *s) {
    free(s->items);
    *s = (fl_rate_samples){0};
}

/* The normal equations of one kind. */
typedef struct equations {
    double a[UNKNOWNS][UNKNOWNS], b[UNKNOWNS];
    double time_s; /* sum: the residual of the choice without unknowns */
    int64_t n;
} equations;

static void features_of(const fl_cost *cost, double x[UNKNOWNS]) {
    x[0] = 1;
    x[1] = cost->flops;
    x[2] = cost->bytes;
}

/* Minimised is the sum of (x . r - t)^2 / t. */
static void add_sample(equations *e, const fl_rate_sample *s) {
    double x[UNKNOWNS];
    if (!(s->time_s > 0)) return; /* below the clock's step: says nothing */
    features_of(&s->cost, x);
    for (int i = 0; i < UNKNOWNS; i++) {
        for (int j = 0; j < UNKNOWNS; j++) e->a[i][j] += x[i] * x[j] / s->time_s;
        e->b[i] += x[i];
    }
    e->time_s += s->time_s;
    e->n++;
}

/* Solves the equations of the unknowns in `choice` (bits), each scaled by its own diagonal: FLOPs are 1e12 calls.
 * False: they do not determine them. */
static bool solve(const equations *e, int choice, double r[UNKNOWNS]) {
    double m[UNKNOWNS][UNKNOWNS + 1], scale[UNKNOWNS];
    int at[UNKNOWNS], n = 0;
    for (int i = 0; i < UNKNOWNS; i++) {
        r[i] = 0;
        if (choice >> i & 1) at[n++] = i;
    }
    for (int i = 0; i < n; i++) {
        scale[i] = sqrt(e->a[at[i]][at[i]]);
        if (!(scale[i] > 0)) return false;
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) m[i][j] = e->a[at[i]][at[j]] / scale[i] / scale[j];
        m[i][n] = e->b[at[i]] / scale[i];
    }
    for (int i = 0; i < n; i++) { /* positive definite with a diagonal of 1: no pivoting needed */
        if (m[i][i] < 1e-9) return false;
        for (int k = i + 1; k < n; k++) {
            double factor = m[k][i] / m[i][i];
            for (int j = i; j <= n; j++) m[k][j] -= factor * m[i][j];
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        double sum = m[i][n];
        for (int j = i + 1; j < n; j++) sum -= m[i][j] * r[at[j]] * scale[j];
        r[at[i]] = sum / m[i][i] / scale[i];
    }
    return true;
}

static double residual(const equations *e, const double r[UNKNOWNS]) {
    double sum = e->time_s;
    for (int i = 0; i < UNKNOWNS; i++) {
        sum -= 2 * r[i] * e->b[i];
        for (int j = 0; j < UNKNOWNS; j++) sum += r[i] * e->a[i][j] * r[j];
    }
    return sum;
}

/* The best choice of unknowns whose solution has none below 0. */
static fl_rate fit(const equations *e) {
    double best = INFINITY;
    fl_rate out = {.n_samples = e->n};
    for (int choice = 1; choice < CHOICES; choice++) {
        double r[UNKNOWNS];
        if (!solve(e, choice, r) || r[0] < 0 || r[1] < 0 || r[2] < 0) continue;
        double error = residual(e, r);
        if (error >= best) continue;
        best = error;
        out.call_s = r[0];
        out.flop_s = out.fp8_flop_s = r[1]; /* calls of a kind are all of one format */
        out.byte_s = r[2];
    }
    return out;
}

static void set_errors(const fl_rate_samples *samples, fl_rates *out) {
    double missed_s[FL_N_RATES] = {0}, timed_s[FL_N_RATES] = {0};
    for (int64_t i = 0; i < samples->n; i++) {
        const fl_rate_sample *s = &samples->items[i];
        missed_s[s->kind] += fabs(fl_rates_time(out, s->kind, &s->cost) - s->time_s);
        timed_s[s->kind] += s->time_s;
    }
    for (int32_t i = 0; i < FL_N_RATES; i++)
        if (timed_s[i] > 0) out->of[i].error = missed_s[i] / timed_s[i];
}

static void borrow(fl_rates *rates, fl_rate_kind kind, const fl_rate *from) {
    fl_rate *to = &rates->of[kind];
    if (to->n_samples > 0) return;
    *to = *from;
    to->n_samples = 0;
}

/* A rate for everything: what was not timed is like its op, or like a product (FLOPs) and a norm (bytes). */
static void fill_gaps(fl_rates *rates) {
    const fl_rate *product = &rates->of[FL_RATE_matmul], *pass = &rates->of[FL_RATE_rmsnorm];
    const fl_rate other = {.call_s = pass->call_s,
                           .flop_s = product->flop_s,
                           .fp8_flop_s = product->flop_s,
                           .byte_s = pass->byte_s};
    borrow(rates, FL_RATE_attn_prefill, &rates->of[FL_RATE_attn_window]);
    for (int32_t i = 0; i < FL_N_OPS; i++) borrow(rates, (fl_rate_kind)i, &other);
#define X(name, op) borrow(rates, FL_RATE_##name, &rates->of[FL_RATE_##op]);
    FL_RATE_KINDS(X)
#undef X
}

fl_err fl_rates_fit(const fl_rate_samples *samples, fl_rates *out) {
    equations kinds[FL_N_RATES] = {0};
    int64_t n = 0;
    *out = (fl_rates){.measured = true};
    for (int64_t i = 0; i < samples->n; i++) add_sample(&kinds[samples->items[i].kind], &samples->items[i]);
    for (int32_t i = 0; i < FL_N_RATES; i++) {
        n += kinds[i].n;
        if (kinds[i].n > 0) out->of[i] = fit(&kinds[i]);
    }
    if (n == 0) return FL_FAIL(FL_ERR_INVALID, "rates: no call was timed");
    set_errors(samples, out);
    fill_gaps(out);
    return FL_ERR_OK;
}
