/* block_score of e4m3 codes on Hopper's tensor cores: how blocks and warpgroups work is in block_score_tasks.cuh.
 *
 * A first kernel makes codes of the means, once a call: a warp for two heads of a key block, eight dimensions a lane.
 * Rows are made codes by the scorers, once a task, from where they lie: they read a tile twice, for its largest value
 * and for the codes, and the copy engine has brought the next task's to L2 by then. Shared: 178 KiB at 192 dimensions.
 * Next to a tile's exponentials with a chunk (512 cycles of the special function units) its product is short (384).
 * What is between the two in each scorer is hidden by the others: four are faster than three; a part of the
 * exponentials by polynomial, or no turns, were no faster. */
enum { SCORERS = 4 };

#include "op/block_score/block_score_tasks.cuh"
#include "op/cuda/codes.cuh"

enum {
    STAGES = 3,                  /* of means */
    STEP = 32,                   /* dimensions of a product */
    DIMS_AT_ONCE = 8,            /* 16 bytes of bf16 */
    TILE_ID = TURN_ID + SCORERS, /* of the first scorer's named barrier for its own threads */
    SLICE = SLICE_BYTES,
    LANES_OF_ROW = 8,                   /* of rows that become codes, .. */
    PART = LANES_OF_ROW * DIMS_AT_ONCE, /* .. and the dimensions that they have at once */
    ROWS_AT_ONCE = GROUP_THREADS / LANES_OF_ROW,
    ROWS_OF_THREAD = TILE_ROWS / ROWS_AT_ONCE,
    ROWS_BOX = SLICE_BYTES / 2, /* dimensions of rows that are fetched to L2 at once */
    MEANS_WARPS = 8,
    MEANS_AT_ONCE = 2 /* pairs of key block and head that a warp has under way */
};

/* Codes of the means, and the scale of each. */
typedef struct mean_codes {
    uint8_t *codes;      /* [n_heads][n_blocks][dim] */
    float *scale;        /* [n_heads][padded] */
    int32_t dim, padded; /* key blocks in whole chunks; scales behind the last are zeros */
    bool aligned;        /* means can be read 16 bytes at once */
} mean_codes;

/* Tensors as TMA takes them: q (dimension, head, row), means (dimension, key block, head). */
typedef struct tensors {
    CUtensorMap q, means;
} tensors;

template <int STEPS> struct code_shared {
    static constexpr int SLICES = (STEPS * STEP + SLICE - 1) / SLICE;
    uint8_t q[SCORERS][SLICES][TILE_ROWS * SLICE]; /* first, as the next: 1,024-byte aligned */
    uint8_t means[STAGES][SLICES][CHUNK * SLICE];
    float scale[STAGES][CHUNK];
    score_chunk chunk[STAGES];
    uint64_t full[STAGES], empty[STAGES];
    float largest[SCORERS][GROUP_WARPS];
};

/* ---- codes of the means ---------------------------------------------------------------------------------------- */

/* DIMS_AT_ONCE dimensions of a mean. */
FL_DEVICE uint4 read_mean(const params &p, bool aligned, int32_t block, int32_t head, int32_t first) {
    const uint16_t *nope = p.kv + ((int64_t)block * p.n_heads + head) * (p.nope_dim + p.v_dim);
    const uint16_t *rope = p.k_pe + (int64_t)block * p.rope_dim - p.nope_dim;
    if (aligned) return __ldg((const uint4 *)((first < p.nope_dim ? nope : rope) + first));
    uint32_t words[DIMS_AT_ONCE / 2] = {};
#pragma unroll
    for (int i = 0; i < DIMS_AT_ONCE; i++) {
        uint32_t value = (first + i < p.nope_dim ? nope : rope)[first + i];
        words[i / 2] |= value << i % 2 * 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* The larger magnitudes of two pairs. As whole numbers bf16 without a sign are in the same order. */
FL_DEVICE uint32_t larger_pair(uint32_t a, uint32_t b) {
    return __vmaxu2(a, b & 0x7fff7fffu);
}

FL_DEVICE uint32_t larger_pair(uint32_t a, const uint4 &b) {
    return larger_pair(larger_pair(larger_pair(larger_pair(a, b.x), b.y), b.z), b.w);
}

/* Over a warp, what a group counts as. */
FL_DEVICE float largest_of(uint32_t pair) {
    return fl_warp_max(fmaxf(fmaxf(fl_low_of_bf16x2(pair), fl_high_of_bf16x2(pair)), FL_CODES_LEAST));
}

FL_DEVICE uint2 codes_of(const uint4 &words, float inverse) {
    return make_uint2(fl_codes_of_bf16x4(words.x, words.y, inverse),
                      fl_codes_of_bf16x4(words.z, words.w, inverse));
}

/* Grid: key blocks in whole chunks x heads. */
static __global__ void __launch_bounds__(MEANS_WARPS * 32)
    mean_codes_kernel(const __grid_constant__ params p, const __grid_constant__ mean_codes m) {
    int32_t lane = threadIdx.x % 32, dim = lane * DIMS_AT_ONCE, block = (int32_t)blockIdx.x;
    int32_t first = (int32_t)(blockIdx.y * MEANS_WARPS + threadIdx.x / 32) * MEANS_AT_ONCE;
    bool there = block < p.n_blocks && dim < m.dim;
    uint4 words[MEANS_AT_ONCE];
    fl_grid_begin_next();
#pragma unroll
    for (int i = 0; i < MEANS_AT_ONCE; i++)
        words[i] = there && first + i < p.n_heads ? read_mean(p, m.aligned, block, first + i, dim)
                                                  : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < MEANS_AT_ONCE; i++) {
        int32_t head = first + i;
        float largest = largest_of(larger_pair(0, words[i]));
        if (head >= p.n_heads) return;
        if (there)
            *(uint2 *)(m.codes + ((int64_t)head * p.n_blocks + block) * m.dim + dim) =
                codes_of(words[i], fl_codes_inverse(largest));
        if (lane == 0)
            m.scale[(int64_t)head * m.padded + block] = block < p.n_blocks ? fl_codes_scale(largest) : 0;
    }
}

/* ---- producer -------------------------------------------------------------------------------------------------- */

/* Rows of the piece behind this one, into L2. */
FL_DEVICE void prefetch_next_rows(const tensors *maps, const params &p, pieces all) {
    piece next;
    if (!next_piece(p, &all, &next) || !fl_elect_one()) return;
    for (int32_t tile = 0; tile < SCORERS; tile++)
        for (int32_t dim = 0; dim < p.nope_dim + p.rope_dim; dim += ROWS_BOX)
            fl_tma_prefetch_3d(&maps->q, dim, next.head, (next.group * SCORERS + tile) * TILE_ROWS);
}

/* Codes of means beyond the last read as zeros. */
template <class SHARED>
FL_DEVICE void load_means(SHARED *s, const tensors *maps, const mean_codes &m, int32_t stage,
                          const piece &now, int32_t chunk) {
    fl_barrier_expect(&s->full[stage], sizeof s->means[0] + sizeof s->scale[0]);
#pragma unroll
    for (int i = 0; i < SHARED::SLICES; i++)
        fl_tma_load_3d(s->means[stage][i], &maps->means, &s->full[stage], i * SLICE, chunk * CHUNK, now.head);
    fl_bulk_load(s->scale[stage], m.scale + (int64_t)now.head * m.padded + chunk * CHUNK, sizeof s->scale[0],
                 &s->full[stage]);
}

/* By one warp. */
template <class SHARED>
FL_DEVICE void produce(SHARED *s, const tensors *maps, const mean_codes &m, const params &p) {
    pieces all = first_pieces(p);
    fl_ring_place<STAGES> at;
    fl_grid_wait();
    for (piece now; next_piece(p, &all, &now);) {
        const score_chunk start = describe_piece(p, now);
        for (int32_t i = now.first; i < now.end; i++) {
            fl_barrier_wait(&s->empty[at.stage], at.parity ^ 1);
            if (fl_elect_one()) {
                describe_chunk(start, now, i, &s->chunk[at.stage]);
                load_means(s, maps, m, at.stage, now, i);
            }
            __syncwarp();
            at.advance();
            if (i == now.first) prefetch_next_rows(maps, p, all);
            __syncwarp();
        }
    }
    end_chunks(s, at);
}

/* ---- scorers --------------------------------------------------------------------------------------------------- */

/* A part of a thread's rows: the same dimensions of every sixteenth. */
FL_DEVICE void read_rows(const uint16_t *q, int64_t step, bool there, uint4 (&words)[ROWS_OF_THREAD]) {
#pragma unroll
    for (int i = 0; i < ROWS_OF_THREAD; i++, q += step)
        words[i] = there ? __ldg((const uint4 *)q) : make_uint4(0, 0, 0, 0);
}

/* Codes of the scorer's tile into its place, in the order that wgmma reads; their scale. Of a tile behind the last:
 * those of the last. By the whole warpgroup, whose products with the codes before are done. */
template <int STEPS>
FL_DEVICE float make_row_codes(code_shared<STEPS> *s, const params &p, const score_chunk *chunk,
                               int32_t group) {
    constexpr int PARTS = STEPS * STEP / PART;
    int32_t thread = threadIdx.x % GROUP_THREADS, row = thread / LANES_OF_ROW,
            first = thread % LANES_OF_ROW * DIMS_AT_ONCE, dim = p.nope_dim + p.rope_dim;
    int32_t tile = min(chunk->tile + group, p.tiles - 1);
    const uint16_t *q = p.q + (((int64_t)tile * TILE_ROWS + row) * p.n_heads + chunk->head) * dim + first;
    int64_t step = (int64_t)ROWS_AT_ONCE * p.n_heads * dim;
    uint4 words[ROWS_OF_THREAD];
    uint32_t pair = 0;
#pragma unroll 1
    for (int j = PARTS - 1; j >= 0; j--) {
        read_rows(q + j * PART, step, first + j * PART < dim, words);
#pragma unroll
        for (int i = 0; i < ROWS_OF_THREAD; i++) pair = larger_pair(pair, words[i]);
    }
    float largest = largest_of(pair);
    if (thread % 32 == 0) s->largest[group][thread / 32] = largest;
    fl_named_barrier_wait(TILE_ID + group, GROUP_THREADS);
#pragma unroll
    for (int i = 0; i < GROUP_WARPS; i++) largest = fmaxf(largest, s->largest[group][i]);
    float inverse = fl_codes_inverse(largest);
#pragma unroll 1
    for (int j = 0; j < PARTS; j++) {
        int32_t at = j * PART + first; /* the dimension, a byte each */
        if (j > 0) read_rows(q + j * PART, step, at < dim, words);
#pragma unroll
        for (int i = 0; i < ROWS_OF_THREAD; i++)
            *(uint2 *)&s->q[group][j * PART / SLICE]
                           [(i * ROWS_AT_ONCE + row) * SLICE + (at % SLICE ^ row % 8 * 16)] =
                codes_of(words[i], inverse);
    }
    fl_async_proxy_fence();
    fl_named_barrier_wait(TILE_ID + group, GROUP_THREADS);
    return fl_codes_scale(largest);
}

/* Sums over rows of 2^x. */
FL_DEVICE float sum_weights(const float (&x)[64]) {
    float part[4] = {};
#pragma unroll
    for (int j = 0; j < 64; j++) part[j % 4] += fl_exp2(x[j]);
    return sum_of_parts(part);
}

/* Of products d, which times factor are exponents, and which are used up. Of four lanes the first and third have the
 * score of key block i = 0, the others that of i = 1. Exponents stand from the tile's first row, so that nobody has to
 * look for the largest; where others are so far above it that their sum is infinite, from the largest all the same. */
FL_DEVICE float score_of(float (&d)[64], const float (&factor)[2]) {
    bool i = threadIdx.x & 1;
    float origin[2], top[2];
#pragma unroll
    for (int j = 0; j < 2; j++) origin[j] = __shfl_sync(~0u, d[2 * j], threadIdx.x & 28) * factor[j];
#pragma unroll
    for (int j = 0; j < 64; j++) d[j] = __fmaf_rn(d[j], factor[j / 2 % 2], -origin[j / 2 % 2]);
    float sum = sum_weights(d), score = (i ? origin[1] : origin[0]) + __log2f(sum);
    bool finite = sum < INFINITY;
    if (__all_sync(~0u, finite)) return score;
    find_tops(d, top);
#pragma unroll
    for (int j = 0; j < 64; j++) d[j] -= top[j / 2 % 2];
    sum = sum_weights(d);
    return finite ? score : (i ? origin[1] + top[1] : origin[0] + top[0]) + __log2f(sum);
}

/* D = means q^T of a tile, under way. */
template <int STEPS> FL_DEVICE void issue(float (&d)[64], uint64_t means, uint64_t q) {
    constexpr int SLICE_STEPS = SLICE / STEP, MEANS_SLICE = CHUNK * SLICE / 16,
                  Q_SLICE = TILE_ROWS * SLICE / 16;
    fl_wgmma_begin();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint64_t within = k % SLICE_STEPS * 2;
        fl_wgmma_e4m3(d, means + k / SLICE_STEPS * MEANS_SLICE + within,
                      q + k / SLICE_STEPS * Q_SLICE + within, k > 0);
    }
    fl_wgmma_commit();
}

template <int STEPS> FL_DEVICE void score(code_shared<STEPS> *s, const params &p) {
    int32_t group = __shfl_sync(~0u, (int32_t)threadIdx.x / GROUP_THREADS, 0) - 1;
    int32_t row = threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4; /* of D; the other: 8 on */
    float q_scale = 0, d[64];
    if (group == SCORERS - 1) pass_turn(group);
    for (fl_ring_place<STAGES> at;; at.advance()) {
        int32_t stage = __shfl_sync(~0u, at.stage, 0); /* descriptors lie in uniform registers */
        fl_barrier_wait(&s->full[stage], at.parity);
        int32_t flags = s->chunk[stage].flags;
        if (flags & CHUNK_NONE) break;
        if (flags & CHUNK_FIRST) {
            q_scale = make_row_codes(s, p, &s->chunk[stage], group);
#pragma unroll
            for (int i = 0; i < 64; i++) d[i] = 0; /* their registers were free for it */
        }
        float *to = place_of(p, &s->chunk[stage], group);
        const float factor[2] = {s->scale[stage][row] * q_scale, s->scale[stage][row + 8] * q_scale};
        wait_turn(group);
        issue<STEPS>(d, fl_wgmma_k_major(s->means[stage][0]), fl_wgmma_k_major(s->q[group][0]));
        pass_turn(group);
        fl_wgmma_wait<0>();
        fl_wgmma_pin(d);
        fl_barrier_release_together(&s->empty[stage]);
        float score = score_of(d, factor);
        if (to) *to = score;
    }
    if (group == 0) wait_turn(group); /* none is left over */
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

template <int STEPS>
static __global__ void __launch_bounds__(SCORE_THREADS, 1)
    block_score_e4m3_kernel(const __grid_constant__ params p, const __grid_constant__ mean_codes m,
                            const __grid_constant__ tensors maps) {
    extern __shared__ uint8_t memory[];
    code_shared<STEPS> *s = (code_shared<STEPS> *)(memory + (1024 - fl_shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < STAGES; i++) {
            fl_barrier_init(&s->full[i], 1);
            fl_barrier_init(&s->empty[i], SCORERS * GROUP_WARPS);
        }
        fl_barrier_init_fence();
    }
    __syncthreads();
    if (__shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0) == 0) {
        fl_registers_release<56>();
        if (threadIdx.x < 32) produce(s, &maps, m, p);
        else write_hidden(p, threadIdx.x - 32, GROUP_THREADS - 32);
    } else {
        fl_registers_claim<104>();
        score<STEPS>(s, p);
    }
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* In the call's scratch, which has four bytes where a code takes one. */
static mean_codes place_codes(const fl_block_score_args *a) {
    mean_codes m = {};
    m.dim = a->nope_dim + a->rope_dim;
    m.padded = (int32_t)fl_align_up(a->n_blocks, CHUNK);
    m.codes = (uint8_t *)a->scratch;
    m.scale = (float *)(m.codes + fl_align_up((int64_t)a->n_heads * a->n_blocks * m.dim, 64));
    m.aligned = (((uintptr_t)a->kv | (uintptr_t)a->k_pe) & 15) == 0 && a->nope_dim % DIMS_AT_ONCE == 0 &&
                a->rope_dim % DIMS_AT_ONCE == 0 && a->v_dim % DIMS_AT_ONCE == 0;
    return m;
}

static fl_err map_tensors(const fl_block_score_args *a, const mean_codes *m, tensors *out) {
    int64_t dim = m->dim;
    fl_tma_shape q = {a->q, FL_DTYPE_BF16, 3, {dim, a->n_heads, a->rows}, {1, dim, dim * a->n_heads}};
    fl_tma_shape means = {
        m->codes, FL_DTYPE_F8_E4M3, 3, {dim, a->n_blocks, a->n_heads}, {1, dim, dim * a->n_blocks}};
    q.box[0] = ROWS_BOX;
    q.box[1] = means.box[2] = 1;
    q.box[2] = TILE_ROWS;
    means.box[0] = SLICE;
    means.box[1] = CHUNK;
    q.swizzle = means.swizzle = true;
    FL_TRY(fl_tma_map(&q, &out->q));
    return fl_tma_map(&means, &out->means);
}

template <int STEPS>
static fl_err launch(fl_cuda *cuda, const params *p, const mean_codes *m, const tensors *maps) {
    auto kernel = block_score_e4m3_kernel<STEPS>;
    const int bytes = sizeof(code_shared<STEPS>) + 1024;
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((uint32_t)cuda->n_multiprocessors);
    config.blockDim = dim3(SCORE_THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = cuda->stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return fl_cuda_check(cudaLaunchKernelEx(&config, kernel, *p, *m, *maps), "block_score");
}

fl_err fl_block_score_e4m3(fl_cuda *cuda, const fl_block_score_args *a) {
    const params p = params_of(a);
    const mean_codes m = place_codes(a);
    tensors maps;
    FL_TRY(map_tensors(a, &m, &maps));
    dim3 grid((uint32_t)m.padded, (uint32_t)fl_tasks_of(a->n_heads, MEANS_WARPS * MEANS_AT_ONCE));
    mean_codes_kernel<<<grid, MEANS_WARPS * 32, 0, cuda->stream>>>(p, m);
    FL_TRY(FL_CUDA_LAUNCHED("block_score: codes of the means"));
    if (m.dim <= SLICE) return launch<SLICE / STEP>(cuda, &p, &m, &maps);
    return launch<FL_BLOCK_SCORE_CODES_MAX / STEP>(cuda, &p, &m, &maps);
}
