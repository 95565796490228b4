/* One step: at most one piece of one prompt (document rows, then tail rows) and one row of every decoding request. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/schedule.h"

enum { ROTATED_ROWS = 256 }; /* of a task */

typedef struct building {
    fl_engine *e;
    fl_request *prefill; /* or NULL */
    int32_t document_rows, tail_rows;
    fl_request *decode[FL_DECODE_ROWS_MAX];
    int32_t n_decode;
    int32_t rows, n_seqs, n_logits;
    int32_t last_row;    /* of the prompt's own */
    int32_t first_row;   /* of the engine's arrays */
    fl_kv_rows *seqs;    /* the engine's, */
    int32_t *logit_rows; /* alike */
    bool between;        /* the answers' tokens come between the prompt's layers, not with its rows */
    bool inner;          /* this is such a step of answers */
    bool plain;          /* no recording is made or used */
    bool bucketed;       /* the step's rows are filled up to those of a bucket: */
    fl_graph_piece bucket;
    double between_s;               /* it took so far */
    double layer_s;                 /* predicted, of the prompt's rows */
    int32_t n_scored, scored_index; /* scored rows of this step, which of the request's the first is */
    bool prompt_ends;
    fl_sampler_mark drawn; /* the sampler's rows before those of this step */
    int32_t layers_told;   /* by on_layer */
    double start_s;
    bool others;       /* more prompts could have had the step */
    double cost;       /* predicted FLOPs of the prefill rows, */
    double cost_after; /* and of what is left of the prompt behind them */
} building;

int32_t fl_step_rows_max(const fl_engine *e) {
    return e->span_tokens + FL_TAIL_ROWS_MAX;
}

/* Rotations of consecutive positions: sines in double, which all threads share where there are many. */
typedef struct rotating {
    const fl_engine *e;
    int32_t row, pos, n;
} rotating;

static void rotate_some(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const rotating *r = context;
    const fl_engine *e = r->e;
    const fl_rope *rope = &e->attending.rope;
    int32_t first = task * ROTATED_ROWS, n = r->n - first < ROTATED_ROWS ? r->n - first : ROTATED_ROWS;
    int64_t at = ((int64_t)r->row + first) * rope->dim;
    fl_rope_table(rope, FL_ROTATION_EXACT, r->pos + first, n, e->rope_table + at);
    if (rope->near_tokens == 0) return;
    fl_rope_table(rope, FL_ROTATION_FAR_QUERY, r->pos + first, n, e->far_q_table + at);
    fl_rope_table(rope, FL_ROTATION_FAR_KEY, r->pos + first, n, e->far_k_table + at);
}

static void rotate(fl_engine *e, int32_t row, int32_t pos, int32_t n) {
    rotating rows = {.e = e, .row = row, .pos = pos, .n = n};
    fl_pool_run(e->be->pool, (n + ROTATED_ROWS - 1) / ROTATED_ROWS, rotate_some, &rows);
}

/* Rows of the tables. Prompts begin at position 0 and at the first row: what a stretch of rows holds from the steps
 * before is kept in mind, and left as it is. */
static void rotate_rows(fl_engine *e, int32_t row, int32_t pos, int32_t n) {
    fl_rotated *known = &e->rotated;
    int32_t begin = known->row, end = begin + known->n, last = row + n;
    if (pos - row == known->pos - begin && row <= end && last >= begin) {
        if (row < begin) rotate(e, row, pos, begin - row);
        if (last > end) rotate(e, end, known->pos + known->n, last - end);
        if (row < begin) known->row = row;
        if (row < begin) known->pos = pos;
        known->n = (last > end ? last : end) - known->row;
        return;
    }
    rotate(e, row, pos, n);
    if (row >= end || last <= begin) {
        if (n > known->n) *known = (fl_rotated){row, pos, n};
    } else if (last < end && last - begin <= FL_DECODE_ROWS_MAX) { /* answers, before the next prompt */
        *known = (fl_rotated){last, known->pos + last - begin, end - last};
    } else if (row > begin) {
        known->n = row - begin;
    } else {
        *known = (fl_rotated){row, pos, n};
    }
}

static void add_rows(building *b, const fl_session *s, const int32_t *ids, int32_t pos, int32_t n) {
    fl_engine *e = b->e;
    int32_t row = b->first_row + b->rows;
    memcpy(e->ids + row, ids, (size_t)n * sizeof(int32_t));
    rotate_rows(e, row, pos, n);
    b->seqs[b->n_seqs++] = (fl_kv_rows){.row = b->rows, .n_rows = n, .pos = pos, .pages = s->pages};
    b->rows += n;
}

/* Rows of a prompt; those that fill its bucket come behind them. They belong to nobody: what they write behind the
 * piece's own pages goes to the spare page, and nothing looks at what they make. */
static void add_piece(building *b, const fl_session *s, const int32_t *ids, int32_t pos, int32_t n) {
    fl_engine *e = b->e;
    bool document = b->n_seqs == 0 && b->document_rows > 0;
    add_rows(b, s, ids, pos, n);
    b->last_row = b->rows - 1;
    if (!b->bucketed) return;
    fl_kv_rows *seq = &b->seqs[b->n_seqs - 1];
    int32_t *pages = e->bucket_pages + (document ? 0 : fl_pages_of(e->ctx_tokens));
    int32_t more = (document ? b->bucket.document_rows : b->bucket.tail_rows) - n;
    int32_t own = fl_pages_of((int64_t)pos + n), end = fl_pages_of((int64_t)pos + n + more);
    memcpy(pages, s->pages, (size_t)own * sizeof *pages);
    for (int32_t i = own; i < end; i++) pages[i] = e->spare_page;
    memset(e->ids + b->first_row + b->rows, 0, (size_t)more * sizeof *e->ids);
    rotate_rows(e, b->first_row + b->rows, pos + n, more);
    seq->pages = pages;
    seq->n_rows += more;
    b->rows += more;
}

/* All answers, or as many as there are rows for, in turns. */
static void choose(building *b, fl_request **run, int32_t n) {
    int32_t n_prefill = 0, first = b->e->next_turn < n ? b->e->next_turn : 0;
    for (int32_t i = 0; i < n; i++) {
        fl_request *r = run[(first + i) % n];
        n_prefill += r->phase == FL_PHASE_PREFILL;
        if (r->phase != FL_PHASE_DECODE || b->n_decode == FL_DECODE_ROWS_MAX) continue;
        b->decode[b->n_decode++] = r;
        b->e->next_turn = (first + i + 1) % n;
    }
    if (b->n_decode < FL_DECODE_ROWS_MAX) b->e->next_turn = 0;
    b->prefill = fl_schedule_pick(b->e, run, n);
    b->others = n_prefill > 1;
}

/* Row p is scored if it predicts one of the last n_scored prompt tokens. Cuts the piece so that no more of its rows are
 * than a step has logits for: document rows come in tiles, and scored ones without tail rows beside them. */
static void cut_scored(building *b, int32_t pos) {
    const fl_request *r = b->prefill;
    int32_t scored = fl_request_first_row(r), tail = pos + b->document_rows;
    if (r->n_scored == 0) return;
    if (b->document_rows > 0 && tail > scored) {
        int32_t before = scored - scored % fl_tile_rows(b->e) - pos;
        if (before > 0) b->document_rows = before;
        else if (b->document_rows > FL_SCORED_ROWS_MAX) b->document_rows = FL_SCORED_ROWS_MAX;
        b->tail_rows = 0;
        return;
    }
    int32_t most = (tail > scored ? tail : scored) + FL_SCORED_ROWS_MAX - tail;
    if (b->tail_rows > most) b->tail_rows = most;
}

/* Positions [first, end) of the piece that are scored. */
static void find_scored(const building *b, int32_t pos, int32_t *first, int32_t *end) {
    const fl_request *r = b->prefill;
    int32_t scored = fl_request_first_row(r);
    *first = pos > scored ? pos : scored;
    *end = pos + b->document_rows + b->tail_rows;
    if (*end > r->n_prompt - 1) *end = r->n_prompt - 1;
    if (r->n_scored == 0 || *end < *first) *end = *first;
}

/* Asks for the logits of the piece's scored rows. */
static void ask_scores(building *b, int32_t pos) {
    int32_t first, end;
    find_scored(b, pos, &first, &end);
    b->scored_index = first - fl_request_first_row(b->prefill);
    for (int32_t p = first; p < end; p++, b->n_scored++) b->logit_rows[b->n_logits++] = p - pos;
}

/* ---- what fits ---- */

/* The rows that answers have. A recorded step has room for positions up to a ceiling. */
static fl_dry_rows answer_rows(const building *b, bool alone) {
    fl_dry_rows rows = {.decode_rows = b->n_decode, .n_logits = b->n_decode};
    for (int32_t i = 0; i < b->n_decode; i++)
        if (b->decode[i]->session->n_tokens > rows.decode_pos)
            rows.decode_pos = b->decode[i]->session->n_tokens;
    if (b->e->graphs && alone) rows.decode_pos = fl_graphs_ceiling(b->e->graphs, rows.decode_pos, false);
    return rows;
}

/* The piece's rows, and those of the answers. */
static fl_dry_rows all_rows(const building *b, int32_t pos) {
    int32_t first, end;
    fl_dry_rows rows = answer_rows(b, false);
    find_scored(b, pos, &first, &end);
    rows.document_rows = b->document_rows;
    rows.document_pos = pos;
    rows.tail_rows = b->tail_rows;
    rows.tail_pos = pos + b->document_rows;
    rows.n_logits += end - first + (rows.tail_pos + rows.tail_rows == b->prefill->n_prompt);
    return rows;
}

/* No step takes more than the scratch that is reserved: the piece is cut until all fits. Where not even a tile
 * of it fits beside the answers, they and the prompt take turns. *fits false: no rows of the prompt in this
 * step. */
static fl_err fit_piece(building *b, int32_t pos, bool *fits) {
    fl_engine *e = b->e;
    for (int32_t i = 0; i < 2; i++) {
        fl_dry_rows rows = all_rows(b, pos);
        FL_TRY(fl_guard_cut(e->guard, &rows, fits));
        if (*fits) {
            b->document_rows = rows.document_rows;
            b->tail_rows = rows.tail_rows;
            return FL_ERR_OK;
        }
        if (b->n_decode > 0 && e->load.n_steps % 2 == 0) return FL_ERR_OK;
        b->n_decode = 0;
    }
    return FL_FAIL(FL_ERR_LIMIT, "a step of %d rows at position %d does not fit into %lld bytes of scratch",
                   b->document_rows + b->tail_rows, pos, (long long)e->scratch_bytes);
}

/* Whether the answers' step has room between the layers of the longest piece from pos on. */
static bool between_fits(const building *b, int32_t pos) {
    int32_t rows = b->prefill->n_prompt - pos, most = fl_step_rows_max(b->e);
    const fl_dry_rows piece = {.document_rows = rows < most ? rows : most,
                               .document_pos = pos,
                               .n_logits = 1},
                      answers = answer_rows(b, false);
    bool fits = false;
    if (b->e->be->device) return false; /* never run there; recordings would need a place of their own */
    return b->n_decode > 0 && fl_guard_between(b->e->guard, &piece, &answers, &fits) == FL_ERR_OK && fits;
}

/* False: this step is the answers'. */
static bool choose_piece(building *b, int32_t pos, bool may_answer_between) {
    fl_request *r = b->prefill;
    const fl_schedule_beside beside = {
        .n_decode = b->n_decode, .others = b->others, .between = may_answer_between};
    const fl_schedule_piece piece = fl_schedule_cut(b->e, r, &beside);
    bool fits = false;
    b->document_rows = piece.document_rows;
    b->tail_rows = piece.tail_rows;
    cut_scored(b, pos);
    fl_err err = fit_piece(b, pos, &fits);
    if (err != FL_ERR_OK) fl_request_finish(r, FL_FINISH_ERROR, err);
    if (fits) return true;
    b->prefill = NULL;
    b->document_rows = b->tail_rows = 0;
    return false;
}

/* Answers alone fit, which the guard made sure of at the start; it is asked all the same. */
static fl_err check_answers(const building *b) {
    /* Between layers answers may have ended, and their sessions be gone. */
    if (b->prefill || b->inner) return FL_ERR_OK;
    fl_dry_rows rows = answer_rows(b, true);
    bool fits;
    FL_TRY(fl_guard_cut(b->e->guard, &rows, &fits));
    if (fits) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_LIMIT, "%d answers at position %d do not fit into %lld bytes of scratch",
                   b->n_decode, rows.decode_pos, (long long)b->e->scratch_bytes);
}

/* Between layers the piece holds a part of the scratch: whether the rest is enough for the answers, exactly. */
static bool inner_fits(const building *b) {
    const fl_dry_rows rows = answer_rows(b, false);
    int64_t bytes;
    return fl_guard_need(b->e->guard, &rows, &bytes) == FL_ERR_OK &&
           b->e->arena.used_bytes + bytes <= b->e->arena.size_bytes;
}

/* Whether the step has room for what fills the bucket, up to the ceiling of its tail's positions. */
static bool bucket_fits(fl_engine *e, const fl_graph_piece *bucket) {
    int32_t last = bucket->pos + bucket->document_rows + bucket->tail_rows - 1;
    if (bucket->decode_rows > 0 && bucket->decode_pos > last) last = bucket->decode_pos;
    int32_t ceiling = fl_graphs_ceiling(e->graphs, last, bucket->decode_rows > 0);
    fl_dry_rows rows = {.document_rows = bucket->document_rows,
                        .document_pos = bucket->pos,
                        .tail_rows = bucket->tail_rows,
                        .tail_pos = ceiling + 1 - bucket->tail_rows,
                        .decode_rows = bucket->decode_rows,
                        .decode_pos = ceiling,
                        .n_logits = 1 + bucket->decode_rows};
    int64_t bytes, picked = 2 * rows.n_logits * (int64_t)e->config->hidden * (int64_t)sizeof(float);
    if (memcmp(&rows, &e->bucket_known, sizeof rows) == 0) return true;
    if (bucket->document_rows > e->span_tokens || fl_guard_need(e->guard, &rows, &bytes) != FL_ERR_OK ||
        bytes + FL_GUARD_RECORDED_BYTES + picked > e->scratch_bytes)
        return false;
    e->bucket_known = rows;
    return true;
}

/* Said once: why a step of a prompt is issued op by op although recordings are made. */
static void tell_outside(const building *b, const fl_graph_piece *piece) {
    fl_engine *e = b->e;
    if (e->graph_outside[0]) return;
    snprintf(e->graph_outside, sizeof e->graph_outside,
             "steps of prompts outside all buckets are issued op by op; the first had %d document and %d "
             "tail rows at position %d beside %d answers",
             piece->document_rows, piece->tail_rows, piece->pos, piece->decode_rows);
    atomic_store(&e->outside, e->graph_outside);
}

/* The piece may be a recording if it is filled up. (One row beside answers is a row like theirs.) */
static void find_bucket(building *b, int32_t pos) {
    fl_engine *e = b->e;
    const fl_attend *attend = &e->attending.attend;
    const fl_graph_piece piece = {.document_rows = b->document_rows,
                                  .tail_rows = b->tail_rows,
                                  .pos = pos,
                                  .decode_rows = b->n_decode,
                                  .decode_pos = answer_rows(b, false).decode_pos};
    if (!e->graphs || e->be->watched || e->spare_page < 0) return;
    if (b->document_rows == 0 && b->tail_rows == 1 && b->n_decode > 0) return;
    b->bucketed = b->prefill->n_scored == 0 && fl_graph_wants(attend, &piece, b->cost / e->config->layers) &&
                  fl_graphs_bucket(e->graphs, attend, &piece, &b->bucket) && bucket_fits(e, &b->bucket);
    if (!b->bucketed) tell_outside(b, &piece);
}

/* ---- building ---- */

static void add_prompt(building *b, const fl_session *s, const int32_t *ids, int32_t pos) {
    int32_t document = b->document_rows;
    if (document > 0) add_piece(b, s, ids, pos, document);
    if (b->tail_rows > 0) add_piece(b, s, ids + document, pos + document, b->tail_rows);
}

static void build_prefill(building *b) {
    fl_request *r = b->prefill;
    fl_session *s = r->session;
    int32_t pos = s->n_tokens;
    bool may_answer_between = between_fits(b, pos);
    if (!choose_piece(b, pos, may_answer_between)) return;
    ask_scores(b, pos);
    const fl_dry_rows rows = {.document_rows = b->document_rows,
                              .document_pos = pos,
                              .tail_rows = b->tail_rows,
                              .tail_pos = pos + b->document_rows};
    fl_dry_cost cost;
    if (fl_dry_run_step(b->e->dry, &rows, &cost) == FL_ERR_OK) b->cost = cost.ops.total.flops;
    b->cost_after = fl_schedule_left(b->e, r, pos + b->document_rows + b->tail_rows);
    double seconds = fl_step_rate_seconds(&b->e->rate, b->cost);
    b->layer_s = seconds / b->e->config->layers;
    b->between = may_answer_between && b->n_decode > 0 && seconds > b->e->sched.policy.stall_s;
    find_bucket(b, pos);
    add_prompt(b, s, r->prompt + pos, pos);
    b->prompt_ends = pos + b->document_rows + b->tail_rows == r->n_prompt;
    if (b->prompt_ends) b->logit_rows[b->n_logits++] = b->last_row;
}

/* Rows of nobody that fill the answers' part of a bucket, each at a place of its own of the spare page. */
static void fill_answers(building *b) {
    fl_engine *e = b->e;
    const fl_session nobody = {.pages = &e->spare_page};
    const int32_t id = 0;
    for (int32_t i = b->n_decode; b->bucketed && i < b->bucket.decode_rows; i++)
        add_rows(b, &nobody, &id, i, 1);
}

static void build_decode(building *b) {
    for (int32_t i = 0; i < b->n_decode; i++) {
        fl_request *r = b->decode[i];
        b->logit_rows[b->n_logits++] = b->rows;
        add_rows(b, r->session, &r->last_token, r->session->n_tokens, 1);
    }
    fill_answers(b);
}

static void answer_between(building *b);

/* Progress after each layer. A step that serves one cancelled request alone ends there. */
static bool on_layer(void *context, int32_t layers_done) {
    building *b = context;
    fl_request *r = b->prefill;
    bool goes_on = true;
    pthread_mutex_lock(&b->e->lock);
    b->e->load.n_layers += layers_done - b->layers_told;
    b->layers_told = layers_done;
    if (r) {
        double left = r->cost_left + (b->cost_after - r->cost_left) * layers_done / b->e->config->layers;
        r->done_fraction = r->cost_total > 0 ? 1 - left / r->cost_total : 1;
        r->progressed = true;
        fl_request_tell(r);
        goes_on = (b->n_decode > 0 && !b->between) || !atomic_load(&r->cancel);
    }
    goes_on = goes_on && !b->e->closing;
    pthread_mutex_unlock(&b->e->lock);
    if (goes_on && b->between && layers_done < b->e->config->layers) answer_between(b);
    return goes_on;
}

static const float *logits_of(const fl_engine *e, int32_t logits_row) {
    return (const float *)e->logits_memory + (int64_t)logits_row * e->config->vocab_size;
}

/* How the next token of a request is drawn. */
static fl_err ask_token(const building *b, const fl_request *r) {
    const fl_draw draw = {.sampling = &r->sampling,
                          .index = (uint64_t)r->n_records,
                          .n_top = r->n_top,
                          .marks = r->used,
                          .n_marks = r->n_used,
                          .biases = r->biases,
                          .n_biases = r->n_biases,
                          .banned = r->ends,
                          .n_banned = r->n_records < r->min_tokens ? r->n_ends : 0,
                          .allowed = fl_request_allowed(r)};
    return fl_sampler_add(b->e->sampler, &draw);
}

/* The prompt's token, if it ends here, then one for each answer: the last rows with logits. */
static fl_err ask_tokens(building *b, fl_sample_args *out) {
    if (b->prompt_ends) FL_TRY(ask_token(b, b->prefill));
    for (int32_t i = 0; i < b->n_decode && !b->between; i++) FL_TRY(ask_token(b, b->decode[i]));
    return fl_sampler_args(b->e->sampler, b->drawn, out);
}

/* The `drawn`th of the step's tokens. The mark comes before it, for it may be the last: then the timeline is whole when
 * DONE is told. */
static void take_token(building *b, fl_request *r, int32_t drawn, const char *mark, double start_s) {
    const fl_sample *sample;
    fl_err err = fl_sampler_token(b->e->sampler, b->drawn, drawn, &sample);
    if (err != FL_ERR_OK) {
        fl_request_finish(r, FL_FINISH_ERROR, err);
        return;
    }
    fl_request_add_mark(r, mark, start_s, 1);
    fl_request_take_token(r, sample);
}

static void after_prefill(building *b) {
    fl_request *r = b->prefill;
    fl_session *s = r->session;
    int32_t n = b->document_rows + b->tail_rows;
    memcpy(s->tokens + s->n_tokens, r->prompt + s->n_tokens, (size_t)n * sizeof(int32_t));
    s->n_tokens += n;
    fl_request_add_mark(r, "prefill", b->start_s, n);
    pthread_mutex_lock(&b->e->lock);
    fl_session_share(s, r->document_end);
    b->e->load.computed_tokens += n;
    if (b->prompt_ends) {
        b->e->load.prompt_tokens += r->n_prompt;
        b->e->load.cached_tokens += r->cached_tokens;
    }
    r->done_tokens = s->n_tokens;
    r->done_fraction = b->prompt_ends ? 1 : r->done_fraction;
    pthread_mutex_unlock(&b->e->lock);
    for (int32_t i = 0; i < b->n_scored; i++)
        r->on_logits(r->on_logits_context, b->scored_index + i, logits_of(b->e, i), b->e->config->vocab_size);
    if (b->prompt_ends) take_token(b, r, 0, "first_token", fl_now_s());
}

/* What the step took, for predictions of the next ones; not when it waited for on_logits. */
static void learn(building *b) {
    fl_dry_cost beside = {0};
    int32_t deepest = 0, n_decode = b->between ? 0 : b->n_decode;
    for (int32_t i = 0; i < n_decode; i++)
        if (b->decode[i]->session->n_tokens > deepest) deepest = b->decode[i]->session->n_tokens;
    const fl_dry_rows rows = {.tail_rows = n_decode, .tail_pos = deepest, .n_logits = n_decode};
    if (n_decode > 0 && fl_dry_run_step(b->e->dry, &rows, &beside) != FL_ERR_OK) return;
    const fl_schedule_ran ran = {.flops = b->cost,
                                 .flops_beside = beside.ops.total.flops,
                                 .flops_left = b->cost_after,
                                 .seconds = fl_now_s() - b->start_s - b->between_s};
    fl_schedule_learn(b->e, b->prefill, &ran);
}

static void after_decode(building *b) {
    for (int32_t i = 0; i < b->n_decode; i++) {
        fl_request *r = b->decode[i];
        r->session->tokens[r->session->n_tokens++] = r->last_token;
        take_token(b, r, b->prompt_ends + i, "decode", b->start_s);
    }
    if (b->n_decode > 0) b->e->answered_s = fl_now_s();
}

static void fail_all(building *b, fl_err err) {
    bool cancelled = err == FL_ERR_CANCELLED;
    for (int32_t i = 0; i < b->n_decode && !cancelled && !b->between; i++)
        fl_request_finish(b->decode[i], FL_FINISH_ERROR, err);
    if (b->prefill && !cancelled) fl_request_finish(b->prefill, FL_FINISH_ERROR, err);
}

static void tell_graphs(fl_engine *e) {
    fl_graphs_info info = fl_graphs_get_info(e->graphs);
    atomic_store(&e->n_graph_steps, info.n_replayed);
    atomic_store(&e->n_graph_prompt_steps, info.n_prompt_replayed);
    atomic_store(&e->n_plain_steps, info.n_plain);
    atomic_store(&e->graph_bytes, e->recordings_bytes * info.n_kept_most / FL_GRAPHS_MAX);
    atomic_store(&e->graph_warning, info.fault);
}

/* Means that the document piece's own prompt left. Until the step is done they are nobody's: it may end half way. */
static fl_kept_means take_means(const building *b) {
    fl_engine *e = b->e;
    if (b->document_rows == 0) return (fl_kept_means){0};
    if (!b->prefill || e->means_of != b->prefill->id) e->means.n_known = 0;
    e->means_of = 0;
    return e->means;
}

static void keep_means(const building *b) {
    fl_engine *e = b->e;
    if (b->document_rows == 0 || !b->prefill || !e->means.memory) return;
    e->means_of = b->prefill->id;
    e->means.n_known = (b->seqs[0].pos + b->document_rows) / e->attending.attend.block_tokens;
}

static fl_err forward(building *b, const fl_sample_args *sample) {
    fl_engine *e = b->e;
    int64_t rotations = (int64_t)b->first_row * e->attending.rope.dim;
    bool far = e->far_q_table != NULL;
    const fl_step step = {.rows = b->rows,
                          .ids = e->ids + b->first_row,
                          .rope_table = e->rope_table + rotations,
                          .far_q_table = far ? e->far_q_table + rotations : NULL,
                          .far_k_table = far ? e->far_k_table + rotations : NULL,
                          .attend = &e->attending.attend,
                          .seqs = b->seqs,
                          .n_seqs = b->n_seqs,
                          .n_document = b->document_rows > 0,
                          .kv = e->kv,
                          .means = take_means(b),
                          .softmax_scale = e->attending.softmax_scale,
                          .logit_rows = b->logit_rows,
                          .n_logit_rows = b->n_logits,
                          .logits = e->logits_memory,
                          .sample = sample->n_rows > 0 ? sample : NULL,
                          .on_layer = e->timed->hold_s > 0 ? NULL : on_layer,
                          .on_layer_context = b,
                          .bucketed = b->bucketed,
                          .n_beside = b->bucketed ? b->bucket.decode_rows : 0,
                          /* recorded at one place of the arena */
                          .graphs = b->inner || b->plain ? NULL : e->graphs};
    fl_timed_step_begin(e->be, b->rows, b->document_rows > 0);
    fl_err err = fl_forward(e->weights, &step, &e->arena);
    fl_timed_step_end(e->be);
    if (err == FL_ERR_OK) keep_means(b);
    if (err == FL_ERR_OK && b->document_rows > 0) err = fl_attend_config_collect(&e->attending);
    atomic_store(&e->scratch_peak_bytes, e->arena.peak_bytes);
    atomic_store(&e->density, fl_attend_config_density(&e->attending));
    atomic_store(&e->overflow, e->attending.overflow);
    if (e->graphs) tell_graphs(e);
    return err;
}

/* Runs what was built; false: it failed, and its requests ended. */
static bool run_built(building *b) {
    fl_sample_args sample;
    fl_err err = check_answers(b);
    if (err == FL_ERR_OK) err = ask_tokens(b, &sample);
    if (err == FL_ERR_OK) err = forward(b, &sample);
    if (err != FL_ERR_OK) {
        if (err == FL_ERR_DEVICE) fl_engine_check_device(b->e);
        fail_all(b, err);
        return false;
    }
    pthread_mutex_lock(&b->e->lock);
    b->e->load.n_steps++;
    b->e->load.n_layers += b->e->config->layers - b->layers_told; /* nobody tells of those of a recording */
    pthread_mutex_unlock(&b->e->lock);
    return true;
}

/* A token for every answer, in a step of its own inside the prompt's step, once the next layer would make them wait for
 * too long. Logits are free until the prompt's end; scratch lies above what the prompt holds between layers. */
static void answer_between(building *b) {
    double start_s = fl_now_s();
    building inner = {.e = b->e,
                      .start_s = start_s,
                      .first_row = fl_step_rows_max(b->e),
                      .drawn = fl_sampler_get_mark(b->e->sampler),
                      .seqs = b->e->between_seqs,
                      .logit_rows = b->e->between_logit_rows,
                      .inner = true};
    if (start_s - b->e->answered_s + b->layer_s < b->e->sched.policy.stall_s) return;
    for (int32_t i = 0; i < b->n_decode; i++)
        if (b->decode[i]->phase == FL_PHASE_DECODE && !atomic_load(&b->decode[i]->cancel))
            inner.decode[inner.n_decode++] = b->decode[i];
    if (inner.n_decode == 0) return;
    if (!inner_fits(&inner)) return;
    build_decode(&inner);
    double begin_s = fl_trace_now(b->e->trace);
    if (run_built(&inner)) after_decode(&inner);
    fl_sampler_reset(b->e->sampler, inner.drawn);
    fl_trace_span(b->e->trace, FL_TRACE_STEP, "answers between layers", begin_s, inner.rows);
    b->between_s += fl_now_s() - start_s;
}

void fl_step_run(fl_engine *e, fl_request **run, int32_t n) {
    building b = {.e = e, .start_s = fl_now_s(), .seqs = e->seqs, .logit_rows = e->logit_rows};
    double begin_s = fl_trace_now(e->trace);
    choose(&b, run, n);
    if (b.prefill) build_prefill(&b);
    if (!b.between) build_decode(&b);
    fl_trace_span(e->trace, FL_TRACE_OTHER, "build step", begin_s, b.rows);
    if (b.rows == 0) return; /* the one that had the step was ended */
    if (b.between) answer_between(&b);
    if (run_built(&b)) {
        if (b.prefill) learn(&b);
        if (b.prefill) after_prefill(&b);
        if (!b.between) after_decode(&b);
    }
    fl_sampler_reset(e->sampler, b.drawn);
}

/* Pages of made-up rows. */
static fl_session first_pages(fl_engine *e) {
    for (int32_t i = 0; i < e->kv_pages && i < fl_pages_of(e->ctx_tokens); i++) e->found_pages[i] = i;
    return (fl_session){.pages = e->found_pages};
}

/* Of answers beside a made-up piece: they see its pages no more than those of another timeline, but the one behind. */
static fl_session pages_beside(fl_engine *e, const fl_graph_piece *piece) {
    int32_t own = fl_pages_of((int64_t)piece->pos + piece->document_rows + piece->tail_rows);
    int32_t *pages = e->bucket_pages + 2 * fl_pages_of(e->ctx_tokens);
    for (int32_t i = 0; i < fl_pages_of(e->ctx_tokens); i++) pages[i] = e->found_pages[i > own ? i : own];
    return (fl_session){.pages = pages};
}

/* After first_pages(). */
static void add_answers_beside(building *b, const fl_graph_piece *piece, const int32_t *ids) {
    const fl_session session = pages_beside(b->e, piece);
    for (int32_t i = 0; i < piece->decode_rows; i++) {
        b->logit_rows[b->n_logits++] = b->rows;
        add_rows(b, &session, ids, piece->decode_pos - i, 1);
    }
    fill_answers(b);
}

/* A token of each of the last n rows with logits, without any wishes. */
static fl_err ask_greedy(building *b, int32_t n, fl_sample_args *out) {
    const fl_sampling plain = {.top_p = 1, .repetition_penalty = 1};
    const fl_draw greedy = {.sampling = &plain};
    for (int32_t i = 0; i < n; i++) FL_TRY(fl_sampler_add(b->e->sampler, &greedy));
    return fl_sampler_args(b->e->sampler, b->drawn, out);
}

fl_err fl_step_try_piece(fl_engine *e, const fl_graph_piece *piece, const int32_t *ids, fl_step_way way,
                         double *time_s) {
    const fl_session session = first_pages(e);
    const fl_attend *attend = &e->attending.attend;
    building b = {.e = e,
                  .document_rows = piece->document_rows,
                  .tail_rows = piece->tail_rows,
                  .n_decode = piece->decode_rows,
                  .start_s = fl_now_s(),
                  .seqs = e->seqs,
                  .logit_rows = e->logit_rows,
                  .plain = way != FL_STEP_RECORDED && way != FL_STEP_DRAWN};
    b.bucketed = way != FL_STEP_AS_IT_IS && e->spare_page >= 0 && fl_graph_wants(attend, piece, 0) &&
                 fl_graphs_bucket(e->graphs, attend, piece, &b.bucket) && bucket_fits(e, &b.bucket);
    if (way != FL_STEP_AS_IT_IS && !b.bucketed)
        return FL_FAIL(
            FL_ERR_UNSUPPORTED,
            "%d document and %d tail rows at position %d beside %d answers are outside all buckets",
            piece->document_rows, piece->tail_rows, piece->pos, piece->decode_rows);
    add_prompt(&b, &session, ids, piece->pos);
    b.logit_rows[b.n_logits++] = b.last_row;
    if (piece->decode_rows > 0) add_answers_beside(&b, piece, ids);
    fl_sample_args sample = {0};
    fl_err err = way == FL_STEP_DRAWN ? ask_greedy(&b, b.n_logits, &sample) : FL_ERR_OK;
    if (err == FL_ERR_OK) err = forward(&b, &sample);
    fl_sampler_reset(e->sampler, b.drawn);
    *time_s = fl_now_s() - b.start_s;
    return err;
}

fl_err fl_step_try(fl_engine *e, const fl_dry_rows *rows, const int32_t *ids, double *time_s) {
    const fl_session session = first_pages(e);
    building b = {.e = e,
                  .document_rows = rows->document_rows,
                  .start_s = fl_now_s(),
                  .seqs = e->seqs,
                  .logit_rows = e->logit_rows};
    if (rows->document_rows > 0) add_rows(&b, &session, ids, rows->document_pos, rows->document_rows);
    if (rows->tail_rows > 0)
        add_rows(&b, &session, ids + rows->document_rows, rows->tail_pos, rows->tail_rows);
    for (int32_t i = 0; i < rows->decode_rows; i++) /* each writes a place of its own */
        add_rows(&b, &session, ids + i, rows->decode_pos - i, 1);
    fl_sample_args sample;
    for (int32_t i = 0; i < rows->n_logits; i++) b.logit_rows[b.n_logits++] = b.rows - rows->n_logits + i;
    fl_err err = ask_greedy(&b, rows->n_logits, &sample);
    if (err == FL_ERR_OK) err = forward(&b, &sample);
    fl_sampler_reset(e->sampler, b.drawn);
    if (time_s) *time_s = fl_now_s() - b.start_s;
    return err;
}

/* The first guess of what a FLOP takes: the last step of all is one that made nothing any more. */
static void warm_rate(fl_engine *e, const fl_dry_rows *rows, double time_s) {
    fl_dry_cost cost;
    e->rate = (fl_step_rate){0};
    if (fl_dry_run_step(e->dry, rows, &cost) == FL_ERR_OK)
        fl_step_rate_learn(&e->rate, cost.ops.total.flops, time_s);
}

/* Row counts on both sides of every choice an op makes by size, document and tail rows alike; blocks come in whole
 * tiles. */
fl_err fl_step_warm(fl_engine *e) {
    static const int32_t sizes[][2] = {{0, 1}, {1, 0}, {0, 20}, {20, 0}, {256, 0}, {256, 0}}, none[256] = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const fl_dry_rows rows = {.document_rows = sizes[i][0], .tail_rows = sizes[i][1], .n_logits = 1};
        double time_s;
        bool whole = sizes[i][0] % FL_ATTN_LIST_ROWS == 0 || !e->attending.attend.blocks;
        int64_t bytes;
        if (sizes[i][0] + sizes[i][1] > e->ctx_tokens || !whole) continue;
        FL_TRY(fl_guard_need(e->guard, &rows, &bytes));
        if (bytes > e->scratch_bytes) continue;
        FL_TRY(fl_step_try(e, &rows, none, &time_s));
        warm_rate(e, &rows, time_s);
    }
    return FL_ERR_OK;
}
