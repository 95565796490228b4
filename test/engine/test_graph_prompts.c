/* Pieces of prompts in buckets as recordings, alone, behind a cached part and beside answers, on a device that is
 * made of a CPU backend (engine/fake_device.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/fake_device.h"

/* Tail alone and behind documents, at a bucket's end and far from it, of one bucket and of several. */
static const struct {
    int32_t document, prompt;
} prompts[] = {{0, 40},    {0, 41},    {0, 47},    {0, 1},     {0, 256},   {0, 301},
               {128, 150}, {192, 193}, {200, 240}, {256, 256}, {256, 511}, {64, 127}};
enum { PROMPTS = sizeof prompts / sizeof *prompts };

static void ask_all(fl_engine *e, answer *out) {
    answers_shorter = ANSWER - 3;
    for (int32_t i = 0; i < PROMPTS; i++) {
        document_tokens = prompts[i].document;
        salt += i % 4 > 0;
        ask_fake(e, &prompts[i].prompt, 1, &out[i]);
    }
}

static void assert_all_same(fl_engine *e, const answer *plain) {
    static answer found[PROMPTS];
    ask_all(e, found);
    for (int32_t i = 0; i < PROMPTS; i++) {
        if (memcmp(plain[i].tokens, found[i].tokens, sizeof plain[i].tokens) != 0)
            print_message("prompt of %d + %d tokens:\n", prompts[i].document,
                          prompts[i].prompt - prompts[i].document);
        assert_same_answer(&plain[i], &found[i]);
    }
}

static void prompts_in_buckets_give_the_bits_of_plain_steps(void **state) {
    (void)state;
    static answer plain[PROMPTS];
    fl_engine_info info;
    fl_engine_load warm, load;
    fl_engine *e = open_fake();
    fl_engine_get_load(e, &warm);
    ask_all(e, plain);
    become_device(e);
    for (int32_t i = 0; i < 3; i++) assert_all_same(e, plain);
    fl_engine_get_info(e, &info);
    assert_true(info.graph_prompt_steps > 2 * PROMPTS);
    assert_true(info.graph_prompt_steps < info.graph_steps);
    assert_int_equal(info.graph_steps, fake.n_replays);
    assert_true(info.scratch_peak_bytes <= info.scratch_bytes);
    assert_null(info.graph_warning);
    fake.refuse_replay = true;
    assert_all_same(e, plain);
    fl_engine_get_info(e, &info);
    assert_string_equal(info.graph_warning, "the replay is refused");
    int64_t before = info.graph_prompt_steps;
    fake.refuse_replay = false;
    assert_all_same(e, plain); /* plain ever after */
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_prompt_steps, before);
    fl_engine_get_load(e, &load); /* who watches an engine sees its layers, or takes it for stuck */
    assert_int_equal(load.n_layers - warm.n_layers, (load.n_steps - warm.n_steps) * e->config->layers);
    fl_engine_close(e);
    assert_int_equal(fake.n_open, 0);
}

/* A long answer, and while it is made prompts whose documents are new, known in part, or known. */
static void ask_beside(fl_engine *e, answer *out) {
    static const int32_t documents[] = {192, 320, 320, 192, 256, 0};
    fl_request_params p;
    fl_session *session[2];
    fl_request *request[2];
    fl_event event;
    char salt_text[16];
    int32_t ids[512];
    for (int32_t i = 0; i < 512; i++) ids[i] = 5 + i * 7919 % 8000;
    fl_request_params_default(&p);
    snprintf(salt_text, sizeof salt_text, "%d", ++salt);
    p.cache_salt = salt_text;
    p.ignore_eos = true;
    for (int32_t i = 0; i < 2; i++) assert_int_equal(fl_session_open(e, &session[i]), FL_ERR_OK);
    memset(out, 0, 6 * sizeof *out);
    p.tokens = ids + 100;
    p.n_tokens = 30;
    p.max_tokens = 400;
    assert_int_equal(fl_submit(session[0], &p, &request[0]), FL_ERR_OK);
    do assert_int_equal(fl_poll(request[0], 10, &event), FL_ERR_OK);
    while (event.type != FL_EVENT_TOKEN);
    for (int32_t i = 0; i < 6; i++) {
        p.tokens = ids;
        p.document_tokens = documents[i];
        p.n_tokens = (int32_t)p.document_tokens + 11 + i;
        p.max_tokens = 3;
        assert_int_equal(fl_submit(session[1], &p, &request[1]), FL_ERR_OK);
        read_fake_answer(request[1], &out[i]);
        fl_request_close(request[1]);
        fl_session_close(session[1]);
        assert_int_equal(fl_session_open(e, &session[1]), FL_ERR_OK);
    }
    fl_cancel(request[0]);
    fl_request_close(request[0]);
    for (int32_t i = 0; i < 2; i++) fl_session_close(session[i]);
}

static void pieces_beside_answers_give_the_bits_of_plain_steps(void **state) {
    (void)state;
    static const char *const policies[] = {"full", "window-anchors", "blocks"};
    for (size_t k = 0; k < sizeof policies / sizeof *policies; k++) {
        answer plain[6], found[6];
        fl_engine_info info;
        fl_engine *e = open_fake_policy(policies[k]);
        ask_beside(e, plain);
        become_device(e);
        for (int32_t turn = 0; turn < 4; turn++) {
            ask_beside(e, found);
            for (int32_t i = 0; i < 6; i++) assert_same_answer(&plain[i], &found[i]);
        }
        fl_engine_get_info(e, &info);
        assert_true(fake.n_mixed > 0);
        assert_null(info.graph_warning);
        assert_null(info.graph_outside);
        assert_true(info.scratch_peak_bytes <= info.scratch_bytes);
        fl_engine_close(e);
        assert_int_equal(fake.n_open, 0);
    }
}

static void rows_that_fill_a_bucket_touch_nobody(void **state) {
    (void)state;
    answer found;
    int32_t prompt = 150;
    fl_engine *e = open_fake();
    become_device(e);
    uint8_t *page, *copy_of_pages = malloc((size_t)e->kv_bytes);
    int64_t bytes = e->kv_bytes / e->kv_pages;
    int32_t n_written = 0;
    assert_non_null(copy_of_pages);
    memset(e->kv_memory, 0x5a, (size_t)e->kv_bytes);
    memcpy(copy_of_pages, e->kv_memory, (size_t)e->kv_bytes);
    document_tokens = 128;
    answers_shorter = ANSWER - 1;
    ask_fake(e, &prompt, 1, &found); /* 128 rows and 22, which become 64 */
    for (int32_t i = 0; i < e->kv_pages; i++) {
        page = (uint8_t *)e->kv_memory + i * bytes;
        n_written += i != e->spare_page && memcmp(page, copy_of_pages + i * bytes, (size_t)bytes) != 0;
    }
    assert_int_equal(n_written, 3);
    free(copy_of_pages);
    fl_engine_close(e);
}

static bool bucket(const fl_graphs *g, const fl_attend *attend, const fl_graph_piece *piece,
                   fl_graph_piece *out) {
    return fl_graph_wants(attend, piece, 1e9) && fl_graphs_bucket(g, attend, piece, out);
}

static void buckets_are_a_quarter_too_large_at_most(void **state) {
    (void)state;
    fl_attend attend = {0};
    fl_graph_piece b, before = {0};
    fl_engine *e = open_fake();
    become_device(e);
    fl_graphs *far = NULL;
    fl_backend_seal(e->be, false);
    assert_int_equal(fl_graphs_open(e->be, e->config, 1 << 20, &far), FL_ERR_OK);
    int32_t n = 0;
    for (int32_t rows = 64; rows <= FL_GRAPH_DOCUMENT_ROWS_MAX; rows += 64) {
        assert_true(bucket(far, &attend, &(fl_graph_piece){.document_rows = rows}, &b));
        assert_true(b.document_rows >= rows && b.tail_rows == 0 && b.document_rows % 128 == 0);
        assert_true(b.document_rows - rows < 128 || 4 * (b.document_rows - rows) < rows);
        n += b.document_rows != before.document_rows;
        before = b;
    }
    for (int32_t rows = 1; rows <= FL_GRAPH_TAIL_ROWS_MAX; rows++) {
        assert_true(bucket(far, &attend, &(fl_graph_piece){0, rows, 1000, 0, 0}, &b));
        assert_true(b.tail_rows >= rows && b.document_rows == 0 && b.pos == 1000);
        assert_true(b.tail_rows - rows < 8 || 4 * (b.tail_rows - rows) < rows);
        n += b.tail_rows != before.tail_rows;
        before = b;
    }
    assert_true(n < 40);
    n = 0;
    for (int32_t rows = 64; rows <= FL_GRAPH_DOCUMENT_ROWS_MAX; rows += 64) { /* beside answers */
        assert_true(bucket(far, &attend, &(fl_graph_piece){rows, 20, 640, 5, 9000}, &b));
        assert_true(b.document_rows - rows < 128 || 2 * (b.document_rows - rows) < rows);
        assert_true(b.tail_rows == 64 && b.decode_rows == 8 && b.pos == 640 && b.decode_pos == 9000);
        n += b.document_rows != before.document_rows;
        before = b;
    }
    assert_true(n < 14);
    /* Outside. */
    assert_false(bucket(NULL, &attend, &(fl_graph_piece){0, 8, 0, 0, 0}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){8256, 0, 0, 0, 0}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){0, 257, 0, 0, 0}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){0, 8, 0, 65, 100}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){0, 240, 0, 17, 100}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){0, 8, 0, 1, FL_GRAPH_TOKENS_MAX}, &b));
    assert_true(bucket(far, &attend, &(fl_graph_piece){128, 8, 128, 0, 0}, &b));
    assert_true(bucket(far, &attend, &(fl_graph_piece){0, 8, FL_GRAPH_TOKENS_MAX - 8, 0, 0}, &b));
    assert_false(bucket(far, &attend, &(fl_graph_piece){0, 8, FL_GRAPH_TOKENS_MAX - 7, 0, 0}, &b));
    assert_true(bucket(e->graphs, &attend, &(fl_graph_piece){0, 3, 2040, 0, 0}, &b));
    assert_false(bucket(e->graphs, &attend, &(fl_graph_piece){0, 3, 2041, 0, 0}, &b));
    assert_false(fl_graph_wants(&attend, &(fl_graph_piece){0, 8, 0, 0, 0}, 2e10));
    assert_true(fl_graph_wants(&attend, &(fl_graph_piece){128, 8, 0, 0, 0}, 2e10));
    assert_false(fl_graph_wants(&attend, &(fl_graph_piece){128, 8, 0, 0, 0}, 1e12));
    attend.blocks = true;
    assert_true(bucket(far, &attend, &(fl_graph_piece){0, 8, 256, 0, 0}, &b));
    assert_true(bucket(far, &attend, &(fl_graph_piece){1152, 8, 128, 0, 0}, &b));
    assert_true(b.document_rows == 1152 && b.tail_rows == 64); /* lists are counted */
    fl_graphs_close(far);
    fl_engine_close(e);
}

/* Scored prompts and steps that would be over the scratch as buckets are no recordings, and that is said. */
static void a_prompt_outside_all_buckets_runs_plainly(void **state) {
    (void)state;
    answer plain, found;
    int32_t prompt = 2044;
    fl_engine_info info;
    fl_engine *e = open_fake();
    document_tokens = 1984;
    answers_shorter = ANSWER - 3;
    ask_fake(e, &prompt, 1, &plain);
    become_device(e);
    salt++;
    ask_fake(e, &prompt, 1, &found); /* the last step's bucket would end behind the context */
    assert_same_answer(&plain, &found);
    fl_engine_get_info(e, &info);
    assert_non_null(info.graph_outside);
    assert_non_null(
        strstr(info.graph_outside, "192 document and 60 tail rows at position 1792 beside 0 answers"));
    assert_null(info.graph_warning);
    fl_engine_close(e);
    e = open_fake();
    become_device(e);
    e->scratch_bytes = e->arena.size_bytes / 8; /* for buckets alone */
    prompt = 280;
    document_tokens = 256;
    for (int32_t i = 0; i < 3; i++, salt++) ask_fake(e, &prompt, 1, &found);
    fl_engine_get_info(e, &info);
    assert_int_equal(info.graph_prompt_steps, 0);
    assert_non_null(info.graph_outside);
    e->scratch_bytes = e->arena.size_bytes;
    fl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_in_buckets_give_the_bits_of_plain_steps),
        cmocka_unit_test(pieces_beside_answers_give_the_bits_of_plain_steps),
        cmocka_unit_test(rows_that_fill_a_bucket_touch_nobody),
        cmocka_unit_test(buckets_are_a_quarter_too_large_at_most),
        cmocka_unit_test(a_prompt_outside_all_buckets_runs_plainly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
