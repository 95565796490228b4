#include "op/sample/sample.h"

#include <math.h>

#include "op/sample/sample_heap.h"
#include "op/validate.h"

int64_t fl_sample_scratch_bytes(int32_t n_known) {
    return n_known * (int64_t)(sizeof(fl_sample_candidate) + sizeof(float));
}

static fl_err validate_list(const char *field, int64_t at, int32_t n, const uint8_t *lists) {
    FL_TRY(fl_need_range("sample", field, n, 0, INT32_MAX));
    if (n == 0) return FL_ERR_OK;
    if (!lists) return FL_FAIL(FL_ERR_INVALID, "sample: lists is NULL, %s is %d", field, n);
    FL_TRY(fl_need_range("sample", field, at, 0, INT64_MAX));
    return fl_need_multiple("sample", field, at, 8);
}

static fl_err validate_row(const fl_sample_row *r, const uint8_t *lists) {
    FL_TRY(fl_need_range("sample", "n_top", r->n_top, 0, FL_TOP_LOGPROBS_MAX));
    FL_TRY(fl_need_range("sample", "top_k", r->top_k, 0, INT32_MAX));
    if (!(r->uniform >= 0 && r->uniform < 1))
        return FL_FAIL(FL_ERR_INVALID, "sample: uniform is %g, must be 0..1, less than 1", r->uniform);
    if (!(r->scale >= 0 && isfinite(r->scale)))
        return FL_FAIL(FL_ERR_INVALID, "sample: scale is %g, must be 0 or more", (double)r->scale);
    FL_TRY(validate_list("n_marks", r->marks_at, r->n_marks, lists));
    FL_TRY(validate_list("n_biases", r->biases_at, r->n_biases, lists));
    FL_TRY(validate_list("n_banned", r->banned_at, r->n_banned, lists));
    return validate_list("allowed_at", r->allowed_at, r->allowed_at >= 0, lists);
}

fl_err fl_sample_validate(const fl_sample_args *a) {
    FL_TRY(fl_need_count("sample", "n_rows", a->n_rows));
    FL_TRY(fl_need_range("sample", "n_known", a->n_known, 1, FL_SAMPLE_VOCAB_MAX));
    FL_TRY(fl_need_stride("sample", "logits_stride", a->logits_stride, a->n_known));
    for (int32_t i = 0; i < a->n_rows; i++) FL_TRY(validate_row(&a->rows[i], a->lists));
    return FL_ERR_OK;
}

fl_cost fl_sample_cost(const fl_sample_args *a) {
    return (fl_cost){.bytes = (double)a->n_rows * a->n_known * sizeof(float)};
}
