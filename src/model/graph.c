#include "model/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FAULT_BYTES = 256,
    POSITION_STEPS = 8,
    BUCKET_STEPS = 8,        /* of so many steps a bucket has at most, */
    BUCKET_STEPS_BESIDE = 4, /* and beside answers */
    DOCUMENT_STEP = 128,
    TAIL_STEP = 8,
    TAIL_STEP_BEHIND = 64, /* of a tail behind document rows, beside which it weighs little */
    IDLE_STEPS = 64 * FL_GRAPHS_MAX,
    IDLE_STEPS_PLAIN = 8 * FL_GRAPHS_MAX /* of a shape that was seen once */
};

/* On a layer of so many FLOPs a device works far longer than the host issues its ops, about 0.2 ms: a recording gains
 * nothing. Tail rows alone are bound by the keys they read, long before their FLOPs are many. */
static const double LAYER_FLOPS_MAX = 3e11, TAIL_LAYER_FLOPS_MAX = 1e10;

typedef struct entry {
    fl_graph_shape shape;
    int64_t last_use;        /* 0 = free */
    fl_recording *recording; /* NULL after the first use */
} entry;

struct fl_graphs {
    fl_backend *be;
    int32_t ctx_tokens;
    uint8_t *host;
    int64_t host_bytes;
    entry list[FL_GRAPHS_MAX];
    int64_t clock;
    int64_t n_replayed, n_prompt_replayed, n_recorded, n_plain, n_kept, n_kept_most;
    char fault[FAULT_BYTES];
};

/* Ids, positions and wanted rows, up to three rotation tables, page tables; each from a multiple of 64 bytes on. */
static int64_t gathered_bytes(const fl_config *config, int32_t ctx_tokens) {
    int64_t rows = FL_GRAPH_TAIL_ROWS_MAX, timelines = 2 + FL_GRAPH_ROWS_MAX;
    int64_t table = rows * config->qk_rope_head_dim * (int64_t)sizeof(float);
    int64_t pages = ctx_tokens / FL_KV_PAGE_TOKENS + 1;
    return 3 * fl_align_up((rows + FL_GRAPH_ROWS_MAX) * (int64_t)sizeof(int32_t), 64) +
           3 * fl_align_up(table, 64) + timelines * fl_align_up(pages * (int64_t)sizeof(int32_t), 64);
}

fl_err fl_graphs_open(fl_backend *be, const fl_config *config, int32_t ctx_tokens, fl_graphs **out) {
    if (!be->record) return FL_FAIL(FL_ERR_UNSUPPORTED, "backend %s records no steps", be->name);
    fl_graphs *g = calloc(1, sizeof *g);
    if (!g) return FL_FAIL(FL_ERR_NOMEM, "graphs");
    g->be = be;
    g->ctx_tokens = ctx_tokens;
    g->host_bytes = gathered_bytes(config, ctx_tokens);
    fl_err err = fl_backend_alloc_host(be, g->host_bytes, (void **)&g->host);
    if (err != FL_ERR_OK) fl_graphs_close(g);
    else *out = g;
    return err;
}

static void drop(fl_graphs *g, entry *e) {
    if (e->recording) g->be->recording_close(g->be, e->recording);
    g->n_kept -= e->recording != NULL;
    *e = (entry){0};
}

void fl_graphs_forget(fl_graphs *g) {
    for (int32_t i = 0; g && i < FL_GRAPHS_MAX; i++) drop(g, &g->list[i]);
}

void fl_graphs_close(fl_graphs *g) {
    if (!g) return;
    fl_graphs_forget(g);
    if (g->host) fl_backend_free_host(g->be, g->host, g->host_bytes);
    free(g);
}

fl_graphs_info fl_graphs_get_info(const fl_graphs *g) {
    return (fl_graphs_info){.n_replayed = g->n_replayed,
                            .n_prompt_replayed = g->n_prompt_replayed,
                            .n_kept_most = g->n_kept_most,
                            .n_recorded = g->n_recorded,
                            .n_plain = g->n_plain,
                            .fault = g->fault[0] ? g->fault : NULL};
}

/* The next multiple of a step that is doubled until there are few. */
static int32_t bucket_of(int32_t rows, int32_t step, int32_t steps_max) {
    while (rows > steps_max * step) step *= 2;
    return (rows + step - 1) / step * step;
}

bool fl_graph_wants(const fl_attend *attend, const fl_graph_piece *piece, double layer_flops) {
    if (layer_flops > (piece->document_rows > 0 ? LAYER_FLOPS_MAX : TAIL_LAYER_FLOPS_MAX) || attend->probe)
        return false;
    return piece->document_rows <= FL_GRAPH_DOCUMENT_ROWS_MAX && piece->tail_rows <= FL_GRAPH_TAIL_ROWS_MAX &&
           piece->decode_rows <= FL_GRAPH_ROWS_MAX && piece->pos < FL_GRAPH_TOKENS_MAX &&
           piece->decode_pos < FL_GRAPH_TOKENS_MAX;
}

fl_graph_piece fl_graph_bucket(const fl_attend *attend, const fl_graph_piece *piece) {
    int32_t steps_max = piece->decode_rows > 0 ? BUCKET_STEPS_BESIDE : BUCKET_STEPS;
    int32_t tail_step = piece->document_rows > 0 ? TAIL_STEP_BEHIND : TAIL_STEP;
    fl_graph_piece out = *piece;
    if (!attend->blocks) out.document_rows = bucket_of(piece->document_rows, DOCUMENT_STEP, steps_max);
    out.tail_rows = bucket_of(piece->tail_rows, tail_step, steps_max);
    out.decode_rows = bucket_of(piece->decode_rows, 1, 1);
    return out;
}

bool fl_graphs_bucket(const fl_graphs *g, const fl_attend *attend, const fl_graph_piece *piece,
                      fl_graph_piece *out) {
    if (!g || g->fault[0] || g->be->watched) return false;
    *out = fl_graph_bucket(attend, piece);
    int32_t end = out->pos + out->document_rows + out->tail_rows;
    return out->tail_rows + out->decode_rows <= FL_GRAPH_TAIL_ROWS_MAX && end <= g->ctx_tokens &&
           end <= FL_GRAPH_TOKENS_MAX;
}

bool fl_graphs_take(const fl_graphs *g, const fl_step *step) {
    if (step->bucketed) return g && !g->be->watched;
    bool fits = g && !g->be->watched && step->n_document == 0 && step->rows <= FL_GRAPH_ROWS_MAX &&
                step->n_seqs == step->rows && step->n_logit_rows == step->rows;
    for (int32_t i = 0; fits && i < step->rows; i++)
        fits = step->seqs[i].row == i && step->logit_rows[i] == i && step->seqs[i].pos < g->ctx_tokens;
    return fits;
}

int32_t fl_graphs_ceiling(const fl_graphs *g, int32_t pos, bool beside) {
    int64_t step = FL_ATTN_ABSORBED_SPLIT_TOKENS, steps_max = beside ? 1 : POSITION_STEPS;
    while (2 * step * steps_max <= (int64_t)pos + 1) step *= 2;
    int64_t end = (pos / step + 1) * step;
    return (int32_t)(end < g->ctx_tokens ? end : g->ctx_tokens) - 1;
}

uint8_t *fl_graphs_host(const fl_graphs *g, int64_t *bytes) {
    *bytes = g->host_bytes;
    return g->host;
}

static bool is_same(const fl_graph_shape *a, const fl_graph_shape *b) {
    return a->rows == b->rows && a->document_rows == b->document_rows && a->document_pos == b->document_pos &&
           a->n_seqs == b->n_seqs && a->known_means == b->known_means && a->n_logit_rows == b->n_logit_rows &&
           a->ceiling == b->ceiling && a->arena_bytes == b->arena_bytes;
}

static bool is_decode(const fl_graph_shape *shape) {
    return shape->n_seqs == shape->rows;
}

/* An entry is kept for so many steps after its last use: more shapes than there are entries would otherwise drive one
 * another out, and making a recording takes as long as many steps. Answers come back a thousand times as often as a
 * prompt's piece: theirs may take the place of any of a prompt. */
static bool is_free(const fl_graphs *g, const entry *e, const fl_graph_shape *for_shape) {
    int64_t kept = e->recording ? IDLE_STEPS : IDLE_STEPS_PLAIN;
    return e->last_use == 0 || (is_decode(for_shape) && !is_decode(&e->shape)) ||
           g->clock - e->last_use >= kept;
}

/* The shape's entry; a new one takes the place of the free one not used for longest. NULL: all are in use. */
static entry *find(fl_graphs *g, const fl_graph_shape *shape) {
    entry *oldest = NULL;
    for (int32_t i = 0; i < FL_GRAPHS_MAX; i++) {
        entry *e = &g->list[i];
        if (e->last_use > 0 && is_same(&e->shape, shape)) return e;
        if (is_free(g, e, shape) && (!oldest || e->last_use < oldest->last_use)) oldest = e;
    }
    if (!oldest) return NULL;
    drop(g, oldest);
    oldest->shape = *shape;
    return oldest;
}

/* What fails here fails again or works when run plainly: no step is lost by it. */
static void record(fl_graphs *g, entry *e, fl_graph_fn *issue, void *context) {
    fl_err err = g->be->record(g->be);
    if (err == FL_ERR_OK) {
        g->be->recording = true;
        err = issue(context);
        g->be->recording = false;
        if (err != FL_ERR_OK) snprintf(g->fault, sizeof g->fault, "%s", fl_err_detail());
        fl_err end = g->be->record_end(g->be, err == FL_ERR_OK ? &e->recording : NULL);
        if (err != FL_ERR_OK) return;
        err = end;
    }
    if (err != FL_ERR_OK) {
        snprintf(g->fault, sizeof g->fault, "%s", fl_err_detail());
        return;
    }
    g->n_recorded++;
    if (++g->n_kept > g->n_kept_most) g->n_kept_most = g->n_kept;
}

/* A replay that the device refuses is no loss either, if the device still works. What its ops do wrong shows later. */
static fl_err replay(fl_graphs *g, entry *e) {
    fl_err err = g->be->replay(g->be, e->recording);
    if (err == FL_ERR_OK) return FL_ERR_OK;
    snprintf(g->fault, sizeof g->fault, "%s", fl_err_detail());
    drop(g, e);
    return g->be->wait(g->be) == FL_ERR_OK ? FL_ERR_AGAIN : err;
}

fl_err fl_graphs_run(fl_graphs *g, const fl_graph_shape *shape, fl_graph_fn *issue, void *context) {
    entry *e = find(g, shape);
    bool known = e && e->last_use > 0;
    g->clock++;
    if (e) e->last_use = g->clock;
    if (known && !e->recording && !g->fault[0]) record(g, e, issue, context);
    fl_err err = e && e->recording ? replay(g, e) : FL_ERR_AGAIN;
    if (err != FL_ERR_AGAIN) {
        g->n_replayed++;
        g->n_prompt_replayed += shape->n_seqs < shape->rows;
        return err;
    }
    g->n_plain++;
    return issue(context);
}
