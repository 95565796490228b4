/* Pages of sessions, on a tiny model: who holds which, and that a request which fits alone gets them. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"

enum { CTX = 4096, PAGE = FL_KV_PAGE_TOKENS };

static fl_engine *open_backend(const char *backend, int64_t kv_tokens) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.backend = backend;
    s.synthetic = "tiny";
    s.ctx_tokens = CTX;
    s.kv_tokens = kv_tokens;
    s.span_tokens = PAGE;
    s.n_threads = 1;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

static fl_engine *open_engine(int64_t kv_tokens) {
    return open_backend("auto", kv_tokens);
}

static fl_session *open_session(fl_engine *e) {
    fl_session *s = NULL;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    return s;
}

/* A prompt of n tokens, all but the last 20 a document. */
static fl_request_params params_of(const int32_t *ids, int64_t n) {
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = n;
    p.document_tokens = n - 20;
    p.max_tokens = 20;
    p.ignore_eos = true;
    return p;
}

static fl_request *submit(fl_session *s, const fl_request_params *p) {
    fl_request *r = NULL;
    if (fl_submit(s, p, &r) != FL_ERR_OK) fail_msg("submit: %s", fl_err_detail());
    return r;
}

/* Polls to the end and closes the request; the last event. */
static fl_event finish(fl_request *r) {
    fl_event e;
    do {
        assert_int_equal(fl_poll(r, 20, &e), FL_ERR_OK);
        if (e.type == FL_EVENT_NONE) fail_msg("no event in 20 s");
    } while (e.type != FL_EVENT_DONE);
    if (e.finish == FL_FINISH_ERROR) fail_msg("%s", e.err_detail);
    fl_request_close(r);
    return e;
}

static int32_t free_pages(fl_engine *e) {
    fl_engine_load load;
    fl_engine_get_load(e, &load);
    return load.kv_pages_free;
}

/* Holds the worker between two steps of a prompt. */
typedef struct gate {
    sem_t there, go;
    bool passed;
} gate;

static void wait_once(void *context, int64_t index, const float *logits, int32_t n_vocab) {
    gate *g = context;
    (void)index;
    (void)logits;
    (void)n_vocab;
    if (g->passed) return;
    g->passed = true;
    sem_post(&g->there);
    sem_wait(&g->go);
}

/* Another prompt with the first 15 pages of its document comes in between its second and its third step, and goes
 * first. What the one has computed is the other's from then on: of each page there is one. Were the first to go on
 * with copies of its own, the cache's would stay for the pages entered behind them, and the session's next turn, for
 * which the whole pool is just enough, would wait for them for ever. */
static void a_document_read_twice_at_once_is_kept_once(void **state) {
    (void)state;
    int32_t ids[CTX];
    gate g = {.passed = false};
    for (int32_t i = 0; i < CTX; i++) ids[i] = (i * i + 3 * i + i / 7) % 256;
    assert_int_equal(sem_init(&g.there, 0, 0), 0);
    assert_int_equal(sem_init(&g.go, 0, 0), 0);
    fl_engine *e = open_engine(CTX);
    fl_session *first = open_session(e), *second = open_session(e);
    fl_request_params p = params_of(ids, 1500), q = params_of(ids, 15 * PAGE + 20);
    p.score_tokens = 1500 - 100;
    p.on_logits = wait_once;
    p.on_logits_context = &g;
    q.priority = -1;
    fl_request *long_one = submit(first, &p);
    sem_wait(&g.there);
    fl_request *short_one = submit(second, &q);
    sem_post(&g.go);
    fl_event done = finish(short_one);
    assert_int_equal(done.cached_tokens, 2 * PAGE); /* so it did come in between */
    assert_int_equal(finish(long_one).cached_tokens, 0);
    assert_int_equal(fl_session_close(second), FL_ERR_OK);
    assert_int_equal(free_pages(e), CTX / PAGE - (1500 + 20 + PAGE - 1) / PAGE);
    fl_request_params next = params_of(ids, 1500);
    next.max_tokens = CTX;
    assert_int_equal(finish(submit(first, &next)).answer_tokens, CTX - 1500);
    assert_int_equal(fl_session_close(first), FL_ERR_OK);
    fl_engine_close(e);
    sem_destroy(&g.there);
    sem_destroy(&g.go);
}

/* No number of tokens is too large to ask for: the context's end is meant, and what the pool lacks for it is said. */
static void an_answer_without_end_has_the_context_or_is_refused(void **state) {
    (void)state;
    int32_t ids[100] = {0};
    fl_engine *whole = open_engine(CTX), *less = open_engine(CTX / 2);
    fl_session *s = open_session(whole), *t = open_session(less);
    fl_request *r = NULL;
    fl_request_params p = params_of(ids, 100);
    p.max_tokens = INT64_MAX;
    assert_int_equal(fl_submit(t, &p, &r), FL_ERR_LIMIT);
    assert_non_null(strstr(fl_err_detail(), "need 64 KV pages of 64 tokens"));
    assert_int_equal(finish(submit(s, &p)).answer_tokens, CTX - 100);
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
    assert_int_equal(fl_session_close(t), FL_ERR_OK);
    fl_engine_close(whole);
    fl_engine_close(less);
}

/* Polls to the end; the error. */
static fl_err ask(fl_engine *e, const int32_t *ids, int64_t n, int64_t *cached) {
    fl_event event;
    fl_session *s = open_session(e);
    const fl_request_params p = params_of(ids, n);
    fl_request *r = submit(s, &p);
    do assert_int_equal(fl_poll(r, 20, &event), FL_ERR_OK);
    while (event.type != FL_EVENT_DONE);
    *cached = event.cached_tokens;
    fl_request_close(r);
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
    return event.err;
}

/* A page that the cache hands out has become NaN. One request ends with that; the next reads its document anew. */
static void a_page_that_is_no_number_is_found_once(void **state) {
    (void)state;
    static const char *const backends[] = {"auto", "reference"};
    int32_t ids[CTX];
    int64_t cached;
    for (int32_t i = 0; i < CTX; i++) ids[i] = (i * i + 3 * i) % 256;
    for (int i = 0; i < 2; i++) {
        fl_engine *e = open_backend(backends[i], CTX);
        assert_int_equal(ask(e, ids, 5 * PAGE, &cached), FL_ERR_OK);
        const fl_prefix_key root = {{0}};
        fl_prefix_key key;
        assert_true(fl_prefix_key_of(e->prefix, &root, ids, 0, &key));
        int32_t page = fl_prefix_page_of(e->prefix, &key);
        memset(fl_kv_pool_page(e->pool, page), 0xff, (size_t)fl_kv_page_bytes(&e->kv_shape));
        assert_int_equal(ask(e, ids, 3 * PAGE, &cached), FL_ERR_NUMERIC);
        assert_int_equal(cached, 2 * PAGE);
        assert_int_equal(ask(e, ids, 5 * PAGE, &cached), FL_ERR_OK);
        assert_int_equal(cached, 0); /* nor are those behind it found, which were read from it */
        assert_int_equal(ask(e, ids, 5 * PAGE, &cached), FL_ERR_OK);
        assert_int_equal(cached, 4 * PAGE);
        fl_engine_close(e);
    }
}

/* Short and long prompts of four threads, whose sessions go as soon as their answers are there: in the middle of a step
 * of somebody's prompt, where answers have their tokens between its layers. What of them is touched behind that,
 * ThreadSanitizer sees. */
static void *ask_and_go(void *engine) {
    int32_t ids[CTX];
    for (int32_t i = 0; i < CTX; i++) ids[i] = (i * i + 5 * i) % 256;
    for (int32_t k = 0; k < 40; k++) {
        fl_session *s = open_session(engine);
        fl_request_params p = params_of(ids, 21 + 37 * k % 600);
        p.max_tokens = 1 + k % 8;
        p.cache_salt = k % 2 == 0 ? "even" : NULL;
        fl_request *r = submit(s, &p);
        if (k % 5 == 0) fl_cancel(r);
        (void)finish(r);
        assert_int_equal(fl_session_close(s), FL_ERR_OK);
    }
    return NULL;
}

static void sessions_go_while_a_step_runs(void **state) {
    (void)state;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    fl_settings settings;
    fl_engine *e = NULL;
    fl_settings_default(&settings);
    settings.synthetic = "tiny";
    settings.ctx_tokens = 1024;
    settings.kv_tokens = 2048;
    settings.span_tokens = PAGE;
    settings.n_threads = 2;
    settings.max_decode_stall_s = 1e-3;
    if (fl_engine_open(&settings, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, ask_and_go, e), 0);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    fl_engine_load load;
    fl_engine_get_load(e, &load);
    assert_int_equal(load.n_running + load.n_waiting, 0);
    assert_int_equal(load.kv_pages_free + load.kv_pages_cached, load.kv_pages);
    fl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_read_twice_at_once_is_kept_once),
        cmocka_unit_test(an_answer_without_end_has_the_context_or_is_refused),
        cmocka_unit_test(a_page_that_is_no_number_is_found_once),
        cmocka_unit_test(sessions_go_while_a_step_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
