#include "plan/memory_plan.h"

int32_t fl_memory_plan_span(int64_t ctx_tokens, int32_t span_tokens) {
    int64_t longest = fl_align_up(ctx_tokens, FL_ATTN_LIST_ROWS);
    int32_t span = span_tokens > 0 ? span_tokens : FL_SPAN_TOKENS_DEFAULT;
    return longest < span ? (int32_t)longest : span;
}

fl_err fl_memory_plan_make(fl_dry_run *dry, const fl_config *config, const fl_memory_sizes *sizes,
                           fl_memory_plan *out) {
    int32_t document = sizes->span_tokens, end = (int32_t)fl_align_up(sizes->ctx_tokens, FL_ATTN_LIST_ROWS);
    const fl_dry_rows worst = {
        .document_rows = document,
        .document_pos = end > document ? (int32_t)fl_align_up(end - document, FL_ATTN_LIST_ROWS) : 0,
        .tail_rows = FL_TAIL_ROWS_MAX,
        .tail_pos = end > FL_TAIL_ROWS_MAX ? end - FL_TAIL_ROWS_MAX : 0,
        .n_logits = FL_LOGIT_ROWS_MAX};
    fl_dry_cost cost;
    FL_TRY(fl_dry_run_step(dry, &worst, &cost));
    int64_t pages = (sizes->kv_tokens + FL_KV_PAGE_TOKENS - 1) / FL_KV_PAGE_TOKENS;
    out->weights_bytes = fl_dry_run_weights_bytes(dry);
    out->kv_bytes = fl_kv_page_bytes(&sizes->kv) * pages;
    out->scratch_bytes = cost.scratch_bytes;
    out->logits_bytes = (int64_t)FL_LOGIT_ROWS_MAX * config->vocab_size * (int64_t)sizeof(float);
    out->total_bytes = out->weights_bytes + out->kv_bytes + out->scratch_bytes + out->logits_bytes;
    return FL_ERR_OK;
}
