/* The weight files of a checkpoint folder: model.safetensors alone, or the shards that
 * model.safetensors.index.json names. Opened, their headers checked, and the index checked against what the
 * shards really hold. */
#ifndef FL_MODEL_SHARD_SET_H
#define FL_MODEL_SHARD_SET_H

#include "base/file.h"
#include "model/safetensors.h"

typedef struct fl_shard {
    char *name;        /* file name inside the folder; owned */
    fl_file_map map;   /* the whole file */
    fl_safetensors st; /* points into the map */
} fl_shard;

typedef struct fl_shard_set {
    fl_shard *shards; /* [n_shards] in order of their names */
    int32_t n_shards;
    const char *list_name; /* the file that says what there is; static */
} fl_shard_set;

/* FL_ERR_DATA: no weights, both forms at once, a file name that is not plain, a missing shard, a bad header,
 * or an index and shards that do not say the same. On failure *out is empty. */
fl_err fl_shard_set_open(const char *dir, fl_shard_set *out);

/* The names alone, without opening a shard: for hashing. The caller closes *out as usual. */
fl_err fl_shard_set_list(const char *dir, fl_shard_set *out);

/* Accepts a zeroed set; zeroes it. */
void fl_shard_set_close(fl_shard_set *set);

#endif
