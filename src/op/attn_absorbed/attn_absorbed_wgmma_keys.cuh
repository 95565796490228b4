/* How keys come to the wgmma kernel of attn_absorbed (attn_absorbed_wgmma.cuh says what it does with them): what blocks
 * share, which pages a block sees, copies of bf16 pages, decoding of the others. */
#ifndef FL_OP_ATTN_ABSORBED_WGMMA_KEYS_CUH
#define FL_OP_ATTN_ABSORBED_WGMMA_KEYS_CUH

#include "op/attn_absorbed/attn_absorbed_wide.cuh"

enum {
    GROUP_THREADS = 128,
    GROUP_WARPS = GROUP_THREADS / 32,
    GROUP_LANES = 64,
    GROUPS_THREADS = 3 * GROUP_THREADS,
    GROUP_SPAN_MAX = 2 * SPAN_MAX, /* units */
    GROUP_PAGES = GROUP_SPAN_MAX * UNIT_PAGES,
    GROUP_WORDS = GROUP_PAGES / 32,
    TILE_BYTES = 64 * ROW,       /* 64 keys, or rows of q, of 64 dimensions */
    SIDE_DIMS = WIDE_LATENT / 2, /* latent dimensions of a side, or a half */
    HALF_TILES = SIDE_DIMS * 2 / ROW,
    TILES_OF_KEY = 2 * HALF_TILES + 1, /* k_pe last */
    K_STEPS = PAGE / 16,
    QUARTERS_OF_KEY = 4, /* of two tiles */
    PART_K_PE = QUARTERS_OF_KEY,
    PARTS = QUARTERS_OF_KEY + 1,
    HALF_K_PE = 2, /* what is given up: halves, k_pe */
    HALVES = 3,
    /* named barriers */
    EVEN_THERE = 1, /* P and m of the even page */
    ODD_THERE,      /* of the odd one */
    BLANKED,        /* two: of each side */
};

/* A page of the span, as one side sees it. */
typedef struct group_page {
    int32_t page;
    int32_t first;   /* position of its first key; FAR_AWAY: all are hidden */
    int32_t there;   /* keys up to the last row's position */
    int32_t partial; /* some lane does not see all of it */
} group_page;

enum { FAR_AWAY = INT32_MAX - PAGE };

/* Of a launch. */
typedef struct group_params {
    CUtensorMap latent, k_pe; /* in elements: of a key, keys, pages; latent of bf16 alone */
    params p;
} group_params;

typedef struct group_shared {
    uint8_t q[2 * HALF_TILES][TILE_BYTES];
    uint8_t keys[2][TILES_OF_KEY][TILE_BYTES];
    uint8_t even_weights[TILE_BYTES];          /* P of the even page, swizzled */
    uint4 odd_weights[K_STEPS][GROUP_THREADS]; /* of the odd one, as operands */
    group_page pages[2][GROUP_PAGES / 2];
    float m[2][GROUP_LANES]; /* at the end l of the odd side */
    uint64_t full[2][PARTS], empty[2][HALVES];
    uint32_t seen[GROUP_WORDS], partial[GROUP_WORDS];
    task t;
} group_shared;

static_assert(sizeof(group_shared) <= 227 * 1024, "what a block may have");

/* ---- the task -------------------------------------------------------------------------------------------------- */

/* Rows of the timeline, or of both blocks of a cluster. */
typedef struct group_rows {
    int32_t first, end;
    int32_t last_pos;
} group_rows;

template <bool PAIRED> FL_DEVICE group_rows rows_of(const params &p, const task &t) {
    constexpr int32_t LANES_OF_PAGES = PAIRED ? 2 * GROUP_LANES : GROUP_LANES;
    int32_t first = t.first_lane / LANES_OF_PAGES * LANES_OF_PAGES;
    int32_t end = min(first + LANES_OF_PAGES, p.seqs[t.seq].n_rows * p.n_heads);
    return {first / p.n_heads, (end - 1) / p.n_heads + 1, pos_of(p, p.seqs[t.seq], end - 1)};
}

/* Which pages some row sees. */
FL_DEVICE void see_group_pages(const params &p, const task &t, group_rows rows, group_shared *s) {
    int32_t page = threadIdx.x % GROUP_PAGES, from = t.first + page * PAGE;
    if (threadIdx.x < GROUP_WORDS) s->seen[threadIdx.x] = s->partial[threadIdx.x] = 0;
    __syncthreads();
    bool any = false, all = true;
    for (int32_t row = rows.first + threadIdx.x / GROUP_PAGES; page < t.n_pages && row < rows.end;
         row += GROUPS_THREADS / GROUP_PAGES) {
        const sight sight = sight_of(p.view, pos_of(p, p.seqs[t.seq], row * p.n_heads));
        any = any || sees_any(sight, from, from + PAGE, 1);
        all = all && sees_all(sight, from, from + PAGE);
    }
    uint32_t seen = __ballot_sync(~0u, any), partial = __ballot_sync(~0u, !all);
    if (threadIdx.x % 32 == 0) {
        atomicOr(&s->seen[page / 32], seen);
        atomicOr(&s->partial[page / 32], partial);
    }
    __syncthreads();
}

/* Pairs of pages of which some row sees one, a word's: bit 2 i. */
FL_DEVICE uint32_t pairs_seen(uint32_t seen) {
    return (seen | seen >> 1) & 0x55555555u;
}

/* The lists of both sides; returns how many pairs there are. */
FL_DEVICE int32_t list_pairs(const task &t, group_rows rows, group_shared *s) {
    int32_t page = threadIdx.x, even = page & ~1, n = 0, place = 0;
    for (int32_t i = 0; i < GROUP_WORDS; i++) {
        uint32_t pairs = pairs_seen(s->seen[i]);
        if (i < page / 32) place += __popc(pairs);
        if (i == page / 32) place += __popc(pairs & ((1u << even % 32) - 1));
        n += __popc(pairs);
    }
    if (page >= GROUP_PAGES || (pairs_seen(s->seen[page / 32]) >> even % 32 & 1) == 0) return n;
    bool own = s->seen[page / 32] >> page % 32 & 1;
    int32_t source = own ? page : page ^ 1, first = t.first + source * PAGE;
    s->pages[page & 1][place] = {__ldg(t.pages + source), own ? first : (int32_t)FAR_AWAY,
                                 min((int32_t)PAGE, rows.last_pos + 1 - first),
                                 !own || (s->partial[page / 32] >> page % 32 & 1)};
    return n;
}

/* Latents of q to shared memory; rows of lanes that are not there are zeros. */
FL_DEVICE void copy_q(const params &p, const task &t, group_shared *s) {
    enum { RUNS = WIDE_LATENT / 8 };
    for (int32_t i = threadIdx.x; i < GROUP_LANES * RUNS; i += GROUPS_THREADS) {
        int32_t lane = i / RUNS, run = i % RUNS;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (lane < t.n_lanes) x = *(const uint4 *)(p.q + (t.first_line + lane) * WIDE_KEY + run * 8);
        *(uint4 *)(s->q[run / 8] + lane * ROW + (run % 8 ^ lane % 8) * 16) = x;
    }
    fl_async_proxy_fence();
}

/* ---- keys ------------------------------------------------------------------------------------------------------ */

/* Into L2, those of the side of pair i; `bytes` of latents or codes. One block of a cluster does it. */
template <bool PAIRED>
FL_DEVICE void prefetch_page(const params &p, const group_shared *s, int32_t side, int32_t i, int32_t bytes) {
    if (PAIRED && (int32_t)fl_cluster_rank() != side) return;
    const uint8_t *piece = fl_kv_piece_at(p.kv, s->pages[side][i].page);
    fl_bulk_prefetch(piece, (uint32_t)bytes);
    fl_bulk_prefetch(piece + p.kv.k_pe_bytes, TILE_BYTES);
}

/* To the block, or from one of a cluster to both. */
template <bool PAIRED>
FL_DEVICE void feed_tile(const CUtensorMap *map, group_shared *s, int32_t side, int32_t i, int32_t tile) {
    uint8_t *to = s->keys[side][tile];
    uint64_t *full = &s->full[side][tile / 2];
    int32_t x = tile == 2 * HALF_TILES ? 0 : tile * (ROW / 2), page = s->pages[side][i].page;
    if (PAIRED) fl_tma_load_3d_to(3, to, map, full, x, 0, page);
    else fl_tma_load_3d(to, map, full, x, 0, page);
}

template <bool PAIRED>
FL_DEVICE void feed_k_pe(const group_params &r, group_shared *s, int32_t side, int32_t i) {
    fl_barrier_expect(&s->full[side][PART_K_PE], TILE_BYTES);
    if (!PAIRED || (int32_t)fl_cluster_rank() == side) feed_tile<PAIRED>(&r.k_pe, s, side, i, 2 * HALF_TILES);
}

/* bf16; a warp for each side. */
template <bool PAIRED>
FL_DEVICE void feed_pages(const group_params &r, group_shared *s, int32_t side, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        uint32_t parity = (uint32_t)(i + 1) & 1;
        if (i > 0) fl_barrier_wait_together(&s->empty[side][HALF_K_PE], parity);
        if (fl_elect_one()) {
            feed_k_pe<PAIRED>(r, s, side, i);
            if (i + 1 < n) prefetch_page<PAIRED>(r.p, s, side, i + 1, PAGE * WIDE_LATENT * 2);
        }
        __syncwarp();
        for (int32_t half = 0; half < 2; half++) {
            if (i > 0) fl_barrier_wait_together(&s->empty[side][half], parity);
            if (fl_elect_one())
                for (int32_t quarter = 2 * half; quarter < 2 * half + 2; quarter++) {
                    fl_barrier_expect(&s->full[side][quarter], 2 * TILE_BYTES);
                    if (PAIRED)
                        feed_tile<PAIRED>(&r.latent, s, side, i, 2 * quarter + (int32_t)fl_cluster_rank());
                    else
                        for (int32_t k = 0; k < 2; k++)
                            feed_tile<PAIRED>(&r.latent, s, side, i, 2 * quarter + k);
                }
            __syncwarp();
        }
    }
}

/* ---- codes ----------------------------------------------------------------------------------------------------- */

/* What a thread reads ahead: runs of 16 bytes of codes. */
typedef struct code_runs {
    uint4 codes[4];
    uint32_t fit[4]; /* int4: of each; fp8: scales of two groups */
} code_runs;

/* A step of the third warpgroup: half a page of int4, a quarter of fp8 with every second eight keys. */
typedef struct code_step {
    int32_t pair, side, half, part;
} code_step;

template <bool INT4, bool PAIRED> struct code_sizes {
    enum {
        EIGHTS = PAIRED ? 1 : 2, /* of keys, of a warp */
        PARTS_OF_HALF = INT4 ? 1 : (int)EIGHTS,
        LOADS = INT4 ? 2 * (int)EIGHTS : 4,
        RUNS = INT4 ? 4 : 2, /* of 8 dimensions, of a load */
        KEY_BYTES = INT4 ? (int)WIDE_LATENT / 2 : (int)WIDE_LATENT
    };
};

template <class S> FL_DEVICE code_step code_step_of(int32_t i) {
    int32_t half = i / S::PARTS_OF_HALF;
    return {half / 4, half / 2 % 2, half % 2, i % S::PARTS_OF_HALF};
}

/* Load `i` of a thread's: its key, and its place among a half's 16 bytes. A warp has eight keys, four places. */
template <class S> FL_DEVICE int32_t key_of_load(const code_step &at, int32_t i) {
    int32_t warp = threadIdx.x / 32 % GROUP_WARPS, eight = S::RUNS == 4 ? i / 2 : at.part;
    if (S::EIGHTS == 1) warp += GROUP_WARPS * (int32_t)fl_cluster_rank();
    return (S::EIGHTS * warp + eight) * 8 + threadIdx.x % 8;
}

template <class S> FL_DEVICE int32_t place_of_load(int32_t i) {
    return (S::RUNS == 4 ? i % 2 : i) * 4 + threadIdx.x % 32 / 8;
}

template <class S>
FL_DEVICE void fetch_codes(const params &p, const group_shared *s, const code_step &at, code_runs *x) {
    const uint8_t *piece = fl_kv_piece_at(p.kv, s->pages[at.side][at.pair].page);
    const uint32_t *scales = (const uint32_t *)(piece + p.kv.scales_bytes);
#pragma unroll
    for (int32_t i = 0; i < S::LOADS; i++) {
        int32_t key = key_of_load<S>(at, i), place = place_of_load<S>(i);
        x->codes[i] =
            __ldg((const uint4 *)(piece + key * S::KEY_BYTES + at.half * (S::KEY_BYTES / 2) + place * 16));
        if (S::RUNS == 4) {
            int32_t dim = at.half * SIDE_DIMS + place * 32;
            x->fit[i] = __ldg(scales + key * p.kv.groups + (p.kv.group == 64 ? dim / 64 : dim / 32));
        } else if (i < 2) {
            x->fit[i] = __ldg(scales + key * p.kv.groups + at.half * 2 + i);
        }
    }
}

/* Where a run of 8 dimensions of a key lies. */
FL_DEVICE uint8_t *key_run(group_shared *s, const code_step &at, int32_t key, int32_t run) {
    return s->keys[at.side][at.half * HALF_TILES + run / 8] + key * ROW + (run % 8 ^ key % 8) * 16;
}

template <class S> FL_DEVICE void decode_codes(group_shared *s, const code_step &at, const code_runs &x) {
    int32_t there = s->pages[at.side][at.pair].there;
#pragma unroll
    for (int32_t i = 0; i < S::LOADS; i++) {
        int32_t key = key_of_load<S>(at, i), place = place_of_load<S>(i);
        uint4 codes = key < there ? x.codes[i] : make_uint4(0, 0, 0, 0); /* e4m3 may be NaN */
        uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        uint32_t fit = key < there ? x.fit[S::RUNS == 4 ? i : i / 2] : 0;
#pragma unroll
        for (int32_t k = 0; k < S::RUNS; k++) {
            uint4 run;
            if (S::RUNS == 4) run = decode_int4(words[k], fit);
            else run = decode_fp8(make_uint2(words[2 * k % 4], words[(2 * k + 1) % 4]), __uint_as_float(fit));
            *(uint4 *)key_run(s, at, key, place * S::RUNS + k) = run;
        }
    }
}

/* Over what decode_codes made of them, by the same thread. */
template <class S> FL_DEVICE void put_group_outliers(const params &p, group_shared *s, const code_step &at) {
    const group_page &page = s->pages[at.side][at.pair];
    const uint16_t *kept = (const uint16_t *)(fl_kv_piece_at(p.kv, page.page) + p.kv.outliers_bytes);
    for (int32_t k = 0; k < p.kv.n_outliers; k++) {
        int32_t dim = p.kv.outliers[k] - at.half * SIDE_DIMS;
        if (dim < 0 || dim >= SIDE_DIMS || dim / 32 % 4 != threadIdx.x % 32 / 8) continue;
#pragma unroll
        for (int32_t i = 0; i < S::LOADS; i += 2) {
            int32_t key = key_of_load<S>(at, i);
            uint16_t *to = (uint16_t *)key_run(s, at, key, dim / 8) + dim % 8;
            if (key < page.there) *to = kept[key * p.kv.n_outliers + k];
        }
    }
}

/* Eight keys of a half to the same place of the other block, as the warp decoded them; its barriers count them. */
FL_DEVICE void share_eight(group_shared *s, const code_step &at) {
    uint32_t rank = fl_cluster_rank(),
             first = (threadIdx.x / 32 % GROUP_WARPS + GROUP_WARPS * rank) * 8 * ROW;
#pragma unroll
    for (int32_t i = 0; i < HALF_TILES; i++) {
        int32_t tile = at.half * HALF_TILES + i;
        fl_bulk_store_at(s->keys[at.side][tile] + first, 8 * ROW, &s->full[at.side][tile / 2], 1 - rank);
    }
}

/* The warp's part of a half is there. */
template <bool PAIRED> FL_DEVICE void announce_half(group_shared *s, const code_step &at, bool first_warp) {
    if (PAIRED) share_eight(s, at);
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        uint64_t *full = &s->full[at.side][2 * at.half + i];
        if (PAIRED && first_warp)
            fl_barrier_expect(full, TILE_BYTES); /* of the other block: half of two tiles */
        else fl_barrier_arrive(full);
    }
}

/* The third warpgroup. */
template <bool INT4, bool PAIRED>
FL_DEVICE void decode_pages(const group_params &r, group_shared *s, int32_t n) {
    typedef code_sizes<INT4, PAIRED> S;
    bool first_warp = threadIdx.x / 32 == 2 * GROUP_WARPS;
    code_runs ahead;
    fetch_codes<S>(r.p, s, code_step_of<S>(0), &ahead);
#pragma unroll 1
    for (int32_t i = 0; i < n * 4 * S::PARTS_OF_HALF; i++) {
        const code_step at = code_step_of<S>(i), next = code_step_of<S>(i + 1);
        uint32_t parity = (uint32_t)(at.pair + 1) & 1;
        if (at.half == 0 && at.part == 0 && first_warp) {
            if (at.pair > 0) fl_barrier_wait_together(&s->empty[at.side][HALF_K_PE], parity);
            if (fl_elect_one()) {
                feed_k_pe<PAIRED>(r, s, at.side, at.pair);
                if (at.pair + 2 < n) prefetch_page<PAIRED>(r.p, s, at.side, at.pair + 2, r.p.stored_bytes);
            }
            __syncwarp();
        }
        code_runs now = ahead;
        if (next.pair < n) fetch_codes<S>(r.p, s, next, &ahead);
        if (at.pair > 0) fl_barrier_wait_together(&s->empty[at.side][at.half], parity);
        decode_codes<S>(s, at, now);
        if (INT4 && r.p.kv.n_outliers > 0) put_group_outliers<S>(r.p, s, at);
        if (at.part < S::PARTS_OF_HALF - 1) continue;
        fl_async_proxy_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) announce_half<PAIRED>(s, at, first_warp);
    }
}

#endif
