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
    uint64_t size;       /* the sum of the bin that holds it */
} search;

/* Sums of bins EACH * threadIdx.x on, over all blocks, and of all bins before them. */
typedef struct tally {
    uint64_t sum[EACH], sum_before, sum_total;
    uint32_t count[EACH];
    uint64_t count_before, count_total;
} tally;

/* `blocks`: all, or block 0's alone. */
FL_DEVICE void read_bins(part *c, tally *t, int32_t blocks, bool counts) {
    int32_t at = EACH * (int32_t)threadIdx.x;
    uint64_t sum = 0, count = 0;
#pragma unroll
    for (int32_t j = 0; j < EACH; j++) t->sum[j] = t->count[j] = 0;
#pragma unroll
    for (int32_t i = 0; i < BLOCKS; i++) {
        if (i >= blocks) break;
        uint2 low = *(const uint2 *)fl_cluster_at(here()->bins[0] + at, i);
        t->sum[0] += low.x;
        t->sum[1] += low.y;
    }
#pragma unroll
    for (int32_t i = 0; i < BLOCKS; i++) {
        if (i >= blocks) break;
        uint2 high = *(const uint2 *)fl_cluster_at(here()->bins[1] + at, i);
        t->sum[0] += (uint64_t)high.x << 32;
        t->sum[1] += (uint64_t)high.y << 32;
    }
    for (int32_t i = 0; i < blocks && counts; i++) {
        uint2 many = *(const uint2 *)fl_cluster_at(here()->bins[2] + at, i);
        t->count[0] += many.x;
        t->count[1] += many.y;
    }
#pragma unroll
    for (int32_t j = 0; j < EACH; j++) {
        sum += t->sum[j];
        count += t->count[j];
    }
    t->sum_before = block_before(c, sum, &t->sum_total);
    t->count_before = t->count_total = 0;
    if (counts) t->count_before = block_before(c, count, &t->count_total);
}

/* The bin that holds the target; what is before it goes into the search, which began before all of the bins. */
FL_DEVICE int32_t find_bin(const tally &t, search *s) {
    post *shared = post_here();
    uint64_t sum = s->sum + t.sum_before, count = s->count + t.count_before;
#pragma unroll
    for (int32_t j = 0; j < EACH; j++) {
        uint64_t before = s->by_count ? count : sum, size = s->by_count ? t.count[j] : t.sum[j];
        if (s->target >= before && s->target < before + size) {
            shared->found_bin = EACH * (int32_t)threadIdx.x + j;
            shared->found_sum = sum;
            shared->found_count = count;
            shared->found_size = t.sum[j];
        }
        sum += t.sum[j];
        count += t.count[j];
    }
    __syncthreads();
    s->sum = shared->found_sum;
    s->count = shared->found_count;
    s->size = shared->found_size;
    int32_t bin = shared->found_bin;
    __syncthreads();
    return bin;
}

/* What all blocks have told. */
FL_DEVICE row_sums sums_of_row(void) {
    row_sums r = {0, 0, 0, 0, 0, true, false, INT32_MAX};
#pragma unroll
    for (int32_t i = 0; i < BLOCKS; i++) {
        const told &t = post_here()->all[i];
        r.plain += t.plain_sum;
        r.total += t.sum;
        r.least += t.least_sum;
        r.listed += t.listed_sum;
        r.n += (int32_t)t.n_listed;
        r.fits = r.fits && t.n_listed <= OWN_LIST;
        r.first_id = min(r.first_id, t.first_id);
    }
    r.fits = r.fits && r.n <= LIST;
    return r;
}

/* ---- the list -------------------------------------------------------------------------------------------------- */

/* A list in order, an entry a thread. */
typedef struct ranked {
    const uint64_t *list;
    int32_t n;               /* up to RANKED */
    uint64_t weight, before; /* of this thread's; of those before it */
} ranked;

/* Each entry goes where as many are before it as are larger. */
FL_DEVICE ranked rank_list(part *c, uint64_t *list, int32_t n, float best) {
    int32_t lanes = THREADS / RANKED, rank = 0;
    ranked r = {list, n, 0, 0};
    uint64_t total;
    while (2 * lanes * n <= THREADS && lanes < 32) lanes *= 2;
    int32_t own = (int32_t)threadIdx.x / lanes;
    uint64_t entry = own < n ? list[own] : 0;
    if (own - (int32_t)threadIdx.x % 32 / lanes < n) { /* whole warps */
#pragma unroll 4
        for (int32_t i = (int32_t)threadIdx.x % lanes; i < n; i += lanes) rank += list[i] > entry;
        for (int32_t step = 1; step < lanes; step *= 2) rank += __shfl_xor_sync(~0u, rank, step);
    }
    __syncthreads();
    if (own < n && threadIdx.x % lanes == 0) list[rank] = entry;
    __syncthreads();
    if ((int32_t)threadIdx.x < n)
        r.weight = fl_sample_weight(fl_sample_depth(logit_of(list[threadIdx.x]), best, how_here().scale));
    r.before = block_before(c, r.weight, &total);
    return r;
}

typedef struct found {
    uint64_t entry, sum; /* the entry that was looked for; the sum up to and with it */
} found;

/* What is looked for in a list that holds it. */
FL_DEVICE found find_ranked(const ranked &l, const search &s) {
    post *shared = post_here();
    uint64_t before = s.sum + l.before, after = before + l.weight;
    bool is = s.by_count ? s.count + threadIdx.x == s.target : s.target >= before && s.target < after;
    if ((int32_t)threadIdx.x < l.n && is) {
        shared->found_entry = l.list[threadIdx.x];
        shared->found_sum = after;
    }
    __syncthreads();
    const found f = {shared->found_entry, shared->found_sum};
    __syncthreads();
    return f;
}

/* Those of the list's n entries that are low .. high into the block's own list, as many as there is room for; how
 * many there are. */
FL_DEVICE int32_t extract(int32_t n, uint64_t low, uint64_t high) {
    __syncthreads();
    if (threadIdx.x == 0) post_here()->n_own = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        uint64_t entry = here()->list[i];
        if (entry < low || entry > high) continue;
        uint32_t at = atomicAdd(&post_here()->n_own, 1u);
        if (at < OWN_LIST) here()->own[at] = entry;
    }
    __syncthreads();
    return (int32_t)post_here()->n_own;
}

/* As find_ranked, of a long list: bins of entries narrow it down until few are left. */
FL_PART found find_in_long(part c, int32_t n, search s, float best) {
    uint64_t low = UINT64_MAX, high = 0;
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        low = min(low, here()->list[i]);
        high = max(high, here()->list[i]);
    }
    high = block_max(&c, high);
    low = ~block_max(&c, ~low);
    for (int32_t left = n; left > RANKED;) {
        tally t;
        int32_t shift = 0;
        while ((high - low) >> shift >= BINS) shift++;
        clear_bins();
        for (int32_t i = threadIdx.x; i < n; i += THREADS) {
            uint64_t entry = here()->list[i];
            if (entry < low || entry > high) continue;
            float depth = fl_sample_depth(logit_of(entry), best, how_here().scale);
            const uint64_t weight[] = {fl_sample_weight(depth)};
            const int32_t bin[] = {(int32_t)((high - entry) >> shift)};
            add_to_bins(bin, weight, s.by_count);
        }
        __syncthreads();
        read_bins(&c, &t, 1, s.by_count);
        high -= (uint64_t)find_bin(t, &s) << shift;
        low = max(low, high - min(high, ((uint64_t)1 << shift) - 1));
        left = extract(n, low, high);
    }
    return find_ranked(rank_list(&c, here()->own, (int32_t)post_here()->n_own, best), s);
}

/* The list, in order if it is short. */
typedef struct listing {
    int32_t n;
    float best;
    ranked few;
} listing;

FL_DEVICE listing prepare_list(part *c, int32_t n, float best) {
    listing l = {n, best, {}};
    if (n <= RANKED) l.few = rank_list(c, here()->list, n, best);
    return l;
}

FL_DEVICE found find_listed(const part &c, const listing &l, const search &s) {
    return l.n <= RANKED ? find_ranked(l.few, s) : find_in_long(c, l.n, s, l.best);
}

/* The first of the list's n entries in order, up to `wanted` of them, which are no more than RANKED. */
FL_DEVICE const uint64_t *sort_first(part *c, int32_t n, int32_t wanted, float best) {
    if (n <= RANKED) return rank_list(c, here()->list, n, best).list;
    uint64_t last = find_in_long(*c, n, search{true, (uint64_t)wanted - 1, 0, 0, 0}, best).entry;
    return rank_list(c, here()->own, extract(n, last, UINT64_MAX), best).list;
}

/* ---- searches -------------------------------------------------------------------------------------------------- */

/* What the leader is at: first top_p, then top_k, then the token; each is a search. */
typedef enum stage { STAGE_TOP_P, STAGE_TOP_K, STAGE_TOKEN, STAGE_DONE } stage;

typedef struct lead {
    stage at;
    search s;
    uint64_t total, kept; /* weights; of the tokens that filters let in, so far */
    float best;
    int32_t id;   /* the token */
    tally first;  /* bins of depth */
    search token; /* while two bins are listed: in the first of them */
} lead;

/* To all blocks, which read it behind the next barrier of the cluster. */
FL_DEVICE void say(const order &o) {
    if (threadIdx.x < BLOCKS) *fl_cluster_at(&post_here()->next, (int32_t)threadIdx.x) = o;
}

/* The bin of the token, if it is the same one whatever token of its bin ends top_p's search; else -1. */
FL_DEVICE int32_t find_other(lead *l) {
    uint64_t least = min(l->kept, l->s.sum + 1), most = min(l->kept, l->s.sum + l->s.size);
    search last = {false, fl_sample_aim(most, how_here().uniform), 0, 0, 0};
    l->token = search{false, fl_sample_aim(least, how_here().uniform), 0, 0, 0};
    int32_t bin = find_bin(l->first, &l->token);
    return find_bin(l->first, &last) == bin ? bin : -1;
}

/* From the stage that `l` is at, the next one that has something to look for. */
FL_DEVICE void begin_search(lead *l) {
    const fl_sample_row &how = how_here();
    if (l->at == STAGE_TOP_P && !(how.top_p < 1)) l->at = STAGE_TOP_K;
    if (l->at == STAGE_TOP_K && (how.top_k == 0 || (uint64_t)how.top_k >= l->first.count_total))
        l->at = STAGE_TOKEN;
    l->s = search{l->at == STAGE_TOP_K, 0, 0, 0, 0};
    if (l->at == STAGE_TOP_P) l->s.target = fl_sample_nucleus(l->total, how.top_p) - 1;
    if (l->at == STAGE_TOP_K) l->s.target = (uint64_t)how.top_k - 1;
    if (l->at == STAGE_TOKEN) l->s.target = fl_sample_aim(l->kept, how.uniform);
    int32_t bin = find_bin(l->first, &l->s), other = -1;
    if (l->at == STAGE_TOP_P && how.top_k == 0) other = find_other(l);
    say(order{ORDER_GATHER, bin, other, 0, UINT32_MAX, 0, 0, 0});
}

/* A search has ended. */
FL_DEVICE void end_search(lead *l, int32_t id, uint64_t sum) {
    if (l->at == STAGE_TOKEN) {
        l->id = id;
        l->at = STAGE_DONE;
        say(order{ORDER_END, -1, -1, 0, 0, 0, 0, 0});
        return;
    }
    l->kept = min(l->kept, sum);
    l->at = (stage)(l->at + 1);
    begin_search(l);
}

/* More tokens than a list holds, all of one key. */
FL_DEVICE void end_in_equals(lead *l, uint32_t key) {
    const search &s = l->s;
    uint64_t weight = fl_sample_weight(fl_sample_depth(value_of(key), l->best, how_here().scale));
    uint64_t nth = s.by_count ? s.target - s.count : (s.target - s.sum) / weight;
    if (l->at != STAGE_TOKEN) {
        end_search(l, -1, s.sum + (nth + 1) * weight);
        return;
    }
    order o = {ORDER_NTH, -1, -1, key, key, 0, 0, (int32_t)nth};
    for (int32_t n; o.rank < BLOCKS - 1; o.rank++, o.nth -= n) {
        n = (int32_t)post_here()->all[o.rank].n_listed;
        if (o.nth < n) break;
    }
    say(o);
}

/* Looks for it in the list, and for the token where its bin is listed as well. */
FL_DEVICE void search_list(part *c, lead *l, const order &o, int32_t n) {
    const listing listed = prepare_list(c, n, l->best);
    if (o.other >= 0 && o.other != o.bin) l->s.sum -= l->token.size;
    found f = find_listed(*c, listed, l->s);
    if (o.other >= 0) {
        l->at = STAGE_TOKEN;
        l->token.target = fl_sample_aim(min(l->kept, f.sum), how_here().uniform);
        f = find_listed(*c, listed, l->token);
    }
    end_search(l, id_of(f.entry), f.sum);
}

/* Blocks have gathered. */
FL_DEVICE void after_gather(part *c, lead *l, const order &o) {
    const row_sums r = sums_of_row();
    if (r.fits) {
        search_list(c, l, o, r.n);
        return;
    }
    if (o.other >= 0) { /* one after the other, then */
        say(order{ORDER_GATHER, o.bin, -1, 0, UINT32_MAX, 0, 0, 0});
        return;
    }
    uint32_t low = UINT32_MAX, high = 0;
    for (int32_t i = 0; i < BLOCKS; i++) {
        low = min(low, post_here()->all[i].low);
        high = max(high, post_here()->all[i].high);
    }
    if (low == high) {
        end_in_equals(l, low);
        return;
    }
    int32_t shift = 0;
    while ((high - low) >> shift >= BINS) shift++;
    say(order{ORDER_BINS, -1, -1, low, high, shift, 0, 0});
}

/* Bins of keys are there. */
FL_DEVICE void after_bins(part *c, lead *l, const order &o) {
    tally t;
    read_bins(c, &t, BLOCKS, how_here().top_k > 0);
    uint32_t bin = (uint32_t)find_bin(t, &l->s);
    uint32_t high = o.high - (bin << o.shift), wide = (1u << o.shift) - 1;
    say(order{ORDER_GATHER, -1, -1, high - o.low > wide ? high - wide : o.low, high, 0, 0, 0});
}

/* Bins of depth are there. */
FL_DEVICE void begin_lead(part *c, lead *l, const row_sums &r, float best) {
    l->at = STAGE_TOP_P;
    l->best = best;
    l->id = -1;
    l->total = r.total;
    l->kept = r.least;
    read_bins(c, &l->first, BLOCKS, how_here().top_k > 0);
    begin_search(l);
}

/* What the leader makes of what was done. */
FL_DEVICE void go_on(part *c, lead *l, const order &o) {
    if (o.kind == ORDER_GATHER) after_gather(c, l, o);
    else if (o.kind == ORDER_BINS) after_bins(c, l, o);
    else end_search(l, post_here()->nth_id, 0);
}

/* ---- the head -------------------------------------------------------------------------------------------------- */

/* Whether the token is among those listed, which are the first ones, or no weight is left, as of infinite logits. */
FL_DEVICE bool is_in_head(const fl_sample_row &how, const row_sums &r) {
    if (r.least == 0) return true;
    if (!r.fits) return false;
    if (r.least <= r.listed) return true;
    if (how.top_p < 1 && fl_sample_nucleus(r.total, how.top_p) <= r.listed) return true;
    if (how.top_k > 0 && how.top_k <= r.n) return true;
    return !(how.top_p < 1) && how.top_k == 0 && fl_sample_aim(r.least, how.uniform) < r.listed;
}

/* The token of a row that is_in_head, from the sorted list. */
FL_DEVICE int32_t draw_from_head(part *c, const row_sums &r, float best) {
    const fl_sample_row &how = how_here();
    uint64_t kept = r.least;
    if (kept == 0) return r.first_id;
    const listing head = prepare_list(c, r.n, best);
    search s = {false, fl_sample_nucleus(r.total, how.top_p) - 1, 0, 0, 0};
    if (how.top_p < 1 && s.target < r.listed) kept = min(kept, find_listed(*c, head, s).sum);
    s = search{true, (uint64_t)how.top_k - 1, 0, 0, 0};
    if (how.top_k > 0 && how.top_k <= r.n) kept = min(kept, find_listed(*c, head, s).sum);
    s = search{false, fl_sample_aim(kept, how.uniform), 0, 0, 0};
    return id_of(find_listed(*c, head, s).entry);
}

#endif
