/* attn_prefill on Hopper's tensor cores.
 *
 * Grid: as many blocks as multiprocessors, or as few as need as many rounds; each takes every gridDim-th task; a task
 * is a tile of 128 rows and a head. Block: 384 threads. Warpgroup 0 gives most of its registers away; its second warp
 * walks over the visible keys (attn_prefill_tiles.h), its first has the copy engine bring tiles of 128 keys into the
 * stages of K and of V, those of the next task while this one's results are written. Warpgroups 1 and 2 own 64 rows
 * each. Shared: 208 KiB of tiles at 192/128. Bound by the tensor cores, if the exponentials of tile j + 1 hide behind
 * the product P V of tile j: so QK of j + 1 and PV of j are issued together, and the softmax of j + 1 runs once the
 * first of the two is done. With 64 columns of V that is too short: exponentials hide behind the other group's
 * products, and the groups take turns.
 *
 * Keys come as two boxes of 64 at any place, so that two blocks of a list make one full tile. K's nope part and V
 * lie in kv, rope parts of K in k_pe; a box is 64 columns wide, beyond a tensor's edge it is zeros, which nothing
 * reads.
 *
 * Bits: what a row gets from a tile in which it sees nothing is an exact no-op (scale 1, P 0). A row's exponents
 * start from the first maximum and move only when a tile exceeds it by 2^SLACK: all by the row's own keys. */
#ifndef FL_OP_ATTN_PREFILL_WGMMA_CUH
#define FL_OP_ATTN_PREFILL_WGMMA_CUH

#include <math_constants.h>

#include "op/attn_prefill/attn_prefill_cuda.cuh"
#include "op/cuda/codes.cuh"
#include "op/cuda/hopper.cuh"

enum {
    PREFILL_THREADS = 384,
    GROUP_THREADS = 128,
    CONSUMER_WARPS = 8,
    CHUNK_COLUMNS = 64,                                  /* of a box: 128 bytes, the width of the swizzle */
    CHUNK_BYTES = FL_ATTN_TILE_KEYS * CHUNK_COLUMNS * 2, /* 128 rows or keys of it */
    HALF_CHUNK_BYTES = CHUNK_BYTES / 2
};

/* Exponents may grow to 2^SLACK before a row's sums are scaled down: neither P in bf16 nor sums in f32 care. */
#define PREFILL_SLACK 8.0f

typedef struct prefill_part_maps {
    CUtensorMap kv;   /* [keys][heads][nope + v], boxes of 64 keys */
    CUtensorMap k_pe; /* [keys][rope], boxes of 64 keys */
} prefill_part_maps;

typedef struct prefill_maps {
    CUtensorMap q; /* [rows][heads][nope + rope], boxes of 128 rows */
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
     * the same time; and P V is done before the maxima are. */
    static constexpr bool TURNS = V_CHUNKS == 1;
    uint8_t q[K_CHUNKS][CHUNK_BYTES]; /* first, as all three: 1,024-byte aligned */
    uint8_t k[STAGES][K_CHUNKS][CHUNK_BYTES];
    uint8_t v[STAGES][V_CHUNKS][CHUNK_BYTES];
    int4 row_ranges[FL_ATTN_TILE_ROWS]; /* first, length, first, length */
    prefill_step step[STAGES];          /* of the K in the same stage, or STEP_NONE without K */
    prefill_step plan[PLANS];
    uint64_t q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    uint64_t plan_full[PLANS], plan_empty[PLANS];
    uint32_t listed[LISTS ? FL_ATTN_LIST_BLOCKS_MAX / 32 : 1];
};

/* The n-th use of a ring of stages: its stage, and the parity of the stage's barriers then. */
template <int STAGES> struct ring_place {
    int32_t stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage < STAGES) return;
        stage = 0;
        parity ^= 1;
    }
};

/* What all lanes hold alike, told to the compiler: descriptors lie in uniform registers. */
FL_DEVICE int32_t uniform(int32_t x) {
    return __shfl_sync(~0u, x, 0);
}

typedef struct prefill_task {
    int32_t tile, head;
} prefill_task;

/* Heads outer, so that blocks that run together share keys in L2. Rows go up and down in turns, which evens out what
 * causal rows cost a block; of the last head, and so at the end, from the dear ones down. */
FL_DEVICE prefill_task task_of(const fl_prefill_call *c, uint32_t task) {
    int32_t head = (int32_t)(task / (uint32_t)c->row_tiles), i = (int32_t)(task % (uint32_t)c->row_tiles);
    return {c->first_tile + ((c->n_heads - 1 - head) % 2 ? i : c->row_tiles - 1 - i), head};
}

/* One arrival of a warp that has read what the barrier guards. */
FL_DEVICE void release(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) fl_barrier_arrive(barrier);
}

/* ---- running state --------------------------------------------------------------------------------------------- */

/* State: [half tile of 64 rows][head][N / 4 + 1][128 threads] float4: each thread's part of o, then m, l. */
template <int N> FL_DEVICE float4 *state_of(const fl_prefill_call *c, int32_t half_tile, int32_t head) {
    int64_t at = ((int64_t)half_tile * c->n_heads + head) * (N / 4 + 1) * GROUP_THREADS;
    return (float4 *)c->state + at;
}

/* Into L2, so that the consumers need not wait for memory when they come to this task. */
template <int N> FL_DEVICE void prefetch_state(const fl_prefill_call *c, prefill_task task) {
    for (int32_t half_tile = 2 * task.tile; half_tile < 2 * task.tile + 2; half_tile++)
        if ((int64_t)half_tile * 64 < c->rows)
            fl_bulk_prefetch(state_of<N>(c, half_tile, task.head), (N / 4 + 1) * GROUP_THREADS * 16);
}

/* ---- planner --------------------------------------------------------------------------------------------------- */

/* Bits of the listed blocks among a part's keys, by one warp. */
static __device__ void mark_blocks(const fl_prefill_call *c, const fl_attn_keys *k, prefill_task task,
                                   uint32_t *listed) {
    int64_t at = (int64_t)task.tile * c->n_heads + task.head,
            end_pos = k->key_pos + (int64_t)k->n_keys * k->key_step;
    int32_t lane = threadIdx.x % 32, n = c->n_ids[at], first = k->key_pos / FL_KV_PAGE_TOKENS;
    int32_t end = (int32_t)fl_attn_smaller(fl_tasks_of(end_pos, FL_KV_PAGE_TOKENS), FL_ATTN_LIST_BLOCKS_MAX);
    const uint16_t *ids = c->ids + at * c->capacity;
    for (int32_t word = first / 32 + lane; word * 32 < end; word += 32) listed[word] = 0;
    __syncwarp();
    for (int32_t i = fl_attn_list_find(ids, n, first) + lane; i < n && ids[i] < end; i += 32)
        atomicOr(&listed[ids[i] / 32], 1u << (ids[i] % 32));
    __syncwarp();
}

/* The 128 keys of a step as bits, by one warp: word lane % 4 in each lane. */
FL_DEVICE uint32_t mark_keys(const fl_prefill_part *part, int32_t means_end, const uint32_t *listed,
                             int32_t key) {
    int32_t lane = threadIdx.x % 32;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t bits = __ballot_sync(
            ~0u, fl_attn_marked(&part->keys, part->means, means_end, listed, key + 32 * i + lane));
        if (lane % 4 == i) word = bits;
    }
    return word;
}

/* Where the planner stands among a task's keys. */
typedef struct prefill_plan {
    prefill_task task;
    int32_t part;
    fl_attn_walk walk;
} prefill_plan;

template <bool LISTS>
FL_DEVICE void open_part(const fl_prefill_call *c, uint32_t *listed, prefill_plan *plan) {
    const fl_prefill_part *part = &c->part[plan->part];
    if (LISTS) plan->walk = fl_prefill_walk(c, part, plan->task.tile, plan->task.head);
    else plan->walk = fl_attn_walk_all(&part->keys, plan->task.tile, false);
    if (LISTS && plan->walk.kind == FL_ATTN_WALK_MARKED) mark_blocks(c, &part->keys, plan->task, listed);
}

/* The task's next tile of keys that counts, by the whole warp. */
template <bool LISTS>
FL_DEVICE bool plan_step(const fl_prefill_call *c, uint32_t *listed, prefill_plan *plan, planned_step *out) {
    for (;;) {
        const fl_prefill_part *part = &c->part[plan->part];
        for (fl_attn_step step; fl_attn_walk_next(&plan->walk, part->keys.n_keys, &step);) {
            bool marked = LISTS && plan->walk.kind == FL_ATTN_WALK_MARKED;
            out->word = marked ? mark_keys(part, plan->walk.some.end[1], listed, step.key[0]) : ~0u;
            if (marked && !__any_sync(~0u, out->word != 0)) continue;
            out->key[0] = step.key[0];
            out->key[1] = step.key[1];
            out->part = plan->part;
            out->flags = step.masked && !part->means ? STEP_RANGES : 0;
            if (marked && !__all_sync(~0u, out->word == ~0u)) out->flags |= STEP_BITS;
            return true;
        }
        if (!LISTS || plan->part + 1 == c->n_parts) return false;
        plan->part++;
        open_part<LISTS>(c, listed, plan);
    }
}

template <class SHARED> FL_DEVICE void put_step(SHARED *s, const planned_step *step, ring_place<PLANS> *at) {
    int32_t lane = threadIdx.x % 32;
    fl_barrier_wait(&s->plan_empty[at->stage], at->parity ^ 1);
    prefill_step *out = &s->plan[at->stage];
    if (SHARED::HAS_LISTS && lane < FL_ATTN_TILE_KEYS / 32) out->bits[lane] = step->word;
    if (lane == 0) *(int4 *)out = make_int4(step->key[0], step->key[1], step->flags, step->part);
    __syncwarp(); /* no lane falls behind: a parity tells neighbouring uses apart, no more */
    if (lane == 0) fl_barrier_arrive(&s->plan_full[at->stage]);
    at->advance();
}

/* By a warp of its own: walking takes about as long as consumers need for a tile, and no copy should wait for it. */
template <class SHARED> FL_DEVICE void plan_tasks(SHARED *s, const fl_prefill_call *c) {
    constexpr bool LISTS = SHARED::HAS_LISTS;
    ring_place<PLANS> at;
    for (uint32_t i = blockIdx.x; i < c->n_tasks; i += gridDim.x) {
        prefill_plan plan = {task_of(c, i)};
        planned_step step = {}, next = {};
        open_part<LISTS>(c, s->listed, &plan);
        bool more = plan_step<LISTS>(c, s->listed, &plan, &step);
        if (!more) step.flags = STEP_NONE;
        while (more) {
            more = plan_step<LISTS>(c, s->listed, &plan, &next);
            if (!more) break;
            put_step(s, &step, &at);
            step = next;
        }
        step.flags |= STEP_LAST;
        put_step(s, &step, &at);
    }
}

/* ---- producer -------------------------------------------------------------------------------------------------- */

template <class SHARED>
FL_DEVICE void load_queries(SHARED *s, const prefill_maps *maps, int32_t row, int32_t head) {
    fl_barrier_expect(&s->q_full, sizeof s->q);
#pragma unroll
    for (int i = 0; i < SHARED::K_CHUNKS; i++)
        fl_tma_load_3d(s->q[i], &maps->q, &s->q_full, i * CHUNK_COLUMNS, head, row);
}

template <int NOPE, class SHARED>
FL_DEVICE void load_keys(SHARED *s, const prefill_part_maps *maps, int32_t stage, int32_t head, int2 key) {
    fl_barrier_expect(&s->k_full[stage], sizeof s->k[0]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int32_t from = half ? key.y : key.x;
#pragma unroll
        for (int i = 0; i < SHARED::K_CHUNKS; i++) {
            void *to = s->k[stage][i] + half * HALF_CHUNK_BYTES;
            if (i < NOPE / CHUNK_COLUMNS)
                fl_tma_load_3d(to, &maps->kv, &s->k_full[stage], i * CHUNK_COLUMNS, head, from);
            else fl_tma_load_2d(to, &maps->k_pe, &s->k_full[stage], i * CHUNK_COLUMNS - NOPE, from);
        }
    }
}

template <int NOPE, class SHARED>
FL_DEVICE void load_values(SHARED *s, const prefill_part_maps *maps, int32_t stage, int32_t head, int2 key) {
    fl_barrier_expect(&s->v_full[stage], sizeof s->v[0]);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < SHARED::V_CHUNKS; i++)
            fl_tma_load_3d(s->v[stage][i] + half * HALF_CHUNK_BYTES, &maps->kv, &s->v_full[stage],
                           NOPE + i * CHUNK_COLUMNS, head, half ? key.y : key.x);
}

/* Where a thread stands in the rings, from one task to the next. */
template <int STAGES> struct ring_places {
    ring_place<STAGES> k, v;
    ring_place<PLANS> plan;
    uint32_t q_parity = 0;
};

template <int NOPE, class SHARED>
FL_DEVICE void produce_values(SHARED *s, const prefill_maps *maps, int32_t head, int4 step,
                              ring_places<SHARED::STAGES> *at) {
    fl_barrier_wait(&s->v_empty[at->v.stage], at->v.parity ^ 1);
    if (fl_elect_one()) load_values<NOPE>(s, &maps->part[step.w], at->v.stage, head, {step.x, step.y});
    __syncwarp();
    at->v.advance();
}

FL_DEVICE float bias_of(const fl_prefill_part *part, int32_t head) {
    return part->key_bias ? part->key_bias[head] : 0;
}

/* The next step of the plan to the consumers, and its keys; returns the key of each half, flags and part. */
template <int NOPE, class SHARED>
FL_DEVICE int4 produce_keys(SHARED *s, const prefill_maps *maps, int32_t head, float2 biases,
                            ring_places<SHARED::STAGES> *at) {
    fl_barrier_wait(&s->plan_full[at->plan.stage], at->plan.parity);
    const int4 *planned = (const int4 *)&s->plan[at->plan.stage];
    int4 step = planned[0], bits = {};
    if (SHARED::HAS_LISTS) bits = planned[1];
    release(&s->plan_empty[at->plan.stage]);
    at->plan.advance();
    fl_barrier_wait(&s->k_empty[at->k.stage], at->k.parity ^ 1);
    if (fl_elect_one()) {
        int4 *out = (int4 *)&s->step[at->k.stage];
        out[0] = make_int4(step.x, step.y, step.z, __float_as_int(step.w ? biases.y : biases.x));
        if (SHARED::HAS_LISTS) out[1] = bits;
        if (step.z & STEP_NONE) fl_barrier_arrive(&s->k_full[at->k.stage]);
        else load_keys<NOPE>(s, &maps->part[step.w], at->k.stage, head, {step.x, step.y});
    }
    __syncwarp();
    at->k.advance();
    return step;
}

/* By one warp: all lanes wait, one talks to the copy engine. K of a tile goes before V of the tile before, as the
 * consumers want them; rows come when those of the task before have been used. */
template <int NOPE, class SHARED>
FL_DEVICE void produce_task(SHARED *s, const prefill_maps *maps, const fl_prefill_call *c, prefill_task task,
                            ring_places<SHARED::STAGES> *at) {
    float2 biases = make_float2(bias_of(&c->part[0], task.head), bias_of(&c->part[1], task.head));
    int4 step = produce_keys<NOPE>(s, maps, task.head, biases, at);
    if (step.z & STEP_NONE) return;
    fl_barrier_wait(&s->q_empty, at->q_parity ^ 1);
    if (fl_elect_one()) load_queries(s, maps, task.tile * FL_ATTN_TILE_ROWS, task.head);
    __syncwarp();
    at->q_parity ^= 1;
    while (!(step.z & STEP_LAST)) {
        int4 before = step;
        step = produce_keys<NOPE>(s, maps, task.head, biases, at);
        produce_values<NOPE>(s, maps, task.head, before, at);
    }
    produce_values<NOPE>(s, maps, task.head, step, at);
}

template <int NOPE, class SHARED>
FL_DEVICE void produce(SHARED *s, const prefill_maps *maps, const fl_prefill_call *c) {
    ring_places<SHARED::STAGES> at;
    for (uint32_t i = blockIdx.x; i < c->n_tasks; i += gridDim.x) {
        prefill_task task = task_of(c, i);
        if (!c->first && threadIdx.x == 0) prefetch_state<SHARED::V_CHUNKS * CHUNK_COLUMNS / 2>(c, task);
        produce_task<NOPE>(s, maps, c, task, &at);
    }
}

/* ---- consumers: scores ----------------------------------------------------------------------------------------- */

/* Each thread holds parts of two rows: i = 0, 1 below; columns 8 j + 2 (lane % 4) + c in s[4 j + 2 i + c]. */
typedef struct running {
    float m[2];               /* where the exponents of the row stand; -INFINITY: it saw nothing yet */
    float l[2];               /* this thread's part of the row's sum */
    float bias;               /* of the head: in every score of the tile in hand */
    uint32_t zero;            /* what the compiler does not know to be 0 */
    float scale[2];           /* where `moved`: what the sums so far shrink by */
    bool moved;               /* an origin, by the tile in hand; for the whole warp */
} running;

template <int K_DIM> FL_DEVICE void issue_scores(float (&s)[64], uint64_t q, uint64_t k) {
    fl_wgmma_begin();
#pragma unroll
    for (int i = 0; i < K_DIM / 16; i++) {
        int at = i / 4 * (CHUNK_BYTES >> 4) + i % 4 * 2;
        fl_wgmma_bf16(s, q + at, k + at, i > 0);
    }
    fl_wgmma_commit();
}

template <int N> FL_DEVICE void issue_values(float (&o)[N], const uint32_t (&p)[8][4], uint64_t v) {
    fl_wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; i++) fl_wgmma_bf16_mn(o, p[i], v + i * 128, 1);
    fl_wgmma_commit();
}

FL_DEVICE bool in_ranges(int4 r, int32_t key) {
    return (uint32_t)(key - r.x) < (uint32_t)r.y || (uint32_t)(key - r.z) < (uint32_t)r.w;
}

/* `row_ranges` is that of this thread's first row, the second row's is 8 on. */
FL_DEVICE void hide_by_ranges(float (&s)[64], const int4 *row_ranges, int2 key) {
    int32_t column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int4 r = row_ranges[8 * i];
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int32_t from = (j < 8 ? key.x : key.y) + column;
                if (!in_ranges(r, from + j % 8 * 8 + c)) s[4 * j + 2 * i + c] = -CUDART_INF_F;
            }
    }
}

/* Few keys are hidden: most words need nothing. */
FL_DEVICE void hide_by_bits(float (&s)[64], const uint32_t *bits) {
    int32_t column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t word = bits[i];
        if (__all_sync(~0u, word == ~0u)) continue;
        word >>= column;
#pragma unroll
        for (int j = 4 * i; j < 4 * i + 4; j++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                if (!(word >> (j % 4 * 8 + c) & 1)) {
                    fl_fall(&s[4 * j + c]);
                    fl_fall(&s[4 * j + 2 + c]);
                }
    }
}

FL_DEVICE float origin_of(float m) {
    return m == -CUDART_INF_F ? 0 : m; /* no infinity from infinity */
}

/* Of both rows, exponents of this tile and sums so far, where a tile exceeds the origin or is the first. */
FL_DEVICE void move_origins(float (&s)[64], running *run) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top[2] = {s[2 * i], s[2 * i + 1]};
#pragma unroll
        for (int j = 1; j < 16; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) top[c] = fmaxf(top[c], s[4 * j + 2 * i + c]);
        float largest = fmaxf(top[0], top[1]);
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        float before = origin_of(run->m[i]), m = run->m[i];
        if (largest > PREFILL_SLACK || m == -CUDART_INF_F) m = largest + before;
        run->scale[i] = fl_exp2(run->m[i] - origin_of(m));
        run->l[i] *= run->scale[i];
        run->m[i] = m;
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) s[4 * j + 2 * i + c] -= origin_of(m) - before;
    }
}

/* Scores to exponents in place. Most tiles move no origin, and need no maximum: as whole numbers floats above zero
 * are in order and all others below them. */
FL_DEVICE void find_exponents(float (&s)[64], running *run) {
    int32_t top[2] = {INT32_MIN, INT32_MIN};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float shift = origin_of(run->m[i]) - run->bias;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float *x = &s[4 * j + 2 * i];
            x[0] -= shift;
            x[1] -= shift;
            top[i] = __vimax3_s32(top[i], __float_as_int(x[0]), __float_as_int(x[1]));
        }
    }
    bool stays = max(top[0], top[1]) <= __float_as_int(PREFILL_SLACK) &&
                 fminf(run->m[0], run->m[1]) > -CUDART_INF_F;
    run->moved = !__all_sync(~0u, stays);
    if (run->moved) move_origins(s, run);
}

/* x, but the compiler does not know that it needs no y. */
FL_DEVICE float once_known(float y, float x, uint32_t zero) {
    return __uint_as_float(__float_as_uint(x) | (__float_as_uint(y) & zero));
}

/* Exponents to P in place. With PARTLY_FMA, where exponentials are what a turn waits for, a fourth of them are computed
 * beside the slow unit, each once a weight of some columns before is known: else the compiler does all of those
 * first. */
template <bool PARTLY_FMA> FL_DEVICE void soften(float (&s)[64], running *run) {
    float sum[2][2] = {};
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float *p = &s[4 * j + 2 * i + c], before = s[4 * (j < 2 ? 0 : j - 2) + 2 * i];
                if (PARTLY_FMA && j % 2 == 1 && c == 1)
                    *p = fl_exp2_by_fma(once_known(before, *p, run->zero));
                else *p = fl_exp2(*p);
                sum[i][c] += *p;
            }
#pragma unroll
    for (int i = 0; i < 2; i++) run->l[i] += sum[i][0] + sum[i][1];
}

/* The sums of both rows shrink; most tiles change no row's origin. */
template <int N> FL_DEVICE void shrink(float (&o)[N], const running *run) {
    if (!run->moved) return;
#pragma unroll
    for (int j = 0; j < N; j++) o[j] *= run->scale[j / 2 % 2];
}

/* P as the A operand of eight products over 16 keys each. */
FL_DEVICE void pack_weights(uint32_t (&p)[8][4], const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) p[i][j] = fl_pack_bf16(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
}

/* ---- consumers: running state and output ----------------------------------------------------------------------- */

template <int N> FL_DEVICE void start_sums(float (&o)[N], running *run) {
#pragma unroll
    for (int i = 0; i < N; i++) o[i] = 0;
    run->m[0] = run->m[1] = -CUDART_INF_F;
    run->l[0] = run->l[1] = 0;
}

template <int N> FL_DEVICE void read_sums(const float4 *state, float (&o)[N], running *run) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float4 x = state[i * GROUP_THREADS];
        o[4 * i] = x.x, o[4 * i + 1] = x.y, o[4 * i + 2] = x.z, o[4 * i + 3] = x.w;
    }
    float4 x = state[N / 4 * GROUP_THREADS];
    run->m[0] = x.x, run->m[1] = x.y, run->l[0] = x.z, run->l[1] = x.w;
}

template <int N> FL_DEVICE void write_sums(float4 *state, const float (&o)[N], const running *run) {
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        state[i * GROUP_THREADS] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
    state[N / 4 * GROUP_THREADS] = make_float4(run->m[0], run->m[1], run->l[0], run->l[1]);
}

/* Lane i of four holds column i of a 4 x 4 matrix of words, and then row i. */
FL_DEVICE void transpose_4x4(uint32_t (&x)[4]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            uint32_t got = __shfl_xor_sync(~0u, upper ? x[i] : x[i + step], step);
            if (upper) x[i] = got;
            else x[i + step] = got;
        }
    }
}

/* The largest of a row's outputs, which four lanes hold: what a group of codes counts from. */
template <int M> FL_DEVICE float largest_of(const uint32_t (&x)[M][4]) {
    float most = FL_CODES_LEAST;
#pragma unroll
    for (int j = 0; j < M; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            most = fmaxf(most, fmaxf(fabsf(fl_low_of_bf16x2(x[j][k])), fabsf(fl_high_of_bf16x2(x[j][k]))));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
}

/* A head's outputs of one row as codes, by the four lanes that hold eight neighbours each in x[j]. */
template <int M>
FL_DEVICE void put_codes(const fl_prefill_call *c, int64_t line, const uint32_t (&x)[M][4], float most) {
    uint2 *out = (uint2 *)(c->codes.codes + line * FL_SCALE_BLOCK) + threadIdx.x % 4;
    float inverse = fl_codes_inverse(most);
#pragma unroll
    for (int j = 0; j < M; j++)
        out[4 * j] = make_uint2(fl_codes_of_bf16x4(x[j][0], x[j][1], inverse),
                                fl_codes_of_bf16x4(x[j][2], x[j][3], inverse));
    if (threadIdx.x % 4 == 0)
        c->codes.scale[line % c->n_heads * c->codes.scale_stride + line / c->n_heads] = fl_codes_scale(most);
}

/* `row`: this thread's first row. Lanes swap columns, so that each has eight neighbours to store at once. */
template <int N>
FL_DEVICE void write_rows(const fl_prefill_call *c, int32_t row, int32_t head, const float (&o)[N],
                          const running *run) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float l = run->l[i];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        float inverse = l > 0 ? 1 / l : 0;
        bool is_row = row + 8 * i < c->rows;
        int64_t line = (int64_t)(row + 8 * i) * c->n_heads + head;
        uint32_t x[N / 16][4]; /* 32 columns each */
#pragma unroll
        for (int j = 0; j < N / 16; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                x[j][k] = fl_pack_bf16(o[16 * j + 4 * k + 2 * i] * inverse,
                                       o[16 * j + 4 * k + 2 * i + 1] * inverse);
        if (2 * N == FL_SCALE_BLOCK && c->codes.codes) {
            float most = largest_of(x);
#pragma unroll
            for (int j = 0; j < N / 16; j++) transpose_4x4(x[j]);
            if (is_row) put_codes(c, line, x, most);
        } else {
            uint4 *out = (uint4 *)(c->out + line * (2 * N)) + threadIdx.x % 4;
#pragma unroll
            for (int j = 0; j < N / 16; j++) {
                transpose_4x4(x[j]);
                if (is_row) out[4 * j] = make_uint4(x[j][0], x[j][1], x[j][2], x[j][3]);
            }
        }
        if (is_row && c->lse && threadIdx.x % 4 == 0)
            c->lse[line] = l > 0 ? run->m[i] + log2f(l) : -CUDART_INF_F;
    }
}

/* ---- consumers: the loop --------------------------------------------------------------------------------------- */

/* Each warp those of its 16 rows. */
template <class SHARED>
FL_DEVICE void note_row_ranges(SHARED *s, const fl_attn_keys *k, int32_t tile, int32_t first_row) {
    if (threadIdx.x % 32 < 16) {
        int32_t row = first_row + threadIdx.x % 32;
        int64_t last = (int64_t)k->pos + k->rows - 1;
        int64_t p = fl_attn_smaller((int64_t)k->pos + (int64_t)tile * FL_ATTN_TILE_ROWS + row, last);
        fl_attn_ranges r = fl_attn_row_ranges(k, p);
        s->row_ranges[row] =
            make_int4(r.first[0], max(r.end[0] - r.first[0], 0), r.first[1], max(r.end[1] - r.first[1], 0));
    }
    __syncwarp();
}

/* Masks and frees the scores' tile, and the task's rows behind the last one; moves the origins. False: the last. */
template <class SHARED>
FL_DEVICE bool weigh(SHARED *shared, int32_t stage, float (&s)[64], const int4 *row_ranges, running *run) {
    const prefill_step *step = &shared->step[stage];
    int32_t flags = step->flags;
    run->bias = SHARED::HAS_LISTS ? __int_as_float(step->part_or_bias) : 0;
    if (flags & STEP_RANGES) hide_by_ranges(s, row_ranges, {step->key[0], step->key[1]});
    if (SHARED::HAS_LISTS && flags & STEP_BITS) hide_by_bits(s, step->bits);
    release(&shared->k_empty[stage]);
    bool last = __any_sync(~0u, flags & STEP_LAST);
    if (last && threadIdx.x % 32 == 0) fl_barrier_arrive(&shared->q_empty);
    find_exponents(s, run);
    return !last;
}

/* To issue products: once the other group's are done, or nearly. Issued earlier they would share the tensor cores,
 * and both groups be left with exponentials at the same time. The first group's first turn is given at the start. */
FL_DEVICE void take_turn(int32_t group) {
    fl_named_barrier_wait(1 + group, 2 * GROUP_THREADS);
}

FL_DEVICE void pass_turn(int32_t group) {
    fl_named_barrier_arrive(2 - group, 2 * GROUP_THREADS);
}

template <int N>
FL_DEVICE void finish_task(const fl_prefill_call *c, prefill_task task, int32_t thread_row, float4 *state,
                           const float (&o)[N], const running *run) {
    if (c->last) write_rows(c, task.tile * FL_ATTN_TILE_ROWS + thread_row, task.head, o, run);
    else write_sums(state, o, run);
}

template <class SHARED> FL_DEVICE void wait_for_keys(SHARED *s, const ring_place<SHARED::STAGES> *k) {
    fl_barrier_wait(&s->k_full[k->stage], k->parity);
}

/* Behind the last tile for what is there already, the V in use: a wait on one side of a branch only would keep
 * descriptors out of uniform registers. */
template <class SHARED>
FL_DEVICE void wait_for_more_keys(SHARED *s, bool more, const ring_places<SHARED::STAGES> *at) {
    fl_barrier_wait(more ? &s->k_full[at->k.stage] : &s->v_full[at->v.stage],
                    more ? at->k.parity : at->v.parity);
}

template <int NOPE, int ROPE, int V, class SHARED>
FL_DEVICE void consume_task(SHARED *shared, const fl_prefill_call *c, prefill_task task,
                            ring_places<SHARED::STAGES> *at) {
    constexpr int N = V / 2;
    constexpr bool TURNS = SHARED::TURNS;
    int32_t group = __shfl_sync(~0u, (int32_t)threadIdx.x / GROUP_THREADS, 0) - 1,
            warp_row = group * 64 + threadIdx.x % GROUP_THREADS / 32 * 16;
    int32_t thread_row = warp_row + threadIdx.x % 32 / 4, half_tile = 2 * task.tile + group;
    bool has_rows = (int64_t)half_tile * 64 < c->rows;
    const int4 *row_ranges = shared->row_ranges + thread_row;
    float4 *state = state_of<N>(c, half_tile, task.head) + threadIdx.x % GROUP_THREADS;
    float o[N], s[64];
    uint32_t p[8][4];
    running run;
    run.zero = (uint32_t)(c->rows >> 31); /* 0, for there is no negative number of rows */
    start_sums(o, &run);
    wait_for_keys(shared, &at->k);
    if (shared->step[at->k.stage].flags & STEP_NONE) {
        release(&shared->k_empty[at->k.stage]);
        at->k.advance();
        if (!has_rows || !(c->first || c->last)) return;
        if (!c->first) read_sums(state, o, &run);
        finish_task(c, task, thread_row, state, o, &run);
        return;
    }
    uint64_t q = fl_wgmma_k_major(shared->q[0] + group * HALF_CHUNK_BYTES);
    fl_barrier_wait(&shared->q_full, at->q_parity);
    issue_scores<NOPE + ROPE>(s, q, fl_wgmma_k_major(shared->k[uniform(at->k.stage)][0]));
    note_row_ranges(shared, &c->part[0].keys, task.tile, warp_row); /* these two beside the product */
    if (!c->first && has_rows) read_sums(state, o, &run);
    fl_wgmma_wait<0>();
    fl_wgmma_pin(s);
    bool more = weigh(shared, at->k.stage, s, row_ranges, &run);
    at->k.advance();
    soften<TURNS>(s, &run);
    shrink(o, &run);
    pack_weights(p, s);
    if (more) wait_for_keys(shared, &at->k);
    while (more) {
        uint64_t k = fl_wgmma_k_major(shared->k[uniform(at->k.stage)][0]),
                 v = fl_wgmma_mn_major(shared->v[uniform(at->v.stage)][0], CHUNK_BYTES);
        if (TURNS) fl_barrier_wait(&shared->v_full[at->v.stage], at->v.parity);
        if (TURNS) take_turn(group);
        issue_scores<NOPE + ROPE>(s, q, k);
        if (!TURNS) fl_barrier_wait(&shared->v_full[at->v.stage], at->v.parity);
        issue_values(o, p, v);
        fl_wgmma_wait<1>();
        fl_wgmma_pin(s);
        more = weigh(shared, at->k.stage, s, row_ranges, &run);
        if (TURNS) pass_turn(group); /* P V is about done */
        at->k.advance();
        if (!TURNS) soften<false>(s, &run);
        if (!TURNS) fl_wgmma_pin(s);
        wait_for_more_keys(shared, more, at); /* here, for the compiler takes no exponential past a loop */
        fl_wgmma_wait<0>();
        fl_wgmma_pin(o);
        fl_wgmma_pin(s); /* P is packed after the product that reads the last one */
        release(&shared->v_empty[at->v.stage]);
        at->v.advance();
        shrink(o, &run);
        if (TURNS) soften<true>(s, &run);
        pack_weights(p, s);
    }
    at->q_parity ^= 1;
    fl_barrier_wait(&shared->v_full[at->v.stage], at->v.parity);
    issue_values(o, p, fl_wgmma_mn_major(shared->v[uniform(at->v.stage)][0], CHUNK_BYTES));
    fl_wgmma_wait<0>();
    fl_wgmma_pin(o);
    release(&shared->v_empty[at->v.stage]);
    at->v.advance();
    if (has_rows) finish_task(c, task, thread_row, state, o, &run);
}

template <int NOPE, int ROPE, int V, class SHARED>
FL_DEVICE void consume(SHARED *shared, const fl_prefill_call *c) {
    ring_places<SHARED::STAGES> at;
    int32_t group = threadIdx.x / GROUP_THREADS - 1;
    if (SHARED::TURNS && group == 1) pass_turn(group);
    for (uint32_t task = blockIdx.x; task < c->n_tasks; task += gridDim.x)
        consume_task<NOPE, ROPE, V>(shared, c, task_of(c, task), &at);
    if (SHARED::TURNS && group == 0) take_turn(group); /* as many taken as given */
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

template <class SHARED> FL_DEVICE void start_barriers(SHARED *s) {
    if (threadIdx.x == 0) {
        fl_barrier_init(&s->q_full, 1);
        fl_barrier_init(&s->q_empty, CONSUMER_WARPS);
        for (int32_t i = 0; i < SHARED::STAGES; i++) {
            fl_barrier_init(&s->k_full[i], 1);
            fl_barrier_init(&s->v_full[i], 1);
            fl_barrier_init(&s->k_empty[i], CONSUMER_WARPS);
            fl_barrier_init(&s->v_empty[i], CONSUMER_WARPS);
        }
        for (int32_t i = 0; i < PLANS; i++) {
            fl_barrier_init(&s->plan_full[i], 1);
            fl_barrier_init(&s->plan_empty[i], 1);
        }
        fl_barrier_init_fence();
    }
    __syncthreads();
}

template <int NOPE, int ROPE, int V, bool LISTS>
static __global__ void __launch_bounds__(PREFILL_THREADS, 1)
    prefill_wgmma_kernel(const __grid_constant__ prefill_maps maps,
                         const __grid_constant__ fl_prefill_call c) {
    using shared_tiles = prefill_shared<NOPE, ROPE, V, LISTS>;
    extern __shared__ uint8_t memory[];
    shared_tiles *shared = (shared_tiles *)(memory + (1024 - fl_shared_address(memory) % 1024) % 1024);
    start_barriers(shared);
    if (__shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0) == 0) {
        fl_registers_release<LISTS ? 72 : 56>();
        if (threadIdx.x < 32) produce<NOPE>(shared, &maps, &c);
        else if (threadIdx.x < 64) plan_tasks(shared, &c);
    } else {
        fl_registers_claim<LISTS ? 216 : 224>();
        consume<NOPE, ROPE, V>(shared, &c);
    }
}

#endif
