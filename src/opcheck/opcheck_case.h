/* How to write a check. fl_x_check is called once a backend; it begins cases, makes inputs, calls the op on
 * `be` (two threads), `one` (the same backend, one thread) and `ref`, and compares:
 *
 *   if (!oc_case(run, OC_CHECK, "rmsnorm rows=%d dim=%d", rows, dim)) return;
 *   oc_pair x = oc_act(run, rows, dim, dim + 3, OC_NORMAL);        the same numbers in act and in f32
 *   oc_outs y = oc_outs_make(run, run->be->act_dtype, rows, dim, dim + 5);
 *   ... OC_OK(run, run->be->op->rmsnorm(run->be, &args)); ...
 *   oc_outs_near(run, &y, bound);
 *
 * A case fails at most once a fault, goes on after it, and is counted as passed if nothing failed. All memory of
 * a case is given back when the next begins. Inputs lie between NaNs and a page that faults, so that reading beside
 * them shows; outputs, and the gaps between their rows, lie between bytes of 0xAA that must still be there
 * afterwards. */
#ifndef FL_OPCHECK_OPCHECK_CASE_H
#define FL_OPCHECK_OPCHECK_CASE_H

#include "backend/op_tables.h"
#include "opcheck/opcheck.h"

typedef struct oc_run {
    fl_backend *be, *one; /* under test, on two threads and on one */
    fl_backend *ref;
    bool is_reference; /* `be` is the reference: what does not depend on a backend is checked then, once */
    struct oc_private *private;
} oc_run;

/* CHECK always runs but under --bench; SLOW only in full runs; BENCH runs there too and under --bench is the
 * only kind. */
typedef enum oc_kind { OC_CHECK, OC_SLOW, OC_BENCH } oc_kind;

/* Begins a case, whose name seeds its random numbers. False: skip it. */
bool oc_case(oc_run *run, oc_kind kind, const char *format, ...) FL_PRINTF(3, 4);

/* Records a fault of the current case. */
void oc_fail(oc_run *run, const char *format, ...) FL_PRINTF(2, 3);

#define OC_TRUE(run, condition)                                                                              \
    do {                                                                                                     \
        if (!(condition)) oc_fail(run, "line %d: not true: %s", __LINE__, #condition);                       \
    } while (0)

/* The call succeeds. */
#define OC_OK(run, call)                                                                                     \
    do {                                                                                                     \
        if ((call) != FL_ERR_OK) oc_fail(run, "line %d: %s", __LINE__, fl_err_detail());                     \
    } while (0)

/* For shapes that a backend need not support: true if the call succeeded; false, and no fault, if it was refused as
 * unsupported and `must` is false. */
bool oc_ran(oc_run *run, fl_err err, bool must);

/* The call fails and its text names `field`. */
#define OC_REFUSED(run, call, field) oc_refused(run, (call), field, __LINE__)
void oc_refused(oc_run *run, fl_err err, const char *field, int line);

/* Validation of `good` with one member changed refuses, naming the field, or accepts. */
#define OC_REFUSED_WITH(run, op, good, member, value, field)                                                 \
    do {                                                                                                     \
        fl_##op##_args changed_ = (good);                                                                    \
        changed_.member = (value);                                                                           \
        OC_REFUSED(run, fl_##op##_validate(&changed_), field);                                               \
    } while (0)
#define OC_ACCEPTED_WITH(run, op, good, member, value)                                                       \
    do {                                                                                                     \
        fl_##op##_args changed_ = (good);                                                                    \
        changed_.member = (value);                                                                           \
        OC_OK(run, fl_##op##_validate(&changed_));                                                           \
    } while (0)

/* Costs are exact small numbers in checks. */
void oc_cost(oc_run *run, fl_cost got, double flops, double bytes);

/* Uniform in [0, n), [0, 1), and roughly normal with variance 1. */
int32_t oc_below(oc_run *run, int32_t n);
double oc_uniform(oc_run *run);
double oc_normal(oc_run *run);

/* Zeroed, 64-byte aligned, until the next case. Ends the check of the op if a case wants too much. */
void *oc_memory(oc_run *run, int64_t bytes);

/* The same, but it ends (rounded up to 64 bytes) at a page that faults when touched: for inputs, so that reading far
 * behind them shows. */
void *oc_memory_fenced(oc_run *run, int64_t bytes);

/* A copy of what lies on the stack or in the program: backends with memory of their own cannot read that. */
void *oc_given(oc_run *run, const void *from, int64_t bytes);

/* ---- matrices ------------------------------------------------------------------------------------------------- */

typedef struct oc_mat {
    fl_dtype dtype; /* F32 or BF16 */
    int64_t rows, width, stride;
    uint8_t *bytes; /* guard, rows, guard */
    int64_t total_bytes;
    void *data; /* element (0, 0), 64-byte aligned */
} oc_mat;

typedef enum oc_fill {
    OC_NORMAL,
    OC_ZERO,
    OC_LARGE, /* normal times 1e4 */
    OC_TINY,  /* normal times 1e-20 */
    OC_EQUAL, /* every row the same constant */
    OC_SPIKE, /* normal times 1e-2, a few entries times 1e3 */
    OC_N_FILLS
} oc_fill;

const char *oc_fill_name(oc_fill fill);

oc_mat oc_input(oc_run *run, fl_dtype dtype, int64_t rows, int64_t width, int64_t stride);
oc_mat oc_output(oc_run *run, fl_dtype dtype, int64_t rows, int64_t width, int64_t stride);
double oc_get(const oc_mat *m, int64_t row, int64_t column);
void oc_set(const oc_mat *m, int64_t row, int64_t column, double value);
void *oc_at(const oc_mat *m, int64_t row, int64_t column);
void oc_fill_mat(oc_run *run, const oc_mat *m, oc_fill fill);
void oc_copy(const oc_mat *to, const oc_mat *from); /* values; converts */

/* An output gets its 0xAA back, everywhere. */
void oc_reset(const oc_mat *m);

/* All bytes around and between the rows are untouched; all bytes at all are. */
void oc_guards(oc_run *run, const oc_mat *m);
void oc_untouched(oc_run *run, const oc_mat *m);

/* The same bits in every element. */
void oc_same(oc_run *run, const oc_mat *a, const oc_mat *b);

/* |got - want| <= bound[row * width + column], and both finite. */
void oc_near(oc_run *run, const oc_mat *got, const oc_mat *want, const double *bound);

/* One input in two formats with the same values: those of the backend's act. */
typedef struct oc_pair {
    oc_mat be, ref;
} oc_pair;

oc_pair oc_act(oc_run *run, int64_t rows, int64_t width, int64_t stride, oc_fill fill);

/* After changing .ref by hand: rounds it to act and copies it to .be. */
void oc_act_sync(const oc_pair *pair);

/* One output three times; `ref` is f32. */
typedef struct oc_outs {
    oc_mat be, one, ref;
} oc_outs;

oc_outs oc_outs_make(oc_run *run, fl_dtype dtype, int64_t rows, int64_t width, int64_t stride);

/* Guards, one and two threads the same bits, and near the reference. */
void oc_outs_near(oc_run *run, const oc_outs *outs, const double *bound);

/* bound[] = relative * (largest |want| of the row) + rounding of one element to `dtype`. */
double *oc_row_bound(oc_run *run, const oc_mat *want, double relative, fl_dtype dtype);

/* Half a unit in the last place of `dtype` at `value`, the most that one rounding costs (f32 for F32). */
double oc_rounding(fl_dtype dtype, double value);

/* ---- weights, blocks of bytes ---------------------------------------------------------------------------------- */

typedef struct oc_weights {
    fl_weight *be, *ref; /* [count] packed by each backend's own weight_pack */
    float *values;       /* [count][n][k], exact in bf16 */
} oc_weights;

oc_weights oc_weights_make(oc_run *run, int32_t count, int32_t n, int32_t k, oc_fill fill);

/* After changing .values: packs again. */
void oc_weights_pack(oc_run *run, const oc_weights *w, int32_t count);

/* State and scratch: `bytes` of 0xAA between guards, checked by oc_guards (rows 1, f32). */
oc_mat oc_block(oc_run *run, int64_t bytes);

/* Codes with scales in a block of their own, those of the first `skip` rows left out: bases that are only as aligned as
 * they must be. */
typedef struct oc_codes {
    fl_codes at;
    oc_mat block;
    int32_t rows, k;
} oc_codes;

oc_codes oc_codes_make(oc_run *run, int32_t rows, int32_t k, int32_t skip);

/* Those of a matrix's values, as the contract makes them. */
oc_codes oc_codes_of(oc_run *run, const oc_mat *x, int32_t skip);

/* The same bits, and nothing beside `got` is touched. */
void oc_codes_same(oc_run *run, const oc_codes *got, const oc_codes *want);

/* ---- timing --------------------------------------------------------------------------------------------------- */

/* Under --bench true again and again until enough runs are timed: while (oc_timing(run, cost)) OC_OK(...); */
bool oc_timing(oc_run *run, fl_cost cost);

#define X(op) void fl_##op##_check(oc_run *run);
#include "op/oplist.inc"
#undef X

#endif
