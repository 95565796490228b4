/* Number formats of tensors, as safetensors names them. */
#ifndef FL_BASE_DTYPE_H
#define FL_BASE_DTYPE_H

#include <stddef.h>

/* enum name, safetensors name, bytes an element */
#define FL_DTYPE_LIST(X)                                                                                     \
    X(F32, "F32", 4)                                                                                         \
    X(BF16, "BF16", 2)                                                                                       \
    X(F16, "F16", 2)                                                                                         \
    X(F8_E4M3, "F8_E4M3", 1)

typedef enum fl_dtype {
#define FL_DTYPE_ENUM(name, text, bytes) FL_DTYPE_##name,
    FL_DTYPE_LIST(FL_DTYPE_ENUM)
#undef FL_DTYPE_ENUM
        FL_N_DTYPES
} fl_dtype;

static inline size_t fl_dtype_bytes(fl_dtype dtype) {
    static const size_t bytes_of[FL_N_DTYPES] = {
#define FL_DTYPE_SIZE(name, text, bytes) bytes,
        FL_DTYPE_LIST(FL_DTYPE_SIZE)
#undef FL_DTYPE_SIZE
    };
    return bytes_of[dtype];
}

static inline const char *fl_dtype_name(fl_dtype dtype) {
    static const char *const name_of[FL_N_DTYPES] = {
#define FL_DTYPE_TEXT(name, text, bytes) text,
        FL_DTYPE_LIST(FL_DTYPE_TEXT)
#undef FL_DTYPE_TEXT
    };
    return name_of[dtype];
}

#endif
