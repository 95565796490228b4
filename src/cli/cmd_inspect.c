/* inspect: what is in a checkpoint, and what running it needs. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/cli_answer.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "engine/attend_config.h"
#include "model/fingerprint.h"
#include "model/inspect.h"
#include "plan/memory_plan.h"

typedef struct inspecting {
    const fl_options *options;
    fl_progress progress;
    fl_checkpoint *checkpoint;
    fl_inspection what;
    fl_fingerprint fingerprint;
    fl_backend *be;
    fl_dry_run *dry;
    fl_memory_sizes sizes;
    fl_memory_plan plan;
    fl_attend_config attending;
} inspecting;

static fl_err choose_kv_format(inspecting *in) {
    const char *name = in->options->kv_cache_dtype;
    fl_kv_format format = in->be->kv_f32 ? FL_KV_F32 : FL_KV_BF16; /* what auto means */
    if (strcmp(name, "auto") != 0) fl_kv_format_parse(name, &format);
    if (format == FL_KV_F32 && !in->be->kv_f32)
        return FL_FAIL(
            FL_ERR_INVALID,
            "--kv-cache-dtype f32: only --backend reference stores it; expected auto, bf16, fp8 or int4");
    in->sizes.kv = fl_kv_shape_of_config(&in->what.config, format);
    fl_attend_config_shape(&in->attending, &in->sizes.kv);
    return FL_ERR_OK;
}

/* The sums, on a backend that counts in the formats of the one asked for. */
static fl_err sum_memory(inspecting *in) {
    char name[32];
    const fl_config *config = &in->what.config;
    fl_settings settings;
    fl_rope_extension extension;
    FL_TRY(fl_rope_extension_parse(in->options->rope, in->options->rope_factor, &extension));
    int64_t most = fl_rope_positions(config, &extension),
            ctx = in->options->ctx > 0 ? in->options->ctx : most;
    if (ctx > most && !in->options->force_positions)
        return FL_FAIL(FL_ERR_INVALID,
                       "--ctx: the model can be trusted to %lld positions, found %lld: extend it with --rope "
                       "and --rope-factor",
                       (long long)most, (long long)ctx);
    FL_TRY(fl_ask_settings(in->options, ctx, &settings));
    FL_TRY(fl_attend_config_open(config, &settings, ctx, &in->attending));
    snprintf(name, sizeof name, "count:%s", in->options->backend);
    FL_TRY(fl_backend_open(name, 1, &in->be));
    FL_TRY(choose_kv_format(in));
    FL_TRY(fl_dry_run_open(config, in->be, &in->sizes.kv, &in->attending.attend, &in->dry));
    in->sizes.ctx_tokens = in->sizes.kv_tokens = ctx;
    in->sizes.span_tokens = fl_memory_plan_span(ctx, (int32_t)in->options->span);
    return fl_memory_plan_make(in->dry, config, &in->sizes, &in->plan);
}

static fl_err inspect(inspecting *in) {
    const char *dir = in->options->operands.items[0];
    FL_TRY(fl_checkpoint_open_unread(dir, &in->checkpoint));
    fl_inspect_checkpoint(in->checkpoint, &in->what);
    if (in->options->memory) FL_TRY(sum_memory(in));
    fl_progress_begin(&in->progress, "hashing");
    return fl_fingerprint_compute(dir, fl_progress_bytes, &in->progress, &in->fingerprint);
}

static void print_fact(const char *name, const char *value, const char *more) {
    printf("%-14s %s%s\n", name, value, more);
}

static void print_bytes(const char *name, int64_t bytes, int64_t all, const char *more) {
    printf("  %-12s %10s  %s %s\n", name, fl_format_bytes(bytes).s,
           fl_format_bar(0, (double)bytes / (double)all, 32, "░").s, more);
}

static void print_memory(const inspecting *in) {
    const fl_memory_plan *p = &in->plan;
    char kv[128], step[96];
    int64_t pool_bytes = p->kv_bytes - p->means_bytes;
    int n =
        snprintf(kv, sizeof kv, "%s bytes a token, %s", fl_format_count(pool_bytes / in->sizes.kv_tokens).s,
                 fl_kv_format_name(in->sizes.kv.format));
    if (p->means_bytes > 0)
        snprintf(kv + n, sizeof kv - (size_t)n, ", and %s of means", fl_format_bytes(p->means_bytes).s);
    snprintf(step, sizeof step, "steps of %s tokens", fl_format_count(in->sizes.span_tokens).s);
    printf("\nmemory for a context of %s tokens on %s\n", fl_format_count(in->sizes.ctx_tokens).s,
           in->options->backend);
    print_bytes("weights", p->weights_bytes, p->total_bytes, "");
    print_bytes("KV", p->kv_bytes, p->total_bytes, kv);
    print_bytes("step", p->scratch_bytes, p->total_bytes, step);
    print_bytes("logits", p->logits_bytes, p->total_bytes, "");
    print_bytes("drawing", p->draw_bytes, p->total_bytes, "penalties, biases and masks of answers");
    if (p->recordings_bytes > 0)
        print_bytes("recordings", p->recordings_bytes, p->total_bytes,
                    "of short steps, by the driver (measured)");
    print_bytes("at most", p->total_bytes, p->total_bytes, "beside the program itself");
}

static void print_text(const inspecting *in) {
    const fl_inspection *w = &in->what;
    char more[128];
    print_fact("model type", w->config.model_type_name, "");
    snprintf(more, sizeof more, " (%s)", fl_format_si((double)w->parameters).s);
    print_fact("parameters", fl_format_count(w->parameters).s, more);
    snprintf(more, sizeof more, " (%s) for each token", fl_format_si((double)w->active_parameters).s);
    print_fact("active", fl_format_count(w->active_parameters).s, more);
    snprintf(more, sizeof more, " of %s in %d files", fl_format_bytes(w->bytes).s, w->n_shards);
    print_fact("tensors", fl_format_count(w->tensors).s, more);
    for (int32_t i = 0; i < w->n_dtypes; i++)
        printf("  %-12s %10s  %s %s tensors\n", w->dtypes[i].name, fl_format_bytes(w->dtypes[i].bytes).s,
               fl_format_bar(0, (double)w->dtypes[i].bytes / (double)w->bytes, 32, "░").s,
               fl_format_count(w->dtypes[i].tensors).s);
    snprintf(more, sizeof more, " layers, hidden %d, %d heads, %d experts of which %d work on a token",
             w->config.hidden, w->config.heads, w->config.n_routed_experts, w->config.experts_per_token);
    print_fact("shape", fl_format_count(w->config.layers).s, more);
    print_fact("context", fl_format_count(w->config.max_position_embeddings).s, " tokens");
    print_fact("fingerprint", in->fingerprint.hex, "");
    if (in->options->memory) print_memory(in);
}

static json_t *make_json(const inspecting *in) {
    const fl_inspection *w = &in->what;
    json_t *dtypes = json_object();
    for (int32_t i = 0; i < w->n_dtypes; i++)
        json_object_set_new(dtypes, w->dtypes[i].name,
                            json_pack("{s:I, s:I, s:I}", "tensors", (json_int_t)w->dtypes[i].tensors,
                                      "elements", (json_int_t)w->dtypes[i].elements, "bytes",
                                      (json_int_t)w->dtypes[i].bytes));
    json_t *out =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:i, s:o, s:i, s:s}", "model_type", w->config.model_type_name,
                  "parameters", (json_int_t)w->parameters, "active_parameters",
                  (json_int_t)w->active_parameters, "tensors", (json_int_t)w->tensors, "bytes",
                  (json_int_t)w->bytes, "shards", (int)w->n_shards, "dtypes", dtypes, "max_ctx_tokens",
                  (int)w->config.max_position_embeddings, "fingerprint", in->fingerprint.hex);
    if (!out || !in->options->memory) return out;
    json_object_set_new(out, "ctx_tokens", json_integer(in->sizes.ctx_tokens));
    json_object_set_new(out, "span_tokens", json_integer(in->sizes.span_tokens));
    json_object_set_new(out, "weights_bytes", json_integer(in->plan.weights_bytes));
    json_object_set_new(out, "kv_bytes", json_integer(in->plan.kv_bytes));
    json_object_set_new(out, "scratch_bytes", json_integer(in->plan.scratch_bytes));
    json_object_set_new(out, "logits_bytes", json_integer(in->plan.logits_bytes));
    json_object_set_new(out, "draw_bytes", json_integer(in->plan.draw_bytes));
    json_object_set_new(out, "recordings_bytes", json_integer(in->plan.recordings_bytes));
    json_object_set_new(out, "peak_bytes", json_integer(in->plan.total_bytes));
    return out;
}

int fl_cmd_inspect(const fl_options *options) {
    inspecting in = {.options = options};
    fl_progress_init(&in.progress, options);
    fl_err err = inspect(&in);
    fl_progress_clear(&in.progress);
    if (err == FL_ERR_OK && options->json) err = fl_cli_print_json(make_json(&in));
    else if (err == FL_ERR_OK) print_text(&in);
    int code = err == FL_ERR_OK ? 0 : fl_cli_fail("inspect", err);
    fl_dry_run_close(in.dry);
    fl_attend_config_close(&in.attending);
    fl_backend_close(in.be);
    fl_fingerprint_close(&in.fingerprint);
    fl_checkpoint_close(in.checkpoint);
    return code;
}
