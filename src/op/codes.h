/* Activations as e4m3 codes with scales: what products with block scales multiply (matmul.h), made once by whoever
 * writes the activations and handed on. A row is quantised by groups of FL_SCALE_BLOCK inputs b, of values rounded to
 * act, in f32: a = max(max |x|, 2^-100), scale[b] = a / 448, code = e4m3(x * (448 / a)), each operation rounded once,
 * e4m3 to nearest even and saturating. The bits are those that matmul makes of the same activations. */
#ifndef FL_OP_CODES_H
#define FL_OP_CODES_H

#include "op/op_types.h"

typedef struct fl_codes {
    uint8_t *codes; /* [rows][k], 16-byte aligned, k a multiple of FL_SCALE_BLOCK; NULL = there are none */
    float *scale; /* [k / FL_SCALE_BLOCK], scale_stride apart, one a row: a tile's scales lie side by side */
    int64_t scale_stride; /* a multiple of 4, no less than rows */
} fl_codes;

/* Codes of rows x k as they lie in memory of so many bytes, 64-byte aligned: codes, then scales. */
int64_t fl_codes_bytes(int32_t rows, int32_t k);
fl_codes fl_codes_at(void *memory, int32_t rows, int32_t k);

/* Those of the rows from `row` on; none of none. */
fl_codes fl_codes_from(const fl_codes *c, int32_t row, int32_t k);

/* Limits, for codes that are there. */
fl_err fl_codes_validate(const char *op, const fl_codes *c, int32_t rows, int32_t k);

/* The refusal of backends without w8a8, of codes that are there. */
fl_err fl_codes_refuse(const fl_backend *be, const char *op, const fl_codes *c);

/* Of one row, for costs. */
static inline double fl_codes_row_bytes(double k) {
    return k + k / FL_SCALE_BLOCK * sizeof(float);
}

/* The definition of one group: codes[n] of x[n] and their scale. */
float fl_codes_of_group(const float *x, int32_t n, uint8_t *codes);

/* The definition: row `row` of `to` from x[k], f32 values that act can hold. */
void fl_codes_quantise(const float *x, int32_t k, const fl_codes *to, int64_t row);

#endif
