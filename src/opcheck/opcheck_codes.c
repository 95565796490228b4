#include <string.h>

#include "opcheck/opcheck_case.h"

enum { GAP = 8 }; /* floats that the rows of scales lie further apart than they must */

oc_codes oc_codes_make(oc_run *run, int32_t rows, int32_t k, int32_t skip) {
    int64_t stride = fl_align_up(rows + skip, 4) + GAP, blocks = k / FL_SCALE_BLOCK;
    int64_t code_bytes = fl_align_up((int64_t)(rows + skip) * k, 64);
    oc_codes c = {.rows = rows, .k = k};
    c.block = oc_block(run, code_bytes + blocks * stride * (int64_t)sizeof(float));
    uint8_t *codes = c.block.data;
    const fl_codes all = {
        .codes = codes, .scale = (float *)(void *)(codes + code_bytes), .scale_stride = stride};
    c.at = fl_codes_from(&all, skip, k);
    return c;
}

oc_codes oc_codes_of(oc_run *run, const oc_mat *x, int32_t skip) {
    int32_t rows = (int32_t)x->rows, k = (int32_t)x->width;
    oc_codes c = oc_codes_make(run, rows, k, skip);
    float *values = oc_memory(run, k * (int64_t)sizeof *values);
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t i = 0; i < k; i++) values[i] = (float)oc_get(x, r, i);
        fl_codes_quantise(values, k, &c.at, r);
    }
    return c;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void oc_codes_same(oc_run *run, const oc_codes *got, const oc_codes *want) {
    oc_guards(run, &got->block);
    for (int64_t r = 0; r < want->rows; r++) {
        if (memcmp(got->at.codes + r * got->k, want->at.codes + r * want->k, (size_t)want->k) != 0) {
            oc_fail(run, "other codes in row %lld", (long long)r);
            return;
        }
        for (int32_t b = 0; b < want->k / FL_SCALE_BLOCK; b++) {
            float a = got->at.scale[b * got->at.scale_stride + r],
                  w = want->at.scale[b * want->at.scale_stride + r];
            if (bits_of(a) == bits_of(w)) continue;
            oc_fail(run, "scale of row %lld, block %d: %a, must be %a", (long long)r, b, (double)a,
                    (double)w);
            return;
        }
    }
}
