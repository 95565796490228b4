/* The link to real workers with the bundled model: their answers are those of an engine in this process bit for bit;
 * workers that are killed in the middle of prompt and answer, steps with NaNs, a device that is lost. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/faulty_worker.h"
#include "server/link_client.h"
#include "support/asking.h"
#include "support/command.h"
#include "support/golden.h"

enum { CTX = 4096, MANY = 64, KINDS = 4, SHORT = 40 };

static void real_settings(fl_settings *s) {
    fl_settings_default(s);
    s->deterministic = true; /* of a GPU; CPUs always are */
    s->model_path = "build/models/spark-66m";
    s->ctx_tokens = CTX;
    s->kv_tokens = 4 * CTX;
    s->span_tokens = 256; /* many steps in a prompt */
    s->n_threads = 1;
    s->requests_max = 128;
}

static fl_worker_link *open_link_on(const char *program, const char *kv_disk) {
    const char *const command[] = {program, FL_WORKER_ARGUMENT, NULL};
    fl_link_options o;
    fl_worker_link *link = NULL;
    fl_link_options_default(&o);
    real_settings(&o.settings);
    o.settings.kv_disk = kv_disk;
    o.command = command;
    if (fl_worker_link_open(&o, &link) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return link;
}

static fl_worker_link *open_link(const char *program) {
    return open_link_on(program, NULL);
}

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
    assert_int_equal(g->marked_tokens, a->n);
}

static void a_stream_is_the_engines_own_answer(void **state) {
    (void)state;
    golden g;
    got one;
    answer alone;
    golden_read("doc2k", &g);
    const int64_t n = g.n;
    answers_alone(g.ids, &n, 1, &alone);
    fl_worker_link *link = open_link(FL_CLI);
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
    assert_true(s.meters.steps >= ANSWER && s.meters.step_s > 0);
    assert_true(s.meters.peak_bytes > 0 && s.meters.peak_bytes <= s.meters.planned_bytes);
    fl_worker_link_close(link);
    link_no_child();
    got_free(&one);
    golden_free(&g);
}

static void many_at_once_and_refused_ones_beside_them(void **state) {
    (void)state;
    golden g;
    static got all[MANY + 1];
    const int64_t lengths[KINDS] = {SHORT, 2 * SHORT, 3 * SHORT, 4 * SHORT};
    answer alone[KINDS];
    golden_read("doc2k", &g);
    answers_alone(g.ids, lengths, KINDS, alone);
    fl_worker_link *link = open_link(FL_CLI);
    link_wait(link, FL_LINK_READY);
    for (int32_t i = 0; i <= MANY; i++) got_init(&all[i]);
    for (int32_t i = 0; i < MANY; i++) link_submit(link, g.ids, lengths[i % KINDS], ANSWER, &all[i]);
    int32_t *bad = malloc(sizeof(int32_t) * SHORT);
    assert_non_null(bad);
    for (int32_t i = 0; i < SHORT; i++)
        bad[i] = 1 << 30; /* no such token: the engine refuses this one alone */
    link_submit(link, bad, SHORT, ANSWER, &all[MANY]);
    for (int32_t i = 0; i <= MANY; i++) got_wait_done(&all[i]);
    for (int32_t i = 0; i < MANY; i++) assert_answer(&all[i], &alone[i % KINDS]);
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
    fl_worker_link *link = open_link(FL_CLI);
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
    got_free(&one);
    got_init(&one);
    link_submit(link, g.ids, g.n, 1000, &one);
    got_wait_progress(&one);
    fl_worker_link_close(link); /* in the middle of it */
    assert_int_equal(one.n_done, 1);
    assert_int_equal(one.last.finish, FL_FINISH_CANCELLED);
    link_no_child();
    got_free(&one);
    golden_free(&g);
}

static void a_killed_worker_ends_its_requests_and_comes_back(void **state) {
    (void)state;
    golden g;
    got first, second, third;
    golden_read("doc2k", &g);
    fl_worker_link *link = open_link(FL_CLI);
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
    link_no_child();
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

static void a_document_outlives_its_worker(void **state) {
    (void)state;
    golden g;
    got first, second;
    char dir[] = "/tmp/fl-link-XXXXXX";
    assert_non_null(mkdtemp(dir));
    golden_read("doc2k", &g);
    fl_worker_link *link = open_link_on(FL_CLI, dir);
    link_wait(link, FL_LINK_READY);
    got_init(&first);
    got_init(&second);
    link_submit(link, g.ids, g.n, ANSWER, &first);
    got_wait_done(&first);
    fl_worker_link_close(link); /* its worker stores what waits, then ends */
    link = open_link_on(FL_CLI, dir);
    link_wait(link, FL_LINK_READY);
    link_submit(link, g.ids, g.n, ANSWER, &second);
    got_wait_done(&second);
    assert_int_equal(first.last.cached_tokens, 0);
    assert_int_equal(second.last.cached_tokens, (g.n - 1) / 64 * 64);
    assert_string_equal(second.text, first.text);
    assert_memory_equal(second.logprobs, first.logprobs, sizeof(float) * ANSWER);
    fl_worker_link_close(link);
    assert_int_equal(remove_tree(dir), 0);
    got_free(&first);
    got_free(&second);
    golden_free(&g);
}

/* A prompt of the text with a token that makes faulty_worker fail at its end. */
static void submit_fault(fl_worker_link *link, const golden *g, int32_t token, got *to) {
    int32_t ids[SHORT];
    memcpy(ids, g->ids, sizeof ids);
    ids[SHORT - 1] = token;
    link_submit(link, ids, SHORT, ANSWER, to);
}

static void nans_end_one_request_and_a_lost_device_the_worker(void **state) {
    (void)state;
    golden g;
    got beside, bad, after;
    golden_read("doc2k", &g);
    fl_worker_link *link = open_link(FL_FAULTY_WORKER);
    fl_link_status s = link_wait(link, FL_LINK_READY);
    got_init(&beside);
    got_init(&bad);
    got_init(&after);
    link_submit(link, g.ids, SHORT, 200, &beside);
    got_wait_tokens(&beside, 1);
    submit_fault(link, &g, FAULT_NAN, &bad);
    got_wait_done(&bad);
    assert_int_equal(bad.last.err, FL_ERR_NUMERIC);
    assert_int_equal(beside.n_done, 0);
    got_free(&bad);
    got_init(&bad);
    submit_fault(link, &g, FAULT_LOST, &bad);
    got_wait_done(&bad);
    got_wait_done(&beside);
    assert_int_equal(bad.last.err, FL_ERR_DEVICE);
    assert_non_null(strstr(bad.detail, "an illegal memory access"));
    assert_int_equal(beside.last.err, FL_ERR_DEVICE);
    fl_link_status again = link_wait_restarts(link, 1);
    assert_int_not_equal(again.worker_pid, s.worker_pid);
    assert_int_equal(again.err, FL_ERR_DEVICE);
    assert_non_null(strstr(again.error, "its device is lost"));
    link_submit(link, g.ids, SHORT, ANSWER, &after);
    got_wait_done(&after);
    assert_int_equal(after.n_tokens, ANSWER);
    fl_worker_link_close(link);
    link_no_child();
    got_free(&beside);
    got_free(&bad);
    got_free(&after);
    golden_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_the_engines_own_answer),
        cmocka_unit_test(many_at_once_and_refused_ones_beside_them),
        cmocka_unit_test(a_cancelled_request_gives_its_pages_back),
        cmocka_unit_test(a_killed_worker_ends_its_requests_and_comes_back),
        cmocka_unit_test(a_checkpoint_that_is_not_there_is_not_tried_again),
        cmocka_unit_test(a_document_outlives_its_worker),
        cmocka_unit_test(nans_end_one_request_and_a_lost_device_the_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
