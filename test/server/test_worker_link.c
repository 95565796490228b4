/* The link to the worker: real workers with the bundled model whose answers are those of an engine in this process bit for
 * bit, workers that are killed at bad moments, and stub workers that break in every way that the link must survive. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"
#include "server/link_client.h"
#include "support/asking.h"
#include "support/golden.h"

enum { CTX = 4096, MANY = 64, SHORT = 40 };

static void real_settings(fl_settings *s) {
    fl_settings_default(s);
    s->model_path = "build/models/spark-66m";
    s->ctx_tokens = CTX;
    s->kv_tokens = 4 * CTX;
    s->span_tokens = 256; /* many steps in a prompt */
    s->n_threads = 1;
    s->requests_max = 128;
}

static fl_worker_link *open_real(void) {
    const char *const command[] = {FL_CLI, FL_WORKER_ARGUMENT, NULL};
    fl_link_options o;
    fl_worker_link *link = NULL;
    fl_link_options_default(&o);
    real_settings(&o.settings);
    o.command = command;
    if (fl_worker_link_open(&o, &link) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return link;
}

/* A stub with one option and its value. */
static fl_worker_link *open_stub(const char *option, const char *value) {
    const char *const command[] = {FL_STUB_WORKER, "--rate", "500", "--ttft", "0.01", option, value, NULL};
    fl_link_options o;
    fl_worker_link *link = NULL;
    fl_link_options_default(&o);
    o.command = command;
    o.backoff_max_s = 0.05;
    o.silence_max_s = 1;
    o.queue_bytes_max = 1 << 20;
    o.requests_max = MANY;
    if (fl_worker_link_open(&o, &link) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return link;
}

static void no_child_is_left(void) {
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* ---- real workers ---- */

/* What an engine in this process says. */
static void answers_alone(const int32_t *ids, const int64_t *lengths, int32_t n, answer *out) {
    fl_settings s;
    fl_engine *e = NULL;
    real_settings(&s);
    assert_int_equal(fl_engine_open(&s, &e), FL_ERR_OK);
    for (int32_t i = 0; i < n; i++) out[i] = ask(e, ids, lengths[i], -1);
    fl_engine_close(e);
}

static void assert_answer(const got *g, const answer *a) {
    assert_int_equal(g->n_done, 1);
    assert_int_equal(g->last.err, FL_ERR_OK);
    assert_int_equal(g->last.finish, a->finish);
    assert_int_equal(g->n_tokens, a->n);
    assert_memory_equal(g->tokens, a->tokens, (size_t)a->n * sizeof(int32_t));
    assert_memory_equal(g->logprobs, a->logprobs, (size_t)a->n * sizeof(float));
    assert_string_equal(g->text, a->text);
    assert_true(g->n_marks >= 3); /* queue, prefill, first_token ... */
}

static void a_stream_is_the_engines_own_answer(void **state) {
    (void)state;
    golden g;
    got one;
    answer alone;
    golden_read("doc2k", &g);
    const int64_t n = g.n;
    answers_alone(g.ids, &n, 1, &alone);
    fl_worker_link *link = open_real();
    fl_link_status s = link_wait(link, FL_LINK_READY);
    assert_int_equal(s.info.ctx_tokens, CTX);
    assert_string_equal(s.info.model_type, "deepseek_v3");
    assert_int_equal(s.load.cost_tokens[s.load.n_costs - 1], CTX);
    assert_true(s.load.cost_s[0] > 0);
    got_init(&one);
    link_submit(link, g.ids, g.n, ANSWER, &one);
    got_wait_done(&one);
    assert_answer(&one, &alone);
    assert_true(one.n_progress >= 1);
    link_wait_pages(link);
    fl_worker_link_status(link, &s);
    assert_int_equal(s.prompt_tokens, g.n);
    assert_int_equal(s.answer_tokens, ANSWER);
    assert_int_equal(s.n_requests, 0);
    fl_worker_link_close(link);
    no_child_is_left();
    got_free(&one);
    golden_free(&g);
}

static void many_at_once_and_refused_ones_beside_them(void **state) {
    (void)state;
    golden g;
    static got all[MANY + 1];
    int64_t lengths[MANY];
    static answer alone[MANY];
    golden_read("doc2k", &g);
    for (int32_t i = 0; i < MANY; i++) lengths[i] = SHORT + i;
    answers_alone(g.ids, lengths, MANY, alone);
    fl_worker_link *link = open_real();
    link_wait(link, FL_LINK_READY);
    for (int32_t i = 0; i <= MANY; i++) got_init(&all[i]);
    for (int32_t i = 0; i < MANY; i++) link_submit(link, g.ids, lengths[i], ANSWER, &all[i]);
    int32_t *bad = malloc(sizeof(int32_t) * SHORT);
    assert_non_null(bad);
    for (int32_t i = 0; i < SHORT; i++)
        bad[i] = 1 << 30; /* no such token: the engine refuses this one alone */
    link_submit(link, bad, SHORT, ANSWER, &all[MANY]);
    for (int32_t i = 0; i <= MANY; i++) got_wait_done(&all[i]);
    for (int32_t i = 0; i < MANY; i++) assert_answer(&all[i], &alone[i]);
    assert_int_equal(all[MANY].last.err, FL_ERR_INVALID);
    assert_non_null(strstr(all[MANY].detail, "tokens[0]"));
    link_wait_pages(link);
    fl_worker_link_close(link);
    for (int32_t i = 0; i <= MANY; i++) got_free(&all[i]);
    free(bad);
    golden_free(&g);
}

static void a_cancelled_request_gives_its_pages_back(void **state) {
    (void)state;
    golden g;
    got one;
    golden_read("doc2k", &g);
    fl_worker_link *link = open_real();
    link_wait(link, FL_LINK_READY);
    got_init(&one);
    link_submit(link, g.ids, g.n, 1000, &one);
    got_wait_progress(&one);
    fl_worker_link_cancel(link, one.id);
    got_wait_done(&one);
    assert_int_equal(one.last.finish, FL_FINISH_CANCELLED);
    link_wait_pages(link);
    fl_worker_link_cancel(link, one.id); /* done: nothing happens */
    fl_worker_link_cancel(link, 12345);
    fl_worker_link_close(link);
    got_free(&one);
    golden_free(&g);
}

static void a_killed_worker_ends_its_requests_and_comes_back(void **state) {
    (void)state;
    golden g;
    got first, second, third;
    golden_read("doc2k", &g);
    fl_worker_link *link = open_real();
    fl_link_status s = link_wait(link, FL_LINK_READY);
    got_init(&first);
    got_init(&second);
    got_init(&third);
    link_submit(link, g.ids, SHORT, 3000, &second);
    got_wait_tokens(&second, 2); /* one is decoding */
    link_submit(link, g.ids, g.n, ANSWER, &first);
    got_wait_progress(&first); /* and one in the middle of its prompt */
    assert_int_equal(kill(s.worker_pid, SIGKILL), 0);
    got_wait_done(&first);
    got_wait_done(&second);
    assert_int_equal(first.last.finish, FL_FINISH_ERROR);
    assert_int_equal(first.last.err, FL_ERR_INTERNAL);
    assert_non_null(strstr(first.detail, "signal 9"));
    assert_non_null(strstr(first.detail, "restarted"));
    assert_int_equal(first.last.prompt_tokens, g.n);
    assert_int_equal(second.last.finish, FL_FINISH_ERROR);
    fl_link_status after = link_wait_restarts(link, 1);
    assert_int_not_equal(after.worker_pid, s.worker_pid);
    assert_int_equal(after.n_restarts, 1);
    link_submit(link, g.ids, SHORT, ANSWER, &third);
    got_wait_done(&third);
    assert_int_equal(third.last.finish, FL_FINISH_LENGTH);
    assert_int_equal(third.n_tokens, ANSWER);
    link_wait_pages(link);
    fl_worker_link_close(link);
    no_child_is_left();
    got_free(&first);
    got_free(&second);
    got_free(&third);
    golden_free(&g);
}

static void a_checkpoint_that_is_not_there_is_not_tried_again(void **state) {
    (void)state;
    const char *const command[] = {FL_CLI, FL_WORKER_ARGUMENT, NULL};
    const int32_t token = 1;
    fl_link_options o;
    fl_link_status s;
    fl_worker_link *link = NULL;
    fl_request_params p;
    uint64_t id;
    fl_link_options_default(&o);
    o.settings.model_path = "build/models/no-such-model";
    o.settings.kv_dtype = "no-such-type";
    o.command = command;
    assert_int_equal(fl_worker_link_open(&o, &link), FL_ERR_OK);
    do fl_worker_link_status(link, &s);
    while (s.state == FL_LINK_LOADING);
    assert_int_equal(s.state, FL_LINK_FAILED);
    assert_non_null(strstr(s.error, "no-such-model"));
    fl_request_params_default(&p);
    p.tokens = &token;
    p.n_tokens = 1;
    assert_int_equal(fl_worker_link_submit(link, &p, got_event, NULL, &id), s.err);
    assert_non_null(strstr(fl_err_detail(), "no-such-model"));
    fl_worker_link_close(link);
}

/* ---- stubs that break ---- */

static const int32_t prompt[SHORT];

/* Both requests end with these words, then the link is ready again. */
static void breaks_and_comes_back(const char *option, const char *n, fl_err err, const char *words) {
    got one, two;
    fl_worker_link *link = open_stub(option, n);
    link_wait(link, FL_LINK_READY);
    got_init(&one);
    got_init(&two);
    link_submit(link, prompt, SHORT, 400, &one);
    link_submit(link, prompt, SHORT, 400, &two);
    got_wait_done(&one);
    got_wait_done(&two);
    assert_int_equal(one.last.finish, FL_FINISH_ERROR);
    assert_int_equal(two.last.err, err);
    if (!strstr(one.detail, words)) fail_msg("expected '%s' in '%s'", words, one.detail);
    assert_non_null(strstr(one.detail, "restarted"));
    fl_link_status s = link_wait_restarts(link, 1);
    assert_int_equal(s.err, err);
    assert_non_null(strstr(s.error, words));
    assert_int_equal(s.n_requests, 0);
    fl_worker_link_close(link);
    no_child_is_left();
    got_free(&one);
    got_free(&two);
}

static void crashes_garbage_silence_and_lost_devices_are_survived(void **state) {
    (void)state;
    breaks_and_comes_back("--crash", "20", FL_ERR_INTERNAL, "signal 6");
    breaks_and_comes_back("--exit", "20", FL_ERR_DEVICE, "its device is lost");
    breaks_and_comes_back("--garble", "20", FL_ERR_INTERNAL, "not a message");
    breaks_and_comes_back("--stray", "20", FL_ERR_INTERNAL, "not in flight");
    breaks_and_comes_back("--quiet", "20", FL_ERR_INTERNAL, "said nothing");
}

static void a_worker_killed_while_it_loads_is_replaced(void **state) {
    (void)state;
    fl_request_params p;
    fl_link_status s;
    uint64_t id;
    fl_worker_link *link = open_stub("--load", "0.3");
    do fl_worker_link_status(link, &s);
    while (s.worker_pid == 0 || s.load_fraction == 0);
    assert_int_equal(s.state, FL_LINK_LOADING);
    fl_request_params_default(&p);
    p.tokens = prompt;
    p.n_tokens = SHORT;
    assert_int_equal(fl_worker_link_submit(link, &p, got_event, NULL, &id), FL_ERR_AGAIN);
    assert_non_null(strstr(fl_err_detail(), "loading"));
    assert_int_equal(kill(s.worker_pid, SIGKILL), 0);
    link_wait_restarts(link, 1);
    fl_worker_link_close(link);
}

static void loading_that_fails_again_and_again_is_given_up(void **state) {
    (void)state;
    fl_link_status s;
    fl_worker_link *link = open_stub("--fail-load", "1");
    do fl_worker_link_status(link, &s);
    while (s.state != FL_LINK_FAILED);
    assert_int_equal(s.n_restarts, 4);
    assert_int_equal(s.err, FL_ERR_NOMEM);
    assert_string_equal(s.error, "the stub was told to fail");
    fl_worker_link_close(link);
    no_child_is_left();
}

static void a_program_that_cannot_start_is_named(void **state) {
    (void)state;
    const char *const command[] = {"/no/such/program", NULL};
    fl_link_options o;
    fl_link_status s;
    fl_worker_link *link = NULL;
    fl_link_options_default(&o);
    o.command = command;
    o.load_failures_max = 2;
    assert_int_equal(fl_worker_link_open(&o, &link), FL_ERR_OK);
    do fl_worker_link_status(link, &s);
    while (s.state != FL_LINK_FAILED);
    assert_non_null(strstr(s.error, "its program could not be started"));
    fl_worker_link_close(link);
}

static void bounds_are_kept(void **state) {
    (void)state;
    static got all[MANY + 1];
    static int32_t long_prompt[400000]; /* more bytes than the queue may hold */
    fl_request_params p;
    fl_worker_link *link = open_stub("--ctx", "1000");
    link_wait(link, FL_LINK_READY);
    for (int32_t i = 0; i <= MANY; i++) got_init(&all[i]);
    for (int32_t i = 0; i < MANY; i++) link_submit(link, prompt, SHORT, 300, &all[i]);
    fl_request_params_default(&p);
    p.tokens = prompt;
    p.n_tokens = SHORT;
    assert_int_equal(fl_worker_link_submit(link, &p, got_event, &all[MANY], &all[MANY].id), FL_ERR_AGAIN);
    fl_worker_link_cancel(link, all[0].id);
    got_wait_done(&all[0]);
    assert_int_equal(all[0].last.finish, FL_FINISH_CANCELLED);
    p.tokens = long_prompt;
    p.n_tokens = 400000;
    assert_int_equal(fl_worker_link_submit(link, &p, got_event, &all[MANY], &all[MANY].id), FL_ERR_AGAIN);
    p.n_tokens = 1001;
    assert_int_equal(fl_worker_link_submit(link, &p, got_event, &all[MANY], &all[MANY].id), FL_ERR_OK);
    got_wait_done(&all[MANY]);
    assert_int_equal(all[MANY].last.err, FL_ERR_LIMIT);
    p.score_tokens = 1;
    assert_int_equal(fl_worker_link_submit(link, &p, got_event, &all[MANY], &all[MANY].id),
                     FL_ERR_UNSUPPORTED);
    got_wait_done(&all[MANY - 1]);
    for (int32_t i = 0; i < all[MANY - 1].n_tokens; i++) assert_int_equal(all[MANY - 1].tokens[i], i);
    fl_worker_link_close(link); /* with requests still in flight, perhaps */
    for (int32_t i = 0; i < MANY; i++) assert_int_equal(all[i].n_done, 1);
    for (int32_t i = 0; i <= MANY; i++) got_free(&all[i]);
}

static void closing_ends_what_is_in_flight(void **state) {
    (void)state;
    got one;
    fl_worker_link *link = open_stub("--ctx", "1000");
    link_wait(link, FL_LINK_READY);
    got_init(&one);
    link_submit(link, prompt, SHORT, 1 << 20, &one);
    got_wait_tokens(&one, 3);
    fl_worker_link_close(link);
    assert_int_equal(one.n_done, 1);
    assert_int_equal(one.last.finish, FL_FINISH_CANCELLED);
    got_free(&one);
    link = open_stub("--load", "60");
    fl_worker_link_close(link); /* while it loads */
    no_child_is_left();
}

static void predicted_seconds_lie_between_the_points(void **state) {
    (void)state;
    const fl_engine_load load = {.n_costs = 3, .cost_tokens = {1000, 2000, 4000}, .cost_s = {1, 3, 9}};
    assert_true(fl_link_prefill_s(&load, 500) == 0.5);
    assert_true(fl_link_prefill_s(&load, 1000) == 1);
    assert_true(fl_link_prefill_s(&load, 1500) == 2);
    assert_true(fl_link_prefill_s(&load, 3000) == 6);
    assert_true(fl_link_prefill_s(&load, 6000) == 15);
    assert_true(fl_link_prefill_s(&(fl_engine_load){0}, 6000) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_the_engines_own_answer),
        cmocka_unit_test(many_at_once_and_refused_ones_beside_them),
        cmocka_unit_test(a_cancelled_request_gives_its_pages_back),
        cmocka_unit_test(a_killed_worker_ends_its_requests_and_comes_back),
        cmocka_unit_test(a_checkpoint_that_is_not_there_is_not_tried_again),
        cmocka_unit_test(crashes_garbage_silence_and_lost_devices_are_survived),
        cmocka_unit_test(a_worker_killed_while_it_loads_is_replaced),
        cmocka_unit_test(loading_that_fails_again_and_again_is_given_up),
        cmocka_unit_test(a_program_that_cannot_start_is_named),
        cmocka_unit_test(bounds_are_kept),
        cmocka_unit_test(closing_ends_what_is_in_flight),
        cmocka_unit_test(predicted_seconds_lie_between_the_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
