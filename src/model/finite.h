/* Looking for NaN and infinity in weights as stored. */
#ifndef FL_MODEL_FINITE_H
#define FL_MODEL_FINITE_H

#include "base/dtype.h"

#include <stdint.h>

/* Index of the first of n values at `data` (any alignment) that is NaN or infinite, or -1. */
int64_t fl_finite_find_bad(fl_dtype dtype, const void *data, int64_t n);

#endif
