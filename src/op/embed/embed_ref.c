#include "op/embed/embed.h"

#include <string.h>

#include "base/half.h"
#include "op/ref.h"

fl_err fl_embed_ref(fl_backend *be, const fl_embed_args *a) {
    (void)be;
    FL_TRY(fl_embed_validate(a));
    FL_TRY(fl_embed_validate_ids(a));
    size_t entry_bytes = fl_dtype_bytes(a->table_dtype);
    for (int32_t r = 0; r < a->rows; r++)
        for (int32_t j = 0; j < a->dim; j++) {
            int64_t index = (int64_t)a->ids[r] * a->dim + j;
            uint32_t bits = 0;
            memcpy(&bits, (const uint8_t *)a->table + index * (int64_t)entry_bytes, entry_bytes);
            a->x[(int64_t)r * a->dim + j] = a->table_dtype == FL_DTYPE_F32    ? fl_f32_of_bits(bits)
                                            : a->table_dtype == FL_DTYPE_BF16 ? fl_f32_of_bf16((uint16_t)bits)
                                                                              : fl_f32_of_f16((uint16_t)bits);
        }
    return FL_ERR_OK;
}
