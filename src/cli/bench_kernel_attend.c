/* Cases of bench kernels: attention, and what chooses its blocks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_kernel.h"
#include "op/kv_format.h"

/* Scores have this deviation, as exponents of 2: real rows are about as peaked. */
static const double score_deviation = 2;

/* ---- attn_prefill ------------------------------------------------------------------------------------------------ */

typedef struct prefill_case {
    const char *name;
    int32_t n_heads, nope_dim, rope_dim, v_dim, rows, pos;
    int32_t window;       /* 0 = all keys before a row */
    double density;       /* of block lists; 0 = none */
    int32_t block_tokens; /* of lists */
} prefill_case;

static const prefill_case prefill_cases[] = {
    {"prefill-causal-32k-128h", 128, 128, 64, 128, 32768, 0, 0, 0, 0},
    {"prefill-window-16k-128h", 128, 128, 64, 128, 32768, 32768, 16384, 0, 0},
    {"prefill-window-16k-16h", 16, 128, 64, 128, 16384, 245760, 16384, 0, 0},
    {"prefill-blocks-2%-16h", 16, 128, 64, 128, 16384, 245760, 0, 0.02, 64},
    {"prefill-blocks-4%-16h", 16, 128, 64, 128, 16384, 245760, 0, 0.04, 64},
    {"prefill-blocks128-4%-16h", 16, 128, 64, 128, 16384, 245760, 0, 0.04, 128},
    {"prefill-causal-32k-spark", 8, 64, 32, 64, 32768, 0, 0, 0, 0},
};

/* The call of a case, and with lists the one over the means of the other blocks, made together with it. */
typedef struct prefill_calls {
    fl_attn_prefill_args keys, means;
    fl_attn_list list;
} prefill_calls;

static fl_err run_prefill(fl_backend *be, const void *args) {
    const prefill_calls *calls = args;
    return be->op->attn_prefill(be, &calls->keys);
}

static prefill_case small_prefill(const prefill_case *c) {
    prefill_case s = *c;
    s.n_heads = 2;
    s.rows = FL_ATTN_LIST_ROWS;
    s.pos = c->pos > 0 ? 4 * FL_ATTN_LIST_ROWS : 0;
    if (c->window > 0) s.window = FL_ATTN_LIST_ROWS;
    return s;
}

/* k_nope | v and k_pe of `n` keys or means. */
static fl_err take_keys(fl_kernel_bench *b, const prefill_case *c, int32_t n, fl_attn_prefill_args *a) {
    void *kv, *k_pe;
    fl_dtype act = b->be->act_dtype;
    FL_TRY(fl_kernel_take_random(b, (int64_t)n * c->n_heads * (c->nope_dim + c->v_dim), act, 1, &kv));
    FL_TRY(fl_kernel_take_random(b, (int64_t)n * c->rope_dim, act, 1, &k_pe));
    a->kv = kv;
    a->k_pe = k_pe;
    a->n_keys = n;
    return FL_ERR_OK;
}

static fl_err take_rows(fl_kernel_bench *b, const prefill_case *c, fl_attn_prefill_args *a) {
    int32_t qk = c->nope_dim + c->rope_dim;
    int64_t heads = (int64_t)c->rows * c->n_heads;
    int64_t state_bytes = fl_attn_prefill_state_bytes(c->rows, c->n_heads, c->v_dim);
    void *q;
    FL_TRY(fl_kernel_take_random(b, heads * qk, b->be->act_dtype, score_deviation / sqrt(qk), &q));
    FL_TRY(fl_kernel_take(b, heads * c->v_dim * (int64_t)fl_dtype_bytes(b->be->act_dtype), &a->out));
    FL_TRY(fl_kernel_take(b, state_bytes, &a->state));
    FL_TRY(fl_kernel_take(b, fl_attn_prefill_scratch_bytes(a), &a->scratch));
    a->q = q;
    return FL_ERR_OK;
}

/* What draws lists: of the m blocks that lie before a tile k, of the tile's own all. */
typedef struct draw {
    int32_t tiles, n_heads, capacity, ids_a_block;
    uint16_t *ids;
    int32_t *n;
    double listed_pairs, mean_pairs, n_ids; /* sums */
} draw;

static void draw_list(fl_kernel_bench *b, const prefill_case *c, draw *d, int32_t list) {
    int32_t tile_pos = c->pos + list / c->n_heads * FL_ATTN_LIST_ROWS;
    int32_t m = tile_pos / c->block_tokens, own = FL_ATTN_LIST_ROWS / c->block_tokens, n = 0;
    int32_t k = (int32_t)lround(c->density * (m + own)) - own, left;
    uint16_t *ids = d->ids + (int64_t)list * d->capacity;
    if (k < 1) k = m > 0;
    left = k;
    for (int32_t j = 0; j < m && left > 0; j++) {
        if (fl_kernel_uniform(b) * (m - j) >= left) continue;
        left--;
        for (int32_t i = 0; i < d->ids_a_block; i++) ids[n++] = (uint16_t)(j * d->ids_a_block + i);
    }
    for (int32_t i = 0; i < FL_ATTN_LIST_ROWS / FL_KV_PAGE_TOKENS; i++)
        ids[n++] = (uint16_t)(tile_pos / FL_KV_PAGE_TOKENS + i);
    d->n[list] = n;
    d->n_ids += n;
    d->listed_pairs +=
        (double)FL_ATTN_LIST_ROWS * k * c->block_tokens + FL_ATTN_LIST_ROWS * (FL_ATTN_LIST_ROWS + 1) / 2.0;
    d->mean_pairs += (double)FL_ATTN_LIST_ROWS * (m - k);
}

static fl_err draw_lists(fl_kernel_bench *b, const prefill_case *c, draw *d, fl_attn_list *out) {
    int32_t lists = d->tiles * d->n_heads;
    void *ids = NULL, *n = NULL;
    fl_err err;
    d->ids = calloc((size_t)lists * (size_t)d->capacity, sizeof *d->ids);
    d->n = calloc((size_t)lists, sizeof *d->n);
    if (!d->ids || !d->n) FL_TRY_GOTO(FL_FAIL(FL_ERR_NOMEM, "%d lists", lists));
    for (int32_t i = 0; i < lists; i++) draw_list(b, c, d, i);
    FL_TRY_GOTO(fl_kernel_take_copy(b, d->ids, (int64_t)lists * d->capacity * (int64_t)sizeof *d->ids, &ids));
    FL_TRY_GOTO(fl_kernel_take_copy(b, d->n, lists * (int64_t)sizeof *d->n, &n));
    *out = (fl_attn_list){.ids = ids, .n = n, .capacity = d->capacity, .planned_blocks = d->n_ids / lists};
fail:
    free(d->ids);
    free(d->n);
    return err;
}

/* The call over means behind the one over listed keys; *useful counts the pairs that were drawn. */
static fl_err add_means(fl_kernel_bench *b, const prefill_case *c, prefill_calls *calls, fl_cost *useful) {
    int32_t all = c->pos + c->rows, n_means = all / c->block_tokens;
    draw d = {.tiles = c->rows / FL_ATTN_LIST_ROWS,
              .n_heads = c->n_heads,
              .capacity = (int32_t)(c->density * all / FL_KV_PAGE_TOKENS) + 16,
              .ids_a_block = c->block_tokens / FL_KV_PAGE_TOKENS};
    fl_attn_prefill_args *keys = &calls->keys, *means = &calls->means;
    void *bias;
    float *biases = malloc((size_t)c->n_heads * sizeof *biases);
    if (!biases) return FL_FAIL(FL_ERR_NOMEM, "biases");
    for (int32_t i = 0; i < c->n_heads; i++) biases[i] = log2f((float)c->block_tokens);
    fl_err err = fl_kernel_take_copy(b, biases, c->n_heads * (int64_t)sizeof *biases, &bias);
    free(biases);
    FL_TRY(err);
    FL_TRY(draw_lists(b, c, &d, &calls->list));
    keys->list = &calls->list;
    keys->last = false;
    *means = *keys;
    FL_TRY(take_keys(b, c, n_means, means));
    means->key_step = c->block_tokens;
    means->means = true;
    means->key_bias = bias;
    means->first = false;
    means->last = true;
    keys->then = means;
    *useful = fl_attn_prefill_cost(keys);
    useful->flops = 2 * (d.listed_pairs + d.mean_pairs) * (c->nope_dim + c->rope_dim + c->v_dim);
    return FL_ERR_OK;
}

/* Keys that no row sees are not read: they are no useful bytes. */
static fl_cost window_cost(const fl_attn_prefill_args *a) {
    fl_attn_prefill_args seen = *a;
    if (a->view.window > 0 && a->rows + a->view.window - 1 < a->n_keys)
        seen.n_keys = a->rows + a->view.window - 1;
    fl_cost cost = fl_attn_prefill_cost(a);
    seen.rows = 1; /* bytes are linear in keys and rows */
    fl_attn_prefill_args all = seen;
    all.n_keys = a->n_keys;
    cost.bytes -= fl_attn_prefill_cost(&all).bytes - fl_attn_prefill_cost(&seen).bytes;
    return cost;
}

static fl_err time_prefill(fl_kernel_bench *b, const prefill_case *c) {
    prefill_calls calls = {0};
    fl_attn_prefill_args *a = &calls.keys;
    *a = (fl_attn_prefill_args){.rows = c->rows,
                                .pos = c->pos,
                                .n_heads = c->n_heads,
                                .nope_dim = c->nope_dim,
                                .rope_dim = c->rope_dim,
                                .v_dim = c->v_dim,
                                .view = {.window = c->window},
                                .first = true,
                                .last = true};
    FL_TRY(take_keys(b, c, c->pos + c->rows, a));
    FL_TRY(take_rows(b, c, a));
    fl_cost useful = window_cost(a);
    if (c->density > 0) FL_TRY(add_means(b, c, &calls, &useful));
    char what[64] = "all keys";
    if (c->window > 0) snprintf(what, sizeof what, "window %d", c->window);
    if (c->density > 0)
        snprintf(what, sizeof what, "%.1f%% of blocks of %d and means",
                 100 * calls.list.planned_blocks * FL_KV_PAGE_TOKENS / (c->pos + c->rows / 2.0),
                 c->block_tokens);
    const fl_kernel_case timed = {
        .name = c->name, .op = "attn_prefill", .run = run_prefill, .args = &calls, .useful = useful};
    return fl_kernel_time(b, &timed, "%d rows at %d, %d heads of %d+%d/%d, %s", c->rows, c->pos, c->n_heads,
                          c->nope_dim, c->rope_dim, c->v_dim, what);
}

/* ---- choosing blocks --------------------------------------------------------------------------------------------- */

enum { CHOICE_HEADS = 16 };

/* One step's rows behind a long document, as in the cases with lists: the means of the step's own blocks (those of the
 * blocks before are kept), what kv_b makes of all, scores, lists. */
typedef struct choice {
    int32_t n_heads, rows, pos, block_tokens, n_blocks;
    int32_t nope_dim, rope_dim, v_dim, latent_dim;
} choice;

static choice choice_of(const fl_kernel_bench *b) {
    choice c = {CHOICE_HEADS, 16384, 245760, 64, 0, 128, 64, 128, 512};
    if (!b->be->device) {
        c.n_heads = 2;
        c.rows = FL_ATTN_LIST_ROWS;
        c.pos = 4 * FL_ATTN_LIST_ROWS;
    }
    c.n_blocks = (c.pos + c.rows) / c.block_tokens;
    return c;
}

typedef struct mean_args {
    fl_block_mean_args mean;
    fl_matmul_args kv_b;
    fl_weight w;
} mean_args;

static fl_err run_mean(fl_backend *be, const void *args) {
    const mean_args *a = args;
    FL_TRY(be->op->block_mean(be, &a->mean));
    return be->op->matmul(be, &a->kv_b);
}

static fl_err time_mean(fl_kernel_bench *b, const choice *c) {
    fl_backend *be = b->be;
    const int64_t act = (int64_t)fl_dtype_bytes(be->act_dtype);
    int32_t before = c->pos / c->block_tokens, n = c->n_heads * (c->nope_dim + c->v_dim),
            n_pages = (c->pos + c->rows) / FL_KV_PAGE_TOKENS;
    mean_args a = {.w = {.n = n, .k = c->latent_dim}};
    a.mean = (fl_block_mean_args){
        .kv = {.latent_dim = c->latent_dim, .rope_dim = c->rope_dim, .format = FL_KV_BF16},
        .block_tokens = c->block_tokens,
        .block = before,
        .n_blocks = c->n_blocks - before};
    void *pool, *latent;
    a.mean.kv.page_stride_bytes = fl_kv_piece_bytes(&a.mean.kv);
    FL_TRY(fl_kernel_take_random(b, n_pages * a.mean.kv.page_stride_bytes / 2, FL_DTYPE_BF16, 1, &pool));
    a.mean.kv.base = pool;
    FL_TRY(fl_kernel_take_pages(b, n_pages, &a.mean.pages));
    FL_TRY(fl_kernel_take_random(b, (int64_t)c->n_blocks * c->latent_dim, be->act_dtype, 1, &latent));
    FL_TRY(fl_kernel_take(b, (int64_t)a.mean.n_blocks * c->rope_dim * act, &a.mean.k_pe));
    a.mean.latent = (uint8_t *)latent + (int64_t)before * c->latent_dim * act;
    int64_t w_elements =
        fl_backend_weight_bytes(be, n, c->latent_dim) / (int64_t)fl_dtype_bytes(be->layout.dtype);
    FL_TRY(fl_kernel_take_random(b, w_elements, be->layout.dtype, 1 / sqrt(c->latent_dim), &a.w.data));
    a.kv_b = (fl_matmul_args){.x = latent,
                              .x_stride = c->latent_dim,
                              .w = &a.w,
                              .n_groups = 1,
                              .rows = c->n_blocks,
                              .out = FL_MATMUL_ACT,
                              .y_stride = n};
    FL_TRY(fl_kernel_take(b, (int64_t)c->n_blocks * n * act, &a.kv_b.y));
    fl_cost mean = fl_block_mean_cost(&a.mean), kv_b = fl_matmul_cost(&a.kv_b);
    fl_cost_add(&mean, kv_b);
    const fl_kernel_case timed = {
        .name = "blocks-mean", .op = "block_mean, matmul", .run = run_mean, .args = &a, .useful = mean};
    return fl_kernel_time(b, &timed, "%d new of %d blocks of %d, bf16 pages, kv_b of all for %d heads",
                          a.mean.n_blocks, c->n_blocks, c->block_tokens, c->n_heads);
}

static fl_err run_score(fl_backend *be, const void *args) {
    return be->op->block_score(be, args);
}

/* Named for how the backend scores heads of this shape. */
static const char *score_name(const fl_kernel_bench *b, const choice *c) {
    const fl_block_score_args heads = {.nope_dim = c->nope_dim, .rope_dim = c->rope_dim};
    return fl_block_score_by_codes(b->be, &heads) ? "blocks-score-fp8" : "blocks-score";
}

static fl_err time_score(fl_kernel_bench *b, const choice *c) {
    fl_dtype act = b->be->act_dtype;
    int32_t qk = c->nope_dim + c->rope_dim;
    int64_t lists = (int64_t)(c->rows / FL_ATTN_LIST_ROWS) * c->n_heads;
    void *q, *kv, *k_pe, *score;
    fl_block_score_args a = {.rows = c->rows,
                             .pos = c->pos,
                             .n_heads = c->n_heads,
                             .nope_dim = c->nope_dim,
                             .rope_dim = c->rope_dim,
                             .v_dim = c->v_dim,
                             .block_tokens = c->block_tokens,
                             .n_blocks = c->n_blocks};
    FL_TRY(fl_kernel_take_random(b, (int64_t)c->rows * c->n_heads * qk, act, score_deviation / sqrt(qk), &q));
    FL_TRY(
        fl_kernel_take_random(b, (int64_t)c->n_blocks * c->n_heads * (c->nope_dim + c->v_dim), act, 1, &kv));
    FL_TRY(fl_kernel_take_random(b, (int64_t)c->n_blocks * c->rope_dim, act, 1, &k_pe));
    FL_TRY(fl_kernel_take(b, lists * c->n_blocks * (int64_t)sizeof(float), &score));
    FL_TRY(fl_kernel_take(b, fl_block_score_scratch_bytes(&a), &a.scratch));
    a.q = q;
    a.kv = kv;
    a.k_pe = k_pe;
    a.score = score;
    const fl_kernel_case timed = {.name = score_name(b, c),
                                  .op = "block_score",
                                  .run = run_score,
                                  .args = &a,
                                  .useful = fl_block_score_cost(&a),
                                  .fp8 = fl_block_score_by_codes(b->be, &a)};
    return fl_kernel_time(b, &timed, "%d rows at %d, %d heads, %d blocks of %d", c->rows, c->pos, c->n_heads,
                          c->n_blocks, c->block_tokens);
}

static fl_err run_select(fl_backend *be, const void *args) {
    return be->op->block_select(be, args);
}

/* Of normal scores with deviation 2 some 4% lie within 3.2 of the largest. */
static fl_err time_select(fl_kernel_bench *b, const choice *c) {
    const double deviation = 2;
    float alpha[CHOICE_HEADS];
    int64_t lists = (int64_t)(c->rows / FL_ATTN_LIST_ROWS) * c->n_heads;
    void *score, *log2_alpha, *ids, *n;
    int32_t all = (c->pos + c->rows) / FL_KV_PAGE_TOKENS;
    fl_block_select_args a = {
        .rows = c->rows,
        .pos = c->pos,
        .n_heads = c->n_heads,
        .block_tokens = c->block_tokens,
        .n_blocks = c->n_blocks,
        .sink_tokens = 64,
        .window_tokens = 1024,
        .list = {.capacity = all / 8 < 64 ? 64 : all / 8, .planned_blocks = all / 25.0}};
    for (int32_t i = 0; i < c->n_heads; i++) alpha[i] = -3.2f;
    FL_TRY(fl_kernel_take_random(b, lists * c->n_blocks, FL_DTYPE_F32, deviation, &score));
    FL_TRY(fl_kernel_take_copy(b, alpha, c->n_heads * (int64_t)sizeof *alpha, &log2_alpha));
    FL_TRY(fl_kernel_take(b, lists * a.list.capacity * (int64_t)sizeof *a.list.ids, &ids));
    FL_TRY(fl_kernel_take(b, lists * (int64_t)sizeof *a.list.n, &n));
    a.score = score;
    a.log2_alpha = log2_alpha;
    a.list.ids = ids;
    a.list.n = n;
    const fl_kernel_case timed = {.name = "blocks-select",
                                  .op = "block_select",
                                  .run = run_select,
                                  .args = &a,
                                  .useful = fl_block_select_cost(&a)};
    return fl_kernel_time(b, &timed, "%d rows at %d, %d heads, %d blocks of %d", c->rows, c->pos, c->n_heads,
                          c->n_blocks, c->block_tokens);
}

/* ---- attn_absorbed ----------------------------------------------------------------------------------------------- */

enum {
    ABSORBED_TIMELINES_MAX = 64,
    ABSORBED_COLD = 200 << 20 /* bytes that calls read in turn, so that none finds its keys in a cache */
};

/* The last rows of timelines of so many tokens; of several, one row each. */
typedef struct absorbed_case {
    const char *name;
    int32_t tokens, rows, timelines, n_heads;
    fl_kv_format format;
} absorbed_case;

static const absorbed_case absorbed_cases[] = {
    {"absorbed-512k-16h-int4", 524288, 1, 1, 16, FL_KV_INT4},
    {"absorbed-512k-16h-fp8", 524288, 1, 1, 16, FL_KV_FP8},
    {"absorbed-512k-16h-bf16", 524288, 1, 1, 16, FL_KV_BF16},
    {"absorbed-512k-16h-int4-16rows", 524288, 16, 1, 16, FL_KV_INT4},
    {"absorbed-512k-128h-int4", 524288, 1, 1, 128, FL_KV_INT4},
    {"absorbed-512k-128h-fp8", 524288, 1, 1, 128, FL_KV_FP8},
    {"absorbed-512k-128h-bf16", 524288, 1, 1, 128, FL_KV_BF16},
    {"absorbed-32k-16h-int4", 32768, 1, 1, 16, FL_KV_INT4},
    {"absorbed-32k-16h-fp8", 32768, 1, 1, 16, FL_KV_FP8},
    {"absorbed-32k-16h-bf16", 32768, 1, 1, 16, FL_KV_BF16},
    {"absorbed-32k-16h-int4-8rows", 32768, 8, 8, 16, FL_KV_INT4},
    {"absorbed-32k-16h-fp8-8rows", 32768, 8, 8, 16, FL_KV_FP8},
    {"absorbed-32k-16h-bf16-8rows", 32768, 8, 8, 16, FL_KV_BF16},
    {"absorbed-68k-16h-int4", 69632, 1, 1, 16, FL_KV_INT4},
    {"absorbed-68k-16h-int4-8rows", 69632, 8, 8, 16, FL_KV_INT4},
    {"absorbed-68k-16h-bf16", 69632, 1, 1, 16, FL_KV_BF16},
    {"absorbed-68k-16h-bf16-8rows", 69632, 8, 8, 16, FL_KV_BF16},
    {"absorbed-100k-128h-int4", 102400, 1, 1, 128, FL_KV_INT4},
    {"absorbed-100k-128h-bf16", 102400, 1, 1, 128, FL_KV_BF16},
    {"absorbed-100k-16h-int4", 102400, 1, 1, 16, FL_KV_INT4},
    {"absorbed-100k-16h-fp8", 102400, 1, 1, 16, FL_KV_FP8},
    {"absorbed-100k-16h-bf16", 102400, 1, 1, 16, FL_KV_BF16},
    {"absorbed-100k-16h-int4-8rows", 102400, 8, 8, 16, FL_KV_INT4},
    {"absorbed-100k-16h-fp8-8rows", 102400, 8, 8, 16, FL_KV_FP8},
    {"absorbed-100k-16h-bf16-8rows", 102400, 8, 8, 16, FL_KV_BF16},
};

/* Calls made in turn. */
typedef struct absorbed_calls {
    fl_kv_rows seqs[ABSORBED_TIMELINES_MAX];
    fl_attn_absorbed_args calls[ABSORBED_TIMELINES_MAX];
    int32_t n_calls;
    int32_t *turn;
} absorbed_calls;

static fl_err run_absorbed(fl_backend *be, const void *args) {
    const absorbed_calls *c = args;
    *c->turn = (*c->turn + 1) % c->n_calls;
    return be->op->attn_absorbed(be, &c->calls[*c->turn]);
}

/* Pages of `tokens` random latents, written in pieces by the op that writes them. */
static fl_err take_pages_written(fl_kernel_bench *b, fl_kv_layer *kv, int32_t tokens, const int32_t **pages) {
    enum { PIECE = 65536 };
    int32_t n_pages = tokens / FL_KV_PAGE_TOKENS, piece = tokens < PIECE ? tokens : PIECE;
    void *latent, *k_pe, *table, *pool;
    kv->page_stride_bytes = fl_kv_piece_bytes(kv);
    FL_TRY(fl_kernel_take(b, n_pages * kv->page_stride_bytes, &pool));
    kv->base = pool;
    FL_TRY(fl_kernel_take_pages(b, n_pages, pages));
    FL_TRY(fl_kernel_take_random(b, (int64_t)piece * kv->latent_dim, b->be->act_dtype, 1, &latent));
    FL_TRY(fl_kernel_take_random(b, (int64_t)piece * kv->rope_dim, FL_DTYPE_F32, 1, &k_pe));
    FL_TRY(fl_kernel_take_random(b, (int64_t)piece * kv->rope_dim, FL_DTYPE_F32, sqrt(0.5), &table));
    for (int32_t pos = 0; pos < tokens; pos += piece) {
        const fl_kv_rows seq = {
            .n_rows = tokens - pos < piece ? tokens - pos : piece, .pos = pos, .pages = *pages};
        FL_TRY(b->be->op->kv_write(b->be, &(fl_kv_write_args){.latent = latent,
                                                              .latent_stride = kv->latent_dim,
                                                              .k_pe = k_pe,
                                                              .k_pe_stride = kv->rope_dim,
                                                              .table = table,
                                                              .kv = *kv,
                                                              .seqs = &seq,
                                                              .n_seqs = 1}));
    }
    return b->be->wait ? b->be->wait(b->be) : FL_ERR_OK;
}

/* Calls like `a` over all timelines, each of so many tokens, that its pages hold. */
static void make_absorbed_calls(const absorbed_case *c, int32_t tokens, int32_t n_timelines,
                                const fl_attn_absorbed_args *a, absorbed_calls *out) {
    int32_t rows = c->rows / c->timelines;
    const int32_t *pages = a->seqs->pages;
    for (int32_t i = 0; i < n_timelines; i++)
        out->seqs[i] = (fl_kv_rows){.row = i % c->timelines * rows,
                                    .n_rows = rows,
                                    .pos = tokens - rows,
                                    .pages = pages + (int64_t)i * (tokens / FL_KV_PAGE_TOKENS)};
    for (out->n_calls = 0; out->n_calls < n_timelines / c->timelines; out->n_calls++) {
        fl_attn_absorbed_args *call = &out->calls[out->n_calls];
        *call = *a;
        call->seqs = out->seqs + out->n_calls * c->timelines;
        call->n_seqs = c->timelines;
    }
}

static int32_t absorbed_timelines(const fl_kernel_bench *b, const absorbed_case *c, const fl_kv_layer *kv) {
    int64_t call_bytes = c->timelines * (int64_t)c->tokens / FL_KV_PAGE_TOKENS * fl_kv_piece_bytes(kv);
    int32_t calls = b->be->device ? (int32_t)(ABSORBED_COLD / call_bytes) + 1 : 1;
    return calls * c->timelines;
}

static fl_err time_absorbed(fl_kernel_bench *b, const absorbed_case *c) {
    int32_t tokens = b->be->device ? c->tokens : 1024, heads = b->be->device ? c->n_heads : 4, rows = c->rows;
    int32_t turn = 0;
    fl_dtype act = b->be->act_dtype;
    fl_kv_rows first = {0};
    absorbed_calls calls = {.turn = &turn};
    fl_attn_absorbed_args a = {.seqs = &first,
                               .rows = rows,
                               .n_heads = heads,
                               .kv = {.latent_dim = 512,
                                      .rope_dim = 64,
                                      .format = c->format,
                                      .group = fl_kv_format_group(c->format, 512)}};
    int32_t width = a.kv.latent_dim + a.kv.rope_dim, n_timelines = absorbed_timelines(b, c, &a.kv);
    void *q;
    FL_TRY(take_pages_written(b, &a.kv, n_timelines * tokens, &first.pages));
    FL_TRY(fl_kernel_take_random(b, (int64_t)rows * heads * width, act, score_deviation / sqrt(width), &q));
    FL_TRY(fl_kernel_take(b, (int64_t)rows * heads * a.kv.latent_dim * (int64_t)fl_dtype_bytes(act), &a.out));
    FL_TRY(fl_kernel_take(b, fl_attn_absorbed_scratch_bytes(rows, heads, a.kv.latent_dim, tokens - 1),
                          &a.scratch));
    a.q = q;
    make_absorbed_calls(c, tokens, n_timelines, &a, &calls);
    const fl_kernel_case timed = {.name = c->name,
                                  .op = "attn_absorbed",
                                  .run = run_absorbed,
                                  .args = &calls,
                                  .useful = fl_attn_absorbed_cost(&calls.calls[0])};
    return fl_kernel_time(b, &timed, "%d row%s%s, %d keys in %s, %d heads of %d+%d", rows,
                          rows > 1 ? "s" : "", c->timelines > 1 ? " of as many requests" : "", tokens,
                          fl_kv_format_name(c->format), heads, a.kv.latent_dim, a.kv.rope_dim);
}

fl_err fl_kernel_attend_cases(fl_kernel_bench *b) {
    const choice c = choice_of(b);
    for (size_t i = 0; i < sizeof prefill_cases / sizeof *prefill_cases; i++) {
        const prefill_case small = small_prefill(&prefill_cases[i]);
        const prefill_case *p = b->be->device ? &prefill_cases[i] : &small;
        if (fl_kernel_begin(b, p->name)) FL_TRY(fl_kernel_end(b, p->name, time_prefill(b, p)));
    }
    if (fl_kernel_begin(b, "blocks-mean")) FL_TRY(fl_kernel_end(b, "blocks-mean", time_mean(b, &c)));
    const char *score = score_name(b, &c);
    if (fl_kernel_begin(b, score)) FL_TRY(fl_kernel_end(b, score, time_score(b, &c)));
    if (fl_kernel_begin(b, "blocks-select")) FL_TRY(fl_kernel_end(b, "blocks-select", time_select(b, &c)));
    for (size_t i = 0; i < sizeof absorbed_cases / sizeof *absorbed_cases; i++) {
        const absorbed_case *a = &absorbed_cases[i];
        if (fl_kernel_begin(b, a->name)) FL_TRY(fl_kernel_end(b, a->name, time_absorbed(b, a)));
    }
    return FL_ERR_OK;
}
