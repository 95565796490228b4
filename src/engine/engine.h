/* The engine's insides, shared by its files. Threads: any number of callers, one worker that owns backend, weights, KV
 * pool, prefix cache and all sessions' pages and tokens. `lock` guards what both sides touch: the request list, and in
 * a request everything under "shared". It is never held while a step runs. */
#ifndef FL_ENGINE_ENGINE_H
#define FL_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/timed.h"
#include "base/arena.h"
#include "engine/attend_config.h"
#include "engine/cost_table.h"
#include "engine/disk_tier.h"
#include "engine/sampler.h"
#include "kv/prefix.h"
#include "model/graph.h"
#include "plan/guard.h"
#include "sched/step_rate.h"
#include "text/chat.h"
#include "text/schema_mask.h"
#include "text/stop.h"
#include "text/tokenizer.h"

enum { FL_MARKS_MAX = 1024 }; /* of a request's timeline */

typedef enum fl_phase { FL_PHASE_QUEUED, FL_PHASE_PREFILL, FL_PHASE_DECODE, FL_PHASE_DONE } fl_phase;

/* One token of an answer, as poll reports it. */
typedef struct fl_record {
    int32_t token;
    float logprob;
    int64_t text_end; /* of the request's text: all that was final after this token */
} fl_record;

struct fl_request {
    fl_engine *engine;
    fl_session *session;
    fl_request *next; /* in the engine's list, oldest first; guarded by the lock */
    /* set at submit, then constant */
    int32_t *prompt;
    int32_t n_prompt, document_end, max_tokens, n_top;
    int32_t n_scored; /* last prompt tokens whose logits are handed out */
    fl_logits_fn *on_logits;
    void *on_logits_context;
    fl_sampling sampling;
    fl_stop stop;
    fl_schema *schema; /* what the answer must be; NULL: anything */
    int32_t min_tokens;
    int32_t ends[FL_EOS_IDS_MAX + FL_STOP_TOKENS_MAX]; /* ids that end the answer */
    int32_t n_ends;
    fl_logit_bias *biases; /* [n_biases], tokens differ */
    int32_t n_biases;
    double submit_s;
    void *context;
    double deadline_s; /* since submit; 0 = none */
    uint64_t id;       /* in the trace */
    atomic_bool cancel;
    /* the worker's */
    fl_detok detok;
    fl_sample_mark
        *used; /* [n_used] tokens that penalties change: the answer's, with a repetition penalty the
                             prompt's too; NULL without penalties */
    int32_t n_used;
    int32_t *used_at; /* [n_vocab] 1 + the place of a token in `used`; 0 = none */
    int32_t last_token;
    fl_schema_state *schema_state; /* of the answer so far; NULL without a schema */
    double cost_total;             /* predicted FLOPs of the prefill, as it was admitted */
    fl_prefix_key root;            /* of its document in the prefix cache: that of its cache_salt */
    bool on_disk_asked;            /* the disk tier was asked for its document */
    double
        spare_asked_s; /* since when it waits for pages to be stored that would go for it; 0 = it does not */
    double blocked_s;  /* since when it waits for pages that others hold; 0 = it does not */
    int64_t n_freed_seen; /* fl_engine.n_freed when it was last tried, so that it is not tried in vain */
    int64_t n_shared_seen;
    int64_t held_begin; /* start of the text no stop string has cleared yet */
    double phase_start_s;
    /* shared */
    fl_phase phase;
    bool held;   /* by the worker: not freed meanwhile */
    bool closed; /* by its owner while held: the worker frees it */
    bool ready;  /* in the engine's list of requests with events */
    fl_request *ready_before, *ready_after;
    fl_record *records;     /* [max_tokens] */
    fl_token_logprob *tops; /* [max_tokens][n_top] or NULL */
    int32_t n_records;
    char *text; /* all text, final up to text_final */
    int64_t text_bytes, text_capacity, text_final;
    fl_sched_item place; /* written by the worker; priority and arrival are constant */
    double cost_left;    /* predicted FLOPs of what is left of the prefill */
    int32_t cached_tokens, done_tokens;
    double done_fraction, ttft_s;
    bool progressed;
    fl_finish finish;
    fl_err err;
    char err_detail[512];
    fl_mark marks[FL_MARKS_MAX];
    int32_t n_marks;
    pthread_cond_t changed;
    /* the poller's */
    int32_t n_polled;
    int64_t text_polled;
    char *poll_text;
};

struct fl_session {
    fl_engine *engine;
    fl_session *next;    /* in the engine's list; guarded by the lock */
    fl_request *current; /* guarded by the lock */
    uint64_t last_use;
    int32_t *tokens; /* [ctx_tokens]; the first n_tokens have their KV in pages */
    int32_t n_tokens;
    int32_t *pages; /* [ctx pages] */
    int32_t n_pages;
    bool sharing;      /* every page so far is a document page of the prefix cache's chain */
    int32_t n_shared;  /* pages entered or found there */
    fl_prefix_key key; /* of the last of them */
};

/* What the engine did. */
typedef struct fl_load {
    int64_t n_steps, n_layers, prompt_tokens, cached_tokens, computed_tokens, answer_tokens;
} fl_load;

/* Rows of the rotation tables that hold the rotations of positions from `pos` on. */
typedef struct fl_rotated {
    int32_t row, pos, n;
} fl_rotated;

struct fl_engine {
    fl_checkpoint *checkpoint; /* NULL: a synthetic model */
    fl_config shape;           /* of that */
    fl_synthetic synthetic;
    const fl_config *config;
    fl_tokenizer *tokenizer; /* NULL: a synthetic model */
    fl_schema_masks *masks;  /* the worker's; NULL: a synthetic model */
    fl_chat *chat;           /* NULL: the checkpoint has no template */
    char no_chat[256];
    fl_backend *be;
    fl_trace *trace;
    fl_timed *timed; /* what be's ops took */
    fl_weights *weights;
    fl_kv_pool *pool;
    fl_prefix *prefix;
    fl_disk_tier *tier; /* NULL = none */
    fl_dry_run *dry;
    fl_guard *guard;
    fl_sampler *sampler;
    fl_attend_config attending;
    fl_graphs *graphs; /* NULL: not wanted, or the backend records nothing */
    char position_warning[256];
    fl_kv_shape kv_shape;
    int32_t ctx_tokens, kv_pages, span_tokens, requests_max, running_max, n_known;
    int64_t queue_tokens_max;
    fl_cost_table costs;
    void *kv_memory, *scratch, *logits_memory;
    int64_t kv_bytes, scratch_bytes, logits_bytes, draw_bytes, recordings_bytes;
    int64_t scratch_most_bytes; /* asked for; 0 = what the largest step takes */
    fl_kept_means means;        /* of one prompt's blocks, in kv_memory; n_known of them are those */
    uint64_t means_of;          /* of this request; 0 = of none */
    fl_arena arena;
    atomic_llong scratch_peak_bytes, overflow; /* as of the last step */
    _Atomic double density;
    atomic_llong n_graph_steps, n_graph_prompt_steps, n_plain_steps; /* alike */
    atomic_llong graph_bytes; /* of as many recordings as were kept at a time, by the plan's measure */
    _Atomic(const char *) graph_warning; /* of graphs; NULL = none */
    /* the step being built; sized once */
    fl_kv_layer *kv;   /* [layers] */
    void *step_memory; /* of the next four */
    int64_t step_bytes;
    int32_t *ids;                     /* [rows max], answers between layers behind them; alike: */
    float *rope_table;                /* [rows max][rope_dim] */
    float *far_q_table, *far_k_table; /* alike; NULL with one path */
    fl_rotated rotated;
    fl_kv_rows seqs[2 + FL_DECODE_ROWS_MAX];
    int32_t logit_rows[FL_LOGIT_ROWS_MAX];
    fl_kv_rows between_seqs[FL_DECODE_ROWS_MAX]; /* of answers between a prompt's layers */
    int32_t between_logit_rows[FL_DECODE_ROWS_MAX];
    double answered_s;    /* when answers last had a token, on the clock */
    int32_t *found_pages; /* [ctx pages] */
    /* Prompts in buckets (model/graph.h): a page of nobody's behind the pool's for rows that fill them, or -1; page
     * tables with it behind a piece's own pages, of its document rows and of its tail rows; and that of made-up
     * answers. */
    int32_t spare_page;
    fl_dry_rows bucket_known; /* one that fits into the scratch */
    char graph_outside[192];
    _Atomic(const char *) outside; /* that, or NULL */
    int32_t *bucket_pages;         /* [3][ctx pages] */
    uint64_t clock;
    fl_sched sched;           /* the worker's, policy apart, which is constant */
    int32_t next_turn;        /* of answers, when there are more than a step has rows for */
    atomic_ullong n_requests; /* ever submitted */
    pthread_t worker;
    bool worker_started, lock_made;
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool closing;
    char lost[512]; /* the backend's last words, for all requests; "" = it works. Guarded by the lock */
    fl_request *requests;
    fl_session *sessions;
    fl_request *ready_first, *ready_last; /* requests with events that fl_engine_wait has not named yet */
    pthread_cond_t ready;
    fl_load load;
    fl_step_rate rate; /* written by the worker */
    int64_t n_freed;   /* times that pages may have come free, */
    int64_t n_shared;  /* or that a page entered the prefix cache */
};

/* Positions of a prompt that must be computed, whatever the KV of which prefix is there: from here on. */
static inline int32_t fl_request_first_row(const fl_request *r) {
    return r->n_prompt - 1 - r->n_scored;
}

/* Document rows come in whole tiles of so many rows. */
static inline int32_t fl_tile_rows(const fl_engine *e) {
    return fl_policy_tile_rows(&e->attending.policy);
}

/* Pages of its document that may be taken from elsewhere: whole tiles before the first row that must be computed. */
static inline int32_t fl_request_document_pages(const fl_request *r) {
    int32_t first_row = fl_request_first_row(r);
    int32_t end = r->document_end < first_row ? r->document_end : first_row;
    return (end - end % fl_tile_rows(r->engine)) / FL_KV_PAGE_TOKENS;
}

static inline int32_t fl_pages_of(int64_t tokens) {
    return (int32_t)((tokens + FL_KV_PAGE_TOKENS - 1) / FL_KV_PAGE_TOKENS);
}

/* session.c: drops all that is computed and that no request holds: what rows attend has changed. For calibration. */
void fl_engine_forget(fl_engine *engine);

/* worker.c */
void *fl_worker_main(void *engine);

/* lost.c: the calling thread will issue the backend's ops. The engine is lost if the device refuses it. */
void fl_engine_enter_device(fl_engine *engine);
/* After a step that failed with FL_ERR_DEVICE. If the device takes no work any more, the engine is lost: all
 * requests end with its words, and no new one is taken. */
void fl_engine_check_device(fl_engine *engine);
/* Worker only. Ends these requests if the engine is lost; whether it is. */
bool fl_engine_end_lost(fl_engine *engine, fl_request **requests, int32_t n);

/* step.c: runs one step over the runnable requests ([n], n >= 1). */
void fl_step_run(fl_engine *engine, fl_request **requests, int32_t n);
int32_t fl_step_rows_max(const fl_engine *engine);
/* One step of made-up rows, for measuring: on the pool's first pages in order, while no request runs and nobody holds
 * a page. `ids` [rows, at least 1]; decode row i is at decode_pos - i; the last n_logits rows are asked for logits.
 * time_s: of the whole step, or NULL. */
fl_err fl_step_try(fl_engine *engine, const fl_dry_rows *rows, const int32_t *ids, double *time_s);
/* A piece of a prompt alike, with the logits of its last row and then of the answers beside it, of which row i is at
 * decode_pos - i, all behind the piece: as it is; filled up to its bucket, op by op; as a
 * recording from the second time on; or that with tokens drawn in place of logits. FL_ERR_UNSUPPORTED: it has no
 * bucket. */
typedef enum fl_step_way { FL_STEP_AS_IT_IS, FL_STEP_FILLED, FL_STEP_RECORDED, FL_STEP_DRAWN } fl_step_way;
fl_err fl_step_try_piece(fl_engine *engine, const fl_graph_piece *piece, const int32_t *ids, fl_step_way way,
                         double *time_s);
/* Makes everything the ops make at first use, on pages nobody holds. */
fl_err fl_step_warm(fl_engine *engine);

/* session.c, worker only. Prepares the session for a request: reuses what it can, reserves pages. Again for a request
 * that has computed nothing yet: takes what others have entered into the prefix cache meanwhile. FL_ERR_AGAIN: no pages
 * now. */
fl_err fl_session_prepare(fl_session *session, fl_request *request);
void fl_session_share(fl_session *session, int32_t document_end);
void fl_session_trim(fl_session *session);
void fl_session_forget(fl_session *session);
/* Takes the session's pages, and those computed from them, out of the prefix cache and off the disk. */
void fl_session_unshare(fl_session *session);

/* request.c: the request has an event. Under the lock. */
void fl_request_tell(fl_request *request);
/* request.c: frees a request that is in no list. */
void fl_request_free(fl_request *request);

/* request.c, worker only */
void fl_request_finish(fl_request *request, fl_finish finish, fl_err err);
void fl_request_add_mark(fl_request *request, const char *name, double start_s, int64_t tokens);
/* Appends a sampled token; true if it ended the answer. */
bool fl_request_take_token(fl_request *request, const fl_sample *sample);

/* constrain.c: the schema of a request's answer, if it has one. */
fl_err fl_request_constrain(fl_request *request, const fl_request_params *params);
void fl_request_free_schema(fl_request *request);
/* Worker only. The tokens that may come next as fl_draw.allowed; NULL: any. */
const uint64_t *fl_request_allowed(const fl_request *request);
/* The token has come; true if the answer is whole. */
bool fl_request_advance(fl_request *request, int32_t token);

#endif
