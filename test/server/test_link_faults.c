/* The link and stub workers that break in every way that it must survive; its bounds; its end. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/link_client.h"

enum { MANY = 64, SHORT = 40 };

static const int32_t prompt[SHORT];

/* A stub with one option and its value. */
static fl_worker_link *open_stub(const char *option, const char *value) {
    const char *const command[] = {FL_STUB_WORKER, "--rate", "500", "--ttft", "0.01", option, value, NULL};
    fl_link_options o;
    fl_worker_link *link = NULL;
    fl_link_options_default(&o);
    o.command = command;
    o.backoff_max_s = 0.05;
    /* Short only where it is waited for: a busy machine is silent as long. */
    if (strcmp(option, "--quiet") == 0) o.silence_max_s = 0.6;
    if (strcmp(option, "--stuck") == 0) o.stuck_max_s = 0.6;
    o.queue_bytes_max = 1 << 20;
    o.requests_max = MANY;
    if (fl_worker_link_open(&o, &link) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return link;
}

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
    link_no_child();
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
    breaks_and_comes_back("--stuck", "20", FL_ERR_INTERNAL, "finished no layer");
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
    link_no_child();
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

/* Requests, the longest that fit, fill the queue of a worker that does not read to its last bytes: those that are
 * cancelled meanwhile end all the same, once it reads again. */
static void no_cancel_is_lost_in_a_full_queue(void **state) {
    static const char *const command[] = {FL_STUB_WORKER, "--rate", "500", "--ttft", "0.01", NULL};
    static got all[MANY];
    static int32_t ids[100000];
    int32_t n = 0;
    fl_link_options o;
    fl_request_params p;
    fl_worker_link *link = NULL;
    (void)state;
    fl_link_options_default(&o);
    o.command = command;
    o.queue_bytes_max = 1 << 20;
    o.requests_max = MANY;
    assert_int_equal(fl_worker_link_open(&o, &link), FL_ERR_OK);
    pid_t worker = link_wait(link, FL_LINK_READY).worker_pid;
    for (int32_t i = 0; i < MANY; i++) got_init(&all[i]);
    assert_int_equal(kill(worker, SIGSTOP), 0);
    fl_request_params_default(&p);
    p.tokens = ids;
    p.max_tokens = 400;
    for (p.n_tokens = 100000; p.n_tokens > 0 && n < MANY; p.n_tokens /= 2)
        if (fl_worker_link_submit(link, &p, got_event, &all[n], &all[n].id) == FL_ERR_OK) {
            n++;
            p.n_tokens = 200000; /* the longest again: the link's thread may have made room */
        }
    assert_true(p.n_tokens == 0); /* not even the shortest has room */
    for (int32_t i = 0; i < n; i++) fl_worker_link_cancel(link, all[i].id);
    assert_int_equal(kill(worker, SIGCONT), 0);
    for (int32_t i = 0; i < n; i++) {
        got_wait_done(&all[i]);
        assert_int_equal(all[i].last.finish, FL_FINISH_CANCELLED);
    }
    fl_worker_link_close(link);
    for (int32_t i = 0; i < MANY; i++) got_free(&all[i]);
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
    link_no_child();
}

/* A process that has a link with a ready worker, whose id it writes to `to`, and waits for its own end. */
static void be_front(int to) {
    fl_link_status s;
    fl_worker_link *link = open_stub("--ctx", "1000");
    do fl_worker_link_status(link, &s);
    while (s.state != FL_LINK_READY);
    if (write(to, &s.worker_pid, sizeof s.worker_pid) != sizeof s.worker_pid) _exit(1);
    for (;;) pause();
}

/* Gone, or dead and not reaped by whoever inherited it. */
static bool is_gone(int32_t pid) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return true;
    bool dead = !fgets(line, sizeof line, f) || strstr(line, ") Z");
    fclose(f);
    return dead;
}

static void a_worker_goes_with_its_front(void **state) {
    (void)state;
    int ends[2];
    int32_t worker = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t front = fork();
    if (front == 0) be_front(ends[1]);
    assert_int_equal(read(ends[0], &worker, sizeof worker), sizeof worker);
    assert_false(is_gone(worker));
    assert_int_equal(kill(front, SIGKILL), 0);
    assert_int_equal(waitpid(front, NULL, 0), front);
    for (int32_t i = 0; i < 1000 && !is_gone(worker); i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_true(is_gone(worker));
    close(ends[0]);
    close(ends[1]);
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
        cmocka_unit_test(crashes_garbage_silence_and_lost_devices_are_survived),
        cmocka_unit_test(a_worker_killed_while_it_loads_is_replaced),
        cmocka_unit_test(loading_that_fails_again_and_again_is_given_up),
        cmocka_unit_test(a_program_that_cannot_start_is_named),
        cmocka_unit_test(bounds_are_kept),
        cmocka_unit_test(no_cancel_is_lost_in_a_full_queue),
        cmocka_unit_test(closing_ends_what_is_in_flight),
        cmocka_unit_test(a_worker_goes_with_its_front),
        cmocka_unit_test(predicted_seconds_lie_between_the_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
