/* Any bytes as an evaluation's file of results. What is taken from it must be in range. */
#include "eval/eval_result.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(const fl_eval_result *r, int32_t n_sides) {
    if ((r->rows == NULL) != (r->n_rows == 0) || r->n_rows < 0 || r->n_rows > FL_EVAL_QUESTIONS_MAX) abort();
    for (int32_t i = 0; i < r->n_rows; i++) {
        const fl_eval_row *row = &r->rows[i];
        if (!row->task || !(row->depth >= -1 && row->depth <= 1) || row->segment_distance < 0 ||
            row->n_scored < 1)
            abort();
        for (int32_t s = 0; s < n_sides; s++)
            if (!(row->sides[s].score >= 0 && row->sides[s].score <= 1 && row->sides[s].nll >= 0)) abort();
    }
    for (int32_t s = 0; s < n_sides; s++)
        if (!(r->costs[s].prefill_s >= 0) || r->costs[s].computed_tokens < 0 || r->costs[s].n_reads < 0)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static const char *const tasks[] = {"spark"};
    const int64_t lengths[] = {4096, 8192};
    const fl_eval_setting settings[] = {{"model", "spark"}};
    const fl_eval_grid grid = {
        .lengths = lengths, .n_lengths = 2, .tasks = tasks, .n_tasks = 1, .n_documents = 2, .n_sides = 2};
    fl_eval_results results;
    size_t whole_bytes;
    if (fl_eval_results_open(&grid, &results) != FL_ERR_OK) abort();
    const fl_eval_lines lines = {"file", (const char *)bytes, n_bytes, settings, 1};
    if (fl_eval_results_read(&lines, &results, &whole_bytes) == FL_ERR_OK && whole_bytes > n_bytes) abort();
    for (int32_t i = 0; i < results.n; i++) check(&results.items[i], 2);
    fl_eval_results_close(&results);
    return 0;
}
