/* attn_prefill on Hopper's tensor cores.
 *
 * Grid: as many blocks as multiprocessors, or as few as need as many rounds; each takes every gridDim-th task; a task
 * is a tile of 128 or 192 rows and a head. Warpgroup 0 gives most of its registers away; its second warp walks over the
 * visible keys (attn_prefill_tiles.h), its first has the copy engine bring tiles of 128 keys into the stages of K and
 * of V, those of the next task while this one's results are written. The other groups, two or three, own 64 rows each.
 * Shared: 208 KiB of tiles at 192/128, 192 KiB at 96/64. Bound by the tensor cores, if the exponentials of tile j + 1
 * hide behind the product P V of tile j: so QK of j + 1 and PV of j are issued together, and the softmax of j + 1 runs
 * once the first of the two is done. With 64 columns of V that is too short: exponentials hide behind the other groups'
 * products, and the groups take turns. Two groups leave a warp's waits for its own results open there, three fill them.
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

#include "op/attn_prefill/attn_prefill_produce.cuh"
#include "op/cuda/codes.cuh"

/* Exponents may grow to 2^SLACK before a row's sums are scaled down: neither P in bf16 nor sums in f32 care. */
#define PREFILL_SLACK 8.0f

/* ---- consumers: scores ----------------------------------------------------------------------------------------- */

/* Each thread holds parts of two rows: i = 0, 1 below; columns 8 j + 2 (lane % 4) + c in s[4 j + 2 i + c]. */
typedef struct running {
    float m[2];     /* where the exponents of the row stand; -INFINITY: it saw nothing yet */
    float l[2];     /* this thread's part of the row's sum */
    float bias;     /* of the head: in every score of the tile in hand */
    float scale[2]; /* where `moved`: what the sums so far shrink by */
    bool moved;     /* an origin, by the tile in hand; for the whole warp */
} running;

template <int K_DIM, int Q_CHUNK_BYTES> FL_DEVICE void issue_scores(float (&s)[64], uint64_t q, uint64_t k) {
    fl_wgmma_begin();
#pragma unroll
    for (int i = 0; i < K_DIM / 16; i++) {
        int chunk = i / 4, in_chunk = i % 4 * 2;
        fl_wgmma_bf16(s, q + chunk * (Q_CHUNK_BYTES >> 4) + in_chunk,
                      k + chunk * (CHUNK_BYTES >> 4) + in_chunk, i > 0);
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
        float largest = fl_quad_max(fmaxf(top[0], top[1]));
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
    bool stays =
        max(top[0], top[1]) <= __float_as_int(PREFILL_SLACK) && fminf(run->m[0], run->m[1]) > -CUDART_INF_F;
    run->moved = !__all_sync(~0u, stays);
    if (run->moved) move_origins(s, run);
}

/* Exponents to P in place. */
FL_DEVICE void soften(float (&s)[64], running *run) {
    float sum[2][2] = {};
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float *p = &s[4 * j + 2 * i + c];
                *p = fl_exp2(*p);
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
    return fl_quad_max(most);
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
        float l = fl_quad_sum(run->l[i]);
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
        int64_t p = fl_attn_smaller((int64_t)k->pos + (int64_t)tile * SHARED::ROWS + row, last);
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
    fl_barrier_release_together(&shared->k_empty[stage]);
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

template <int GROUPS> FL_DEVICE void pass_turn(int32_t group) {
    fl_named_barrier_arrive(1 + (group + 1) % GROUPS, 2 * GROUP_THREADS);
}

template <int N>
FL_DEVICE void finish_task(const fl_prefill_call *c, int32_t head, int32_t row, float4 *state,
                           const float (&o)[N], const running *run) {
    if (c->last) write_rows(c, row, head, o, run);
    else write_sums(state, o, run);
}

/* Told that a warp goes on as one the compiler keeps descriptors in uniform registers, which three groups have to;
 * where it keeps them anyway, as for wide values, the vote costs more. */
template <class SHARED> FL_DEVICE void await(uint64_t *barrier, uint32_t parity) {
    if (SHARED::TURNS) fl_barrier_wait_together(barrier, parity);
    else fl_barrier_wait(barrier, parity);
}

template <class SHARED> FL_DEVICE void wait_for_keys(SHARED *s, const fl_ring_place<SHARED::STAGES> *k) {
    await<SHARED>(&s->k_full[k->stage], k->parity);
}

/* Behind the last tile for what is there already, the V in use: a wait on one side of a branch only would keep
 * descriptors out of uniform registers. */
template <class SHARED>
FL_DEVICE void wait_for_more_keys(SHARED *s, bool more, const ring_places<SHARED::STAGES> *at) {
    await<SHARED>(more ? &s->k_full[at->k.stage] : &s->v_full[at->v.stage],
                  more ? at->k.parity : at->v.parity);
}

template <int NOPE, int ROPE, int V, class SHARED>
FL_DEVICE void consume_task(SHARED *shared, const fl_prefill_call *c, prefill_task task,
                            ring_places<SHARED::STAGES> *at) {
    constexpr int N = V / 2;
    constexpr bool TURNS = SHARED::TURNS;
    int32_t group = __shfl_sync(~0u, (int32_t)threadIdx.x / GROUP_THREADS, 0) - 1,
            warp_row = group * GROUP_ROWS + threadIdx.x % GROUP_THREADS / 32 * 16;
    int32_t thread_row = warp_row + threadIdx.x % 32 / 4, half_tile = SHARED::GROUPS * task.tile + group,
            row = task.tile * SHARED::ROWS + thread_row;
    bool has_rows = (int64_t)half_tile * GROUP_ROWS < c->rows;
    const int4 *row_ranges = shared->row_ranges + thread_row;
    float4 *state = state_of<N>(c, half_tile, task.head) + threadIdx.x % GROUP_THREADS;
    float o[N], s[64];
    uint32_t p[8][4];
    running run;
    start_sums(o, &run);
    wait_for_keys(shared, &at->k);
    if (shared->step[at->k.stage].flags & STEP_NONE) {
        fl_barrier_release_together(&shared->k_empty[at->k.stage]);
        at->k.advance();
        if (!has_rows || !(c->first || c->last)) return;
        if (!c->first) read_sums(state, o, &run);
        finish_task(c, task.head, row, state, o, &run);
        return;
    }
    uint64_t q = fl_wgmma_k_major(shared->q[0] + group * HALF_CHUNK_BYTES);
    await<SHARED>(&shared->q_full, at->q_parity);
    issue_scores<NOPE + ROPE, SHARED::Q_CHUNK_BYTES>(s, q,
                                                     fl_wgmma_k_major(shared->k[uniform(at->k.stage)][0]));
    note_row_ranges(shared, &c->part[0].keys, task.tile, warp_row); /* these two beside the product */
    if (!c->first && has_rows) read_sums(state, o, &run);
    fl_wgmma_wait<0>();
    fl_wgmma_pin(s);
    bool more = weigh(shared, at->k.stage, s, row_ranges, &run);
    at->k.advance();
    soften(s, &run);
    shrink(o, &run);
    pack_weights(p, s);
    if (more) wait_for_keys(shared, &at->k);
    while (more) {
        uint64_t k = fl_wgmma_k_major(shared->k[uniform(at->k.stage)][0]),
                 v = fl_wgmma_mn_major(shared->v[uniform(at->v.stage)][0], CHUNK_BYTES);
        if (TURNS) await<SHARED>(&shared->v_full[at->v.stage], at->v.parity);
        if (TURNS) take_turn(group);
        issue_scores<NOPE + ROPE, SHARED::Q_CHUNK_BYTES>(s, q, k);
        if (!TURNS) await<SHARED>(&shared->v_full[at->v.stage], at->v.parity);
        issue_values(o, p, v);
        fl_wgmma_wait<1>();
        fl_wgmma_pin(s);
        more = weigh(shared, at->k.stage, s, row_ranges, &run);
        if (TURNS) pass_turn<SHARED::GROUPS>(group); /* P V is about done */
        at->k.advance();
        if (!TURNS) soften(s, &run);
        if (!TURNS) fl_wgmma_pin(s);
        wait_for_more_keys(shared, more, at); /* here, for the compiler takes no exponential past a loop */
        fl_wgmma_wait<0>();
        fl_wgmma_pin(o);
        fl_wgmma_pin(s); /* P is packed after the product that reads the last one */
        fl_barrier_release_together(&shared->v_empty[at->v.stage]);
        at->v.advance();
        shrink(o, &run);
        if (TURNS) soften(s, &run);
        pack_weights(p, s);
    }
    at->q_parity ^= 1;
    await<SHARED>(&shared->v_full[at->v.stage], at->v.parity);
    issue_values(o, p, fl_wgmma_mn_major(shared->v[uniform(at->v.stage)][0], CHUNK_BYTES));
    fl_wgmma_wait<0>();
    fl_wgmma_pin(o);
    fl_barrier_release_together(&shared->v_empty[at->v.stage]);
    at->v.advance();
    if (has_rows) finish_task(c, task.head, row, state, o, &run);
}

template <int NOPE, int ROPE, int V, class SHARED>
FL_DEVICE void consume(SHARED *shared, const fl_prefill_call *c) {
    ring_places<SHARED::STAGES> at;
    int32_t group = threadIdx.x / GROUP_THREADS - 1;
    if (SHARED::TURNS && group == SHARED::GROUPS - 1) pass_turn<SHARED::GROUPS>(group);
    for (uint32_t task = blockIdx.x; task < c->n_tasks; task += gridDim.x)
        consume_task<NOPE, ROPE, V>(shared, c, task_of(c, task), &at);
    if (SHARED::TURNS && group == 0) take_turn(group); /* as many taken as given */
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

template <class SHARED> FL_DEVICE void start_barriers(SHARED *s) {
    if (threadIdx.x == 0) {
        fl_barrier_init(&s->q_full, 1);
        fl_barrier_init(&s->q_empty, SHARED::WARPS);
        for (int32_t i = 0; i < SHARED::STAGES; i++) {
            fl_barrier_init(&s->k_full[i], 1);
            fl_barrier_init(&s->v_full[i], 1);
            fl_barrier_init(&s->k_empty[i], SHARED::WARPS);
            fl_barrier_init(&s->v_empty[i], SHARED::WARPS);
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
static __global__ void __launch_bounds__(prefill_shared<NOPE, ROPE, V, LISTS>::THREADS, 1)
    prefill_wgmma_kernel(const __grid_constant__ prefill_maps maps,
                         const __grid_constant__ fl_prefill_call c) {
    using shared_tiles = prefill_shared<NOPE, ROPE, V, LISTS>;
    extern __shared__ uint8_t memory[];
    shared_tiles *shared = (shared_tiles *)(memory + (1024 - fl_shared_address(memory) % 1024) % 1024);
    start_barriers(shared);
    if (__shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0) == 0) {
        fl_registers_release<shared_tiles::PRODUCER_REGISTERS>();
        if (threadIdx.x < 32) produce<NOPE>(shared, &maps, &c);
        else if (threadIdx.x < 64) plan_tasks(shared, &c);
    } else {
        fl_registers_claim<shared_tiles::CONSUMER_REGISTERS>();
        consume<NOPE, ROPE, V>(shared, &c);
    }
}

#endif
