/* How fast a machine does a model's ops: seconds a call, a FLOP and a byte of each kind of call. From a datasheet
 * (roofs) or fitted to timed calls. With the dry run they give the time of steps and prompts (plan/predict.h).
 *
 * The time of a call with f FLOPs and b bytes, as the op's cost function counts them:
 *   measured   call_s + f flop_s + b byte_s: a fit, in which a byte is what small and large calls do not share
 *   roofs      call_s + max(f flop_s, b byte_s): compute and memory overlap perfectly, so it is a floor
 * A device that a call fills by part does not take that sum: its start hides behind its work, which makes it less, or
 * few tiles leave multiprocessors idle, which makes it more. Both go by size, and so does `fill`. */
#ifndef FL_PLAN_RATES_H
#define FL_PLAN_RATES_H

#include "backend/backend.h"

/* Calls of one op that run at rates of their own: X(name, op). By what the arguments say, nothing else. */
#define FL_RATE_KINDS(X)                                                                                     \
    X(matmul_experts, matmul)     /* groups of rows, a weight each */                                        \
    X(matmul_fp8, matmul)         /* products of e4m3 codes */                                               \
    X(experts_fp8, matmul)        /* alike, groups of rows */                                                \
    X(attn_window, attn_prefill)  /* rows see part of the keys by distance */                                \
    X(attn_anchors, attn_prefill) /* compacted keys */                                                       \
    X(attn_listed, attn_prefill)  /* keys of listed blocks */                                                \
    X(attn_means, attn_prefill)   /* a pseudo-key for each block that is not listed */                       \
    X(kv_read_fp8, kv_read)       /* stored formats: bf16 and f32 have none of their own */                  \
    X(kv_read_int4, kv_read)                                                                                 \
    X(kv_write_fp8, kv_write)                                                                                \
    X(kv_write_int4, kv_write)                                                                               \
    X(block_mean_fp8, block_mean)                                                                            \
    X(block_mean_int4, block_mean)                                                                           \
    X(absorbed_fp8, attn_absorbed)                                                                           \
    X(absorbed_int4, attn_absorbed)

typedef enum fl_rate_kind {
#define X(op) FL_RATE_##op,
#include "op/oplist.inc"
#undef X
#define X(name, op) FL_RATE_##name,
    FL_RATE_KINDS(X)
#undef X
    /* What a step takes between its ops; a recording nothing. Its "FLOPs" are the step's rows. */
    FL_RATE_step,
    /* What the host takes to hand a step's ops to a device, which works on them meanwhile: no step is shorter. Its
     * "FLOPs" are the step's calls of ops. */
    FL_RATE_issue,
    /* What a prompt takes around its steps: it is queued, admitted, its pages entered into the prefix cache, its token
     * told. Its "FLOPs" are the prompt's tokens. Timed on a device, whose prompts may be so short that it shows. */
    FL_RATE_request,
    FL_N_RATES
} fl_rate_kind;

enum { FL_RATE_FILLS = 24 };

typedef struct fl_rate {
    double call_s, flop_s, byte_s; /* all >= 0 */
    double fp8_flop_s;             /* of the FLOPs that are products of e4m3 codes */
    /* Of a device: what calls took over their sum, at sums of fill_s 2^(i / 2); between two of these by the logarithm,
     * outside as at the nearest. fill_s 0 = as the sum. */
    double fill_s, fill[FL_RATE_FILLS];
    int64_t n_samples; /* calls that it was fitted to; 0 = none: a datasheet's, or borrowed */
    double error;      /* of the fit: sum |fitted - timed| / sum timed */
} fl_rate;

typedef struct fl_rates {
    fl_rate of[FL_N_RATES];
    bool measured;    /* else roofs */
    bool recorded;    /* on a device whose short steps of prompts are recordings, which nobody issues */
    char source[160]; /* whose they are: "NVIDIA H20, datasheet", "avx512, 2 threads, spark-66m" */
} fl_rates;

/* A machine on paper. */
typedef struct fl_roofs {
    double flops_per_s;     /* bf16 */
    double fp8_flops_per_s; /* 0 = as bf16 */
    double bytes_per_s;
    double call_s;      /* of launching an op; 0 = none */
    const char *source; /* copied */
} fl_roofs;

void fl_rates_of_roofs(const fl_roofs *roofs, fl_rates *out);

const char *fl_rate_name(fl_rate_kind kind);
fl_rate_kind fl_rate_kind_of(fl_op_id op, const void *args);

/* What a call costs by its own cost function. */
fl_cost fl_op_cost(fl_op_id op, const void *args);

/* The cost that calls are timed by, and so what fits and predictions count: the call's own, but attention over ranges
 * of keys counts the whole tiles that a kernel visits. At a window's edge and along the diagonal those are more than
 * the pairs that are seen, the more the narrower the window is. */
fl_cost fl_rate_cost(fl_op_id op, const void *args);

/* Seconds of one call of this cost; of measured rates also of some calls together, each as one of their mean size. */
double fl_rates_time(const fl_rates *rates, fl_rate_kind kind, const fl_cost *cost);
double fl_rates_times(const fl_rates *rates, fl_rate_kind kind, double calls, const fl_cost *cost);

/* ---- measuring ---- */

/* The calls of one kind in one step, together: block lists differ from layer to layer and from call to call, and only
 * their sum is what the costs say. */
typedef struct fl_rate_sample {
    fl_rate_kind kind;
    double calls;
    fl_cost cost;
    double time_s;
} fl_rate_sample;

typedef struct fl_rate_samples {
    fl_rate_sample *items; /* [n], owned */
    int64_t n, capacity;
    bool device;   /* they are of one: kinds have a fill */
    double mark_s; /* what the marks around a call take there; 0 = not known yet */
} fl_rate_samples;

/* FL_ERR_NOMEM; FL_ERR_LIMIT beyond 65,536. */
fl_err fl_rate_samples_add(fl_rate_samples *samples, const fl_rate_sample *sample);
void fl_rate_samples_close(fl_rate_samples *samples);

/* For each kind the rates >= 0 that miss its samples least: the sum over samples of (fitted - timed)^2 / fitted. That
 * is a relative error weighted by time: long steps decide, short ones still count, and the sum of all times is kept.
 * Kinds without samples borrow their op's, ops without samples a kind's of theirs, else the machine's matrix products
 * (FLOPs) and norms (bytes). FL_ERR_INVALID: no sample at all. */
fl_err fl_rates_fit(const fl_rate_samples *samples, fl_rates *out);

/* JSON, one object: source, and by kind seconds a call, FLOP and byte. Reading checks every number: FL_ERR_DATA names
 * what is wrong, FL_ERR_IO the file. */
fl_err fl_rates_write(const fl_rates *rates, const char *path);
fl_err fl_rates_read(const char *path, fl_rates *out);

#endif
