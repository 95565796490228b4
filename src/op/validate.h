/* What validate and cost functions share: one line a limit, an error text that names op, field, value and
 * range. Validation looks at shapes and host-made descriptors (weights, seqs), never at what data pointers
 * point to: the counting backend has no data. */
#ifndef FL_OP_VALIDATE_H
#define FL_OP_VALIDATE_H

#include "op/op_types.h"

/* Largest hidden or feature dimension and number of heads: far above any model, small enough that rows x
 * heads x dims x bytes stays inside int64. */
enum { FL_OP_DIM_MAX = 1 << 20, FL_OP_HEADS_MAX = 4096 };

/* low <= value <= high. */
static inline fl_err fl_need_range(const char *op, const char *field, int64_t value, int64_t low,
                                   int64_t high) {
    if (value >= low && value <= high) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INVALID, "%s: %s is %lld, must be %lld..%lld", op, field, (long long)value,
                   (long long)low, (long long)high);
}

/* A count that only has to be there: rows, sequences. */
static inline fl_err fl_need_count(const char *op, const char *field, int64_t value) {
    return fl_need_range(op, field, value, 1, INT32_MAX);
}

/* A stride must hold the row it steps over. */
static inline fl_err fl_need_stride(const char *op, const char *field, int64_t stride, int64_t width) {
    if (stride >= width) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INVALID, "%s: %s is %lld, less than the width %lld", op, field, (long long)stride,
                   (long long)width);
}

static inline fl_err fl_need_multiple(const char *op, const char *field, int64_t value, int64_t step) {
    if (value % step == 0) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INVALID, "%s: %s is %lld, must be a multiple of %lld", op, field, (long long)value,
                   (long long)step);
}

/* Shapes and format of a KV layer. */
fl_err fl_kv_layer_validate(const char *op, const fl_kv_layer *kv);

/* Tokens of a block of keys: whole pages, up to FL_BLOCK_TOKENS_MAX. */
fl_err fl_block_tokens_validate(const char *op, int32_t block_tokens);

/* Whole tiles of FL_ATTN_LIST_ROWS rows, within FL_ATTN_LIST_TOKENS_MAX. */
fl_err fl_list_rows_validate(const char *op, int32_t rows, int32_t pos);

/* No field of a view is negative. */
fl_err fl_attn_view_validate(const char *op, const fl_attn_view *view);

/* Timelines: n_seqs >= 1, row ranges inside 0..rows, positions inside int32. */
fl_err fl_kv_rows_validate(const char *op, const fl_kv_rows *seqs, int32_t n_seqs, int32_t rows);

/* Groups of weights: all of w[0]'s n and k, both inside FL_OP_DIM_MAX. */
fl_err fl_weights_validate(const char *op, const fl_weight *w, int32_t n_weights);

/* Bytes an element of act or of a packed weight counts in cost functions, whatever the backend: costs are
 * those of the bf16 backend, so that plans of all backends compare. */
enum { FL_COST_ACT_BYTES = 2, FL_COST_WEIGHT_BYTES = 2 };

#endif
