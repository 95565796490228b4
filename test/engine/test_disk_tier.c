/* The engine with a disk tier: a restart finds its documents again bit for bit, and only what it may find. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "support/asking.h"
#include "support/command.h"
#include "support/golden.h"

enum { PROMPT = 1200, WHOLE_PAGES = (PROMPT - 1) / 64 * 64 };

typedef struct fixture {
    char dir[64];
    golden g;
} fixture;

static void open_fixture(fixture *f) {
    *f = (fixture){.dir = "/tmp/firstlight-tier-XXXXXX"};
    assert_non_null(mkdtemp(f->dir));
    golden_read("doc2k", &f->g);
}

static void close_fixture(fixture *f) {
    assert_int_equal(remove_tree(f->dir), 0);
    golden_free(&f->g);
}

static fl_settings settings_of(const fixture *f) {
    fl_settings s;
    fl_settings_default(&s);
    s.deterministic = true; /* of a GPU; CPUs always are */
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = 2048;
    s.kv_disk = f->dir;
    return s;
}

static fl_engine *open_engine(const fl_settings *s) {
    fl_engine *e = NULL;
    if (fl_engine_open(s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

/* Opens an engine, asks once, closes it. */
static answer ask_once(const fl_settings *s, const fixture *f) {
    fl_engine *e = open_engine(s);
    answer a = ask(e, f->g.ids, PROMPT, -1);
    fl_engine_close(e);
    return a;
}

static void a_restart_finds_its_documents(void **state) {
    (void)state;
    static const char *const formats[] = {"bf16", "int4"};
    fixture f;
    open_fixture(&f);
    for (int i = 0; i < 2; i++) {
        fl_settings s = settings_of(&f);
        s.kv_dtype = formats[i];
        answer cold = ask_once(&s, &f), warm = ask_once(&s, &f);
        assert_int_equal(cold.cached, 0); /* of the other format nothing is found */
        assert_int_equal(warm.cached, WHOLE_PAGES);
        assert_same(&cold, &warm);
    }
    close_fixture(&f);
}

/* Whatever decides a page's bits parts the folders. */
static void other_settings_find_nothing(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    fl_settings s = settings_of(&f);
    ask_once(&s, &f);
    fl_settings policy = s, rope = s, backend = s;
    policy.policy = "window-anchors:window=256,stride=64";
    rope.rope = "yarn";
    rope.rope_factor = 2;
    backend.backend = "avx2";
    assert_int_equal(ask_once(&policy, &f).cached, 0);
    assert_int_equal(ask_once(&rope, &f).cached, 0);
    assert_true(ask_once(&s, &f).cached > 0);
    fl_settings sparse = s;
    sparse.policy = "blocks";
    assert_int_equal(ask_once(&sparse, &f).cached, 0);
    sparse.block_density = 0.5;
    assert_int_equal(ask_once(&sparse, &f).cached, 0);
    assert_int_equal(ask_once(&backend, &f).cached, 0);
    close_fixture(&f);
}

/* Every segment gets some of its bytes changed: answers are the same, from what is left. */
static void damage_never_reaches_an_answer(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    fl_settings s = settings_of(&f);
    answer cold = ask_once(&s, &f);
    char command[256];
    /* the 5th page of the first segment: a byte of its KV */
    snprintf(
        command, sizeof command,
        "for p in %s/*/segment-*.kv; do printf x | dd of=$p bs=1 seek=$((4 * 167936 + 5000)) conv=notrunc "
        "2>/dev/null; done",
        f.dir);
    assert_int_equal(system(command), 0);
    answer damaged = ask_once(&s, &f), mended = ask_once(&s, &f);
    assert_same(&cold, &damaged);
    assert_same(&cold, &mended);
    assert_true(damaged.cached < WHOLE_PAGES);
    assert_int_equal(mended.cached, WHOLE_PAGES); /* what was computed again was stored again */
    close_fixture(&f);
}

/* A pool that holds one document at a time: the other one comes back from disk. */
/* Until all its pages are on disk. */
static void wait_stored(fl_engine *e) {
    fl_engine_load load;
    const struct timespec pause = {.tv_nsec = 1000000};
    do {
        nanosleep(&pause, NULL);
        fl_engine_get_load(e, &load);
    } while (load.kv_disk_waiting > 0);
}

static void what_memory_lost_comes_from_disk(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    fl_settings s = settings_of(&f);
    s.ctx_tokens = s.kv_tokens = 1280;
    fl_engine *e = open_engine(&s);
    answer first = ask(e, f.g.ids, PROMPT, -1);
    wait_stored(e);
    answer other = ask(e, f.g.ids + 500, PROMPT, -1); /* another document */
    answer again = ask(e, f.g.ids, PROMPT, -1);
    assert_int_equal(first.cached, 0);
    assert_int_equal(other.cached, 0);
    assert_int_equal(again.cached, WHOLE_PAGES);
    assert_same(&first, &again);
    fl_engine_load load;
    fl_engine_get_load(e, &load);
    assert_true(load.kv_disk_read > 0 && load.kv_disk_read <= WHOLE_PAGES / 64);
    assert_true(load.kv_disk_pages >= WHOLE_PAGES / 64 && load.kv_disk_bytes >= load.kv_disk_pages * 163840);
    fl_engine_close(e);
    close_fixture(&f);
}

static fl_request *submit_one(fl_session *session, const int32_t *ids) {
    fl_request *r = NULL;
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = PROMPT;
    p.max_tokens = 1;
    assert_int_equal(fl_submit(session, &p, &r), FL_ERR_OK);
    return r;
}

/* The second is queued when the first ends, with more pages in its last step than can be on their way to the disk at
 * once, and needs their room: it waits for them. */
static void nothing_is_evicted_before_it_is_stored(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    fl_settings s = settings_of(&f);
    s.ctx_tokens = s.kv_tokens = 1280;
    s.max_step_s = 100;
    fl_engine *e = open_engine(&s);
    fl_session *sessions[2];
    fl_request *requests[2];
    for (int i = 0; i < 2; i++) assert_int_equal(fl_session_open(e, &sessions[i]), FL_ERR_OK);
    for (int i = 0; i < 2; i++) requests[i] = submit_one(sessions[i], f.g.ids + 500 * (int64_t)i);
    for (int i = 0; i < 2; i++) {
        answer a = finish(requests[i]);
        assert_int_equal(a.n, 1);
        assert_int_equal(fl_session_close(sessions[i]), FL_ERR_OK);
    }
    fl_engine_load load;
    fl_engine_get_load(e, &load);
    assert_int_equal(load.kv_disk_lost, 0);
    assert_int_equal(ask(e, f.g.ids, PROMPT, -1).cached, WHOLE_PAGES);
    fl_engine_close(e);
    close_fixture(&f);
}

static void refuse_writes(bool refuse) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = refuse ? 0 : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* A disk that takes nothing: requests are delayed a little, and what is lost is counted. */
static void a_disk_that_refuses_stops_nobody(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    fl_settings s = settings_of(&f);
    s.ctx_tokens = s.kv_tokens = 1280;
    fl_engine *e = open_engine(&s);
    refuse_writes(true);
    ask(e, f.g.ids, PROMPT, -1);
    answer other = ask(e, f.g.ids + 500, PROMPT, -1);
    refuse_writes(false);
    assert_int_equal(other.finish, FL_FINISH_LENGTH);
    if (other.ttft_s > 30) fail_msg("the first token came after %g s", other.ttft_s);
    fl_engine_load load;
    fl_engine_get_load(e, &load);
    assert_true(load.kv_disk_lost > 0);
    double begin_s = fl_now_s();
    fl_engine_close(e); /* nor does what it will not take */
    if (fl_now_s() - begin_s > 20) fail_msg("closing took %g s", fl_now_s() - begin_s);
    close_fixture(&f);
}

/* Its pages can be stored no more, so nothing is left to do for the worker. */
static void the_worker_of_a_lost_device_rests(void **state) {
    (void)state;
    struct timespec before, after;
    const struct timespec pause = {.tv_nsec = 500000000};
    clockid_t clock;
    fixture f;
    open_fixture(&f);
    fl_settings s = settings_of(&f);
    fl_engine *e = open_engine(&s);
    refuse_writes(true);
    ask(e, f.g.ids, PROMPT, -1);
    refuse_writes(false);
    pthread_mutex_lock(&e->lock);
    assert_true(fl_prefix_n_unstored(e->prefix) > 0);
    snprintf(e->lost, sizeof e->lost, "lost");
    pthread_mutex_unlock(&e->lock);
    assert_int_equal(pthread_getcpuclockid(e->worker, &clock), 0);
    assert_int_equal(clock_gettime(clock, &before), 0);
    nanosleep(&pause, NULL);
    assert_int_equal(clock_gettime(clock, &after), 0);
    int64_t ns = (after.tv_sec - before.tv_sec) * (int64_t)1000000000 + after.tv_nsec - before.tv_nsec;
    if (ns > 50000000) fail_msg("%lld of 500 ms", (long long)(ns / 1000000));
    fl_engine_close(e);
    close_fixture(&f);
}

static int64_t cached_with_salt(fl_engine *e, const fixture *f, const char *salt) {
    fl_session *session = NULL;
    fl_request *r = NULL;
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = f->g.ids;
    p.n_tokens = PROMPT;
    p.max_tokens = 1;
    p.cache_salt = salt;
    assert_int_equal(fl_session_open(e, &session), FL_ERR_OK);
    assert_int_equal(fl_submit(session, &p, &r), FL_ERR_OK);
    answer a = finish(r);
    assert_int_equal(fl_session_close(session), FL_ERR_OK);
    return a.cached;
}

static void salts_part_tenants_in_memory_and_on_disk(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    fl_settings s = settings_of(&f);
    s.kv_tokens = 8192;
    fl_engine *e = open_engine(&s);
    assert_int_equal(cached_with_salt(e, &f, "a"), 0);
    assert_int_equal(cached_with_salt(e, &f, "b"), 0);
    assert_int_equal(cached_with_salt(e, &f, "a"), WHOLE_PAGES);
    fl_engine_close(e);
    e = open_engine(&s);
    assert_int_equal(cached_with_salt(e, &f, "c"), 0);
    assert_int_equal(cached_with_salt(e, &f, NULL), 0);
    assert_int_equal(cached_with_salt(e, &f, "b"), WHOLE_PAGES);
    fl_engine_close(e);
    close_fixture(&f);
}

/* Requests that come while a document is being read from disk, and one that gives up meanwhile. */
static void many_requests_share_one_reading(void **state) {
    (void)state;
    enum { N = 6 };
    fixture f;
    open_fixture(&f);
    fl_settings s = settings_of(&f);
    s.kv_tokens = 16384;
    answer cold = ask_once(&s, &f);
    fl_engine *e = open_engine(&s);
    fl_session *sessions[N];
    fl_request *requests[N];
    for (int i = 0; i < N; i++) {
        assert_int_equal(fl_session_open(e, &sessions[i]), FL_ERR_OK);
        requests[i] = submit(sessions[i], f.g.ids, PROMPT, -1);
    }
    fl_cancel(requests[0]);
    for (int i = 0; i < N; i++) {
        answer a = finish(requests[i]);
        if (i > 0) {
            assert_int_equal(a.cached, WHOLE_PAGES);
            assert_same(&cold, &a);
        }
        assert_int_equal(fl_session_close(sessions[i]), FL_ERR_OK);
    }
    fl_engine_close(e);
    close_fixture(&f);
}

static void bad_folders_are_refused(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    fl_settings s = settings_of(&f);
    fl_engine *e = open_engine(&s), *second = NULL;
    assert_int_equal(fl_engine_open(&s, &second), FL_ERR_CONFIG);
    fl_engine_close(e);
    s.kv_disk_bytes = 1000;
    assert_int_equal(fl_engine_open(&s, &second), FL_ERR_INVALID);
    s.kv_disk_bytes = 1 << 30;
    s.kv_disk = "/proc/none";
    assert_int_equal(fl_engine_open(&s, &second), FL_ERR_IO);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_finds_its_documents),
        cmocka_unit_test(other_settings_find_nothing),
        cmocka_unit_test(damage_never_reaches_an_answer),
        cmocka_unit_test(what_memory_lost_comes_from_disk),
        cmocka_unit_test(nothing_is_evicted_before_it_is_stored),
        cmocka_unit_test(a_disk_that_refuses_stops_nobody),
        cmocka_unit_test(the_worker_of_a_lost_device_rests),
        cmocka_unit_test(salts_part_tenants_in_memory_and_on_disk),
        cmocka_unit_test(many_requests_share_one_reading),
        cmocka_unit_test(bad_folders_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
