/* How block 0 of a cluster finds a row's token from what all blocks have gathered or added up: it says what they do
 * next until it knows. Every function is called by all its threads. */
#ifndef FL_OP_SAMPLE_SAMPLE_LEAD_CUH
#define FL_OP_SAMPLE_SAMPLE_LEAD_CUH

#include "op/sample/sample_cuda.cuh"

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
        uint2 low = *(const uint2 *)at_rank(c->low + at, i), high = *(const uint2 *)at_rank(c->high + at, i);
        t->sum[0] += (uint64_t)high.x << 32 | low.x;
        t->sum[1] += (uint64_t)high.y << 32 | low.y;
        if (c->how->top_k == 0) continue;
        uint2 many = *(const uint2 *)at_rank(c->many + at, i);
        t->count[0] += many.x;
        t->count[1] += many.y;
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

/* A thread's entries of a list: j THREADS + threadIdx.x. */
typedef struct held {
    uint64_t entry[PER_LIST];
} held;

/* The entries `step` apart within threads, larger first where the run falls. */
FL_DEVICE void order_within(held *x, int32_t run, int32_t step) {
#pragma unroll
    for (int32_t j = 0; j < PER_LIST; j++)
#pragma unroll
        for (int32_t k = j + 1; k < PER_LIST; k++) {
            uint64_t larger = max(x->entry[j], x->entry[k]), smaller = min(x->entry[j], x->entry[k]);
            bool falls = ((j * THREADS + (int32_t)threadIdx.x) & run) == 0;
            if ((j ^ k) * THREADS != step) continue;
            x->entry[j] = falls ? larger : smaller;
            x->entry[k] = falls ? smaller : larger;
        }
}

/* The same between threads: of a warp by shuffles, else through the list. */
FL_DEVICE void order_across(const part &c, held *x, int32_t size, int32_t run, int32_t step) {
    if (step >= 32) {
        __syncthreads();
#pragma unroll
        for (int32_t j = 0; j < PER_LIST; j++)
            if (j * THREADS < size) c.list[j * THREADS + threadIdx.x] = x->entry[j];
        __syncthreads();
    }
#pragma unroll
    for (int32_t j = 0; j < PER_LIST; j++) {
        if (j * THREADS >= size) continue;
        int32_t at = j * THREADS + (int32_t)threadIdx.x;
        uint64_t own = x->entry[j], other = step < 32 ? __shfl_xor_sync(~0u, own, step) : c.list[at ^ step];
        x->entry[j] = ((at & step) == 0) == ((at & run) == 0) ? max(own, other) : min(own, other);
    }
}

/* list[0 .. n - 1], larger first: a bitonic network of as many entries as are needed, a power of 2. */
FL_DEVICE void sort_list(const part &c, int32_t n) {
    int32_t size = 1;
    held x;
    while (size < n) size *= 2;
#pragma unroll
    for (int32_t j = 0; j < PER_LIST; j++) {
        int32_t at = j * THREADS + (int32_t)threadIdx.x;
        x.entry[j] = at < n ? c.list[at] : 0;
    }
    for (int32_t run = 2; run <= size; run *= 2)
        for (int32_t step = run / 2; step > 0; step /= 2) {
            if (step >= THREADS) order_within(&x, run, step);
            else order_across(c, &x, size, run, step);
        }
    __syncthreads();
#pragma unroll
    for (int32_t j = 0; j < PER_LIST; j++) {
        int32_t at = j * THREADS + (int32_t)threadIdx.x;
        if (at < n) c.list[at] = x.entry[j];
    }
    __syncthreads();
}

/* Tokens that all blocks have listed; `first`: of those before block threadIdx.x / 32. */
FL_DEVICE int32_t count_listed(const part &c, int32_t *first) {
    int32_t n = 0;
    *first = 0;
#pragma unroll
    for (int32_t i = 0; i < BLOCKS; i++) {
        if (i == (int32_t)threadIdx.x / 32) *first = n;
        n += (int32_t)*at_rank(&c.shared->n_listed, i);
    }
    return n;
}

/* The other blocks' lists, which together are no more than fit, behind this one's: a warp a block. */
FL_DEVICE void collect(const part &c, int32_t first) {
    int32_t rank = (int32_t)threadIdx.x / 32;
    if (rank > 0 && rank < BLOCKS) {
        const uint64_t *from = at_rank(c.list, rank);
        int32_t n = (int32_t)*at_rank(&c.shared->n_listed, rank);
        for (int32_t i = threadIdx.x % 32; i < n; i += 32) c.list[first + i] = from[i];
    }
    __syncthreads();
}

/* Sums of weights of a sorted list's entries PER_LIST * threadIdx.x on. */
typedef struct sums {
    uint64_t before, total;
    uint64_t weight[PER_LIST];
    int32_t n;
} sums;

/* Sorts the n entries that all blocks have listed and adds up their weights. */
FL_DEVICE void sort_listed(part *c, int32_t n, int32_t first, float best, sums *out) {
    uint64_t own = 0;
    collect(*c, first);
    sort_list(*c, n);
    out->n = n;
#pragma unroll
    for (int32_t j = 0; j < PER_LIST; j++) {
        int32_t i = PER_LIST * (int32_t)threadIdx.x + j;
        out->weight[j] = 0;
        if (i < n)
            out->weight[j] = fl_sample_weight(fl_sample_depth(logit_of(c->list[i]), best, c->how->scale));
        own += out->weight[j];
    }
    out->before = block_before(c, own, &out->total);
}

/* The token that is looked for in the sorted list, which holds it; the sum up to and with it. */
FL_DEVICE int32_t find_listed(const part &c, const sums &l, const search &s, uint64_t *sum) {
    post *shared = c.shared;
    uint64_t before = s.sum + l.before;
#pragma unroll
    for (int32_t j = 0; j < PER_LIST; j++) {
        int32_t i = PER_LIST * (int32_t)threadIdx.x + j;
        uint64_t after = before + l.weight[j];
        bool found = s.by_count ? s.count + (uint64_t)i == s.target : s.target >= before && s.target < after;
        if (i < l.n && found) {
            shared->found = id_of(c.list[i]);
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
    uint64_t total, kept; /* weights; of the tokens that filters let in, so far */
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
    if (l->at == STAGE_TOP_P) l->s.target = fl_sample_nucleus(l->total, how.top_p) - 1;
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
    int32_t first, n = count_listed(*c, &first);
    if (n <= LIST) {
        uint64_t sum;
        sums listed;
        sort_listed(c, n, first, l->best, &listed);
        int32_t id = find_listed(*c, listed, l->s, &sum);
        end_search(c, l, id, sum);
        return;
    }
    uint32_t low = UINT32_MAX, high = 0;
    for (int32_t i = 0; i < BLOCKS; i++) {
        low = min(low, *at_rank(&c->shared->low, i));
        high = max(high, *at_rank(&c->shared->high, i));
    }
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

FL_DEVICE void after_depths(part *c, lead *l) {
    read_bins(c, &l->first);
    begin_search(c, l);
}

/* What the leader makes of what was done. */
FL_DEVICE void go_on(part *c, lead *l, const order &o) {
    if (o.kind == ORDER_DEPTHS) {
        after_depths(c, l);
    } else if (o.kind == ORDER_GATHER) {
        after_gather(c, l);
    } else if (o.kind == ORDER_BINS) {
        after_bins(c, l, o);
    } else {
        int32_t id = *at_rank(&c->shared->nth_id, o.rank);
        end_search(c, l, id, 0);
    }
}

/* The token from the head alone; false: what is looked for may lie behind it. */
FL_DEVICE bool draw_from_head(part *c, lead *l) {
    const fl_sample_row &how = *c->how;
    int32_t first, n = count_listed(*c, &first);
    uint64_t kept = l->kept, sum;
    sums head;
    if (n > LIST) return false;
    sort_listed(c, n, first, l->best, &head);
    if (how.top_p < 1) {
        const search s = {false, fl_sample_nucleus(l->total, how.top_p) - 1, 0, 0};
        if (s.target >= head.total) return false;
        find_listed(*c, head, s, &sum);
        kept = min(kept, sum);
    }
    if (how.top_k > 0 && how.top_k <= n) {
        find_listed(*c, head, search{true, (uint64_t)how.top_k - 1, 0, 0}, &sum);
        kept = min(kept, sum);
    } else if (how.top_k > 0 && kept > head.total) {
        return false;
    }
    const search s = {false, fl_sample_aim(kept, how.uniform), 0, 0};
    if (s.target >= head.total) return false;
    l->id = find_listed(*c, head, s, &sum);
    return true;
}

FL_DEVICE void begin_lead(part *c, lead *l, uint64_t best) {
    uint64_t least = 0;
    l->total = 0;
#pragma unroll
    for (int32_t i = 0; i < BLOCKS; i++) {
        l->total += *at_rank(&c->shared->sum, i);
        least += *at_rank(&c->shared->least_sum, i);
    }
    l->at = STAGE_TOP_P;
    l->best = logit_of(best);
    l->id = id_of(best);
    l->kept = c->how->min_log2 > -INFINITY ? least : l->total;
    bool ends = l->kept == 0 || draw_from_head(c, l); /* 0: infinite logits, the first of them */
    say(c, order{ends ? ORDER_END : ORDER_DEPTHS, -1, 0, 0, 0, 0, 0});
}

#endif
