/* sample, CUDA. Grid: a cluster of 8 blocks a row, each with an eighth of its ids in shared memory, which is read from
 * memory once. Block: 512 threads, two blocks a multiprocessor at 129,280 ids.
 *
 * No sort of the vocabulary: all blocks add up weights and list their tokens of the head, and send both to block 0,
 * which sorts the list and finds what is looked for in it: a sum of weights in the order of tokens (top_p's, the drawn
 * one) or a rank (top_k's, the alternatives). The head is what lies above some of the largest logits of 128 groups of
 * tokens, at least as many as are asked for; where it ends is known before any token is looked at again. All blocks
 * know from the sums whether it is enough, and leave: the next row takes their places while block 0 sorts.
 * Where it is not, all weights are added up in 1,024 bins of depth, at once where the row looks flat; one of them holds
 * what is looked for, whose tokens are listed. More than fit are cut into bins again, by the bits of their logits,
 * until they do or are all equal.
 * Bound by the latency of these passes for a row, by the arithmetic of the weights for 64. */
#include "op/sample/sample_lead.cuh"

/* ---- the row --------------------------------------------------------------------------------------------------- */

/* Quads of ids that a thread has in flight while a row is read. */
enum { LOADS = 8 };

/* Of the tokens of a thread: every THREADS'th quad. */
typedef struct seen {
    float best;
    int32_t at; /* the first quad that holds it */
    float odd;  /* NaN: a logit is not finite */
} seen;

FL_DEVICE float largest_of(float4 quad) {
    return fmaxf(fmaxf(quad.x, quad.y), fmaxf(quad.z, quad.w));
}

FL_DEVICE void look_at(float4 quad, int32_t at, seen *s) {
    float largest = largest_of(quad);
    if (largest > s->best) s->at = at;
    s->best = fmaxf(s->best, largest);
}

/* The block's share, into shared memory. */
FL_DEVICE seen load(const part &c) {
    const float *from = c.logits;
    int32_t whole = c.wide ? c.n / 4 : 0, at = threadIdx.x;
    seen s = {-INFINITY, 0, 0};
    for (; at - (int32_t)threadIdx.x < whole; at += LOADS * THREADS) {
        float4 quad[LOADS];
#pragma unroll
        for (int32_t k = 0; k < LOADS; k++)
            if (at + k * THREADS < whole) quad[k] = __ldg((const float4 *)from + at + k * THREADS);
#pragma unroll
        for (int32_t k = 0; k < LOADS; k++) {
            if (at + k * THREADS >= whole) continue;
            quads_here()[at + k * THREADS] = quad[k];
            look_at(quad[k], at + k * THREADS, &s);
            s.odd = fmaf(quad[k].x, 0.0f, fmaf(quad[k].y, 0.0f, s.odd));
            s.odd = fmaf(quad[k].z, 0.0f, fmaf(quad[k].w, 0.0f, s.odd));
        }
    }
    at = whole / THREADS * THREADS + (int32_t)threadIdx.x;
    for (at += at < whole ? THREADS : 0; at < c.quads; at += THREADS) {
        for (int32_t i = 4 * at; i < 4 * at + 4; i++) {
            values_here()[i] = i < c.n ? __ldg(from + i) : -INFINITY;
            if (i < c.n) s.odd = fmaf(values_here()[i], 0.0f, s.odd);
        }
        look_at(quads_here()[at], at, &s);
    }
    return s;
}

/* Of the row as it is in shared memory. */
FL_DEVICE seen look_again(const part &c) {
    seen s = {-INFINITY, 0, 0};
    for (int32_t at = threadIdx.x; at < c.quads; at += THREADS) look_at(quads_here()[at], at, &s);
    return s;
}

/* The block's list is empty. Behind it, a barrier. */
FL_DEVICE void begin_list(void) {
    post *shared = post_here();
    if (threadIdx.x != 0) return;
    shared->n_own = shared->own_high = shared->n_collected = 0;
    shared->own_low = UINT32_MAX;
    shared->own_first = INT32_MAX;
}

/* The key of the row's largest logit; UINT32_MAX: one is not finite. */
FL_DEVICE uint32_t tell_best(const part &c, const seen &s) {
    int32_t lane = threadIdx.x % 32, group = c.rank * WARPS + (int32_t)threadIdx.x / 32;
    uint32_t best = 0, key = __reduce_max_sync(~0u, s.odd == 0 ? key_of(s.best) : UINT32_MAX);
    if (lane < BLOCKS) *fl_cluster_at(&post_here()->best[group], lane) = key;
    begin_list();
    fl_cluster_sync();
#pragma unroll
    for (int32_t i = lane; i < GROUPS; i += 32) best = max(best, post_here()->best[i]);
    return __reduce_max_sync(~0u, best);
}

/* The block's smallest id whose logit is `best`, the row's largest. */
FL_DEVICE void find_first(const part &c, const seen &s, float best) {
    if (s.best != best) return;
    const float4 quad = quads_here()[s.at];
    int32_t j = quad.x == best ? 0 : quad.y == best ? 1 : quad.z == best ? 2 : 3;
    atomicMin(&post_here()->own_first, c.first + 4 * s.at + j);
}

FL_DEVICE bool is_changed(const fl_sample_row &how) {
    return how.n_marks + how.n_biases + how.n_banned > 0 || how.allowed_at >= 0;
}

/* Penalties, biases, bans: in this order, each token by one thread. */
FL_DEVICE void adjust(const part &c, bool banned) {
    const fl_sample_row &how = how_here();
    const fl_sample_mark *marks = (const fl_sample_mark *)(c.lists + how.marks_at);
    const fl_logit_bias *biases = (const fl_logit_bias *)(c.lists + how.biases_at);
    const int32_t *bans = (const int32_t *)(c.lists + how.banned_at);
    const uint64_t *allowed = (const uint64_t *)(c.lists + how.allowed_at) + c.first / 64;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < how.n_marks; i += THREADS) {
        int32_t at = marks[i].token - c.first;
        if (at >= 0 && at < c.n)
            values_here()[at] = fl_sample_penalised(values_here()[at], &how, marks[i].count);
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < how.n_biases; i += THREADS) {
        int32_t at = biases[i].token - c.first;
        if (at >= 0 && at < c.n) values_here()[at] = __fadd_rn(values_here()[at], biases[i].bias);
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; banned && i < how.n_banned; i += THREADS) {
        int32_t at = bans[i] - c.first;
        if (at >= 0 && at < c.n) values_here()[at] = -INFINITY;
    }
    for (int32_t i = threadIdx.x; how.allowed_at >= 0 && i < c.n; i += THREADS)
        if (!(allowed[i / 64] >> i % 64 & 1)) values_here()[i] = -INFINITY;
    __syncthreads();
}

/* ---- bins ------------------------------------------------------------------------------------------------------ */

/* The weights of keys o.low .. o.high into bins of keys. */
FL_DEVICE void fill_key_bins(const part &c, const order &o, float best) {
    clear_bins();
    for (int32_t i = threadIdx.x; i < c.n; i += THREADS) {
        uint32_t key = key_of(values_here()[i]);
        if (!(values_here()[i] > -INFINITY) || key < o.low || key > o.high) continue;
        const uint64_t weight[] = {
            fl_sample_weight(fl_sample_depth(values_here()[i], best, how_here().scale))};
        const int32_t bin[] = {(int32_t)((o.high - key) >> o.shift)};
        add_to_bins(bin, weight, how_here().top_k > 0);
    }
}

/* ---- sums ------------------------------------------------------------------------------------------------------ */

typedef struct weights {
    uint64_t sum, least; /* of all; of those that a filter lets in */
} weights;

/* The weights of the block's tokens, also into bins of depth if `bins`. */
FL_DEVICE weights weigh(part *c, float best, float scale, float min_log2, bool bins) {
    weights w = {0, 0};
    bool filters = min_log2 > -INFINITY;
    if (bins) clear_bins();
#pragma unroll 2
    for (int32_t at = threadIdx.x; at < c->quads; at += THREADS) {
        const float4 quad = quads_here()[at];
        const float values[4] = {quad.x, quad.y, quad.z, quad.w};
        uint64_t each[4];
        /* mostly no weight of theirs counts */
        if (!(fl_sample_depth(largest_of(quad), best, scale) > -FL_SAMPLE_DEPTH_MAX)) continue;
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            float depth = fl_sample_depth(values[j], best, scale);
            each[j] = fl_sample_weight(depth);
            w.sum += each[j];
            if (filters) w.least += depth >= min_log2 ? each[j] : 0;
        }
        if (!bins) continue;
        int32_t places[4];
#pragma unroll
        for (int32_t j = 0; j < 4; j++)
            places[j] = each[j] > 0 ? (int32_t)place_of(values[j], best, scale) : -1;
        add_to_bins(places, each, how_here().top_k > 0);
    }
    w.sum = block_sum(c, w.sum);
    w.least = filters ? block_sum(c, w.least) : w.sum;
    return w;
}

/* levels[k]: there are more than k tokens of at least this logit, if any are left. */
FL_DEVICE void rank_groups(void) {
    const uint32_t *best = post_here()->best, cut = ~(GROUPS_MAX - 1u);
    int32_t own = min((int32_t)threadIdx.x / A_GROUP, GROUPS - 1), lane = threadIdx.x % A_GROUP, rank = 0;
    uint32_t unique = (best[own] & cut) | (uint32_t)own;
#pragma unroll 8
    for (int32_t i = lane; i < GROUPS; i += A_GROUP) rank += ((best[i] & cut) | (uint32_t)i) > unique;
#pragma unroll
    for (int32_t step = 1; step < A_GROUP; step *= 2) rank += __shfl_xor_sync(~0u, rank, step);
    if (lane == 0) post_here()->levels[rank] = value_of(max(best[own] & cut, key_of(-FLT_MAX)));
    __syncthreads();
}

/* The largest logits of the groups that have any left: their mean, the least, how many. */
typedef struct crest {
    float mean, last;
    int32_t n;
} crest;

FL_DEVICE crest look_at_groups(void) {
    float sum = 0;
    uint32_t last = UINT32_MAX, n = 0;
#pragma unroll
    for (int32_t i = 0; i < GROUPS; i += 32) {
        int32_t group = i + (int32_t)threadIdx.x % 32;
        uint32_t key = group < GROUPS ? post_here()->best[group] : 0;
        bool live = key > key_of(-INFINITY);
        sum += live ? value_of(key) : 0;
        last = min(last, live ? key : UINT32_MAX);
        n += live;
    }
    n = __reduce_add_sync(~0u, n);
    return crest{fl_warp_sum(sum) / (float)n, value_of(__reduce_min_sync(~0u, last)), (int32_t)n};
}

/* Where the head ends: at HEAD_DEPTH, but it reaches down to the mean of the groups' largest logits, and not below the
 * least of them. INFINITY: the row is flat, no head of that size holds the token. */
FL_DEVICE float end_of_head(float best, bool draws) {
    const fl_sample_row &how = how_here();
    const crest groups = look_at_groups();
    int32_t wanted = how.n_top;
    float end = INFINITY;
    if (draws) end = fmaxf(fminf(best - HEAD_DEPTH / how.scale, groups.mean), groups.last);
    if (draws && how.top_k <= GROUPS) wanted = max(wanted, how.top_k);
    if (wanted > 0) {
        rank_groups();
        return fminf(end, post_here()->levels[wanted - 1]);
    }
    return groups.n >= GROUPS / 4 && (groups.mean - groups.last) * how.scale < FLAT_DEPTH ? INFINITY : end;
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

/* Which of a quad's tokens are wanted, a bit each. */
FL_DEVICE uint32_t wanted_of(const order &o, float4 quad, float best, float least, float most) {
    const float values[4] = {quad.x, quad.y, quad.z, quad.w};
    uint32_t wanted = 0;
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        bool is = values[j] >= least && values[j] <= most;
        if (o.bin >= 0) {
            float place = place_of(values[j], best, how_here().scale), one = (float)o.bin,
                  other = (float)o.other;
            is = (place >= one && place < one + 1) || (place >= other && place < other + 1);
        }
        wanted |= is ? 1u << j : 0;
    }
    return wanted;
}

/* Lists this block's tokens that are wanted, in any order, as many as there is room for, counts all, and finds their
 * smallest and largest key. */
FL_DEVICE void gather(const part &c, const order &o, float best) {
    float least = value_of(max(o.low, key_of(-FLT_MAX))), most = value_of(min(o.high, key_of(INFINITY)));
    uint32_t low = UINT32_MAX, high = 0;
    int32_t quads = c.quads, lane = threadIdx.x % 32;
    for (int32_t base = (int32_t)threadIdx.x - lane; base < quads; base += LOADS * THREADS) {
        uint32_t wanted = 0;
#pragma unroll
        for (int32_t k = 0; k < LOADS; k++) {
            int32_t at = base + lane + k * THREADS;
            if (at < quads) wanted |= wanted_of(o, quads_here()[at], best, least, most) << 4 * k;
        }
        if (!__any_sync(~0u, wanted != 0)) continue;
        uint32_t at = (uint32_t)__popc(wanted), n = at, from = 0;
#pragma unroll
        for (int32_t step = 1; step < 32; step *= 2) {
            uint32_t other = __shfl_up_sync(~0u, at, step);
            at += lane >= step ? other : 0;
        }
        if (lane == 31) from = atomicAdd(&post_here()->n_own, at);
        at += __shfl_sync(~0u, from, 31) - n;
        for (; wanted != 0; wanted &= wanted - 1, at++) {
            int32_t bit = __ffs((int32_t)wanted) - 1, i = 4 * (base + lane + bit / 4 * THREADS) + bit % 4;
            uint64_t entry = entry_of(values_here()[i], c.first + i);
            if (at < OWN_LIST) here()->own[at] = entry;
            low = min(low, (uint32_t)(entry >> 32));
            high = max(high, (uint32_t)(entry >> 32));
        }
    }
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    if (lane == 0 && low <= high) {
        atomicMin(&post_here()->own_low, low);
        atomicMax(&post_here()->own_high, high);
    }
}

/* The id of this block's nth token of a key, from 0 on, for block 0. */
FL_DEVICE void find_nth(part *c, const order &o) {
    uint64_t n = 0, total;
    for (int32_t base = 0; base < c->n; base += THREADS) {
        int32_t i = base + (int32_t)threadIdx.x;
        bool equal = i < c->n && values_here()[i] > -INFINITY && key_of(values_here()[i]) == o.low;
        uint64_t before = n + block_before(c, equal, &total);
        if (equal && before == (uint64_t)o.nth) *fl_cluster_at(&post_here()->nth_id, 0) = c->first + i;
        n += total;
    }
}

/* This thread's first token of those behind `limit`; 0: none is left. */
FL_DEVICE uint64_t best_below(const part &c, uint64_t limit) {
    uint64_t best = 0;
    for (int32_t i = threadIdx.x; i < c.n; i += THREADS) {
        uint64_t entry = entry_of(values_here()[i], c.first + i);
        if (entry < limit) best = max(best, entry);
    }
    return best;
}

/* Lists the block's first tokens, n_top of them: where those of the last one's logit are more than fit. */
FL_PART void list_first(part c) {
    uint64_t mine = best_below(c, UINT64_MAX);
    for (int32_t i = 0; i < how_here().n_top; i++) {
        uint64_t best = block_max(&c, mine);
        if (best == 0) break;
        if (threadIdx.x == 0) here()->own[i] = best;
        if (threadIdx.x == 0) post_here()->n_own = (uint32_t)i + 1;
        if (mine == best) mine = best_below(c, best);
    }
}

/* Tells all blocks `t` and what is listed, whose weights are added up where `scale` is one; block 0 gets the list. */
FL_DEVICE row_sums tell(part *c, told t, float best, float scale) {
    post *shared = post_here();
    uint64_t sum = 0;
    __syncthreads();
    int32_t n = (int32_t)shared->n_own, kept = min(n, (int32_t)OWN_LIST);
    if (threadIdx.x == THREADS - 1 && n > 0)
        shared->own_at = atomicAdd(fl_cluster_at(&shared->n_collected, 0), (uint32_t)n);
    if (scale > 0 && n > 0) {
        for (int32_t i = threadIdx.x; i < kept; i += THREADS)
            sum += fl_sample_weight(fl_sample_depth(logit_of(here()->own[i]), best, scale));
        sum = block_sum(c, sum);
    }
    if (threadIdx.x == 0) {
        t.listed_sum = sum;
        t.n_listed = (uint32_t)n;
        t.low = shared->own_low;
        t.high = shared->own_high;
        t.first_id = shared->own_first;
        shared->mine = t;
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < kept; i += THREADS)
        if (shared->own_at + i < LIST) fl_cluster_at(here()->list, 0)[shared->own_at + i] = here()->own[i];
    if (threadIdx.x < BLOCKS * TOLD_WORDS) {
        int32_t word = threadIdx.x % TOLD_WORDS;
        told *there = fl_cluster_at(&shared->all[c->rank], (int32_t)threadIdx.x / TOLD_WORDS);
        ((uint64_t *)there)[word] = ((const uint64_t *)&shared->mine)[word];
    }
    fl_cluster_sync();
    return sums_of_row();
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

FL_PART void put_bad(part c, fl_sample *out) {
    int32_t bad = INT32_MAX;
    for (int32_t i = threadIdx.x; i < c.n; i += THREADS)
        if (!(fabsf(values_here()[i]) < INFINITY)) bad = min(bad, c.first + i);
    atomicMin(&post_here()->own_first, bad);
    __syncthreads();
    if (threadIdx.x < BLOCKS)
        *fl_cluster_at(&post_here()->bad[c.rank], (int32_t)threadIdx.x) = post_here()->own_first;
    fl_cluster_sync();
    if (c.rank != 0 || threadIdx.x != 0) return;
    for (int32_t i = 1; i < BLOCKS; i++) bad = min(bad, post_here()->bad[i]);
    out->token = -1;
    out->bad = min(bad, post_here()->bad[0]);
    out->logprob = 0;
}

/* The alternatives, from the n listed. */
FL_DEVICE void put_top(part *c, int32_t n, float best, double normaliser, fl_sample *out) {
    int32_t i = threadIdx.x;
    const uint64_t *list = sort_first(c, n, how_here().n_top, best);
    if (i >= how_here().n_top) return;
    out->top[i].token = i < n ? id_of(list[i]) : -1;
    out->top[i].logprob = i < n ? (float)((double)logit_of(list[i]) - normaliser) : 0;
}

FL_DEVICE void put(const part &c, int32_t token, double normaliser, fl_sample *out) {
    if (threadIdx.x != 0) return;
    out->token = token;
    out->bad = -1;
    out->logprob = token >= 0 ? (float)((double)c.logits[token] - normaliser) : 0;
}

/* Tells the row as it is in shared memory: IS_PLAIN, or changed. */
template <bool IS_PLAIN> FL_DEVICE row_sums tell_row(part *c, float best) {
    const fl_sample_row &how = how_here();
    bool draws = how.scale > 0 && IS_PLAIN == !is_changed(how), is_flat = false;
    told t = {};
    if (draws || (IS_PLAIN && how.n_top > 0)) {
        float end = end_of_head(best, draws);
        is_flat = draws && end == INFINITY;
        if (!is_flat) gather(*c, order{ORDER_GATHER, -1, -1, key_of(end), UINT32_MAX, 0, 0, 0}, best);
    }
    if (draws) {
        weights w = weigh(c, best, how.scale, how.min_log2, is_flat);
        t.sum = t.plain_sum = w.sum;
        t.least_sum = w.least;
    }
    if (IS_PLAIN && !(draws && how.scale == FL_SAMPLE_LOG2E))
        t.plain_sum = weigh(c, best, FL_SAMPLE_LOG2E, -INFINITY, false).sum;
    row_sums r = tell(c, t, best, draws ? how.scale : 0);
    r.has_bins = is_flat;
    return r;
}

/* Changes the row; its largest logit, -INFINITY: nothing is left. */
FL_DEVICE float change(const part &c, bool banned) {
    adjust(c, banned);
    const seen s = look_again(c);
    float best = value_of(tell_best(c, s));
    if (best > -INFINITY) find_first(c, s, best);
    return best;
}

/* As change, where bans have left nothing. */
FL_PART float change_again(part c) {
    fl_cluster_sync();
    load(c);
    return change(c, false);
}

/* A row whose head does not hold the token, by all blocks; block 0 gets it. */
FL_PART int32_t draw_by_orders(part c, row_sums r, float best) {
    lead l;
    if (!r.has_bins) {
        weigh(&c, best, how_here().scale, -INFINITY, true);
        fl_cluster_sync();
    }
    if (c.rank == 0) begin_lead(&c, &l, r, best);
    for (;;) {
        begin_list();
        fl_cluster_sync();
        const order o = post_here()->next;
        if (o.kind == ORDER_END) return l.id;
        if (o.kind == ORDER_GATHER) {
            gather(c, o, best);
            tell(&c, told{}, best, 0);
        } else {
            if (o.kind == ORDER_BINS) fill_key_bins(c, o, best);
            else if (o.rank == c.rank) find_nth(&c, o);
            fl_cluster_sync();
        }
        if (c.rank == 0) go_on(&c, &l, o);
    }
}

/* The alternatives, of the plain row. */
FL_DEVICE void find_top(part *c, const row_sums &r, float best, double normaliser, fl_sample *out) {
    int32_t n = r.n;
    if (!r.fits) {
        begin_list();
        fl_cluster_sync();
        list_first(*c);
        n = tell(c, told{}, best, 0).n;
    }
    if (c->rank == 0) put_top(c, n, best, normaliser, out);
}

FL_DEVICE void run(part *c, fl_sample *out) {
    const fl_sample_row &how = how_here();
    bool leads = c->rank == 0;
    const seen s = load(*c);
    fl_cluster_wait();
    uint32_t key = tell_best(*c, s);
    if (key == UINT32_MAX) {
        put_bad(*c, out);
        return;
    }
    float best = value_of(key);
    find_first(*c, s, best);
    row_sums r = tell_row<true>(c, best);
    double normaliser = leads ? fl_sample_normaliser(best, r.plain) : 0;
    if (how.n_top > 0) find_top(c, r, best, normaliser, out);
    if (is_changed(how)) {
        best = change(*c, true);
        if (!(best > -INFINITY) && how.n_banned > 0) best = change_again(*c);
        if (best > -INFINITY) r = tell_row<false>(c, best);
    }
    bool left = best > -INFINITY, in_head = !left || how.scale == 0 || is_in_head(how, r);
    if (in_head && !leads) return;
    int32_t token = !left ? -1 : r.first_id;
    if (left && how.scale > 0) token = in_head ? draw_from_head(c, r, best) : draw_by_orders(*c, r, best);
    if (leads) put(*c, token, normaliser, out);
}

/* Shared: block_memory, float [share]. */
static __global__ void __cluster_dims__(BLOCKS) __launch_bounds__(THREADS, 2)
    sample_kernel(const __grid_constant__ params p) {
    const int32_t row = (int32_t)blockIdx.x / BLOCKS, words = sizeof(fl_sample_row) / 4;
    part c = {};
    if ((int32_t)threadIdx.x < words)
        ((uint32_t *)&post_here()->how)[threadIdx.x] = ((const uint32_t *)&p.rows[row])[threadIdx.x];
    fl_cluster_arrive(); /* nobody writes to a block that has not begun */
    c.lists = p.lists;
    c.wide = p.wide;
    c.rank = (int32_t)fl_cluster_rank();
    c.quads = p.share / 4;
    c.first = c.rank * p.share;
    c.n = max(0, min(p.share, p.n_known - c.first));
    c.logits = p.logits + row * p.stride + c.first;
    run(&c, p.out + row);
}

extern "C" fl_err fl_sample_cuda(fl_backend *be, const fl_sample_args *a) {
    FL_TRY(fl_sample_validate(a));
    params p = {};
    p.stride = a->logits_stride;
    p.n_known = a->n_known;
    p.lists = a->lists;
    p.share = (int32_t)fl_tasks_of(a->n_known, BLOCKS * SHARE_STEP) * SHARE_STEP;
    p.wide = (uintptr_t)a->logits % 16 == 0 && a->logits_stride % 4 == 0;
    int32_t shared_bytes = (int32_t)sizeof(block_memory) + p.share * 4;
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
