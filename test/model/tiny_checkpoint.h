/* Small synthetic checkpoints for tests, made in memory, changed at will, then written to a folder. Weights
 * are deterministic and scaled so that a forward pass stays in range. Head shapes are those the kernels list
 * (96/64 with a latent of 128 + 32), so engine tests can run them. The tensor list is written independently
 * of the loader's own. */
#ifndef TINY_CHECKPOINT_H
#define TINY_CHECKPOINT_H

#include "base/dtype.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tiny_kind {
    TINY_V3,      /* sigmoid, groups 4 of which 2, 8 experts of which 2, 1 shared, YaRN factor 40 */
    TINY_V2,      /* softmax, group_limited_greedy, query rank */
    TINY_V2_LITE, /* softmax, greedy, no query rank, 2 shared experts, YaRN mscale 0.707 */
    TINY_KIMI,    /* V3 routing in one group, YaRN with beta_fast = beta_slow */
    TINY_DENSE,   /* deepseek_v3 without experts */
} tiny_kind;

/* Zeroed options are a valid choice: TINY_V3, F32, one file. */
typedef struct tiny_options {
    tiny_kind kind;
    fl_dtype linear;  /* of the linear weights; F8_E4M3 adds 128 x 128 block scales */
    fl_dtype others;  /* of embeddings, head, norms: F32, BF16 or F16 */
    int32_t n_shards; /* 0 = model.safetensors; else that many shards and an index */
    int32_t n_layers; /* 0 = 3 (the first dense) */
    bool tied;        /* no lm_head */
    bool mtp;         /* one multi-token prediction layer */
    uint64_t seed;
} tiny_options;

typedef struct tiny_tensor {
    char name[128];
    const char *dtype; /* name in the file; static */
    int32_t ndim;
    int64_t dims[4];
    size_t n_bytes;
    unsigned char *bytes; /* malloc'ed */
} tiny_tensor;

typedef struct tiny_checkpoint {
    tiny_options options;
    json_t *config;       /* config.json, to be changed at will */
    tiny_tensor *tensors; /* [n_tensors] */
    int32_t n_tensors, capacity;
} tiny_checkpoint;

/* All functions below end the program with a message when the system fails them: they serve tests only. */
tiny_checkpoint *tiny_checkpoint_new(const tiny_options *options);
void tiny_checkpoint_free(tiny_checkpoint *tiny);

/* The tensor called `name`; the program ends if there is none. Valid until the next add or remove. */
tiny_tensor *tiny_checkpoint_tensor(tiny_checkpoint *tiny, const char *name);
void tiny_checkpoint_remove(tiny_checkpoint *tiny, const char *name);

/* Adds a tensor of zeros. */
tiny_tensor *tiny_checkpoint_add(tiny_checkpoint *tiny, const char *name, const char *dtype, int32_t ndim,
                                 const int64_t *dims);

/* Writes config.json, generation_config.json and the weights into an existing folder. */
void tiny_checkpoint_write(const tiny_checkpoint *tiny, const char *dir);

/* A new empty folder under TMPDIR, /dev/shm or /tmp; the caller passes it to tiny_dir_remove, which deletes it with all
 * files directly in it. */
char *tiny_dir_make(void);
void tiny_dir_remove(char *dir);

/* Whole files, for changing bytes. Reading mallocs, passes to the caller and adds a NUL. */
unsigned char *tiny_file_read(const char *dir, const char *name, size_t *n_bytes);
void tiny_file_write(const char *dir, const char *name, const void *bytes, size_t n_bytes);
void tiny_file_remove(const char *dir, const char *name);

#endif
