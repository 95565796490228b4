#include "engine/graph_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/order.h"

typedef struct check {
    fl_engine *e;
    int32_t rows;
    fl_step step;
    double *times_s; /* [runs] */
    float *wanted;   /* [rows][n_vocab] what the eager step gave */
} check;

/* Rows of one timeline as if each were a request's: row i writes its own position and reads those before it. */
static void build(check *c, int32_t pos) {
    fl_engine *e = c->e;
    const fl_rope *rope = &e->attending.rope;
    e->rotated = (fl_rotated){0}; /* not by what follows */
    for (int32_t i = 0; i < fl_pages_of((int64_t)pos + 1); i++) e->found_pages[i] = i;
    for (int32_t i = 0; i < c->rows; i++) {
        int32_t at = pos - (c->rows - 1) + i;
        int64_t first = (int64_t)i * rope->dim;
        e->ids[i] = (1 + 7919 * i) % e->config->vocab_size;
        e->logit_rows[i] = i;
        e->seqs[i] = (fl_kv_rows){.row = i, .n_rows = 1, .pos = at, .pages = e->found_pages};
        fl_rope_table(rope, FL_ROTATION_EXACT, at, 1, e->rope_table + first);
        if (rope->near_tokens == 0) continue;
        fl_rope_table(rope, FL_ROTATION_FAR_QUERY, at, 1, e->far_q_table + first);
        fl_rope_table(rope, FL_ROTATION_FAR_KEY, at, 1, e->far_k_table + first);
    }
    c->step = (fl_step){.rows = c->rows,
                        .ids = e->ids,
                        .rope_table = e->rope_table,
                        .far_q_table = e->far_q_table,
                        .far_k_table = e->far_k_table,
                        .attend = &e->attending.attend,
                        .seqs = e->seqs,
                        .n_seqs = c->rows,
                        .kv = e->kv,
                        .softmax_scale = e->attending.softmax_scale,
                        .logit_rows = e->logit_rows,
                        .n_logit_rows = c->rows,
                        .logits = e->logits_memory};
}

static fl_err run(check *c, double *time_s) {
    double start_s = fl_now_s();
    FL_TRY(fl_forward(c->e->weights, &c->step, &c->e->arena));
    *time_s = fl_now_s() - start_s;
    return FL_ERR_OK;
}

static fl_err run_many(check *c, int32_t runs, double *median_s) {
    for (int32_t i = 0; i < runs; i++) FL_TRY(run(c, &c->times_s[i]));
    *median_s = fl_upper_median(c->times_s, runs);
    return FL_ERR_OK;
}

static int64_t free_bytes(const fl_engine *e) {
    return e->be->free_bytes ? e->be->free_bytes(e->be) : 0;
}

/* Of the first rows of logits. */
static int64_t count_different(const fl_engine *e, const float *wanted, int32_t rows) {
    const uint32_t *found = e->logits_memory, *expected = (const uint32_t *)wanted;
    int64_t n = 0;
    for (int64_t i = 0; i < (int64_t)rows * e->config->vocab_size; i++) n += found[i] != expected[i];
    return n;
}

static fl_err need_graphs(const fl_engine *e) {
    if (e->graphs) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED, "backend %s keeps no graphs, or was told not to", e->be->name);
}

static fl_err run_both(check *c, int32_t runs, fl_graph_bench *out) {
    size_t bytes = (size_t)c->rows * (size_t)c->e->config->vocab_size * sizeof(float);
    double plain_s;
    FL_TRY(run(c, &plain_s)); /* warm */
    FL_TRY(run_many(c, runs, &out->eager_s));
    memcpy(c->wanted, c->e->logits_memory, bytes);
    c->step.graphs = c->e->graphs;
    FL_TRY(run(c, &plain_s));
    int64_t before = free_bytes(c->e);
    FL_TRY(run(c, &out->first_graph_s));
    out->graph_bytes = before - free_bytes(c->e);
    FL_TRY(run_many(c, runs, &out->graph_s));
    out->n_different = count_different(c->e, c->wanted, c->rows);
    const char *fault = fl_graphs_get_info(c->e->graphs).fault;
    if (fault) snprintf(out->fault, sizeof out->fault, "%s", fault);
    return FL_ERR_OK;
}

fl_err fl_graph_bench_run(fl_engine *e, int32_t rows, int32_t pos, int32_t runs, fl_graph_bench *out) {
    check c = {.e = e, .rows = rows};
    *out = (fl_graph_bench){0};
    FL_TRY(need_graphs(e));
    if (rows < 1 || rows > FL_GRAPH_ROWS_MAX || pos < rows - 1 || pos >= e->ctx_tokens || runs < 1)
        return FL_FAIL(FL_ERR_INVALID, "shape: expected 1..%d rows at a position below %d, found %d:%d",
                       FL_GRAPH_ROWS_MAX, e->ctx_tokens, rows, pos);
    c.times_s = calloc((size_t)runs, sizeof *c.times_s);
    c.wanted = calloc((size_t)rows * (size_t)e->config->vocab_size, sizeof *c.wanted);
    build(&c, pos);
    fl_err err = c.times_s && c.wanted ? run_both(&c, runs, out) : FL_FAIL(FL_ERR_NOMEM, "%d rows", rows);
    free(c.times_s);
    free(c.wanted);
    return err;
}

/* ---- a piece of a prompt ---- */

typedef struct piece_check {
    fl_engine *e;
    const fl_graph_piece *piece;
    int32_t *ids;
    double *times_s;          /* [runs] */
    float *unfilled, *filled; /* [rows][n_vocab] */
    int32_t rows;             /* with logits: the piece's last and the answers' */
} piece_check;

static fl_err run_piece(piece_check *c, fl_step_way way, int32_t runs, double *median_s) {
    for (int32_t i = 0; i < runs; i++) FL_TRY(fl_step_try_piece(c->e, c->piece, c->ids, way, &c->times_s[i]));
    *median_s = fl_upper_median(c->times_s, runs);
    return FL_ERR_OK;
}

static fl_err run_ways(piece_check *c, int32_t runs, fl_graph_bench *out) {
    size_t bytes = (size_t)c->rows * (size_t)c->e->config->vocab_size * sizeof(float);
    double first_s;
    FL_TRY(run_piece(c, FL_STEP_AS_IT_IS, 1, &first_s)); /* warm */
    FL_TRY(run_piece(c, FL_STEP_AS_IT_IS, runs, &out->unfilled_s));
    memcpy(c->unfilled, c->e->logits_memory, bytes);
    FL_TRY(run_piece(c, FL_STEP_FILLED, 1, &first_s));
    FL_TRY(run_piece(c, FL_STEP_FILLED, runs, &out->eager_s));
    memcpy(c->filled, c->e->logits_memory, bytes);
    out->n_unfilled_different = count_different(c->e, c->unfilled, c->rows);
    FL_TRY(run_piece(c, FL_STEP_RECORDED, 1, &first_s));
    int64_t before = free_bytes(c->e);
    FL_TRY(run_piece(c, FL_STEP_RECORDED, 1, &out->first_graph_s));
    out->graph_bytes = before - free_bytes(c->e);
    const char *fault = fl_graphs_get_info(c->e->graphs).fault;
    if (fault) {
        snprintf(out->fault, sizeof out->fault, "%s", fault);
        return FL_ERR_OK;
    }
    FL_TRY(run_piece(c, FL_STEP_RECORDED, runs, &out->graph_s));
    out->n_different = count_different(c->e, c->filled, c->rows);
    return FL_ERR_OK;
}

static fl_err check_piece(const fl_engine *e, const fl_graph_piece *p, int32_t runs) {
    int32_t rows = p->document_rows + p->tail_rows, tile = fl_tile_rows(e);
    if (rows < 1 || p->pos > e->ctx_tokens - rows || p->document_rows % tile != 0 || runs < 1 ||
        (p->document_rows > 0 && p->pos % tile != 0))
        return FL_FAIL(
            FL_ERR_INVALID,
            "shape: expected rows before position %d, document rows in multiples of %d at a multiple "
            "of it, found %d+%d@%d",
            e->ctx_tokens, tile, p->document_rows, p->tail_rows, p->pos);
    /* Rows that fill the piece write the rest of its last page. */
    int32_t end = fl_pages_of((int64_t)p->pos + rows) * FL_KV_PAGE_TOKENS;
    if (p->decode_rows == 0 || (p->decode_rows <= FL_GRAPH_ROWS_MAX && p->decode_pos < e->ctx_tokens &&
                                p->decode_pos - (p->decode_rows - 1) >= end))
        return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INVALID, "shape: expected 1..%d answers at positions %d..%d, found %d up to %d",
                   FL_GRAPH_ROWS_MAX, end, e->ctx_tokens - 1, p->decode_rows, p->decode_pos);
}

fl_err fl_graph_bench_piece(fl_engine *e, const fl_graph_piece *piece, int32_t runs, fl_graph_bench *out) {
    piece_check c = {.e = e, .piece = piece, .rows = 1 + piece->decode_rows};
    int32_t rows = piece->document_rows + piece->tail_rows;
    int64_t logits = (int64_t)c.rows * e->config->vocab_size;
    *out = (fl_graph_bench){0};
    FL_TRY(need_graphs(e));
    FL_TRY(check_piece(e, piece, runs));
    c.ids = calloc((size_t)rows, sizeof *c.ids);
    c.times_s = calloc((size_t)runs, sizeof *c.times_s);
    c.unfilled = calloc(2 * (size_t)logits, sizeof *c.unfilled);
    fl_err err = c.ids && c.times_s && c.unfilled ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "%d rows", rows);
    if (err == FL_ERR_OK) {
        c.filled = c.unfilled + logits;
        for (int32_t i = 0; i < rows; i++) c.ids[i] = (1 + 7919 * i) % e->config->vocab_size;
        err = run_ways(&c, runs, out);
    }
    free(c.ids);
    free(c.times_s);
    free(c.unfilled);
    return err;
}
