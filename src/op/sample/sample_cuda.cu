/* sample, CUDA. Grid: a cluster of 8 blocks a row, each with an eighth of its ids in shared memory, which is read from
 * memory once. Block: 512 threads, two blocks a multiprocessor at 129,280 ids.
 *
 * No sort of the vocabulary: block 0 leads. Weights are added up in 2,048 bins of depth; a sum of weights that is
 * looked for (top_p's, the drawn one), or a rank (top_k's), lies in one bin, whose tokens are few: they are gathered
 * and sorted. More than fit are cut into bins again, by the bits of their logits, until they do or are all equal.
 * Bound by the latency of these passes for a row, by the arithmetic of the weights for 64. */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"
#include "op/cuda/hopper.cuh"
#include "op/sample/sample_weight.h"

enum {
    BLOCKS = 8,
    THREADS = 512,
    WARPS = THREADS / 32,
    BINS = 2048,
    BINS_A_DEPTH = 48, /* weights end at depth 41 */
    LIST = 2048,       /* tokens that are sorted */
    EACH = BINS / THREADS,
    ROWS = 64 /* of a launch */
};

typedef struct params {
    const float *logits;
    const uint8_t *lists;
    fl_sample *out;
    int64_t stride;
    int32_t n_known;
    int32_t share; /* ids of a block, a multiple of 64 */
    bool wide;
    fl_sample_row rows[ROWS];
} params;

/* What all blocks do next, as block 0 says. */
typedef enum order_kind { ORDER_GATHER, ORDER_BINS, ORDER_NTH, ORDER_END } order_kind;

typedef struct order {
    order_kind kind;
    int32_t bin;        /* GATHER: of the first bins; -1 = any */
    uint32_t low, high; /* keys, both inside */
    int32_t shift;      /* BINS: a bin has 2^shift keys, the first one's begin at high and fall */
    int32_t rank, nth;  /* NTH: of this block the nth token of key `low`, by id */
} order;

/* A block's small shared memory; others read it. */
typedef struct post {
    uint64_t best[3]; /* of the plain row, of the adjusted one, of that without bans */
    uint64_t plain_sum, least_sum;
    uint64_t top[FL_TOP_LOGPROBS_MAX];
    int32_t bad;
    uint32_t n_listed, low, high; /* of a gathering: tokens, their smallest and largest key */
    int32_t nth_id;
    order next;
    uint64_t words[2][WARPS];
    /* the leader's */
    uint64_t found_sum, found_count;
    int32_t found;
} post;

/* A block's view of its row. */
typedef struct part {
    const params *p;
    const fl_sample_row *how;
    post *shared;
    float *values;               /* shared [share] */
    uint32_t *low, *high, *many; /* shared [BINS] halves of sums of weights, counts */
    uint64_t *list;              /* shared [LIST] */
    int32_t rank, first, n;
    int32_t turn; /* of post.words */
} part;

/* ---- exchanges ------------------------------------------------------------------------------------------------- */

/* The same place in the shared memory of block `rank`. */
template <class T> FL_DEVICE const T *at_rank(const T *shared, int32_t rank) {
    const T *there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
    return there;
}

/* Words of all warps in turns of two buffers, so that one barrier is enough; `word` is the same in all lanes. */
FL_DEVICE const uint64_t *gather_words(part *c, uint64_t word) {
    uint64_t *words = c->shared->words[c->turn];
    c->turn ^= 1;
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = word;
    __syncthreads();
    return words;
}

FL_DEVICE uint64_t block_max(part *c, uint64_t value) {
#pragma unroll
    for (int32_t step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(~0u, value, step));
    const uint64_t *words = gather_words(c, value);
    uint64_t top = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) top = max(top, words[i]);
    return top;
}

FL_DEVICE uint64_t block_sum(part *c, uint64_t value) {
#pragma unroll
    for (int32_t step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    const uint64_t *words = gather_words(c, value);
    uint64_t sum = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) sum += words[i];
    return sum;
}

/* The sum of the threads before this one, and of all. */
FL_DEVICE uint64_t block_before(part *c, uint64_t value, uint64_t *total) {
    int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t sum = value;
#pragma unroll
    for (int32_t step = 1; step < 32; step *= 2) {
        uint64_t other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    const uint64_t *words = gather_words(c, __shfl_sync(~0u, sum, 31));
    uint64_t before = sum - value;
    *total = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) {
        before += i < warp ? words[i] : 0;
        *total += words[i];
    }
    return before;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

/* Orders as the logits do, both zeros alike. */
FL_DEVICE uint32_t key_of(float value) {
    uint32_t bits = __float_as_uint(value + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

FL_DEVICE float value_of(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* Key and id as one number, larger for the one that comes first; 0: cannot come. */
FL_DEVICE uint64_t entry_of(float value, int32_t id) {
    return value > -INFINITY ? (uint64_t)key_of(value) << 32 | (uint32_t)~id : 0;
}

FL_DEVICE int32_t id_of(uint64_t entry) {
    return (int32_t) ~(uint32_t)entry;
}

FL_DEVICE float logit_of(uint64_t entry) {
    return value_of((uint32_t)(entry >> 32));
}

/* ---- the row --------------------------------------------------------------------------------------------------- */

FL_DEVICE void take(part *c, int32_t i, float value, int32_t *bad) {
    c->values[i] = value;
    if (!(fabsf(value) < INFINITY)) *bad = min(*bad, c->first + i);
}

/* Into shared memory; the smallest id of this thread's that is not finite. */
FL_DEVICE int32_t load(part *c) {
    const float *from = c->p->logits + (int64_t)(blockIdx.x / BLOCKS) * c->p->stride + c->first;
    int32_t bad = INT32_MAX, quads = c->p->wide ? c->n / 4 : 0;
#pragma unroll 8
    for (int32_t i = threadIdx.x; i < quads; i += THREADS) {
        float4 quad = __ldg((const float4 *)from + i);
        take(c, 4 * i, quad.x, &bad);
        take(c, 4 * i + 1, quad.y, &bad);
        take(c, 4 * i + 2, quad.z, &bad);
        take(c, 4 * i + 3, quad.w, &bad);
    }
    for (int32_t i = 4 * quads + threadIdx.x; i < c->n; i += THREADS) take(c, i, __ldg(from + i), &bad);
    return bad;
}

/* This thread's first token of those behind `limit`. */
FL_DEVICE uint64_t best_below(const part &c, uint64_t limit) {
    uint64_t best = 0;
    for (int32_t i = threadIdx.x; i < c.n; i += THREADS) {
        uint64_t entry = entry_of(c.values[i], c.first + i);
        if (entry < limit) best = max(best, entry);
    }
    return best;
}

/* The first token of the row, of all blocks, which all find. `slot` of post.best is used once. */
FL_DEVICE uint64_t find_best(part *c, int32_t slot) {
    uint64_t best = block_max(c, best_below(*c, UINT64_MAX));
    if (threadIdx.x == 0) c->shared->best[slot] = best;
    fl_cluster_sync();
    for (int32_t i = 0; i < BLOCKS; i++) best = max(best, *at_rank(&c->shared->best[slot], i));
    return best;
}

/* The block's first tokens in order. */
FL_DEVICE void find_top(part *c) {
    uint64_t mine = best_below(*c, UINT64_MAX);
    for (int32_t i = 0; i < c->how->n_top; i++) {
        uint64_t best = block_max(c, mine);
        if (threadIdx.x == 0) c->shared->top[i] = best;
        if (mine == best && best > 0) mine = best_below(*c, best);
    }
}

FL_DEVICE uint64_t sum_plain(part *c, float best) {
    uint64_t sum = 0;
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < c->n; i += THREADS)
        sum += fl_sample_weight(fl_sample_depth(c->values[i], best, FL_SAMPLE_LOG2E));
    return block_sum(c, sum);
}

FL_DEVICE bool is_changed(const fl_sample_row &how) {
    return how.n_marks + how.n_biases + how.n_banned > 0 || how.allowed_at >= 0;
}

/* Penalties, biases, bans: in this order, each token by one thread. */
FL_DEVICE void adjust(part *c, bool banned) {
    const fl_sample_row &how = *c->how;
    const fl_sample_mark *marks = (const fl_sample_mark *)(c->p->lists + how.marks_at);
    const fl_logit_bias *biases = (const fl_logit_bias *)(c->p->lists + how.biases_at);
    const int32_t *bans = (const int32_t *)(c->p->lists + how.banned_at);
    const uint64_t *allowed = (const uint64_t *)(c->p->lists + how.allowed_at) + c->first / 64;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < how.n_marks; i += THREADS) {
        int32_t at = marks[i].token - c->first;
        if (at >= 0 && at < c->n) c->values[at] = fl_sample_penalised(c->values[at], &how, marks[i].count);
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < how.n_biases; i += THREADS) {
        int32_t at = biases[i].token - c->first;
        if (at >= 0 && at < c->n) c->values[at] = __fadd_rn(c->values[at], biases[i].bias);
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; banned && i < how.n_banned; i += THREADS) {
        int32_t at = bans[i] - c->first;
        if (at >= 0 && at < c->n) c->values[at] = -INFINITY;
    }
    for (int32_t i = threadIdx.x; how.allowed_at >= 0 && i < c->n; i += THREADS)
        if (!(allowed[i / 64] >> i % 64 & 1)) c->values[i] = -INFINITY;
    __syncthreads();
}

/* ---- bins ------------------------------------------------------------------------------------------------------ */

FL_DEVICE void clear_bins(const part &c) {
    for (int32_t i = threadIdx.x; i < 3 * BINS; i += THREADS) c.low[i] = 0; /* low, high and many in a row */
    __syncthreads();
}

FL_DEVICE void add_to_bin(const part &c, int32_t bin, uint64_t weight) {
    uint32_t low = (uint32_t)weight, before = atomicAdd(&c.low[bin], low);
    uint32_t high = (uint32_t)(weight >> 32) + (before + low < before);
    if (high > 0) atomicAdd(&c.high[bin], high);
    if (c.how->top_k > 0) atomicAdd(&c.many[bin], 1u);
}

FL_DEVICE int32_t bin_of(float depth) {
    return (int32_t)(depth * -(float)BINS_A_DEPTH);
}

/* All weights into bins of depth; this block's part of the sum that min_log2 lets in. */
FL_DEVICE void fill_bins(part *c, float best) {
    uint64_t least = 0;
    clear_bins(*c);
#pragma unroll 2
    for (int32_t i = threadIdx.x; i < c->n; i += THREADS) {
        float depth = fl_sample_depth(c->values[i], best, c->how->scale);
        uint64_t weight = fl_sample_weight(depth);
        if (weight == 0) continue;
        add_to_bin(*c, bin_of(depth), weight);
        if (depth >= c->how->min_log2) least += weight;
    }
    least = block_sum(c, least);
    if (threadIdx.x == 0) c->shared->least_sum = least;
}

/* The weights of keys o.low .. o.high into bins of keys. */
FL_DEVICE void fill_key_bins(part *c, const order &o, float best) {
    clear_bins(*c);
    for (int32_t i = threadIdx.x; i < c->n; i += THREADS) {
        uint32_t key = key_of(c->values[i]);
        if (!(c->values[i] > -INFINITY) || key < o.low || key > o.high) continue;
        uint64_t weight = fl_sample_weight(fl_sample_depth(c->values[i], best, c->how->scale));
        add_to_bin(*c, (int32_t)((o.high - key) >> o.shift), weight);
    }
}

FL_DEVICE bool is_wanted(const part &c, const order &o, float best, float value) {
    uint32_t key = key_of(value);
    if (!(value > -INFINITY) || key < o.low || key > o.high) return false;
    if (o.bin < 0) return true;
    float depth = fl_sample_depth(value, best, c.how->scale);
    return depth > -FL_SAMPLE_DEPTH_MAX && bin_of(depth) == o.bin;
}

/* Lists this block's tokens that are wanted, in any order, as many as there is room for, and counts all. */
FL_DEVICE void gather(part *c, const order &o, float best) {
    post *s = c->shared;
    uint32_t low = UINT32_MAX, high = 0;
    if (threadIdx.x == 0) {
        s->n_listed = s->high = 0;
        s->low = UINT32_MAX;
    }
    __syncthreads();
    for (int32_t base = 0; base < c->n; base += THREADS) {
        int32_t i = base + (int32_t)threadIdx.x, lane = threadIdx.x % 32;
        bool wanted = i < c->n && is_wanted(*c, o, best, c->values[i]);
        uint32_t lanes = __ballot_sync(~0u, wanted), at = 0;
        if (lanes == 0) continue;
        if (lane == 0) at = atomicAdd(&s->n_listed, (uint32_t)__popc(lanes));
        at = __shfl_sync(~0u, at, 0) + (uint32_t)__popc(lanes & ((1u << lane) - 1));
        if (!wanted) continue;
        if (at < LIST) c->list[at] = entry_of(c->values[i], c->first + i);
        low = min(low, key_of(c->values[i]));
        high = max(high, key_of(c->values[i]));
    }
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    if (threadIdx.x % 32 == 0 && low <= high) {
        atomicMin(&s->low, low);
        atomicMax(&s->high, high);
    }
}

/* The id of this block's nth token of a key, from 0 on. */
FL_DEVICE void find_nth(part *c, const order &o) {
    uint64_t n = 0, total;
    for (int32_t base = 0; base < c->n; base += THREADS) {
        int32_t i = base + (int32_t)threadIdx.x;
        bool equal = i < c->n && c->values[i] > -INFINITY && key_of(c->values[i]) == o.low;
        uint64_t before = n + block_before(c, equal, &total);
        if (equal && before == (uint64_t)o.nth) c->shared->nth_id = c->first + i;
        n += total;
    }
}

/* ---- leading --------------------------------------------------------------------------------------------------- */

/* What is looked for: the first token whose sum of weights, or count, up to and with it is above `target`. */
typedef struct search {
    bool by_count;
    uint64_t target;
    uint64_t sum, count; /* of the tokens before those that are left */
} search;

/* Sums of bins EACH * threadIdx.x on, over all blocks, and of all bins before them. */
typedef struct tally {
    uint64_t sum[EACH], sum_before, sum_total;
    uint32_t count[EACH];
    uint64_t count_before, count_total;
} tally;

FL_DEVICE void read_bins(part *c, tally *t) {
    uint64_t sum = 0, count = 0;
#pragma unroll
    for (int32_t j = 0; j < EACH; j++) t->sum[j] = t->count[j] = 0;
#pragma unroll
    for (int32_t i = 0; i < BLOCKS; i++) {
        int32_t at = EACH * (int32_t)threadIdx.x;
        uint4 low = *(const uint4 *)at_rank(c->low + at, i), high = *(const uint4 *)at_rank(c->high + at, i);
        uint4 many = *(const uint4 *)at_rank(c->many + at, i);
        t->sum[0] += (uint64_t)high.x << 32 | low.x;
        t->sum[1] += (uint64_t)high.y << 32 | low.y;
        t->sum[2] += (uint64_t)high.z << 32 | low.z;
        t->sum[3] += (uint64_t)high.w << 32 | low.w;
        t->count[0] += many.x;
        t->count[1] += many.y;
        t->count[2] += many.z;
        t->count[3] += many.w;
    }
#pragma unroll
    for (int32_t j = 0; j < EACH; j++) {
        sum += t->sum[j];
        count += t->count[j];
    }
    t->sum_before = block_before(c, sum, &t->sum_total);
    t->count_before = block_before(c, count, &t->count_total);
}

/* The bin that holds the target; what is before it goes into the search, which began before all of the bins. */
FL_DEVICE int32_t find_bin(part *c, const tally &t, search *s) {
    post *shared = c->shared;
    uint64_t sum = s->sum + t.sum_before, count = s->count + t.count_before;
#pragma unroll
    for (int32_t j = 0; j < EACH; j++) {
        uint64_t before = s->by_count ? count : sum, size = s->by_count ? t.count[j] : t.sum[j];
        if (s->target >= before && s->target < before + size) {
            shared->found = EACH * (int32_t)threadIdx.x + j;
            shared->found_sum = sum;
            shared->found_count = count;
        }
        sum += t.sum[j];
        count += t.count[j];
    }
    __syncthreads();
    s->sum = shared->found_sum;
    s->count = shared->found_count;
    int32_t bin = shared->found;
    __syncthreads();
    return bin;
}

/* list[0 .. n - 1], larger first; n is padded to a power of 2. */
FL_DEVICE void sort_list(const part &c, int32_t n) {
    int32_t size = 1;
    while (size < n) size *= 2;
    for (int32_t i = n + (int32_t)threadIdx.x; i < size; i += THREADS) c.list[i] = 0;
    __syncthreads();
    for (int32_t run = 2; run <= size; run *= 2) {
        for (int32_t step = run / 2; step > 0; step /= 2) {
            for (int32_t i = threadIdx.x; i < size / 2; i += THREADS) {
                int32_t a = 2 * i - (i & (step - 1)), b = a + step;
                uint64_t x = c.list[a], y = c.list[b];
                if ((x < y) == ((a & run) == 0)) {
                    c.list[a] = y;
                    c.list[b] = x;
                }
            }
            __syncthreads();
        }
    }
}

/* The other blocks' lists behind this one's. */
FL_DEVICE void collect(const part &c) {
    int32_t n = (int32_t)c.shared->n_listed;
    for (int32_t i = 1; i < BLOCKS; i++) {
        const uint64_t *from = at_rank(c.list, i);
        int32_t more = (int32_t)*at_rank(&c.shared->n_listed, i);
        for (int32_t j = threadIdx.x; j < more; j += THREADS) c.list[n + j] = from[j];
        n += more;
    }
    __syncthreads();
}

/* The token looked for among the n of the list, which has all that are left; the sum up to and with it. */
FL_DEVICE int32_t find_listed(part *c, const search &s, int32_t n, float best, uint64_t *sum) {
    post *shared = c->shared;
    uint64_t weights[LIST / THREADS], own = 0, total;
    collect(*c);
    sort_list(*c, n);
#pragma unroll
    for (int32_t j = 0; j < LIST / THREADS; j++) {
        int32_t i = LIST / THREADS * (int32_t)threadIdx.x + j;
        weights[j] = 0;
        if (i < n) weights[j] = fl_sample_weight(fl_sample_depth(logit_of(c->list[i]), best, c->how->scale));
        own += weights[j];
    }
    uint64_t before = s.sum + block_before(c, own, &total);
#pragma unroll
    for (int32_t j = 0; j < LIST / THREADS; j++) {
        int32_t i = LIST / THREADS * (int32_t)threadIdx.x + j;
        uint64_t after = before + weights[j];
        bool found = s.by_count ? s.count + (uint64_t)i == s.target : s.target >= before && s.target < after;
        if (i < n && found) {
            shared->found = id_of(c->list[i]);
            shared->found_sum = after;
        }
        before = after;
    }
    __syncthreads();
    *sum = shared->found_sum;
    int32_t id = shared->found;
    __syncthreads();
    return id;
}

/* What the leader is at: first top_p, then top_k, then the token; each is a search. */
typedef enum stage { STAGE_TOP_P, STAGE_TOP_K, STAGE_TOKEN, STAGE_DONE } stage;

typedef struct lead {
    stage at;
    search s;
    uint64_t kept; /* sum of the tokens that filters let in, so far */
    float best;
    int32_t id;  /* the token */
    tally first; /* bins of depth */
} lead;

FL_DEVICE void say(part *c, const order &o) {
    if (threadIdx.x == 0) c->shared->next = o;
}

/* From the stage that `l` is at, the next one that has something to look for. */
FL_DEVICE void begin_search(part *c, lead *l) {
    const fl_sample_row &how = *c->how;
    if (l->at == STAGE_TOP_P && !(how.top_p < 1)) l->at = STAGE_TOP_K;
    if (l->at == STAGE_TOP_K && (how.top_k == 0 || (uint64_t)how.top_k >= l->first.count_total))
        l->at = STAGE_TOKEN;
    l->s = search{l->at == STAGE_TOP_K, 0, 0, 0};
    if (l->at == STAGE_TOP_P) l->s.target = fl_sample_nucleus(l->first.sum_total, how.top_p) - 1;
    if (l->at == STAGE_TOP_K) l->s.target = (uint64_t)how.top_k - 1;
    if (l->at == STAGE_TOKEN) l->s.target = fl_sample_aim(l->kept, how.uniform);
    int32_t bin = find_bin(c, l->first, &l->s);
    say(c, order{ORDER_GATHER, bin, 0, UINT32_MAX, 0, 0, 0});
}

/* A search has ended. */
FL_DEVICE void end_search(part *c, lead *l, int32_t id, uint64_t sum) {
    if (l->at == STAGE_TOKEN) {
        l->id = id;
        l->at = STAGE_DONE;
        say(c, order{ORDER_END, -1, 0, 0, 0, 0, 0});
        return;
    }
    l->kept = min(l->kept, sum);
    l->at = (stage)(l->at + 1);
    begin_search(c, l);
}

/* More tokens than a list holds, all of one key. */
FL_DEVICE void end_in_equals(part *c, lead *l, uint32_t key) {
    const search &s = l->s;
    uint64_t weight = fl_sample_weight(fl_sample_depth(value_of(key), l->best, c->how->scale));
    uint64_t nth = s.by_count ? s.target - s.count : (s.target - s.sum) / weight;
    if (l->at != STAGE_TOKEN) {
        end_search(c, l, -1, s.sum + (nth + 1) * weight);
        return;
    }
    order o = {ORDER_NTH, -1, key, key, 0, 0, (int32_t)nth};
    for (int32_t n; o.rank < BLOCKS - 1; o.rank++, o.nth -= n) {
        n = (int32_t)*at_rank(&c->shared->n_listed, o.rank);
        if (o.nth < n) break;
    }
    say(c, o);
}

/* Blocks have gathered. */
FL_DEVICE void after_gather(part *c, lead *l) {
    uint32_t n = 0, low = UINT32_MAX, high = 0;
    for (int32_t i = 0; i < BLOCKS; i++) {
        n += *at_rank(&c->shared->n_listed, i);
        low = min(low, *at_rank(&c->shared->low, i));
        high = max(high, *at_rank(&c->shared->high, i));
    }
    if (n <= LIST) {
        uint64_t sum;
        int32_t id = find_listed(c, l->s, (int32_t)n, l->best, &sum);
        end_search(c, l, id, sum);
        return;
    }
    __syncthreads(); /* all have read */
    if (low == high) {
        end_in_equals(c, l, low);
        return;
    }
    int32_t shift = 0;
    while ((high - low) >> shift >= BINS) shift++;
    say(c, order{ORDER_BINS, -1, low, high, shift, 0, 0});
}

/* Bins of keys are there. */
FL_DEVICE void after_bins(part *c, lead *l, const order &o) {
    tally t;
    read_bins(c, &t);
    uint32_t bin = (uint32_t)find_bin(c, t, &l->s);
    uint32_t high = o.high - (bin << o.shift), wide = (1u << o.shift) - 1;
    say(c, order{ORDER_GATHER, -1, high - o.low > wide ? high - wide : o.low, high, 0, 0, 0});
}

/* What the leader makes of what was done. */
FL_DEVICE void go_on(part *c, lead *l, const order &o) {
    if (o.kind == ORDER_GATHER) {
        after_gather(c, l);
    } else if (o.kind == ORDER_BINS) {
        after_bins(c, l, o);
    } else {
        int32_t id = *at_rank(&c->shared->nth_id, o.rank);
        end_search(c, l, id, 0);
    }
}

FL_DEVICE void begin_lead(part *c, lead *l, uint64_t best) {
    read_bins(c, &l->first);
    uint64_t least = 0;
    for (int32_t i = 0; i < BLOCKS; i++) least += *at_rank(&c->shared->least_sum, i);
    l->at = STAGE_TOP_P;
    l->best = logit_of(best);
    l->id = id_of(best);
    l->kept = c->how->min_log2 > -INFINITY ? least : l->first.sum_total;
    if (l->first.sum_total > 0 && l->kept > 0) begin_search(c, l);
    else say(c, order{ORDER_END, -1, 0, 0, 0, 0, 0}); /* infinite logits: the first of them */
}

/* The token; only block 0's is meant. */
FL_DEVICE int32_t draw(part *c, uint64_t best_entry) {
    lead l;
    float best = logit_of(best_entry);
    fill_bins(c, best);
    fl_cluster_sync();
    if (c->rank == 0) begin_lead(c, &l, best_entry);
    for (;;) {
        fl_cluster_sync();
        const order o = *at_rank(&c->shared->next, 0);
        if (o.kind == ORDER_END) return l.id;
        if (o.kind == ORDER_GATHER) gather(c, o, best);
        else if (o.kind == ORDER_BINS) fill_key_bins(c, o, best);
        else if (o.rank == c->rank) find_nth(c, o);
        fl_cluster_sync();
        if (c->rank == 0) go_on(c, &l, o);
    }
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

/* The first tokens of all blocks in order: each counts those before it. */
FL_DEVICE void put_top(const part &c, double normaliser, fl_sample *out) {
    int32_t n = c.how->n_top, i = threadIdx.x, place = 0;
    if (i >= BLOCKS * n) return;
    uint64_t own = *at_rank(&c.shared->top[i % n], i / n);
    int32_t n_all = 0;
    for (int32_t j = 0; j < BLOCKS * n; j++) {
        uint64_t other = *at_rank(&c.shared->top[j % n], j / n);
        place += other > own;
        n_all += other > 0;
    }
    if (own > 0 && place < n) {
        out->top[place].token = id_of(own);
        out->top[place].logprob = (float)((double)logit_of(own) - normaliser);
    }
    if (i < n && i >= n_all) {
        out->top[i].token = -1;
        out->top[i].logprob = 0;
    }
}

FL_DEVICE void put(const part &c, float best, int32_t token, fl_sample *out) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < BLOCKS; i++) sum += *at_rank(&c.shared->plain_sum, i);
    double normaliser = fl_sample_normaliser(best, sum);
    if (c.how->n_top > 0) put_top(c, normaliser, out);
    if (threadIdx.x != 0) return;
    const float *logits = c.p->logits + (int64_t)(blockIdx.x / BLOCKS) * c.p->stride;
    out->token = token;
    out->bad = -1;
    out->logprob = token >= 0 ? (float)((double)logits[token] - normaliser) : 0;
}

FL_DEVICE int32_t find_bad(const part &c) {
    int32_t bad = INT32_MAX;
    for (int32_t i = 0; i < BLOCKS; i++) bad = min(bad, *at_rank(&c.shared->bad, i));
    return bad;
}

/* The token, from the row as it is in shared memory. */
FL_DEVICE int32_t choose(part *c, uint64_t best) {
    const fl_sample_row &how = *c->how;
    if (is_changed(how)) {
        adjust(c, true);
        best = find_best(c, 1);
    }
    if (best == 0 && how.n_banned > 0) {
        __syncthreads();
        load(c);
        adjust(c, false);
        best = find_best(c, 2);
    }
    if (best == 0) return -1;
    return how.scale == 0 ? id_of(best) : draw(c, best);
}

/* Shared: values [share], three times BINS words, list [LIST]. */
static __global__ void __cluster_dims__(BLOCKS) __launch_bounds__(THREADS, 2)
    sample_kernel(const __grid_constant__ params p) {
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ post shared;
    part c = {};
    c.p = &p;
    c.how = &p.rows[blockIdx.x / BLOCKS];
    c.shared = &shared;
    c.list = (uint64_t *)memory;
    c.low = (uint32_t *)(c.list + LIST);
    c.high = c.low + BINS;
    c.many = c.high + BINS;
    c.values = (float *)(c.many + BINS);
    c.rank = (int32_t)fl_cluster_rank();
    c.first = c.rank * p.share;
    c.n = max(0, min(p.share, p.n_known - c.first));
    fl_sample *out = p.out + blockIdx.x / BLOCKS;
    int32_t bad = load(&c);
    bad = (int32_t)(UINT32_MAX - block_max(&c, UINT32_MAX - (uint32_t)bad));
    if (threadIdx.x == 0) shared.bad = bad;
    uint64_t best = find_best(&c, 0);
    bad = find_bad(c);
    if (bad == INT32_MAX) {
        uint64_t sum = sum_plain(&c, logit_of(best));
        if (threadIdx.x == 0) shared.plain_sum = sum;
        find_top(&c);
        int32_t token = choose(&c, best);
        fl_cluster_sync();
        if (c.rank == 0) put(c, logit_of(best), token, out);
    } else if (c.rank == 0 && threadIdx.x == 0) {
        out->token = -1;
        out->bad = bad;
        out->logprob = 0;
    }
    fl_cluster_sync(); /* nobody leaves while others read its memory */
}

extern "C" fl_err fl_sample_cuda(fl_backend *be, const fl_sample_args *a) {
    FL_TRY(fl_sample_validate(a));
    params p = {};
    p.stride = a->logits_stride;
    p.n_known = a->n_known;
    p.lists = a->lists;
    p.share = (int32_t)fl_tasks_of(a->n_known, BLOCKS * 64) * 64;
    p.wide = (uintptr_t)a->logits % 16 == 0 && a->logits_stride % 4 == 0;
    int32_t shared_bytes = LIST * 8 + 3 * BINS * 4 + p.share * 4;
    FL_CUDA_TRY(
        cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    for (int32_t row = 0; row < a->n_rows; row += ROWS) {
        int32_t n = a->n_rows - row < ROWS ? a->n_rows - row : ROWS;
        p.logits = a->logits + row * a->logits_stride;
        p.out = a->out + row;
        for (int32_t i = 0; i < n; i++) p.rows[i] = a->rows[row + i];
        sample_kernel<<<(uint32_t)(n * BLOCKS), THREADS, (size_t)shared_bytes, fl_cuda_of(be)->stream>>>(p);
        FL_TRY(FL_CUDA_LAUNCHED("sample"));
    }
    return FL_ERR_OK;
}
