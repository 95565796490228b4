/* Tail rows: few, over all stored keys, absorbed in the latent space. Where they see keys in several parts (two
 * rotations; a sparse tail), each part is a call, joined by log-sum-exp. */
#include "model/attention.h"

/* Rows a call of attn_absorbed takes, times the splits they see: bounds its partial results at any depth. Of several
 * timelines half as many. */
enum { ABSORBED_SPLIT_ROWS = 4096, ABSORBED_TIMELINES = 64 };

/* One call: some keys by one rotation. */
typedef struct part {
    const fl_path *path;
    void *q; /* [rows][heads][latent + rope] */
    fl_attn_view view;
    int32_t key_step;
    void *out;  /* [rows][heads][latent] */
    float *lse; /* [rows][heads]; NULL where there is one part */
} part;

typedef struct tail {
    fl_attention *t;
    int32_t row0, rows;
    part parts[FL_ATTN_MERGE_PARTS_MAX];
    int32_t n_parts;
    void *out;     /* [rows][heads][latent] */
    void *scratch; /* of every call */
} tail;

/* Queries of the tail rows in the latent space by one rotation: [q_nope absorbed | q_pe]. What rope rotates goes there
 * at once, the rest by way of path->q. */
static fl_err absorb_queries(const tail *a, const fl_path *path, void *q_latent) {
    const fl_attention *t = a->t;
    fl_backend *be = t->w->be;
    int32_t q_dim = t->nope + t->rope, wide = t->latent + t->rope;
    int64_t q_width = (int64_t)t->heads * q_dim;
    void *q = fl_attention_at(t, path->q, a->row0 * q_width);
    const fl_rope_args turn = {.x = t->q_raw + (a->row0 - t->q_raw_row) * q_width,
                               .x_stride = q_width,
                               .table = path->table + (int64_t)a->row0 * t->rope,
                               .rows = a->rows,
                               .n_heads = t->heads,
                               .nope_dim = t->nope,
                               .rope_dim = t->rope,
                               .scale = t->softmax_scale,
                               .y = q,
                               .y_stride = q_width,
                               .y_pe = fl_attention_at(t, q_latent, t->latent),
                               .y_pe_stride = (int64_t)t->heads * wide,
                               .y_pe_head_stride = wide};
    const fl_matmul_head_args absorb = {.x = q,
                                        .x_row_stride = q_width,
                                        .x_head_stride = q_dim,
                                        .w = t->layer->absorb,
                                        .n_heads = t->heads,
                                        .rows = a->rows,
                                        .y = q_latent,
                                        .y_row_stride = (int64_t)t->heads * wide,
                                        .y_head_stride = wide};
    FL_TRY(be->op->rope(be, &turn));
    return be->op->matmul_head(be, &absorb);
}

/* The parts of the keys that tail rows see, and their queries. */
static fl_err open_parts(tail *a) {
    fl_attention *t = a->t;
    const fl_attend *attend = t->attend;
    for (int32_t i = 0; i < t->n_paths; i++) {
        fl_attn_view near = {0}, far;
        void *q;
        FL_TRY(fl_attention_take(t, (int64_t)a->rows * t->heads * (t->latent + t->rope), &q));
        FL_TRY(absorb_queries(a, &t->paths[i], q));
        if (attend->tail_sparse) near = attend->view;
        far = near;
        far.far = true;
        a->parts[a->n_parts++] =
            (part){.path = &t->paths[i], .q = q, .view = fl_path_view(&t->paths[i], near)};
        if (attend->tail_sparse && attend->anchor_step > 0)
            a->parts[a->n_parts++] = (part){.path = &t->paths[i],
                                            .q = q,
                                            .view = fl_path_view(&t->paths[i], far),
                                            .key_step = attend->anchor_step};
    }
    return FL_ERR_OK;
}

/* Splits that a row of the piece sees at most. */
static int32_t splits_of(const fl_kv_rows *piece) {
    return (piece->pos + piece->n_rows) / FL_ATTN_ABSORBED_SPLIT_TOKENS + 1;
}

/* Consecutive tail rows, of one timeline or several, that a call takes. */
typedef struct group {
    fl_kv_rows seqs[ABSORBED_TIMELINES]; /* their rows count from the group's first */
    int32_t n_seqs, rows;
    int32_t splits; /* of the row that sees most */
} group;

/* A group against one part. `row`, of its first row, counts from row0. */
static fl_err attend_part(const tail *a, const part *p, const group *g, int64_t row) {
    const fl_attention *t = a->t;
    fl_attn_absorbed_args args = {.seqs = g->seqs,
                                  .n_seqs = g->n_seqs,
                                  .rows = g->rows,
                                  .n_heads = t->heads,
                                  .kv = *t->kv,
                                  .view = p->view,
                                  .key_step = p->key_step,
                                  .q = fl_attention_at(t, p->q, row * t->heads * (t->latent + t->rope)),
                                  .out = fl_attention_at(t, p->out, row * t->heads * t->latent),
                                  .lse = p->lse ? p->lse + row * t->heads : NULL,
                                  .scratch = a->scratch};
    args.kv.plane = p->path->k_plane;
    return t->w->be->op->attn_absorbed(t->w->be, &args);
}

static fl_err attend_group(const tail *a, const group *g, int64_t row) {
    for (int32_t i = 0; i < a->n_parts; i++) FL_TRY(attend_part(a, &a->parts[i], g, row));
    return FL_ERR_OK;
}

static fl_err merge_parts(const tail *a) {
    const fl_attention *t = a->t;
    fl_attn_merge_args merge = {
        .n_parts = a->n_parts, .rows = a->rows, .n_heads = t->heads, .dim = t->latent, .out = a->out};
    if (a->n_parts == 1) return FL_ERR_OK;
    for (int32_t i = 0; i < a->n_parts; i++) {
        merge.part[i] = a->parts[i].out;
        merge.part_lse[i] = a->parts[i].lse;
    }
    return t->w->be->op->attn_merge(t->w->be, &merge);
}

/* Results of the parts, and partial results of a call: those of the largest group that could be made of so many
 * rows with so many splits. So what a tail takes never falls when rows or positions grow, and the plan's step,
 * which has most of both, takes most. */
static fl_err take_results(tail *a) {
    fl_attention *t = a->t;
    const fl_step *step = t->step;
    int64_t widest = 1, units;
    for (int32_t i = step->n_document; i < step->n_seqs; i++) {
        int32_t splits = splits_of(&step->seqs[i]);
        widest = splits > widest ? splits : widest;
    }
    units = a->rows * widest < ABSORBED_SPLIT_ROWS ? a->rows * widest : ABSORBED_SPLIT_ROWS;
    if (units < widest) units = widest; /* one row at least */
    FL_TRY(fl_arena_take(t->arena, units, fl_attn_absorbed_scratch_bytes(1, t->heads, t->latent, 0),
                         &a->scratch));
    a->parts[0].out = a->out;
    for (int32_t i = 0; i < a->n_parts && a->n_parts > 1; i++) {
        part *p = &a->parts[i];
        FL_TRY(fl_attention_take(t, (int64_t)a->rows * t->heads * t->latent, &p->out));
        FL_TRY(fl_arena_take(t->arena, (int64_t)a->rows * t->heads, sizeof(float), &p->lse));
    }
    return FL_ERR_OK;
}

/* Rows of a timeline that sees `splits` splits which still fit; 0: the group is full. */
static int32_t room(const group *g, int32_t splits) {
    int32_t widest = g->splits > splits ? g->splits : splits; /* a row sees at least one */
    if (widest < 1) return 1;
    if (g->rows == 0) return ABSORBED_SPLIT_ROWS / widest > 0 ? ABSORBED_SPLIT_ROWS / widest : 1;
    int32_t most = ABSORBED_SPLIT_ROWS / 2 / widest - g->rows;
    return g->n_seqs < ABSORBED_TIMELINES && most > 0 ? most : 0;
}

/* Adds rows of a timeline from its row i on; returns how many were taken. */
static int32_t add_rows(group *g, const fl_kv_rows *piece, int32_t i) {
    int32_t splits = splits_of(piece), n = room(g, splits), first = piece->pos + i;
    if (n > piece->n_rows - i) n = piece->n_rows - i;
    if (n == 0) return 0;
    g->seqs[g->n_seqs++] = (fl_kv_rows){.row = g->rows,
                                        .n_rows = n,
                                        .pos = first,
                                        .pages = piece->pages,
                                        .pos_at = piece->pos_at ? piece->pos_at + i : NULL};
    g->rows += n;
    g->splits = splits > g->splits ? splits : g->splits;
    return n;
}

/* The tail rows in groups small enough that their partial results stay bounded. */
static fl_err attend_groups(const tail *a) {
    const fl_step *step = a->t->step;
    group g = {.n_seqs = 0};
    int64_t row = 0;
    for (int32_t s = step->n_document, i = 0; s < step->n_seqs;) {
        int32_t n = add_rows(&g, &step->seqs[s], i);
        i += n;
        if (i == step->seqs[s].n_rows) {
            i = 0;
            s++;
            if (s < step->n_seqs) continue;
        } else if (n > 0) {
            continue;
        }
        FL_TRY(attend_group(a, &g, row));
        row += g.rows;
        g = (group){.n_seqs = 0};
    }
    return FL_ERR_OK;
}

fl_err fl_attend_tail(fl_attention *t, int32_t row0, int32_t rows) {
    fl_backend *be = t->w->be;
    int64_t mark = fl_arena_mark(t->arena);
    tail a = {.t = t, .row0 = row0, .rows = rows};
    FL_TRY(fl_attention_take(t, (int64_t)rows * t->heads * t->latent, &a.out));
    FL_TRY(open_parts(&a));
    FL_TRY(take_results(&a));
    FL_TRY(attend_groups(&a));
    FL_TRY(merge_parts(&a));
    const fl_matmul_head_args back = {
        .x = a.out,
        .x_row_stride = (int64_t)t->heads * t->latent,
        .x_head_stride = t->latent,
        .w = t->layer->unabsorb,
        .n_heads = t->heads,
        .rows = rows,
        .y = fl_attention_at(t, t->out.act, (int64_t)(row0 - t->out_row) * t->heads * t->v),
        .y_row_stride = (int64_t)t->heads * t->v,
        .y_head_stride = t->v};
    FL_TRY(be->op->matmul_head(be, &back));
    fl_arena_reset(t->arena, mark);
    return FL_ERR_OK;
}
