/* Teacher-forced scoring: the logits handed out for prompt tokens are those that decoding would have used. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <firstlight/firstlight.h>

#include "support/timeline.h"

enum { PROMPT = 700, ANSWER = 300 }; /* more scored rows than one step hands out */

typedef struct scores {
    const int32_t *expected; /* [ANSWER] */
    int32_t best[ANSWER];
    float logprob[ANSWER];
    int64_t n;
    bool in_order;
} scores;

static void on_logits(void *context, int64_t index, const float *logits, int32_t n_vocab) {
    scores *s = context;
    s->in_order = s->in_order && index == s->n && index < ANSWER;
    if (!s->in_order) return;
    double sum = 0;
    s->best[index] = argmax(logits, n_vocab);
    for (int32_t i = 0; i < n_vocab; i++) sum += (double)expf(logits[i] - logits[s->best[index]]);
    s->logprob[index] = (float)((double)(logits[s->expected[index]] - logits[s->best[index]]) - log(sum));
    s->n++;
}

static fl_event run(fl_session *session, const fl_request_params *params, int32_t *tokens, float *logprobs) {
    fl_request *request = NULL;
    fl_event event;
    int32_t n = 0;
    if (fl_submit(session, params, &request) != FL_ERR_OK) fail_msg("submit: %s", fl_err_detail());
    do {
        assert_int_equal(fl_poll(request, 500, &event), FL_ERR_OK);
        assert_int_not_equal(event.type, FL_EVENT_NONE);
        if (event.type != FL_EVENT_TOKEN || n == ANSWER) continue;
        tokens[n] = event.token;
        logprobs[n++] = event.logprob;
    } while (event.type != FL_EVENT_DONE);
    fl_request_close(request);
    return event;
}

static void test_scores_are_those_of_decoding(void **state) {
    fl_engine *e = *state;
    fl_session *first = NULL, *second = NULL;
    int32_t ids[PROMPT + ANSWER], tokens[ANSWER];
    float logprobs[ANSWER], ignored[ANSWER];
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i == 0 ? 0 : 10 + (i * 131 + i * i * 7) % 8000;
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = PROMPT;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    assert_int_equal(fl_session_open(e, &first), FL_ERR_OK);
    assert_int_equal(run(first, &p, ids + PROMPT, logprobs).answer_tokens, ANSWER);
    assert_int_equal(fl_session_close(first), FL_ERR_OK);

    scores s = {.expected = ids + PROMPT, .in_order = true};
    assert_int_equal(fl_session_open(e, &second), FL_ERR_OK);
    p.n_tokens = PROMPT + ANSWER;
    p.document_tokens = (PROMPT - 1) / 64 * 64;
    p.max_tokens = 1;
    p.score_tokens = ANSWER;
    p.on_logits = on_logits;
    p.on_logits_context = &s;
    assert_int_equal(run(second, &p, tokens, ignored).cached_tokens, p.document_tokens);
    assert_true(s.in_order);
    assert_int_equal(s.n, ANSWER);
    for (int32_t i = 0; i < ANSWER; i++) {
        assert_int_equal(s.best[i], ids[PROMPT + i]);
        assert_true(fabsf(s.logprob[i] - logprobs[i]) < 1e-5f);
    }
    /* Once more in the same session, which holds all of it: scored rows are computed again. */
    s = (scores){.expected = ids + PROMPT, .in_order = true};
    run(second, &p, tokens, ignored);
    assert_int_equal(s.n, ANSWER);
    assert_int_equal(fl_session_close(second), FL_ERR_OK);
}

/* Document rows are scored as well, in as many steps as it takes; how they are cut changes no bit. */
static void test_document_rows_are_scored(void **state) {
    fl_engine *e = *state;
    int32_t ids[PROMPT], tokens[1];
    float ignored[1];
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i == 0 ? 0 : 10 + (i * 131 + i * i * 7) % 8000;
    scores all = {.in_order = true}, few = {.in_order = true};
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = PROMPT;
    p.document_tokens = PROMPT;
    p.max_tokens = 1;
    p.on_logits = on_logits;
    for (int i = 0; i < 2; i++) {
        fl_session *session = NULL;
        scores *s = i == 0 ? &all : &few;
        p.score_tokens = i == 0 ? ANSWER : ANSWER - 9;
        s->expected = ids + PROMPT - p.score_tokens;
        p.on_logits_context = s;
        assert_int_equal(fl_session_open(e, &session), FL_ERR_OK);
        run(session, &p, tokens, ignored);
        assert_int_equal(s->n, p.score_tokens);
        assert_int_equal(fl_session_close(session), FL_ERR_OK);
    }
    assert_memory_equal(all.best + 9, few.best, (ANSWER - 9) * sizeof *few.best);
    assert_memory_equal(all.logprob + 9, few.logprob, (ANSWER - 9) * sizeof *few.logprob);
}

static void test_bad_requests_are_refused(void **state) {
    fl_engine *e = *state;
    fl_session *session = NULL;
    fl_request *request = NULL;
    const int32_t ids[8] = {0, 10, 11, 12, 13, 14, 15, 16};
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = 8;
    p.on_logits = on_logits;
    assert_int_equal(fl_session_open(e, &session), FL_ERR_OK);
    p.score_tokens = 8; /* nothing predicts token 0 */
    assert_int_equal(fl_submit(session, &p, &request), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "score_tokens"));
    p.score_tokens = 4;
    p.on_logits = NULL;
    assert_int_equal(fl_submit(session, &p, &request), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "on_logits"));
    assert_int_equal(fl_session_close(session), FL_ERR_OK);
}

static int open_engine(void **state) {
    fl_settings s;
    fl_settings_default(&s);
    s.deterministic = true; /* of a GPU; CPUs always are */
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = 1024;
    return fl_engine_open(&s, (fl_engine **)state) == FL_ERR_OK ? 0 : -1;
}

static int close_engine(void **state) {
    fl_engine_close(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores_are_those_of_decoding),
        cmocka_unit_test(test_document_rows_are_scored),
        cmocka_unit_test(test_bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
