/* Matrices between guards, and comparing them. */
#include <math.h>
#include <string.h>

#include "op/act.h"
#include "opcheck/opcheck_private.h"

enum { GUARD_BYTES = 256, OUTPUT_BYTE = 0xaa, INPUT_BYTE = 0xff /* NaN in every format here */ };

static int64_t data_bytes(const oc_mat *m) {
    return ((m->rows - 1) * m->stride + m->width) * (int64_t)fl_dtype_bytes(m->dtype);
}

oc_mat oc_input(oc_run *run, fl_dtype dtype, int64_t rows, int64_t width, int64_t stride) {
    oc_mat m = {.dtype = dtype, .rows = rows, .width = width, .stride = stride};
    m.total_bytes = GUARD_BYTES + fl_align_up(data_bytes(&m), 64);
    m.bytes = oc_memory_fenced(run, m.total_bytes);
    m.data = m.bytes + GUARD_BYTES;
    memset(m.bytes, INPUT_BYTE, (size_t)m.total_bytes);
    return m;
}

oc_mat oc_output(oc_run *run, fl_dtype dtype, int64_t rows, int64_t width, int64_t stride) {
    oc_mat m = {.dtype = dtype, .rows = rows, .width = width, .stride = stride};
    m.total_bytes = GUARD_BYTES + data_bytes(&m) + GUARD_BYTES;
    m.bytes = oc_memory(run, m.total_bytes);
    m.data = m.bytes + GUARD_BYTES;
    oc_reset(&m);
    return m;
}

oc_mat oc_block(oc_run *run, int64_t bytes) {
    int64_t floats = bytes / (int64_t)sizeof(float);
    if (bytes % (int64_t)sizeof(float) != 0) oc_fail(run, "a block of %lld bytes", (long long)bytes);
    return oc_output(run, FL_DTYPE_F32, 1, floats, floats);
}

void oc_reset(const oc_mat *m) {
    memset(m->bytes, OUTPUT_BYTE, (size_t)m->total_bytes);
}

void *oc_at(const oc_mat *m, int64_t row, int64_t column) {
    return (uint8_t *)m->data + (row * m->stride + column) * (int64_t)fl_dtype_bytes(m->dtype);
}

double oc_get(const oc_mat *m, int64_t row, int64_t column) {
    return (double)fl_act_load(m->data, m->dtype, row * m->stride + column);
}

void oc_set(const oc_mat *m, int64_t row, int64_t column, double value) {
    fl_act_store(m->data, m->dtype, row * m->stride + column, (float)value);
}

const char *oc_fill_name(oc_fill fill) {
    static const char *const names[OC_N_FILLS] = {"normal", "zero", "large", "tiny", "equal", "spike"};
    return names[fill];
}

static double fill_value(oc_run *run, oc_fill fill) {
    double value = oc_normal(run);
    switch (fill) {
    case OC_ZERO: return 0;
    case OC_LARGE: return value * 1e4;
    case OC_TINY: return value * 1e-20;
    case OC_SPIKE: return value * (oc_below(run, 50) == 0 ? 1e3 : 1e-2);
    default: return value;
    }
}

void oc_fill_mat(oc_run *run, const oc_mat *m, oc_fill fill) {
    double constant = oc_normal(run);
    for (int64_t r = 0; r < m->rows; r++)
        for (int64_t j = 0; j < m->width; j++)
            oc_set(m, r, j, fill == OC_EQUAL ? constant : fill_value(run, fill));
}

void oc_copy(const oc_mat *to, const oc_mat *from) {
    for (int64_t r = 0; r < to->rows; r++)
        for (int64_t j = 0; j < to->width; j++) oc_set(to, r, j, oc_get(from, r, j));
}

/* What lies outside the elements: before the first, behind the last, and between rows. */
void oc_guards(oc_run *run, const oc_mat *m) {
    int64_t element = (int64_t)fl_dtype_bytes(m->dtype);
    for (int64_t i = 0; i < m->total_bytes; i++) {
        int64_t at = i - GUARD_BYTES, row = at / (m->stride * element), in_row = at % (m->stride * element);
        if (at >= 0 && row < m->rows && in_row < m->width * element) {
            i += m->width * element - in_row - 1;
            continue;
        }
        if (m->bytes[i] == OUTPUT_BYTE) continue;
        oc_fail(run, "wrote outside an output: byte %lld from its start (%lld rows of %lld, stride %lld)",
                (long long)at, (long long)m->rows, (long long)m->width, (long long)m->stride);
        return;
    }
}

void oc_untouched(oc_run *run, const oc_mat *m) {
    for (int64_t i = 0; i < m->total_bytes; i++)
        if (m->bytes[i] != OUTPUT_BYTE) {
            oc_fail(run, "wrote to what should stay untouched");
            return;
        }
}

void oc_same(oc_run *run, const oc_mat *a, const oc_mat *b) {
    size_t element = fl_dtype_bytes(a->dtype);
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t j = 0; j < a->width; j++)
            if (memcmp(oc_at(a, r, j), oc_at(b, r, j), element) != 0) {
                oc_fail(run, "not the same bits at row %lld column %lld: %.9g and %.9g", (long long)r,
                        (long long)j, oc_get(a, r, j), oc_get(b, r, j));
                return;
            }
}

void oc_near(oc_run *run, const oc_mat *got, const oc_mat *want, const double *bound) {
    fl_opcheck_row *row = run->private->row;
    bool failed = false;
    for (int64_t r = 0; r < got->rows; r++)
        for (int64_t j = 0; j < got->width; j++) {
            double g = oc_get(got, r, j), w = oc_get(want, r, j), limit = bound[r * got->width + j];
            double error = fabs(g - w);
            if (error > 0 && limit > 0) row->max_error = fmax(row->max_error, error / limit);
            if (error <= limit || failed) continue; /* not a number is not within any limit */
            oc_fail(run, "row %lld column %lld is %.9g, expected %.9g within %.3g", (long long)r,
                    (long long)j, g, w, limit);
            failed = true;
        }
}

oc_pair oc_act(oc_run *run, int64_t rows, int64_t width, int64_t stride, oc_fill fill) {
    oc_pair pair = {.be = oc_input(run, run->be->act_dtype, rows, width, stride),
                    .ref = oc_input(run, FL_DTYPE_F32, rows, width, stride)};
    oc_fill_mat(run, &pair.ref, fill);
    oc_act_sync(&pair);
    return pair;
}

void oc_act_sync(const oc_pair *pair) {
    oc_copy(&pair->be, &pair->ref);
    oc_copy(&pair->ref, &pair->be);
}

oc_outs oc_outs_make(oc_run *run, fl_dtype dtype, int64_t rows, int64_t width, int64_t stride) {
    return (oc_outs){.be = oc_output(run, dtype, rows, width, stride),
                     .one = oc_output(run, dtype, rows, width, stride),
                     .ref = oc_output(run, FL_DTYPE_F32, rows, width, stride)};
}

void oc_outs_near(oc_run *run, const oc_outs *outs, const double *bound) {
    oc_guards(run, &outs->be);
    oc_guards(run, &outs->one);
    oc_guards(run, &outs->ref);
    oc_same(run, &outs->be, &outs->one);
    oc_near(run, &outs->be, &outs->ref, bound);
}

double oc_rounding(fl_dtype dtype, double value) {
    int32_t exponent;
    if (value < 0 || value > 0) frexp(value, &exponent);
    else return 0;
    int32_t digits = dtype == FL_DTYPE_F32 ? 24 : 8; /* value = 0.1xxx * 2^exponent */
    return ldexp(0.5, exponent - digits);
}

double *oc_row_bound(oc_run *run, const oc_mat *want, double relative, fl_dtype dtype) {
    double *bound = oc_memory(run, want->rows * want->width * (int64_t)sizeof *bound);
    for (int64_t r = 0; r < want->rows; r++) {
        double largest = 0;
        for (int64_t j = 0; j < want->width; j++) largest = fmax(largest, fabs(oc_get(want, r, j)));
        for (int64_t j = 0; j < want->width; j++) {
            double error = relative * largest;
            bound[r * want->width + j] = error + oc_rounding(dtype, fabs(oc_get(want, r, j)) + error);
        }
    }
    return bound;
}

oc_weights oc_weights_make(oc_run *run, int32_t count, int32_t n, int32_t k, oc_fill fill) {
    oc_weights w = {.be = oc_memory(run, count * (int64_t)sizeof *w.be),
                    .ref = oc_memory(run, count * (int64_t)sizeof *w.ref)};
    oc_mat values = oc_input(run, FL_DTYPE_F32, (int64_t)count * n, k, k);
    oc_mat rounded = oc_input(run, FL_DTYPE_BF16, (int64_t)count * n, k, k);
    oc_fill_mat(run, &rounded, fill);
    oc_copy(&values, &rounded);
    w.values = values.data;
    for (int32_t i = 0; i < count; i++) {
        fl_backend *const backends[] = {run->be, run->ref};
        fl_weight *const weights[] = {&w.be[i], &w.ref[i]};
        for (int32_t b = 0; b < 2; b++) {
            int64_t bytes = fl_backend_weight_bytes(backends[b], n, k);
            *weights[b] = (fl_weight){.data = oc_memory_fenced(run, bytes), .n = n, .k = k};
        }
    }
    oc_weights_pack(run, &w, count);
    return w;
}

void oc_weights_pack(oc_run *run, const oc_weights *w, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        fl_weight_pack_args args = {.src_dtype = FL_DTYPE_F32, .rows = w->be[i].n, .cols = w->be[i].k};
        args.src = w->values + (int64_t)i * args.rows * args.cols;
        args.w = &w->be[i];
        OC_OK(run, run->be->op->weight_pack(run->be, &args));
        args.w = &w->ref[i];
        OC_OK(run, run->ref->op->weight_pack(run->ref, &args));
    }
}
