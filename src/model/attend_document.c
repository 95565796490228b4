/* Document rows: many, non-absorbed. Keys and values of the visible tokens are rebuilt from the stored latents, split
 * by split, and go through the one kernel over one running state, in this order:
 *   anchors   compacted keys at multiples of anchor_step, those that are not near
 *   splits    the near keys, or those of listed blocks; splits that no row of the piece sees are left out
 *   means     one pseudo-key for each block that is not listed; on a device made together with the last split
 * The first call is the same for every row of a timeline however it is cut into steps: it holds position 0, where the
 * kernel takes the origin of a row's exponents from, by the exact rotation. */
#include "model/attention.h"

typedef enum call_kind { CALL_NONE, CALL_ANCHORS, CALL_SPLIT, CALL_MEANS } call_kind;

typedef struct call {
    call_kind kind;
    int32_t first; /* position of the first key; of means, number of the first block */
    int32_t n_keys;
    const fl_path *path;
} call;

/* Room for keys and values of one call on backends that take more than a few thousand at once. */
static const int64_t kv_bytes_max = (int64_t)8 << 30;

typedef struct document {
    fl_attention *t;
    const fl_kv_rows *piece;
    int32_t end;      /* position behind the last row */
    int32_t n_blocks; /* whole blocks before `end` */
    int32_t split;    /* keys of a call, at most: a multiple of FL_ATTN_SPLIT_TOKENS */
    int32_t most;     /* keys of a call that rebuilds them, at most */
    int32_t n_calls;  /* in all */
    int32_t n_done;   /* made so far, or counted so far while n_calls is 0 */
    bool counting;
    fl_attn_list list;
    void *mean_kv, *mean_k_pe[FL_PATHS_MAX]; /* of all blocks */
    void *latent, *k_pe, *kv;                /* keys and values in use */
    call loaded;                             /* which they are */
    fl_attn_prefill_args args;
    fl_attn_prefill_args held; /* a call that waits for the one over means, to be made together with it */
    bool holding;
} document;

/* ---- keys and values ---- */

/* The latents and one plane of k_pe of a call's keys, from the pages. */
static fl_err read_keys(const document *d, const call *c) {
    const fl_attention *t = d->t;
    fl_kv_read_args args = {.kv = *t->kv,
                            .pages = d->piece->pages,
                            .pos = c->first,
                            .n = c->n_keys,
                            .step = c->kind == CALL_ANCHORS ? t->attend->anchor_step : 1,
                            .latent = d->latent,
                            .k_pe = d->k_pe};
    args.kv.plane = c->path->k_plane;
    return t->w->be->op->kv_read(t->w->be, &args);
}

/* Keys and values of a call; what the call before it had is kept. */
static fl_err load_keys(document *d, const call *c) {
    bool again = d->loaded.kind == c->kind && d->loaded.first == c->first && d->loaded.n_keys == c->n_keys;
    if (again && d->loaded.path == c->path) return FL_ERR_OK;
    FL_TRY(read_keys(d, c));
    d->loaded = *c;
    if (again) return FL_ERR_OK;
    return fl_dense_run(d->t->w->be, &(fl_dense_args){.w = &d->t->layer->kv_b,
                                                      .x = {.act = d->latent},
                                                      .rows = c->n_keys,
                                                      .out = FL_MATMUL_ACT,
                                                      .y = d->kv});
}

static void use_means(document *d, const call *c) {
    const fl_attention *t = d->t;
    d->args.kv = fl_attention_at(t, d->mean_kv, (int64_t)c->first * t->layer->kv_b.n);
    d->args.k_pe = fl_attention_at(t, d->mean_k_pe[c->path->k_plane], (int64_t)c->first * t->rope);
    d->args.key_pos = c->first * t->attend->block_tokens;
    d->args.key_step = t->attend->block_tokens;
    d->args.key_bias = t->attend->mean_bias + (int64_t)t->layer_index * t->heads;
}

static fl_err use_tokens(document *d, const call *c) {
    const fl_attend *attend = d->t->attend;
    FL_TRY(load_keys(d, c));
    d->args.kv = d->kv;
    d->args.k_pe = d->k_pe;
    d->args.key_pos = c->first;
    d->args.key_step = c->kind == CALL_ANCHORS ? attend->anchor_step : 1;
    d->args.key_bias = NULL;
    d->args.view = fl_path_view(c->path, attend->view);
    d->args.view.far = c->kind == CALL_ANCHORS;
    return FL_ERR_OK;
}

/* ---- calls ---- */

/* The last call but one, with means behind it, on a device: both in one keep the running state on the chip there. */
static bool is_before_means(const document *d, const call *c) {
    return d->t->w->be->device && c->kind == CALL_SPLIT && d->n_done == d->n_calls - 1 && d->n_blocks > 0 &&
           !d->t->attend->drop_means;
}

static fl_err make_call(document *d, const call *c) {
    fl_attention *t = d->t;
    d->n_done++;
    if (d->counting) {
        if (c->kind == CALL_MEANS || c->n_keys <= d->most) return FL_ERR_OK;
        return FL_FAIL(FL_ERR_INTERNAL, "attention of %d keys in a call, at most %d", c->n_keys, d->most);
    }
    d->args.q = fl_attention_at(t, c->path->q, (int64_t)d->piece->row * t->heads * (t->nope + t->rope));
    d->args.n_keys = c->n_keys;
    d->args.means = c->kind == CALL_MEANS;
    if (d->args.means) use_means(d, c);
    else FL_TRY(use_tokens(d, c));
    d->args.first = d->n_done == 1;
    d->args.last = d->n_done == d->n_calls;
    if (is_before_means(d, c)) {
        d->held = d->args;
        d->holding = true;
        return FL_ERR_OK;
    }
    d->held.then = &d->args;
    return t->w->be->op->attn_prefill(t->w->be, d->holding ? &d->held : &d->args);
}

/* Whether a row of the piece may see a key of [first, first + n). */
static bool touches(const document *d, const fl_attn_view *v, int32_t first, int32_t n) {
    int32_t low = d->piece->pos, last = first + n - 1;
    int32_t nearest = low > last ? low - last : 0, farthest = d->end - 1 - first; /* distances there are */
    if (farthest < v->distance_first) return false;
    if (v->distance_end > 0 && nearest >= v->distance_end) return false;
    if (v->far || v->window == 0 || nearest < v->window || first < v->sinks) return true;
    return v->segment > 0 && last / v->segment >= low / v->segment;
}

static fl_attn_view view_of(const document *d, const fl_path *path, call_kind kind) {
    fl_attn_view view = fl_path_view(path, d->t->attend->view);
    view.far = kind == CALL_ANCHORS;
    return view;
}

/* Anchors `i` .. by every path on which a row sees one of them; the very first call in any case. */
static fl_err call_anchors(document *d, int32_t i, int32_t n) {
    const fl_attention *t = d->t;
    int32_t step = t->attend->anchor_step;
    for (int32_t p = 0; p < t->n_paths; p++) {
        fl_attn_view view = view_of(d, &t->paths[p], CALL_ANCHORS);
        if (d->n_done > 0 && !touches(d, &view, i * step, (n - 1) * step + 1)) continue;
        const call c = {.kind = CALL_ANCHORS, .first = i * step, .n_keys = n, .path = &t->paths[p]};
        FL_TRY(make_call(d, &c));
    }
    return FL_ERR_OK;
}

/* Keys [first, end) by one path, without the stretches of FL_ATTN_SPLIT_TOKENS that no row sees; the very first call in
 * any case. */
static fl_err call_keys(document *d, const fl_path *path, int32_t first, int32_t end) {
    fl_attn_view view = view_of(d, path, CALL_SPLIT);
    int32_t begin = first;
    for (int32_t i = first; i < end;) {
        int32_t n = end - i < FL_ATTN_SPLIT_TOKENS ? end - i : FL_ATTN_SPLIT_TOKENS;
        bool seen = (d->n_done == 0 && i == 0) || touches(d, &view, i, n);
        if (seen) i += n;
        if (i > begin && (!seen || i == end)) {
            const call c = {.kind = CALL_SPLIT, .first = begin, .n_keys = i - begin, .path = path};
            FL_TRY(make_call(d, &c));
        }
        if (!seen) begin = i += n;
    }
    return FL_ERR_OK;
}

static int32_t split_of(const document *d, int32_t left) {
    return left < d->split ? left : d->split;
}

static fl_err call_all(document *d, bool counting) {
    const fl_attention *t = d->t;
    int32_t step = t->attend->anchor_step, n_anchors = step > 0 ? (d->end + step - 1) / step : 0;
    d->counting = counting;
    d->n_done = 0;
    for (int32_t i = 0; i < n_anchors; i += d->split) FL_TRY(call_anchors(d, i, split_of(d, n_anchors - i)));
    for (int32_t i = 0; i < d->end; i += d->split)
        for (int32_t p = 0; p < t->n_paths; p++)
            FL_TRY(call_keys(d, &t->paths[p], i, i + split_of(d, d->end - i)));
    for (int32_t i = 0; i < d->n_blocks && !t->attend->drop_means; i += d->split) {
        /* Means are far by nature: the last path. */
        const call c = {CALL_MEANS, i, split_of(d, d->n_blocks - i), &t->paths[t->n_paths - 1]};
        FL_TRY(make_call(d, &c));
    }
    if (counting) d->n_calls = d->n_done;
    return FL_ERR_OK;
}

/* ---- blocks ---- */

/* Where the means of all blocks lie, the first `known` of them already: what the prompt's steps before left, or room
 * in the arena. */
static fl_err place_means(document *d, void **latent, int32_t *known) {
    fl_attention *t = d->t;
    const fl_kept_means *kept = &t->step->means;
    *known = 0;
    if (!kept->memory || t->step->n_document != 1) {
        FL_TRY(fl_attention_take(t, (int64_t)d->n_blocks * t->latent, latent));
        for (int32_t p = 0; p < t->n_paths; p++)
            FL_TRY(fl_attention_take(t, (int64_t)d->n_blocks * t->rope, &d->mean_k_pe[p]));
        return FL_ERR_OK;
    }
    if (d->n_blocks > kept->n_max)
        return FL_FAIL(FL_ERR_INTERNAL, "means of %d blocks, room for %d", d->n_blocks, kept->n_max);
    const fl_mean_shape shape = {t->latent, t->rope, t->n_paths, t->act_bytes};
    uint8_t *at = kept->memory + t->layer_index * fl_kept_means_bytes(&shape, kept->n_max);
    *latent = at;
    at += fl_kept_latent_bytes(&shape, kept->n_max);
    for (int32_t p = 0; p < t->n_paths; p++)
        d->mean_k_pe[p] = at + p * fl_kept_k_pe_bytes(&shape, kept->n_max);
    *known = kept->n_known < d->n_blocks ? kept->n_known : d->n_blocks;
    return FL_ERR_OK;
}

/* Means of all whole blocks, and what kv_b makes of them: the exact means of every head's keys and values. */
static fl_err make_means(document *d) {
    fl_attention *t = d->t;
    fl_backend *be = t->w->be;
    int32_t known;
    void *latent;
    FL_TRY(place_means(d, &latent, &known));
    FL_TRY(fl_attention_take(t, (int64_t)d->n_blocks * t->layer->kv_b.n, &d->mean_kv));
    for (int32_t p = 0; p < t->n_paths && known < d->n_blocks; p++) {
        fl_block_mean_args args = {.kv = *t->kv,
                                   .pages = d->piece->pages,
                                   .block_tokens = t->attend->block_tokens,
                                   .block = known,
                                   .n_blocks = d->n_blocks - known,
                                   .latent = fl_attention_at(t, latent, (int64_t)known * t->latent),
                                   .k_pe = fl_attention_at(t, d->mean_k_pe[p], (int64_t)known * t->rope)};
        args.kv.plane = p;
        FL_TRY(be->op->block_mean(be, &args));
    }
    return fl_dense_run(be, &(fl_dense_args){.w = &t->layer->kv_b,
                                             .x = {.act = latent},
                                             .rows = d->n_blocks,
                                             .out = FL_MATMUL_ACT,
                                             .y = d->mean_kv});
}

static fl_err score_blocks(document *d, float **score) {
    fl_attention *t = d->t;
    fl_backend *be = t->w->be;
    int64_t tiles = d->piece->n_rows / FL_ATTN_LIST_ROWS;
    FL_TRY(fl_arena_take(t->arena, tiles * t->heads * d->n_blocks, sizeof(float), score));
    fl_block_score_args args = {.rows = d->piece->n_rows,
                                .pos = d->piece->pos,
                                .n_heads = t->heads,
                                .nope_dim = t->nope,
                                .rope_dim = t->rope,
                                .v_dim = t->v,
                                .q = fl_attention_at(t, t->paths[0].q, /* continuous positions */
                                                     (int64_t)d->piece->row * t->heads * (t->nope + t->rope)),
                                .kv = d->mean_kv,
                                .k_pe = d->mean_k_pe[0],
                                .block_tokens = t->attend->block_tokens,
                                .n_blocks = d->n_blocks,
                                .score = *score};
    int64_t mark = fl_arena_mark(t->arena);
    FL_TRY(fl_arena_take(t->arena, fl_block_score_scratch_bytes(&args), 1, &args.scratch));
    FL_TRY(be->op->block_score(be, &args));
    fl_arena_reset(t->arena, mark);
    return FL_ERR_OK;
}

/* Lists for the piece's tiles: means, scores, selection. */
static fl_err make_lists(document *d) {
    fl_attention *t = d->t;
    fl_backend *be = t->w->be;
    const fl_attend *attend = t->attend;
    int64_t tiles = d->piece->n_rows / FL_ATTN_LIST_ROWS, at = (int64_t)t->layer_index * t->heads;
    d->n_blocks = d->end / attend->block_tokens;
    d->list.capacity = attend->list_capacity;
    d->list.planned_blocks =
        attend->planned_density * (d->piece->pos + 0.5 * d->piece->n_rows) / FL_KV_PAGE_TOKENS;
    FL_TRY(fl_arena_take(t->arena, tiles * t->heads * d->list.capacity, sizeof(uint16_t), &d->list.ids));
    FL_TRY(fl_arena_take(t->arena, tiles * t->heads, sizeof(int32_t), &d->list.n));
    FL_TRY(make_means(d));
    float *score;
    FL_TRY(score_blocks(d, &score));
    const fl_block_select_args select = {.rows = d->piece->n_rows,
                                         .pos = d->piece->pos,
                                         .n_heads = t->heads,
                                         .block_tokens = attend->block_tokens,
                                         .n_blocks = d->n_blocks,
                                         .score = score,
                                         .log2_alpha = attend->log2_alpha + at,
                                         .dense = attend->dense ? attend->dense + at : NULL,
                                         .sink_tokens = attend->sink_tokens,
                                         .window_tokens = attend->window_tokens,
                                         .density = attend->density ? attend->density + at : NULL,
                                         .random_seed = attend->random_seed,
                                         .list = d->list,
                                         .listed = attend->listed ? attend->listed + at : NULL,
                                         .visible = attend->listed ? attend->visible + t->layer_index : NULL,
                                         .overflow = attend->overflow};
    FL_TRY(be->op->block_select(be, &select));
    d->args.list = &d->list;
    return FL_ERR_OK;
}

/* Calls of the whole backend's size, but no more keys than memory was meant for. */
static int32_t split_tokens(const fl_attention *t) {
    int64_t key_bytes = (int64_t)t->layer->kv_b.n * t->act_bytes, most = t->w->be->split_tokens;
    int64_t fit = kv_bytes_max / key_bytes / FL_ATTN_SPLIT_TOKENS * FL_ATTN_SPLIT_TOKENS;
    if (fit < FL_ATTN_SPLIT_TOKENS) fit = FL_ATTN_SPLIT_TOKENS;
    return (int32_t)(fit < most ? fit : most);
}

/* Keys of the largest call, whatever the piece's position: of a window that of one whose edge cuts a stretch in its
 * first token. So what a piece takes never falls when rows or positions grow, and the plan's step, which has most of
 * both, takes most. */
static int32_t most_keys(const document *d) {
    const fl_attn_view *v = &d->t->attend->view;
    int32_t step = d->t->attend->anchor_step,
            anchors = step > 0 ? split_of(d, (d->end + step - 1) / step) : 0;
    int64_t keys = d->end, reach = v->window > v->segment ? v->window : v->segment;
    /* The stretch of position 0 may join those of the window: it has sinks, or is the very first call. */
    int64_t first = fl_align_up(v->sinks > 0 ? v->sinks : anchors == 0, FL_ATTN_SPLIT_TOKENS);
    if (v->window > 0 && reach + d->piece->n_rows + first < keys - FL_ATTN_SPLIT_TOKENS)
        keys = reach + d->piece->n_rows + first + FL_ATTN_SPLIT_TOKENS;
    if (keys > d->split) keys = d->split;
    return (int32_t)(keys > anchors ? keys : anchors);
}

static fl_err take_memory(document *d) {
    fl_attention *t = d->t;
    d->args.n_keys = d->most;
    FL_TRY(fl_attention_take(t, (int64_t)d->most * t->latent, &d->latent));
    FL_TRY(fl_attention_take(t, (int64_t)d->most * t->rope, &d->k_pe));
    FL_TRY(fl_attention_take(t, (int64_t)d->most * t->layer->kv_b.n, &d->kv));
    FL_TRY(fl_arena_take(t->arena, fl_attn_prefill_state_bytes(d->args.rows, d->args.n_heads, d->args.v_dim),
                         1, &d->args.state));
    if (t->w->be->device) return FL_ERR_OK; /* its kernel reads keys where they are */
    return fl_arena_take(t->arena, fl_attn_prefill_scratch_bytes(&d->args), 1, &d->args.scratch);
}

fl_err fl_attend_document(fl_attention *t, const fl_kv_rows *piece, const fl_inputs *out, float *lse) {
    int64_t mark = fl_arena_mark(t->arena);
    document d = {.t = t, .piece = piece, .end = piece->pos + piece->n_rows, .split = split_tokens(t)};
    d.args = (fl_attn_prefill_args){.rows = piece->n_rows,
                                    .pos = piece->pos,
                                    .n_heads = t->heads,
                                    .nope_dim = t->nope,
                                    .rope_dim = t->rope,
                                    .v_dim = t->v,
                                    .out = out->act,
                                    .out_codes = out->codes,
                                    .lse = lse};
    if (t->attend->blocks) FL_TRY(make_lists(&d));
    d.most = most_keys(&d);
    FL_TRY(call_all(&d, true));
    FL_TRY(take_memory(&d));
    FL_TRY(call_all(&d, false));
    fl_arena_reset(t->arena, mark);
    return FL_ERR_OK;
}
