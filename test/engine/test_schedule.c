/* The engine with several prompts at once: who computes first, that nobody's bits change by it, what is given up, what
 * is refused. On the bundled model; prompts are random tokens, so that nothing is found in the cache by chance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <firstlight/firstlight.h>

#include "engine/engine.h"
#include "support/asking.h"

enum { CTX = 8192, LONG = 2400, MIDDLE = 2000, SHORT = 200 };

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static fl_engine *open_with(void (*change)(fl_settings *)) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = CTX;
    s.kv_tokens = 3 * CTX;
    s.n_threads = 1; /* many short steps: threads that wait for each other at each op would only wait */
    if (change) change(&s);
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

static int32_t *random_ids(uint32_t seed, int32_t n) {
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    assert_non_null(ids);
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = 5 + (int32_t)(seed >> 8) % 8000;
    }
    return ids;
}

/* A request that runs, in a session of its own. */
typedef struct running {
    fl_session *session;
    fl_request *request;
    double submit_s, first_s; /* on one clock */
} running;

static running start(fl_engine *e, const int32_t *ids, int32_t n) {
    running r = {.submit_s = now_s()};
    assert_int_equal(fl_session_open(e, &r.session), FL_ERR_OK);
    r.request = submit(r.session, ids, n, -1);
    return r;
}

static running start_with(fl_engine *e, const int32_t *ids, int32_t n, int32_t priority, double deadline_s) {
    running r = {.submit_s = now_s()};
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = n;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    p.priority = priority;
    p.deadline_s = deadline_s;
    assert_int_equal(fl_session_open(e, &r.session), FL_ERR_OK);
    assert_int_equal(fl_submit(r.session, &p, &r.request), FL_ERR_OK);
    return r;
}

/* Until the prompt is read; the token is left for `end`. */
static void wait_for_prompt(const running *r) {
    fl_mark marks[64];
    for (bool read = false; !read;) {
        int32_t n = fl_request_timeline(r->request, marks, 64);
        for (int32_t i = 0; i < n && i < 64; i++) read = read || strcmp(marks[i].name, "first_token") == 0;
        if (!read) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static answer end(running *r) {
    answer a = finish(r->request);
    r->first_s = r->submit_s + a.ttft_s;
    assert_int_equal(fl_session_close(r->session), FL_ERR_OK);
    return a;
}

/* Every step of a prompt that is not alone is a small one here, so that what follows depends on no machine's speed. */
static void use_short_steps(fl_settings *s) {
    s->max_step_s = s->max_decode_stall_s = 1e-4;
}

static void use_fcfs(fl_settings *s) {
    use_short_steps(s);
    s->scheduling_policy = "fcfs";
}

/* The first bin ends between the two prompts, so that they are apart on a machine of any speed. */
static void part_bins(fl_engine *e) {
    double between_s = fl_step_rate_seconds(&e->rate, fl_cost_table_at(&e->costs, (SHORT + LONG) / 2));
    e->sched.policy.bound_s[0] = between_s;
}

static void a_question_passes_a_long_prompt(void **state) {
    (void)state;
    int32_t *book = random_ids(1, LONG), *ask_ids = random_ids(2, SHORT);
    fl_engine *alone = open_with(NULL);
    answer long_alone = ask(alone, book, LONG, -1), short_alone = ask(alone, ask_ids, SHORT, -1);
    fl_engine_close(alone);
    for (int32_t fcfs = 0; fcfs < 2; fcfs++) {
        fl_engine *e = open_with(fcfs ? use_fcfs : use_short_steps);
        part_bins(e);
        running reading = start(e, book, LONG), question = start(e, ask_ids, SHORT);
        answer a = end(&question), b = end(&reading);
        assert_same(&a, &short_alone);
        assert_same(&b, &long_alone);
        print_message("%s: question %.2f s, %d tokens %.2f s\n", fcfs ? "fcfs" : "bins", a.ttft_s, LONG,
                      b.ttft_s);
        assert_true(fcfs ? question.first_s > reading.first_s : question.first_s < reading.first_s);
        assert_true(b.most_rows < long_alone.most_rows);
        fl_engine_close(e);
    }
    free(book);
    free(ask_ids);
}

static void equal_prompts_take_no_longer_together_and_equal_documents_are_read_once(void **state) {
    (void)state;
    enum { EACH = 1000 };
    int32_t *one = random_ids(3, EACH), *other = random_ids(4, EACH);
    fl_engine *e = open_with(NULL);
    answer alone = ask(e, one, EACH, -1);
    fl_engine_close(e);
    e = open_with(NULL);
    running a = start(e, one, EACH), b = start(e, other, EACH), again = start(e, one, EACH);
    answer first = end(&a), second = end(&b), third = end(&again);
    print_message("alone %.3f s; three at once, two of them the same: %.3f, %.3f, %.3f s\n", alone.ttft_s,
                  first.ttft_s, second.ttft_s, third.ttft_s);
    assert_same(&first, &alone);
    assert_same(&third, &alone);
    assert_int_equal(third.cached, (EACH - 1) / 64 * 64);
    fl_engine_close(e);
    free(one);
    free(other);
}

/* Steps as long as they may be, answers as often as they may be. */
static void use_long_steps(fl_settings *s) {
    s->max_step_s = 1000;
    s->max_decode_stall_s = 1e-4;
}

enum { WORDS = 200 };

static running speak(fl_engine *e, const int32_t *question) {
    running r = {0};
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = question;
    p.n_tokens = SHORT;
    p.max_tokens = WORDS;
    p.ignore_eos = true;
    assert_int_equal(fl_session_open(e, &r.session), FL_ERR_OK);
    assert_int_equal(fl_submit(r.session, &p, &r.request), FL_ERR_OK);
    return r;
}

/* Takes n tokens, or all there will be. */
static int32_t listen(running *r, int32_t *words, int32_t n) {
    fl_event event;
    int32_t k = 0;
    while (k < n) {
        assert_int_equal(fl_poll(r->request, 100, &event), FL_ERR_OK);
        if (event.type == FL_EVENT_DONE) break;
        if (event.type == FL_EVENT_TOKEN) words[k++] = event.token;
    }
    return k;
}

/* The prompt is one step of 8 layers; the answer beside it goes on between them, and both have the bits they have
 * alone. */
static void an_answer_goes_on_between_the_layers_of_a_prompt(void **state) {
    (void)state;
    int32_t *book = random_ids(5, MIDDLE), *question = random_ids(6, SHORT), words[2][WORDS], n = 1;
    fl_engine *e = open_with(use_long_steps);
    running speaking = speak(e, question);
    assert_int_equal(listen(&speaking, words[0], WORDS), WORDS);
    fl_request_close(speaking.request);
    assert_int_equal(fl_session_close(speaking.session), FL_ERR_OK);
    answer alone = ask(e, book, MIDDLE, -1);
    fl_engine_close(e);

    e = open_with(use_long_steps);
    speaking = speak(e, question);
    assert_int_equal(listen(&speaking, words[1], n), n);
    running reading = start(e, book, MIDDLE);
    wait_for_prompt(&reading);
    for (fl_event event; n < WORDS;) {
        assert_int_equal(fl_poll(speaking.request, 0, &event), FL_ERR_OK);
        if (event.type == FL_EVENT_NONE) break;
        if (event.type == FL_EVENT_TOKEN) words[1][n++] = event.token;
    }
    assert_true(n > 8);
    answer beside = end(&reading);
    assert_int_equal(beside.most_rows, alone.most_rows);
    assert_same(&beside, &alone);
    n += listen(&speaking, words[1] + n, WORDS - n);
    assert_int_equal(n, WORDS);
    assert_memory_equal(words[0], words[1], sizeof words[0]);
    fl_request_close(speaking.request);
    assert_int_equal(fl_session_close(speaking.session), FL_ERR_OK);
    fl_engine_close(e);
    free(book);
    free(question);
}

static void priorities_decide_among_those_that_wait(void **state) {
    (void)state;
    int32_t *ids[3];
    for (uint32_t i = 0; i < 3; i++) ids[i] = random_ids(10 + i, 1000);
    fl_engine *e = open_with(use_short_steps);
    running first = start_with(e, ids[0], 1000, 0, 0), low = start_with(e, ids[1], 1000, 7, 0),
            high = start_with(e, ids[2], 1000, -7, 0);
    answer a = end(&high), b = end(&first), c = end(&low);
    assert_true(a.n == ANSWER && b.n == ANSWER && c.n == ANSWER);
    assert_true(high.first_s < first.first_s);
    assert_true(first.first_s < low.first_s);
    fl_engine_close(e);
    for (int32_t i = 0; i < 3; i++) free(ids[i]);
}

static void what_cannot_come_in_time_ends_by_name(void **state) {
    (void)state;
    int32_t *book = random_ids(20, LONG), *question = random_ids(21, SHORT);
    fl_engine *e = open_with(use_short_steps);
    answer warm = ask(e, question, SHORT, -1);
    running late = start_with(e, book, LONG, 0, 1e-3), in_time = start_with(e, question, SHORT, 0, 1000);
    answer a = end(&late), b = end(&in_time);
    assert_int_equal(a.finish, FL_FINISH_ERROR);
    assert_int_equal(a.err, FL_ERR_LIMIT);
    assert_non_null(strstr(a.detail, "deadline_s"));
    assert_int_equal(a.n, 0);
    assert_same(&b, &warm);
    fl_engine_close(e);
    free(book);
    free(question);
}

static void use_small_pool(fl_settings *s) {
    use_short_steps(s);
    s->ctx_tokens = s->kv_tokens = 2048;
    s->queue_tokens_max = 4000;
}

/* The first holds more than half of the pool, the second needs as much: the third runs beside the first, and the second
 * when it ends. */
static void who_waits_for_pages_is_passed_and_comes_to_its_turn(void **state) {
    (void)state;
    int32_t *ids[3];
    for (uint32_t i = 0; i < 3; i++) ids[i] = random_ids(30 + i, MIDDLE);
    fl_engine *e = open_with(use_small_pool);
    running first = start(e, ids[0], 1200), large = start(e, ids[1], 1500), small = start(e, ids[2], SHORT);
    answer c = end(&small), a = end(&first), b = end(&large);
    assert_true(a.n == ANSWER && b.n == ANSWER && c.n == ANSWER);
    assert_true(small.first_s < large.first_s);
    assert_true(first.first_s < large.first_s);
    fl_engine_close(e);
    for (int32_t i = 0; i < 3; i++) free(ids[i]);
}

static void the_queue_is_bounded_in_tokens_and_its_load_is_told(void **state) {
    (void)state;
    int32_t *ids = random_ids(40, MIDDLE);
    fl_engine *e = open_with(use_small_pool);
    fl_engine_load load;
    fl_session *s = NULL;
    fl_request *r = NULL;
    fl_request_params p;
    fl_engine_get_load(e, &load);
    assert_int_equal(load.queue_tokens, 0);
    assert_int_equal(load.queue_tokens_max, 4000);
    assert_true(load.n_bins >= 2 && load.n_costs >= 2);
    assert_int_equal(load.n_costs, 2);
    assert_int_equal(load.cost_tokens[0], 1024);
    assert_int_equal(load.cost_tokens[1], 2048);
    double cost_s = load.cost_s[1];
    assert_true(load.cost_s[0] > 0 && load.cost_s[0] < cost_s); /* measured while opening */
    assert_true(fl_load_wait_s(&load, cost_s) == 0);
    running first = start(e, ids, 2000), second = start(e, ids + 1, 1800);
    fl_engine_get_load(e, &load);
    assert_int_equal(load.n_waiting + load.n_running, 2);
    if (load.queue_tokens > 2000) assert_true(fl_load_wait_s(&load, cost_s) > 0);
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = 2000;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    fl_err err = fl_submit(s, &p, &r);
    assert_int_equal(err, FL_ERR_AGAIN); /* nothing of the first was computed yet, or of the second */
    assert_non_null(strstr(fl_err_detail(), "prompt tokens"));
    assert_int_equal(end(&first).n, ANSWER);
    assert_int_equal(end(&second).n, ANSWER);
    fl_engine_get_load(e, &load);
    assert_int_equal(load.n_waiting + load.n_running, 0);
    assert_true(fl_load_wait_s(&load, cost_s) == 0);
    p.n_tokens = SHORT;
    p.deadline_s = -1;
    assert_int_equal(fl_submit(s, &p, &r), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "deadline_s"));
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
    fl_engine_close(e);
    free(ids);
}

static void use_one_at_a_time(fl_settings *s) {
    s->running_max = 1;
}

/* However much room there is, so many run and the others wait; all come to their turn. */
static void only_so_many_run_at_once(void **state) {
    (void)state;
    enum { N = 4 };
    int32_t *ids =
        random_ids(71, LONG + N * SHORT); /* the first is long: the others are there before it is done */
    fl_engine *e = open_with(use_one_at_a_time);
    running all[N];
    fl_engine_load load;
    int32_t most_running = 0, most_waiting = 0;
    all[0] = start(e, ids, LONG);
    for (int32_t i = 1; i < N; i++) all[i] = start(e, ids + LONG + (int64_t)i * SHORT, SHORT);
    do {
        fl_engine_get_load(e, &load);
        if (load.n_running > most_running) most_running = load.n_running;
        if (load.n_waiting > most_waiting) most_waiting = load.n_waiting;
        assert_int_equal(nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL), 0);
    } while (load.n_running + load.n_waiting > 0);
    assert_int_equal(most_running, 1);
    assert_true(most_waiting >= N - 2);
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(finish(all[i].request).n, ANSWER);
        assert_int_equal(fl_session_close(all[i].session), FL_ERR_OK);
    }
    fl_engine_close(e);
    free(ids);
}

static void bad_settings_are_refused_by_name(void **state) {
    (void)state;
    fl_settings good, s;
    fl_engine *e = NULL;
    fl_settings_default(&good);
    good.model_path = "build/models/spark-66m";
    good.ctx_tokens = 1024;
#define REFUSE(field, value)                                                                                 \
    s = good;                                                                                                \
    s.field = value;                                                                                         \
    assert_int_equal(fl_engine_open(&s, &e), FL_ERR_INVALID);                                                \
    assert_non_null(strstr(fl_err_detail(), #field))
    REFUSE(scheduling_policy, "lifo");
    REFUSE(queue_tokens_max, -1);
    REFUSE(max_decode_stall_s, -1);
    REFUSE(max_step_s, -1);
    REFUSE(running_max, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_passes_a_long_prompt),
        cmocka_unit_test(equal_prompts_take_no_longer_together_and_equal_documents_are_read_once),
        cmocka_unit_test(an_answer_goes_on_between_the_layers_of_a_prompt),
        cmocka_unit_test(priorities_decide_among_those_that_wait),
        cmocka_unit_test(what_cannot_come_in_time_ends_by_name),
        cmocka_unit_test(who_waits_for_pages_is_passed_and_comes_to_its_turn),
        cmocka_unit_test(the_queue_is_bounded_in_tokens_and_its_load_is_told),
        cmocka_unit_test(only_so_many_run_at_once),
        cmocka_unit_test(bad_settings_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
