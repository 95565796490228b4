#include "eval/eval_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"

enum {
    SCORE_PARTS = 2520,        /* least common multiple of 1..10: scores are shares of at most 10 values */
    COUNT_STEPS_MAX = 1 << 26, /* work of the exact count */
    ENUMERATED_MAX = 16,
    FLIP_DRAWS = 50000,
    CELLS_MAX = 1 << 16,
};

/* splitmix64: a counter through a bijective mixer. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 0..n-1; the bias of n / 2^32 does not matter here. */
static int32_t random_below(uint64_t *state, int32_t n) {
    return (int32_t)(((next_random(state) >> 32) * (uint64_t)n) >> 32);
}

/* ---- sign flips ------------------------------------------------------------------------------------------------- */

static int64_t greatest_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Sizes of the differences in units of their common divisor; false if they have none. */
static bool whole_units(const double *d, int32_t n, int32_t *units, int64_t *sum, int64_t *signed_sum) {
    int64_t divisor = 0;
    *sum = *signed_sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double parts = fabs(d[i]) * SCORE_PARTS;
        if (parts > 1e8 || fabs(parts - round(parts)) > 1e-6 || round(parts) < 1) return false;
        units[i] = (int32_t)lround(parts);
        divisor = greatest_divisor(units[i], divisor);
    }
    for (int32_t i = 0; i < n; i++) {
        units[i] = (int32_t)(units[i] / divisor);
        *sum += units[i];
        *signed_sum += d[i] > 0 ? units[i] : -units[i];
    }
    return true;
}

/* The distribution of the sum of units that got a plus, one difference after the other. */
static fl_err count_flips(const int32_t *units, int32_t n, int64_t sum, int64_t signed_sum, double *p) {
    double *chance = calloc((size_t)sum + 1, sizeof *chance);
    if (!chance) return FL_FAIL(FL_ERR_NOMEM, "sign-flip test of %lld units", (long long)sum);
    int64_t reached = 0;
    chance[0] = 1;
    for (int32_t i = 0; i < n; i++) {
        reached += units[i];
        for (int64_t at = reached; at >= 0; at--)
            chance[at] = 0.5 * (chance[at] + (at >= units[i] ? chance[at - units[i]] : 0));
    }
    *p = 0;
    for (int64_t at = (signed_sum + sum) / 2; at <= sum; at++) *p += chance[at];
    free(chance);
    return FL_ERR_OK;
}

/* Sum with the signs that the bits say. */
static double flipped_sum(const double *d, int32_t n, uint64_t bits) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (bits >> i) & 1 ? d[i] : -d[i];
    return sum;
}

static double enumerate_flips(const double *d, int32_t n, double least) {
    int64_t n_all = (int64_t)1 << n, n_reached = 0;
    for (int64_t bits = 0; bits < n_all; bits++) n_reached += flipped_sum(d, n, (uint64_t)bits) >= least;
    return (double)n_reached / (double)n_all;
}

static double draw_flips(const double *d, int32_t n, double least, uint64_t seed) {
    int64_t n_reached = 0;
    for (int32_t draw = 0; draw < FLIP_DRAWS; draw++) {
        double sum = 0;
        for (int32_t i = 0; i < n; i += 64)
            sum += flipped_sum(d + i, n - i < 64 ? n - i : 64, next_random(&seed));
        n_reached += sum >= least;
    }
    return (double)(1 + n_reached) / (1 + FLIP_DRAWS); /* what was observed is one of the draws */
}

fl_err fl_eval_sign_flip(const double *differences, int32_t n, uint64_t seed, double *p) {
    double *d = malloc(((size_t)n + 1) * sizeof *d), sum = 0, size = 0;
    int32_t *units = malloc(((size_t)n + 1) * sizeof *units), m = 0;
    int64_t unit_sum, unit_signed;
    fl_err err = FL_ERR_OK;
    if (!d || !units) {
        err = FL_FAIL(FL_ERR_NOMEM, "sign-flip test of %d documents", n);
        goto fail;
    }
    for (int32_t i = 0; i < n; i++) {
        if (differences[i] == 0) continue;
        d[m++] = differences[i];
        sum += differences[i];
        size += fabs(differences[i]);
    }
    double least = sum - 1e-12 * size; /* sums in other orders round otherwise */
    if (m == 0) *p = 1;
    else if (whole_units(d, m, units, &unit_sum, &unit_signed) && unit_sum <= COUNT_STEPS_MAX / m)
        err = count_flips(units, m, unit_sum, unit_signed, p);
    else *p = m <= ENUMERATED_MAX ? enumerate_flips(d, m, least) : draw_flips(d, m, least, seed);
fail:
    free(units);
    free(d);
    return err;
}

/* ---- summary ---------------------------------------------------------------------------------------------------- */

/* What one document adds to one cell. */
typedef struct part {
    int32_t document, stratum, cell;
    int32_t n;
    double loss, nll_diff;
} part;

typedef struct span {
    int32_t begin, end;
} span;

typedef struct work {
    part *parts;      /* [n_parts] by stratum, document, cell */
    span *documents;  /* [n_documents] of parts */
    span *strata;     /* [n_strata] of documents */
    double *diffs;    /* [n_documents] */
    double *draws[2]; /* [resamples] loss, NLL difference */
    double *sums[2];  /* [n_cells] */
    double *counts;   /* [n_cells] */
    int32_t n_parts, n_documents, n_strata, n_cells, resamples;
} work;

static void close_work(work *w) {
    free(w->parts);
    free(w->documents);
    free(w->strata);
    free(w->diffs);
    free(w->counts);
    for (int i = 0; i < 2; i++) {
        free(w->draws[i]);
        free(w->sums[i]);
    }
}

static fl_err open_work(const fl_eval_pair *pairs, int32_t n, int32_t resamples, work *w) {
    for (int32_t i = 0; i < n; i++) {
        const fl_eval_pair *p = &pairs[i];
        if (p->cell < 0 || p->cell >= CELLS_MAX)
            return FL_FAIL(FL_ERR_INVALID, "pair %d: expected a cell of 0..%d, found %d", i, CELLS_MAX - 1,
                           p->cell);
        if (!isfinite(p->score_full + p->score + p->nll_full + p->nll + p->kl))
            return FL_FAIL(FL_ERR_INVALID, "pair %d: a score or log-probability is not finite", i);
        if (p->cell >= w->n_cells) w->n_cells = p->cell + 1;
    }
    w->resamples = resamples;
    w->parts = calloc((size_t)n, sizeof *w->parts);
    w->documents = calloc((size_t)n, sizeof *w->documents);
    w->strata = calloc((size_t)n, sizeof *w->strata);
    w->diffs = calloc((size_t)n, sizeof *w->diffs);
    w->counts = calloc((size_t)w->n_cells, sizeof *w->counts);
    bool all = w->parts && w->documents && w->strata && w->diffs && w->counts;
    for (int i = 0; i < 2; i++) {
        w->draws[i] = calloc((size_t)resamples, sizeof *w->draws[i]);
        w->sums[i] = calloc((size_t)w->n_cells, sizeof *w->sums[i]);
        all = all && w->draws[i] && w->sums[i];
    }
    return all ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "statistics of %d questions", n);
}

static int compare_parts(const void *a, const void *b) {
    const part *x = a, *y = b;
    if (x->stratum != y->stratum) return x->stratum < y->stratum ? -1 : 1;
    if (x->document != y->document) return x->document < y->document ? -1 : 1;
    return (x->cell > y->cell) - (x->cell < y->cell);
}

/* Sorts the pairs and adds up those of one document and cell. */
static void gather(const fl_eval_pair *pairs, int32_t n, work *w) {
    for (int32_t i = 0; i < n; i++) {
        const fl_eval_pair *p = &pairs[i];
        w->parts[i] = (part){.document = p->document,
                             .stratum = p->stratum,
                             .cell = p->cell,
                             .n = 1,
                             .loss = p->score_full - p->score,
                             .nll_diff = p->nll - p->nll_full};
    }
    qsort(w->parts, (size_t)n, sizeof *w->parts, compare_parts);
    for (int32_t i = 0; i < n; i++) {
        const part *next = &w->parts[i];
        part *last = w->n_parts > 0 ? &w->parts[w->n_parts - 1] : NULL;
        if (last && compare_parts(last, next) == 0) {
            last->n++;
            last->loss += next->loss;
            last->nll_diff += next->nll_diff;
        } else {
            w->parts[w->n_parts++] = *next;
        }
    }
    for (int32_t i = 0; i < w->n_parts; i++) {
        const part *now = &w->parts[i], *before = i > 0 ? now - 1 : NULL;
        bool new_stratum = !before || before->stratum != now->stratum;
        if (new_stratum) w->strata[w->n_strata++] = (span){w->n_documents, w->n_documents};
        if (new_stratum || before->document != now->document) {
            w->documents[w->n_documents++] = (span){i, i};
            w->strata[w->n_strata - 1].end++;
        }
        w->documents[w->n_documents - 1].end++;
    }
}

/* The mean of the cells' means over the documents counted so far, into draws[][at]; empties the cells. */
static void finish_draw(work *w, int32_t at) {
    int32_t n_cells = 0;
    double sum[2] = {0, 0};
    for (int32_t c = 0; c < w->n_cells; c++) {
        for (int i = 0; i < 2 && w->counts[c] > 0; i++) sum[i] += w->sums[i][c] / w->counts[c];
        n_cells += w->counts[c] > 0;
        w->sums[0][c] = w->sums[1][c] = w->counts[c] = 0;
    }
    for (int i = 0; i < 2; i++) w->draws[i][at] = n_cells > 0 ? sum[i] / n_cells : 0;
}

static void add_document(work *w, int32_t document) {
    for (int32_t i = w->documents[document].begin; i < w->documents[document].end; i++) {
        const part *p = &w->parts[i];
        w->sums[0][p->cell] += p->loss;
        w->sums[1][p->cell] += p->nll_diff;
        w->counts[p->cell] += p->n;
    }
}

static void resample(work *w, uint64_t seed) {
    for (int32_t draw = 0; draw < w->resamples; draw++) {
        for (int32_t s = 0; s < w->n_strata; s++) {
            span of = w->strata[s];
            for (int32_t i = of.begin; i < of.end; i++)
                add_document(w, of.begin + random_below(&seed, of.end - of.begin));
        }
        finish_draw(w, draw);
    }
}

/* The middle 95% of the draws. */
static void interval(double *draws, int32_t n, double scale, fl_eval_estimate *out) {
    qsort(draws, (size_t)n, sizeof *draws, fl_compare_doubles);
    out->low = scale * draws[n / 40];
    out->high = scale * draws[n - 1 - n / 40];
}

/* Questions weigh by their cell. Equal cells weigh exactly 1, so that the differences stay whole parts. */
static void weigh_cells(const work *w, const fl_eval_pair *pairs, int32_t n) {
    double least = 0;
    memset(w->counts, 0, (size_t)w->n_cells * sizeof *w->counts);
    for (int32_t i = 0; i < n; i++) w->counts[pairs[i].cell]++;
    for (int32_t c = 0; c < w->n_cells; c++)
        if (w->counts[c] > 0 && (least == 0 || w->counts[c] < least)) least = w->counts[c];
    for (int32_t c = 0; c < w->n_cells; c++)
        if (w->counts[c] > 0) w->counts[c] = least / w->counts[c];
}

static fl_err test_worse(const work *w, int which, uint64_t seed, double *p) {
    for (int32_t d = 0; d < w->n_documents; d++) {
        w->diffs[d] = 0;
        for (int32_t i = w->documents[d].begin; i < w->documents[d].end; i++) {
            const part *of = &w->parts[i];
            w->diffs[d] += w->counts[of->cell] * (which == 0 ? of->loss : of->nll_diff);
        }
        if (fabs(w->diffs[d]) < 1e-12) w->diffs[d] = 0; /* shares that cancel but for rounding */
    }
    return fl_eval_sign_flip(w->diffs, w->n_documents, seed, p);
}

/* Means over the cells' means of what needs no interval. Cells of `w` hold their questions' weights. */
static void average(const work *w, const fl_eval_pair *pairs, int32_t n, fl_eval_summary *out) {
    double weights = 0;
    for (int32_t i = 0; i < n; i++) {
        const fl_eval_pair *p = &pairs[i];
        double weight = w->counts[p->cell];
        weights += weight;
        out->score_full += weight * p->score_full;
        out->score += weight * p->score;
        out->nll_full += weight * p->nll_full;
        out->nll += weight * p->nll;
        out->kl += weight * p->kl;
        out->n_lost += p->score < p->score_full;
        out->n_won += p->score > p->score_full;
    }
    out->score_full *= 100 / weights;
    out->score *= 100 / weights;
    out->nll_full /= weights;
    out->nll /= weights;
    out->kl /= weights;
}

static fl_err summarise(const fl_eval_pair *pairs, int32_t n, uint64_t seed, work *w, fl_eval_summary *out) {
    gather(pairs, n, w);
    for (int32_t d = 0; d < w->n_documents; d++) add_document(w, d);
    finish_draw(w, 0);
    out->loss.value = 100 * w->draws[0][0];
    out->nll_diff.value = w->draws[1][0];
    resample(w, seed);
    interval(w->draws[0], w->resamples, 100, &out->loss);
    interval(w->draws[1], w->resamples, 1, &out->nll_diff);
    weigh_cells(w, pairs, n);
    average(w, pairs, n, out);
    FL_TRY(test_worse(w, 0, seed, &out->loss.p));
    FL_TRY(test_worse(w, 1, seed, &out->nll_diff.p));
    out->n_questions = n;
    out->n_documents = w->n_documents;
    out->unseen_points = fmin(100.0, 300.0 / w->n_documents);
    out->worse = out->loss.p < FL_EVAL_WORSE_P || out->nll_diff.p < FL_EVAL_WORSE_P;
    return FL_ERR_OK;
}

fl_err fl_eval_summarise(const fl_eval_pair *pairs, int32_t n, const fl_eval_chance *chance,
                         fl_eval_summary *out) {
    work w = {0};
    *out = (fl_eval_summary){.loss.p = 1, .nll_diff.p = 1};
    if (chance->resamples < FL_EVAL_RESAMPLES_MIN)
        return FL_FAIL(FL_ERR_INVALID, "resamples: expected at least %d, found %d", FL_EVAL_RESAMPLES_MIN,
                       chance->resamples);
    if (n == 0) return FL_ERR_OK;
    fl_err err = open_work(pairs, n, chance->resamples, &w);
    if (err == FL_ERR_OK) err = summarise(pairs, n, chance->seed, &w, out);
    close_work(&w);
    return err;
}
