#include "server/wire.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint32_t MAGIC = 0x31574c46; /* "FLW1" */

/* ---- tables ---- */

typedef enum kind {
    K_BOOL,
    K_I32,
    K_I64,
    K_U64,
    K_F32,
    K_F64,
    K_TEXT,  /* const char *, NULL or up to a NUL */
    K_BYTES, /* const char * whose length is the size_t at count_offset; NULs allowed */
    K_TEXTS, /* const char *const *; count: int32_t */
    K_ITEMS, /* a pointer to items; count: int64_t or int32_t */
    K_ARRAY, /* items in the struct itself, max of them; count: int32_t */
} kind;

typedef struct field {
    const char *name; /* NULL ends a table */
    kind kind;
    size_t offset, count_offset;
    uint32_t item_bytes, count_bytes;
    int64_t min, max; /* of an integer, or of a count */
    bool same;        /* the count is the one of the field before */
} field;

#define NUMBER(s, m, k, lo, hi)                                                                              \
    { .name = #m, .kind = (k), .offset = offsetof(s, m), .min = (lo), .max = (hi) }
#define BOOL(s, m)        NUMBER(s, m, K_BOOL, 0, 1)
#define I32(s, m, lo, hi) NUMBER(s, m, K_I32, lo, hi)
#define I64(s, m, lo, hi) NUMBER(s, m, K_I64, lo, hi)
#define COUNT(s, m)       I64(s, m, 0, INT64_MAX)
#define COUNT32(s, m)     I32(s, m, 0, INT32_MAX)
#define U64(s, m)         NUMBER(s, m, K_U64, 0, 0)
#define F32(s, m)         NUMBER(s, m, K_F32, 0, 0)
#define F64(s, m)         NUMBER(s, m, K_F64, 0, 0)
#define TEXT(s, m)        NUMBER(s, m, K_TEXT, 0, 0)
#define MANY_OF(s, m, k, n, bytes, hi, is_same)                                                              \
    {                                                                                                        \
        .name = #m, .kind = (k), .offset = offsetof(s, m), .count_offset = offsetof(s, n),                   \
        .item_bytes = (bytes), .count_bytes = sizeof(((s *)0)->n), .max = (hi), .same = (is_same)            \
    }
#define MANY(s, m, k, n, bytes, hi) MANY_OF(s, m, k, n, bytes, hi, false)
#define SAME(s, m, k, n, bytes, hi) MANY_OF(s, m, k, n, bytes, hi, true)

/* A member more in one of these structs: a line more in its table, then the new size below it. */
static const field settings_fields[] = {
    TEXT(fl_settings, model_path),
    TEXT(fl_settings, synthetic),
    U64(fl_settings, synthetic_seed),
    F64(fl_settings, router_skew),
    F64(fl_settings, block_density),
    TEXT(fl_settings, block_density_from),
    TEXT(fl_settings, backend),
    TEXT(fl_settings, kv_dtype),
    TEXT(fl_settings, policy),
    TEXT(fl_settings, tail),
    TEXT(fl_settings, rope),
    F64(fl_settings, rope_factor),
    BOOL(fl_settings, force_positions),
    TEXT(fl_settings, calibration),
    I32(fl_settings, device, INT32_MIN, INT32_MAX),
    BOOL(fl_settings, deterministic),
    BOOL(fl_settings, enforce_eager),
    I32(fl_settings, n_threads, INT32_MIN, INT32_MAX),
    I64(fl_settings, ctx_tokens, INT64_MIN, INT64_MAX),
    I64(fl_settings, kv_tokens, INT64_MIN, INT64_MAX),
    I32(fl_settings, span_tokens, INT32_MIN, INT32_MAX),
    TEXT(fl_settings, scheduling_policy),
    F64(fl_settings, max_decode_stall_s),
    F64(fl_settings, max_step_s),
    I64(fl_settings, scratch_bytes, INT64_MIN, INT64_MAX),
    I32(fl_settings, requests_max, INT32_MIN, INT32_MAX),
    I32(fl_settings, running_max, INT32_MIN, INT32_MAX),
    I64(fl_settings, queue_tokens_max, INT64_MIN, INT64_MAX),
    I64(fl_settings, trace_events, INT64_MIN, INT64_MAX),
    TEXT(fl_settings, kv_disk),
    I64(fl_settings, kv_disk_bytes, INT64_MIN, INT64_MAX),
    BOOL(fl_settings, check_lock),
    {0}, /* progress stays here */
};
_Static_assert(sizeof(fl_settings) == 248, "a new member of fl_settings needs a line in settings_fields");

static const field params_fields[] = {
    MANY(fl_request_params, tokens, K_ITEMS, n_tokens, sizeof(int32_t), FL_WIRE_TOKENS_MAX),
    I64(fl_request_params, document_tokens, INT64_MIN, INT64_MAX),
    I64(fl_request_params, max_tokens, INT64_MIN, INT64_MAX),
    F32(fl_request_params, sampling.temperature),
    I32(fl_request_params, sampling.top_k, INT32_MIN, INT32_MAX),
    F32(fl_request_params, sampling.top_p),
    F32(fl_request_params, sampling.min_p),
    F32(fl_request_params, sampling.repetition_penalty),
    F32(fl_request_params, sampling.presence_penalty),
    F32(fl_request_params, sampling.frequency_penalty),
    U64(fl_request_params, sampling.seed),
    I32(fl_request_params, top_logprobs, INT32_MIN, INT32_MAX),
    MANY(fl_request_params, stops, K_TEXTS, n_stops, 0, FL_STOPS_MAX),
    MANY(fl_request_params, stop_tokens, K_ITEMS, n_stop_tokens, sizeof(int32_t), FL_STOP_TOKENS_MAX),
    MANY(fl_request_params, logit_biases, K_ITEMS, n_logit_biases, sizeof(fl_logit_bias),
         FL_LOGIT_BIASES_MAX),
    I64(fl_request_params, min_tokens, INT64_MIN, INT64_MAX),
    TEXT(fl_request_params, json_schema),
    I32(fl_request_params, priority, INT32_MIN, INT32_MAX),
    F64(fl_request_params, deadline_s),
    TEXT(fl_request_params, cache_salt),
    BOOL(fl_request_params, ignore_eos),
    {0}, /* score_tokens, on_logits and context stay here */
};
_Static_assert(sizeof(fl_request_params) == 208,
               "a new member of fl_request_params needs a line in params_fields");

static const field event_fields[] = {
    I32(fl_event, type, FL_EVENT_PROGRESS, FL_EVENT_DONE),
    I32(fl_event, token, -1, INT32_MAX),
    MANY(fl_event, text, K_BYTES, text_bytes, 1, FL_WIRE_EVENT_MAX),
    F32(fl_event, logprob),
    MANY(fl_event, top, K_ARRAY, n_top, sizeof(fl_token_logprob), FL_TOP_LOGPROBS_MAX),
    I32(fl_event, finish, FL_FINISH_STOP, FL_FINISH_ERROR),
    I32(fl_event, err, FL_ERR_INTERNAL, FL_ERR_OK),
    TEXT(fl_event, err_detail),
    COUNT(fl_event, prompt_tokens),
    COUNT(fl_event, cached_tokens),
    COUNT(fl_event, done_tokens),
    F64(fl_event, done_fraction),
    COUNT(fl_event, answer_tokens),
    F64(fl_event, ttft_s),
    F64(fl_event, elapsed_s),
    {0},
};
_Static_assert(sizeof(fl_event) == 264, "a new member of fl_event needs a line in event_fields");

static const field mark_fields[] = {
    TEXT(fl_mark, name), F64(fl_mark, start_s), F64(fl_mark, end_s), COUNT(fl_mark, tokens), {0},
};
_Static_assert(sizeof(fl_mark) == 32, "a new member of fl_mark needs a line in mark_fields");

static const field info_fields[] = {
    TEXT(fl_engine_info, model_type),
    TEXT(fl_engine_info, backend),
    TEXT(fl_engine_info, kv_dtype),
    COUNT(fl_engine_info, ctx_tokens),
    COUNT(fl_engine_info, kv_tokens),
    COUNT(fl_engine_info, weights_bytes),
    COUNT(fl_engine_info, kv_bytes),
    COUNT(fl_engine_info, scratch_bytes),
    COUNT(fl_engine_info, scratch_peak_bytes),
    COUNT32(fl_engine_info, n_threads),
    COUNT32(fl_engine_info, n_vocab),
    I32(fl_engine_info, bos_token, -1, INT32_MAX),
    TEXT(fl_engine_info, policy),
    TEXT(fl_engine_info, position_warning),
    BOOL(fl_engine_info, graphs),
    COUNT(fl_engine_info, graph_steps),
    COUNT(fl_engine_info, graph_prompt_steps),
    COUNT(fl_engine_info, plain_steps),
    TEXT(fl_engine_info, graph_warning),
    TEXT(fl_engine_info, graph_outside),
    F64(fl_engine_info, block_density),
    COUNT(fl_engine_info, block_overflow),
    {0},
};
_Static_assert(sizeof(fl_engine_info) == 168, "a new member of fl_engine_info needs a line in info_fields");

static const field load_fields[] = {
    COUNT32(fl_engine_load, kv_pages),
    COUNT32(fl_engine_load, kv_pages_free),
    COUNT32(fl_engine_load, kv_pages_cached),
    COUNT32(fl_engine_load, n_waiting),
    COUNT32(fl_engine_load, n_running),
    COUNT(fl_engine_load, n_steps),
    COUNT(fl_engine_load, n_layers),
    COUNT(fl_engine_load, prompt_tokens),
    COUNT(fl_engine_load, cached_tokens),
    COUNT(fl_engine_load, computed_tokens),
    COUNT(fl_engine_load, answer_tokens),
    MANY(fl_engine_load, cost_tokens, K_ARRAY, n_costs, sizeof(int64_t), FL_COST_POINTS_MAX),
    SAME(fl_engine_load, cost_s, K_ARRAY, n_costs, sizeof(double), FL_COST_POINTS_MAX),
    COUNT(fl_engine_load, queue_tokens),
    COUNT(fl_engine_load, queue_tokens_max),
    BOOL(fl_engine_load, fcfs),
    MANY(fl_engine_load, bin_end_s, K_ARRAY, n_bins, sizeof(double), FL_BINS_MAX),
    SAME(fl_engine_load, bin_weight, K_ARRAY, n_bins, sizeof(double), FL_BINS_MAX),
    SAME(fl_engine_load, bin_queued_s, K_ARRAY, n_bins, sizeof(double), FL_BINS_MAX),
    COUNT(fl_engine_load, kv_disk_pages),
    COUNT(fl_engine_load, kv_disk_bytes),
    COUNT(fl_engine_load, kv_disk_waiting),
    COUNT(fl_engine_load, kv_disk_lost),
    COUNT(fl_engine_load, kv_disk_read),
    BOOL(fl_engine_load, lost),
    {0},
};
_Static_assert(sizeof(fl_engine_load) == 600, "a new member of fl_engine_load needs a line in load_fields");

static const field meters_fields[] = {
    COUNT(fl_meters, planned_bytes),
    COUNT(fl_meters, peak_bytes),
    COUNT(fl_meters, steps),
    F64(fl_meters, step_s),
    F64(fl_meters, attention_s),
    F64(fl_meters, linear_s),
    F64(fl_meters, experts_s),
    F64(fl_meters, kv_s),
    F64(fl_meters, recorded_s),
    F64(fl_meters, other_s),
    F64(fl_meters, comm_s),
    TEXT(fl_meters, comm_slowest),
    {0},
};
_Static_assert(sizeof(fl_meters) == 96, "a new member of fl_meters needs a line in meters_fields");

static const field version_fields[] = {I32(fl_wire_hello, version, INT32_MIN, INT32_MAX), {0}};
static const field failed_fields[] = {
    I32(fl_wire_failed, err, FL_ERR_INTERNAL, FL_ERR_NOMEM), TEXT(fl_wire_failed, detail), {0}};

/* ---- writing ---- */

static const uint8_t zeros[8];

static void put(fl_buffer *out, const void *bytes, size_t n) {
    fl_buffer_add(out, bytes, n);
    fl_buffer_add(out, zeros, (8 - n % 8) % 8);
}

static void put_text(fl_buffer *out, const char *text, uint64_t n) {
    uint64_t told = text ? n : UINT64_MAX;
    put(out, &told, sizeof told);
    if (!text) return;
    fl_buffer_add(out, text, n);
    fl_buffer_add(out, zeros, 8 - n % 8); /* at least one: the NUL */
}

static int64_t count_of(const field *f, const void *from) {
    const char *at = (const char *)from + f->count_offset;
    int32_t n32;
    int64_t n64;
    memcpy(&n32, at, sizeof n32);
    if (f->count_bytes == sizeof n32) return n32;
    memcpy(&n64, at, sizeof n64);
    return n64;
}

/* The number of a field as 8 bytes. */
static void put_number(fl_buffer *out, const field *f, const void *at) {
    union {
        int64_t i;
        double d;
    } v = {0};
    switch (f->kind) {
    case K_BOOL: v.i = *(const bool *)at; break;
    case K_I32: v.i = *(const int32_t *)at; break;
    case K_I64: v.i = *(const int64_t *)at; break;
    case K_U64: memcpy(&v, at, sizeof v); break;
    case K_F32: v.d = *(const float *)at; break;
    default: v.d = *(const double *)at; break;
    }
    fl_buffer_add(out, &v, sizeof v);
}

static void put_many(fl_buffer *out, const field *f, const void *items, int64_t n) {
    if (n < 0 || n > f->max) {
        out->failure = FL_ERR_INVALID;
        return;
    }
    fl_buffer_add(out, &n, sizeof n);
    if (n > 0) put(out, items, (size_t)n * f->item_bytes);
}

static void put_texts(fl_buffer *out, const field *f, const char *const *texts, int64_t n) {
    if (n < 0 || n > f->max) {
        out->failure = FL_ERR_INVALID;
        return;
    }
    fl_buffer_add(out, &n, sizeof n);
    for (int64_t i = 0; i < n; i++) put_text(out, texts[i], texts[i] ? strlen(texts[i]) : 0);
}

static void put_fields(fl_buffer *out, const field *fields, const void *from) {
    for (const field *f = fields; f->name; f++) {
        const void *at = (const char *)from + f->offset;
        switch (f->kind) {
        case K_TEXT: {
            const char *text = *(const char *const *)at;
            put_text(out, text, text ? strlen(text) : 0);
            break;
        }
        case K_BYTES: put_text(out, *(const char *const *)at, (uint64_t)count_of(f, from)); break;
        case K_TEXTS: put_texts(out, f, *(const char *const *const *)at, count_of(f, from)); break;
        case K_ITEMS: put_many(out, f, *(const void *const *)at, count_of(f, from)); break;
        case K_ARRAY: put_many(out, f, at, count_of(f, from)); break;
        default: put_number(out, f, at); break;
        }
    }
}

/* What a header says, in the order it lies there. */
typedef struct raw_header {
    uint32_t magic, type;
    uint64_t id;
    uint32_t body_bytes, zero;
} raw_header;
_Static_assert(sizeof(raw_header) == FL_WIRE_HEADER_BYTES, "the header has no holes");

static size_t body_max(fl_wire_type type) {
    switch (type) {
    case FL_WIRE_SUBMIT: return FL_WIRE_BODY_MAX;
    case FL_WIRE_CANCEL: return 0;
    case FL_WIRE_EVENT:
    case FL_WIRE_DONE: return FL_WIRE_EVENT_MAX;
    default: return 64 << 10;
    }
}

static size_t begin(fl_buffer *out, fl_wire_type type, uint64_t id) {
    const raw_header h = {.magic = MAGIC, .type = type, .id = id};
    size_t at = out->n;
    fl_buffer_add(out, &h, sizeof h);
    return at;
}

/* Takes the message back if it is not whole. */
static fl_err end(fl_buffer *out, size_t at, fl_wire_type type) {
    size_t bytes = out->n - at - FL_WIRE_HEADER_BYTES;
    fl_err err = out->failure;
    if (err == FL_ERR_OK && bytes > body_max(type)) err = FL_ERR_LIMIT;
    if (err == FL_ERR_OK) {
        uint32_t told = (uint32_t)bytes;
        memcpy(out->bytes + at + offsetof(raw_header, body_bytes), &told, sizeof told);
        return FL_ERR_OK;
    }
    out->n = at;
    out->failure = FL_ERR_OK;
    if (err == FL_ERR_INVALID) return FL_FAIL(err, "a list of the request has more items than it may have");
    return FL_FAIL(err, "no room for a message of kind %d between front and worker", (int)type);
}

static fl_err put_message(fl_buffer *out, fl_wire_type type, uint64_t id, const field *fields,
                          const void *from) {
    size_t at = begin(out, type, id);
    put_fields(out, fields, from);
    return end(out, at, type);
}

fl_err fl_wire_put_hello(fl_buffer *out, const fl_settings *settings) {
    const fl_wire_hello hello = {.version = FL_WIRE_VERSION};
    size_t at = begin(out, FL_WIRE_HELLO, 0);
    put_fields(out, version_fields, &hello);
    put_fields(out, settings_fields, settings);
    return end(out, at, FL_WIRE_HELLO);
}

fl_err fl_wire_put_submit(fl_buffer *out, uint64_t id, const fl_request_params *params) {
    return put_message(out, FL_WIRE_SUBMIT, id, params_fields, params);
}

fl_err fl_wire_put_cancel(fl_buffer *out, uint64_t id) {
    return end(out, begin(out, FL_WIRE_CANCEL, id), FL_WIRE_CANCEL);
}

fl_err fl_wire_put_loading(fl_buffer *out, double fraction) {
    size_t at = begin(out, FL_WIRE_LOADING, 0);
    fl_buffer_add(out, &fraction, sizeof fraction);
    return end(out, at, FL_WIRE_LOADING);
}

fl_err fl_wire_put_failed(fl_buffer *out, fl_err err, const char *detail) {
    const fl_wire_failed failed = {err, detail};
    return put_message(out, FL_WIRE_FAILED, 0, failed_fields, &failed);
}

fl_err fl_wire_put_ready(fl_buffer *out, const fl_engine_info *info) {
    const fl_wire_hello hello = {.version = FL_WIRE_VERSION};
    size_t at = begin(out, FL_WIRE_READY, 0);
    put_fields(out, version_fields, &hello);
    put_fields(out, info_fields, info);
    return end(out, at, FL_WIRE_READY);
}

fl_err fl_wire_put_event(fl_buffer *out, uint64_t id, const fl_event *event) {
    return put_message(out, FL_WIRE_EVENT, id, event_fields, event);
}

fl_err fl_wire_put_done(fl_buffer *out, uint64_t id, const fl_event *event, const fl_mark *marks,
                        int32_t n_marks) {
    int64_t n = n_marks;
    size_t at = begin(out, FL_WIRE_DONE, id);
    put_fields(out, event_fields, event);
    fl_buffer_add(out, &n, sizeof n);
    for (int32_t i = 0; i < n_marks; i++) put_fields(out, mark_fields, &marks[i]);
    return end(out, at, FL_WIRE_DONE);
}

fl_err fl_wire_put_load(fl_buffer *out, const fl_engine_load *load, const fl_meters *meters) {
    size_t at = begin(out, FL_WIRE_LOAD, 0);
    put_fields(out, load_fields, load);
    put_fields(out, meters_fields, meters);
    return end(out, at, FL_WIRE_LOAD);
}

/* ---- reading ---- */

typedef struct reader {
    const uint8_t *at;
    size_t left;
    const char **texts; /* where K_TEXTS go, [FL_STOPS_MAX] */
} reader;

static fl_err bad(const char *name, const char *what) {
    return FL_FAIL(FL_ERR_DATA, "message between front and worker: %s: %s", name, what);
}

/* The next n bytes and what fills them up to 8. */
static fl_err take(reader *in, uint64_t n, const char *name, const uint8_t **out) {
    uint64_t padded = n > in->left ? n : (n + 7) / 8 * 8;
    if (padded > in->left) return bad(name, "the message ends within");
    *out = in->at;
    in->at += padded;
    in->left -= padded;
    return FL_ERR_OK;
}

static fl_err take_word(reader *in, const char *name, void *out) {
    const uint8_t *at = NULL;
    FL_TRY(take(in, 8, name, &at));
    memcpy(out, at, 8);
    return FL_ERR_OK;
}

static fl_err get_text(reader *in, const field *f, const char **text, uint64_t *n) {
    const uint8_t *at = NULL;
    *text = NULL;
    FL_TRY(take_word(in, f->name, n));
    if (*n == UINT64_MAX) {
        *n = 0;
        return FL_ERR_OK;
    }
    if (*n >= in->left) return bad(f->name, "the message ends within");
    FL_TRY(take(in, *n + 1, f->name, &at));
    if (at[*n] != 0) return bad(f->name, "no NUL at the end");
    if (f->kind != K_BYTES && memchr(at, 0, *n)) return bad(f->name, "a NUL within");
    *text = (const char *)at;
    return FL_ERR_OK;
}

static void set_count(const field *f, void *to, int64_t n) {
    int32_t n32 = (int32_t)n;
    if (f->count_bytes == sizeof n32) memcpy((char *)to + f->count_offset, &n32, sizeof n32);
    else memcpy((char *)to + f->count_offset, &n, sizeof n);
}

static fl_err get_count(reader *in, const field *f, void *to, int64_t *n) {
    FL_TRY(take_word(in, f->name, n));
    if (*n < 0 || *n > f->max) return bad(f->name, "too many");
    if (f->same && *n != count_of(f, to)) return bad(f->name, "not as many as of its fellow");
    set_count(f, to, *n);
    return FL_ERR_OK;
}

static fl_err get_texts(reader *in, const field *f, void *to, void *at) {
    int64_t n = 0;
    uint64_t length;
    FL_TRY(get_count(in, f, to, &n));
    for (int64_t i = 0; i < n; i++) FL_TRY(get_text(in, f, &in->texts[i], &length));
    *(const char *const **)at = n > 0 ? in->texts : NULL;
    return FL_ERR_OK;
}

static fl_err get_many(reader *in, const field *f, void *to, void *at) {
    int64_t n = 0;
    const uint8_t *items = NULL;
    FL_TRY(get_count(in, f, to, &n));
    if (n > 0) FL_TRY(take(in, (uint64_t)n * f->item_bytes, f->name, &items));
    if (f->kind == K_ITEMS) *(const void **)at = items;
    else if (n > 0) memcpy(at, items, (size_t)n * f->item_bytes);
    return FL_ERR_OK;
}

static fl_err get_real(const field *f, double d, void *at) {
    if (isnan(d)) return bad(f->name, "not a number");
    if (f->kind == K_F32) *(float *)at = (float)d;
    else *(double *)at = d;
    return FL_ERR_OK;
}

static fl_err get_number(reader *in, const field *f, void *at) {
    union {
        int64_t i;
        double d;
    } v;
    FL_TRY(take_word(in, f->name, &v));
    if (f->kind == K_F32 || f->kind == K_F64) return get_real(f, v.d, at);
    if (f->kind != K_U64 && (v.i < f->min || v.i > f->max)) return bad(f->name, "out of range");
    if (f->kind == K_BOOL) *(bool *)at = v.i != 0;
    else if (f->kind == K_I32) *(int32_t *)at = (int32_t)v.i;
    else memcpy(at, &v, sizeof v);
    return FL_ERR_OK;
}

static fl_err get_fields(reader *in, const field *fields, void *to) {
    for (const field *f = fields; f->name; f++) {
        void *at = (char *)to + f->offset;
        uint64_t n = 0;
        switch (f->kind) {
        case K_TEXT: FL_TRY(get_text(in, f, at, &n)); break;
        case K_BYTES:
            FL_TRY(get_text(in, f, at, &n));
            set_count(f, to, (int64_t)n);
            break;
        case K_TEXTS: FL_TRY(get_texts(in, f, to, at)); break;
        case K_ITEMS:
        case K_ARRAY: FL_TRY(get_many(in, f, to, at)); break;
        default: FL_TRY(get_number(in, f, at)); break;
        }
    }
    return FL_ERR_OK;
}

static fl_err get_end(const reader *in) {
    return in->left == 0 ? FL_ERR_OK : bad("end", "more bytes than fields");
}

static fl_err get_message(const uint8_t *body, size_t n, const field *fields, void *to) {
    reader in = {.at = body, .left = n};
    FL_TRY(get_fields(&in, fields, to));
    return get_end(&in);
}

fl_err fl_wire_get_header(const uint8_t *bytes, fl_wire_header *out) {
    raw_header h;
    memcpy(&h, bytes, sizeof h);
    if (h.magic != MAGIC || h.zero != 0) return bad("header", "not a message");
    if (h.type < FL_WIRE_HELLO || h.type >= FL_WIRE_TYPES) return bad("header", "of no known kind");
    *out = (fl_wire_header){.type = (fl_wire_type)h.type, .id = h.id, .body_bytes = h.body_bytes};
    if (h.body_bytes > body_max(out->type) || h.body_bytes % 8 != 0) return bad("header", "a bad length");
    return FL_ERR_OK;
}

fl_err fl_wire_get_hello(const uint8_t *body, size_t n, fl_wire_hello *out) {
    reader in = {.at = body, .left = n};
    *out = (fl_wire_hello){0};
    FL_TRY(get_fields(&in, version_fields, out));
    if (out->version != FL_WIRE_VERSION)
        return FL_FAIL(FL_ERR_DATA,
                       "the front speaks version %d, this worker %d: they are of different builds",
                       out->version, FL_WIRE_VERSION);
    FL_TRY(get_fields(&in, settings_fields, &out->settings));
    return get_end(&in);
}

fl_err fl_wire_get_submit(const uint8_t *body, size_t n, fl_wire_submit *out) {
    reader in = {.at = body, .left = n, .texts = out->stops};
    fl_request_params_default(&out->params);
    FL_TRY(get_fields(&in, params_fields, &out->params));
    return get_end(&in);
}

fl_err fl_wire_get_loading(const uint8_t *body, size_t n, double *fraction) {
    reader in = {.at = body, .left = n};
    FL_TRY(take_word(&in, "fraction", fraction));
    if (!(*fraction >= 0 && *fraction <= 1)) return bad("fraction", "out of range");
    return get_end(&in);
}

fl_err fl_wire_get_failed(const uint8_t *body, size_t n, fl_wire_failed *out) {
    *out = (fl_wire_failed){0};
    return get_message(body, n, failed_fields, out);
}

fl_err fl_wire_get_ready(const uint8_t *body, size_t n, fl_wire_ready *out) {
    reader in = {.at = body, .left = n};
    fl_wire_hello hello;
    *out = (fl_wire_ready){0};
    FL_TRY(get_fields(&in, version_fields, &hello));
    out->version = hello.version;
    if (out->version != FL_WIRE_VERSION)
        return FL_FAIL(FL_ERR_DATA,
                       "the worker speaks version %d, this front %d: they are of different builds",
                       out->version, FL_WIRE_VERSION);
    FL_TRY(get_fields(&in, info_fields, &out->info));
    return get_end(&in);
}

fl_err fl_wire_get_event(const uint8_t *body, size_t n, fl_event *out) {
    memset(out, 0, sizeof *out);
    FL_TRY(get_message(body, n, event_fields, out));
    return out->type != FL_EVENT_DONE ? FL_ERR_OK : bad("type", "the end without its timeline");
}

fl_err fl_wire_get_done(const uint8_t *body, size_t n, fl_wire_done *out) {
    reader in = {.at = body, .left = n};
    int64_t n_marks = 0;
    memset(&out->event, 0, sizeof out->event);
    FL_TRY(get_fields(&in, event_fields, &out->event));
    if (out->event.type != FL_EVENT_DONE) return bad("type", "not the end");
    FL_TRY(take_word(&in, "marks", &n_marks));
    if (n_marks < 0 || n_marks > FL_WIRE_MARKS_MAX) return bad("marks", "too many");
    out->n_marks = (int32_t)n_marks;
    for (int32_t i = 0; i < out->n_marks; i++) {
        FL_TRY(get_fields(&in, mark_fields, &out->marks[i]));
        if (!out->marks[i].name) return bad("mark", "no name");
    }
    return get_end(&in);
}

fl_err fl_wire_get_load(const uint8_t *body, size_t n, fl_engine_load *load, fl_meters *meters) {
    reader in = {.at = body, .left = n};
    memset(load, 0, sizeof *load);
    memset(meters, 0, sizeof *meters);
    FL_TRY(get_fields(&in, load_fields, load));
    FL_TRY(get_fields(&in, meters_fields, meters));
    FL_TRY(get_end(&in));
    return load->n_costs > 0 ? FL_ERR_OK : bad("costs", "none");
}
