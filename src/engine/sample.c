#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct fl_sampler {
    int32_t n_vocab;
    candidate *heap; /* [n_vocab] */
    double *weights; /* [n_vocab] */
};

fl_err fl_sampler_open(int32_t n_vocab, fl_sampler **out) {
    fl_sampler *s = calloc(1, sizeof *s);
    if (!s) return FL_FAIL(FL_ERR_NOMEM, "sampler");
    s->n_vocab = n_vocab;
    s->heap = malloc((size_t)n_vocab * sizeof *s->heap);
    s->weights = malloc((size_t)n_vocab * sizeof *s->weights);
    if (!s->heap || !s->weights) {
        fl_sampler_close(s);
        return FL_FAIL(FL_ERR_NOMEM, "sampler of %d tokens", n_vocab);
    }
    *out = s;
    return FL_ERR_OK;
}

void fl_sampler_close(fl_sampler *s) {
    if (!s) return;
    free(s->heap);
    free(s->weights);
    free(s);
}

fl_err fl_sampling_validate(const fl_sampling *s) {
    if (!(s->temperature >= 0 && s->temperature <= 100))
        return FL_FAIL(FL_ERR_INVALID, "temperature: expected 0..100, found %g", (double)s->temperature);
    if (s->top_k < 0) return FL_FAIL(FL_ERR_INVALID, "top_k: expected 0 or more, found %d", s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return FL_FAIL(FL_ERR_INVALID, "top_p: expected more than 0, at most 1, found %g", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p < 1))
        return FL_FAIL(FL_ERR_INVALID, "min_p: expected 0 or more, less than 1, found %g", (double)s->min_p);
    if (!(s->repetition_penalty > 0 && s->repetition_penalty <= 100))
        return FL_FAIL(FL_ERR_INVALID, "repetition_penalty: expected more than 0, at most 100, found %g",
                       (double)s->repetition_penalty);
    return FL_ERR_OK;
}

/* Larger logit first, ties to the smaller id: the order greedy and golden values use. */
static bool comes_before(const candidate *a, const candidate *b) {
    return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static void sift_down(candidate *heap, int32_t n, int32_t i) {
    for (;;) {
        int32_t best = i;
        for (int32_t child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
            if (comes_before(&heap[child], &heap[best])) best = child;
        if (best == i) return;
        candidate swap = heap[i];
        heap[i] = heap[best];
        heap[best] = swap;
        i = best;
    }
}

static void make_heap(candidate *heap, int32_t n) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift_down(heap, n, i);
}

static candidate pop(candidate *heap, int32_t *n) {
    candidate best = heap[0];
    heap[0] = heap[--*n];
    sift_down(heap, *n, 0);
    return best;
}

/* A uniform number in [0, 1) from seed and index (splitmix64 over both). */
static double uniform(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

static float penalised(const fl_sample_args *a, int32_t id) {
    float logit = a->logits[id], penalty = a->sampling->repetition_penalty;
    if (!a->seen || !a->seen[id] || penalty == 1) return logit;
    return logit > 0 ? logit / penalty : logit * penalty;
}

static bool is_allowed(const fl_sample_args *a, int32_t id) {
    return !a->allowed || (a->allowed[id / 64] >> (id % 64) & 1);
}

/* -1: no id is allowed. */
static int32_t best_of(const fl_sample_args *a) {
    int32_t best = -1;
    float best_logit = -INFINITY;
    for (int32_t i = 0; i < a->n_known; i++) {
        if (!is_allowed(a, i)) continue;
        float logit = penalised(a, i);
        if (best < 0 || logit > best_logit) {
            best = i;
            best_logit = logit;
        }
    }
    return best;
}

/* The ids that may be drawn, as a heap; how many. */
static int32_t gather(fl_sampler *s, const fl_sample_args *a) {
    int32_t n = 0;
    for (int32_t i = 0; i < a->n_known; i++)
        if (is_allowed(a, i)) s->heap[n++] = (candidate){penalised(a, i), i};
    make_heap(s->heap, n);
    return n;
}

/* Takes candidates best first while the filters let them in, so a peaked distribution costs a few pops. */
static int32_t draw(fl_sampler *s, const fl_sample_args *a, int32_t n) {
    const fl_sampling *p = a->sampling;
    double best = s->heap[0].logit, total = 0, kept = 0;
    for (int32_t i = 0; i < n; i++) total += exp((s->heap[i].logit - best) / (double)p->temperature);
    int32_t left = n, most = p->top_k > 0 && p->top_k < n ? p->top_k : n, n_kept = 0;
    candidate *order = s->heap; /* popped entries gather behind the shrinking heap */
    while (n_kept < most) {
        candidate c = pop(s->heap, &left);
        double weight = exp((c.logit - best) / (double)p->temperature);
        if (n_kept > 0 && (weight < (double)p->min_p || kept >= (double)p->top_p * total)) break;
        order[left] = c;
        s->weights[n_kept++] = weight;
        kept += weight;
    }
    double aim = uniform(p->seed, a->index) * kept;
    for (int32_t i = 0; i < n_kept; i++) {
        aim -= s->weights[i];
        if (aim < 0 || i == n_kept - 1) return order[n - 1 - i].id;
    }
    return order[n - 1].id;
}

/* In f32 terms, since it runs over the whole vocabulary for every token: the sum's relative error stays below 1e-6. */
static fl_err log_normaliser(const fl_sample_args *a, double *out) {
    float best = -INFINITY;
    double sum = 0;
    for (int32_t i = 0; i < a->n_known; i++) {
        if (!isfinite(a->logits[i]))
            return FL_FAIL(FL_ERR_NUMERIC, "the logit of token %d is not a finite number", i);
        best = a->logits[i] > best ? a->logits[i] : best;
    }
    for (int32_t i = 0; i < a->n_known; i++) sum += (double)expf(a->logits[i] - best);
    *out = best + log(sum);
    return FL_ERR_OK;
}

static void fill_top(fl_sampler *s, const fl_sample_args *a, double normaliser, fl_sample *out) {
    int32_t left = a->n_known;
    for (int32_t i = 0; i < left; i++) s->heap[i] = (candidate){a->logits[i], i};
    make_heap(s->heap, left);
    for (int32_t i = 0; i < a->n_top && left > 0; i++) {
        candidate c = pop(s->heap, &left);
        out->top[i] = (fl_token_logprob){c.id, (float)(c.logit - normaliser)};
    }
}

fl_err fl_sampler_draw(fl_sampler *s, const fl_sample_args *a, fl_sample *out) {
    double normaliser;
    FL_TRY(log_normaliser(a, &normaliser));
    if (a->n_top > 0) fill_top(s, a, normaliser, out);
    if (a->sampling->temperature == 0) {
        out->token = best_of(a);
    } else {
        int32_t n = gather(s, a);
        out->token = n > 0 ? draw(s, a, n) : -1;
    }
    if (out->token < 0) return FL_FAIL(FL_ERR_INTERNAL, "no token may come next");
    out->logprob = (float)(a->logits[out->token] - normaliser);
    return FL_ERR_OK;
}
