/* The engine on the bundled model: answers do not depend on how a prompt is cut, what runs beside it, or what was
 * cached (contract 1, bitwise through log-probs); sessions, cancel, stops, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <firstlight/firstlight.h>

#include "support/asking.h"
#include "support/golden.h"

enum { CTX = 4096 };

static fl_engine *open_engine(int32_t span, int32_t threads) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.deterministic = true; /* of a GPU; CPUs always are */
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = CTX;
    s.kv_tokens = 4 * CTX;
    s.span_tokens = span;
    s.n_threads = threads;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

static void bits_do_not_depend_on_cutting_batch_or_cache(void **state) {
    (void)state;
    golden g, other;
    golden_read("doc2k", &g);
    golden_read("unicode", &other);
    fl_engine *whole = open_engine(4096, 0), *cut = open_engine(192, 1);
    answer first = ask(whole, g.ids, g.n, -1);
    assert_int_equal(first.n, ANSWER);
    assert_int_equal(first.cached, 0);

    answer pieces = ask(cut, g.ids, g.n, -1); /* another span, another number of threads */
    assert_same(&first, &pieces);

    answer hit = ask(whole, g.ids, g.n, -1); /* every document page from the cache */
    assert_int_equal(hit.cached, (g.n - 1) / 64 * 64);
    assert_same(&first, &hit);

    fl_session *s[3];
    fl_request *r[3];
    answer alone = ask(cut, other.ids, other.n, -1);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(fl_session_open(cut, &s[i]), FL_ERR_OK);
    r[0] = submit(s[0], other.ids, other.n, -1);
    r[1] = submit(s[1], g.ids, g.n, -1); /* cached by now; decodes beside the others */
    r[2] = submit(s[2], g.ids, g.n - 700, -1);
    answer beside[3];
    for (int32_t i = 0; i < 3; i++) {
        beside[i] = finish(r[i]);
        assert_int_equal(fl_session_close(s[i]), FL_ERR_OK);
    }
    assert_same(&alone, &beside[0]);
    assert_same(&first, &beside[1]);
    answer shorter = ask(whole, g.ids, g.n - 700, -1);
    assert_same(&shorter, &beside[2]);
    fl_engine_close(whole);
    fl_engine_close(cut);
    golden_free(&g);
    golden_free(&other);
}

static void a_question_on_a_cached_document_equals_a_miss(void **state) {
    (void)state;
    golden g;
    golden_read("doc2k", &g);
    fl_engine *cold = open_engine(512, 0), *warm = open_engine(1024, 0);
    int64_t document = 1500;
    answer miss = ask(cold, g.ids, g.n, document);
    ask(warm, g.ids, document + 10, document); /* someone else's question about the document */
    answer hit = ask(warm, g.ids, g.n, document);
    assert_int_equal(hit.cached, document / 64 * 64);
    assert_same(&miss, &hit);
    fl_engine_close(cold);
    fl_engine_close(warm);
    golden_free(&g);
}

static void a_session_reuses_its_own_answer(void **state) {
    (void)state;
    golden g;
    golden_read("code", &g);
    fl_engine *e = open_engine(0, 0);
    fl_session *s = NULL;
    int32_t ids[512];
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    answer first = finish(submit(s, g.ids, g.n, -1));
    memcpy(ids, g.ids, (size_t)g.n * sizeof(int32_t));
    memcpy(ids + g.n, first.tokens, sizeof first.tokens);
    answer next = finish(submit(s, ids, g.n + ANSWER, g.n));
    assert_int_equal(next.cached, g.n + ANSWER - 1); /* all but the token that was never fed */
    ids[100] ^= 1;
    answer changed = finish(submit(s, ids, g.n + ANSWER, -1));
    assert_true(changed.cached <= 100);
    answer fresh = ask(e, ids, g.n + ANSWER, -1);
    assert_same(&changed, &fresh);
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
    fl_engine_close(e);
    golden_free(&g);
}

/* One session's idle pages, wanted by a request in front of that session's own next turn. */
static void a_queued_turn_gives_its_pages_to_the_request_before_it(void **state) {
    (void)state;
    golden g;
    golden_read("doc2k", &g);
    fl_settings settings;
    fl_engine *e = NULL;
    fl_session *s[3];
    fl_settings_default(&settings);
    settings.deterministic = true; /* of a GPU; CPUs always are */
    settings.model_path = "build/models/spark-66m";
    settings.ctx_tokens = settings.kv_tokens = 2048;
    assert_int_equal(fl_engine_open(&settings, &e), FL_ERR_OK);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(fl_session_open(e, &s[i]), FL_ERR_OK);
    answer first = finish(submit(s[0], g.ids, 1000, -1));
    fl_request *running = submit(s[1], g.ids + 500, 600, -1);
    fl_request *large = submit(s[2], g.ids + 100, 1700, -1); /* fits only without both others */
    fl_request *next = submit(s[0], g.ids, 1000, -1);
    assert_int_equal(finish(running).finish, FL_FINISH_LENGTH);
    assert_int_equal(finish(large).finish, FL_FINISH_LENGTH);
    answer again = finish(next);
    assert_same(&first, &again);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(fl_session_close(s[i]), FL_ERR_OK);
    fl_engine_close(e);
    golden_free(&g);
}

static void cancel_ends_within_a_step_and_frees_everything(void **state) {
    (void)state;
    golden g;
    golden_read("doc2k", &g);
    fl_engine *e = open_engine(256, 0);
    fl_session *s = NULL;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    fl_request *r = submit(s, g.ids, g.n, -1);
    assert_int_equal(fl_session_close(s), FL_ERR_AGAIN); /* not while it runs */
    fl_cancel(r);
    answer a = finish(r);
    assert_int_equal(a.finish, FL_FINISH_CANCELLED);
    assert_int_equal(a.n, 0);
    answer whole = ask(e, g.ids, g.n, -1), again = ask(e, g.ids, g.n, -1);
    assert_same(&whole, &again);
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
    fl_engine_close(e);
    golden_free(&g);
}

static void stop_strings_end_the_answer_before_them(void **state) {
    (void)state;
    golden g;
    golden_read("code", &g);
    fl_engine *e = open_engine(0, 0);
    answer plain = ask(e, g.ids, g.n, -1);
    assert_true(strlen(plain.text) > 12);
    char stop[4] = {plain.text[8], plain.text[9], plain.text[10], '\0'};
    size_t where = (size_t)(strstr(plain.text, stop) - plain.text);
    const char *const stops[] = {"never there", stop};
    fl_request_params p;
    fl_session *s = NULL;
    fl_request *r = NULL;
    fl_request_params_default(&p);
    p.tokens = g.ids;
    p.n_tokens = g.n;
    p.max_tokens = ANSWER;
    p.stops = stops;
    p.n_stops = 2;
    p.ignore_eos = true;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    assert_int_equal(fl_submit(s, &p, &r), FL_ERR_OK);
    answer a = finish(r);
    assert_int_equal(a.finish, FL_FINISH_STOP);
    assert_int_equal(strlen(a.text), where);
    assert_memory_equal(a.text, plain.text, where);
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
    fl_engine_close(e);
    golden_free(&g);
}

static void bad_requests_are_refused_by_name(void **state) {
    (void)state;
    const int32_t ids[] = {0, 3, 100, 4};
    fl_engine *e = open_engine(0, 0);
    fl_session *s = NULL;
    fl_request *r = NULL;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    fl_request_params good, p;
    fl_request_params_default(&good);
    good.tokens = ids;
    good.n_tokens = 4;
#define REFUSE(field, value, code)                                                                           \
    p = good;                                                                                                \
    p.field = value;                                                                                         \
    assert_int_equal(fl_submit(s, &p, &r), code);                                                            \
    assert_non_null(strstr(fl_err_detail(), code == FL_ERR_LIMIT ? "prompt" : strrchr("." #field, '.') + 1))
    REFUSE(n_tokens, 0, FL_ERR_INVALID);
    REFUSE(n_tokens, CTX, FL_ERR_LIMIT);
    REFUSE(max_tokens, 0, FL_ERR_INVALID);
    REFUSE(document_tokens, 5, FL_ERR_INVALID);
    REFUSE(top_logprobs, 21, FL_ERR_INVALID);
    REFUSE(sampling.temperature, -1.0f, FL_ERR_INVALID);
    REFUSE(sampling.top_p, 0.0f, FL_ERR_INVALID);
    REFUSE(sampling.min_p, 1.0f, FL_ERR_INVALID);
    REFUSE(sampling.top_k, -1, FL_ERR_INVALID);
    REFUSE(sampling.repetition_penalty, 0.0f, FL_ERR_INVALID);
    const int32_t wrong[] = {0, 3, 8192};
    REFUSE(tokens, wrong, FL_ERR_INVALID);
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
    fl_engine_close(e);
}

static void sampling_is_seeded_and_reports_logprobs(void **state) {
    (void)state;
    golden g;
    golden_read("chat", &g);
    fl_engine *e = open_engine(0, 0);
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = g.ids;
    p.n_tokens = g.n;
    p.max_tokens = 8;
    p.ignore_eos = true;
    p.top_logprobs = 5;
    p.sampling.temperature = 1.2f;
    p.sampling.repetition_penalty = 1.3f;
    int32_t seen[3][8];
    const uint64_t seeds[] = {7, 7, 8};
    for (int32_t i = 0; i < 3; i++) {
        fl_session *s = NULL;
        fl_request *r = NULL;
        fl_event ev;
        int32_t n = 0;
        p.sampling.seed = seeds[i];
        assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
        assert_int_equal(fl_submit(s, &p, &r), FL_ERR_OK);
        do {
            assert_int_equal(fl_poll(r, 500, &ev), FL_ERR_OK);
            if (ev.type != FL_EVENT_TOKEN) continue;
            seen[i][n++] = ev.token;
            assert_int_equal(ev.n_top, 5);
            for (int32_t k = 1; k < 5; k++) assert_true(ev.top[k].logprob <= ev.top[k - 1].logprob);
            assert_true(ev.logprob <= ev.top[0].logprob);
        } while (ev.type != FL_EVENT_DONE);
        assert_int_equal(ev.finish, FL_FINISH_LENGTH);
        fl_request_close(r);
        fl_session_close(s);
    }
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
    assert_memory_not_equal(seen[0], seen[2], sizeof seen[0]);
    fl_engine_close(e);
    golden_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_cutting_batch_or_cache),
        cmocka_unit_test(a_question_on_a_cached_document_equals_a_miss),
        cmocka_unit_test(a_session_reuses_its_own_answer),
        cmocka_unit_test(a_queued_turn_gives_its_pages_to_the_request_before_it),
        cmocka_unit_test(cancel_ends_within_a_step_and_frees_everything),
        cmocka_unit_test(stop_strings_end_the_answer_before_them),
        cmocka_unit_test(bad_requests_are_refused_by_name),
        cmocka_unit_test(sampling_is_seeded_and_reports_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
