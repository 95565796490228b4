/* Steps as recordings, decode and prompts in buckets, on a device that is made of a CPU backend: it keeps the ops of a
 * recording with their arguments and runs them again on what memory holds by then. So what a recording keeps that it
 * should have read, or reads from another place than the step wrote, shows in the answer's bits. And memory that nobody
 * takes after start, and a device that is lost. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/graph_bench.h"

enum { ANSWER = 40, REQUESTS = 3, KEPT_MAX = 4096 };

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

static struct fake {
    const fl_op_table *real;
    fl_op_table table;
    fl_recording *open; /* being recorded */
    int32_t n_open, n_replays, n_allocs;
    bool refuse, refuse_replay, lost;
    int32_t poisoned_rows; /* draws of so many rows find a NaN as the second row's first logit; 0 = none */
    int32_t n_poisoned;
    fl_err (*alloc)(fl_backend *be, int64_t bytes, void **out);
} fake;

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

/* A device's kernel reads keys where they are; this one wants scratch for them. */
static fl_err run_prefill(fl_backend *be, const void *kept) {
    fl_attn_prefill_args args = *(const fl_attn_prefill_args *)kept;
    void *memory = calloc(1, (size_t)fl_attn_prefill_scratch_bytes(&args) + 64);
    assert_non_null(memory);
    args.scratch = (void *)(((uintptr_t)memory + 63) / 64 * 64);
    fl_err err = fake.real->attn_prefill(be, &args);
    free(memory);
    return err;
}

static fl_err prefill_rows(fl_backend *be, const fl_attn_prefill_args *a) {
    return fake.open ? keep(run_prefill, a, sizeof *a) : run_prefill(be, a);
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
    fake.n_replays++;
    for (int32_t i = 0; i < r->n; i++) FL_TRY(r->list[i].run(be, r->list[i].args));
    return FL_ERR_OK;
}

static fl_err counted_alloc(fl_backend *be, int64_t bytes, void **out) {
    fake.n_allocs++;
    return fake.alloc(be, bytes, out);
}

/* The engine's backend becomes a device that can record. No request runs. */
static void become_device(fl_engine *e) {
    fl_backend *be = e->be;
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

/* ---- answers ---- */

typedef struct answer {
    int32_t tokens[ANSWER];
    float logprobs[ANSWER];
    int32_t n;
    fl_err err;
    char detail[512];
} answer;

/* Of the prompts that ask() asks; answers are shorter than ANSWER then; not 0: nobody's document is found again. */
static int32_t document_tokens, answers_shorter, salt;

static fl_engine *open_engine(void) {
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
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

static void read_answer(fl_request *r, answer *out) {
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

/* Requests of n[i] prompt tokens at once. */
static void ask(fl_engine *e, const int32_t *n, int32_t n_requests, answer *out) {
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
        assert_int_equal(fl_submit(session[i], &p, &request[i]), FL_ERR_OK);
    }
    for (int32_t i = 0; i < n_requests; i++) read_answer(request[i], &out[i]);
    for (int32_t i = 0; i < n_requests; i++) {
        fl_request_close(request[i]);
        fl_session_close(session[i]);
    }
}

static void assert_same(const answer *a, const answer *b) {
    if (b->err != FL_ERR_OK) fail_msg("%s", b->detail);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->logprobs, b->logprobs, sizeof a->logprobs);
}

/* ---- tests ---- */

/* Across a split's end, a page's end and a ceiling; rows that come and go. */
static const int32_t lengths[REQUESTS] = {500, 1010, 30};

static void replays_give_the_bits_of_plain_steps(void **state) {
    (void)state;
    answer plain[REQUESTS], found[REQUESTS];
    fl_engine_info info;
    fl_engine *e = open_engine();
    ask(e, lengths, REQUESTS, plain);
    become_device(e);
    for (int32_t i = 0; i < REQUESTS; i++) { /* alone */
        ask(e, &lengths[i], 1, found);
        if (i == 0) assert_same(&plain[0], &found[0]);
    }
    assert_true(fake.n_replays > ANSWER);
    ask(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_same(&plain[i], &found[i]);
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_steps, fake.n_replays);
    assert_true(info.plain_steps > 0);
    assert_null(info.graph_warning);
    fl_engine_forget(e);
    assert_int_equal(fake.n_open, 0);
    ask(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_same(&plain[i], &found[i]);
    fl_engine_close(e);
    assert_int_equal(fake.n_open, 0);
}

static void a_step_that_cannot_be_recorded_runs_plainly(void **state) {
    (void)state;
    answer plain[REQUESTS], found[REQUESTS];
    fl_engine_info info;
    fl_engine *e = open_engine();
    ask(e, lengths, REQUESTS, plain);
    become_device(e);
    fake.refuse = true;
    ask(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_same(&plain[i], &found[i]);
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_steps, 0);
    assert_string_equal(info.graph_warning, "the graph is refused");
    assert_int_equal(fake.n_open, 0);
    fl_engine_close(e);
    e = open_engine();
    become_device(e);
    fake.refuse_replay = true;
    ask(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_same(&plain[i], &found[i]);
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_steps, 0);
    assert_string_equal(info.graph_warning, "the replay is refused");
    assert_int_equal(fake.n_open, 0);
    fl_engine_close(e);
}

/* Tail alone and behind documents, at a bucket's end and far from it, of one bucket and of several. */
static const struct {
    int32_t document, prompt;
} prompts[] = {{0, 40},    {0, 41},    {0, 47},    {0, 1},     {0, 256},   {0, 301},
               {128, 150}, {192, 193}, {200, 240}, {256, 256}, {256, 511}, {64, 127}};
enum { PROMPTS = sizeof prompts / sizeof *prompts };

static void ask_all(fl_engine *e, answer *out) {
    answers_shorter = ANSWER - 3;
    for (int32_t i = 0; i < PROMPTS; i++) {
        document_tokens = prompts[i].document;
        salt += i % 4 > 0;
        ask(e, &prompts[i].prompt, 1, &out[i]);
    }
}

static void assert_all_same(fl_engine *e, const answer *plain) {
    static answer found[PROMPTS];
    ask_all(e, found);
    for (int32_t i = 0; i < PROMPTS; i++) {
        if (memcmp(plain[i].tokens, found[i].tokens, sizeof plain[i].tokens) != 0)
            print_message("prompt of %d + %d tokens:\n", prompts[i].document,
                          prompts[i].prompt - prompts[i].document);
        assert_same(&plain[i], &found[i]);
    }
}

static void prompts_in_buckets_give_the_bits_of_plain_steps(void **state) {
    (void)state;
    static answer plain[PROMPTS];
    fl_engine_info info;
    fl_engine_load warm, load;
    fl_engine *e = open_engine();
    fl_engine_get_load(e, &warm);
    ask_all(e, plain);
    become_device(e);
    for (int32_t i = 0; i < 3; i++) assert_all_same(e, plain);
    fl_engine_get_info(e, &info);
    assert_true(info.graph_prompt_steps > 2 * PROMPTS);
    assert_true(info.graph_prompt_steps < info.graph_steps);
    assert_int_equal(info.graph_steps, fake.n_replays);
    assert_true(info.scratch_peak_bytes <= info.scratch_bytes);
    assert_null(info.graph_warning);
    fake.refuse_replay = true;
    assert_all_same(e, plain);
    fl_engine_get_info(e, &info);
    assert_string_equal(info.graph_warning, "the replay is refused");
    int64_t before = info.graph_prompt_steps;
    fake.refuse_replay = false;
    assert_all_same(e, plain); /* plain ever after */
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_prompt_steps, before);
    fl_engine_get_load(e, &load); /* who watches an engine sees its layers, or takes it for stuck */
    assert_int_equal(load.n_layers - warm.n_layers, (load.n_steps - warm.n_steps) * e->config->layers);
    fl_engine_close(e);
    assert_int_equal(fake.n_open, 0);
}

static void rows_that_fill_a_bucket_touch_nobody(void **state) {
    (void)state;
    answer found;
    int32_t prompt = 150;
    fl_engine *e = open_engine();
    become_device(e);
    uint8_t *page, *copy_of_pages = malloc((size_t)e->kv_bytes);
    int64_t bytes = e->kv_bytes / e->kv_pages;
    int32_t n_written = 0;
    assert_non_null(copy_of_pages);
    memset(e->kv_memory, 0x5a, (size_t)e->kv_bytes);
    memcpy(copy_of_pages, e->kv_memory, (size_t)e->kv_bytes);
    document_tokens = 128;
    answers_shorter = ANSWER - 1;
    ask(e, &prompt, 1, &found); /* 128 rows and 22, which become 64 */
    for (int32_t i = 0; i < e->kv_pages; i++) {
        page = (uint8_t *)e->kv_memory + i * bytes;
        n_written += i != e->spare_page && memcmp(page, copy_of_pages + i * bytes, (size_t)bytes) != 0;
    }
    assert_int_equal(n_written, 3);
    free(copy_of_pages);
    fl_engine_close(e);
}

static bool bucket(const fl_graphs *g, const fl_attend *attend, const fl_graph_piece *piece,
                   fl_graph_piece *out) {
    return fl_graph_wants(attend, piece, 1e9) && fl_graphs_bucket(g, piece, out);
}

static void buckets_are_a_quarter_too_large_at_most(void **state) {
    (void)state;
    fl_attend attend = {0};
    fl_graph_piece b, before = {0};
    fl_engine *e = open_engine();
    become_device(e);
    fl_graphs *far = NULL;
    fl_backend_seal(e->be, false);
    assert_int_equal(fl_graphs_open(e->be, e->config, 1 << 20, &far), FL_ERR_OK);
    int32_t n = 0;
    for (int32_t rows = 64; rows <= FL_GRAPH_DOCUMENT_ROWS_MAX; rows += 64) {
        assert_true(bucket(far, &attend, &(fl_graph_piece){.document_rows = rows}, &b));
        assert_true(b.document_rows >= rows && b.tail_rows == 0 && b.document_rows % 128 == 0);
        assert_true(b.document_rows - rows < 128 || 4 * (b.document_rows - rows) < rows);
        n += b.document_rows != before.document_rows;
        before = b;
    }
    for (int32_t rows = 1; rows <= FL_GRAPH_TAIL_ROWS_MAX; rows++) {
        assert_true(bucket(far, &attend, &(fl_graph_piece){0, rows, 1000}, &b));
        assert_true(b.tail_rows >= rows && b.document_rows == 0 && b.pos == 1000);
        assert_true(b.tail_rows - rows < 8 || 4 * (b.tail_rows - rows) < rows);
        n += b.tail_rows != before.tail_rows;
        before = b;
    }
    assert_true(n < 40);
    /* Outside. */
    assert_false(bucket(NULL, &attend, &(fl_graph_piece){0, 8, 0}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){8256, 0, 0}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){0, 257, 0}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){128, 8, 128}, &b));
    assert_true(bucket(far, &attend, &(fl_graph_piece){0, 8, FL_GRAPH_TOKENS_MAX - 8}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){0, 8, FL_GRAPH_TOKENS_MAX - 7}, &b));
    assert_true(bucket(e->graphs, &attend, &(fl_graph_piece){0, 3, 2040}, &b));
    assert_false(bucket(e->graphs, &attend, &(fl_graph_piece){0, 3, 2041}, &b));
    assert_false(fl_graph_wants(&attend, &(fl_graph_piece){0, 8, 0}, 2e10));
    assert_true(fl_graph_wants(&attend, &(fl_graph_piece){128, 8, 0}, 2e10));
    assert_false(fl_graph_wants(&attend, &(fl_graph_piece){128, 8, 0}, 1e12));
    attend.blocks = true;
    assert_true(bucket(far, &attend, &(fl_graph_piece){0, 8, 256}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){128, 8, 0}, &b));
    fl_graphs_close(far);
    fl_engine_close(e);
}

static fl_err issue_nothing(void *context) {
    ++*(int32_t *)context;
    return FL_ERR_OK;
}

static void the_longest_unused_recording_goes_first(void **state) {
    (void)state;
    fl_graph_shape shape = {.rows = 1, .n_seqs = 1, .n_logit_rows = 1};
    int32_t n_issued = 0;
    fl_engine *e = open_engine();
    become_device(e);
    for (int32_t turn = 0; turn < 2; turn++)
        for (shape.ceiling = 0; shape.ceiling < FL_GRAPHS_MAX; shape.ceiling++)
            assert_int_equal(fl_graphs_run(e->graphs, &shape, issue_nothing, &n_issued), FL_ERR_OK);
    assert_int_equal(n_issued, 2 * FL_GRAPHS_MAX); /* plainly, then into the recording */
    assert_int_equal(fake.n_open, FL_GRAPHS_MAX);
    shape.ceiling = 0;
    assert_int_equal(fl_graphs_run(e->graphs, &shape, issue_nothing, &n_issued), FL_ERR_OK);
    shape.document_rows = 1; /* in place of the second */
    for (int32_t turn = 0; turn < 2; turn++)
        assert_int_equal(fl_graphs_run(e->graphs, &shape, issue_nothing, &n_issued), FL_ERR_OK);
    assert_int_equal(fake.n_open, FL_GRAPHS_MAX);
    shape.document_rows = 0;
    assert_int_equal(fl_graphs_run(e->graphs, &shape, issue_nothing, &n_issued), FL_ERR_OK);
    assert_int_equal(n_issued, 2 * FL_GRAPHS_MAX + 2);
    shape.ceiling = 1;
    assert_int_equal(fl_graphs_run(e->graphs, &shape, issue_nothing, &n_issued), FL_ERR_OK);
    assert_int_equal(n_issued, 2 * FL_GRAPHS_MAX + 3);
    fl_engine_close(e);
}

/* Scored prompts and steps that would be over the scratch as buckets are no recordings, and that is said. */
static void a_prompt_outside_all_buckets_runs_plainly(void **state) {
    (void)state;
    answer plain, found;
    int32_t prompt = 1500;
    fl_engine_info info;
    fl_engine *e = open_engine();
    document_tokens = 1472;
    answers_shorter = ANSWER - 3;
    ask(e, &prompt, 1, &plain);
    become_device(e);
    salt++;
    ask(e, &prompt, 1, &found); /* the document's second step begins at 256 */
    assert_same(&plain, &found);
    fl_engine_get_info(e, &info);
    assert_non_null(info.graph_outside);
    assert_non_null(strstr(info.graph_outside, "256 document and 0 tail rows at position 256"));
    assert_null(info.graph_warning);
    fl_engine_close(e);
    e = open_engine();
    become_device(e);
    e->scratch_bytes = e->arena.size_bytes / 8; /* for buckets alone */
    prompt = 280;
    document_tokens = 256;
    for (int32_t i = 0; i < 3; i++, salt++) ask(e, &prompt, 1, &found);
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_prompt_steps, 0);
    assert_non_null(info.graph_outside);
    e->scratch_bytes = e->arena.size_bytes;
    fl_engine_close(e);
}

static void ceilings_leave_an_eighth_at_most(void **state) {
    (void)state;
    fl_engine *e = open_engine();
    become_device(e);
    fl_graphs *far = NULL;
    fl_backend_seal(e->be, false);
    assert_int_equal(fl_graphs_open(e->be, e->config, 1 << 20, &far), FL_ERR_OK);
    int32_t n = 0, before = -1;
    for (int32_t pos = 0; pos < 1 << 20; pos++) {
        int32_t ceiling = fl_graphs_ceiling(far, pos);
        assert_in_range(ceiling, pos, (1 << 20) - 1);
        assert_true((int64_t)ceiling - pos < FL_ATTN_ABSORBED_SPLIT_TOKENS + pos / 8);
        n += ceiling != before;
        before = ceiling;
    }
    assert_true(n < 128);
    assert_int_equal(fl_graphs_ceiling(e->graphs, 2047), 2047);
    fl_graphs_close(far);
    fl_engine_close(e);
}

static void the_check_of_one_shape_finds_the_same_bits(void **state) {
    (void)state;
    fl_graph_bench check;
    fl_engine *e = open_engine();
    assert_int_equal(fl_graph_bench_run(e, 1, 100, 1, &check), FL_ERR_UNSUPPORTED);
    become_device(e);
    assert_int_equal(fl_graph_bench_run(e, 5, 1030, 2, &check), FL_ERR_OK);
    assert_int_equal(check.n_different, 0);
    assert_string_equal(check.fault, "");
    assert_int_equal(fl_graph_bench_run(e, 5, 3, 2, &check), FL_ERR_INVALID);
    assert_int_equal(fl_graph_bench_run(e, 1, 2048, 2, &check), FL_ERR_INVALID);
    const fl_graph_piece question = {.tail_rows = 13, .pos = 500},
                         prompt = {.document_rows = 192, .tail_rows = 5},
                         late = {.document_rows = 64, .pos = 64};
    assert_int_equal(fl_graph_bench_piece(e, &question, 2, &check), FL_ERR_OK);
    assert_int_equal(check.n_different + check.n_unfilled_different, 0);
    assert_int_equal(fl_graph_bench_piece(e, &prompt, 2, &check), FL_ERR_OK);
    assert_int_equal(check.n_different + check.n_unfilled_different, 0);
    assert_string_equal(check.fault, "");
    assert_int_equal(fl_graph_bench_piece(e, &late, 2, &check), FL_ERR_UNSUPPORTED);
    fake.refuse = true;
    assert_int_equal(fl_graph_bench_run(e, 2, 100, 1, &check), FL_ERR_OK);
    assert_string_equal(check.fault, "the graph is refused");
    fl_engine_close(e);
}

static void nothing_is_taken_after_start(void **state) {
    (void)state;
    answer found[REQUESTS];
    void *memory = NULL;
    fl_engine *e = open_engine();
    assert_int_equal(e->be->alloc(e->be, 4096, &memory), FL_ERR_INTERNAL);
    assert_non_null(strstr(fl_err_detail(), "4096 bytes"));
    fake.alloc = e->be->alloc;
    e->be->alloc = counted_alloc;
    ask(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_int_equal(found[i].err, FL_ERR_OK);
    assert_int_equal(fake.n_allocs, 0);
    fl_engine_close(e);
}

static void a_row_of_nans_ends_its_request_alone(void **state) {
    (void)state;
    answer plain[2], found[2];
    fl_engine *e = open_engine();
    ask(e, lengths, 2, plain);
    become_device(e);
    fake.poisoned_rows = 2; /* two decode: the second's first logit */
    fake.n_poisoned = 0;
    /* On a busy machine one may end before the other is submitted. */
    for (int32_t i = 0; i < 10 && fake.n_poisoned == 0; i++) ask(e, lengths, 2, found);
    int32_t bad = found[0].err == FL_ERR_OK;
    assert_int_equal(found[bad].err, FL_ERR_NUMERIC);
    assert_non_null(strstr(found[bad].detail, "token 0 is not a finite number"));
    assert_same(&plain[1 - bad], &found[1 - bad]);
    fl_engine_close(e);
}

static void a_lost_device_ends_all_requests(void **state) {
    (void)state;
    answer found[REQUESTS];
    fl_session *s = NULL;
    fl_request *r = NULL;
    fl_request_params p;
    const int32_t token = 7;
    fl_engine *e = open_engine();
    become_device(e);
    fake.lost = true;
    ask(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(found[i].err, FL_ERR_DEVICE);
        assert_non_null(strstr(found[i].detail, "an illegal memory access"));
    }
    fl_request_params_default(&p);
    p.tokens = &token;
    p.n_tokens = 1;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    assert_int_equal(fl_submit(s, &p, &r), FL_ERR_DEVICE);
    assert_non_null(strstr(fl_err_detail(), "restart"));
    fl_session_close(s);
    fl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_give_the_bits_of_plain_steps),
        cmocka_unit_test(a_step_that_cannot_be_recorded_runs_plainly),
        cmocka_unit_test(prompts_in_buckets_give_the_bits_of_plain_steps),
        cmocka_unit_test(rows_that_fill_a_bucket_touch_nobody),
        cmocka_unit_test(buckets_are_a_quarter_too_large_at_most),
        cmocka_unit_test(the_longest_unused_recording_goes_first),
        cmocka_unit_test(a_prompt_outside_all_buckets_runs_plainly),
        cmocka_unit_test(ceilings_leave_an_eighth_at_most),
        cmocka_unit_test(the_check_of_one_shape_finds_the_same_bits),
        cmocka_unit_test(nothing_is_taken_after_start),
        cmocka_unit_test(a_row_of_nans_ends_its_request_alone),
        cmocka_unit_test(a_lost_device_ends_all_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
