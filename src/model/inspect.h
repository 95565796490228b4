/* What `firstlight inspect` shows of a checkpoint, gathered without reading its weights (but for the fingerprint). */
#ifndef FL_MODEL_INSPECT_H
#define FL_MODEL_INSPECT_H

#include "model/checkpoint.h"

enum { FL_INSPECTION_DTYPES_MAX = 32 };

/* Tensors stored in one format. */
typedef struct fl_inspection_dtype {
    const char *name; /* as in the files; static */
    int64_t tensors;
    int64_t elements;
    int64_t bytes;
} fl_inspection_dtype;

typedef struct fl_inspection {
    fl_config config;
    int64_t
        parameters; /* values of all weights the model uses; block scales and ignored tensors not counted */
    int64_t
        active_parameters; /* those one token is multiplied with: chosen experts, output head; no embedding look-up */
    int64_t tensors; /* in the files, scales and ignored ones included */
    int64_t bytes;   /* of all of them */
    int32_t n_shards;
    fl_inspection_dtype dtypes[FL_INSPECTION_DTYPES_MAX]; /* [n_dtypes] in order of their names */
    int32_t n_dtypes;
} fl_inspection;

/* Counts an open checkpoint. The fingerprint is fl_fingerprint_compute's business. */
void fl_inspect_checkpoint(const fl_checkpoint *checkpoint, fl_inspection *out);

#endif
