/* firstlight: a long-context inference engine for DeepSeek-V3-class models. The only public header.
 *
 *   fl_engine    loaded weights, backend, KV pool, one worker thread. Open once, share between threads.
 *   fl_session   one token timeline with its KV (a document, a conversation). Turns reuse what is already computed.
 *   fl_request   one answer being made: submit, poll events until FL_EVENT_DONE, close. Cancel at any time.
 *
 * Conventions. Functions return fl_err: FL_ERR_OK (0) or a negative code; fl_err_detail() then says what was wrong,
 * in this thread, until its next failing call. Pointers are borrowed for the call unless said otherwise. Close
 * functions accept NULL. Strings are UTF-8. Seconds end in _s, bytes in _bytes. All functions may be called from any
 * thread; two threads must not poll or close the same request at once. The library never exits the process, installs
 * no signal handler and reads no environment variable. */
#ifndef FIRSTLIGHT_H
#define FIRSTLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---------------------------------------------------------------------------------------------------- */

#define FL_ERR_LIST(X)                                                                                       \
    X(OK, 0, "success")                                                                                      \
    X(NOMEM, -1, "out of memory")                                                                            \
    X(INVALID, -2, "invalid argument")                                                                       \
    X(UNSUPPORTED, -3, "not supported by this build, backend or model")                                      \
    X(IO, -4, "input/output error")                                                                          \
    X(DATA, -5, "bad checkpoint or data")                                                                    \
    X(AGAIN, -6, "busy, try again later")                                                                    \
    X(CANCELLED, -7, "cancelled")                                                                            \
    X(LIMIT, -8, "a limit was exceeded")                                                                     \
    X(CONFIG, -9, "configuration mismatch")                                                                  \
    X(DEVICE, -10, "no such device")                                                                         \
    X(NUMERIC, -11, "not-a-number in the results")                                                           \
    X(INTERNAL, -12, "internal error")

typedef enum fl_err {
#define FL_ERR_ENUM(name, value, text) FL_ERR_##name = (value),
    FL_ERR_LIST(FL_ERR_ENUM)
#undef FL_ERR_ENUM
} fl_err;

/* The fixed text of a code ("out of memory"). Never NULL. */
const char *fl_err_name(fl_err code);

/* What this thread's last failing call said, with the faulty value and the expected one. Borrowed until the next
 * failing call in this thread. Never NULL. */
const char *fl_err_detail(void);

/* "MAJOR.MINOR.PATCH". */
const char *fl_version(void);

/* ---- engine ---------------------------------------------------------------------------------------------------- */

typedef struct fl_engine fl_engine;
typedef struct fl_session fl_session;
typedef struct fl_request fl_request;

/* Load progress, called from the opening thread: `done` of `total` bytes. */
typedef void fl_progress_fn(void *context, int64_t done_bytes, int64_t total_bytes);

/* Fill with fl_settings_default, then change what you need. */
typedef struct fl_settings {
    const char
        *model_path; /* checkpoint folder (config.json, *.safetensors, tokenizer.json); required, but for
                               `synthetic` */
    const char
        *synthetic; /* for benchmarks: NAME or NAME:LAYERS of a model with random weights, which has no text
                              (model/shapes.c has the names); NULL (default) = none */
    uint64_t synthetic_seed; /* of its weights; default 0 */
    double router_skew; /* of it: expected load of a hot expert over the mean load; default 1 = all alike */
    double
        block_density; /* for benchmarks, with the policy "blocks": share of visible blocks that is listed beside
                             sinks and window, whatever they score; 0 (default) = as the scores say */
    const char
        *block_density_from; /* for benchmarks, with the policy "blocks": file of `firstlight calibrate` or of
                               `bench prefill --json` of any model, whose density by layer and head is imposed:
                               mapped as attn/density.h says, and scaled so that the mean is block_density where
                               that is not 0; NULL (default) = all layers and heads alike */
    const char
        *backend; /* "auto" (default: the fastest this machine has), "cuda", "avx512", "avx2", "reference" */
    const char
        *kv_dtype; /* "auto" (default: bf16; f32 on "reference"), "bf16", "fp8", "int4", "f32" ("reference"
                               only); "int4-naive" and "int2-naive" are controls of the evaluation */
    const char
        *policy; /* what document rows attend: "full" (default), "window", "window-anchors", "segments:N",
                               "blocks"; settings may follow, as in "blocks:alpha=0.05,window=1k" (attn/policy.h) */
    const char *tail; /* what question and answer attend: "dense" (default: everything), "sparse" (the
                               document's pattern: loses what lies outside it, kept to show that) */
    const char *rope; /* positions beyond the trained length: "model" (default: the checkpoint's own fields),
                               "yarn", "ntk", "two-path" */
    double rope_factor;   /* how many times the trained length; 0 (default) = 1 for "model", else needed */
    bool force_positions; /* run past the trained length without an extension (default: refused) */
    const char *
        calibration; /* file of `firstlight calibrate`; NULL (default) = calibration.json beside the checkpoint
                               if there is one, "" = none */
    int32_t device;  /* which GPU, with "cuda"; default 0 */
    bool deterministic; /* the same bits whatever shares a step; CPU backends always do so */
    bool
        enforce_eager; /* steps are issued op by op; false (default): on a GPU short ones become CUDA graphs */
    int32_t n_threads;  /* 0 (default) = one for each CPU this process may use */
    int64_t ctx_tokens; /* longest session, prompt + answer; 0 (default) = the model's own maximum */
    int64_t
        kv_tokens; /* KV pool, tokens over all sessions; 0 (default) = ctx_tokens; more keeps more prefixes */
    int32_t
        span_tokens; /* most prompt rows in one step, a multiple of 64; 0 (default) = 4,096, 32,768 on a GPU;
                              at most 16,384, 1,048,576 on a GPU */
    const char
        *scheduling_policy; /* who computes next: "bins" (default: short prompts pass long ones, all share
                                      the engine by predicted cost), "fcfs" (in order of arrival) */
    double
        max_decode_stall_s; /* running answers have a token so often while a prompt computes, as predicted, and
                                  one a layer at most. 0 (default) = 0.25 */
    double
        max_step_s; /* a step of a prompt takes no longer, as predicted, so that what comes is seen to soon; it may
                          where a twentieth of it would be repeated work. 0 (default) = 1, but alone no limit */
    int64_t
        scratch_bytes; /* reserve at most so much for what a step computes, and cut steps to fit into it; 0 (default)
                              = what the largest step takes */
    int32_t requests_max; /* bound of the queue, running ones included, 1..4096; default 64 */
    int32_t
        running_max; /* of them, so many hold pages and compute at once. 0 (default) = all that have room */
    int64_t
        queue_tokens_max; /* bound of it in prompt tokens that are not computed yet; an empty queue takes any
                                 request. 0 (default) = 16 x ctx_tokens */
    int64_t
        trace_events;    /* trace from opening on, into a ring of so many events of 64 bytes (1,024 .. 16M); 0
                             (default) = not until fl_engine_trace_start */
    const char *kv_disk; /* folder that keeps document pages, also for later runs, one process at a time; NULL
                              (default) = none. What it holds can be read by whoever can read the folder */
    int64_t kv_disk_bytes; /* most bytes in it for this model and these settings; default 16 GiB */
    bool check_lock; /* default true: refuse to start when firstlight.lock.json is there and does not match */
    fl_progress_fn *progress; /* NULL (default) = silent */
    void *progress_context;
} fl_settings;

void fl_settings_default(fl_settings *settings);

/* Loads a checkpoint and reserves all memory. Costs one read of the weights. On success the caller owns *out.
 * FL_ERR_DATA: the checkpoint is broken or of a kind firstlight does not know (detail names file, tensor or field,
 * expected, found). FL_ERR_CONFIG: the lock does not match. FL_ERR_UNSUPPORTED: the backend cannot run this model's
 * shapes. FL_ERR_DEVICE: this CPU lacks what the backend needs. FL_ERR_NOMEM: the plan does not fit. */
fl_err fl_engine_open(const fl_settings *settings, fl_engine **out);

/* Cancels what runs, joins the worker and frees everything. Close sessions and requests first. */
void fl_engine_close(fl_engine *engine);

typedef struct fl_engine_info {
    const char *model_type;     /* "deepseek_v3", ...; borrowed from the engine */
    const char *backend;        /* the one chosen */
    const char *kv_dtype;       /* as stored: "bf16", "fp8", "int4", "f32", ... */
    int64_t ctx_tokens;         /* longest session */
    int64_t kv_tokens;          /* size of the KV pool */
    int64_t weights_bytes;      /* packed weights in memory */
    int64_t kv_bytes;           /* KV pool */
    int64_t scratch_bytes;      /* step scratch as planned */
    int64_t scratch_peak_bytes; /* highest use of the step scratch so far; never above scratch_bytes */
    int32_t n_threads;
    int32_t n_vocab;    /* entries of a logits row */
    int32_t bos_token;  /* -1 = none */
    const char *policy; /* as resolved, with its numbers: "window-anchors:window=1024,stride=256,..." */
    const char *position_warning; /* why answers may be wrong (forced positions), or NULL */
    bool graphs;                  /* decode steps and short steps of prompts are kept as CUDA graphs */
    int64_t graph_steps;          /* steps that were a graph's launch */
    int64_t graph_prompt_steps;   /* of them those of prompts */
    int64_t plain_steps; /* decode steps that were not: the first of a shape, new shapes after a fault */
    const char *graph_warning; /* why no more graphs are made; NULL = none */
    const char *graph_outside; /* which step of a prompt was too large for a graph first; NULL = none */
    double
        block_density; /* of the policy "blocks" so far: share of visible blocks that were attended; else 1 */
    int64_t block_overflow; /* blocks left out since a list was full */
} fl_engine_info;

void fl_engine_get_info(const fl_engine *engine, fl_engine_info *out);

enum { FL_COST_POINTS_MAX = 16, FL_BINS_MAX = 8 };

/* What an engine is doing now, what it has done since it was opened, and what prompts cost it. */
typedef struct fl_engine_load {
    int32_t kv_pages;        /* of the KV pool, each of 64 tokens */
    int32_t kv_pages_free;   /* held by nobody */
    int32_t kv_pages_cached; /* held by the prefix cache alone: free on demand */
    int32_t n_waiting;       /* requests that are queued */
    int32_t n_running;       /* requests that are admitted and not done */
    int64_t n_steps;
    int64_t n_layers;        /* run in all steps: stands still only if the engine is idle or stuck */
    int64_t prompt_tokens;   /* of prompts that are read; cached ones included */
    int64_t cached_tokens;   /* of these */
    int64_t computed_tokens; /* of all prompts, step by step */
    int64_t answer_tokens;
    int32_t n_costs;                         /* points of the next two, 1.. */
    int64_t cost_tokens[FL_COST_POINTS_MAX]; /* 1,024, 2,048, 4,096 ... below the context, then the context */
    double
        cost_s[FL_COST_POINTS_MAX]; /* seconds that a prompt of so many new tokens is predicted to take alone:
                                          predicted FLOPs at the rate measured on steps of about that size, newer
                                          ones counting more; on the warm-up before there is one */
    int64_t queue_tokens;           /* prompt tokens that wait or are being computed */
    int64_t queue_tokens_max;       /* of the settings */
    bool fcfs;                      /* scheduling_policy */
    int32_t n_bins;                /* points of the next three: prompts by predicted cost, cheap ones first */
    double bin_end_s[FL_BINS_MAX]; /* a bin's prompts cost less; the last is infinite */
    double bin_weight[FL_BINS_MAX];   /* its share of the engine, relative to other bins with work */
    double bin_queued_s[FL_BINS_MAX]; /* predicted, of what its prompts still need */
    int64_t kv_disk_pages;            /* document pages in kv_disk, */
    int64_t kv_disk_bytes;            /* bytes of its files, */
    int64_t kv_disk_waiting;          /* pages in memory that are not stored yet, */
    int64_t kv_disk_lost;             /* pages evicted before they were stored, */
    int64_t kv_disk_read;             /* pages that came back from it; all 0 without a kv_disk */
    bool lost; /* the device takes no more work of this process: open the engine in a new one */
} fl_engine_load;

/* Cheap: a lock and a few sums. */
void fl_engine_get_load(fl_engine *engine, fl_engine_load *out);

/* Predicted seconds that a new prompt waits while others compute: to its first token, less its own cost_s, which is
 * cost_s of the load at its length. No engine needed, so that it can be asked where a load was sent to. */
double fl_load_wait_s(const fl_engine_load *load, double cost_s);
/* Where the time of steps went since the engine was opened, and how full its memory was. Kinds add up to less than
 * step_s: what is missing lies between ops. */
typedef struct fl_meters {
    int64_t planned_bytes; /* reserved at start: weights, KV pool, step scratch, logits; and what a device's
                            * driver takes for recordings of steps */
    int64_t peak_bytes;    /* the same with the highest use of the scratch and the most recordings so far */
    int64_t steps;
    double step_s; /* wall time in steps */
    double attention_s, linear_s, experts_s, kv_s;
    double recorded_s; /* steps that a device replayed or ran as one, and whose ops were not timed apart */
    double other_s;
    double comm_s;            /* between ranks */
    const char *comm_slowest; /* the kind of communication that took most of it; static, NULL = none */
} fl_meters;

void fl_engine_get_meters(const fl_engine *engine, fl_meters *out);

/* Above this share of communication something is wrong with the layout, or one rank holds up the others. */
#define FL_METERS_COMM_MAX 0.3

/* Of the meters of all ranks: false = none spends more than FL_METERS_COMM_MAX of its steps in communication. True:
 * `text` says so and names the slowest rank (the one the others wait for: it waits least itself) and the kind of
 * communication. */
bool fl_meters_warning(const fl_meters *ranks, int32_t n_ranks, char *text, size_t text_bytes);

/* The trace: what every thread, and a GPU's queue, did when, into a ring that keeps the newest events. Steps,
 * layers, ops, the pool's threads, text, and requests with their phases. Start forgets what there is; the first
 * one (or the setting trace_events) reserves the ring, `events` 0 = 262,144. Write may be called while it runs
 * or after stop: Chrome trace JSON, for ui.perfetto.dev. *n_lost (or NULL): how many events did not fit. One
 * thread at a time for these three. FL_ERR_INVALID: trace_write without a start. */
fl_err fl_engine_trace_start(fl_engine *engine, int64_t events);
void fl_engine_trace_stop(fl_engine *engine);
fl_err fl_engine_trace_write(const fl_engine *engine, const char *path, int64_t *n_lost);

/* ---- text ------------------------------------------------------------------------------------------------------ */

/* Ids of `text`. Control tokens written in the text stay plain text unless `parse_special`. *tokens is malloc'ed and
 * passes to the caller (free). */
fl_err fl_tokenize(const fl_engine *engine, const char *text, size_t text_bytes, bool parse_special,
                   int32_t **tokens, int64_t *n_tokens);

/* Text of ids; ids the tokenizer does not know decode to nothing. *text is malloc'ed, NUL-terminated, passes to the
 * caller (free). Incomplete UTF-8 becomes U+FFFD. */
fl_err fl_detokenize(const fl_engine *engine, const int32_t *tokens, int64_t n_tokens, char **text,
                     size_t *text_bytes);

typedef struct fl_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* never parsed for control tokens */
    size_t content_bytes;
} fl_message;

/* A prompt as fl_request_params takes it. */
typedef struct fl_chat_prompt {
    int32_t *tokens; /* malloc'ed, passes to the caller (free) */
    int64_t n_tokens;
    int64_t document_tokens; /* where the question begins, or -1 */
} fl_chat_prompt;

/* Token ids of a conversation under the checkpoint's own chat template, with the generation prompt at the end. The
 * last `question_bytes` bytes of the last message are its question, what comes before is the document; 0 = not told.
 * FL_ERR_UNSUPPORTED: the checkpoint has no chat template that firstlight can run. */
fl_err fl_chat_tokenize(const fl_engine *engine, const fl_message *messages, int32_t n_messages,
                        size_t question_bytes, fl_chat_prompt *out);

/* ---- sessions and requests ------------------------------------------------------------------------------------- */

fl_err fl_session_open(fl_engine *engine, fl_session **out);

/* Gives the session's pages back. FL_ERR_AGAIN while a request of it runs. */
fl_err fl_session_close(fl_session *session);

typedef struct fl_sampling {
    float temperature; /* 0 = greedy (default); else 0 < t <= 100 */
    int32_t top_k;     /* 0 = all (default) */
    float top_p;       /* 0 < p <= 1; default 1 */
    float min_p;       /* 0 <= p < 1, share of the best token's probability; default 0 */
    float
        repetition_penalty; /* > 0; default 1; divides positive and multiplies negative logits of seen tokens */
    float presence_penalty;  /* -2..2; default 0; taken from the logit of every token of the answer so far */
    float frequency_penalty; /* -2..2; default 0; the same, times how often the token is there */
    uint64_t seed;           /* same seed, same answer; default 0 */
} fl_sampling;

/* Added to the logit of one token after the penalties. */
typedef struct fl_logit_bias {
    int32_t token; /* 0..n_vocab-1 */
    float bias;    /* -100..100: at the ends as good as banned or chosen */
} fl_logit_bias;

enum {
    FL_TOP_LOGPROBS_MAX = 20,
    FL_STOPS_MAX = 16,
    FL_STOP_TOKENS_MAX = 64,
    FL_LOGIT_BIASES_MAX = 1024,
};

/* Called on the engine's worker thread for each scored prompt token, in order: index 0..score_tokens - 1, the
 * model's own logits [n_vocab] for it, borrowed for the call. Be quick; call nothing of this header. */
typedef void fl_logits_fn(void *context, int64_t index, const float *logits, int32_t n_vocab);

typedef struct fl_request_params {
    const int32_t *tokens; /* [n_tokens] the whole prompt from position 0, all < n_vocab; copied */
    int64_t n_tokens;      /* 1..ctx_tokens-1; the session reuses the longest common prefix it holds */
    int64_t
        document_tokens; /* rows [0, document_tokens) are the document (shared by content with other sessions),
                                the rest is the tail: few rows over a long context, computed absorbed.
                                -1 (default) = all but the last token. Rounded down to a multiple of 64, 128 with
                                the policy "blocks" */
    int64_t max_tokens; /* most answer tokens, >= 1; default 256; the answer also ends at the context's end */
    fl_sampling sampling;
    int32_t top_logprobs;     /* alternatives reported a token, 0..FL_TOP_LOGPROBS_MAX; default 0 */
    const char *const *stops; /* [n_stops] strings that end the answer and are not part of it; copied */
    int32_t n_stops;
    const int32_t
        *stop_tokens; /* [n_stop_tokens] ids that end the answer as end tokens do, whatever ignore_eos
                                   says, and are not part of it; copied */
    int32_t n_stop_tokens;
    const fl_logit_bias *logit_biases; /* [n_logit_biases], a token's last one counts; copied */
    int32_t n_logit_biases;
    int64_t
        min_tokens; /* 0..max_tokens; default 0; until so many are there, nothing but the room ends the answer */
    const char *
        json_schema; /* NULL (default) = free text; "" = a JSON object; else a JSON schema's text: the answer is
                        JSON valid under it (text/schema.h says which keywords); borrowed for the call */
    int64_t score_tokens; /* 0 (default), or how many of the last prompt tokens are scored: on_logits sees the
                             logits that predict each */
    fl_logits_fn *on_logits;
    void *on_logits_context;
    int32_t
        priority; /* lower = sooner; default 0. Any other comes to its turn too: every 10 s of waiting halve the
                          distance to the best one. "fcfs" ignores it */
    double
        deadline_s; /* 0 (default) = none. A request that cannot have its first token so long after submit, as
                          predicted, ends with FL_ERR_LIMIT before more work is put into it */
    const char
        *cache_salt; /* documents are shared with requests of the same salt only; NULL (default) and "" are
                               one salt, that of all who give none; copied */
    bool ignore_eos; /* default false; true keeps going past end tokens (benchmarks, golden tests) */
    void *context;   /* the caller's, for fl_request_context; default NULL */
} fl_request_params;

void fl_request_params_default(fl_request_params *params);

/* Queues a request. On success the caller owns *out until fl_request_close. FL_ERR_AGAIN: the queue is full or the
 * session already has a request. FL_ERR_LIMIT: can never fit (detail has the sums). FL_ERR_INVALID: names the field.
 * FL_ERR_UNSUPPORTED: names the keyword of json_schema and its place. */
fl_err fl_submit(fl_session *session, const fl_request_params *params, fl_request **out);

typedef enum fl_event_type { FL_EVENT_NONE, FL_EVENT_PROGRESS, FL_EVENT_TOKEN, FL_EVENT_DONE } fl_event_type;

typedef enum fl_finish { FL_FINISH_STOP, FL_FINISH_LENGTH, FL_FINISH_CANCELLED, FL_FINISH_ERROR } fl_finish;

typedef struct fl_token_logprob {
    int32_t token;
    float logprob; /* natural log, of the model's own distribution before sampling settings */
} fl_token_logprob;

/* One mark of a request's timeline: `name` is static ("queue", "prefill", "first_token", "decode"). */
typedef struct fl_mark {
    const char *name;
    double start_s, end_s; /* since submit */
    int64_t tokens;        /* rows computed in it */
} fl_mark;

typedef struct fl_event {
    fl_event_type type;
    int32_t token;    /* TOKEN: the id; -1 in a text-only event (what a stop string had held back) */
    const char *text; /* TOKEN, DONE: whole code points that became final; borrowed until the next poll */
    size_t text_bytes;
    float logprob;
    int32_t n_top;
    fl_token_logprob top[FL_TOP_LOGPROBS_MAX]; /* best first */
    fl_finish finish;                          /* DONE */
    fl_err err;                                /* DONE with FL_FINISH_ERROR */
    const char *err_detail; /* DONE with FL_FINISH_ERROR; borrowed until fl_request_close */
    int64_t prompt_tokens;  /* always: */
    int64_t cached_tokens;  /* prompt tokens taken from the session or the prefix cache */
    int64_t done_tokens;    /* prompt tokens that are ready now, cached ones included */
    double done_fraction;   /* of the prefill's predicted cost, 0..1 */
    int64_t answer_tokens;
    double ttft_s;    /* submit to first token; 0 before it */
    double elapsed_s; /* since submit */
} fl_event;

/* Waits up to timeout_s for the next event (0 = look only; FL_EVENT_NONE if there is none). Events of one request
 * come in order; PROGRESS events are merged when not fetched. After DONE every poll returns DONE again. */
fl_err fl_poll(fl_request *request, double timeout_s, fl_event *out);

/* For programs with many requests and one thread that looks after all of them. Waits up to timeout_s until requests of
 * this engine have events and writes these requests, the longest waiting first, to requests[n_max]; returns how many,
 * 0 after the time. A request is named again only after a further event, so poll each with timeout 0 until
 * FL_EVENT_NONE or FL_EVENT_DONE. A request may be named before fl_submit has returned to the thread that submitted
 * it. Closed ones are not named. */
int32_t fl_engine_wait(fl_engine *engine, double timeout_s, fl_request **requests, int32_t n_max);

/* What fl_request_params.context was. */
void *fl_request_context(const fl_request *request);

/* Asks a request to end; it does within one step and then reports DONE. Safe from a signal handler. */
void fl_cancel(fl_request *request);

/* The marks so far, oldest first; copies at most n_max, returns how many there are. */
int32_t fl_request_timeline(const fl_request *request, fl_mark *out, int32_t n_max);

/* Ends the request if it still runs, which takes up to a step, then frees it. Does not wait after DONE. */
void fl_request_close(fl_request *request);

#ifdef __cplusplus
}
#endif

#endif
