/* Opening and closing: every piece in order, all memory reserved by the plan, one worker. */
#include "engine/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "engine/rope_config.h"
#include "model/fingerprint.h"
#include "model/shapes.h"

enum { SPAN_MAX = 16384, DEVICE_SPAN_MAX = 1 << 20, DEVICE_SPAN_DEFAULT = 32768, CTX_MAX = 1 << 24 };

const char *fl_version(void) {
    return FL_VERSION;
}

void fl_settings_default(fl_settings *settings) {
    *settings = (fl_settings){.backend = "auto",
                              .kv_dtype = "auto",
                              .policy = "full",
                              .tail = "dense",
                              .rope = "model",
                              .router_skew = 1,
                              .scheduling_policy = "bins",
                              .requests_max = 64,
                              .kv_disk_bytes = (int64_t)16 << 30,
                              .check_lock = true};
}

/* Never beyond the positions that model and extension were made for, unless forced; then every answer is warned of. */
static fl_err check_positions(fl_engine *e, const fl_settings *s, int64_t ctx) {
    int64_t positions = fl_rope_positions(e->config, &e->attending.extension);
    if (ctx <= positions) return FL_ERR_OK;
    snprintf(
        e->position_warning, sizeof e->position_warning,
        "the model can be trusted to %lld positions, the context has %lld: answers beyond are likely wrong; "
        "extend it (rope yarn or two-path with rope_factor %lld)",
        (long long)positions, (long long)ctx,
        (long long)((ctx + e->config->max_position_embeddings - 1) / e->config->max_position_embeddings));
    if (s->force_positions) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INVALID, "ctx_tokens: %s, or set force_positions", e->position_warning);
}

static fl_err read_sizes(fl_engine *e, const fl_settings *s) {
    fl_rope_extension extension;
    FL_TRY(fl_rope_extension_parse(s->rope, s->rope_factor, &extension));
    int64_t ctx = s->ctx_tokens > 0 ? s->ctx_tokens : fl_rope_positions(e->config, &extension);
    int64_t kv = s->kv_tokens > 0 ? s->kv_tokens : ctx;
    /* A device fills with more rows, and rebuilds the keys before a step once for all of them. */
    int32_t span_default = e->be->device ? DEVICE_SPAN_DEFAULT : FL_SPAN_TOKENS_DEFAULT;
    int32_t span_max = e->be->device ? DEVICE_SPAN_MAX : SPAN_MAX;
    int32_t span = s->span_tokens > 0 ? s->span_tokens : span_default;
    if (s->ctx_tokens < 0 || ctx < 2 || ctx > CTX_MAX)
        return FL_FAIL(FL_ERR_INVALID, "ctx_tokens: expected 2..%d, found %lld", CTX_MAX,
                       (long long)s->ctx_tokens);
    if (s->kv_tokens < 0 || kv > CTX_MAX)
        return FL_FAIL(FL_ERR_INVALID, "kv_tokens: expected 0..%d, found %lld", CTX_MAX,
                       (long long)s->kv_tokens);
    if (s->requests_max < 1 || s->requests_max > 4096)
        return FL_FAIL(FL_ERR_INVALID, "requests_max: expected 1..4096, found %d", s->requests_max);
    if (s->running_max < 0)
        return FL_FAIL(FL_ERR_INVALID, "running_max: expected 0 or more, found %d", s->running_max);
    if (s->scratch_bytes < 0)
        return FL_FAIL(FL_ERR_INVALID, "scratch_bytes: expected 0 or more, found %lld",
                       (long long)s->scratch_bytes);
    e->scratch_most_bytes = s->scratch_bytes;
    FL_TRY(fl_attend_config_open(e->config, s, ctx, &e->attending));
    FL_TRY(check_positions(e, s, ctx));
    int32_t tile = fl_tile_rows(e);
    if (span % tile != 0 || span < tile || span > span_max)
        return FL_FAIL(FL_ERR_INVALID, "span_tokens: expected a multiple of %d in %d..%d, found %d", tile,
                       tile, span_max, span);
    e->ctx_tokens = (int32_t)ctx;
    e->kv_pages = fl_pages_of(kv);
    e->span_tokens = fl_memory_plan_span(ctx, span);
    e->requests_max = s->requests_max;
    e->running_max = s->running_max > 0 ? s->running_max : s->requests_max;
    return FL_ERR_OK;
}

static fl_err read_kv_dtype(fl_engine *e, const char *name) {
    fl_kv_format format = e->be->kv_f32 ? FL_KV_F32 : FL_KV_BF16;
    bool known = !name || strcmp(name, "auto") == 0 || fl_kv_format_parse(name, &format);
    if (!known || (format == FL_KV_F32 && !e->be->kv_f32))
        return FL_FAIL(
            FL_ERR_UNSUPPORTED,
            "kv_dtype: backend %s stores auto, bf16, fp8, int4, int4-naive, int2-naive%s; found '%s'",
            e->be->name, e->be->kv_f32 ? ", f32" : "", name);
    e->kv_shape = fl_kv_shape_of_config(e->config, format);
    fl_attend_config_shape(&e->attending, &e->kv_shape);
    return FL_ERR_OK;
}

static fl_err open_text(fl_engine *e, const char *dir) {
    FL_TRY(fl_tokenizer_open(dir, &e->tokenizer));
    int32_t n_tokens = fl_tokenizer_n_vocab(e->tokenizer), n_vocab = e->config->vocab_size;
    if (n_tokens > n_vocab)
        return FL_FAIL(FL_ERR_DATA,
                       "tokenizer.json: expected ids below config.json's vocab_size %d, found %d", n_vocab,
                       n_tokens - 1);
    e->n_known = n_tokens;
    const fl_schema_vocabulary vocabulary = {.tokenizer = e->tokenizer,
                                             .n_vocab = n_vocab,
                                             .ends = e->config->eos_ids,
                                             .n_ends = e->config->n_eos_ids};
    FL_TRY(fl_schema_masks_open(&vocabulary, &e->masks));
    fl_err err = fl_chat_open(dir, &e->chat);
    if (err == FL_ERR_UNSUPPORTED) { /* usable with plain prompts; said when a chat is asked for */
        snprintf(e->no_chat, sizeof e->no_chat, "%s", fl_err_detail());
        return FL_ERR_OK;
    }
    return err;
}

/* What the host makes of a step: one piece of memory that a device copies from directly. */
static fl_err take_step_arrays(fl_engine *e) {
    int64_t rows = fl_step_rows_max(e) + FL_DECODE_ROWS_MAX, floats = rows * e->attending.rope.dim;
    bool far = e->attending.rope.near_tokens > 0;
    fl_arena arena;
    e->step_bytes = (rows + floats * (far ? 3 : 1)) * (int64_t)sizeof(float) + 4 * 64;
    FL_TRY(fl_backend_alloc_host(e->be, e->step_bytes, &e->step_memory));
    fl_arena_init(&arena, e->step_memory, e->step_bytes);
    FL_TRY(fl_arena_take(&arena, rows, sizeof(int32_t), &e->ids));
    FL_TRY(fl_arena_take(&arena, floats, sizeof(float), &e->rope_table));
    if (far) FL_TRY(fl_arena_take(&arena, floats, sizeof(float), &e->far_q_table));
    return far ? fl_arena_take(&arena, floats, sizeof(float), &e->far_k_table) : FL_ERR_OK;
}

/* Pages are worth what they cost: FLOPs of 64 rows at the beginning, and what they grow by with each page before.
 * Reading one back from disk is taken as a tenth of computing it (bench/results: a hundredth for spark-66m). */
static fl_err open_prefix(fl_engine *e) {
    static const double STORED_SHARE = 0.1;
    const int32_t tile = fl_tile_rows(e), far = (e->ctx_tokens - 1) / tile * tile;
    fl_prefix_options options = {.secret = fl_disk_tier_secret(e->tier),
                                 .unit_pages = tile / FL_KV_PAGE_TOKENS};
    fl_dry_cost first, last;
    FL_TRY(fl_dry_run_step(e->dry, &(fl_dry_rows){.document_rows = tile}, &first));
    FL_TRY(fl_dry_run_step(e->dry, &(fl_dry_rows){.document_rows = tile, .document_pos = far}, &last));
    double pages = tile / (double)FL_KV_PAGE_TOKENS, grown = last.ops.total.flops - first.ops.total.flops;
    options.page_cost = first.ops.total.flops / pages;
    options.index_cost = far > 0 ? grown / pages / (far / (double)FL_KV_PAGE_TOKENS) : 0;
    options.stored_cost = STORED_SHARE * options.page_cost;
    return fl_prefix_open(e->pool, &options, &e->prefix);
}

/* Before the scratch is taken: it must be enough for answers to go on. */
static fl_err open_guard(fl_engine *e) {
    const fl_guard_options options = {.config = e->config,
                                      .like = e->be,
                                      .kv = &e->kv_shape,
                                      .attend = &e->attending.attend,
                                      .level_bytes = e->scratch_bytes,
                                      .ctx_tokens = e->ctx_tokens,
                                      .requests_max = e->requests_max,
                                      .tile_rows = fl_tile_rows(e)};
    return fl_guard_open(&options, &e->guard);
}

/* The naive formats look at all rows of a timeline that are written together, so nothing may stand in for them. */
static bool wants_buckets(const fl_engine *e, const fl_settings *s) {
    return e->be->record && !s->enforce_eager && fl_kv_naive_code_max(e->kv_shape.format) == 0;
}

static fl_err take_page_tables(fl_engine *e) {
    int32_t pages = fl_pages_of(e->ctx_tokens);
    e->found_pages = calloc((size_t)pages + 4, sizeof(int32_t));
    e->bucket_pages = calloc(3 * (size_t)pages, sizeof(int32_t));
    if (e->found_pages && e->bucket_pages) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_NOMEM, "step of %d pages", pages);
}

static fl_err reserve(fl_engine *e, const fl_settings *s) {
    const fl_config *c = e->config;
    bool buckets = wants_buckets(e, s);
    const fl_memory_sizes sizes = {.ctx_tokens = e->ctx_tokens,
                                   .kv_tokens = (int64_t)e->kv_pages * FL_KV_PAGE_TOKENS,
                                   .span_tokens = e->span_tokens,
                                   .requests_max = e->requests_max,
                                   .spare_pages = buckets,
                                   .eager = s->enforce_eager,
                                   .kv = e->kv_shape};
    fl_memory_plan plan;
    FL_TRY(fl_memory_plan_make(e->dry, c, &sizes, &plan));
    e->kv_bytes = plan.kv_bytes;
    e->scratch_bytes = plan.scratch_bytes;
    if (e->scratch_most_bytes > 0 && e->scratch_most_bytes < plan.scratch_bytes)
        e->scratch_bytes = e->scratch_most_bytes;
    FL_TRY(open_guard(e));
    e->logits_bytes = plan.logits_bytes;
    FL_TRY(e->be->alloc(e->be, e->kv_bytes, &e->kv_memory));
    FL_TRY(e->be->alloc(e->be, e->scratch_bytes, &e->scratch));
    FL_TRY(fl_backend_alloc_host(e->be, e->logits_bytes, &e->logits_memory));
    fl_arena_init(&e->arena, e->scratch, e->scratch_bytes);
    FL_TRY(fl_kv_pool_open(&e->kv_shape, e->kv_pages, e->kv_memory, &e->pool));
    if (plan.means_bytes > 0)
        e->means = (fl_kept_means){.memory = (uint8_t *)e->kv_memory + plan.kv_bytes - plan.means_bytes,
                                   .n_max = fl_dry_run_kept_blocks(e->dry, e->ctx_tokens)};
    FL_TRY(open_prefix(e));
    const fl_sampler_sizes drawn = {.rows = FL_DRAWN_ROWS_MAX,
                                    .n_vocab = c->vocab_size,
                                    .n_known = e->n_known,
                                    .list_bytes = plan.list_bytes};
    e->draw_bytes = plan.draw_bytes;
    e->recordings_bytes = plan.recordings_bytes;
    FL_TRY(fl_sampler_open(e->be, &drawn, &e->sampler));
    e->kv = calloc((size_t)c->layers, sizeof *e->kv);
    if (!e->kv) return FL_FAIL(FL_ERR_NOMEM, "step of %d layers", c->layers);
    e->spare_page = buckets ? e->kv_pages : -1;
    FL_TRY(take_page_tables(e));
    FL_TRY(take_step_arrays(e));
    for (int32_t i = 0; i < c->layers; i++) e->kv[i] = fl_kv_pool_layer(e->pool, i);
    return e->be->free_bytes ? fl_memory_plan_check_free(&plan, e->be->free_bytes(e->be)) : FL_ERR_OK;
}

static fl_err start_worker(fl_engine *e) {
    int code = pthread_create(&e->worker, NULL, fl_worker_main, e);
    if (code != 0) return FL_FAIL(FL_ERR_NOMEM, "cannot start the worker thread: %s", strerror(code));
    e->worker_started = true;
    return FL_ERR_OK;
}

typedef struct load_progress {
    fl_progress_fn *fn;
    void *context;
    int64_t bytes;
} load_progress;

static void tell_progress(void *context, int64_t done, int64_t total) {
    const load_progress *p = context;
    if (p->fn) p->fn(p->context, p->bytes * done / total, p->bytes);
}

/* A device and exact repetition are part of the backend's name. */
static fl_err open_backend(fl_engine *e, const fl_settings *s) {
    const char *kind = s->backend ? s->backend : "auto";
    bool automatic = strcmp(kind, "auto") == 0 && fl_backend_available("cuda");
    if (automatic) kind = "cuda";
    bool cuda = strncmp(kind, "cuda", 4) == 0;
    char name[64];
    if (!cuda && s->device != 0)
        return FL_FAIL(FL_ERR_INVALID, "device %d: backend %s has none", s->device, kind);
    snprintf(name, sizeof name, "%s%s", kind, cuda && s->deterministic ? "-deterministic" : "");
    if (s->device != 0) snprintf(name + strlen(name), sizeof name - strlen(name), ":%d", s->device);
    return fl_backend_open(name, s->n_threads, &e->be);
}

static fl_err open_synthetic(fl_engine *e, const fl_settings *s) {
    FL_TRY(fl_shape_find(s->synthetic, &e->shape));
    e->config = &e->shape;
    e->n_known = e->config->vocab_size;
    snprintf(e->no_chat, sizeof e->no_chat, "a synthetic model has no text");
    return fl_synthetic_make(e->config, s->synthetic_seed, s->router_skew, &e->synthetic);
}

static fl_err open_checkpoint(fl_engine *e, const fl_settings *s) {
    if (s->check_lock && fl_lock_exists(s->model_path))
        FL_TRY(fl_lock_check(s->model_path, &(fl_lock_calls){0}));
    FL_TRY(fl_checkpoint_open(s->model_path, &e->checkpoint));
    e->config = fl_checkpoint_config(e->checkpoint);
    return FL_ERR_OK;
}

static fl_err load_weights(fl_engine *e, const fl_settings *s) {
    load_progress progress = {s->progress, s->progress_context, fl_dry_run_weights_bytes(e->dry)};
    double begin_s = fl_trace_now(e->trace);
    fl_err err = e->checkpoint ? fl_weights_load(e->be, e->checkpoint, tell_progress, &progress, &e->weights)
                               : fl_weights_synthetic(e->be, e->config, &e->synthetic, tell_progress,
                                                      &progress, &e->weights);
    fl_trace_span(e->trace, FL_TRACE_LOAD, "load weights", begin_s, progress.bytes);
    return err;
}

/* Ops are timed and traced from here on; what warming took is no part of the meters. */
static fl_err open_meters(fl_engine *e) {
    FL_TRY(fl_timed_open(e->be, &e->timed));
    e->be->trace = e->trace;
    if (e->be->pool) fl_pool_set_trace(e->be->pool, e->trace);
    return FL_ERR_OK;
}

static fl_err open_trace(fl_engine *e, const fl_settings *s) {
    FL_TRY(fl_trace_open(&e->trace));
    return s->trace_events != 0 ? fl_trace_start(e->trace, s->trace_events) : FL_ERR_OK;
}

static fl_err open_all(fl_engine *e, const fl_settings *s) {
    FL_TRY(open_trace(e, s));
    FL_TRY(s->synthetic ? open_synthetic(e, s) : open_checkpoint(e, s));
    FL_TRY(open_backend(e, s));
    FL_TRY(open_meters(e));
    FL_TRY(read_sizes(e, s));
    if (e->checkpoint) FL_TRY(open_text(e, s->model_path));
    FL_TRY(read_kv_dtype(e, s->kv_dtype));
    FL_TRY(fl_dry_run_open(e->config, e->be, &e->kv_shape, &e->attending.attend, &e->dry));
    FL_TRY(load_weights(e, s));
    FL_TRY(fl_attend_config_place(&e->attending, e->be));
    FL_TRY(fl_schedule_open(e, s));
    FL_TRY(fl_disk_tier_open(e, s));
    FL_TRY(reserve(e, s));
    if (e->be->record && !s->enforce_eager)
        FL_TRY(fl_graphs_open(e->be, e->config, e->ctx_tokens, &e->graphs));
    FL_TRY(fl_step_warm(e));
    fl_timed_reset(e->timed);
    fl_backend_seal(e->be, true);
    return start_worker(e);
}

fl_err fl_engine_open(const fl_settings *settings, fl_engine **out) {
    if (!settings->model_path == !settings->synthetic)
        return FL_FAIL(FL_ERR_INVALID, "model_path: expected a checkpoint folder, or a synthetic model");
    fl_engine *e = calloc(1, sizeof *e);
    if (!e) return FL_FAIL(FL_ERR_NOMEM, "engine");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    fl_cond_init(&e->ready);
    fl_err err = open_all(e, settings);
    if (err != FL_ERR_OK) fl_engine_close(e);
    else *out = e;
    return err;
}

static void stop_worker(fl_engine *e) {
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->worker, NULL);
}

void fl_engine_close(fl_engine *e) {
    if (!e) return;
    if (e->worker_started) stop_worker(e);
    fl_sampler_close(e->sampler);
    fl_disk_tier_close(e);
    fl_prefix_close(e->prefix);
    fl_kv_pool_close(e->pool);
    fl_graphs_close(e->graphs);
    fl_weights_close(e->weights);
    fl_guard_close(e->guard);
    fl_dry_run_close(e->dry);
    if (e->kv_memory) e->be->free(e->be, e->kv_memory, e->kv_bytes);
    if (e->scratch) e->be->free(e->be, e->scratch, e->scratch_bytes);
    if (e->step_memory) fl_backend_free_host(e->be, e->step_memory, e->step_bytes);
    if (e->logits_memory) fl_backend_free_host(e->be, e->logits_memory, e->logits_bytes);
    fl_attend_config_close(&e->attending);
    fl_timed_close(e->timed, e->be);
    fl_backend_close(e->be);
    fl_trace_close(e->trace);
    fl_chat_close(e->chat);
    fl_schema_masks_close(e->masks);
    fl_tokenizer_close(e->tokenizer);
    fl_checkpoint_close(e->checkpoint);
    free(e->kv);
    free(e->found_pages);
    free(e->bucket_pages);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->ready);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

void fl_engine_get_info(const fl_engine *e, fl_engine_info *out) {
    *out = (fl_engine_info){.model_type = e->config->model_type_name,
                            .backend = e->be->name,
                            .kv_dtype = fl_kv_format_name(e->kv_shape.format),
                            .ctx_tokens = e->ctx_tokens,
                            .kv_tokens = (int64_t)e->kv_pages * FL_KV_PAGE_TOKENS,
                            .weights_bytes = e->weights->memory_bytes,
                            .kv_bytes = e->kv_bytes,
                            .scratch_bytes = e->scratch_bytes,
                            .scratch_peak_bytes = atomic_load(&e->scratch_peak_bytes),
                            .n_threads = fl_pool_threads(e->be->pool),
                            .n_vocab = e->config->vocab_size,
                            .bos_token = e->config->bos_id,
                            .policy = e->attending.policy_text,
                            .position_warning = e->position_warning[0] ? e->position_warning : NULL,
                            .graphs = e->graphs != NULL,
                            .graph_steps = atomic_load(&e->n_graph_steps),
                            .graph_prompt_steps = atomic_load(&e->n_graph_prompt_steps),
                            .plain_steps = atomic_load(&e->n_plain_steps),
                            .graph_warning = atomic_load(&e->graph_warning),
                            .graph_outside = atomic_load(&e->outside),
                            .block_density = atomic_load(&e->density),
                            .block_overflow = atomic_load(&e->overflow)};
}
