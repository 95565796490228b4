/* Asking both sides: what is scored, equal sides give equal bits, runs go on where they stopped. On the
 * bundled model. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "eval/haystack.h"
#include "eval/paired.h"
#include "support/folder.h"

enum { END_TOKEN = 1, LENGTH = 600, DOCUMENTS = 2 };

static fl_engine *engine;

static fl_engine *open_engine(void) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = 2048;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

static int open_shared(void **state) {
    (void)state;
    engine = open_engine();
    return 0;
}

static int close_shared(void **state) {
    (void)state;
    fl_engine_close(engine);
    return 0;
}

/* ---- one document ------------------------------------------------------------------------------------------------ */

static char fact[] = "One of the special magic numbers for silver-harbor is: 4821937.";
static char ask[] = "\n\nWhat is the special magic number for silver-harbor mentioned in the provided text?";
static char right[] = "The special magic number for silver-harbor mentioned in the provided text is 4821937.";
static char wrong[] = "The special magic number for silver-harbor mentioned in the provided text is 9999999.";
static char head[] = "The special magic number for silver-harbor mentioned in the provided text is";
static char value[] = "4821937", rest[] = " 4821937.", nothing[] = "";
static char *values[] = {value};

/* A fact between 24 lines of demo text, and four ways to ask for it. */
static void make_document(fl_eval_document *out, char *text, size_t n_bytes, fl_eval_question questions[4]) {
    size_t n = 0;
    for (int line = 0; line < 24; line++)
        n += (size_t)snprintf(text + n, n_bytes - n,
                              "The %dth boat came in with the tide and left its nets on the quay.\n%s%s",
                              line + 4, line == 9 ? fact : "", line == 9 ? "\n" : "");
    const fl_eval_question base = {.task = "niah_single",
                                   .text = ask,
                                   .answer_head = nothing,
                                   .reference = right,
                                   .max_tokens = 40,
                                   .depth = 0.4};
    for (int i = 0; i < 4; i++) questions[i] = base;
    questions[1].reference = wrong;
    questions[2].reference = wrong;
    questions[2].values = values;
    questions[2].n_values = 1;
    questions[2].scoring = FL_EVAL_FIND_ALL;
    questions[3].answer_head = head;
    questions[3].reference = rest;
    *out = (fl_eval_document){.text = text, .text_bytes = n, .questions = questions, .n_questions = 4};
}

static void ask_sides(fl_engine *const *engines, int32_t n_sides, fl_eval_result *out) {
    static char text[4096];
    fl_eval_question questions[4];
    fl_eval_document document;
    make_document(&document, text, sizeof text, questions);
    const fl_paired_plan plan = {
        .engines = engines, .n_sides = n_sides, .end_token = END_TOKEN, .n_segments = 4};
    *out = (fl_eval_result){.task = "spark", .length_tokens = LENGTH};
    if (fl_paired_ask(&plan, &document, out) != FL_ERR_OK) fail_msg("ask: %s", fl_err_detail());
    assert_int_equal(out->n_rows, 4);
}

static void references_are_scored_token_by_token(void **state) {
    (void)state;
    fl_eval_result r;
    ask_sides(&engine, 1, &r);
    const fl_eval_outcome *exact = &r.rows[0].sides[0], *other = &r.rows[1].sides[0],
                          *found = &r.rows[2].sides[0], *behind = &r.rows[3].sides[0];
    assert_true(exact->exact && exact->score == 1 && exact->nll >= 0 && exact->nll < 0.2);
    /* Another number is neither likely nor said. The first wrong digit alone costs nats; so does a row too early. */
    assert_true(!other->exact && other->score == 0);
    assert_true(other->nll * r.rows[1].n_scored > 4 && other->nll > exact->nll);
    assert_true(!found->exact && found->score == 1 && found->nll == other->nll);
    assert_true(behind->exact && behind->score == 1);
    assert_true(r.rows[3].n_scored < r.rows[0].n_scored && r.rows[3].n_scored >= 3);
    /* The same rows, forced or not: all of the sentence costs what its beginning and its end do. */
    assert_true(behind->nll * r.rows[3].n_scored <= exact->nll * r.rows[0].n_scored);
    assert_true(exact->kl == 0 && r.costs[0].prefill_s > 0);
    /* Six requests (two references were left), one read of the document. */
    assert_int_equal(r.costs[0].n_reads, 1);
    assert_true(r.costs[0].cached_tokens > 2 * r.costs[0].computed_tokens);
    free(r.rows);
}

static void the_nll_is_that_of_the_tokens_as_generated(void **state) {
    (void)state;
    fl_eval_result r;
    fl_eval_document document;
    fl_eval_question questions[4];
    fl_session *session = NULL;
    fl_request *request = NULL;
    fl_chat_prompt chat;
    fl_event event;
    static char text[8192];
    double sum = 0;
    int64_t n = 0;
    ask_sides(&engine, 1, &r);
    make_document(&document, text, sizeof text, questions);
    strcat(text, ask);
    const fl_message message = {.role = "user", .content = text, .content_bytes = strlen(text)};
    assert_int_equal(fl_chat_tokenize(engine, &message, 1, strlen(ask), &chat), FL_ERR_OK);
    fl_request_params params;
    fl_request_params_default(&params);
    params.tokens = chat.tokens;
    params.n_tokens = chat.n_tokens;
    params.document_tokens = chat.document_tokens;
    assert_int_equal(fl_session_open(engine, &session), FL_ERR_OK);
    assert_int_equal(fl_submit(session, &params, &request), FL_ERR_OK);
    do {
        assert_int_equal(fl_poll(request, 60, &event), FL_ERR_OK);
        if (event.type != FL_EVENT_TOKEN) continue;
        sum -= (double)event.logprob;
        n++;
    } while (event.type != FL_EVENT_DONE);
    fl_request_close(request);
    fl_session_close(session);
    free(chat.tokens);
    assert_int_equal(n + 1, r.rows[0].n_scored); /* and the end token, whose probability no event tells */
    double scored = r.rows[0].sides[0].nll * r.rows[0].n_scored;
    assert_true(scored > sum - 1e-4 && scored < sum + 0.1);
    free(r.rows);
}

static void equal_sides_give_equal_bits(void **state) {
    (void)state;
    fl_engine *engines[] = {engine, open_engine()};
    fl_eval_result r;
    ask_sides(engines, 2, &r);
    for (int32_t i = 0; i < r.n_rows; i++) {
        const fl_eval_outcome *a = &r.rows[i].sides[0], *b = &r.rows[i].sides[1];
        assert_true(a->score == b->score && a->nll == b->nll && b->kl == 0 && a->exact == b->exact);
    }
    assert_true(r.costs[1].prefill_s > 0 && r.costs[1].computed_tokens > 0);
    free(r.rows);
    fl_engine_close(engines[1]);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    static char text[4096];
    fl_eval_question questions[4];
    fl_eval_document document;
    fl_eval_result r = {.task = "spark", .length_tokens = LENGTH};
    make_document(&document, text, sizeof text, questions);
    fl_paired_plan plan = {.engines = &engine, .n_sides = 1, .end_token = 1 << 30, .n_segments = 4};
    assert_int_equal(fl_paired_ask(&plan, &document, &r), FL_ERR_INVALID);
    plan.end_token = END_TOKEN;
    document.n_questions = 0;
    assert_int_equal(fl_paired_ask(&plan, &document, &r), FL_ERR_INTERNAL);
    assert_null(r.rows);
    assert_int_equal(r.n_rows, 0);
}

/* ---- runs and their file ------------------------------------------------------------------------------------ */

static const fl_eval_setting settings[] = {{"model", "spark"}, {"sides", "full; full"}};
static const int64_t lengths[] = {LENGTH};
static const char *const tasks[] = {"ruler_niah_single_1"};
static const fl_eval_grid grid = {
    .lengths = lengths, .n_lengths = 1, .tasks = tasks, .n_tasks = 1, .n_documents = DOCUMENTS, .n_sides = 2};

static void open_results(fl_eval_results *out) {
    if (fl_eval_results_open(&grid, out) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
}

typedef struct counting {
    int64_t calls;
    double last;
} counting;

static void count_progress(void *context, double fraction, const char *note) {
    counting *c = context;
    assert_true(fraction >= c->last && fraction <= 1 + 1e-9);
    assert_non_null(strstr(note, "ruler_niah_single_1"));
    c->last = fraction;
    c->calls++;
}

/* Asks what the file lacks. Returns how often there was progress to tell. */
static int64_t run(const char *path, fl_eval_results *out) {
    fl_engine *engines[] = {engine, engine};
    fl_haystack haystack = {0};
    fl_eval_resume *resume = NULL;
    counting c = {0};
    open_results(out);
    assert_int_equal(fl_haystack_open(NULL, &haystack), FL_ERR_OK);
    if (fl_eval_resume_open(path, settings, 2, out, &resume) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    const fl_paired_plan plan = {.engines = engines,
                                 .n_sides = 2,
                                 .end_token = END_TOKEN,
                                 .seed = 3,
                                 .difficulty = 0.5,
                                 .n_segments = 4,
                                 .haystack = haystack.text,
                                 .haystack_bytes = haystack.n_bytes,
                                 .resume = resume,
                                 .progress = count_progress,
                                 .progress_context = &c};
    if (fl_paired_run(&plan, out) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    fl_eval_resume_close(resume);
    fl_haystack_close(&haystack);
    return c.calls;
}

/* Task names are equal texts, not one pointer. */
static void assert_same_row(const fl_eval_row *a, const fl_eval_row *b) {
    assert_string_equal(a->task, b->task);
    assert_true(a->depth == b->depth);
    assert_int_equal(a->segment_distance, b->segment_distance);
    assert_int_equal(a->n_scored, b->n_scored);
    for (int side = 0; side < 2; side++) {
        assert_true(a->sides[side].score == b->sides[side].score);
        assert_true(a->sides[side].nll == b->sides[side].nll);
        assert_true(a->sides[side].kl == b->sides[side].kl);
        assert_int_equal(a->sides[side].exact, b->sides[side].exact);
    }
}

static void assert_same_rows(const fl_eval_results *a, const fl_eval_results *b) {
    assert_int_equal(a->n, b->n);
    for (int32_t i = 0; i < a->n; i++) {
        assert_true(a->items[i].n_rows > 0);
        assert_int_equal(a->items[i].n_rows, b->items[i].n_rows);
        for (int32_t row = 0; row < a->items[i].n_rows; row++)
            assert_same_row(&a->items[i].rows[row], &b->items[i].rows[row]);
    }
}

static void a_stopped_run_goes_on_to_the_same_end(void **state) {
    (void)state;
    char whole_path[64], cut_path[64];
    fl_eval_results once, again, third;
    snprintf(whole_path, sizeof whole_path, "%s/whole", folder);
    snprintf(cut_path, sizeof cut_path, "%s/cut", folder);
    assert_true(run(whole_path, &once) > 0);
    char *whole = text_read("whole");
    /* Killed in the middle of its second document's line. */
    char *second = strchr(strchr(whole, '\n') + 1, '\n') + 1;
    second[40] = '\0';
    text_write("cut", whole);
    free(whole);
    assert_true(run(cut_path, &again) > 0);
    assert_same_rows(&once, &again);
    assert_true(once.items[0].costs[0].prefill_s == again.items[0].costs[0].prefill_s); /* from the file */
    assert_int_equal(run(cut_path, &third), 0); /* nothing left to ask */
    assert_same_rows(&once, &third);
    for (int32_t i = 1; i < once.n; i++) /* other documents, not one again and again */
        assert_true(once.items[i].rows[0].sides[0].nll != once.items[0].rows[0].sides[0].nll);
    fl_eval_results_close(&once);
    fl_eval_results_close(&again);
    fl_eval_results_close(&third);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_are_scored_token_by_token),
        cmocka_unit_test(the_nll_is_that_of_the_tokens_as_generated),
        cmocka_unit_test(equal_sides_give_equal_bits),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test_setup_teardown(a_stopped_run_goes_on_to_the_same_end, folder_make, folder_remove),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
