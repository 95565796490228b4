#include "engine/fake_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KEPT_MAX = 4096 };

/* ---- a device made of a CPU backend ---- */

typedef fl_err op_fn(fl_backend *be, const void *args);

typedef struct kept_op {
    op_fn *run;
    void *args;
} kept_op;

struct fl_recording {
    kept_op list[KEPT_MAX];
    int32_t n;
};

struct fake_device fake;

/* Whoever issues has to have entered: a real device refuses others' launches, unless it is the first one. */
static void look_who_issues(void) {
    fake.n_strange += fake.n_entered == 0 || !pthread_equal(fake.entered, pthread_self());
}

static fl_err enter(fl_backend *be) {
    (void)be;
    if (fake.refuse_thread) return FL_FAIL(FL_ERR_DEVICE, "the thread is refused");
    fake.entered = pthread_self();
    fake.n_entered++;
    return FL_ERR_OK;
}

static fl_err keep(op_fn *run, const void *args, size_t bytes) {
    assert_true(fake.open->n < KEPT_MAX);
    kept_op *op = &fake.open->list[fake.open->n++];
    *op = (kept_op){.run = run, .args = malloc(bytes)};
    assert_non_null(op->args);
    memcpy(op->args, args, bytes);
    return FL_ERR_OK;
}

#define X(op)                                                                                                \
    static fl_err replay_##op(fl_backend *be, const void *a) {                                               \
        return fake.real->op(be, a);                                                                         \
    }                                                                                                        \
    static fl_err fake_##op(fl_backend *be, const fl_##op##_args *a) {                                       \
        look_who_issues();                                                                                   \
        return fake.open ? keep(replay_##op, a, sizeof *a) : fake.real->op(be, a);                           \
    }
#include "op/oplist.inc"
#undef X

/* Ops that read positions when they run: their descriptors are kept by value, as a kernel's parameters are. */
typedef struct kept_rows {
    union {
        fl_kv_write_args write;
        fl_attn_absorbed_args absorbed;
    } args;
    fl_kv_rows seqs[FL_GRAPH_ROWS_MAX];
} kept_rows;

static void read_positions(const kept_rows *k, int32_t n, fl_kv_rows *seqs) {
    assert_true(n <= FL_GRAPH_ROWS_MAX);
    for (int32_t i = 0; i < n; i++) {
        seqs[i] = k->seqs[i];
        if (!seqs[i].pos_at) continue;
        assert_true(*seqs[i].pos_at <= seqs[i].pos);
        seqs[i].pos = *seqs[i].pos_at;
    }
}

static fl_err run_write(fl_backend *be, const void *kept) {
    fl_kv_rows seqs[FL_GRAPH_ROWS_MAX];
    fl_kv_write_args args = ((const kept_rows *)kept)->args.write;
    read_positions(kept, args.n_seqs, seqs);
    args.seqs = seqs;
    return fake.real->kv_write(be, &args);
}

static fl_err run_absorbed(fl_backend *be, const void *kept) {
    fl_kv_rows seqs[FL_GRAPH_ROWS_MAX];
    fl_attn_absorbed_args args = ((const kept_rows *)kept)->args.absorbed;
    read_positions(kept, args.n_seqs, seqs);
    args.seqs = seqs;
    return fake.real->attn_absorbed(be, &args);
}

static fl_err write_rows(fl_backend *be, const fl_kv_write_args *a) {
    kept_rows k = {.args.write = *a};
    memcpy(k.seqs, a->seqs, (size_t)a->n_seqs * sizeof *a->seqs);
    return fake.open ? keep(run_write, &k, sizeof k) : run_write(be, &k);
}

static fl_err absorbed_rows(fl_backend *be, const fl_attn_absorbed_args *a) {
    kept_rows k = {.args.absorbed = *a};
    memcpy(k.seqs, a->seqs, (size_t)a->n_seqs * sizeof *a->seqs);
    return fake.open ? keep(run_absorbed, &k, sizeof k) : run_absorbed(be, &k);
}

/* Of attn_prefill: a list's header is kept by value, and so is the call over means that is made together with it. */
typedef struct kept_prefill {
    fl_attn_prefill_args args[2];
    fl_attn_list lists[2];
    int32_t n;
} kept_prefill;

/* A device's kernel reads keys where they are; this one wants scratch for them. */
static fl_err run_prefill(fl_backend *be, const void *kept) {
    const kept_prefill *k = kept;
    fl_err err = FL_ERR_OK;
    for (int32_t i = 0; i < k->n && err == FL_ERR_OK; i++) {
        fl_attn_prefill_args args = k->args[i];
        void *memory = calloc(1, (size_t)fl_attn_prefill_scratch_bytes(&args) + 64);
        assert_non_null(memory);
        args.scratch = (void *)(((uintptr_t)memory + 63) / 64 * 64);
        args.list = args.list ? &k->lists[i] : NULL;
        err = fake.real->attn_prefill(be, &args);
        free(memory);
    }
    return err;
}

static fl_err prefill_rows(fl_backend *be, const fl_attn_prefill_args *a) {
    kept_prefill k = {.n = 0};
    for (; a; a = a->then, k.n++) {
        assert_true(k.n < 2);
        k.args[k.n] = *a;
        if (a->list) k.lists[k.n] = *a->list;
        k.args[k.n].then = NULL;
    }
    return fake.open ? keep(run_prefill, &k, sizeof k) : run_prefill(be, &k);
}

static fl_err copy(fl_backend *be, void *to, const void *from, int64_t bytes) {
    (void)be;
    assert_null(fake.open); /* such a copy could not be replayed */
    memcpy(to, from, (size_t)bytes);
    return FL_ERR_OK;
}

static fl_err wait(fl_backend *be) {
    (void)be;
    assert_null(fake.open);
    return fake.lost ? FL_FAIL(FL_ERR_DEVICE, "an illegal memory access") : FL_ERR_OK;
}

static fl_err download(fl_backend *be, void *to, const void *from, int64_t bytes) {
    memcpy(to, from, (size_t)bytes);
    return wait(be);
}

/* What is drawn changes from step to step: never part of a recording. A device needs no scratch for it. */
static fl_err draw_rows(fl_backend *be, const fl_sample_args *a) {
    fl_sample_args args = *a;
    assert_null(fake.open);
    assert_null(a->scratch);
    if (a->n_rows == fake.poisoned_rows) {
        ((float *)(uintptr_t)a->logits)[a->logits_stride] = NAN;
        fake.n_poisoned++;
    }
    args.scratch = malloc((size_t)fl_sample_scratch_bytes(a->n_known));
    fl_err err = fake.real->sample(be, &args);
    free(args.scratch);
    return err;
}

static fl_err record(fl_backend *be) {
    (void)be;
    assert_null(fake.open);
    fake.open = calloc(1, sizeof *fake.open);
    assert_non_null(fake.open);
    fake.n_open++;
    return FL_ERR_OK;
}

static void recording_close(fl_backend *be, fl_recording *r) {
    (void)be;
    for (int32_t i = 0; i < r->n; i++) free(r->list[i].args);
    free(r);
    fake.n_open--;
}

static fl_err record_end(fl_backend *be, fl_recording **out) {
    fl_recording *made = fake.open;
    fake.open = NULL;
    if (out && !fake.refuse) *out = made;
    else recording_close(be, made);
    return fake.refuse ? FL_FAIL(FL_ERR_DEVICE, "the graph is refused") : FL_ERR_OK;
}

static fl_err replay(fl_backend *be, const fl_recording *r) {
    if (fake.refuse_replay) return FL_FAIL(FL_ERR_DEVICE, "the replay is refused");
    bool documents = false, answers = false;
    for (int32_t i = 0; i < r->n; i++) {
        documents |= r->list[i].run == run_prefill;
        answers |=
            r->list[i].run == run_absorbed && ((const kept_rows *)r->list[i].args)->args.absorbed.n_seqs > 1;
    }
    fake.n_replays++;
    fake.n_mixed += documents && answers;
    for (int32_t i = 0; i < r->n; i++) FL_TRY(r->list[i].run(be, r->list[i].args));
    return FL_ERR_OK;
}

fl_err counted_alloc(fl_backend *be, int64_t bytes, void **out) {
    fake.n_allocs++;
    return fake.alloc(be, bytes, out);
}

void become_device(fl_engine *e) {
    fl_backend *be = e->be;
    fl_engine_forget(e); /* no page is held */
    fake.real = be->op;
#define X(op) fake.table.op = fake_##op;
#include "op/oplist.inc"
#undef X
    fake.table.kv_write = write_rows;
    fake.table.attn_absorbed = absorbed_rows;
    fake.table.sample = draw_rows;
    fake.table.attn_prefill = prefill_rows;
    be->op = &fake.table;
    be->device = true;
    be->enter = enter;
    be->upload = copy;
    be->download = download;
    be->wait = wait;
    be->alloc_host = be->alloc;
    be->free_host = be->free;
    be->record = record;
    be->record_end = record_end;
    be->replay = replay;
    be->recording_close = recording_close;
    fl_backend_seal(be, false);
    assert_int_equal(fl_graphs_open(be, e->config, e->ctx_tokens, &e->graphs), FL_ERR_OK);
    fl_backend_seal(be, true);
    /* Behind the pages that checks use; a real device has it behind the pool. */
    e->spare_page = e->kv_pages - 1;
    while (fl_kv_pool_free_pages(e->pool) > 0) (void)fl_kv_pool_take(e->pool);
    for (int32_t i = 0; i < e->spare_page; i++) fl_kv_pool_drop(e->pool, i);
}

void change_worker(fl_engine *e) {
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->lock);
    assert_int_equal(pthread_join(e->worker, NULL), 0);
    e->closing = false;
    assert_int_equal(pthread_create(&e->worker, NULL, fl_worker_main, e), 0);
}

/* ---- answers ---- */

int32_t document_tokens, answers_shorter, salt;

fl_engine *open_fake_policy(const char *policy) {
    fl_settings s;
    fl_engine *e = NULL;
    memset(&fake, 0, sizeof fake);
    document_tokens = answers_shorter = salt = 0;
    fl_settings_default(&s);
    s.model_path = "build/models/spark-66m";
    s.backend = fl_backend_available("avx512") ? "avx512"
                : fl_backend_available("avx2") ? "avx2"
                                               : "reference";
    s.ctx_tokens = 2048;
    s.kv_tokens = REQUESTS * 2048;
    s.span_tokens = 256;
    s.policy = policy;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

fl_engine *open_fake(void) {
    return open_fake_policy("full");
}

void read_fake_answer(fl_request *r, answer *out) {
    fl_event event;
    do {
        assert_int_equal(fl_poll(r, 10, &event), FL_ERR_OK);
        if (event.type != FL_EVENT_TOKEN || event.token < 0) continue;
        out->tokens[out->n] = event.token;
        out->logprobs[out->n++] = event.logprob;
    } while (event.type != FL_EVENT_DONE);
    out->err = event.err;
    if (event.err != FL_ERR_OK) memcpy(out->detail, event.err_detail, sizeof out->detail);
}

void ask_fake(fl_engine *e, const int32_t *n, int32_t n_requests, answer *out) {
    fl_session *session[REQUESTS];
    fl_request *request[REQUESTS];
    int32_t ids[2048];
    char salt_text[16];
    memset(out, 0, (size_t)n_requests * sizeof *out);
    for (int32_t i = 0; i < 2048; i++) ids[i] = 5 + i * 7919 % 8000;
    for (int32_t i = 0; i < n_requests; i++) {
        fl_request_params p;
        fl_request_params_default(&p);
        p.tokens = ids + i;
        p.n_tokens = n[i];
        p.document_tokens = document_tokens < n[i] ? document_tokens : n[i];
        p.max_tokens = ANSWER - 7 * i - answers_shorter;
        snprintf(salt_text, sizeof salt_text, "%d", salt);
        p.cache_salt = salt_text;
        p.ignore_eos = true;
        assert_int_equal(fl_session_open(e, &session[i]), FL_ERR_OK);
        out[i].err = fl_submit(session[i], &p, &request[i]);
        if (out[i].err == FL_ERR_OK) continue;
        assert_int_equal(out[i].err, FL_ERR_DEVICE); /* lost by one before */
        snprintf(out[i].detail, sizeof out[i].detail, "%s", fl_err_detail());
        request[i] = NULL;
    }
    for (int32_t i = 0; i < n_requests; i++)
        if (request[i]) read_fake_answer(request[i], &out[i]);
    for (int32_t i = 0; i < n_requests; i++) {
        if (request[i]) fl_request_close(request[i]);
        fl_session_close(session[i]);
    }
}

void assert_same_answer(const answer *a, const answer *b) {
    if (b->err != FL_ERR_OK) fail_msg("%s", b->detail);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->logprobs, b->logprobs, sizeof a->logprobs);
}
