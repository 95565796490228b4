/* Rates from timed steps: least squares with three unknowns that may not be negative, so small that every choice of
 * unknowns is tried. */
#include <math.h>
#include <stdlib.h>

#include "plan/rates.h"

enum { SAMPLES_MAX = 1 << 16, UNKNOWNS = 3, CHOICES = 1 << UNKNOWNS, ROUNDS = 10 };

fl_err fl_rate_samples_add(fl_rate_samples *s, const fl_rate_sample *sample) {
    if (s->n == SAMPLES_MAX) return FL_FAIL(FL_ERR_LIMIT, "more than %d samples", SAMPLES_MAX);
    if (s->n == s->capacity) {
        int64_t capacity = s->capacity > 0 ? 2 * s->capacity : 256;
        fl_rate_sample *items = realloc(s->items, (size_t)capacity * sizeof *items);
        if (!items) return FL_FAIL(FL_ERR_NOMEM, "%lld samples", (long long)capacity);
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
    double c;  /* the residual of the choice without unknowns */
    int64_t n; /* calls */
} equations;

/* Adds (x . r - t)^2 / expected to what is minimised. */
static void add_sample(equations *e, const fl_rate_sample *s, double expected_s) {
    const double x[UNKNOWNS] = {s->calls, s->cost.flops, s->cost.bytes};
    for (int i = 0; i < UNKNOWNS; i++) {
        for (int j = 0; j < UNKNOWNS; j++) e->a[i][j] += x[i] * x[j] / expected_s;
        e->b[i] += x[i] * s->time_s / expected_s;
    }
    e->c += s->time_s * s->time_s / expected_s;
    e->n += (int64_t)s->calls;
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
    double sum = e->c;
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

static double expected(const fl_rates *rates, const fl_rate_sample *s) {
    return fl_rates_times(rates, s->kind, s->calls, &s->cost);
}

/* ---- how full a device is ---- */

/* A place of fill without samples lies between its neighbours that have some, or is like the last of them. */
static void close_gaps(const double seen[FL_RATE_FILLS], double fill[FL_RATE_FILLS]) {
    for (int32_t i = 1; i < FL_RATE_FILLS; i++) {
        int32_t next = i;
        while (next < FL_RATE_FILLS && seen[next] == 0) next++;
        if (next == i) continue;
        fill[i] = fill[i - 1];
        if (next < FL_RATE_FILLS) fill[i] += (fill[next] - fill[i - 1]) / (next - i + 1);
    }
}

/* What the samples of a kind took over the sums that were fitted to them, by the size of a call. */
static void set_fill(const fl_rate_samples *samples, fl_rate_kind kind, fl_rates *rates) {
    fl_rate *r = &rates->of[kind];
    double taken[FL_RATE_FILLS] = {0}, seen[FL_RATE_FILLS] = {0}, least_s = INFINITY;
    for (int64_t i = 0; i < samples->n; i++) {
        const fl_rate_sample *s = &samples->items[i];
        if (s->kind == kind && s->time_s > 0) least_s = fmin(least_s, expected(rates, s) / s->calls);
    }
    if (!(least_s > 0 && isfinite(least_s))) return;
    for (int64_t i = 0; i < samples->n; i++) {
        const fl_rate_sample *s = &samples->items[i];
        if (s->kind != kind || !(s->time_s > 0)) continue;
        double sum_s = expected(rates, s), at = 2 * log2(sum_s / s->calls / least_s);
        int32_t low = at < FL_RATE_FILLS - 1 ? (int32_t)at : FL_RATE_FILLS - 2;
        double share = fmin(at - low, 1);
        taken[low] += (1 - share) * s->time_s / sum_s;
        taken[low + 1] += share * s->time_s / sum_s;
        seen[low] += 1 - share;
        seen[low + 1] += share;
    }
    for (int32_t i = 0; i < FL_RATE_FILLS; i++) r->fill[i] = seen[i] > 0 ? taken[i] / seen[i] : 0;
    close_gaps(seen, r->fill);
    r->fill_s = least_s;
}

static void set_errors(const fl_rate_samples *samples, fl_rates *out) {
    double missed_s[FL_N_RATES] = {0}, timed_s[FL_N_RATES] = {0};
    for (int64_t i = 0; i < samples->n; i++) {
        const fl_rate_sample *s = &samples->items[i];
        missed_s[s->kind] += fabs(expected(out, s) - s->time_s);
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

/* An op that was timed as another kind only is like the first of these. */
static void borrow_kind(fl_rates *rates, fl_rate_kind op, fl_rate_kind kind) {
    const fl_rate *have = &rates->of[op];
    bool known = have->n_samples > 0 || have->call_s + have->flop_s + have->byte_s > 0;
    if (!known && rates->of[kind].n_samples > 0) borrow(rates, op, &rates->of[kind]);
}

/* A rate for everything: what was not timed is like its op, or like a product (FLOPs) and a norm (bytes). */
static void fill_gaps(fl_rates *rates) {
    const fl_rate *product = &rates->of[FL_RATE_matmul], *pass = &rates->of[FL_RATE_rmsnorm];
    const fl_rate other = {.call_s = pass->call_s,
                           .flop_s = product->flop_s,
                           .fp8_flop_s = product->flop_s,
                           .byte_s = pass->byte_s};
#define X(name, op) borrow_kind(rates, FL_RATE_##op, FL_RATE_##name);
    FL_RATE_KINDS(X)
#undef X
    for (int32_t i = 0; i < FL_N_OPS; i++) {
        const fl_rate *r = &rates->of[i];
        if (r->call_s + r->flop_s + r->byte_s == 0) borrow(rates, (fl_rate_kind)i, &other);
    }
#define X(name, op) borrow(rates, FL_RATE_##name, &rates->of[FL_RATE_##op]);
    FL_RATE_KINDS(X)
#undef X
}

/* One round for all kinds: samples weigh by the time that the round before expects of them. Weighed by the time they
 * took, calls that happened to be quick would weigh more, and all rates would come out too fast. */
static int64_t fit_round(const fl_rate_samples *samples, bool first, fl_rates *rates) {
    equations kinds[FL_N_RATES] = {0};
    int64_t n = 0;
    for (int64_t i = 0; i < samples->n; i++) {
        const fl_rate_sample *s = &samples->items[i];
        double expected_s = first ? s->time_s : expected(rates, s);
        if (!(s->time_s > 0 && expected_s > 0)) continue; /* below the clock's step: says nothing */
        add_sample(&kinds[s->kind], s, expected_s);
        n++;
    }
    for (int32_t i = 0; i < FL_N_RATES; i++)
        if (kinds[i].n > 0) rates->of[i] = fit(&kinds[i]);
    return n;
}

fl_err fl_rates_fit(const fl_rate_samples *samples, fl_rates *out) {
    *out = (fl_rates){.measured = true};
    for (int32_t i = 0; i < ROUNDS; i++)
        if (fit_round(samples, i == 0, out) == 0) return FL_FAIL(FL_ERR_INVALID, "rates: no call was timed");
    for (int32_t i = 0; i < FL_RATE_step && samples->device; i++) set_fill(samples, (fl_rate_kind)i, out);
    set_errors(samples, out);
    fill_gaps(out);
    return FL_ERR_OK;
}
