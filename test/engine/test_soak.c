/* Batches of requests of random lengths, merged step by step, on a tiny model: none takes more scratch than is
 * reserved, be that the plan or less, when steps are cut. And what cutting may not change: the bits of an
 * answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"

enum { CTX = 1024, BESIDE = 24, ANSWER = 8 };

static uint64_t random_state;

static int32_t between(int32_t low, int32_t high) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return low + (int32_t)((random_state >> 33) % (uint64_t)(high - low + 1));
}

static fl_settings settings_of(const char *policy, int64_t scratch_bytes) {
    fl_settings s;
    fl_settings_default(&s);
    s.synthetic = "tiny";
    s.policy = policy;
    s.ctx_tokens = CTX;
    s.kv_tokens = 16 * CTX;
    s.span_tokens = 256;
    s.n_threads = 1;
    s.scratch_bytes = scratch_bytes;
    return s;
}

static fl_engine *open_engine(const char *policy, int64_t scratch_bytes) {
    const fl_settings s = settings_of(policy, scratch_bytes);
    fl_engine *e = NULL;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("%s: %s", policy, fl_err_detail());
    return e;
}

static int64_t planned_bytes(const char *policy) {
    fl_engine_info info;
    fl_engine *e = open_engine(policy, 0);
    fl_engine_get_info(e, &info);
    fl_engine_close(e);
    return info.scratch_bytes;
}

/* ---- many requests ---- */

static void hear(void *context, int64_t index, const float *logits, int32_t n_vocab) {
    (void)index;
    (void)n_vocab;
    *(double *)context += (double)logits[0];
}

typedef struct asking {
    fl_session *session;
    fl_request *request;
} asking;

static void submit_random(asking *a, double *heard) {
    static int32_t ids[CTX];
    fl_request_params p;
    int32_t n = between(1, 1 << between(0, 9)), most = CTX - 1;
    if (n > most) n = most;
    for (int32_t i = 0; i < n; i++) ids[i] = between(0, 255);
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = n;
    p.document_tokens = between(-1, n);
    p.max_tokens = between(1, 48);
    p.ignore_eos = true;
    if (n > 1 && between(0, 7) == 0) {
        p.score_tokens = between(1, n - 1);
        p.on_logits = hear;
        p.on_logits_context = heard;
    }
    p.context = a;
    if (fl_submit(a->session, &p, &a->request) != FL_ERR_OK) fail_msg("submit: %s", fl_err_detail());
}

/* Takes all events there are; whether the request is done. */
static bool take_events(fl_request *r) {
    fl_event event;
    do assert_int_equal(fl_poll(r, 0, &event), FL_ERR_OK);
    while (event.type != FL_EVENT_NONE && event.type != FL_EVENT_DONE);
    if (event.type != FL_EVENT_DONE) return false;
    if (event.finish == FL_FINISH_ERROR) fail_msg("%s", event.err_detail);
    return true;
}

static void soak(const char *policy, int64_t scratch_bytes, int64_t merges, uint64_t seed) {
    fl_engine *e = open_engine(policy, scratch_bytes);
    asking list[BESIDE];
    fl_request *ready[BESIDE];
    double heard = 0;
    fl_engine_info info;
    int64_t n_done = 0;
    random_state = seed;
    for (int32_t i = 0; i < BESIDE; i++) {
        assert_int_equal(fl_session_open(e, &list[i].session), FL_ERR_OK);
        submit_random(&list[i], &heard);
    }
    while (fl_guard_get_counts(e->guard).merged < merges) {
        int32_t n = fl_engine_wait(e, 10, ready, BESIDE);
        assert_true(n > 0);
        for (int32_t i = 0; i < n; i++) {
            asking *a = fl_request_context(ready[i]);
            if (between(0, 499) == 0) fl_cancel(a->request);
            if (!take_events(a->request)) continue;
            fl_request_close(a->request);
            submit_random(a, &heard);
            n_done++;
        }
    }
    for (int32_t i = 0; i < BESIDE; i++) {
        fl_request_close(list[i].request);
        assert_int_equal(fl_session_close(list[i].session), FL_ERR_OK);
    }
    fl_guard_counts counts = fl_guard_get_counts(e->guard);
    fl_engine_get_info(e, &info);
    print_message("%s, %lld of scratch: %lld steps, %lld of several requests, %lld cut, %lld dry runs, %lld "
                  "requests; at "
                  "most %lld bytes\n",
                  policy, (long long)info.scratch_bytes, (long long)counts.checked, (long long)counts.merged,
                  (long long)counts.cut, (long long)counts.run, (long long)n_done,
                  (long long)info.scratch_peak_bytes);
    assert_true(info.scratch_peak_bytes <= info.scratch_bytes);
    assert_true(scratch_bytes == 0 ? counts.cut == 0 : counts.cut > 0);
    fl_engine_close(e);
}

static void merges_of_random_lengths_stay_within_what_is_reserved(void **state) {
    (void)state;
    const char *text = getenv("FL_TEST_MERGES"); /* nightly: 100000 */
    int64_t merges = text ? strtoll(text, NULL, 10) : 3000;
    const char *policies[] = {"full", "blocks:window=128"};
    for (int i = 0; i < 2; i++) {
        soak(policies[i], 0, merges / 3, 1);
        soak(policies[i], planned_bytes(policies[i]) * 45 / 100, merges / 6 + 1, 2);
    }
}

/* ---- one request ---- */

typedef struct answer {
    int32_t tokens[ANSWER];
    float logprobs[ANSWER];
    int32_t n;
} answer;

static answer ask(fl_engine *e, int32_t n) {
    asking a;
    answer out = {.n = 0};
    fl_request_params p;
    fl_event event;
    int32_t ids[CTX];
    for (int32_t i = 0; i < n; i++) ids[i] = (i * i + 3 * i) % 256;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = n;
    p.document_tokens = n / 2;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    assert_int_equal(fl_session_open(e, &a.session), FL_ERR_OK);
    if (fl_submit(a.session, &p, &a.request) != FL_ERR_OK) fail_msg("submit: %s", fl_err_detail());
    do {
        assert_int_equal(fl_poll(a.request, 1, &event), FL_ERR_OK);
        if (event.type != FL_EVENT_TOKEN) continue;
        out.tokens[out.n] = event.token;
        out.logprobs[out.n++] = event.logprob;
    } while (event.type != FL_EVENT_DONE);
    if (event.finish == FL_FINISH_ERROR) fail_msg("%s", event.err_detail);
    fl_request_close(a.request);
    assert_int_equal(fl_session_close(a.session), FL_ERR_OK);
    return out;
}

static void a_cut_step_gives_the_same_bits(void **state) {
    (void)state;
    fl_engine *whole = open_engine("full", 0);
    answer wanted = ask(whole, 900);
    fl_engine *cut = open_engine("full", planned_bytes("full") * 45 / 100);
    answer found = ask(cut, 900);
    assert_true(fl_guard_get_counts(cut->guard).cut > 0);
    assert_int_equal(found.n, ANSWER);
    assert_memory_equal(wanted.tokens, found.tokens, sizeof wanted.tokens);
    assert_memory_equal(wanted.logprobs, found.logprobs, sizeof wanted.logprobs);
    fl_engine_close(cut);
    fl_engine_close(whole);
}

/* Answers fit, but not a whole tile of document rows. */
static void what_can_never_fit_is_refused_with_the_sums(void **state) {
    (void)state;
    fl_settings s = settings_of("full", 0);
    fl_engine *e = NULL;
    fl_session *session = NULL;
    fl_request *r = NULL;
    fl_request_params p;
    int32_t ids[CTX] = {0};
    s.requests_max = 1;
    s.scratch_bytes = 1024; /* not even answers */
    assert_int_equal(fl_engine_open(&s, &e), FL_ERR_LIMIT);
    assert_non_null(strstr(fl_err_detail(), "scratch_bytes: expected at least"));
    s.scratch_bytes = planned_bytes("full") / 5;
    assert_int_equal(fl_engine_open(&s, &e), FL_ERR_OK);
    assert_int_equal(fl_session_open(e, &session), FL_ERR_OK);
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = 500;
    p.document_tokens = 448;
    assert_int_equal(fl_submit(session, &p, &r), FL_ERR_LIMIT);
    assert_non_null(strstr(fl_err_detail(), "64 document rows before position 448"));
    assert_non_null(strstr(fl_err_detail(), "are reserved"));
    p.document_tokens = 0; /* rows of a tail come one by one if they must */
    p.max_tokens = 2;
    assert_int_equal(fl_submit(session, &p, &r), FL_ERR_OK);
    fl_event event;
    do assert_int_equal(fl_poll(r, 1, &event), FL_ERR_OK);
    while (event.type != FL_EVENT_DONE);
    if (event.finish == FL_FINISH_ERROR) fail_msg("%s", event.err_detail);
    fl_request_close(r);
    assert_int_equal(fl_session_close(session), FL_ERR_OK);
    fl_engine_close(e);
    s.scratch_bytes = -1;
    assert_int_equal(fl_engine_open(&s, &e), FL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_of_random_lengths_stay_within_what_is_reserved),
        cmocka_unit_test(a_cut_step_gives_the_same_bits),
        cmocka_unit_test(what_can_never_fit_is_refused_with_the_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
