/* A backend: a constant op table, an activation format, a weight layout and memory. Chosen once at start; a
 * missing op is an error then, never a silent fallback. One thread issues ops; the backend spreads each over
 * its pool. */
#ifndef FL_BACKEND_BACKEND_H
#define FL_BACKEND_BACKEND_H

#include "base/pool.h"
#include "op/op.h"

/* How weight_pack lays W[n][k] out. Element (i, j) sits at fl_weight_index: panels of n_block output
 * features, inside them blocks of k_pair consecutive k for each feature: ((i / n_block) * k_padded / k_pair +
 * j / k_pair) * n_block * k_pair + (i % n_block) * k_pair + j % k_pair. */
typedef struct fl_weight_layout {
    fl_dtype dtype;
    int32_t n_block; /* n is padded to a multiple */
    int32_t k_pair;
    int32_t k_align; /* k is padded to a multiple */
} fl_weight_layout;

/* Random values of mean 0 for a tensor (backend/fill.h): value i depends on seed and i alone. */
typedef struct fl_fill_args {
    void *to; /* [count] F32, BF16 or F8_E4M3 */
    fl_dtype dtype;
    int64_t count;
    uint64_t seed;
    float deviation; /* standard */
} fl_fill_args;

/* Ops that a device keeps to run them again; of `record`. */
typedef struct fl_recording fl_recording;

struct fl_backend {
    const char *name;
    const fl_op_table *op;
    fl_dtype act_dtype;
    fl_weight_layout layout;
    bool kv_f32;                /* can store KV as f32 */
    bool w8a8;                  /* takes e4m3 weights as they are, multiplies and scores blocks by codes */
    bool matmul_rope;           /* its matmul can end in rope: queries are rotated while they are made */
    int32_t recording_op_bytes; /* that its driver takes for an op of a recording; 0 = it makes none */
    int32_t split_tokens;       /* keys that document rows attend in a call, at most: a multiple of 4,096 */
    bool deterministic;         /* a row's bits never depend on the rows beside it */
    bool device;    /* tensors live in memory of its own, which only its ops, upload and download touch */
    bool sealed;    /* fl_backend_seal: alloc and alloc_host refuse */
    bool watched;   /* somebody looks at each op of each step (backend/timed.h): nothing is recorded */
    bool recording; /* between record and record_end: what is issued does not run */
    struct fl_timed *timed;                                     /* NULL = ops are not timed */
    fl_trace *trace;                                            /* NULL = none; borrowed */
    fl_pool *pool;                                              /* NULL on "count" */
    void *state;                                                /* private to the backend */
    fl_err (*alloc)(fl_backend *be, int64_t bytes, void **out); /* zeroed, 64-byte aligned */
    void (*free)(fl_backend *be, void *memory, int64_t bytes);
    /* NULL on host backends. By a thread that did not open the backend, before it issues anything: which device a
     * thread talks to is its own matter. */
    fl_err (*enter)(fl_backend *be);
    /* NULL on host backends. Memory that both sides touch; copies in the order of the ops; wait returns when all that
     * was issued is done, with the first fault of it, and so does download. `from` of upload is free to change when
     * it returns; if it is of alloc_host, after the next wait. */
    fl_err (*alloc_host)(fl_backend *be, int64_t bytes, void **out);
    void (*free_host)(fl_backend *be, void *memory, int64_t bytes);
    fl_err (*upload)(fl_backend *be, void *to, const void *from, int64_t bytes);
    fl_err (*download)(fl_backend *be, void *to, const void *from, int64_t bytes);
    fl_err (*wait)(fl_backend *be);
    /* NULL on host backends. Fence 0 or 1 in the order of the ops; pass returns when the device has come past it as it
     * was set last, with no word of faults. */
    fl_err (*fence)(fl_backend *be, int32_t i);
    fl_err (*pass)(fl_backend *be, int32_t i);
    /* NULL where ops cannot be kept. What is issued after `record` does not run but is kept by record_end, which
     * follows in any case (out NULL: nothing is kept); replay runs it on what memory holds by then. */
    fl_err (*record)(fl_backend *be);
    fl_err (*record_end)(fl_backend *be, fl_recording **out);
    fl_err (*replay)(fl_backend *be, const fl_recording *recording);
    void (*recording_close)(fl_backend *be, fl_recording *recording);
    /* NULL on host backends. Marks 0..marks_max - 1 in the order of the ops; once all is done, the time from mark 0 to
     * mark i of those set since mark 0. Ranges around what is issued, for a profiler that looks on. */
    int32_t marks_max;
    fl_err (*mark)(fl_backend *be, int32_t i);
    bool (*mark_time)(fl_backend *be, int32_t i, double *time_s); /* false: not known */
    /* Alike. What is issued from here on runs after time_s at the earliest: back to back, if all is issued by then. */
    fl_err (*hold)(fl_backend *be, double time_s);
    void (*range_begin)(fl_backend *be, const char *name);
    void (*range_end)(fl_backend *be);
    int64_t (*free_bytes)(fl_backend *be);                 /* of the device; NULL on host backends */
    void (*seal)(fl_backend *be);                          /* or NULL: gives back what only loading needs */
    fl_err (*fill)(fl_backend *be, const fl_fill_args *a); /* in the order of the ops; NULL on "count" */
    void (*close)(fl_backend *be);
};

/* Opens "auto" (the first of the others that this machine has), "cuda" or "cuda-deterministic" (device 0; "cuda:1" is
 * device 1), "avx512", "avx2", "reference", "count" (counts for the formats of "auto") or "count:NAME" (for those of
 * NAME, whether or not this machine can run it) with n_threads (0 = one for each CPU this process may use).
 * FL_ERR_DEVICE: this machine lacks the device or the instructions (detail names them). FL_ERR_INVALID: unknown name.
 */
fl_err fl_backend_open(const char *name, int32_t n_threads, fl_backend **out);
void fl_backend_close(fl_backend *be);

/* All memory is taken: from here on alloc and alloc_host fail, so that no step can take any. `false` undoes it, for
 * benchmarks that bring their own. */
void fl_backend_seal(fl_backend *be, bool sealed);

/* For alloc and alloc_host: FL_ERR_INTERNAL on a sealed backend. */
fl_err fl_backend_may_alloc(const fl_backend *be, int64_t bytes);

/* Whether this machine can run a backend, and the names of all, NULL-terminated. */
bool fl_backend_available(const char *name);
const char *const *fl_backend_names(void);

/* Memory that the host reads and the device may write: ordinary memory of a host backend. */
static inline fl_err fl_backend_alloc_host(fl_backend *be, int64_t bytes, void **out) {
    return be->device ? be->alloc_host(be, bytes, out) : be->alloc(be, bytes, out);
}

static inline void fl_backend_free_host(fl_backend *be, void *memory, int64_t bytes) {
    if (be->device) be->free_host(be, memory, bytes);
    else be->free(be, memory, bytes);
}

/* What a step's host made, where ops can read it: `from` itself, or `to` [bytes], which the caller took. */
static inline fl_err fl_backend_upload(fl_backend *be, void *to, const void *from, int64_t bytes) {
    return be->upload ? be->upload(be, to, from, bytes)
                      : FL_ERR_OK; /* NULL also where nothing is run: counting */
}

static inline int64_t fl_align_up(int64_t value, int64_t step) {
    return (value + step - 1) / step * step;
}

static inline int64_t fl_backend_weight_bytes(const fl_backend *be, int32_t n, int32_t k) {
    return fl_align_up(n, be->layout.n_block) * fl_align_up(k, be->layout.k_align) *
           (int64_t)fl_dtype_bytes(be->layout.dtype);
}

static inline int64_t fl_weight_index(const fl_weight_layout *layout, int32_t k_total, int32_t i, int32_t j) {
    int64_t k_padded = fl_align_up(k_total, layout->k_align);
    int64_t panel = i / layout->n_block, group = j / layout->k_pair;
    return (panel * (k_padded / layout->k_pair) + group) * layout->n_block * layout->k_pair +
           (int64_t)(i % layout->n_block) * layout->k_pair + j % layout->k_pair;
}

/* Op tables; each in its own file. */
extern const fl_op_table fl_op_table_reference;
extern const fl_op_table fl_op_table_avx512;
extern const fl_op_table fl_op_table_avx2;
extern const fl_op_table fl_op_table_count;
extern const fl_op_table fl_op_table_cuda; /* only in builds with CUDA */

/* Counting backend: what the ops since the last reset would cost, in all and an op. */
typedef struct fl_count {
    fl_cost total;
#define X(op) fl_cost op;
#include "op/oplist.inc"
#undef X
} fl_count;

const fl_count *fl_backend_count(const fl_backend *be);
void fl_backend_count_reset(fl_backend *be);

/* false: ops only check their arguments, for those who want to know what a step's arena takes, many times a second.
 * Default true. */
void fl_backend_count_costs(fl_backend *be, bool wanted);

/* From here on on_call is told of every op that is counted; NULL = nobody is. */
void fl_backend_count_watch(fl_backend *be, fl_op_call_fn *on_call, void *context);

#endif
