#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct fl_sampler {
    int32_t n_vocab;
    candidate *heap; /* [n_vocab] */
    double *weights; /* [n_vocab] */
    float *row;      /* [n_vocab] logits as changed by penalties, biases and bans */
};

fl_err fl_sampler_open(int32_t n_vocab, fl_sampler **out) {
    fl_sampler *s = calloc(1, sizeof *s);
    if (!s) return FL_FAIL(FL_ERR_NOMEM, "sampler");
    s->n_vocab = n_vocab;
    s->heap = malloc((size_t)n_vocab * sizeof *s->heap);
    s->weights = malloc((size_t)n_vocab * sizeof *s->weights);
    s->row = malloc((size_t)n_vocab * sizeof *s->row);
    if (!s->heap || !s->weights || !s->row) {
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
    free(s->row);
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
    if (!(s->presence_penalty >= -2 && s->presence_penalty <= 2))
        return FL_FAIL(FL_ERR_INVALID, "presence_penalty: expected -2..2, found %g",
                       (double)s->presence_penalty);
    if (!(s->frequency_penalty >= -2 && s->frequency_penalty <= 2))
        return FL_FAIL(FL_ERR_INVALID, "frequency_penalty: expected -2..2, found %g",
                       (double)s->frequency_penalty);
    return FL_ERR_OK;
}

static fl_err validate_list(const char *name, const void *list, int32_t n, int32_t n_max) {
    if (n < 0 || n > n_max)
        return FL_FAIL(FL_ERR_INVALID, "%s: expected 0..%d entries, found %d", name, n_max, n);
    if (n > 0 && list == NULL) return FL_FAIL(FL_ERR_INVALID, "%s: expected %d entries, found NULL", name, n);
    return FL_ERR_OK;
}

fl_err fl_sampling_validate_tokens(const fl_request_params *p, int32_t n_vocab) {
    FL_TRY(validate_list("stop_tokens", p->stop_tokens, p->n_stop_tokens, FL_STOP_TOKENS_MAX));
    FL_TRY(validate_list("logit_biases", p->logit_biases, p->n_logit_biases, FL_LOGIT_BIASES_MAX));
    for (int32_t i = 0; i < p->n_stop_tokens; i++)
        if (p->stop_tokens[i] < 0 || p->stop_tokens[i] >= n_vocab)
            return FL_FAIL(FL_ERR_INVALID, "stop_tokens[%d]: expected 0..%d, found %d", i, n_vocab - 1,
                           p->stop_tokens[i]);
    for (int32_t i = 0; i < p->n_logit_biases; i++) {
        const fl_logit_bias *b = &p->logit_biases[i];
        if (b->token < 0 || b->token >= n_vocab)
            return FL_FAIL(FL_ERR_INVALID, "logit_biases[%d].token: expected 0..%d, found %d", i, n_vocab - 1,
                           b->token);
        if (!(b->bias >= -100 && b->bias <= 100))
            return FL_FAIL(FL_ERR_INVALID, "logit_biases[%d].bias: expected -100..100, found %g", i,
                           (double)b->bias);
    }
    if (p->min_tokens < 0 || p->min_tokens > p->max_tokens)
        return FL_FAIL(FL_ERR_INVALID, "min_tokens: expected 0..max_tokens (%lld), found %lld",
                       (long long)p->max_tokens, (long long)p->min_tokens);
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

/* Penalties of tokens that the prompt or the answer holds: the repetition penalty's form is Keskar et al. 2019
 * (CTRL), the other two are OpenAI's. */
static float penalised(const fl_sample_args *a, int32_t id) {
    const fl_sampling *p = a->sampling;
    float logit = a->logits[id];
    if (a->seen && a->seen[id] && p->repetition_penalty != 1)
        logit = logit > 0 ? logit / p->repetition_penalty : logit * p->repetition_penalty;
    if (a->counts && a->counts[id] > 0)
        logit -= p->presence_penalty + p->frequency_penalty * (float)a->counts[id];
    return logit;
}

/* The row to draw from: the model's own where nothing changes it. */
static const float *adjusted(fl_sampler *s, const fl_sample_args *a) {
    bool penalties = a->seen || a->counts;
    if (!penalties && a->n_biases == 0 && a->n_banned == 0) return a->logits;
    memcpy(s->row, a->logits, (size_t)a->n_known * sizeof *s->row);
    for (int32_t i = 0; penalties && i < a->n_known; i++) s->row[i] = penalised(a, i);
    for (int32_t i = 0; i < a->n_biases; i++)
        if (a->biases[i].token < a->n_known) s->row[a->biases[i].token] += a->biases[i].bias;
    for (int32_t i = 0; i < a->n_banned; i++)
        if (a->banned[i] < a->n_known) s->row[a->banned[i]] = -INFINITY;
    return s->row;
}

static bool may_come(const fl_sample_args *a, const float *row, int32_t id) {
    return row[id] > -INFINITY && (!a->allowed || (a->allowed[id / 64] >> (id % 64) & 1));
}

/* -1: none may come. */
static int32_t best_of(const fl_sample_args *a, const float *row) {
    int32_t best = -1;
    for (int32_t i = 0; i < a->n_known; i++)
        if (may_come(a, row, i) && (best < 0 || row[i] > row[best])) best = i;
    return best;
}

/* The ids that may be drawn, as a heap; how many. */
static int32_t gather(fl_sampler *s, const fl_sample_args *a, const float *row) {
    int32_t n = 0;
    for (int32_t i = 0; i < a->n_known; i++)
        if (may_come(a, row, i)) s->heap[n++] = (candidate){row[i], i};
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

/* -1: none may come. */
static int32_t choose(fl_sampler *s, const fl_sample_args *a) {
    const float *row = adjusted(s, a);
    if (a->sampling->temperature == 0) return best_of(a, row);
    int32_t n = gather(s, a, row);
    return n > 0 ? draw(s, a, n) : -1;
}

fl_err fl_sampler_draw(fl_sampler *s, const fl_sample_args *a, fl_sample *out) {
    double normaliser;
    FL_TRY(log_normaliser(a, &normaliser));
    if (a->n_top > 0) fill_top(s, a, normaliser, out);
    out->token = choose(s, a);
    if (out->token < 0 && a->n_banned > 0) {
        fl_sample_args free_args = *a;
        free_args.n_banned = 0;
        out->token = choose(s, &free_args);
    }
    if (out->token < 0) return FL_FAIL(FL_ERR_INTERNAL, "no token may come next");
    out->logprob = (float)(a->logits[out->token] - normaliser);
    return FL_ERR_OK;
}
