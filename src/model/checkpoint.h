/* A checkpoint folder, opened and checked: configuration, shards mapped read-only, and exactly the tensors
 * the configuration asks for. Nothing is copied but the block scales. After a successful open every weight
 * the engine asks for exists with the expected shape, in a known format, with finite values. */
#ifndef FL_MODEL_CHECKPOINT_H
#define FL_MODEL_CHECKPOINT_H

#include "base/dtype.h"
#include "base/err.h"
#include "model/config.h"
#include "model/safetensors.h"

#include <stdint.h>

/* What the model does with a tensor of the files. */
typedef enum fl_tensor_role {
    FL_TENSOR_WEIGHT,
    FL_TENSOR_SCALE,   /* the block factors of an F8_E4M3 weight */
    FL_TENSOR_IGNORED, /* multi-token prediction layers, rotary tables, the head of tied embeddings */
} fl_tensor_role;

/* All pointers are borrowed from the checkpoint until it is closed. */
typedef struct fl_tensor {
    const char *name;
    const char *file; /* shard that holds it */
    fl_tensor_role role;
    const char *dtype_name; /* as in the file */
    fl_dtype dtype;         /* FL_N_DTYPES: an ignored tensor in a format firstlight does not know */
    int32_t ndim;
    int64_t dims[FL_SAFETENSORS_RANK_MAX]; /* outermost first; linear weights are [out, in] */
    int64_t elements;
    const void *data; /* mapped, row-major, little-endian, any alignment */
    int64_t bytes;
    const float *scale_inv;         /* [scale_rows][scale_cols], multiply; NULL unless dtype is F8_E4M3 */
    int64_t scale_rows, scale_cols; /* ceil(dims[0] / block_rows), ceil(dims[1] / block_cols) */
    int32_t block_rows, block_cols; /* weights one factor covers, cut off at the right and lower edge */
} fl_tensor;

typedef struct fl_checkpoint fl_checkpoint;

/* Opens and checks a folder with config.json and model.safetensors or model.safetensors.index.json and its
 * shards. Reads every weight once to check that it is finite. On success the caller owns *out. FL_ERR_DATA:
 * something is missing, surplus, misshapen or not finite; the message names file, tensor, expected and found.
 */
fl_err fl_checkpoint_open(const char *dir, fl_checkpoint **out);

/* The same without reading the values of linear weights and tables (norms, biases and scales are still
 * checked); for looking at a large checkpoint. */
fl_err fl_checkpoint_open_unread(const char *dir, fl_checkpoint **out);

/* Accepts NULL. */
void fl_checkpoint_close(fl_checkpoint *checkpoint);

/* Borrowed until close. */
const fl_config *fl_checkpoint_config(const fl_checkpoint *checkpoint);

/* The weight named by a printf-style format. With tied embeddings "lm_head.weight" is
 * model.embed_tokens.weight. FL_ERR_INVALID: the model has no such weight. */
fl_err fl_checkpoint_find(const fl_checkpoint *checkpoint, fl_tensor *out, const char *name_format, ...)
    FL_PRINTF(3, 4);

/* All tensors of all files, in order of their names: at(0) to at(count - 1). */
int64_t fl_checkpoint_count(const fl_checkpoint *checkpoint);
void fl_checkpoint_at(const fl_checkpoint *checkpoint, int64_t i, fl_tensor *out);

/* The weight files: names and sizes, for i in 0..shard_count-1. */
int32_t fl_checkpoint_shard_count(const fl_checkpoint *checkpoint);
const char *fl_checkpoint_shard_name(const fl_checkpoint *checkpoint, int32_t i);

#endif
