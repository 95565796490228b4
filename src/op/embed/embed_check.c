#include "op/embed/embed.h"

#include <string.h>

#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t rows, dim, n_vocab, misaligned_bytes;
    fl_dtype dtype;
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 1, 0, FL_DTYPE_F32},      {OC_CHECK, 5, 64, 40, 0, FL_DTYPE_BF16},
    {OC_CHECK, 65, 33, 100, 1, FL_DTYPE_BF16}, {OC_CHECK, 7, 50, 20, 3, FL_DTYPE_F32},
    {OC_CHECK, 64, 31, 70, 1, FL_DTYPE_F16},   {OC_CHECK, 3, 128, 9, 0, FL_DTYPE_F16},
    {OC_CHECK, 63, 96, 64, 2, FL_DTYPE_F32},   {OC_BENCH, 2048, 512, 8192, 0, FL_DTYPE_BF16},
};

/* A random finite element of the table, and its value from sign, exponent and mantissa. */
static double random_element(oc_run *run, fl_dtype dtype, uint32_t *bits) {
    int32_t mantissa_bits = dtype == FL_DTYPE_F32 ? 23 : dtype == FL_DTYPE_BF16 ? 7 : 10;
    int32_t bias = dtype == FL_DTYPE_F16 ? 15 : 127, exponent = bias - 10 + oc_below(run, 20);
    int32_t mantissa = oc_below(run, 1 << mantissa_bits), sign = oc_below(run, 2);
    if (dtype == FL_DTYPE_F16 && oc_below(run, 8) == 0) exponent = 0; /* subnormal */
    int32_t sign_shift = dtype == FL_DTYPE_F32 ? 31 : 15;
    *bits = (uint32_t)sign << sign_shift | (uint32_t)exponent << mantissa_bits | (uint32_t)mantissa;
    double value =
        exponent ? 1 + (double)mantissa / (1 << mantissa_bits) : (double)mantissa / (1 << mantissa_bits);
    for (int32_t e = exponent ? exponent : 1; e < bias; e++) value /= 2;
    for (int32_t e = exponent; e > bias; e--) value *= 2;
    return sign ? -value : value;
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "embed rows=%d dim=%d vocab=%d %s at byte %d", s->rows, s->dim, s->n_vocab,
                 fl_dtype_name(s->dtype), s->misaligned_bytes))
        return;
    int64_t element = (int64_t)fl_dtype_bytes(s->dtype), elements = (int64_t)s->n_vocab * s->dim;
    uint8_t *table = oc_memory_fenced(run, elements * element + s->misaligned_bytes);
    double *values = oc_memory(run, elements * (int64_t)sizeof *values);
    int32_t *ids = oc_memory(run, s->rows * (int64_t)sizeof *ids);
    for (int64_t i = 0; i < elements; i++) {
        uint32_t bits;
        values[i] = random_element(run, s->dtype, &bits);
        memcpy(table + s->misaligned_bytes + i * element, &bits, (size_t)element);
    }
    for (int32_t r = 0; r < s->rows; r++) ids[r] = oc_below(run, s->n_vocab);
    ids[0] = s->n_vocab - 1;
    ids[s->rows - 1] = 0;
    oc_outs x = oc_outs_make(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    oc_mat expected = oc_output(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    for (int64_t i = 0; i < (int64_t)s->rows * s->dim; i++)
        oc_set(&expected, i / s->dim, i % s->dim, values[(int64_t)ids[i / s->dim] * s->dim + i % s->dim]);
    fl_embed_args args = {.ids = ids, .table = table + s->misaligned_bytes, .table_dtype = s->dtype};
    args.rows = s->rows;
    args.dim = s->dim;
    args.n_vocab = s->n_vocab;
    fl_backend *const backends[] = {run->be, run->one, run->ref};
    const oc_mat *const outs[] = {&x.be, &x.one, &x.ref};
    for (int32_t i = 0; i < 3; i++) {
        args.x = outs[i]->data;
        OC_OK(run, backends[i]->op->embed(backends[i], &args));
        oc_guards(run, outs[i]);
        oc_same(run, outs[i], &expected);
    }
    args.x = x.be.data;
    while (oc_timing(run, fl_embed_cost(&args))) OC_OK(run, run->be->op->embed(run->be, &args));
}

/* Ids come from requests: a wrong one is refused, and on the host nothing is written. */
static void check_ids(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "embed ids")) return;
    const float entries[6] = {1, 2, 3, 4, 5, 6};
    const int32_t good_ids[3] = {0, 2, 1};
    float *table = oc_given(run, entries, sizeof entries);
    int32_t *ids = oc_given(run, good_ids, sizeof good_ids);
    oc_mat x = oc_output(run, FL_DTYPE_F32, 3, 2, 2);
    fl_embed_args args = {
        .ids = ids, .table = table, .table_dtype = FL_DTYPE_F32, .rows = 3, .dim = 2, .n_vocab = 3};
    args.x = x.data;
    ids[2] = 3;
    OC_REFUSED(run, run->be->op->embed(run->be, &args), "embed: ids[]");
    ids[2] = -1;
    OC_REFUSED(run, run->be->op->embed(run->be, &args), "embed: ids[]");
    args.rows = 0;
    OC_REFUSED(run, run->be->op->embed(run->be, &args), "embed: rows");
    if (!run->be->device) oc_untouched(run, &x); /* a device finds out while it writes */
    args.rows = 2;
    OC_OK(run, run->be->op->embed(run->be, &args));
    OC_TRUE(run, (int32_t)oc_get(&x, 1, 0) == 5 && (int32_t)oc_get(&x, 0, 1) == 2);
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "embed limits and cost")) return;
    fl_embed_args good = {.table_dtype = FL_DTYPE_BF16, .rows = 3, .dim = 5, .n_vocab = 7};
    OC_OK(run, fl_embed_validate(&good));
    OC_ACCEPTED_WITH(run, embed, good, rows, 1);
    OC_REFUSED_WITH(run, embed, good, rows, 0, "embed: rows");
    OC_ACCEPTED_WITH(run, embed, good, dim, 1);
    OC_REFUSED_WITH(run, embed, good, dim, 0, "embed: dim");
    OC_ACCEPTED_WITH(run, embed, good, dim, 1 << 20);
    OC_REFUSED_WITH(run, embed, good, dim, (1 << 20) + 1, "embed: dim");
    OC_ACCEPTED_WITH(run, embed, good, n_vocab, 1);
    OC_REFUSED_WITH(run, embed, good, n_vocab, 0, "embed: n_vocab");
    OC_ACCEPTED_WITH(run, embed, good, n_vocab, 1 << 24);
    OC_REFUSED_WITH(run, embed, good, n_vocab, (1 << 24) + 1, "embed: n_vocab");
    OC_ACCEPTED_WITH(run, embed, good, table_dtype, FL_DTYPE_F32);
    OC_ACCEPTED_WITH(run, embed, good, table_dtype, FL_DTYPE_F16);
    OC_REFUSED_WITH(run, embed, good, table_dtype, FL_DTYPE_F8_E4M3, "embed: table_dtype");
    oc_cost(run, fl_embed_cost(&good), 0, 3 * (5 * 6 + 4));
    good.table_dtype = FL_DTYPE_F32;
    oc_cost(run, fl_embed_cost(&good), 0, 3 * (5 * 8 + 4));
}

void fl_embed_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_ids(run);
    check_limits(run);
}
