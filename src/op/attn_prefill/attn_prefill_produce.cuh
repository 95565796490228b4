/* The first warpgroup of attn_prefill_wgmma.cuh: a warp that plans steps, one that brings their keys and values. */
#ifndef FL_OP_ATTN_PREFILL_PRODUCE_CUH
#define FL_OP_ATTN_PREFILL_PRODUCE_CUH

#include "op/attn_prefill/attn_prefill_shared.cuh"

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

template <class SHARED>
FL_DEVICE void open_part(const fl_prefill_call *c, uint32_t *listed, prefill_plan *plan) {
    const fl_prefill_part *part = &c->part[plan->part];
    constexpr bool LISTS = SHARED::HAS_LISTS;
    if (LISTS) plan->walk = fl_prefill_walk(c, part, plan->task.tile, plan->task.head);
    else
        plan->walk =
            fl_attn_walk_rows(&part->keys, (int64_t)plan->task.tile * SHARED::ROWS, SHARED::ROWS, false);
    if (LISTS && plan->walk.kind == FL_ATTN_WALK_MARKED) mark_blocks(c, &part->keys, plan->task, listed);
}

/* The task's next tile of keys that counts, by the whole warp. */
template <class SHARED>
FL_DEVICE bool plan_step(const fl_prefill_call *c, uint32_t *listed, prefill_plan *plan, planned_step *out) {
    constexpr bool LISTS = SHARED::HAS_LISTS;
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
        open_part<SHARED>(c, listed, plan);
    }
}

template <class SHARED>
FL_DEVICE void put_step(SHARED *s, const planned_step *step, fl_ring_place<PLANS> *at) {
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
    fl_ring_place<PLANS> at;
    for (uint32_t i = blockIdx.x; i < c->n_tasks; i += gridDim.x) {
        prefill_plan plan = {task_of(c, i)};
        planned_step step = {}, next = {};
        open_part<SHARED>(c, s->listed, &plan);
        bool more = plan_step<SHARED>(c, s->listed, &plan, &step);
        if (!more) step.flags = STEP_NONE;
        while (more) {
            more = plan_step<SHARED>(c, s->listed, &plan, &next);
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
    fl_barrier_release_together(&s->plan_empty[at->plan.stage]);
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
    if (fl_elect_one()) load_queries(s, maps, task.tile * SHARED::ROWS, task.head);
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
        if (!c->first && threadIdx.x == 0)
            prefetch_state<SHARED::V_CHUNKS * CHUNK_COLUMNS / 2, SHARED::GROUPS>(c, task);
        produce_task<NOPE>(s, maps, c, task, &at);
    }
}

#endif
