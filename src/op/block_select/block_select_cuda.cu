/* block_select, CUDA. Grid: one block for each tile and head. Block: 256 threads, strided over the tile's scores,
 * of which each keeps up to EACH in registers; tiles of more blocks than that (EACH 0) read theirs from L1 in
 * every pass. Passes: the maximum, how many reach the threshold, the ids, put in order by ballots and one exchange
 * of counts. If more reach the threshold than fit, the one that lets just enough through is found by bisection over
 * the floats (at most 32 counting passes), as in block_select_cpu.c: the lists are the same. The random control draws
 * in order, so one thread does it. Bound by the latency of its passes; scores are read from memory once. */
#include <math.h>

#include "backend/cuda/cuda_backend.h"
#include "op/block_select/block_select_random.h"
#include "op/cuda/device.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* Of a call; counters may be NULL. */
typedef struct params {
    const float *score, *log2_alpha, *density;
    const bool *dense;
    uint16_t *ids;
    int32_t *n;
    unsigned long long *overflow, *listed, *visible;
    uint64_t random_seed;
    int32_t pos, n_heads, n_blocks, block_tokens, sink_tokens, window_tokens, capacity;
} params;

/* One tile and head: the blocks it can choose from are first .. end - 1, those before and behind up to id
 * end_id - 1 are forced. */
typedef struct choice {
    const float *score;
    int32_t first, end;
    int32_t end_id;
    int32_t ids_a_block;
    int32_t visible; /* blocks wholly before the tile */
} choice;

/* Which of them: score above `cut`, and `n_equal` of those equal to it from the lowest on. */
typedef struct limit {
    float cut;
    int32_t n_equal;
} limit;

/* What the warps tell each other: two shared buffers in turns, so that one barrier an exchange is enough. */
typedef struct exchange {
    uint64_t (*words)[WARPS]; /* shared [2] */
    int32_t turn;
} exchange;

FL_DEVICE choice open_choice(const params &p, int32_t pos, int64_t list) {
    choice c;
    c.score = p.score + list * p.n_blocks;
    c.ids_a_block = p.block_tokens / FL_KV_PAGE_TOKENS;
    c.visible = pos / p.block_tokens;
    c.end_id = (pos + FL_ATTN_LIST_ROWS) / FL_KV_PAGE_TOKENS;
    int64_t sinks = ((int64_t)p.sink_tokens + p.block_tokens - 1) / p.block_tokens;
    c.first = sinks < c.visible ? (int32_t)sinks : c.visible;
    /* Blocks that end before pos + 2 - window_tokens are outside the window. */
    int64_t outside = ((int64_t)pos + 1 - p.window_tokens) / p.block_tokens;
    c.end = outside < c.visible ? (int32_t)outside : c.visible;
    if (c.end < c.first) c.end = c.first;
    return c;
}

/* fl_block_select_quota. */
FL_DEVICE int32_t quota_of(float share, int32_t block_tokens, int32_t pos) {
    int32_t begun = (pos + FL_ATTN_LIST_ROWS - 1) / block_tokens + 1;
    return (int32_t)ceil((double)fminf(fmaxf(share, 0), 1) * begun);
}

/* ---- exchanges: called by all threads, with the same result in all --------------------------------------------- */

/* The words of all warps; `word` is the same in all lanes. */
FL_DEVICE const uint64_t *gather(exchange *x, uint64_t word) {
    uint64_t *words = x->words[x->turn];
    x->turn ^= 1;
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = word;
    __syncthreads();
    return words;
}

FL_DEVICE float block_max(exchange *x, float value) {
    const uint64_t *words = gather(x, __float_as_uint(fl_warp_max(value)));
    float top = -INFINITY;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) top = fmaxf(top, __uint_as_float((uint32_t)words[i]));
    return top;
}

FL_DEVICE int32_t block_sum(exchange *x, int32_t value) {
    const uint64_t *words = gather(x, (uint64_t)__reduce_add_sync(~0u, value));
    int32_t sum = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) sum += (int32_t)words[i];
    return sum;
}

/* ---- thresholds ------------------------------------------------------------------------------------------------ */

/* The float as an integer of the same order, and back. */
FL_DEVICE int32_t rank_of(float value) {
    int32_t bits = __float_as_int(value);
    return bits < 0 ? bits ^ INT32_MAX : bits;
}

FL_DEVICE float value_of(int32_t rank) {
    return __int_as_float(rank < 0 ? rank ^ INT32_MAX : rank);
}

/* A thread's candidates: c.first + threadIdx.x and every THREADS further, NaN (which compares with nothing) behind the
 * last. */
template <int EACH> struct kept { float score[EACH > 0 ? EACH : 1]; };

template <int EACH> FL_DEVICE void keep(const choice &c, kept<EACH> *k) {
#pragma unroll
    for (int32_t i = 0; i < EACH; i++) {
        int32_t j = c.first + i * THREADS + (int32_t)threadIdx.x;
        k->score[i] = j < c.end ? __ldg(c.score + j) : NAN;
    }
}

/* Candidates of at least `cut`. */
template <int EACH>
FL_DEVICE int32_t count_from(const choice &c, const kept<EACH> &k, exchange *x, float cut) {
    int32_t n = 0;
#pragma unroll
    for (int32_t i = 0; i < EACH; i++) n += k.score[i] >= cut;
    for (int32_t j = c.first + threadIdx.x; EACH == 0 && j < c.end; j += THREADS) n += c.score[j] >= cut;
    return block_sum(x, n);
}

template <int EACH>
FL_DEVICE int32_t count_above(const choice &c, const kept<EACH> &k, exchange *x, float cut) {
    int32_t n = 0;
#pragma unroll
    for (int32_t i = 0; i < EACH; i++) n += k.score[i] > cut;
    for (int32_t j = c.first + threadIdx.x; EACH == 0 && j < c.end; j += THREADS) n += c.score[j] > cut;
    return block_sum(x, n);
}

/* The smallest float that is at least max + log2_alpha. */
template <int EACH>
FL_DEVICE float threshold_of(const choice &c, const kept<EACH> &k, exchange *x, float log2_alpha,
                             float *top) {
    float most = -INFINITY;
#pragma unroll
    for (int32_t i = 0; i < EACH; i++) most = fmaxf(most, k.score[i]);
    int32_t first = EACH > 0 ? c.end : 0; /* and those before and behind the candidates */
    for (int32_t j = threadIdx.x; EACH > 0 && j < c.first; j += THREADS) most = fmaxf(most, c.score[j]);
    for (int32_t j = first + threadIdx.x; j < c.visible; j += THREADS) most = fmaxf(most, c.score[j]);
    *top = block_max(x, most);
    if (isinf(log2_alpha)) return -INFINITY;
    double exact = (double)*top + (double)log2_alpha;
    float cut = (float)exact;
    return (double)cut < exact ? nextafterf(cut, INFINITY) : cut;
}

/* The limit that lets the `room` best through, of more that are at least `cut`; `top` is above none of them. */
template <int EACH>
FL_DEVICE limit tighten(const choice &c, const kept<EACH> &k, exchange *x, float cut, float top,
                        int32_t room) {
    if (room == 0) return limit{INFINITY, 0};
    int32_t low = rank_of(cut), high = rank_of(top); /* more than room from low on, none above high */
    while (low < high) {
        int32_t middle = (int32_t)(((int64_t)low + high + 1) >> 1);
        int32_t n = count_from(c, k, x, value_of(middle));
        if (n == room) return limit{value_of(middle), INT32_MAX};
        if (n > room) low = middle;
        else high = middle - 1;
    }
    float last = value_of(low);
    return limit{last, room - count_above(c, k, x, last)};
}

/* ---- ids ------------------------------------------------------------------------------------------------------- */

/* Ids first .. end - 1. */
FL_DEVICE void put_ids(uint16_t *ids, int32_t first, int32_t end) {
    for (int32_t i = threadIdx.x; i < end - first; i += THREADS) ids[i] = (uint16_t)(first + i);
}

FL_DEVICE void put_block(const choice &c, int32_t block, uint16_t *ids) {
    for (int32_t i = 0; i < c.ids_a_block; i++) ids[i] = (uint16_t)(block * c.ids_a_block + i);
}

/* The list of put_many, and how many of its earlier steps were above the limit and equal to it. */
typedef struct tally {
    uint16_t *ids;
    int32_t n_above, n_equal;
} tally;

/* A step of put_many: the candidate j of each thread, if there is one. A word holds a warp's count above the limit in
 * its low half, of equal ones in its high half. */
FL_DEVICE void put_step(const choice &c, exchange *x, limit l, int32_t j, float score, tally *so_far) {
    int32_t warp = threadIdx.x / 32;
    uint32_t lower_lanes = (1u << threadIdx.x % 32) - 1;
    bool above = score > l.cut, equal = score == l.cut;
    uint32_t all_above = __ballot_sync(~0u, above), all_equal = __ballot_sync(~0u, equal);
    const uint64_t *words = gather(x, (uint64_t)__popc(all_equal) << 32 | (uint64_t)__popc(all_above));
    uint64_t before = 0, total = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) {
        total += words[i];
        before += i < warp ? words[i] : 0;
    }
    int32_t place = so_far->n_above + (int32_t)(uint32_t)before + __popc(all_above & lower_lanes);
    int32_t nth_equal = so_far->n_equal + (int32_t)(before >> 32) + __popc(all_equal & lower_lanes);
    if (above || (equal && nth_equal < l.n_equal))
        put_block(c, j, so_far->ids + (int64_t)(place + min(nth_equal, l.n_equal)) * c.ids_a_block);
    so_far->n_above += (int32_t)(uint32_t)total;
    so_far->n_equal += (int32_t)(total >> 32);
}

/* Candidates in order are EACH steps of WARPS warps of 32. How many lie before each of this warp's shares of them, as
 * words of put_step in 16 bits a half: that of step i in lane (i * WARPS + warp) / A_LANE of the result. */
template <int EACH> FL_DEVICE uint32_t count_before(const kept<EACH> &k, limit l, uint32_t (*counts)[WARPS]) {
    constexpr int A_LANE = EACH * WARPS / 32;
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int32_t i = 0; i < EACH; i++) {
        uint32_t above = __ballot_sync(~0u, k.score[i] > l.cut),
                 equal = __ballot_sync(~0u, k.score[i] == l.cut);
        if (lane == 0) counts[i][warp] = (uint32_t)__popc(equal) << 16 | (uint32_t)__popc(above);
    }
    __syncthreads();
    uint32_t sum = 0, mine = 0;
#pragma unroll
    for (int32_t i = 0; i < A_LANE; i++) {
        if (i == warp % A_LANE) mine = sum;
        sum += counts[0][lane * A_LANE + i];
    }
    uint32_t all = sum;
#pragma unroll
    for (int32_t step = 1; step < 32; step *= 2) {
        uint32_t lower = __shfl_up_sync(~0u, all, step);
        if (lane >= step) all += lower;
    }
    return all - sum + mine;
}

/* Those that the limit lets through, ascending: a thread counts those before its block. */
template <int EACH> FL_DEVICE void put_kept(const choice &c, const kept<EACH> &k, limit l, uint16_t *ids) {
    __shared__ uint32_t counts[EACH][WARPS];
    constexpr int A_LANE = EACH * WARPS / 32;
    int32_t warp = threadIdx.x / 32;
    uint32_t lower_lanes = (1u << threadIdx.x % 32) - 1, before = count_before(k, l, counts);
#pragma unroll
    for (int32_t i = 0; i < EACH; i++) {
        bool above = k.score[i] > l.cut, equal = k.score[i] == l.cut;
        uint32_t all_above = __ballot_sync(~0u, above), all_equal = __ballot_sync(~0u, equal);
        uint32_t here = __shfl_sync(~0u, before, (i * WARPS + warp) / A_LANE);
        int32_t place = (int32_t)(here & 0xffff) + __popc(all_above & lower_lanes);
        int32_t nth_equal = (int32_t)(here >> 16) + __popc(all_equal & lower_lanes);
        if (above || (equal && nth_equal < l.n_equal))
            put_block(c, c.first + i * THREADS + (int32_t)threadIdx.x,
                      ids + (int64_t)(place + min(nth_equal, l.n_equal)) * c.ids_a_block);
    }
}

/* The same, of any number of candidates. */
FL_DEVICE void put_many(const choice &c, exchange *x, limit l, uint16_t *ids) {
    tally so_far = {ids, 0, 0};
    for (int32_t base = c.first; base < c.end; base += THREADS) {
        int32_t j = base + (int32_t)threadIdx.x;
        put_step(c, x, l, j, j < c.end ? c.score[j] : NAN, &so_far);
    }
}

/* By one thread. */
FL_DEVICE void put_random(const choice &c, uint64_t stream, int32_t needed, uint16_t *ids) {
    for (int32_t j = c.first; j < c.end; j++) {
        if (!fl_block_select_draw(&stream, needed, c.end - j)) continue;
        put_block(c, j, ids);
        ids += c.ids_a_block;
        needed--;
    }
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

/* `n` ids of list `tile`, `head`, by one thread. */
FL_DEVICE void count_list(const params &p, int32_t head, int32_t n, int32_t end_id) {
    if (!p.listed) return;
    atomicAdd(p.listed + head, (unsigned long long)n);
    if (head == 0) atomicAdd(p.visible, (unsigned long long)end_id);
}

/* Blocks of a multiprocessor, as many as registers allow without spills. */
constexpr int blocks_together(int each) {
    return each == 16 ? 6 : each == 32 ? 3 : 5;
}

template <int EACH>
static __global__ void __launch_bounds__(THREADS, blocks_together(EACH))
    block_select_kernel(const __grid_constant__ params p) {
    __shared__ uint64_t words[2][WARPS];
    exchange x = {words, 0};
    int32_t tile = (int32_t)(blockIdx.x / p.n_heads), head = (int32_t)(blockIdx.x % p.n_heads);
    int32_t pos = p.pos + tile * FL_ATTN_LIST_ROWS;
    const choice c = open_choice(p, pos, blockIdx.x);
    if (p.dense && p.dense[head]) {
        if (threadIdx.x == 0) p.n[blockIdx.x] = -1;
        if (threadIdx.x == 0) count_list(p, head, c.end_id, c.end_id);
        return;
    }
    uint16_t *ids = p.ids + (int64_t)blockIdx.x * p.capacity;
    float top;
    kept<EACH> k;
    keep(c, &k);
    limit l = {threshold_of(c, k, &x, p.log2_alpha[head], &top), INT32_MAX};
    if (p.density) l.cut = -INFINITY;
    int32_t forced_ids = c.end_id - (c.end - c.first) * c.ids_a_block;
    int32_t room = (p.capacity - forced_ids) / c.ids_a_block, passed = count_from(c, k, &x, l.cut);
    int32_t wanted = p.density ? min(passed, quota_of(p.density[head], p.block_tokens, pos)) : passed;
    int32_t left_out = wanted > room ? (wanted - room) * c.ids_a_block : 0;
    wanted = min(wanted, room);
    if (wanted < passed) l = tighten(c, k, &x, l.cut, top, wanted);
    int32_t n_sinks = c.first * c.ids_a_block, n = forced_ids + wanted * c.ids_a_block;
    put_ids(ids, 0, n_sinks);
    put_ids(ids + n_sinks + (int64_t)wanted * c.ids_a_block, c.end * c.ids_a_block, c.end_id);
    if (p.random_seed == 0) {
        if constexpr (EACH > 0) put_kept(c, k, l, ids + n_sinks);
        else put_many(c, &x, l, ids + n_sinks);
    } else if (threadIdx.x == 0) {
        uint64_t stream = fl_block_select_stream(p.random_seed, pos / FL_ATTN_LIST_ROWS, head);
        put_random(c, stream, wanted, ids + n_sinks);
    }
    if (threadIdx.x != 0) return;
    p.n[blockIdx.x] = n;
    count_list(p, head, n, c.end_id);
    if (p.overflow && left_out > 0) atomicAdd(p.overflow, (unsigned long long)left_out);
}

extern "C" fl_err fl_block_select_cuda(fl_backend *be, const fl_block_select_args *a) {
    FL_TRY(fl_block_select_validate(a));
    params p = {};
    p.score = a->score;
    p.log2_alpha = a->log2_alpha;
    p.dense = a->dense;
    p.ids = a->list.ids;
    p.n = a->list.n;
    p.overflow = (unsigned long long *)a->overflow;
    p.listed = (unsigned long long *)a->listed;
    p.visible = (unsigned long long *)a->visible;
    p.random_seed = a->random_seed;
    p.pos = a->pos;
    p.n_heads = a->n_heads;
    p.n_blocks = a->n_blocks;
    p.block_tokens = a->block_tokens;
    p.sink_tokens = a->sink_tokens;
    p.window_tokens = a->window_tokens;
    p.capacity = a->list.capacity;
    p.density = a->density;
    uint32_t lists = (uint32_t)(a->rows / FL_ATTN_LIST_ROWS) * (uint32_t)a->n_heads;
    cudaStream_t stream = fl_cuda_of(be)->stream;
    int64_t blocks = ((int64_t)a->pos + a->rows) / a->block_tokens; /* at least what any tile sees */
    if (blocks <= 4 * THREADS) block_select_kernel<4><<<lists, THREADS, 0, stream>>>(p);
    else if (blocks <= 16 * THREADS) block_select_kernel<16><<<lists, THREADS, 0, stream>>>(p);
    else if (blocks <= 32 * THREADS) block_select_kernel<32><<<lists, THREADS, 0, stream>>>(p);
    else block_select_kernel<0><<<lists, THREADS, 0, stream>>>(p);
    return FL_CUDA_LAUNCHED("block_select");
}
