/* sample, CUDA. Grid: a cluster of 8 blocks a row, each with an eighth of its ids in shared memory, which is read from
 * memory once. Block: 512 threads, two blocks a multiprocessor at 129,280 ids.
 *
 * No sort of the vocabulary: block 0 leads. What is looked for is a sum of weights in the order of tokens (top_p's, the
 * drawn one), or a rank (top_k's). Mostly it lies among the head, tokens of at least a thousandth of the best one's
 * weight: these are sorted. Where it does not, or where the head is more than a list holds, all weights are added up in
 * 1,024 bins of depth; one of them holds it, whose tokens are gathered and sorted. More than fit are cut into bins
 * again, by the bits of their logits, until they do or are all equal.
 * Bound by the latency of these passes for a row, by the arithmetic of the weights for 64. */
#include "op/sample/sample_lead.cuh"

/* ---- the row --------------------------------------------------------------------------------------------------- */

/* Of the tokens that a thread has loaded: the first in order, and the smallest id that is not finite. */
typedef struct loaded {
    uint64_t best;
    int32_t bad;
} loaded;

FL_DEVICE void look_at(float value, int32_t id, loaded *found) {
    found->best = max(found->best, entry_of(value, id));
    if (!(fabsf(value) < INFINITY)) found->bad = min(found->bad, id);
}

/* The block's share, into shared memory. */
FL_DEVICE loaded load(part *c) {
    const float *from = c->p->logits + (int64_t)(blockIdx.x / BLOCKS) * c->p->stride + c->first;
    int32_t quads = c->p->wide ? c->n / 4 : 0;
    loaded found = {0, INT32_MAX};
#pragma unroll 8
    for (int32_t i = threadIdx.x; i < quads; i += THREADS) {
        float4 quad = __ldg((const float4 *)from + i);
        ((float4 *)c->values)[i] = quad;
        look_at(quad.x, c->first + 4 * i, &found);
        look_at(quad.y, c->first + 4 * i + 1, &found);
        look_at(quad.z, c->first + 4 * i + 2, &found);
        look_at(quad.w, c->first + 4 * i + 3, &found);
    }
    for (int32_t i = 4 * quads + threadIdx.x; i < c->n; i += THREADS) {
        float value = __ldg(from + i);
        c->values[i] = value;
        look_at(value, c->first + i, &found);
    }
    return found;
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

/* The first token of the row, of all blocks, which all find; `best` is this thread's. `slot` of post.best is used
 * once. */
FL_DEVICE uint64_t find_best(part *c, int32_t slot, uint64_t best) {
    best = block_max(c, best);
    if (threadIdx.x == 0) c->shared->best[slot] = best;
    fl_cluster_sync();
    for (int32_t i = 0; i < BLOCKS; i++) best = max(best, *at_rank(&c->shared->best[slot], i));
    return best;
}

/* The first token behind `limit` of those that lane `of` of this warp walks, by all lanes. */
FL_DEVICE uint64_t best_of_lane_below(const part &c, int32_t of, uint64_t limit) {
    uint64_t best = 0;
    int32_t lane = threadIdx.x % 32;
    for (int32_t i = (int32_t)threadIdx.x - lane + of + lane * THREADS; i < c.n; i += 32 * THREADS) {
        uint64_t entry = entry_of(c.values[i], c.first + i);
        if (entry < limit) best = max(best, entry);
    }
#pragma unroll
    for (int32_t step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(~0u, best, step));
    return best;
}

/* The block's first tokens in order. */
FL_DEVICE void find_top(part *c) {
    if (c->how->n_top == 0) return;
    uint64_t mine = best_below(*c, UINT64_MAX);
    for (int32_t i = 0; i < c->how->n_top; i++) {
        uint64_t best = block_max(c, mine);
        if (threadIdx.x == 0) c->shared->top[i] = best;
        uint32_t owner = __ballot_sync(~0u, mine == best && best > 0);
        if (owner == 0) continue;
        int32_t of = __ffs((int32_t)owner) - 1;
        uint64_t next = best_of_lane_below(*c, of, best);
        if ((int32_t)(threadIdx.x % 32) == of) mine = next;
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

/* All weights into bins of depth. */
FL_DEVICE void fill_bins(part *c, float best) {
    clear_bins(*c);
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < c->n; i += THREADS) {
        float depth = fl_sample_depth(c->values[i], best, c->how->scale);
        uint64_t weight = fl_sample_weight(depth);
        if (weight > 0) add_to_bin(*c, bin_of(depth), weight);
    }
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

FL_DEVICE bool is_wanted(const order &o, float depth, float value) {
    if (o.bin >= 0) return depth > -FL_SAMPLE_DEPTH_MAX && bin_of(depth) == o.bin;
    uint32_t key = key_of(value);
    return value > -INFINITY && key >= o.low && key <= o.high;
}

/* Empties the list. */
FL_DEVICE void clear_list(const part &c) {
    if (threadIdx.x == 0) {
        c.shared->n_listed = c.shared->high = 0;
        c.shared->low = UINT32_MAX;
    }
    __syncthreads();
}

/* Tokens that a thread looks at before its warp asks whether any is wanted: most are not. */
enum { LOOKS = 4 };

/* Lists the tokens base + k THREADS + threadIdx.x that are wanted, as many as there is room for, and counts all. Called
 * by whole warps. */
FL_DEVICE void list_tokens(const part &c, const bool (&wanted)[LOOKS], int32_t base) {
    int32_t lane = threadIdx.x % 32;
    bool any = false;
#pragma unroll
    for (int32_t k = 0; k < LOOKS; k++) any = any || wanted[k];
    if (__ballot_sync(~0u, any) == 0) return;
#pragma unroll
    for (int32_t k = 0; k < LOOKS; k++) {
        uint32_t lanes = __ballot_sync(~0u, wanted[k]), at = 0;
        int32_t i = base + k * THREADS + (int32_t)threadIdx.x;
        if (lane == 0 && lanes != 0) at = atomicAdd(&c.shared->n_listed, (uint32_t)__popc(lanes));
        at = __shfl_sync(~0u, at, 0) + (uint32_t)__popc(lanes & ((1u << lane) - 1));
        if (wanted[k] && at < LIST) c.list[at] = entry_of(c.values[i], c.first + i);
    }
}

/* Token i of the block's, or behind its last one. */
FL_DEVICE float value_at(const part &c, int32_t i) {
    return i < c.n ? c.values[i] : -INFINITY;
}

/* Lists this block's tokens that are wanted, in any order, and finds their smallest and largest key. */
FL_DEVICE void gather(part *c, const order &o, float best) {
    uint32_t low = UINT32_MAX, high = 0;
    clear_list(*c);
    for (int32_t base = 0; base < c->n; base += LOOKS * THREADS) {
        bool wanted[LOOKS];
#pragma unroll
        for (int32_t k = 0; k < LOOKS; k++) {
            float value = value_at(*c, base + k * THREADS + (int32_t)threadIdx.x);
            wanted[k] = is_wanted(o, fl_sample_depth(value, best, c->how->scale), value);
            if (!wanted[k]) continue;
            low = min(low, key_of(value));
            high = max(high, key_of(value));
        }
        list_tokens(*c, wanted, base);
    }
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    if (threadIdx.x % 32 == 0 && low <= high) {
        atomicMin(&c->shared->low, low);
        atomicMax(&c->shared->high, high);
    }
}

/* Lists the head, and adds up all weights and those that min_log2 lets in: the plain row's are known. */
FL_DEVICE void gather_head(part *c, float best) {
    const fl_sample_row &how = *c->how;
    bool known = how.scale == FL_SAMPLE_LOG2E && !is_changed(how) && !(how.min_log2 > -INFINITY);
    uint64_t sum = 0, least = 0;
    clear_list(*c);
    for (int32_t base = 0; base < c->n; base += LOOKS * THREADS) {
        bool wanted[LOOKS];
#pragma unroll
        for (int32_t k = 0; k < LOOKS; k++) {
            float value = value_at(*c, base + k * THREADS + (int32_t)threadIdx.x);
            float depth = fl_sample_depth(value, best, how.scale);
            wanted[k] = depth > -(float)HEAD_DEPTH;
            uint64_t weight = known ? 0 : fl_sample_weight(depth);
            sum += weight;
            least += depth >= how.min_log2 ? weight : 0;
        }
        list_tokens(*c, wanted, base);
    }
    sum = block_sum(c, sum);
    least = block_sum(c, least);
    if (threadIdx.x != 0) return;
    c->shared->sum = known ? c->shared->plain_sum : sum;
    c->shared->least_sum = known ? c->shared->plain_sum : least;
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

/* ---- answers --------------------------------------------------------------------------------------------------- */

/* The token; only block 0's is meant. */
FL_DEVICE int32_t draw(part *c, uint64_t best_entry) {
    lead l;
    float best = logit_of(best_entry);
    gather_head(c, best);
    fl_cluster_sync();
    if (c->rank == 0) begin_lead(c, &l, best_entry);
    for (;;) {
        fl_cluster_sync();
        const order o = *at_rank(&c->shared->next, 0);
        if (o.kind == ORDER_END) return l.id;
        if (o.kind == ORDER_DEPTHS) fill_bins(c, best);
        else if (o.kind == ORDER_GATHER) gather(c, o, best);
        else if (o.kind == ORDER_BINS) fill_key_bins(c, o, best);
        else if (o.rank == c->rank) find_nth(c, o);
        fl_cluster_sync();
        if (c->rank == 0) go_on(c, &l, o);
    }
}

/* The first tokens of all blocks in order: each counts those before it. */
FL_DEVICE void put_top(const part &c, double normaliser, fl_sample *out) {
    int32_t n = c.how->n_top, i = threadIdx.x, place = 0, n_all = 0;
    if (i < BLOCKS * n) c.list[i] = *at_rank(&c.shared->top[i % n], i / n);
    __syncthreads();
    if (i >= BLOCKS * n) return;
    uint64_t own = c.list[i];
    for (int32_t j = 0; j < BLOCKS * n; j++) {
        place += c.list[j] > own;
        n_all += c.list[j] > 0;
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
        best = find_best(c, 1, best_below(*c, UINT64_MAX));
    }
    if (best == 0 && how.n_banned > 0) {
        __syncthreads();
        load(c);
        adjust(c, false);
        best = find_best(c, 2, best_below(*c, UINT64_MAX));
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
    const loaded found = load(&c);
    int32_t bad = (int32_t)(UINT32_MAX - block_max(&c, UINT32_MAX - (uint32_t)found.bad));
    if (threadIdx.x == 0) shared.bad = bad;
    uint64_t best = find_best(&c, 0, found.best);
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
