#include "plan/layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/memory_plan.h"

enum { TILE_ROWS = FL_ATTN_LIST_ROWS, SPAN_MIN = 1024, GROUP_ROWS_MAX = 65536 };

struct fl_layout_run {
    const fl_plan_task *task;
    fl_layout layout;
    int32_t n_gpus;
    fl_config config; /* of one GPU's part */
    fl_config head;   /* its first layers: all that differ, and one of the rest */
    /* Layers behind the dense ones are alike, and costs are sums over layers: what `more` has beyond `few` is one
     * of them, and there are n_alike of it. few NULL: `more` is the whole model. */
    fl_dry_run *few, *more;
    int32_t n_alike;
    int64_t weights_bytes; /* of one GPU */
    int64_t expert_bytes;  /* of one expert in one layer */
    int32_t moe_layers;
};

static const char *const names[FL_N_LAYOUTS] = {"tp", "sp", "cp", "ep"};

const char *fl_layout_name(fl_layout layout, int32_t n_gpus) {
    return n_gpus == 1 ? "one" : names[layout];
}

bool fl_layout_parse(const char *name, fl_layout *out) {
    for (int i = 0; i < FL_N_LAYOUTS; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (fl_layout)i;
            return true;
        }
    return false;
}

static bool cuts_heads(fl_layout layout) {
    return layout == FL_LAYOUT_TP || layout == FL_LAYOUT_SP;
}

static int64_t share_of(int64_t all, int64_t n) {
    return (all + n - 1) / n;
}

/* ---- a model's part ---- */

static fl_err divide(const char *what, int32_t multiple, int32_t n_gpus, int32_t *value) {
    if (*value % n_gpus != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "%d %s cannot be cut over %d GPUs", *value, what, n_gpus);
    if (*value % (n_gpus * multiple) != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "%d %s cannot be cut over %d GPUs into blocks of %d", *value, what,
                       n_gpus, multiple);
    *value /= n_gpus;
    return FL_ERR_OK;
}

/* Heads, feed-forward columns and vocabulary of one GPU. */
static fl_err cut(fl_config *c, int32_t n_gpus) {
    int32_t block = c->quantisation.type == FL_QUANTISATION_FP8 ? FL_SCALE_BLOCK : 1;
    FL_TRY(divide("heads", 1, n_gpus, &c->heads));
    FL_TRY(divide("columns of the dense feed-forward", block, n_gpus, &c->intermediate));
    FL_TRY(divide("columns of an expert", block, n_gpus, &c->moe_intermediate));
    c->vocab_size = (int32_t)share_of(c->vocab_size, n_gpus);
    return FL_ERR_OK;
}

static fl_err check(const fl_plan_task *t) {
    int64_t last = t->cached_tokens + 1;
    if (t->n_tokens < last || t->cached_tokens < 0)
        return FL_FAIL(FL_ERR_INVALID,
                       "plan: %lld of %lld tokens are cached: expected at least one new token",
                       (long long)t->cached_tokens, (long long)t->n_tokens);
    return FL_ERR_OK;
}

static fl_err set_weights(fl_layout_run *run, const fl_dry_run *whole) {
    int64_t n = run->config.n_routed_experts, experts = fl_dry_run_expert_bytes(whole);
    for (int32_t i = 0; i < run->config.layers; i++)
        run->moe_layers += fl_config_layer_is_moe(&run->config, i);
    run->weights_bytes = fl_dry_run_weights_bytes(whole);
    if (n > 0 && run->moe_layers > 0) run->expert_bytes = experts / n / run->moe_layers;
    if (run->layout != FL_LAYOUT_EP || run->n_gpus == 1) return FL_ERR_OK;
    if (run->expert_bytes == 0) return FL_FAIL(FL_ERR_UNSUPPORTED, "the model has no experts to spread");
    run->weights_bytes -= experts - share_of(n, run->n_gpus) * run->expert_bytes * run->moe_layers;
    return FL_ERR_OK;
}

static fl_err open_dry(fl_layout_run *run, const fl_config *config, fl_dry_run **out) {
    const fl_plan_task *t = run->task;
    return fl_dry_run_open(config, t->like, &t->kv, t->attend, out);
}

static fl_err open_parts(fl_layout_run *run) {
    const fl_config *c = &run->config;
    int32_t k = c->first_k_dense_replace > 0 ? c->first_k_dense_replace : 1;
    fl_dry_run *whole = NULL;
    fl_err err = open_dry(run, c, &whole);
    if (err == FL_ERR_OK) err = set_weights(run, whole);
    run->head = *c;
    if (err != FL_ERR_OK || k + 1 >= c->layers || c->moe_layer_freq > 1) {
        run->more = whole;
        return err;
    }
    fl_dry_run_close(whole);
    fl_config few = *c;
    few.layers = k;
    run->head.layers = k + 1;
    run->n_alike = c->layers - k;
    FL_TRY(open_dry(run, &few, &run->few));
    return open_dry(run, &run->head, &run->more);
}

fl_err fl_layout_open(const fl_plan_task *task, fl_layout layout, int32_t n_gpus, fl_layout_run **out) {
    FL_TRY(check(task));
    fl_layout_run *run = calloc(1, sizeof *run);
    if (!run) return FL_FAIL(FL_ERR_NOMEM, "plan");
    run->task = task;
    run->layout = layout;
    run->n_gpus = n_gpus;
    run->config = *task->config;
    fl_err err = cuts_heads(layout) && n_gpus > 1 ? cut(&run->config, n_gpus) : FL_ERR_OK;
    if (err == FL_ERR_OK) err = open_parts(run);
    if (err != FL_ERR_OK) fl_layout_close(run);
    else *out = run;
    return err;
}

void fl_layout_close(fl_layout_run *run) {
    if (!run) return;
    fl_dry_run_close(run->few);
    fl_dry_run_close(run->more);
    free(run);
}

/* ---- between GPUs ---- */

/* Distinct keys before position `a` that rows from there on see without those that are anchors. */
static double keys_before(const fl_attn_view *v, int64_t a) {
    int64_t near = v->window - 1;
    if (v->segment > 0 && a % v->segment > near) near = a % v->segment;
    if (near >= a) return (double)a;
    return (double)(near + (v->sinks < a - near ? v->sinks : a - near));
}

double fl_layout_remote_keys(const fl_attend *attend, int64_t pos, int64_t rows, int32_t n_gpus) {
    if (n_gpus == 1) return 0;
    double others = (double)(n_gpus - 1) / n_gpus;
    if (!attend || attend->blocks || attend->view.window == 0) return (double)(pos + rows) * others;
    int64_t piece = share_of(rows, 2 * (int64_t)n_gpus), last = pos + rows - piece;
    int64_t anchors = attend->anchor_step > 0 ? last / attend->anchor_step : 0;
    double keys = keys_before(&attend->view, pos) + keys_before(&attend->view, last) + (double)anchors;
    double all = (double)(pos + rows) * others;
    return keys < all ? keys : all;
}

double fl_layout_destinations(const fl_config *c, int32_t n_gpus) {
    double k = c->experts_per_token, n = n_gpus;
    if (c->n_group <= 1) return n * (1 - pow(1 - 1 / n, k));
    double gpus_a_group = n > c->n_group ? n / c->n_group : 1, most = c->topk_group * gpus_a_group;
    return fmin(fmin(most, k), n);
}

static bool moves_fp8(const fl_layout_run *run) {
    return run->task->like->w8a8 && run->config.quantisation.type == FL_QUANTISATION_FP8;
}

/* Of a row on its way to an expert: codes and their scales, or activations. */
static double row_bytes(const fl_layout_run *run) {
    double hidden = run->config.hidden;
    return moves_fp8(run) ? hidden * (1 + sizeof(float) / (double)FL_SCALE_BLOCK)
                          : hidden * (double)fl_dtype_bytes(run->task->like->act_dtype);
}

static double remote_destinations(const fl_layout_run *run) {
    return fl_layout_destinations(&run->config, run->n_gpus) * (run->n_gpus - 1) / run->n_gpus;
}

static double token_bytes(const fl_layout_run *run) { /* in one layer, as stored */
    return (double)fl_kv_page_bytes(&run->task->kv) / FL_KV_PAGE_TOKENS / run->task->kv.n_layers;
}

/* Keys that one GPU receives for a step of `rows` rows in all. */
static double gathered_keys(const fl_layout_run *run, int64_t pos, int64_t rows) {
    const fl_attend *attend = run->task->attend;
    if (run->layout == FL_LAYOUT_TP) return 0;
    if (run->layout != FL_LAYOUT_SP) return fl_layout_remote_keys(attend, pos, rows, run->n_gpus);
    /* Every GPU makes the keys of the step's rows itself. */
    double own = (double)rows * (run->n_gpus - 1) / run->n_gpus;
    double all = fl_layout_remote_keys(attend, pos, rows, run->n_gpus) - own;
    return all > 0 ? all : 0;
}

/* A step in which every GPU has `own` of the `rows` rows. */
static void add_travel(const fl_layout_run *run, int64_t pos, int64_t rows, int64_t own, fl_share *out) {
    double layers = run->config.layers, act = (double)fl_dtype_bytes(run->task->like->act_dtype);
    double others = (double)(run->n_gpus - 1) / run->n_gpus, hidden = run->config.hidden;
    if (run->n_gpus == 1) return;
    out->gather_bytes += gathered_keys(run, pos, rows) * token_bytes(run) * layers;
    /* A sum over all GPUs is a reduce-scatter and an all-gather of [rows][hidden], behind attention and behind the
     * feed-forward: each GPU receives (n - 1) / n of it four times a layer. */
    if (cuts_heads(run->layout)) out->reduce_bytes += 4 * others * (double)rows * hidden * act * layers;
    if (run->layout == FL_LAYOUT_EP)
        out->expert_bytes +=
            (double)own * remote_destinations(run) * (row_bytes(run) + hidden * act) * run->moe_layers;
}

/* ---- memory ---- */

static int64_t list_bytes(const fl_layout_run *run, int32_t span) {
    const fl_attend *a = run->task->attend;
    if (!a || !a->blocks) return 0;
    int64_t tiles = span / TILE_ROWS; /* ids and counts of attend_document.c */
    return tiles * run->config.heads *
           (a->list_capacity * (int64_t)sizeof(uint16_t) + (int64_t)sizeof(int32_t));
}

static int64_t exchange_bytes(const fl_layout_run *run, int32_t span) {
    const fl_plan_task *t = run->task;
    int64_t rows = cuts_heads(run->layout) ? span : (int64_t)span * run->n_gpus;
    if (run->n_gpus == 1) return 0;
    if (rows > t->n_tokens) rows = t->n_tokens;
    double keys = gathered_keys(run, t->n_tokens - rows, rows) * token_bytes(run);
    double act = (double)fl_dtype_bytes(t->like->act_dtype),
           group = span < GROUP_ROWS_MAX ? span : GROUP_ROWS_MAX;
    if (cuts_heads(run->layout)) return (int64_t)(keys + span * act * run->config.hidden);
    if (run->layout == FL_LAYOUT_CP) return (int64_t)keys;
    return (int64_t)(keys + group * remote_destinations(run) * row_bytes(run));
}

fl_err fl_layout_memory(fl_layout_run *run, int32_t span, fl_share_memory *out) {
    const fl_plan_task *t = run->task;
    fl_memory_sizes sizes = {.ctx_tokens = t->kv_tokens,
                             .kv_tokens = t->kv_tokens,
                             .span_tokens = fl_memory_plan_span(t->kv_tokens, span),
                             .kv = t->kv};
    fl_memory_plan plan;
    if (run->layout != FL_LAYOUT_TP) sizes.kv_tokens = share_of(t->kv_tokens, run->n_gpus);
    FL_TRY(fl_memory_plan_make(run->more, &run->head, &sizes, &plan));
    int64_t few = 0, recordings;
    FL_TRY(fl_memory_plan_recordings(run->more, &recordings));
    if (run->few) FL_TRY(fl_memory_plan_recordings(run->few, &few));
    if (run->few) recordings += (run->n_alike - 1) * (recordings - few);
    int64_t rows = plan.step_rows, act = (int64_t)fl_dtype_bytes(t->like->act_dtype);
    *out = (fl_share_memory){.weights = run->weights_bytes,
                             .kv = plan.kv_bytes,
                             .activations = rows * run->config.hidden * ((int64_t)sizeof(float) + 2 * act),
                             .lists = list_bytes(run, sizes.span_tokens),
                             .logits = plan.logits_bytes + plan.draw_bytes,
                             .recordings = fl_align_up(recordings, FL_DRIVER_PAGE_BYTES),
                             .exchange = exchange_bytes(run, sizes.span_tokens)};
    out->scratch = plan.scratch_bytes - out->activations - out->lists;
    out->total = out->weights + out->kv + plan.scratch_bytes + out->logits + out->recordings + out->exchange;
    return FL_ERR_OK;
}

/* Rows of one GPU if the whole prompt were one step. */
static int32_t longest_span(const fl_layout_run *run) {
    int64_t rows = run->task->n_tokens - run->task->cached_tokens;
    if (!cuts_heads(run->layout)) rows = share_of(rows, run->n_gpus);
    return (int32_t)fl_align_up(rows, TILE_ROWS);
}

fl_err fl_layout_span(fl_layout_run *run, int64_t memory_bytes, int32_t span_most, int32_t *out) {
    int32_t span = longest_span(run);
    fl_share_memory memory;
    if (span_most > 0 && span > span_most) span = span_most;
    FL_TRY(fl_layout_memory(run, span, &memory));
    while (memory.total > memory_bytes && span > SPAN_MIN) {
        span = (int32_t)fl_align_up(span / 2, TILE_ROWS);
        FL_TRY(fl_layout_memory(run, span, &memory));
    }
    *out = span;
    return FL_ERR_OK;
}

/* ---- work ---- */

/* What GPU `gpu` has of a step: document pieces, then the tail. */
typedef struct part {
    fl_kv_rows seqs[3];
    int32_t n, n_document, rows;
} part;

static void add_piece(part *p, int64_t pos, int64_t rows) {
    if (rows <= 0) return;
    p->seqs[p->n++] = (fl_kv_rows){.row = p->rows, .n_rows = (int32_t)rows, .pos = (int32_t)pos};
    p->rows += (int32_t)rows;
}

typedef struct step {
    int64_t pos, document, tail; /* first position, rows of each kind */
    bool last;
} step;

static part part_of(const fl_layout_run *run, const step *s, int32_t gpu) {
    part p = {.n = 0};
    bool whole = run->n_gpus == 1 || cuts_heads(run->layout);
    if (whole) add_piece(&p, s->pos, s->document);
    int64_t n = 2 * (int64_t)run->n_gpus, each = fl_align_up(share_of(s->document, n), TILE_ROWS);
    const int64_t pieces[2] = {gpu, n - 1 - gpu};
    for (int i = 0; i < 2 && !whole; i++) {
        int64_t left = s->document - pieces[i] * each;
        add_piece(&p, s->pos + pieces[i] * each, left < each ? left : each);
    }
    p.n_document = p.n;
    if (whole || gpu == 0) add_piece(&p, s->pos + s->document, s->tail);
    return p;
}

/* Experts that are elsewhere are not read here, though the forward pass on one GPU's rows counts all of them. */
static double unread_bytes(const fl_layout_run *run, int64_t rows) {
    double pairs = (double)rows * run->config.experts_per_token, n = run->config.n_routed_experts;
    if (run->layout != FL_LAYOUT_EP || run->n_gpus == 1) return 0;
    double read = fmin(pairs, n),
           own = fmin(read, (double)share_of(run->config.n_routed_experts, run->n_gpus));
    return (read - own) * (double)run->expert_bytes * run->moe_layers;
}

static fl_err add_part(fl_layout_run *run, const step *s, int32_t gpu, fl_count *sum) {
    const part p = part_of(run, s, gpu);
    const fl_dry_pieces pieces = {p.seqs, p.n, p.n_document, s->last ? 1 : 0};
    fl_dry_cost more, few;
    if (p.n == 0) return FL_ERR_OK;
    FL_TRY(fl_dry_run_pieces(run->more, &pieces, &more));
    if (run->few) {
        FL_TRY(fl_dry_run_pieces(run->few, &pieces, &few));
        fl_count_add_times(sum, &more.ops, run->n_alike);
        fl_count_add_times(sum, &few.ops, 1 - run->n_alike);
    } else {
        fl_count_add(sum, &more.ops);
    }
    double unread = unread_bytes(run, p.rows);
    sum->total.bytes -= unread;
    sum->matmul.bytes -= unread;
    return FL_ERR_OK;
}

/* The steps of a prompt as the engine cuts it: document rows by span, the tail with the last of them. */
static bool next_step(const fl_plan_task *t, int64_t document_end, int64_t span, step *s) {
    s->pos += s->document + s->tail;
    if (s->pos >= t->n_tokens) return false;
    int64_t left = document_end > s->pos ? document_end - s->pos : 0, rest;
    s->document = left < span ? left : span;
    rest = s->document == left ? t->n_tokens - s->pos - s->document : 0;
    s->tail = rest < FL_TAIL_ROWS_MAX ? rest : FL_TAIL_ROWS_MAX;
    s->last = s->pos + s->document + s->tail == t->n_tokens;
    return true;
}

/* Document rows come in whole tiles from a tile's start. */
static int64_t document_end(const fl_plan_task *t) {
    int64_t end = t->n_tokens - t->question_tokens;
    return end <= t->cached_tokens ? 0 : end - (end - t->cached_tokens) % TILE_ROWS;
}

fl_err fl_layout_share(fl_layout_run *run, int32_t span, fl_share *out) {
    const fl_plan_task *t = run->task;
    bool whole = run->n_gpus == 1 || cuts_heads(run->layout);
    int64_t rows_a_step = whole ? span : (int64_t)span * run->n_gpus, end = document_end(t);
    fl_count last = {0};
    FL_TRY(check(t));
    *out = (fl_share){.layout = run->layout, .n_gpus = run->n_gpus, .span_tokens = span};
    FL_TRY(fl_layout_memory(run, span, &out->memory));
    for (step s = {.pos = t->cached_tokens}; next_step(t, end, rows_a_step, &s); out->n_steps++) {
        FL_TRY(add_part(run, &s, 0, &out->work));
        if (!whole) FL_TRY(add_part(run, &s, run->n_gpus - 1, &last));
        add_travel(run, s.pos, s.document + s.tail, whole ? s.document : part_of(run, &s, 0).rows, out);
    }
    /* The others lie between the first, with the ends of each step, and the last, with its middle. */
    if (last.total.flops > out->work.total.flops) out->work = last;
    return FL_ERR_OK;
}

fl_err fl_layout_whole(const fl_plan_task *task, fl_count *out) {
    fl_layout_run *run = NULL;
    fl_share share = {0};
    FL_TRY(fl_layout_open(task, FL_LAYOUT_TP, 1, &run));
    fl_err err = fl_layout_share(run, longest_span(run), &share);
    *out = share.work;
    fl_layout_close(run);
    return err;
}
