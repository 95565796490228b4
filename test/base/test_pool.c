#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/pool.h"

enum { N_TASKS = 1000 };

typedef struct tally {
    atomic_int done[N_TASKS];
    int32_t n_threads;
    atomic_int bad_worker;
} tally;

static void count_task(void *context, int32_t task, int32_t index) {
    tally *t = context;
    atomic_fetch_add(&t->done[task], 1);
    if (index < 0 || index >= t->n_threads) atomic_store(&t->bad_worker, 1);
}

static void every_task_runs_exactly_once(void **state) {
    (void)state;
    const int32_t n_threads[] = {1, 2, 5};
    for (size_t i = 0; i < 3; i++) {
        fl_pool *pool = NULL;
        assert_int_equal(fl_pool_open(n_threads[i], &pool), FL_ERR_OK);
        assert_int_equal(fl_pool_threads(pool), n_threads[i]);
        for (int32_t round = 0; round < 50; round++) {
            tally t = {.n_threads = n_threads[i]};
            int32_t n_tasks = round * 17 % N_TASKS + 1;
            fl_pool_run(pool, n_tasks, count_task, &t);
            for (int32_t k = 0; k < N_TASKS; k++)
                assert_int_equal(atomic_load(&t.done[k]), k < n_tasks ? 1 : 0);
            assert_int_equal(atomic_load(&t.bad_worker), 0);
            if (round % 20 == 0) usleep(20000); /* let workers fall asleep, so waking is tested as well */
        }
        fl_pool_close(pool);
    }
}

/* Members that come late to a run look at a pool that is between two runs or in the next one, of another length. */
static void short_runs_of_changing_length_keep_apart(void **state) {
    (void)state;
    static tally t;
    uint32_t random = 1;
    fl_pool *pool = NULL;
    assert_int_equal(fl_pool_open(6, &pool), FL_ERR_OK);
    t.n_threads = 6;
    for (int32_t round = 0; round < 50000; round++) {
        random = random * 1664525 + 1013904223;
        int32_t n_tasks = 2 + (int32_t)(random >> 20) % 20;
        for (int32_t k = 0; k < 22; k++) atomic_store(&t.done[k], 0);
        fl_pool_run(pool, n_tasks, count_task, &t);
        for (int32_t k = 0; k < 22; k++) assert_int_equal(atomic_load(&t.done[k]), k < n_tasks);
    }
    fl_pool_close(pool);
}

static void open_refuses_nonsense_and_close_takes_null(void **state) {
    (void)state;
    fl_pool *pool = NULL;
    assert_int_equal(fl_pool_open(-1, &pool), FL_ERR_INVALID);
    assert_int_equal(fl_pool_open(100000, &pool), FL_ERR_INVALID);
    assert_null(pool);
    fl_pool_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_exactly_once),
        cmocka_unit_test(short_runs_of_changing_length_keep_apart),
        cmocka_unit_test(open_refuses_nonsense_and_close_takes_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
