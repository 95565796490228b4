/* moe_permute, CUDA: a counting sort that is stable and has one result, then the gather.
 *
 * Pairs are cut into chunks of CHUNK, one block each; a warp has CHUNK / WARPS of them, in order, 32 at a time. Inside
 * a chunk a pair's rank among those of its expert is: those of earlier warps, those of its warp's earlier steps, those
 * of lower lanes in its step. Calls of one chunk (decoding) sort in one launch. Others count first, and if there are
 * few counts every placing block adds them up by itself, which takes less time than two more launches:
 *   count_kernel   the pairs of each expert in each chunk          workspace counts[expert][chunk]
 *   scan_kernel    many: in place: those of the expert in earlier chunks; totals[expert]
 *   groups_kernel  many: first place of each expert                group_rows
 *   place_kernel   group_rows[expert] + those of the expert in earlier chunks + rank
 * The gather reads each row once and writes it top_k times; it is what the time goes to, and memory bounds it. Scales
 * are single floats that go to as many places: written row by row, each would be a memory access of its own. Blocks
 * among those of the rows take them in an order of place_kernel's, in which what is written lies side by side. */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/rows.cuh"

enum { THREADS = 512, WARPS = THREADS / 32, CHUNK = 2048, STEPS = CHUNK / THREADS, COUNTS_FEW = 1 << 14 };

typedef struct params {
    const int32_t *ids;
    int32_t n_pairs, n_experts, n_chunks;
    bool few;        /* counts: place_kernel adds them up */
    int32_t *counts; /* [n_experts][n_chunks]; NULL: one chunk */
    int32_t *totals; /* [n_experts] */
    int32_t *group_rows, *place;
    int32_t *order; /* NULL, or [n_pairs]: each chunk's pairs by place */
    int32_t *fault;
} params;

/* ---- sorting ---- */

/* Sum of `value` over threads before this one; *total over all of the block. All threads take part. */
FL_DEVICE int32_t exclusive_scan(int32_t value, int32_t *total) {
    __shared__ int32_t of_warp[WARPS];
    int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = value, before = 0, all = 0;
#pragma unroll
    for (int32_t step = 1; step < 32; step *= 2) {
        int32_t other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads(); /* those who still read the last call's sums */
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) {
        if (i < warp) before += of_warp[i];
        all += of_warp[i];
    }
    *total = all;
    return before + sum - value;
}

/* values[0..n-1], n <= FL_MOE_EXPERTS_MAX, becomes the sums before each; values[n] the sum of all. */
FL_DEVICE void scan_experts(int32_t *values, int32_t n) {
    enum { EACH = (int)FL_MOE_EXPERTS_MAX / THREADS };
    int32_t first = threadIdx.x * EACH, own[EACH], sum = 0, total;
#pragma unroll
    for (int32_t i = 0; i < EACH; i++) {
        own[i] = first + i < n ? values[first + i] : 0;
        sum += own[i];
    }
    int32_t before = exclusive_scan(sum, &total);
#pragma unroll
    for (int32_t i = 0; i < EACH; i++) {
        if (first + i < n) values[first + i] = before;
        before += own[i];
    }
    if (threadIdx.x == 0) values[n] = total;
    __syncthreads();
}

/* Index of this thread's pair in a step; the warp's 32 are consecutive. */
FL_DEVICE int64_t pair_of(int32_t step) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return (int64_t)blockIdx.x * CHUNK + (warp * STEPS + step) * 32 + lane;
}

FL_DEVICE int32_t expert_of(const params &p, int64_t pair) {
    if (pair >= p.n_pairs) return -1;
    int32_t id = p.ids[pair];
    if (id >= 0 && id < p.n_experts) return id;
    atomicCAS(p.fault, FL_CUDA_FAULT_NONE, FL_CUDA_FAULT_EXPERT_ID);
    return p.n_experts - 1;
}

/* Ranks of the block's pairs in their warps, and in `counts` [WARPS][n_experts], zero before, each warp's pairs. */
FL_DEVICE void rank_in_warps(const params &p, int32_t *counts, int32_t experts[STEPS], int32_t ranks[STEPS]) {
    int32_t lane = threadIdx.x % 32, *own = counts + threadIdx.x / 32 * p.n_experts;
    uint32_t alike[STEPS];
#pragma unroll
    for (int32_t step = 0; step < STEPS; step++) experts[step] = expert_of(p, pair_of(step));
#pragma unroll
    for (int32_t step = 0; step < STEPS; step++) alike[step] = __match_any_sync(~0u, experts[step]);
#pragma unroll
    for (int32_t step = 0; step < STEPS; step++) {
        int32_t expert = experts[step], before = 0;
        uint32_t lower = alike[step] & ((1u << lane) - 1);
        if (expert >= 0) before = own[expert];
        __syncwarp();
        if (expert >= 0 && lower == 0) own[expert] = before + __popc(alike[step]);
        __syncwarp();
        ranks[step] = before + __popc(lower);
    }
}

/* counts[warp][expert] becomes the pairs of earlier warps; all[expert] those of the block. */
FL_DEVICE void add_warps(const params &p, int32_t *counts, int32_t *all) {
    for (int32_t e = threadIdx.x; e < p.n_experts; e += THREADS) {
        int32_t sum = 0;
#pragma unroll
        for (int32_t w = 0; w < WARPS; w++) {
            int32_t count = counts[w * p.n_experts + e];
            counts[w * p.n_experts + e] = sum;
            sum += count;
        }
        all[e] = sum;
    }
    __syncthreads();
}

FL_DEVICE void clear(int32_t *values, int32_t n) {
    for (int32_t i = threadIdx.x; i < n; i += THREADS) values[i] = 0;
    __syncthreads();
}

/* Shared: [n_experts]. Integer sums: any order gives the same. */
static __global__ void __launch_bounds__(THREADS) count_kernel(const params p) {
    extern __shared__ int32_t shared[];
    clear(shared, p.n_experts);
#pragma unroll
    for (int32_t step = 0; step < STEPS; step++) {
        int32_t expert = expert_of(p, pair_of(step));
        if (expert >= 0) atomicAdd(shared + expert, 1);
    }
    __syncthreads();
    for (int32_t e = threadIdx.x; e < p.n_experts; e += THREADS)
        p.counts[(int64_t)e * p.n_chunks + blockIdx.x] = shared[e];
}

/* One block an expert. */
static __global__ void __launch_bounds__(THREADS) scan_kernel(const params p) {
    int32_t *counts = p.counts + (int64_t)blockIdx.x * p.n_chunks, before = 0, total;
    for (int32_t first = 0; first < p.n_chunks; first += THREADS) {
        int32_t i = first + threadIdx.x;
        int32_t sum = exclusive_scan(i < p.n_chunks ? counts[i] : 0, &total);
        if (i < p.n_chunks) counts[i] = before + sum;
        before += total;
    }
    if (threadIdx.x == 0) p.totals[blockIdx.x] = before;
}

static __global__ void __launch_bounds__(THREADS) groups_kernel(const params p) {
    __shared__ int32_t totals[FL_MOE_EXPERTS_MAX + 1];
    for (int32_t e = threadIdx.x; e < p.n_experts; e += THREADS) totals[e] = p.totals[e];
    __syncthreads();
    scan_experts(totals, p.n_experts);
    for (int32_t e = threadIdx.x; e <= p.n_experts; e += THREADS) p.group_rows[e] = totals[e];
}

/* base[expert] becomes the first place of this chunk's pairs; `before` [n_experts]. A warp EACH experts at a time. */
FL_DEVICE void add_chunks(const params &p, int32_t *base, int32_t *before) {
    enum { EACH = 4 };
    int32_t lane = threadIdx.x % 32;
    for (int32_t first = threadIdx.x / 32 * EACH; first < p.n_experts; first += WARPS * EACH) {
        int32_t all[EACH] = {0, 0, 0, 0}, earlier[EACH] = {0, 0, 0, 0};
#pragma unroll 4
        for (int32_t i = lane; i < p.n_chunks; i += 32)
#pragma unroll
            for (int32_t k = 0; k < EACH; k++) {
                int32_t count = first + k < p.n_experts ? __ldg(p.counts + (first + k) * p.n_chunks + i) : 0;
                all[k] += count;
                earlier[k] += i < (int32_t)blockIdx.x ? count : 0;
            }
#pragma unroll
        for (int32_t k = 0; k < EACH; k++) {
            all[k] = __reduce_add_sync(~0u, all[k]);
            earlier[k] = __reduce_add_sync(~0u, earlier[k]);
            if (lane != 0 || first + k >= p.n_experts) continue;
            base[first + k] = all[k];
            before[first + k] = earlier[k];
        }
    }
    __syncthreads();
    scan_experts(base, p.n_experts);
    for (int32_t e = threadIdx.x; blockIdx.x == 0 && e <= p.n_experts; e += THREADS)
        p.group_rows[e] = base[e];
    __syncthreads();
    for (int32_t e = threadIdx.x; e < p.n_experts; e += THREADS) base[e] += before[e];
    __syncthreads();
}

/* What place_kernel keeps in shared memory. */
typedef struct sorting {
    int32_t *counts; /* [WARPS][n_experts] pairs of earlier warps of the block */
    int32_t *base;   /* [n_experts + 1] first place of the block's pairs */
    int32_t *local;  /* [n_experts + 1] the same, counted from the block's first */
    int32_t *before; /* [n_experts] pairs of earlier blocks */
} sorting;

static size_t sorting_bytes(int32_t n_experts) {
    return ((WARPS + 3) * (size_t)n_experts + 2) * sizeof(int32_t);
}

static __global__ void __launch_bounds__(THREADS) place_kernel(const params p) {
    extern __shared__ int32_t shared[];
    int32_t experts[STEPS], ranks[STEPS];
    sorting s;
    s.counts = shared;
    s.base = s.counts + WARPS * p.n_experts;
    s.local = s.base + p.n_experts + 1;
    s.before = s.local + p.n_experts + 1;
    clear(s.counts, WARPS * p.n_experts);
    rank_in_warps(p, s.counts, experts, ranks);
    __syncthreads();
    add_warps(p, s.counts, s.base);
    if (p.order) {
        for (int32_t e = threadIdx.x; e < p.n_experts; e += THREADS) s.local[e] = s.base[e];
        __syncthreads();
        scan_experts(s.local, p.n_experts);
    }
    if (p.few) {
        add_chunks(p, s.base, s.before);
    } else if (p.counts) {
        for (int32_t e = threadIdx.x; e < p.n_experts; e += THREADS)
            s.base[e] = p.group_rows[e] + p.counts[(int64_t)e * p.n_chunks + blockIdx.x];
        __syncthreads();
    } else {
        scan_experts(s.base, p.n_experts);
        for (int32_t e = threadIdx.x; e <= p.n_experts; e += THREADS) p.group_rows[e] = s.base[e];
    }
    int32_t *own = s.counts + threadIdx.x / 32 * p.n_experts;
    int64_t first = (int64_t)blockIdx.x * CHUNK;
#pragma unroll
    for (int32_t step = 0; step < STEPS; step++) {
        int32_t expert = experts[step], pair = (int32_t)pair_of(step);
        if (expert < 0) continue;
        int32_t rank = own[expert] + ranks[step];
        p.place[pair] = s.base[expert] + rank;
        if (p.order) p.order[first + s.local[expert] + rank] = pair;
    }
}

/* ---- gathering ---- */

enum { UNIT_BYTES = 16, UNITS_EACH = 1, ROWS_EACH = 4, SCALES_EACH = 4 };

typedef struct gather {
    const uint8_t *x;
    const int32_t *place;
    uint8_t *y;
    int64_t x_stride; /* bytes */
    int32_t rows, top_k, row_bytes;
    const float *x_scale; /* of codes, else NULL */
    float *y_scale;
    int64_t x_scale_stride, y_scale_stride;
    const int32_t *order;       /* of codes: each chunk's pairs by place */
    int32_t scale_blocks, step; /* of scales: so many blocks among those of rows, so many apart */
} gather;

/* Scales of SCALES_EACH groups of a chunk's pairs, by one block: by place, so that those of an expert are written side
 * by side, and what is read lies in few lines. */
FL_DEVICE void gather_scales(const gather &g, int64_t task) {
    int32_t groups = g.row_bytes / FL_SCALE_BLOCK, slices = (groups + SCALES_EACH - 1) / SCALES_EACH;
    int32_t group = (int32_t)(task % slices) * SCALES_EACH, here = min(SCALES_EACH, groups - group);
    int64_t first = task / slices * CHUNK, n_pairs = (int64_t)g.rows * g.top_k;
    int32_t n = (int32_t)min(n_pairs - first, (int64_t)CHUNK), threads = (int32_t)(blockDim.x * blockDim.y);
    const float *from = g.x_scale + group * g.x_scale_stride;
    float *to = g.y_scale + group * g.y_scale_stride;
#pragma unroll 4
    for (int32_t i = (int32_t)(threadIdx.y * blockDim.x + threadIdx.x); i < n; i += threads) {
        int32_t pair = __ldg(g.order + first + i), row = pair / g.top_k, place = __ldg(g.place + pair);
        float scales[SCALES_EACH];
#pragma unroll
        for (int32_t k = 0; k < SCALES_EACH; k++)
            if (k < here) scales[k] = __ldg(from + k * g.x_scale_stride + row);
#pragma unroll
        for (int32_t k = 0; k < SCALES_EACH; k++)
            if (k < here) to[k * g.y_scale_stride + place] = scales[k];
    }
}

/* Units of 16 bytes of the rows of one block of them. */
FL_DEVICE void gather_rows(const gather &g, int64_t block) {
    int32_t first = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x) * UNIT_BYTES;
    uint4 runs[ROWS_EACH];
    if (first >= g.row_bytes) return;
#pragma unroll
    for (int32_t k = 0; k < ROWS_EACH; k++) {
        int64_t row = (block * ROWS_EACH + k) * blockDim.y + threadIdx.y;
        if (row < g.rows) runs[k] = __ldg((const uint4 *)(g.x + row * g.x_stride + first));
    }
#pragma unroll
    for (int32_t k = 0; k < ROWS_EACH; k++) {
        int64_t row = (block * ROWS_EACH + k) * blockDim.y + threadIdx.y;
        if (row >= g.rows) return;
        const int32_t *place = g.place + row * g.top_k;
#pragma unroll 4
        for (int32_t slot = 0; slot < g.top_k; slot++)
            *(uint4 *)(g.y + (int64_t)__ldg(place + slot) * g.row_bytes + first) = runs[k];
    }
}

/* Grid: (blocks of rows and, every `step`-th of the first ones, of scales; parts of a row). */
static __global__ void __launch_bounds__(FL_ROWS_THREADS)
    gather_wide_kernel(const __grid_constant__ gather g) {
    int32_t turn = (int32_t)blockIdx.x / g.step;
    bool scales = turn < g.scale_blocks && (int32_t)blockIdx.x % g.step == g.step - 1;
    if (scales) gather_scales(g, (int64_t)turn * gridDim.y + blockIdx.y);
    else gather_rows(g, (int64_t)blockIdx.x - min(turn, g.scale_blocks));
}

/* Units of 2 bytes. */
static __global__ void __launch_bounds__(FL_ROWS_THREADS) gather_narrow_kernel(const gather g) {
    int64_t row = fl_rows_row();
    int32_t first = fl_rows_unit(0, UNITS_EACH) * (int32_t)sizeof(uint16_t);
    if (row >= g.rows || first >= g.row_bytes) return;
    uint16_t x = *(const uint16_t *)(g.x + row * g.x_stride + first);
    for (int32_t s = 0; s < g.top_k; s++)
        *(uint16_t *)(g.y + (int64_t)g.place[row * g.top_k + s] * g.row_bytes + first) = x;
}

/* ---- launching ---- */

static fl_err sort_pairs(fl_cuda *cuda, const fl_moe_permute_args *a, const int32_t **order) {
    params p = {};
    p.ids = a->ids;
    p.n_pairs = a->rows * a->top_k;
    p.n_experts = a->n_experts;
    p.n_chunks = (int32_t)fl_tasks_of(p.n_pairs, CHUNK);
    p.group_rows = a->group_rows;
    p.place = a->place;
    p.fault = cuda->fault;
    size_t expert_bytes = (size_t)a->n_experts * sizeof(int32_t);
    int64_t order_bytes = order ? (int64_t)p.n_pairs * (int64_t)sizeof(int32_t) : 0;
    int64_t bytes = ((int64_t)p.n_chunks + 1) * (int64_t)expert_bytes + order_bytes;
    if (bytes > cuda->workspace_bytes)
        return FL_FAIL(
            FL_ERR_UNSUPPORTED,
            "moe_permute: rows x top_k is %d: sorting them by %d experts takes %lld bytes, there are "
            "%lld",
            p.n_pairs, a->n_experts, (long long)bytes, (long long)cuda->workspace_bytes);
    p.totals = (int32_t *)cuda->workspace;
    if (order) *order = p.order = p.totals + ((int64_t)p.n_chunks + 1) * a->n_experts;
    if (p.n_chunks > 1) {
        p.counts = p.totals + a->n_experts;
        count_kernel<<<(uint32_t)p.n_chunks, THREADS, expert_bytes, cuda->stream>>>(p);
        p.few = (int64_t)p.n_chunks * p.n_experts <= COUNTS_FEW;
        if (!p.few) {
            scan_kernel<<<(uint32_t)a->n_experts, THREADS, 0, cuda->stream>>>(p);
            groups_kernel<<<1, THREADS, 0, cuda->stream>>>(p);
        }
    }
    FL_CUDA_TRY(cudaFuncSetAttribute(place_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)sorting_bytes(FL_MOE_EXPERTS_MAX)));
    place_kernel<<<(uint32_t)p.n_chunks, THREADS, sorting_bytes(a->n_experts), cuda->stream>>>(p);
    return FL_CUDA_LAUNCHED("moe_permute, sorting");
}

static gather gather_of(const fl_moe_permute_args *a) {
    int64_t element = a->x_codes.codes ? 1 : (int64_t)sizeof(uint16_t);
    gather g = {};
    g.x = a->x_codes.codes ? a->x_codes.codes : (const uint8_t *)a->x;
    g.place = a->place;
    g.y = a->x_codes.codes ? a->y_codes.codes : (uint8_t *)a->y;
    g.x_stride = (a->x_codes.codes ? a->dim : a->x_stride) * element;
    g.rows = a->rows;
    g.top_k = a->top_k;
    g.row_bytes = (int32_t)(a->dim * element);
    if (!a->x_codes.codes) return g;
    g.x_scale = a->x_codes.scale;
    g.y_scale = a->y_codes.scale;
    g.x_scale_stride = a->x_codes.scale_stride;
    g.y_scale_stride = a->y_codes.scale_stride;
    return g;
}

/* Blocks of scales among those of rows: beside them the wait for many small accesses costs nothing. */
static void spread_scales(gather *g, fl_rows_launch *launch) {
    int64_t chunks = fl_tasks_of((int64_t)g->rows * g->top_k, CHUNK);
    int64_t tasks = g->x_scale ? chunks * fl_tasks_of(g->row_bytes / FL_SCALE_BLOCK, SCALES_EACH) : 0;
    g->step = 1;
    g->scale_blocks = (int32_t)fl_tasks_of(tasks, launch->grid.y);
    if (tasks == 0) return;
    launch->grid.x += (uint32_t)g->scale_blocks;
    g->step = (int32_t)(launch->grid.x / (uint32_t)g->scale_blocks);
}

extern "C" fl_err fl_moe_permute_cuda(fl_backend *be, const fl_moe_permute_args *a) {
    FL_TRY(fl_moe_permute_validate(a));
    if (!be->w8a8) FL_TRY(fl_codes_refuse(be, "moe_permute", &a->x_codes));
    fl_cuda *cuda = fl_cuda_of(be);
    gather g = gather_of(a);
    bool wide = fl_rows_aligned(g.x, g.x_stride, UNIT_BYTES) && fl_rows_aligned(g.y, g.row_bytes, UNIT_BYTES);
    if (g.x_scale && !wide)
        return FL_FAIL(FL_ERR_INVALID, "moe_permute: codes must be %d-byte aligned", UNIT_BYTES);
    FL_TRY(sort_pairs(cuda, a, g.x_scale ? &g.order : NULL));
    fl_rows_launch launch = wide ? fl_rows_tall_launch_of(a->rows, g.row_bytes / UNIT_BYTES, ROWS_EACH)
                                 : fl_rows_launch_of(a->rows, a->dim, UNITS_EACH);
    spread_scales(&g, &launch);
    if (wide) gather_wide_kernel<<<launch.grid, launch.block, 0, cuda->stream>>>(g);
    else gather_narrow_kernel<<<launch.grid, launch.block, 0, cuda->stream>>>(g);
    return FL_CUDA_LAUNCHED("moe_permute");
}
