/* How the versions of weight_pack read what they pack: scaled elements of a checkpoint matrix in f32. */
#ifndef FL_OP_WEIGHT_PACK_SOURCE_H
#define FL_OP_WEIGHT_PACK_SOURCE_H

#include "op/weight_pack/weight_pack.h"

typedef struct fl_pack_source {
    const fl_weight_pack_args *a; /* borrowed */
    float of_e4m3[256];
} fl_pack_source;

fl_pack_source fl_pack_source_of(const fl_weight_pack_args *a);

/* Elements (row, first .. first + n - 1). */
void fl_pack_source_read(const fl_pack_source *source, int32_t row, int32_t first, int32_t n, float *to);

#endif
