/* block_score of bf16 on Hopper's tensor cores: how blocks and warpgroups work is in block_score_tasks.cuh. The copy
 * engine brings rows too. Shared: 216 KiB at 192 dimensions. Bound by the tensor cores, whose clock falls with the
 * power they take: two products under way in each of two or three warpgroups, products of 256 columns, means multicast
 * to two blocks, or no turns were no faster. */
#ifndef FL_OP_BLOCK_SCORE_WGMMA_CUH
#define FL_OP_BLOCK_SCORE_WGMMA_CUH

#include "op/block_score/block_score_tasks.cuh"

enum {
    STAGES = 3,             /* of means */
    EARLY = 2,              /* chunks of a task that are loaded before its rows, which have one place each */
    SLICE = SLICE_BYTES / 2 /* dimensions */
};

/* Tensors as TMA takes them: q (dimension, head, row), kv (dimension, head, key block), k_pe (dimension, key block). */
typedef struct tensors {
    CUtensorMap q, kv, k_pe;
} tensors;

/* STEPS: products over 16 dimensions each. */
template <int STEPS> struct score_shared {
    static constexpr int SLICES = (STEPS * 16 + SLICE - 1) / SLICE;
    uint8_t q[SCORERS][SLICES][TILE_ROWS * SLICE * 2]; /* first, as the next: 1,024-byte aligned */
    uint8_t means[STAGES][SLICES][CHUNK * SLICE * 2];
    score_chunk chunk[STAGES];
    uint64_t q_full[SCORERS], q_empty[SCORERS], full[STAGES], empty[STAGES];
};

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

/* By one warp. */
template <class SHARED> FL_DEVICE void produce(SHARED *s, const tensors *maps, const params &p) {
    pieces all = first_pieces(p);
    fl_ring_place<STAGES> at;
    uint32_t q_parity = 0;
    for (piece now; next_piece(p, &all, &now); q_parity ^= 1) {
        const score_chunk start = describe_piece(p, now);
        for (int32_t i = now.first; i < now.end; i++) {
            fl_barrier_wait(&s->empty[at.stage], at.parity ^ 1);
            if (fl_elect_one()) {
                describe_chunk(start, now, i, &s->chunk[at.stage]);
                load_means(s, maps, p.nope_dim, at.stage, now, i);
            }
            __syncwarp();
            at.advance();
            if (i != min(now.first + EARLY, now.end) - 1) continue;
            load_rows(s, maps, now, q_parity);
            prefetch_next_rows<SHARED>(maps, p, all);
            __syncwarp();
        }
    }
    end_chunks(s, at);
}

/* ---- scorers --------------------------------------------------------------------------------------------------- */

/* Sums over rows of 2^(s - origin), of key block i in the lanes of four that are i behind an even one. */
FL_DEVICE float sum_weights(const float (&d)[64], const float (&origin)[2]) {
    float part[4] = {};
#pragma unroll
    for (int j = 0; j < 64; j++) part[j % 4] += fl_exp2(d[j] - origin[j / 2 % 2]);
    return sum_of_parts(part);
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
