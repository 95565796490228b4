#include "plan/guard.h"

#include <pthread.h>
#include <stdlib.h>

struct fl_guard {
    pthread_mutex_t lock; /* guards all below but the constants */
    fl_dry_run *dry;
    fl_config config; /* the first layers, of each kind at least one */
    int64_t level_bytes;
    int32_t tile_rows;
    fl_dry_rows known; /* a step without document rows that fits */
    fl_guard_counts counts;
};

/* Positions at which decoding is checked: all up to the next multiple are known to fit then. */
enum { POSITION_STEP = 4096 };

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t layers_of_each_kind(const fl_config *c) {
    int32_t n = 1;
    while (n < c->layers && fl_config_layer_is_moe(c, n) == fl_config_layer_is_moe(c, 0)) n++;
    return least(n + 1, c->layers);
}

static fl_err check_level(fl_guard *g, const fl_guard_options *o) {
    int32_t n = least(o->requests_max, FL_DECODE_ROWS_MAX);
    const fl_dry_rows rows = {.decode_rows = n, .decode_pos = o->ctx_tokens - 1, .n_logits = n};
    int64_t bytes;
    FL_TRY(fl_guard_need(g, &rows, &bytes));
    if (bytes <= g->level_bytes) return FL_ERR_OK;
    return FL_FAIL(
        FL_ERR_LIMIT,
        "scratch_bytes: expected at least the %lld bytes that a token of each of %d requests takes at "
        "the context's end, %d tokens; found %lld",
        (long long)bytes, n, o->ctx_tokens, (long long)g->level_bytes);
}

fl_err fl_guard_open(const fl_guard_options *o, fl_guard **out) {
    fl_guard *g = calloc(1, sizeof *g);
    if (!g) return FL_FAIL(FL_ERR_NOMEM, "guard");
    pthread_mutex_init(&g->lock, NULL);
    g->config = *o->config;
    g->config.layers = layers_of_each_kind(o->config);
    g->level_bytes = o->level_bytes;
    g->tile_rows = o->tile_rows;
    fl_kv_shape kv = *o->kv;
    kv.n_layers = g->config.layers;
    fl_err err = fl_dry_run_open(&g->config, o->like, &kv, o->attend, &g->dry);
    if (err == FL_ERR_OK) err = check_level(g, o);
    if (err != FL_ERR_OK) fl_guard_close(g);
    else *out = g;
    return err;
}

void fl_guard_close(fl_guard *g) {
    if (!g) return;
    fl_dry_run_close(g->dry);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static fl_err dry_run(fl_guard *g, const fl_dry_rows *rows, fl_dry_scratch *out) {
    pthread_mutex_lock(&g->lock);
    g->counts.run++;
    fl_err err = fl_dry_run_scratch(g->dry, rows, out);
    pthread_mutex_unlock(&g->lock);
    return err;
}

fl_err fl_guard_need(fl_guard *g, const fl_dry_rows *rows, int64_t *bytes) {
    fl_dry_scratch scratch;
    FL_TRY(dry_run(g, rows, &scratch));
    *bytes = scratch.peak_bytes + (rows->document_rows == 0 ? FL_GUARD_RECORDED_BYTES : 0);
    return FL_ERR_OK;
}

fl_err fl_guard_between(fl_guard *g, const fl_dry_rows *prompt, const fl_dry_rows *answers, bool *fits) {
    fl_dry_scratch outer;
    int64_t bytes;
    FL_TRY(dry_run(g, prompt, &outer));
    FL_TRY(fl_guard_need(g, answers, &bytes));
    *fits = outer.held_bytes + bytes <= g->level_bytes;
    return FL_ERR_OK;
}

static bool is_within(const fl_dry_rows *a, const fl_dry_rows *b) {
    return a->document_rows == 0 && a->tail_rows <= b->tail_rows &&
           a->tail_pos + a->tail_rows <= b->tail_pos + b->tail_rows && a->decode_rows <= b->decode_rows &&
           a->decode_pos <= b->decode_pos && a->n_logits <= b->n_logits;
}

/* Decoding is the same step at the next position, thousands of times a second: it is checked for many positions at
 * once. What a step takes never falls with its rows and positions. */
static fl_err check(fl_guard *g, const fl_dry_rows *rows, bool *fits) {
    fl_dry_rows step = *rows;
    int64_t bytes;
    pthread_mutex_lock(&g->lock);
    *fits = is_within(rows, &g->known);
    pthread_mutex_unlock(&g->lock);
    if (*fits) return FL_ERR_OK;
    bool many = step.document_rows == 0;
    if (many) step.decode_pos = (step.decode_pos / POSITION_STEP + 1) * POSITION_STEP;
    FL_TRY(fl_guard_need(g, &step, &bytes));
    *fits = bytes <= g->level_bytes;
    if (*fits && many) {
        pthread_mutex_lock(&g->lock);
        g->known = step;
        pthread_mutex_unlock(&g->lock);
    }
    if (*fits || !many || step.decode_pos == rows->decode_pos) return FL_ERR_OK;
    FL_TRY(fl_guard_need(g, rows, &bytes)); /* too much for the last of these positions: exactly then */
    *fits = bytes <= g->level_bytes;
    return FL_ERR_OK;
}

/* The next smaller step. False: there is none. */
static bool shrink(const fl_guard *g, fl_dry_rows *rows) {
    int32_t tile = g->tile_rows;
    if (rows->document_rows > 0 && rows->tail_rows > 0) {
        rows->tail_rows = 0; /* they can only come behind all of the document */
        return true;
    }
    if (rows->document_rows > tile) {
        rows->document_rows = rows->document_rows / 2 / tile * tile;
        if (rows->document_rows < tile) rows->document_rows = tile;
        return true;
    }
    if (rows->tail_rows <= 1) return false;
    rows->tail_rows /= 2;
    return true;
}

fl_err fl_guard_cut(fl_guard *g, fl_dry_rows *rows, bool *fits) {
    bool cut = false;
    FL_TRY(check(g, rows, fits));
    while (!*fits && shrink(g, rows)) {
        cut = true;
        rows->n_logits = least(rows->n_logits, rows->document_rows + rows->tail_rows + rows->decode_rows);
        rows->tail_pos = rows->document_rows > 0 ? rows->document_pos + rows->document_rows : rows->tail_pos;
        FL_TRY(check(g, rows, fits));
    }
    int32_t requests = rows->decode_rows + (rows->document_rows + rows->tail_rows > 0);
    pthread_mutex_lock(&g->lock);
    g->counts.cut += cut;
    g->counts.merged += *fits && requests > 1;
    g->counts.checked++;
    pthread_mutex_unlock(&g->lock);
    return FL_ERR_OK;
}

fl_err fl_guard_admit(fl_guard *g, int32_t document_end, int32_t end, bool scored) {
    const fl_dry_rows document = {.document_rows = g->tile_rows,
                                  .document_pos = document_end - g->tile_rows,
                                  .n_logits = scored ? g->tile_rows : 1},
                      tail = {.tail_rows = 1, .tail_pos = end - 1, .n_logits = 1};
    int64_t document_bytes = 0, tail_bytes;
    if (document_end >= g->tile_rows) FL_TRY(fl_guard_need(g, &document, &document_bytes));
    FL_TRY(fl_guard_need(g, &tail, &tail_bytes));
    if (document_bytes <= g->level_bytes && tail_bytes <= g->level_bytes) return FL_ERR_OK;
    return FL_FAIL(
        FL_ERR_LIMIT,
        "the smallest steps of it take %lld bytes (%d document rows before position %d) and %lld bytes (one "
        "row at position %d) of step scratch; %lld are reserved: raise scratch_bytes, or ask with less",
        (long long)document_bytes, document_end >= g->tile_rows ? g->tile_rows : 0, document_end,
        (long long)tail_bytes, end - 1, (long long)g->level_bytes);
}

fl_guard_counts fl_guard_get_counts(fl_guard *g) {
    pthread_mutex_lock(&g->lock);
    fl_guard_counts counts = g->counts;
    pthread_mutex_unlock(&g->lock);
    return counts;
}
