/* What the warps of attn_prefill_wgmma.cuh share: copy engine's maps, steps, stages and their barriers, tasks, the
 * running state in memory. */
#ifndef FL_OP_ATTN_PREFILL_SHARED_CUH
#define FL_OP_ATTN_PREFILL_SHARED_CUH

#include "op/attn_prefill/attn_prefill_cuda.cuh"
#include "op/cuda/hopper.cuh"

enum {
    GROUP_THREADS = 128,
    GROUP_ROWS = 64,
    CHUNK_COLUMNS = 64,                                  /* of a box: 128 bytes, the width of the swizzle */
    CHUNK_BYTES = FL_ATTN_TILE_KEYS * CHUNK_COLUMNS * 2, /* 128 rows or keys of it */
    HALF_CHUNK_BYTES = CHUNK_BYTES / 2                   /* of 64 rows or keys */
};

typedef struct prefill_part_maps {
    CUtensorMap kv;   /* [keys][heads][nope + v], boxes of 64 keys */
    CUtensorMap k_pe; /* [keys][rope], boxes of 64 keys */
} prefill_part_maps;

typedef struct prefill_maps {
    CUtensorMap q; /* [rows][heads][nope + rope], boxes of a task's rows */
    prefill_part_maps part[2];
} prefill_maps;

/* STEP_NONE: the task has no keys at all. STEP_LAST: none behind these. */
enum { STEP_NONE = 1, STEP_RANGES = 2, STEP_BITS = 4, STEP_LAST = 8 };

/* A tile of keys: of the planner's for the producer, of the producer's for the consumers. */
typedef struct prefill_step {
    int32_t key[2], flags;
    int32_t part_or_bias;                  /* the part of the call; for the consumers the bits of its bias */
    uint32_t bits[FL_ATTN_TILE_KEYS / 32]; /* STEP_BITS: which keys count */
} prefill_step;

/* As the planner holds it: word lane % 4 of the bits in each lane. */
typedef struct planned_step {
    int32_t key[2], flags, part;
    uint32_t word;
} planned_step;

enum { PLANS = 8 }; /* steps that the planner may be ahead */

/* LISTS: some keys of a step may count for no row, and scores may have a bias. Calls without do not carry the code. */
template <int NOPE, int ROPE, int V, bool LISTS> struct prefill_shared {
    static constexpr bool HAS_LISTS = LISTS;
    static constexpr int K_CHUNKS = (NOPE + ROPE + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS,
                         V_CHUNKS = V / CHUNK_COLUMNS,
                         STAGES = K_CHUNKS + V_CHUNKS <= 3 ? 3 : 2; /* all that fits */
    /* Narrow values: a tile's exponentials take as long as its products, so that the groups must not do the same at
     * the same time; and P V is done before the exponents are. */
    static constexpr bool TURNS = V_CHUNKS == 1;
    /* A list is one of 128 rows. Registers are what the groups share, 512 a thread of each. */
    static constexpr int GROUPS = TURNS && !LISTS ? 3 : 2, ROWS = GROUPS * GROUP_ROWS, WARPS = GROUPS * 4;
    static constexpr int THREADS = (GROUPS + 1) * GROUP_THREADS, Q_CHUNK_BYTES = GROUPS * HALF_CHUNK_BYTES;
    static constexpr int PRODUCER_REGISTERS = GROUPS == 3 ? 32
                                              : LISTS     ? 72
                                                          : 56,
                         CONSUMER_REGISTERS = GROUPS == 3 ? 160
                                              : LISTS     ? 216
                                                          : 224;
    uint8_t q[K_CHUNKS][Q_CHUNK_BYTES]; /* first, as all three: 1,024-byte aligned */
    uint8_t k[STAGES][K_CHUNKS][CHUNK_BYTES];
    uint8_t v[STAGES][V_CHUNKS][CHUNK_BYTES];
    int4 row_ranges[ROWS];     /* first, length, first, length */
    prefill_step step[STAGES]; /* of the K in the same stage, or STEP_NONE without K */
    prefill_step plan[PLANS];
    uint64_t q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    uint64_t plan_full[PLANS], plan_empty[PLANS];
    uint32_t listed[LISTS ? FL_ATTN_LIST_BLOCKS_MAX / 32 : 1];
};

/* Where a thread stands in the rings, from one task to the next. */
template <int STAGES> struct ring_places {
    fl_ring_place<STAGES> k, v;
    fl_ring_place<PLANS> plan;
    uint32_t q_parity = 0;
};

/* What all lanes hold alike, told to the compiler: descriptors lie in uniform registers. */
FL_DEVICE int32_t uniform(int32_t x) {
    return __shfl_sync(~0u, x, 0);
}

typedef struct prefill_task {
    int32_t tile, head;
} prefill_task;

/* Heads outer, so that blocks that run together share keys in L2. Rows go up and down in turns, which evens out what
 * causal rows cost a block; at the end from the dear ones down. Turns are heads; but where a block's next task is at
 * the same place of another head, which may be two heads on, they are rounds of all blocks. */
FL_DEVICE prefill_task task_of(const fl_prefill_call *c, uint32_t task) {
    uint32_t row_tiles = (uint32_t)c->row_tiles, head = task / row_tiles;
    uint32_t turn = (uint32_t)c->n_heads - 1 - head;
    if (gridDim.x % row_tiles == 0) turn = (c->n_tasks - 1) / gridDim.x - task / gridDim.x;
    int32_t i = (int32_t)(task % row_tiles);
    return {c->first_tile + (turn % 2 ? i : c->row_tiles - 1 - i), (int32_t)head};
}

/* ---- running state --------------------------------------------------------------------------------------------- */

/* State: [half tile of 64 rows][head][N / 4 + 1][128 threads] float4: each thread's part of o, then m, l. */
template <int N> FL_DEVICE float4 *state_of(const fl_prefill_call *c, int32_t half_tile, int32_t head) {
    int64_t at = ((int64_t)half_tile * c->n_heads + head) * (N / 4 + 1) * GROUP_THREADS;
    return (float4 *)c->state + at;
}

/* Into L2, so that the consumers need not wait for memory when they come to this task. */
template <int N, int GROUPS> FL_DEVICE void prefetch_state(const fl_prefill_call *c, prefill_task task) {
    for (int32_t i = GROUPS * task.tile; i < GROUPS * (task.tile + 1); i++)
        if ((int64_t)i * GROUP_ROWS < c->rows)
            fl_bulk_prefetch(state_of<N>(c, i, task.head), (N / 4 + 1) * GROUP_THREADS * 16);
}

#endif
