/* What the CUDA kernels of attn_absorbed share: a launch's parameters, which keys a row sees, how a block finds
 * its task, where partial results go. A task is a span of keys of one timeline and up to 16, 32 or 64 of its (row,
 * head) pairs, its lanes. The span of a row is one split; where it has more splits than there are multiprocessors, as
 * many units of two pages as leave each a task, up to eight splits, twice as many where there are two tasks of 64 lanes
 * side by side: a matter of the row's own position and of what chose the kernel. */
#ifndef FL_OP_ATTN_ABSORBED_CUDA_CUH
#define FL_OP_ATTN_ABSORBED_CUDA_CUH

#include <math.h>

#include "op/cuda/kv_format.cuh"
#include "op/cuda/mma.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    LANES = 16,
    LANES_MAX = 32, /* of a task of the ring kernel */
    PAGE = FL_KV_PAGE_TOKENS,
    SPLIT = FL_ATTN_ABSORBED_SPLIT_TOKENS,
    UNIT_PAGES = 2, /* what longer spans are multiples of: kernels take pages in pairs */
    UNIT = (int)UNIT_PAGES * (int)PAGE,
    SPLIT_UNITS = (int)SPLIT / (int)UNIT,
    SPAN_MAX = 32,   /* units; 64 pages */
    ROW_TASKS = 132, /* of a row that reads more splits: one for each multiprocessor */
    SEQS_MAX = 64,   /* timelines of a launch */
    QUARTERS = 4,    /* parts of the dimensions that S is summed of */
    S_STRIDE = PAGE + 8,
    S_BYTES = QUARTERS * LANES * S_STRIDE * 4,
    P_BYTES = LANES * S_STRIDE * 2,
    SCRATCH_STEP = 16 /* floats: a partial's o is padded to it, m and l follow */
};

/* Division by a number of runs of 8 dimensions, for dividends below a page's runs. */
typedef struct divisor {
    uint32_t n, magic;
} divisor;

typedef struct timeline {
    const int32_t *pages;
    const int32_t *pos_at; /* NULL, or where the first row's position is; then pos is the largest it can be */
    int32_t row, n_rows, pos;
    int32_t first_group; /* of its lane groups among the launch's */
    int32_t first_line;  /* of its (row, head) pairs among the launch's */
    int32_t span;        /* units of a task */
} timeline;

/* Of a launch. */
typedef struct params {
    fl_kv_cuda kv;
    timeline seqs[SEQS_MAX];
    int32_t n_seqs, n_groups, n_lines, n_heads;
    int32_t lanes;          /* of a task at most */
    int32_t n_spans;        /* tasks of the launch's longest timeline */
    int32_t n_slots;        /* partial results of a line */
    int32_t partial_stride; /* floats */
    int32_t key_step;
    bool spans;         /* tasks may have more than a split */
    int32_t span_times; /* those that do have so many times as much: a row has as many tasks side by side */
    fl_attn_view view;
    const uint16_t *q;
    uint16_t *out;
    float *lse, *scratch;
    int32_t key_stride;   /* elements of a key in shared memory */
    int32_t stored_bytes; /* of a quantised page, k_pe aside; 0 if plain */
    divisor latent_runs, k_pe_runs, key_runs;
} params;

/* ---- which keys a row sees ------------------------------------------------------------------------------------- */

/* As fl_absorbed_keys: two runs of positions, of which the multiples of key_step are seen. */
typedef struct sight {
    int32_t begin[2], end[2];
} sight;

FL_DEVICE sight sight_of(const fl_attn_view &view, int32_t pos) {
    int64_t end = max((int64_t)0, (int64_t)pos + 1 - view.distance_first);
    int64_t begin = view.distance_end > 0 ? max((int64_t)0, (int64_t)pos + 1 - view.distance_end) : 0;
    int64_t near_begin = 0, sinks = 0; /* near = [0, sinks) and [near_begin, pos] */
    if (view.window > 0) {
        near_begin = max((int64_t)0, (int64_t)pos + 1 - view.window);
        if (view.segment > 0) near_begin = min(near_begin, (int64_t)(pos / view.segment * view.segment));
        sinks = min((int64_t)view.sinks, near_begin);
    }
    int64_t begins[2] = {begin, max(begin, near_begin)}, ends[2] = {min(sinks, end), end};
    if (view.far) {
        begins[1] = max(begin, sinks);
        ends[0] = 0;
        ends[1] = min(end, near_begin);
    }
    sight s;
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        s.begin[i] = (int32_t)begins[i];
        s.end[i] = (int32_t)max(begins[i], ends[i]);
    }
    return s;
}

FL_DEVICE bool is_step(int32_t t, int32_t step) {
    return step == 1 || t % step == 0;
}

FL_DEVICE bool sees(const sight &s, int32_t t, int32_t step) {
    bool inside = (t >= s.begin[0] && t < s.end[0]) || (t >= s.begin[1] && t < s.end[1]);
    return inside && is_step(t, step);
}

/* Some key in [from, end). */
FL_DEVICE bool sees_any(const sight &s, int32_t from, int32_t end, int32_t step) {
    bool any = false;
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        int64_t first = max(from, s.begin[i]);
        if (step > 1) first = (first + step - 1) / step * step;
        any = any || first < min(end, s.end[i]);
    }
    return any;
}

/* Every key in [from, end), if no step leaves keys out; two runs side by side may count as no. */
FL_DEVICE bool sees_all(const sight &s, int32_t from, int32_t end) {
    return s.begin[1] <= from && s.end[1] >= end;
}

/* ---- codes ----------------------------------------------------------------------------------------------------- */

/* 8 codes of 4 bits to bf16. A code's bits in a float's mantissa make 1 + code / 16 or 1 + code / 256 without a
 * conversion: the value is one multiply-add, with scale and minimum to match. Its bias may be rounded, by less than
 * 2^-16 of a step between codes. */
FL_DEVICE uint4 decode_int4(uint32_t codes, uint32_t fit) {
    float scale = __half2float(__ushort_as_half((uint16_t)fit));
    float minimum = __half2float(__ushort_as_half((uint16_t)(fit >> 16)));
    float high_bias = minimum - 16 * scale, low_bias = minimum - 256 * scale;
    uint32_t shifted[4] = {codes << 15, codes << 7, codes >> 1, codes >> 9}, packed[4];
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        float low = __uint_as_float((shifted[i] & 0x00078000u) | 0x3f800000u);
        float high = __uint_as_float((shifted[i] & 0x00780000u) | 0x3f800000u);
        packed[i] = fl_pack_bf16(fmaf(low, 256 * scale, low_bias), fmaf(high, 16 * scale, high_bias));
    }
    return make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

/* The same of 8 e4m3 codes. */
FL_DEVICE uint4 decode_fp8(uint2 codes, float scale) {
    float x[8];
    fl_kv_decode8_fp8(codes, scale, x);
    return make_uint4(fl_pack_bf16(x[0], x[1]), fl_pack_bf16(x[2], x[3]), fl_pack_bf16(x[4], x[5]),
                      fl_pack_bf16(x[6], x[7]));
}

/* ---- tasks ----------------------------------------------------------------------------------------------------- */

/* What a block works on. */
typedef struct task {
    const int32_t *pages; /* of its first key on */
    int64_t first_line;   /* (row, head) of lane 0 in q, out and scratch */
    int32_t seq;          /* of the launch's timelines */
    int32_t first_lane;   /* among the timeline's */
    int32_t n_lanes;
    int32_t slot;  /* of its results among the line's */
    int32_t first; /* its first key */
    int32_t n_pages;
    int32_t last_pos; /* of the lanes' rows */
} task;

/* Small things that lanes share. */
typedef struct board {
    sight sights[LANES_MAX];
    float scale[LANES_MAX]; /* what the sums so far are worth after the current page's maximum */
    uint32_t seen[2];       /* bit i: some lane sees a key of page i, or 32 + i */
    uint32_t partial[2];    /* bit i: some lane does not see all of that page */
} board;

FL_DEVICE float *partial_of(const params &p, int64_t line, int32_t slot) {
    return p.scratch + (line * p.n_slots + slot) * p.partial_stride;
}

/* m and l behind o. */
FL_DEVICE float2 *state_of(const params &p, float *partial) {
    return (float2 *)(partial + p.partial_stride - SCRATCH_STEP);
}

/* Units of a task, by what a row at `pos` reads. */
static inline __host__ __device__ int32_t span_of(const params *p, int32_t pos) {
    const fl_attn_view *view = &p->view;
    int64_t reach = pos;
    if (view->window > 0 && !view->far) reach = (int64_t)view->window + view->segment;
    if (view->distance_end > 0 && view->distance_end < reach) reach = view->distance_end;
    if (reach > pos) reach = pos;
    int32_t units = (int32_t)reach / UNIT + 1, tasks = ROW_TASKS / p->span_times;
    if (units <= ROW_TASKS * SPLIT_UNITS) return SPLIT_UNITS;
    int32_t span = (units + tasks - 1) / tasks, most = SPAN_MAX * p->span_times;
    return span < most ? span : most;
}

/* The position of a lane's row. */
FL_DEVICE int32_t pos_of(const params &p, const timeline &seq, int32_t lane) {
    return (seq.pos_at ? __ldg(seq.pos_at) : seq.pos) + lane / p.n_heads;
}

/* Units of the tasks of a row at `pos`. */
FL_DEVICE int32_t span_at(const params &p, const timeline &seq, int32_t pos) {
    return seq.pos_at && p.spans ? span_of(&p, pos) : seq.span;
}

/* The block's task. False: no row of it reaches the split. */
FL_DEVICE bool find_task(const params &p, task *t) {
    int32_t group = (int32_t)(blockIdx.x % p.n_groups), i = 0;
    while (i + 1 < p.n_seqs && p.seqs[i + 1].first_group <= group) i++;
    const timeline &seq = p.seqs[i];
    t->seq = i;
    t->first_lane = (group - seq.first_group) * p.lanes;
    t->n_lanes = min(p.lanes, seq.n_rows * p.n_heads - t->first_lane);
    t->first_line = (int64_t)seq.row * p.n_heads + t->first_lane;
    t->last_pos = pos_of(p, seq, t->first_lane + t->n_lanes - 1);
    t->n_pages = span_at(p, seq, t->last_pos) * UNIT_PAGES;
    t->slot = (int32_t)(blockIdx.x / p.n_groups);
    t->first = t->slot * t->n_pages * PAGE;
    t->pages = seq.pages + t->slot * t->n_pages;
    return t->last_pos >= t->first;
}

/* What its lanes see, to the board. */
FL_DEVICE void see_pages(const params &p, const task &t, board *b) {
    enum { EACH = SPAN_MAX * UNIT_PAGES };
    int32_t lane = threadIdx.x, page = threadIdx.x % EACH, from = t.first + page * PAGE;
    if (threadIdx.x < 2) b->seen[threadIdx.x] = b->partial[threadIdx.x] = 0;
    if (lane < LANES_MAX) {
        sight s = {};
        if (lane < t.n_lanes) s = sight_of(p.view, pos_of(p, p.seqs[t.seq], t.first_lane + lane));
        b->sights[lane] = s;
    }
    __syncthreads();
    bool any = false, all = true;
    for (lane = threadIdx.x / EACH; page < t.n_pages && lane < t.n_lanes; lane += THREADS / EACH) {
        const sight s = b->sights[lane];
        any = any || sees_any(s, from, from + PAGE, p.key_step);
        all = all && sees_all(s, from, from + PAGE);
    }
    uint32_t seen = __ballot_sync(~0u, any), partial = __ballot_sync(~0u, !all);
    if (threadIdx.x % 32 == 0) {
        atomicOr(&b->seen[page / 32], seen);
        atomicOr(&b->partial[page / 32], partial);
    }
    __syncthreads();
}

FL_DEVICE uint64_t pages_of(const uint32_t (&bits)[2]) {
    return (uint64_t)bits[1] << 32 | bits[0];
}

/* Results of a task none of whose lanes sees a key. */
FL_DEVICE void store_nothing(const params &p, const task &t) {
    if (threadIdx.x < t.n_lanes)
        *state_of(p, partial_of(p, t.first_line + threadIdx.x, t.slot)) = make_float2(-INFINITY, 0);
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* Launches a kernel whose blocks may come before the kernel in front of it ends; they wait with fl_grid_wait. */
template <typename P>
static cudaError_t launch_early(void (*kernel)(P), dim3 grid, int32_t threads, int32_t shared_bytes,
                                const P *params, cudaStream_t stream) {
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3((uint32_t)threads);
    config.dynamicSmemBytes = (size_t)shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, *params);
}

#endif
