/* block_score on Hopper's tensor cores.
 *
 * Grid: one block a multiprocessor. A task is two neighbouring tiles of rows and a head; a chunk of it is 64 key
 * blocks: D[64 key blocks][128 rows] = means q^T by wgmma for each tile, so that means cross from L2 half as often as
 * for one tile at a time. Key blocks are the rows of the product, so that the sum over a tile's rows runs along a
 * thread's own accumulators and across four lanes. Tasks go round the blocks; those of the last round, too few for
 * all, are cut into runs of chunks, for a score depends on its tile and key block alone.
 * Block: 384 threads. Warpgroup 0 gives its registers away; its first warp has the copy engine bring rows and means,
 * the others write what lies behind the last visible key block. Warpgroups 1 and 2 take every second chunk each: the
 * exponentials of one tile run beside the product of the other. Shared: 216 KiB at 192 dimensions. Bound by the tensor
 * cores. */
#ifndef FL_OP_BLOCK_SCORE_WGMMA_CUH
#define FL_OP_BLOCK_SCORE_WGMMA_CUH

#include <math.h>

#include "op/cuda/device.cuh"
#include "op/cuda/hopper.cuh"

enum {
    SCORE_THREADS = 384,
    GROUP_THREADS = 128,
    SCORERS = 2, /* warpgroups */
    SCORER_WARPS = SCORERS * 4,
    STAGES = 5,
    CHUNK = 64, /* key blocks */
    TILE_ROWS = FL_ATTN_LIST_ROWS,
    TASK_ROWS = 2 * TILE_ROWS,
    SLICE = 64, /* dimensions: 128 bytes, the width of the swizzle */
    EARLY = 3   /* chunks of a task that are loaded before its rows, for which there is one place only */
};

/* Tensors as TMA takes them: q (dimension, head, row), kv (dimension, head, key block), k_pe (dimension, key block). */
typedef struct tensors {
    CUtensorMap q, kv, k_pe;
} tensors;

/* STEPS: products over 16 dimensions each. */
template <int STEPS> struct score_shared {
    static constexpr int SLICES = (STEPS * 16 + SLICE - 1) / SLICE;
    uint8_t q[SLICES][TASK_ROWS * SLICE * 2]; /* first, as the next: 1,024-byte aligned */
    uint8_t means[STAGES][SLICES][CHUNK * SLICE * 2];
    uint64_t q_full, q_empty, full[STAGES], empty[STAGES];
};

/* ---- what a block does ----------------------------------------------------------------------------------------- */

/* Chunks first .. end - 1 of the tiles 2 pair and 2 pair + 1. */
typedef struct piece {
    int32_t pair, head, first, end;
} piece;

/* Where a block stands among its pieces: the next whole task, the next chunk of the last round. */
typedef struct pieces {
    int32_t task, whole_end, most, chunk, chunk_end;
} pieces;

FL_DEVICE int32_t chunks_of(const params &p, int32_t pair) {
    return (visible_of(p, min(2 * pair + 1, p.tiles - 1)) + CHUNK - 1) / CHUNK;
}

FL_DEVICE pieces first_pieces(const params &p) {
    int32_t n_tasks = p.pairs * p.n_heads, grid = (int32_t)gridDim.x, block = (int32_t)blockIdx.x;
    pieces all;
    all.task = block;
    all.whole_end = n_tasks / grid * grid;
    all.most = chunks_of(p, p.pairs - 1);
    int32_t chunks = (n_tasks - all.whole_end) * all.most;
    all.chunk = (int32_t)((int64_t)chunks * block / grid);
    all.chunk_end = (int32_t)((int64_t)chunks * (block + 1) / grid);
    return all;
}

/* Heads outer, so that blocks that run together share means in L2; long tiles first. */
FL_DEVICE bool next_piece(const params &p, pieces *all, piece *out) {
    for (;;) {
        int32_t task = all->task, end = INT32_MAX;
        out->first = 0;
        if (task < all->whole_end) {
            all->task += (int32_t)gridDim.x;
        } else if (all->chunk < all->chunk_end) {
            task = all->whole_end + all->chunk / all->most;
            out->first = all->chunk % all->most;
            end = min(all->most, out->first + all->chunk_end - all->chunk);
            all->chunk += end - out->first;
        } else {
            return false;
        }
        out->head = task / p.pairs;
        out->pair = p.pairs - 1 - task % p.pairs;
        out->end = min(end, chunks_of(p, out->pair));
        if (out->first < out->end) return true;
    }
}

/* The n-th chunk of a block: its stage, and the parity of the stage's barriers then; whose it is. */
typedef struct score_place {
    int32_t stage, group;
    uint32_t parity;
} score_place;

FL_DEVICE score_place behind(score_place at, int32_t chunks) {
    int32_t stage = at.stage + chunks;
    return {stage % STAGES, (at.group + chunks) % SCORERS, (at.parity + stage / STAGES) & 1};
}

/* ---- producer -------------------------------------------------------------------------------------------------- */

template <class SHARED> FL_DEVICE void load_rows(SHARED *s, const tensors *maps, const piece &now) {
    fl_barrier_expect(&s->q_full, sizeof s->q);
#pragma unroll
    for (int i = 0; i < SHARED::SLICES; i++)
        fl_tma_load_3d(s->q[i], &maps->q, &s->q_full, i * SLICE, now.head, now.pair * TASK_ROWS);
}

/* Means beyond the last read as zeros. */
template <class SHARED>
FL_DEVICE void load_means(SHARED *s, const tensors *maps, int32_t nope_dim, int32_t stage, int32_t head,
                          int32_t first) {
    fl_barrier_expect(&s->full[stage], sizeof s->means[0]);
#pragma unroll
    for (int i = 0; i < SHARED::SLICES; i++) {
        int32_t dim = i * SLICE;
        if (dim < nope_dim) fl_tma_load_3d(s->means[stage][i], &maps->kv, &s->full[stage], dim, head, first);
        else fl_tma_load_2d(s->means[stage][i], &maps->k_pe, &s->full[stage], dim - nope_dim, first);
    }
}

/* Rows of the piece behind this one, into L2. */
template <class SHARED> FL_DEVICE void prefetch_next_rows(const tensors *maps, const params &p, pieces all) {
    piece next;
    if (!next_piece(p, &all, &next)) return;
#pragma unroll
    for (int i = 0; i < SHARED::SLICES; i++)
        fl_tma_prefetch_3d(&maps->q, i * SLICE, next.head, next.pair * TASK_ROWS);
}

/* By one warp. */
template <class SHARED> FL_DEVICE void produce(SHARED *s, const tensors *maps, const params &p) {
    pieces all = first_pieces(p);
    score_place at = {};
    uint32_t q_parity = 0;
    for (piece now; next_piece(p, &all, &now); q_parity ^= 1)
        for (int32_t i = now.first; i < now.end; i++) {
            fl_barrier_wait(&s->empty[at.stage], at.parity ^ 1);
            if (fl_elect_one()) load_means(s, maps, p.nope_dim, at.stage, now.head, i * CHUNK);
            __syncwarp();
            at = behind(at, 1);
            if (i != min(now.first + EARLY, now.end) - 1) continue;
            fl_barrier_wait(&s->q_empty, q_parity ^ 1);
            if (fl_elect_one()) {
                load_rows(s, maps, now);
                prefetch_next_rows<SHARED>(maps, p, all);
            }
            __syncwarp();
        }
}

/* Scores of blocks that do not lie before their tile. */
FL_DEVICE void write_hidden(const params &p, int32_t thread, int32_t threads) {
    for (int32_t list = (int32_t)blockIdx.x; list < p.tiles * p.n_heads; list += (int32_t)gridDim.x) {
        int32_t tile = list / p.n_heads;
        float *score = scores_of(p, tile, list % p.n_heads);
        for (int32_t j = visible_of(p, tile) + thread; j < p.n_blocks; j += threads) score[j] = -INFINITY;
    }
}

/* ---- scorers --------------------------------------------------------------------------------------------------- */

/* D = means q^T of a tile, under way. */
template <int STEPS> FL_DEVICE void issue(float (&d)[64], uint64_t means, uint64_t q) {
    constexpr int SLICE_STEPS = SLICE / 16, MEANS_SLICE = CHUNK * SLICE * 2 / 16,
                  Q_SLICE = TASK_ROWS * SLICE * 2 / 16;
    fl_wgmma_begin();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint64_t within = k % SLICE_STEPS * 2;
        fl_wgmma_bf16(d, means + k / SLICE_STEPS * MEANS_SLICE + within,
                      q + k / SLICE_STEPS * Q_SLICE + within, k > 0);
    }
    fl_wgmma_commit();
}

/* The maxima over rows of key blocks i = 0, 1: of this thread's columns, then of the four lanes that share them. */
FL_DEVICE void find_tops(const float (&d)[64], float (&top)[2]) {
    float most[4] = {d[0], d[1], d[2], d[3]};
#pragma unroll
    for (int j = 4; j < 64; j++) most[j % 4] = fmaxf(most[j % 4], d[j]);
#pragma unroll
    for (int i = 0; i < 2; i++) top[i] = fmaxf(most[2 * i], most[2 * i + 1]);
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
        for (int i = 0; i < 2; i++) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], step));
}

/* This thread's sums of 2^(s - top). */
FL_DEVICE void add_weights(const float (&d)[64], const float (&top)[2], float (&sum)[2]) {
    float part[4] = {};
#pragma unroll
    for (int j = 0; j < 64; j++) part[j % 4] += fl_exp2(d[j] - top[j / 2 % 2]);
#pragma unroll
    for (int i = 0; i < 2; i++) sum[i] = part[2 * i] + part[2 * i + 1];
}

/* Where a thread stores of a piece: key block `block` of chunk 0, by tile. */
typedef struct score_store {
    float *score[2];
    int32_t block, visible[2];
} score_store;

FL_DEVICE score_store store_of(const params &p, const piece &now) {
    int32_t lane = threadIdx.x % 32;
    score_store to;
    to.block = threadIdx.x % GROUP_THREADS / 32 * 16 + lane % 2 * 8 + lane / 4;
#pragma unroll
    for (int t = 0; t < 2; t++) {
        int32_t tile = 2 * now.pair + t;
        to.visible[t] = tile < p.tiles && lane % 4 < 2 ? visible_of(p, tile) : 0;
        to.score[t] = scores_of(p, min(tile, p.tiles - 1), now.head) + to.block;
    }
    return to;
}

/* Of four lanes the first stores what belongs to key block i = 0, the second that of i = 1. */
FL_DEVICE void store_scores(const float (&d)[64], int32_t chunk, const score_store &to, int t) {
    bool i = threadIdx.x & 1;
    float top[2], sum[2];
    find_tops(d, top);
    add_weights(d, top, sum);
    float mine = (i ? sum[1] : sum[0]) + __shfl_xor_sync(~0u, i ? sum[0] : sum[1], 1);
    mine += __shfl_xor_sync(~0u, mine, 2);
    float value = (i ? top[1] : top[0]) + __log2f(mine);
    if (chunk * CHUNK + to.block < to.visible[t]) to.score[t][chunk * CHUNK] = value;
}

FL_DEVICE void release(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) fl_barrier_arrive(barrier);
}

template <int STEPS> FL_DEVICE uint64_t means_at(score_shared<STEPS> *s, const score_place &at) {
    int32_t stage = __shfl_sync(~0u, at.stage, 0); /* descriptors lie in uniform registers */
    fl_barrier_wait(&s->full[stage], at.parity);
    return fl_wgmma_k_major(s->means[stage][0]);
}

/* Chunks i, i + SCORERS, .. of a piece, the first of them at `at` in the ring. */
template <int STEPS>
FL_DEVICE void score_piece(score_shared<STEPS> *s, const params &p, const piece &now, int32_t i,
                           score_place at) {
    score_store to = store_of(p, now);
    uint64_t q0 = fl_wgmma_k_major(s->q[0]), q1 = q0 + TILE_ROWS * SLICE * 2 / 16;
    float d0[64], d1[64];
    uint64_t means = means_at(s, at);
    issue<STEPS>(d0, means, q0);
    fl_wgmma_wait<0>();
    fl_wgmma_pin(d0);
    for (;;) {
        fl_wgmma_pin(d1);
        issue<STEPS>(d1, means, q1);
        store_scores(d0, i, to, 0);
        fl_wgmma_wait<0>();
        fl_wgmma_pin(d1);
        release(&s->empty[at.stage]);
        if (i + SCORERS >= now.end) break;
        at = behind(at, SCORERS);
        means = means_at(s, at);
        fl_wgmma_pin(d0);
        issue<STEPS>(d0, means, q0);
        store_scores(d1, i, to, 1);
        fl_wgmma_wait<0>();
        fl_wgmma_pin(d0);
        i += SCORERS;
    }
    release(&s->q_empty);
    store_scores(d1, i, to, 1);
}

template <int STEPS> FL_DEVICE void score(score_shared<STEPS> *s, const params &p) {
    int32_t group = __shfl_sync(~0u, (int32_t)threadIdx.x / GROUP_THREADS, 0) - 1;
    pieces all = first_pieces(p);
    score_place at = {};
    uint32_t q_parity = 0;
    for (piece now; next_piece(p, &all, &now); q_parity ^= 1) {
        int32_t skipped = at.group != group;
        fl_barrier_wait(&s->q_full, q_parity);
        if (now.first + skipped < now.end)
            score_piece<STEPS>(s, p, now, now.first + skipped, behind(at, skipped));
        else release(&s->q_empty);
        at = behind(at, now.end - now.first);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

template <int STEPS>
static __global__ void __launch_bounds__(SCORE_THREADS, 1)
    block_score_wgmma_kernel(const __grid_constant__ params p, const __grid_constant__ tensors maps) {
    extern __shared__ uint8_t memory[];
    score_shared<STEPS> *s =
        (score_shared<STEPS> *)(memory + (1024 - fl_shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 0) {
        fl_barrier_init(&s->q_full, 1);
        fl_barrier_init(&s->q_empty, SCORER_WARPS);
        for (int32_t i = 0; i < STAGES; i++) {
            fl_barrier_init(&s->full[i], 1);
            fl_barrier_init(&s->empty[i], SCORER_WARPS / SCORERS);
        }
        fl_barrier_init_fence();
    }
    __syncthreads();
    if (__shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0) == 0) {
        fl_registers_release<40>();
        if (threadIdx.x < 32) produce(s, &maps, p);
        else write_hidden(p, threadIdx.x - 32, GROUP_THREADS - 32);
    } else {
        fl_registers_claim<232>();
        score<STEPS>(s, p);
    }
}

#endif
