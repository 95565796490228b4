/* The file that lets an evaluation go on: what is read from it, and that everything else is refused and left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "eval/eval_result.h"
#include "support/folder.h"

enum { LENGTH = 600, DOCUMENTS = 3, TEXT_BYTES = 1 << 12 };

static const fl_eval_setting settings[] = {{"model", "spark"}, {"sides", "full; full"}};
static const int64_t lengths[] = {LENGTH};
static const char *const tasks[] = {"ruler_niah_single_1"};
static const fl_eval_grid grid = {
    .lengths = lengths, .n_lengths = 1, .tasks = tasks, .n_tasks = 1, .n_documents = DOCUMENTS, .n_sides = 2};

static void open_results(fl_eval_results *out) {
    if (fl_eval_results_open(&grid, out) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
}

#define FILE_NAME "results"
#define HEADER                                                                                               \
    "{\"format\":\"firstlight eval 1\",\"settings\":{\"model\":\"spark\",\"sides\":\"full; full\"}}\n"
#define ROW                                                                                                  \
    "{\"task\":\"ruler_niah_single_1\",\"depth\":0.5,\"segment_distance\":1,\"tokens\":3,\"sides\":[[1,0.5," \
    "0,"                                                                                                     \
    "true],"                                                                                                 \
    "[0.5,1.5,0.25,false]]}"
#define COSTS "\"costs\":[[0.5,10,20,1],[0.25,10,20,1]]"
#define LINE  "{\"length\":600,\"task\":\"ruler_niah_single_1\",\"index\":1,\"rows\":[" ROW "]," COSTS "}\n"

/* Opens the folder's one file with this text in it. */
static fl_err open_text(const char *text, fl_eval_results *results) {
    fl_eval_resume *resume = NULL;
    char path[64];
    snprintf(path, sizeof path, "%s/" FILE_NAME, folder);
    text_write(FILE_NAME, text);
    open_results(results);
    fl_err err = fl_eval_resume_open(path, settings, 2, results, &resume);
    fl_eval_resume_close(resume);
    return err;
}

static void a_good_file_is_read(void **state) {
    (void)state;
    static char text[TEXT_BYTES];
    fl_eval_results results;
    /* A document outside the grid stays in the file, half a line does not. */
    const char *outside =
        "{\"length\":700,\"task\":\"ruler_niah_single_1\",\"index\":1,\"rows\":[" ROW "]," COSTS "}\n";
    snprintf(text, sizeof text, "%s%s%s%s", HEADER, LINE, outside, "{\"length\":6");
    if (open_text(text, &results) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    assert_null(results.items[0].rows);
    assert_int_equal(results.items[1].n_rows, 1);
    const fl_eval_row *row = &results.items[1].rows[0];
    assert_string_equal(row->task, "ruler_niah_single_1");
    assert_true(row->depth == 0.5 && row->segment_distance == 1 && row->n_scored == 3);
    assert_true(row->sides[0].score == 1 && row->sides[0].exact && row->sides[1].score == 0.5);
    assert_true(row->sides[1].nll == 1.5 && row->sides[1].kl == 0.25 && !row->sides[1].exact);
    assert_true(results.items[1].costs[1].prefill_s == 0.25 && results.items[1].costs[0].cached_tokens == 20);
    fl_eval_results_close(&results);
    char *after = text_read(FILE_NAME);
    assert_int_equal(strlen(after), strlen(HEADER) + strlen(LINE) + strlen(outside));
    free(after);
}

static void other_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        fl_err err;
        const char *says;
    } bad[] = {
        {"a shopping list\n", FL_ERR_DATA, "line 1"},
        {"a shopping list", FL_ERR_DATA, "not a"},
        {"[1]\n", FL_ERR_DATA, "line 1"},
        {"{\"format\":\"firstlight eval 0\",\"settings\":{}}\n", FL_ERR_DATA, "first line"},
        {"{\"format\":\"firstlight eval 1\",\"settings\":{\"model\":\"other\",\"sides\":\"full; full\"}}\n",
         FL_ERR_CONFIG, "model is 'other'"},
        {"{\"format\":\"firstlight eval 1\",\"settings\":{\"model\":\"spark\",\"sides\":\"full\"}}\n",
         FL_ERR_CONFIG, "sides is 'full'"},
        {"{\"format\":\"firstlight eval 1\",\"settings\":{\"model\":\"spark\"}}\n", FL_ERR_CONFIG,
         "sides is 'not set'"},
        {"{\"format\":\"firstlight eval 1\",\"settings\":{\"model\":\"spark\",\"sides\":\"full; "
         "full\",\"x\":\"y\"}}\n",
         FL_ERR_CONFIG, "3 of them"},
        {HEADER "nonsense\n", FL_ERR_DATA, "line 2"},
        {HEADER "{}\n", FL_ERR_DATA, "line 2"},
        {HEADER LINE LINE, FL_ERR_DATA, "line 3: this document was there already"},
        {HEADER "{\"length\":600,\"length\":600}\n", FL_ERR_DATA, "line 2"},
    };
    fl_eval_results results;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_err err = open_text(bad[i].text, &results);
        if (err != bad[i].err || !strstr(fl_err_detail(), bad[i].says))
            fail_msg("case %zu: %d, '%s' does not say '%s'", i, err, fl_err_detail(), bad[i].says);
        fl_eval_results_close(&results);
        char *after = text_read(FILE_NAME);
        assert_string_equal(after, bad[i].text); /* a file that is refused is left alone */
        free(after);
    }
}

/* Every field of a good line, made bad in turn. */
static void bad_fields_are_refused(void **state) {
    (void)state;
    static const char *const edits[][2] = {
        {"\"length\":600", "\"length\":0"},
        {"\"length\":600", "\"length\":\"600\""},
        {"\"task\":\"ruler_niah_single_1\",\"index\"", "\"task\":\"no such task\",\"index\""},
        {"\"index\":1", "\"index\":-1"},
        {"\"index\":1", "\"index\":1e3"},
        {"\"index\":1", "\"index\":99999999999"},
        {"\"rows\":[", "\"rows\":[[],"},
        {"\"task\":\"ruler_niah_single_1\",\"depth\"", "\"task\":\"spark\",\"depth\""},
        {"\"task\":\"ruler_niah_single_1\",\"depth\"", "\"task\":7,\"depth\""},
        {"\"depth\":0.5", "\"depth\":-0.5"},
        {"\"depth\":0.5", "\"depth\":1.5"},
        {"\"segment_distance\":1", "\"segment_distance\":-1"},
        {"\"segment_distance\":1", "\"segment_distance\":0.5"},
        {"\"tokens\":3", "\"tokens\":0"},
        {"[[1,0.5,0,true],", "["},
        {"[1,0.5,0,true]", "[1.5,0.5,0,true]"},
        {"[1,0.5,0,true]", "[-1,0.5,0,true]"},
        {"[1,0.5,0,true]", "[1,-0.5,0,true]"},
        {"[1,0.5,0,true]", "[1,1e300,0,true]"},
        {"[1,0.5,0,true]", "[1,0.5,-1,true]"},
        {"[1,0.5,0,true]", "[1,0.5,0,1]"},
        {"[1,0.5,0,true]", "[1,0.5,0]"},
        {"[1,0.5,0,true]", "{}"},
        {"[[0.5,10,20,1],", "["},
        {"[0.5,10,20,1]", "[-1,10,20,1]"},
        {"[0.5,10,20,1]", "[0.5,10.5,20,1]"},
        {"[0.5,10,20,1]", "[0.5,10,20]"},
        {"[0.5,10,20,1]", "[0.5,10,20,-1]"},
        {",\"costs\":", ",\"other\":"},
    };
    static char text[TEXT_BYTES];
    fl_eval_results results;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const char *at = strstr(LINE, edits[i][0]);
        assert_non_null(at);
        snprintf(text, sizeof text, "%s%.*s%s%s", HEADER, (int)(strlen(LINE) - strlen(at)), LINE, edits[i][1],
                 at + strlen(edits[i][0]));
        fl_err err = open_text(text, &results);
        if (err != FL_ERR_DATA || !strstr(fl_err_detail(), "line 2"))
            fail_msg("%s: %d, '%s'", edits[i][1], err, fl_err_detail());
        for (int32_t r = 0; r < results.n; r++) assert_null(results.items[r].rows);
        fl_eval_results_close(&results);
    }
}

static void a_grid_has_limits(void **state) {
    (void)state;
    static const char *const unknown[] = {"no such task"};
    fl_eval_results results;
    fl_eval_grid g = grid;
    g.n_sides = FL_EVAL_SIDES_MAX + 1;
    assert_int_equal(fl_eval_results_open(&g, &results), FL_ERR_INVALID);
    g = grid;
    g.n_documents = INT32_MAX;
    assert_int_equal(fl_eval_results_open(&g, &results), FL_ERR_INVALID);
    g = grid;
    g.tasks = unknown;
    assert_int_equal(fl_eval_results_open(&g, &results), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "no such task"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_is_read),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(bad_fields_are_refused),
        cmocka_unit_test(a_grid_has_limits),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
