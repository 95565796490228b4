/* Values are not finite when all exponent bits are set (for e4m3: exponent and mantissa). Blocks are tested
 * with a loop without branches, which the compiler turns into vector code; only a block that fails is
 * searched. */
#include "model/finite.h"

#include <stdbool.h>
#include <string.h>

enum { BLOCK = 4096 };

static bool bad8(const unsigned char *data, int64_t n) {
    unsigned bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= (unsigned)((data[i] & 0x7fu) == 0x7fu);
    return bad != 0;
}

static bool bad16(const unsigned char *data, int64_t n, uint16_t mask) {
    unsigned bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, data + 2 * i, sizeof bits);
        bad |= (unsigned)((bits & mask) == mask);
    }
    return bad != 0;
}

static bool bad32(const unsigned char *data, int64_t n) {
    unsigned bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, data + 4 * i, sizeof bits);
        bad |= (unsigned)((bits & 0x7f800000u) == 0x7f800000u);
    }
    return bad != 0;
}

static bool any_bad(fl_dtype dtype, const unsigned char *data, int64_t n) {
    switch (dtype) {
    case FL_DTYPE_F32: return bad32(data, n);
    case FL_DTYPE_BF16: return bad16(data, n, 0x7f80);
    case FL_DTYPE_F16: return bad16(data, n, 0x7c00);
    case FL_DTYPE_F8_E4M3: return bad8(data, n);
    case FL_N_DTYPES: break;
    }
    return true;
}

int64_t fl_finite_find_bad(fl_dtype dtype, const void *data, int64_t n) {
    const unsigned char *bytes = data;
    int64_t size = (int64_t)fl_dtype_bytes(dtype);
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t count = n - first < BLOCK ? n - first : BLOCK;
        if (!any_bad(dtype, bytes + first * size, count)) continue;
        for (int64_t i = first; i < first + count; i++)
            if (any_bad(dtype, bytes + i * size, 1)) return i;
    }
    return -1;
}
