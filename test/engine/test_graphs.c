/* Steps as recordings on a device that is made of a CPU backend (engine/fake_device.h): decode, single shapes, what is
 * kept. And memory that nobody takes after start, and a device that is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/fake_device.h"
#include "engine/graph_bench.h"

/* Across a split's end, a page's end and a ceiling; rows that come and go. */
static const int32_t lengths[REQUESTS] = {500, 1010, 30};

static void replays_give_the_bits_of_plain_steps(void **state) {
    (void)state;
    answer plain[REQUESTS], found[REQUESTS];
    fl_engine_info info;
    fl_engine *e = open_fake();
    ask_fake(e, lengths, REQUESTS, plain);
    become_device(e);
    for (int32_t i = 0; i < REQUESTS; i++) { /* alone */
        ask_fake(e, &lengths[i], 1, found);
        if (i == 0) assert_same_answer(&plain[0], &found[0]);
    }
    assert_true(fake.n_replays > ANSWER);
    ask_fake(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_same_answer(&plain[i], &found[i]);
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_steps, fake.n_replays);
    assert_true(info.plain_steps > 0);
    assert_null(info.graph_warning);
    fl_engine_forget(e);
    assert_int_equal(fake.n_open, 0);
    ask_fake(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_same_answer(&plain[i], &found[i]);
    fl_engine_close(e);
    assert_int_equal(fake.n_open, 0);
}

static void a_step_that_cannot_be_recorded_runs_plainly(void **state) {
    (void)state;
    answer plain[REQUESTS], found[REQUESTS];
    fl_engine_info info;
    fl_engine *e = open_fake();
    ask_fake(e, lengths, REQUESTS, plain);
    become_device(e);
    fake.refuse = true;
    ask_fake(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_same_answer(&plain[i], &found[i]);
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_steps, 0);
    assert_string_equal(info.graph_warning, "the graph is refused");
    assert_int_equal(fake.n_open, 0);
    fl_engine_close(e);
    e = open_fake();
    become_device(e);
    fake.refuse_replay = true;
    ask_fake(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_same_answer(&plain[i], &found[i]);
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_steps, 0);
    assert_string_equal(info.graph_warning, "the replay is refused");
    assert_int_equal(fake.n_open, 0);
    fl_engine_close(e);
}

static fl_err issue_nothing(void *context) {
    ++*(int32_t *)context;
    return FL_ERR_OK;
}

static void run_shape(fl_engine *e, const fl_graph_shape *shape, int32_t times, int32_t *n_issued) {
    for (int32_t i = 0; i < times; i++)
        assert_int_equal(fl_graphs_run(e->graphs, shape, issue_nothing, n_issued), FL_ERR_OK);
}

/* A step behind its own prompt's has means of the blocks before it, one behind a cached part has to make them. */
static void a_step_that_has_means_is_another_shape(void **state) {
    (void)state;
    fl_graph_shape makes = {.rows = 128, .document_rows = 128, .document_pos = 256, .n_seqs = 1}, has = makes;
    int32_t n_issued = 0;
    fl_engine *e = open_fake();
    become_device(e);
    has.known_means = 4;
    run_shape(e, &has, 3, &n_issued);
    assert_int_equal(n_issued, 2);
    run_shape(e, &makes, 3, &n_issued);
    assert_int_equal(n_issued, 4);
    makes.document_pos = 320;
    run_shape(e, &makes, 1, &n_issued);
    assert_int_equal(n_issued, 5);
    fl_engine_close(e);
}

static void the_longest_unused_recording_goes_first(void **state) {
    (void)state;
    fl_graph_shape shape = {.rows = 1, .n_seqs = 1, .n_logit_rows = 1}, more = {.rows = 2, .n_seqs = 2},
                   piece = {.rows = 64, .n_seqs = 1};
    int32_t n_issued = 0;
    fl_engine *e = open_fake();
    become_device(e);
    for (shape.ceiling = 0; shape.ceiling < FL_GRAPHS_MAX; shape.ceiling++)
        run_shape(e, &shape, 2, &n_issued); /* plainly, then into the recording */
    assert_int_equal(n_issued, 2 * FL_GRAPHS_MAX);
    assert_int_equal(fake.n_open, FL_GRAPHS_MAX);
    run_shape(e, &more, 3, &n_issued); /* all others are in use: plainly */
    assert_int_equal(n_issued, 2 * FL_GRAPHS_MAX + 3);
    shape.ceiling = 0;
    run_shape(e, &shape, 64 * FL_GRAPHS_MAX, &n_issued);
    assert_int_equal(n_issued, 2 * FL_GRAPHS_MAX + 3);
    run_shape(e, &more, 3, &n_issued); /* in place of the second */
    assert_int_equal(n_issued, 2 * FL_GRAPHS_MAX + 5);
    assert_int_equal(fake.n_open, FL_GRAPHS_MAX);
    run_shape(e, &shape, 1, &n_issued);
    assert_int_equal(n_issued, 2 * FL_GRAPHS_MAX + 5);
    shape.ceiling = 1;
    run_shape(e, &shape, 1, &n_issued);
    assert_int_equal(n_issued, 2 * FL_GRAPHS_MAX + 6);
    shape.ceiling = 0;
    run_shape(e, &shape, 64 * FL_GRAPHS_MAX, &n_issued);
    for (piece.ceiling = 0; piece.ceiling < FL_GRAPHS_MAX - 1; piece.ceiling++)
        run_shape(e, &piece, 2, &n_issued);
    run_shape(e, &piece, 3, &n_issued); /* no room for one more */
    assert_int_equal(n_issued, 4 * FL_GRAPHS_MAX + 7);
    shape.ceiling = 2;
    run_shape(e, &shape, 3, &n_issued); /* but for answers */
    assert_int_equal(n_issued, 4 * FL_GRAPHS_MAX + 9);
    fl_engine_close(e);
}

static void ceilings_leave_an_eighth_at_most(void **state) {
    (void)state;
    fl_engine *e = open_fake();
    become_device(e);
    fl_graphs *far = NULL;
    fl_backend_seal(e->be, false);
    assert_int_equal(fl_graphs_open(e->be, e->config, 1 << 20, &far), FL_ERR_OK);
    int32_t n = 0, before = -1, n_beside = 0, before_beside = -1;
    for (int32_t pos = 0; pos < 1 << 20; pos++) {
        int32_t ceiling = fl_graphs_ceiling(far, pos, false), beside = fl_graphs_ceiling(far, pos, true);
        assert_in_range(ceiling, pos, (1 << 20) - 1);
        assert_true((int64_t)ceiling - pos < FL_ATTN_ABSORBED_SPLIT_TOKENS + pos / 8);
        assert_true(beside >= ceiling && beside - pos < FL_ATTN_ABSORBED_SPLIT_TOKENS + pos);
        n_beside += beside != before_beside;
        before_beside = beside;
        n += ceiling != before;
        before = ceiling;
    }
    assert_true(n < 128 && n_beside < 13);
    assert_int_equal(fl_graphs_ceiling(e->graphs, 2047, false), 2047);
    fl_graphs_close(far);
    fl_engine_close(e);
}

static void the_check_of_one_shape_finds_the_same_bits(void **state) {
    (void)state;
    fl_graph_bench check;
    fl_engine *e = open_fake();
    assert_int_equal(fl_graph_bench_run(e, 1, 100, 1, &check), FL_ERR_UNSUPPORTED);
    become_device(e);
    assert_int_equal(fl_graph_bench_run(e, 5, 1030, 2, &check), FL_ERR_OK);
    assert_int_equal(check.n_different, 0);
    assert_string_equal(check.fault, "");
    assert_int_equal(fl_graph_bench_run(e, 5, 3, 2, &check), FL_ERR_INVALID);
    assert_int_equal(fl_graph_bench_run(e, 1, 2048, 2, &check), FL_ERR_INVALID);
    const fl_graph_piece question = {.tail_rows = 13, .pos = 500},
                         prompt = {.document_rows = 192, .tail_rows = 5},
                         cached = {.document_rows = 192, .tail_rows = 3, .pos = 128},
                         beside = {.document_rows = 192, .tail_rows = 5, .decode_rows = 3, .decode_pos = 700},
                         asked = {.tail_rows = 13, .pos = 500, .decode_rows = 2, .decode_pos = 1100},
                         longer = {.document_rows = 512},
                         over = {.document_rows = 192, .tail_rows = 5, .decode_rows = 3, .decode_pos = 257};
    assert_int_equal(fl_graph_bench_piece(e, &question, 2, &check), FL_ERR_OK);
    assert_int_equal(check.n_different + check.n_unfilled_different, 0);
    assert_int_equal(fl_graph_bench_piece(e, &prompt, 2, &check), FL_ERR_OK);
    assert_int_equal(check.n_different + check.n_unfilled_different, 0);
    assert_string_equal(check.fault, "");
    assert_int_equal(fl_graph_bench_piece(e, &cached, 2, &check), FL_ERR_OK);
    assert_int_equal(check.n_different + check.n_unfilled_different, 0);
    assert_int_equal(fl_graph_bench_piece(e, &beside, 2, &check), FL_ERR_OK);
    assert_int_equal(check.n_different + check.n_unfilled_different, 0);
    assert_int_equal(fl_graph_bench_piece(e, &asked, 2, &check), FL_ERR_OK);
    assert_int_equal(check.n_different + check.n_unfilled_different, 0);
    assert_int_equal(fl_graph_bench_piece(e, &longer, 2, &check), FL_ERR_UNSUPPORTED);
    assert_int_equal(fl_graph_bench_piece(e, &over, 2, &check), FL_ERR_INVALID);
    fake.refuse = true;
    assert_int_equal(fl_graph_bench_run(e, 2, 100, 1, &check), FL_ERR_OK);
    assert_string_equal(check.fault, "the graph is refused");
    fl_engine_close(e);
}

static void nothing_is_taken_after_start(void **state) {
    (void)state;
    answer found[REQUESTS];
    void *memory = NULL;
    fl_engine *e = open_fake();
    assert_int_equal(e->be->alloc(e->be, 4096, &memory), FL_ERR_INTERNAL);
    assert_non_null(strstr(fl_err_detail(), "4096 bytes"));
    fake.alloc = e->be->alloc;
    e->be->alloc = counted_alloc;
    ask_fake(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_int_equal(found[i].err, FL_ERR_OK);
    assert_int_equal(fake.n_allocs, 0);
    fl_engine_close(e);
}

static void a_row_of_nans_ends_its_request_alone(void **state) {
    (void)state;
    answer plain[2], found[2];
    fl_engine *e = open_fake();
    ask_fake(e, lengths, 2, plain);
    become_device(e);
    fake.poisoned_rows = 2; /* two decode: the second's first logit */
    fake.n_poisoned = 0;
    /* On a busy machine one may end before the other is submitted. */
    for (int32_t i = 0; i < 10 && fake.n_poisoned == 0; i++) ask_fake(e, lengths, 2, found);
    int32_t bad = found[0].err == FL_ERR_OK;
    assert_int_equal(found[bad].err, FL_ERR_NUMERIC);
    assert_non_null(strstr(found[bad].detail, "token 0 is not a finite number"));
    assert_same_answer(&plain[1 - bad], &found[1 - bad]);
    fl_engine_close(e);
}

/* Of a lost device: `words` are its own. */
static void assert_submit_fails(fl_engine *e, const char *words) {
    fl_session *s = NULL;
    fl_request *r = NULL;
    fl_request_params p;
    const int32_t token = 7;
    fl_request_params_default(&p);
    p.tokens = &token;
    p.n_tokens = 1;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    assert_int_equal(fl_submit(s, &p, &r), FL_ERR_DEVICE);
    assert_non_null(strstr(fl_err_detail(), words));
    assert_non_null(strstr(fl_err_detail(), "restart"));
    fl_session_close(s);
}

static void a_lost_device_ends_all_requests(void **state) {
    (void)state;
    answer found[REQUESTS];
    fl_engine *e = open_fake();
    become_device(e);
    fake.lost = true;
    ask_fake(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(found[i].err, FL_ERR_DEVICE);
        assert_non_null(strstr(found[i].detail, "an illegal memory access"));
    }
    assert_submit_fails(e, "an illegal memory access");
    fl_engine_close(e);
}

/* A CUDA device that is not the process's first takes launches of threads alone that chose it. */
static void the_worker_enters_its_device(void **state) {
    (void)state;
    answer plain[REQUESTS], found[REQUESTS];
    fl_engine *e = open_fake();
    ask_fake(e, lengths, REQUESTS, plain);
    become_device(e);
    change_worker(e);
    ask_fake(e, lengths, REQUESTS, found);
    for (int32_t i = 0; i < REQUESTS; i++) assert_same_answer(&plain[i], &found[i]);
    assert_int_equal(fake.n_entered, 1);
    assert_int_equal(fake.n_strange, 0);
    fake.refuse_thread = true;
    change_worker(e);
    change_worker(e); /* the one that was refused has ended */
    assert_submit_fails(e, "the thread is refused");
    assert_int_equal(fake.n_strange, 0);
    fl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_give_the_bits_of_plain_steps),
        cmocka_unit_test(a_step_that_cannot_be_recorded_runs_plainly),
        cmocka_unit_test(a_step_that_has_means_is_another_shape),
        cmocka_unit_test(the_longest_unused_recording_goes_first),
        cmocka_unit_test(ceilings_leave_an_eighth_at_most),
        cmocka_unit_test(the_check_of_one_shape_finds_the_same_bits),
        cmocka_unit_test(nothing_is_taken_after_start),
        cmocka_unit_test(a_row_of_nans_ends_its_request_alone),
        cmocka_unit_test(a_lost_device_ends_all_requests),
        cmocka_unit_test(the_worker_enters_its_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
