#include "op/op_types.h"
#include "op/ref.h"
#include "op/sample/sample_heap.h"
#include "op/sample/sample_weight.h"

typedef struct row {
    const fl_sample_args *a;
    const fl_sample_row *how;
    const float *logits;       /* [n_known] */
    float *adjusted;           /* [n_known] logits as changed */
    fl_sample_candidate *heap; /* [n_known] */
} row;

static bool is_known(const row *r, int32_t token) {
    return token >= 0 && token < r->a->n_known;
}

static void limit(const row *r, bool banned) {
    const fl_sample_row *how = r->how;
    const int32_t *bans = how->n_banned > 0 ? (const void *)(r->a->lists + how->banned_at) : NULL;
    const uint64_t *allowed = how->allowed_at >= 0 ? (const void *)(r->a->lists + how->allowed_at) : NULL;
    for (int32_t i = 0; banned && i < how->n_banned; i++)
        if (is_known(r, bans[i])) r->adjusted[bans[i]] = -INFINITY;
    for (int32_t i = 0; allowed && i < r->a->n_known; i++)
        if (!(allowed[i / 64] >> (i % 64) & 1)) r->adjusted[i] = -INFINITY;
}

/* The row to draw from: the model's own where nothing changes it. */
static const float *adjust(const row *r, bool banned) {
    const fl_sample_row *how = r->how;
    if (how->n_marks + how->n_biases + how->n_banned == 0 && how->allowed_at < 0) return r->logits;
    const fl_sample_mark *marks = how->n_marks > 0 ? (const void *)(r->a->lists + how->marks_at) : NULL;
    const fl_logit_bias *biases = how->n_biases > 0 ? (const void *)(r->a->lists + how->biases_at) : NULL;
    memcpy(r->adjusted, r->logits, (size_t)r->a->n_known * sizeof *r->adjusted);
    for (int32_t i = 0; i < how->n_marks; i++)
        if (is_known(r, marks[i].token))
            r->adjusted[marks[i].token] =
                fl_sample_penalised(r->adjusted[marks[i].token], how, marks[i].count);
    for (int32_t i = 0; i < how->n_biases; i++)
        if (is_known(r, biases[i].token)) r->adjusted[biases[i].token] += biases[i].bias;
    limit(r, banned);
    return r->adjusted;
}

/* -1: none may come. */
static int32_t best_of(const float *logits, int32_t n) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (logits[i] > (best < 0 ? -INFINITY : logits[best])) best = i;
    return best;
}

/* Takes candidates best first while the filters let them in, so that a peaked distribution costs a few pops. `n` are
 * on the heap, at least one. */
static int32_t draw(const row *r, int32_t n) {
    const fl_sample_row *how = r->how;
    float best = r->heap[0].logit;
    uint64_t total = 0, kept = 0;
    int32_t left = n, most = how->top_k > 0 && how->top_k < n ? how->top_k : n;
    for (int32_t i = 0; i < n; i++)
        total += fl_sample_weight(fl_sample_depth(r->heap[i].logit, best, how->scale));
    uint64_t enough = fl_sample_nucleus(total, how->top_p);
    while (n - left < most) {
        float depth = fl_sample_depth(r->heap[0].logit, best, how->scale);
        if (left < n && (depth < how->min_log2 || kept >= enough)) break;
        kept += fl_sample_weight(depth);
        fl_sample_pop(r->heap, &left);
    }
    uint64_t aim = fl_sample_aim(kept, how->uniform), sum = 0;
    for (int32_t i = n - 1; i >= left; i--) { /* as they were taken */
        sum += fl_sample_weight(fl_sample_depth(r->heap[i].logit, best, how->scale));
        if (sum > aim) return r->heap[i].id;
    }
    return r->heap[n - 1].id;
}

/* -1: none may come. */
static int32_t choose(const row *r, bool banned) {
    int32_t n = 0;
    const float *logits = adjust(r, banned);
    if (r->how->scale == 0) return best_of(logits, r->a->n_known);
    for (int32_t i = 0; i < r->a->n_known; i++)
        if (logits[i] > -INFINITY) r->heap[n++] = (fl_sample_candidate){logits[i], i};
    fl_sample_make_heap(r->heap, n);
    return n > 0 ? draw(r, n) : -1;
}

/* -1: all are finite. */
static int32_t find_bad(const row *r) {
    for (int32_t i = 0; i < r->a->n_known; i++)
        if (!isfinite(r->logits[i])) return i;
    return -1;
}

static double normaliser_of(const row *r) {
    float best = -INFINITY;
    uint64_t sum = 0;
    for (int32_t i = 0; i < r->a->n_known; i++) best = r->logits[i] > best ? r->logits[i] : best;
    for (int32_t i = 0; i < r->a->n_known; i++)
        sum += fl_sample_weight(fl_sample_depth(r->logits[i], best, FL_SAMPLE_LOG2E));
    return fl_sample_normaliser(best, sum);
}

static void fill_top(const row *r, double normaliser, fl_sample *out) {
    int32_t left = r->a->n_known;
    if (r->how->n_top == 0) return;
    for (int32_t i = 0; i < left; i++) r->heap[i] = (fl_sample_candidate){r->logits[i], i};
    fl_sample_make_heap(r->heap, left);
    for (int32_t i = 0; i < r->how->n_top; i++) {
        out->top[i] = (fl_token_logprob){-1, 0};
        if (left == 0) continue;
        fl_sample_candidate c = fl_sample_pop(r->heap, &left);
        out->top[i] = (fl_token_logprob){c.id, (float)(c.logit - normaliser)};
    }
}

static void sample_row(const row *r, fl_sample *out) {
    out->token = -1;
    out->logprob = 0;
    out->bad = find_bad(r);
    if (out->bad >= 0) return;
    double normaliser = normaliser_of(r);
    fill_top(r, normaliser, out);
    out->token = choose(r, true);
    if (out->token < 0 && r->how->n_banned > 0) out->token = choose(r, false);
    if (out->token >= 0) out->logprob = (float)(r->logits[out->token] - normaliser);
}

fl_err fl_sample_ref(fl_backend *be, const fl_sample_args *a) {
    (void)be;
    FL_TRY(fl_sample_validate(a));
    fl_sample_candidate *heap = a->scratch;
    for (int32_t i = 0; i < a->n_rows; i++) {
        const row r = {.a = a,
                       .how = &a->rows[i],
                       .logits = a->logits + i * a->logits_stride,
                       .heap = heap,
                       .adjusted = (float *)(heap + a->n_known)};
        sample_row(&r, &a->out[i]);
    }
    return FL_ERR_OK;
}
