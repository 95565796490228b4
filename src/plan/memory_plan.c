#include "plan/memory_plan.h"

enum { WORST_STEPS = 6 };

int32_t fl_memory_plan_span(int64_t ctx_tokens, int32_t span_tokens) {
    int64_t longest = fl_align_up(ctx_tokens, FL_ATTN_LIST_ROWS);
    int32_t span = span_tokens > 0 ? span_tokens : FL_SPAN_TOKENS_DEFAULT;
    return longest < span ? (int32_t)longest : span;
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t most(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* A step of the longest prompt there is: its document ends at document_end, `tail` rows come behind it; beside it
 * everybody else decodes at the context's end. */
static fl_dry_rows step_of(const fl_memory_sizes *s, int32_t document_end, int32_t tail, int32_t beside) {
    int32_t document = least(s->span_tokens, document_end);
    return (fl_dry_rows){.document_rows = document,
                         .document_pos = document_end - document,
                         .tail_rows = tail,
                         .tail_pos = document_end,
                         .decode_rows = beside,
                         .decode_pos = (int32_t)s->ctx_tokens - 1,
                         .n_logits = beside + 1 + least(FL_SCORED_ROWS_MAX, most(tail - 1, 0))};
}

/* What a step's arena takes never falls when one of its row counts or a position grows (test/plan/test_guard.c holds
 * the model to that). Document and tail share a prompt, whose end is the context's: a row more of the one is a row less
 * of the other, and the worst lies where one of them is as long as it can be. A document comes in tiles, so that the
 * longest tail of the very longest prompt, and of any, are two cases. */
static void worst_steps(const fl_memory_sizes *s, int32_t tile, fl_dry_rows out[WORST_STEPS]) {
    int32_t prompt = (int32_t)s->ctx_tokens - 1;
    int32_t requests = s->requests_max > 0 ? s->requests_max : FL_DECODE_ROWS_MAX + 1;
    int32_t beside = least(requests - 1, FL_DECODE_ROWS_MAX), answers = least(requests, FL_DECODE_ROWS_MAX);
    int32_t tail_most = least(FL_TAIL_ROWS_MAX - beside, prompt), end = prompt - prompt % tile;
    int32_t tiles = most(tail_most - prompt % tile, 0) / tile; /* that may be tail */
    int32_t shorter = (prompt - tail_most) - (prompt - tail_most) % tile;
    out[0] = step_of(s, end, prompt - end, beside);
    out[1] = step_of(s, end - tiles * tile, prompt - end + tiles * tile, beside);
    out[2] = step_of(s, shorter, tail_most, beside);
    out[3] = step_of(s, 0, tail_most, beside);
    out[3].tail_pos = prompt - tail_most;
    /* Scored rows that are not tail have the step for themselves. */
    out[4] = step_of(s, end, 0, beside);
    out[4].document_rows = least(out[4].document_rows, FL_SCORED_ROWS_MAX);
    out[4].document_pos = end - out[4].document_rows;
    out[4].n_logits = beside + 1 + out[4].document_rows;
    out[5] = (fl_dry_rows){.decode_rows = answers, .decode_pos = prompt, .n_logits = answers};
}

/* A mark for every token that a context can hold, every bias and ban that a request may have, a mask. */
static int64_t list_bytes_of(const fl_config *config, int64_t ctx_tokens) {
    int64_t n_vocab = config->vocab_size, marks = ctx_tokens < n_vocab ? ctx_tokens : n_vocab;
    return marks * (int64_t)sizeof(fl_sample_mark) + FL_LOGIT_BIASES_MAX * (int64_t)sizeof(fl_logit_bias) +
           (FL_EOS_IDS_MAX + FL_STOP_TOKENS_MAX) * (int64_t)sizeof(int32_t) +
           (n_vocab + 63) / 64 * (int64_t)sizeof(uint64_t);
}

static void count_call(void *context, fl_op_id op, const void *args, double time_s) {
    (void)op;
    (void)args;
    (void)time_s;
    ++*(int64_t *)context;
}

fl_err fl_memory_plan_recordings(fl_dry_run *dry, int64_t *bytes) {
    fl_backend *count = fl_dry_run_backend(dry);
    int32_t tile = fl_dry_run_tile_rows(dry);
    const fl_dry_rows rows = {.document_rows = tile,
                              .tail_rows = 1,
                              .tail_pos = tile,
                              .decode_rows = 1,
                              .decode_pos = tile,
                              .n_logits = 2};
    fl_dry_cost cost;
    int64_t n_calls = 0;
    *bytes = 0;
    if (count->recording_op_bytes == 0) return FL_ERR_OK;
    fl_backend_count_watch(count, count_call, &n_calls);
    fl_err err = fl_dry_run_step(dry, &rows, &cost);
    fl_backend_count_watch(count, NULL, NULL);
    *bytes = FL_GRAPHS_MAX * n_calls * count->recording_op_bytes;
    return err;
}

fl_err fl_memory_plan_make(fl_dry_run *dry, const fl_config *config, const fl_memory_sizes *sizes,
                           fl_memory_plan *out) {
    fl_dry_rows worst[WORST_STEPS];
    worst_steps(sizes, fl_dry_run_tile_rows(dry), worst);
    out->scratch_bytes = 0;
    out->step_rows = 0;
    for (int32_t i = 0; i < WORST_STEPS; i++) {
        fl_dry_scratch scratch;
        FL_TRY(fl_dry_run_scratch(dry, &worst[i], &scratch));
        if (scratch.peak_bytes > out->scratch_bytes) out->scratch_bytes = scratch.peak_bytes;
        int32_t rows = worst[i].document_rows + worst[i].tail_rows + worst[i].decode_rows;
        if (rows > out->step_rows) out->step_rows = rows;
    }
    int64_t pages = (sizes->kv_tokens + FL_KV_PAGE_TOKENS - 1) / FL_KV_PAGE_TOKENS;
    out->weights_bytes = fl_dry_run_weights_bytes(dry);
    out->means_bytes = fl_dry_run_kept_bytes(dry, &sizes->kv, sizes->ctx_tokens);
    out->kv_bytes = fl_kv_page_bytes(&sizes->kv) * (pages + sizes->spare_pages) + out->means_bytes;
    out->logits_bytes = (int64_t)FL_LOGIT_ROWS_MAX * config->vocab_size * (int64_t)sizeof(float);
    out->list_bytes = list_bytes_of(config, sizes->ctx_tokens);
    out->draw_bytes = FL_DRAWN_ROWS_MAX * (out->list_bytes + (int64_t)sizeof(fl_sample));
    FL_TRY(fl_memory_plan_recordings(dry, &out->recordings_bytes));
    out->recordings_bytes = sizes->eager ? 0 : fl_align_up(out->recordings_bytes, FL_DRIVER_PAGE_BYTES);
    out->total_bytes = out->weights_bytes + out->kv_bytes + out->scratch_bytes + out->logits_bytes +
                       out->draw_bytes + out->recordings_bytes;
    return FL_ERR_OK;
}

fl_err fl_memory_plan_check_free(const fl_memory_plan *plan, int64_t free_bytes) {
    if (free_bytes >= plan->recordings_bytes) return FL_ERR_OK;
    return FL_FAIL(
        FL_ERR_NOMEM,
        "recordings of steps take up to %lld MiB of device memory, %lld MiB are left beside weights, KV "
        "and scratch: lower kv_tokens or span_tokens, or set enforce_eager",
        (long long)(plan->recordings_bytes >> 20), (long long)(free_bytes >> 20));
}
