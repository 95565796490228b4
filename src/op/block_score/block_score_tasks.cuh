/* What the kernels of block_score on Hopper's tensor cores share: block_score_wgmma.cuh for bf16, block_score_e4m3.cu
 * for codes.
 *
 * Grid: one block a multiprocessor. A task is SCORERS neighbouring tiles of rows and a head; a chunk of it is 64 key
 * blocks: D[64 key blocks][128 rows] = means q^T by wgmma for each tile, so that means cross from L2 less often than
 * for one tile at a time. Key blocks are the rows of the product, so that the sum over a tile's rows runs along a
 * thread's own accumulators and across four lanes. Tasks go round the blocks; those of the last round, too few for
 * all, are cut into runs of chunks, for a score depends on its tile and key block alone.
 * Block: warpgroup 0 gives registers away; its first warp has the copy engine bring operands, the others write what
 * lies behind the last visible key block. The other warpgroups, the scorers, have a tile each and take turns at the
 * tensor cores: exponentials of some run beside the products of others. Whoever includes this has said before how many
 * there are: SCORERS. */
#ifndef FL_OP_BLOCK_SCORE_TASKS_CUH
#define FL_OP_BLOCK_SCORE_TASKS_CUH

#include <math.h>

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"
#include "op/cuda/hopper.cuh"

enum {
    GROUP_THREADS = 128,
    GROUP_WARPS = GROUP_THREADS / 32,
    SCORE_THREADS = (1 + SCORERS) * GROUP_THREADS,
    CHUNK = 64, /* key blocks */
    TILE_ROWS = FL_ATTN_LIST_ROWS,
    SLICE_BYTES = 128, /* of a row's dimensions: the width of the swizzle */
    TURN_ID = 1        /* of the first scorer's named barrier */
};

typedef struct params {
    const uint16_t *q, *kv, *k_pe;
    float *score;
    int32_t tiles, groups; /* of rows; of SCORERS tiles, the last one perhaps of fewer */
    int32_t pos, n_heads, n_blocks, block_tokens;
    int32_t nope_dim, rope_dim, v_dim;
} params;

static inline params params_of(const fl_block_score_args *a) {
    params p = {(const uint16_t *)a->q, (const uint16_t *)a->kv, (const uint16_t *)a->k_pe, a->score};
    p.tiles = a->rows / FL_ATTN_LIST_ROWS;
    p.groups = (int32_t)fl_tasks_of(p.tiles, SCORERS);
    p.pos = a->pos;
    p.n_heads = a->n_heads;
    p.n_blocks = a->n_blocks;
    p.block_tokens = a->block_tokens;
    p.nope_dim = a->nope_dim;
    p.rope_dim = a->rope_dim;
    p.v_dim = a->v_dim;
    return p;
}

/* With codes, where fl_block_score_by_codes says so. */
fl_err fl_block_score_e4m3(fl_cuda *cuda, const fl_block_score_args *a);

/* Blocks that lie wholly before a tile. */
FL_DEVICE int32_t visible_of(const params &p, int32_t tile) {
    return min((p.pos + tile * FL_ATTN_LIST_ROWS) / p.block_tokens, p.n_blocks);
}

FL_DEVICE float *scores_of(const params &p, int32_t tile, int32_t head) {
    return p.score + ((int64_t)tile * p.n_heads + head) * p.n_blocks;
}

/* What scorers know of a chunk. */
typedef struct score_chunk {
    float *score;              /* of its first key block, for the task's first tile */
    int32_t visible[SCORERS];  /* key blocks from there on that each tile sees; 0 or less: none */
    int32_t flags, tile, head; /* the task's first tile */
} score_chunk;

enum { CHUNK_FIRST = 1, CHUNK_LAST = 2, CHUNK_NONE = 4 }; /* of a task's run; behind the last of all */

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

/* Chunk 0 of a piece. Once a piece: it divides, on the units that exponentials take. */
FL_DEVICE score_chunk describe_piece(const params &p, const piece &now) {
    score_chunk c;
    c.tile = now.group * SCORERS;
    c.head = now.head;
    c.score = scores_of(p, c.tile, now.head);
#pragma unroll
    for (int i = 0; i < SCORERS; i++) c.visible[i] = c.tile + i < p.tiles ? visible_of(p, c.tile + i) : 0;
    c.flags = 0;
    return c;
}

FL_DEVICE void describe_chunk(const score_chunk &piece_start, const piece &now, int32_t chunk,
                              score_chunk *out) {
    out->score = piece_start.score + chunk * CHUNK;
#pragma unroll
    for (int i = 0; i < SCORERS; i++) out->visible[i] = piece_start.visible[i] - chunk * CHUNK;
    out->tile = piece_start.tile;
    out->head = piece_start.head;
    out->flags = (chunk == now.first ? CHUNK_FIRST : 0) | (chunk == now.end - 1 ? CHUNK_LAST : 0);
}

/* Tells the scorers that nothing is behind the last chunk. By the warp that brings them. */
template <int N, class SHARED> FL_DEVICE void end_chunks(SHARED *s, const fl_ring_place<N> &at) {
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

/* What lanes of four have added up of their columns, of key block i in the lanes that are i behind an even one. */
FL_DEVICE float sum_of_parts(const float (&part)[4]) {
    float even = part[0] + part[1], odd = part[2] + part[3];
    bool i = threadIdx.x & 1;
    float mine = (i ? odd : even) + __shfl_xor_sync(~0u, i ? even : odd, 1);
    return mine + __shfl_xor_sync(~0u, mine, 2);
}

/* ---- scorers: the order of work -------------------------------------------------------------------------------- */

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

#endif
