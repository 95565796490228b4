#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op/sample/sample_weight.h"

struct fl_sampler {
    fl_backend *be;
    fl_sampler_sizes sizes;
    fl_sample_row *rows; /* [sizes.rows] */
    int32_t n;
    uint8_t *lists;        /* the host's */
    uint8_t *device_lists; /* where ops read them; the same on a host backend */
    int64_t lists_bytes, used_bytes;
    fl_sample *out; /* [sizes.rows], which the device writes */
    int64_t out_bytes;
};

fl_err fl_sampler_open(fl_backend *be, const fl_sampler_sizes *sizes, fl_sampler **out) {
    fl_err err;
    fl_sampler *s = calloc(1, sizeof *s);
    if (!s) return FL_FAIL(FL_ERR_NOMEM, "sampler");
    s->be = be;
    s->sizes = *sizes;
    s->lists_bytes = sizes->rows * sizes->list_bytes;
    s->out_bytes = sizes->rows * (int64_t)sizeof *s->out;
    s->rows = calloc((size_t)sizes->rows, sizeof *s->rows);
    if (!s->rows) {
        err = FL_FAIL(FL_ERR_NOMEM, "sampler of %d rows", sizes->rows);
        goto fail;
    }
    FL_TRY_GOTO(fl_backend_alloc_host(be, s->lists_bytes, (void **)&s->lists));
    FL_TRY_GOTO(fl_backend_alloc_host(be, s->out_bytes, (void **)&s->out));
    s->device_lists = s->lists;
    if (be->device) {
        s->device_lists = NULL;
        FL_TRY_GOTO(be->alloc(be, s->lists_bytes, (void **)&s->device_lists));
    }
    *out = s;
    return FL_ERR_OK;
fail:
    fl_sampler_close(s);
    return err;
}

void fl_sampler_close(fl_sampler *s) {
    if (!s) return;
    if (s->device_lists && s->device_lists != s->lists) s->be->free(s->be, s->device_lists, s->lists_bytes);
    if (s->lists) fl_backend_free_host(s->be, s->lists, s->lists_bytes);
    if (s->out) fl_backend_free_host(s->be, s->out, s->out_bytes);
    free(s->rows);
    free(s);
}

/* ---- what requests may ask for ---- */

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

/* ---- rows ---- */

fl_sampler_mark fl_sampler_get_mark(const fl_sampler *s) {
    return (fl_sampler_mark){s->n, s->used_bytes};
}

void fl_sampler_reset(fl_sampler *s, fl_sampler_mark mark) {
    s->n = mark.rows;
    s->used_bytes = mark.used_bytes;
}

/* A uniform number in [0, 1) from seed and index (splitmix64 over both). */
static double uniform(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* Copies a list; *at is where it begins. */
static fl_err put_list(fl_sampler *s, const void *from, int64_t bytes, int64_t *at) {
    *at = s->used_bytes;
    if (bytes == 0) return FL_ERR_OK;
    if (bytes > s->lists_bytes - s->used_bytes)
        return FL_FAIL(FL_ERR_INTERNAL, "sampler: %lld bytes wanted, %lld of %lld in use", (long long)bytes,
                       (long long)s->used_bytes, (long long)s->lists_bytes);
    memcpy(s->lists + s->used_bytes, from, (size_t)bytes);
    s->used_bytes += fl_align_up(bytes, 8);
    return FL_ERR_OK;
}

static fl_err put_lists(fl_sampler *s, const fl_draw *d, fl_sample_row *row) {
    int64_t mask_bytes = (s->sizes.n_known + 63) / 64 * (int64_t)sizeof *d->allowed;
    FL_TRY(put_list(s, d->marks, d->n_marks * (int64_t)sizeof *d->marks, &row->marks_at));
    FL_TRY(put_list(s, d->biases, d->n_biases * (int64_t)sizeof *d->biases, &row->biases_at));
    FL_TRY(put_list(s, d->banned, d->n_banned * (int64_t)sizeof *d->banned, &row->banned_at));
    row->allowed_at = -1;
    return d->allowed ? put_list(s, d->allowed, mask_bytes, &row->allowed_at) : FL_ERR_OK;
}

fl_err fl_sampler_add(fl_sampler *s, const fl_draw *d) {
    const fl_sampling *p = d->sampling;
    if (s->n == s->sizes.rows) return FL_FAIL(FL_ERR_INTERNAL, "sampler: more than %d rows", s->sizes.rows);
    fl_sample_row *row = &s->rows[s->n];
    *row = (fl_sample_row){.uniform = uniform(p->seed, d->index),
                           .scale = p->temperature > 0 ? FL_SAMPLE_LOG2E / p->temperature : 0,
                           .top_p = p->top_p,
                           .min_log2 = p->min_p > 0 ? log2f(p->min_p) : -INFINITY,
                           .top_k = p->top_k,
                           .repetition = p->repetition_penalty,
                           .presence = p->presence_penalty,
                           .frequency = p->frequency_penalty,
                           .n_marks = d->n_marks,
                           .n_biases = d->n_biases,
                           .n_banned = d->n_banned,
                           .n_top = d->n_top};
    FL_TRY(put_lists(s, d, row));
    s->n++;
    return FL_ERR_OK;
}

fl_err fl_sampler_args(fl_sampler *s, fl_sampler_mark mark, fl_sample_args *out) {
    int64_t bytes = s->used_bytes - mark.used_bytes;
    *out = (fl_sample_args){.logits_stride = s->sizes.n_vocab,
                            .n_rows = s->n - mark.rows,
                            .n_known = s->sizes.n_known,
                            .rows = s->rows + mark.rows,
                            .lists = s->device_lists,
                            .out = s->out + mark.rows};
    if (bytes == 0 || s->device_lists == s->lists) return FL_ERR_OK;
    return s->be->upload(s->be, s->device_lists + mark.used_bytes, s->lists + mark.used_bytes, bytes);
}

fl_err fl_sampler_token(const fl_sampler *s, fl_sampler_mark mark, int32_t i, const fl_sample **out) {
    const fl_sample *found = &s->out[mark.rows + i];
    if (found->bad >= 0)
        return FL_FAIL(FL_ERR_NUMERIC, "the logit of token %d is not a finite number", found->bad);
    if (found->token < 0) return FL_FAIL(FL_ERR_INTERNAL, "no token may come next");
    *out = found;
    return FL_ERR_OK;
}
