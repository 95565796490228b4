/* block_score on Hopper's tensor cores.
 *
 * Grid: one block a multiprocessor. A task is three neighbouring tiles of rows and a head; a chunk of it is 64 key
 * blocks: D[64 key blocks][128 rows] = means q^T by wgmma for each tile, so that means cross from L2 a third as often
 * as for one tile at a time. Key blocks are the rows of the product, so that the sum over a tile's rows runs along a
 * thread's own accumulators and across four lanes. Tasks go round the blocks; those of the last round, too few for
 * all, are cut into runs of chunks, for a score depends on its tile and key block alone.
 * Block: 512 threads. Warpgroup 0 gives registers away; its first warp has the copy engine bring means and rows, the
 * others write what lies behind the last visible key block. The other warpgroups have a tile each and take turns at
 * the tensor cores: exponentials of two run beside the product of the third. Shared: 216 KiB at 192 dimensions. Bound
 * by the tensor cores, whose clock falls with the power they take: two products under way in each of two or three
 * warpgroups, products of 256 columns, means multicast to two blocks, or no turns were no faster. */
#ifndef FL_OP_BLOCK_SCORE_WGMMA_CUH
#define FL_OP_BLOCK_SCORE_WGMMA_CUH

#include <math.h>

#include "op/cuda/device.cuh"
#include "op/cuda/hopper.cuh"

enum {
    GROUP_THREADS = 128,
    GROUP_WARPS = GROUP_THREADS / 32,
    SCORERS = 3, /* warpgroups, and tiles of a task */
    SCORE_THREADS = (1 + SCORERS) * GROUP_THREADS,
    STAGES = 3, /* of means */
    EARLY = 2,  /* chunks of a task that are loaded before its rows, which have one place each */
    CHUNK = 64, /* key blocks */
    TILE_ROWS = FL_ATTN_LIST_ROWS,
    SLICE = 64, /* dimensions: 128 bytes, the width of the swizzle */
    TURN_ID = 1 /* of the first scorer's named barrier */
};

/* Tensors as TMA takes them: q (dimension, head, row), kv (dimension, head, key block), k_pe (dimension, key block). */
typedef struct tensors {
    CUtensorMap q, kv, k_pe;
} tensors;

/* What scorers know of a chunk. */
typedef struct score_chunk {
    float *score;             /* of its first key block, for the task's first tile */
    int32_t visible[SCORERS]; /* key blocks from there on that each tile sees; 0 or less: none */
    int32_t flags;
} score_chunk;

enum { CHUNK_FIRST = 1, CHUNK_LAST = 2, CHUNK_NONE = 4 }; /* of a task's run; behind the last of all */

/* STEPS: products over 16 dimensions each. */
template <int STEPS> struct score_shared {
    static constexpr int SLICES = (STEPS * 16 + SLICE - 1) / SLICE;
    uint8_t q[SCORERS][SLICES][TILE_ROWS * SLICE * 2]; /* first, as the next: 1,024-byte aligned */
    uint8_t means[STAGES][SLICES][CHUNK * SLICE * 2];
    score_chunk chunk[STAGES];
    uint64_t q_full[SCORERS], q_empty[SCORERS], full[STAGES], empty[STAGES];
};

/* ---- what a block does ----------------------------------------------------------------------------------------- */

/* Chunks first .. end - 1 of the tiles from SCORERS group on. */
typedef struct piece {
    int32_t group, head, first, end;
} piece;

/* Where a block stands among its pieces: the next whole task, the next chunk of the last round. */
typedef struct pieces {
    int32_t task, whole_end, most, chunk, chunk_end;
} pieces;

FL_DEVICE int32_t chunks_of(const params &p, int32_t group) {
    return (visible_of(p, min(SCORERS * group + SCORERS - 1, p.tiles - 1)) + CHUNK - 1) / CHUNK;
}

FL_DEVICE pieces first_pieces(const params &p) {
    int32_t n_tasks = p.groups * p.n_heads, grid = (int32_t)gridDim.x, block = (int32_t)blockIdx.x;
    pieces all;
    all.task = block;
    all.whole_end = n_tasks / grid * grid;
    all.most = chunks_of(p, p.groups - 1);
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
        out->head = task / p.groups;
        out->group = p.groups - 1 - task % p.groups;
        out->end = min(end, chunks_of(p, out->group));
        if (out->first < out->end) return true;
    }
}

/* ---- producer -------------------------------------------------------------------------------------------------- */

/* Each tile's, as soon as those before have been read. */
template <class SHARED>
FL_DEVICE void load_rows(SHARED *s, const tensors *maps, const piece &now, uint32_t parity) {
    for (int32_t tile = 0; tile < SCORERS; tile++) {
        fl_barrier_wait(&s->q_empty[tile], parity ^ 1);
        if (fl_elect_one()) {
            fl_barrier_expect(&s->q_full[tile], sizeof s->q[0]);
#pragma unroll
            for (int i = 0; i < SHARED::SLICES; i++)
                fl_tma_load_3d(s->q[tile][i], &maps->q, &s->q_full[tile], i * SLICE, now.head,
                               (now.group * SCORERS + tile) * TILE_ROWS);
        }
        __syncwarp();
    }
}

/* Rows of the piece behind this one, into L2. */
template <class SHARED> FL_DEVICE void prefetch_next_rows(const tensors *maps, const params &p, pieces all) {
    piece next;
    if (!next_piece(p, &all, &next) || !fl_elect_one()) return;
    for (int32_t tile = 0; tile < SCORERS; tile++)
#pragma unroll
        for (int i = 0; i < SHARED::SLICES; i++)
            fl_tma_prefetch_3d(&maps->q, i * SLICE, next.head, (next.group * SCORERS + tile) * TILE_ROWS);
}

/* Means beyond the last read as zeros. */
template <class SHARED>
FL_DEVICE void load_means(SHARED *s, const tensors *maps, int32_t nope_dim, int32_t stage, const piece &now,
                          int32_t chunk) {
    fl_barrier_expect(&s->full[stage], sizeof s->means[0]);
#pragma unroll
    for (int i = 0; i < SHARED::SLICES; i++) {
        int32_t dim = i * SLICE, first = chunk * CHUNK;
        if (dim < nope_dim)
            fl_tma_load_3d(s->means[stage][i], &maps->kv, &s->full[stage], dim, now.head, first);
        else fl_tma_load_2d(s->means[stage][i], &maps->k_pe, &s->full[stage], dim - nope_dim, first);
    }
}

FL_DEVICE void describe_chunk(const params &p, const piece &now, int32_t chunk, score_chunk *out) {
    int32_t tile = now.group * SCORERS;
    out->score = scores_of(p, tile, now.head) + chunk * CHUNK;
#pragma unroll
    for (int i = 0; i < SCORERS; i++)
        out->visible[i] = tile + i < p.tiles ? visible_of(p, tile + i) - chunk * CHUNK : 0;
    out->flags = (chunk == now.first ? CHUNK_FIRST : 0) | (chunk == now.end - 1 ? CHUNK_LAST : 0);
}

/* By one warp. */
template <class SHARED> FL_DEVICE void produce(SHARED *s, const tensors *maps, const params &p) {
    pieces all = first_pieces(p);
    fl_ring_place<STAGES> at;
    uint32_t q_parity = 0;
    for (piece now; next_piece(p, &all, &now); q_parity ^= 1)
        for (int32_t i = now.first; i < now.end; i++) {
            fl_barrier_wait(&s->empty[at.stage], at.parity ^ 1);
            if (fl_elect_one()) {
                describe_chunk(p, now, i, &s->chunk[at.stage]);
                load_means(s, maps, p.nope_dim, at.stage, now, i);
            }
            __syncwarp();
            at.advance();
            if (i != min(now.first + EARLY, now.end) - 1) continue;
            load_rows(s, maps, now, q_parity);
            prefetch_next_rows<SHARED>(maps, p, all);
            __syncwarp();
        }
    fl_barrier_wait(&s->empty[at.stage], at.parity ^ 1);
    if (fl_elect_one()) {
        s->chunk[at.stage].flags = CHUNK_NONE;
        fl_barrier_arrive(&s->full[at.stage]);
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

/* ---- scorers: a score ------------------------------------------------------------------------------------------ */

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

/* Sums over rows of 2^(s - origin), of key block i in the lanes of four that are i behind an even one. */
FL_DEVICE float sum_weights(const float (&d)[64], const float (&origin)[2]) {
    float part[4] = {};
#pragma unroll
    for (int j = 0; j < 64; j++) part[j % 4] += fl_exp2(d[j] - origin[j / 2 % 2]);
    float even = part[0] + part[1], odd = part[2] + part[3];
    bool i = threadIdx.x & 1;
    float mine = (i ? odd : even) + __shfl_xor_sync(~0u, i ? even : odd, 1);
    return mine + __shfl_xor_sync(~0u, mine, 2);
}

/* Of four lanes the first and third have the score of key block i = 0, the others that of i = 1. Exponents stand from
 * the tile's first row, so that nobody has to look for the largest; where others are so far above it that their sum is
 * infinite, from the largest all the same. */
FL_DEVICE float score_of(const float (&d)[64]) {
    bool i = threadIdx.x & 1;
    float origin[2];
#pragma unroll
    for (int j = 0; j < 2; j++) origin[j] = __shfl_sync(~0u, d[2 * j], threadIdx.x & 28);
    float sum = sum_weights(d, origin), score = (i ? origin[1] : origin[0]) + __log2f(sum);
    bool finite = sum < INFINITY;
    if (__all_sync(~0u, finite)) return score;
    find_tops(d, origin);
    sum = sum_weights(d, origin);
    return finite ? score : (i ? origin[1] : origin[0]) + __log2f(sum);
}

/* ---- scorers: the order of work -------------------------------------------------------------------------------- */

/* D = means q^T of a tile, under way. */
template <int STEPS> FL_DEVICE void issue(float (&d)[64], uint64_t means, uint64_t q) {
    constexpr int SLICE_STEPS = SLICE / 16, MEANS_SLICE = CHUNK * SLICE * 2 / 16,
                  Q_SLICE = TILE_ROWS * SLICE * 2 / 16;
    fl_wgmma_begin();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint64_t within = k % SLICE_STEPS * 2;
        fl_wgmma_bf16(d, means + k / SLICE_STEPS * MEANS_SLICE + within,
                      q + k / SLICE_STEPS * Q_SLICE + within, k > 0);
    }
    fl_wgmma_commit();
}

/* A scorer's turn comes when the one before has issued its products. */
FL_DEVICE void wait_turn(int32_t group) {
    fl_named_barrier_wait(TURN_ID + group, 2 * GROUP_THREADS);
}

FL_DEVICE void pass_turn(int32_t group) {
    fl_named_barrier_arrive(TURN_ID + (group + 1) % SCORERS, 2 * GROUP_THREADS);
}

/* Where this thread's score of a chunk goes; NULL: it has none. */
FL_DEVICE float *place_of(const params &p, const score_chunk *chunk, int32_t group) {
    int32_t lane = threadIdx.x % 32, block = threadIdx.x % GROUP_THREADS / 32 * 16 + lane % 2 * 8 + lane / 4;
    if (lane % 4 > 1 || block >= chunk->visible[group]) return NULL;
    return chunk->score + (int64_t)group * p.n_heads * p.n_blocks + block;
}

template <int STEPS> FL_DEVICE void score(score_shared<STEPS> *s, const params &p) {
    int32_t group = __shfl_sync(~0u, (int32_t)threadIdx.x / GROUP_THREADS, 0) - 1;
    uint32_t q_parity = 0;
    float d[64];
    if (group == SCORERS - 1) pass_turn(group);
    for (fl_ring_place<STAGES> at;; at.advance()) {
        int32_t stage = __shfl_sync(~0u, at.stage, 0); /* descriptors lie in uniform registers */
        fl_barrier_wait(&s->full[stage], at.parity);
        int32_t flags = s->chunk[stage].flags;
        if (flags & CHUNK_NONE) break;
        if (flags & CHUNK_FIRST) fl_barrier_wait(&s->q_full[group], q_parity);
        float *to = place_of(p, &s->chunk[stage], group);
        wait_turn(group);
        issue<STEPS>(d, fl_wgmma_k_major(s->means[stage][0]), fl_wgmma_k_major(s->q[group][0]));
        pass_turn(group);
        fl_wgmma_wait<0>();
        fl_wgmma_pin(d);
        fl_barrier_release_together(&s->empty[stage]);
        if (flags & CHUNK_LAST) {
            fl_barrier_release_together(&s->q_empty[group]);
            q_parity ^= 1;
        }
        float score = score_of(d);
        if (to) *to = score;
    }
    if (group == 0) wait_turn(group); /* none is left over */
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

template <int STEPS>
static __global__ void __launch_bounds__(SCORE_THREADS, 1)
    block_score_wgmma_kernel(const __grid_constant__ params p, const __grid_constant__ tensors maps) {
    extern __shared__ uint8_t memory[];
    score_shared<STEPS> *s =
        (score_shared<STEPS> *)(memory + (1024 - fl_shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < SCORERS; i++) {
            fl_barrier_init(&s->q_full[i], 1);
            fl_barrier_init(&s->q_empty[i], GROUP_WARPS);
        }
        for (int32_t i = 0; i < STAGES; i++) {
            fl_barrier_init(&s->full[i], 1);
            fl_barrier_init(&s->empty[i], SCORERS * GROUP_WARPS);
        }
        fl_barrier_init_fence();
    }
    __syncthreads();
    if (__shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0) == 0) {
        fl_registers_release<80>();
        if (threadIdx.x < 32) produce(s, &maps, p);
        else write_hidden(p, threadIdx.x - 32, GROUP_THREADS - 32);
    } else {
        fl_registers_claim<144>();
        score<STEPS>(s, p);
    }
}

#endif
