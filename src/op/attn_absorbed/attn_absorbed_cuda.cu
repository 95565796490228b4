/* attn_absorbed, CUDA. A task is one split of keys and up to 16 (row, head) pairs of one timeline, its lanes: the
 * heads of a row share every key that is read. For each page of 64 keys that some lane sees:
 *   keys    bf16: copied to shared memory, the next page's while this one is used; quantised: the stored bytes are
 *           copied ahead, then decoded to bf16 [64][latent | k_pe]. Keys that the task does not see are zeros.
 *   scores  S[16 lanes][64 keys] = q key^T by mma.sync: a warp has 32 keys and every fourth 16 dimensions, whose q it
 *           keeps in registers
 *   weights a warp has two lanes: the four parts of S in order, maximum, P in bf16, the running (m, l)
 *   values  O[16][latent] += P latent: a warp has every eighth 16 latent dimensions, in registers
 * Then (o, m, l) of the split goes to scratch, [rows][n_heads][n_splits], and a second kernel merges a row's
 * splits: each warp every sixteenth of them in order, then the warps' sums in order. A lane's numbers never meet
 * another's. Grid: (lane groups of all timelines) x splits, groups that share pages side by side. Block: 256
 * threads. Shared: 47 KiB (int4) to 63 KiB (bf16) at 128 + 32 dimensions, 113 KiB (int4: two blocks a
 * multiprocessor) to 167 KiB (bf16) at 512 + 64. Bound by memory traffic up to 16 lanes a key, if decoding keeps
 * up; by shared memory's beyond. Shapes that this does not fit take a plain kernel. */
#include "op/attn_absorbed/attn_absorbed_pairs.cuh"
#include "op/attn_absorbed/attn_absorbed_ring.cuh"
#include "op/attn_absorbed/attn_absorbed_wgmma.cuh"

enum {
    LATENT_MAX = 512,
    ROPE_MAX = 64,
    Q_STEPS = (LATENT_MAX + ROPE_MAX) / (16 * QUARTERS), /* of 16 dimensions, of a quarter */
    O_STEPS = LATENT_MAX / (16 * WARPS),                 /* of 16 latent dimensions, of a warp */
    KEY_PAD = 8, /* elements that keep rows of keys on different banks */
    PLAIN_THREADS = 128,
    MERGE_THREADS = 512,
    MERGE_WARPS = MERGE_THREADS / 32,
    MERGE_DIMS = 128, /* of a block of the merge */
    MERGE_AHEAD = 8,  /* spans that a warp reads together */
    MERGE_CHUNK = 512 /* spans whose shares are in shared memory at a time: one a thread */
};

/* Shared memory. `keys` has a second page behind it if plain, else `stored` has the next one's bytes. */
typedef struct layout {
    float *s;       /* [QUARTERS][LANES][S_STRIDE] */
    uint16_t *p;    /* [LANES][S_STRIDE] */
    uint16_t *keys; /* [PAGE][key_stride] */
    uint8_t *stored;
} layout;

/* ---- keys to shared memory ------------------------------------------------------------------------------------- */

FL_DEVICE int32_t quotient(int32_t i, const divisor &d) {
    return (int32_t)__umulhi((uint32_t)i, d.magic);
}

/* The task reads key `slot` of page `page`. */
FL_DEVICE bool is_read(const params &p, const task &t, int32_t page, int32_t slot) {
    int32_t pos = t.first + page * PAGE + slot;
    return pos <= t.last_pos && is_step(pos, p.key_step);
}

/* Latents and k_pe of a plain page; zeros for keys that are not read. */
FL_DEVICE void copy_plain(const params &p, const task &t, int32_t page, uint16_t *keys) {
    const uint8_t *piece = fl_kv_piece_at(p.kv, t.pages[page]);
    for (int32_t i = threadIdx.x; i < PAGE * (int32_t)p.key_runs.n; i += THREADS) {
        int32_t slot = quotient(i, p.key_runs), run = i - slot * (int32_t)p.key_runs.n;
        int32_t k_pe_run = run - (int32_t)p.latent_runs.n;
        const void *from = k_pe_run < 0
                               ? (const void *)((const uint16_t *)piece + slot * p.kv.latent_dim + run * 8)
                               : (const void *)(fl_kv_k_pe_at(p.kv, piece, slot) + k_pe_run * 8);
        fl_copy_async(keys + slot * p.key_stride + run * 8, from, is_read(p, t, page, slot));
    }
}

/* Codes, scales and outliers of a quantised page as they are stored; codes of keys that are not read stay behind if
 * key_step leaves keys out. */
FL_DEVICE void copy_stored(const params &p, const task &t, int32_t page, uint8_t *stored) {
    const uint8_t *piece = fl_kv_piece_at(p.kv, t.pages[page]);
    int32_t code_bytes = p.kv.scales_bytes / PAGE; /* of a key */
    for (int32_t at = threadIdx.x * 16; at < p.stored_bytes; at += THREADS * 16) {
        /* 16 bytes may belong to two keys. */
        bool there = p.key_step == 1 || at >= p.kv.scales_bytes || is_read(p, t, page, at / code_bytes) ||
                     is_read(p, t, page, (at + 15) / code_bytes);
        if (there) fl_copy_async(stored + at, piece + at, true);
    }
}

FL_DEVICE void copy_k_pe(const params &p, const task &t, int32_t page, uint16_t *keys) {
    const uint8_t *piece = fl_kv_piece_at(p.kv, t.pages[page]);
    for (int32_t i = threadIdx.x; i < PAGE * (int32_t)p.k_pe_runs.n; i += THREADS) {
        int32_t slot = quotient(i, p.k_pe_runs), run = i - slot * (int32_t)p.k_pe_runs.n;
        fl_copy_async(keys + slot * p.key_stride + p.kv.latent_dim + run * 8,
                      fl_kv_k_pe_at(p.kv, piece, slot) + run * 8, is_read(p, t, page, slot));
    }
}

/* Run `dim` of the key in `slot` of a page that was copied as stored, without outliers. */
FL_DEVICE uint4 decode_run(const fl_kv_cuda &kv, const uint8_t *stored, int32_t slot, int32_t dim) {
    int32_t element = slot * kv.latent_dim + dim;
    const uint32_t *scales = (const uint32_t *)(stored + kv.scales_bytes) + slot * kv.groups;
    if (kv.format == FL_KV_INT4)
        return decode_int4(*(const uint32_t *)(stored + element / 2),
                           scales[kv.group == 64 ? dim / 64 : dim / 32]);
    return decode_fp8(*(const uint2 *)(stored + element), __uint_as_float(scales[dim / FL_KV_FP8_GROUP]));
}

/* What a thread decodes of a page: one run of dimensions of every step-th key from `first` on. */
typedef struct portion {
    int32_t run, first, step; /* first >= step: nothing */
} portion;

FL_DEVICE portion portion_of(const params &p) {
    portion d;
    d.first = quotient(threadIdx.x, p.latent_runs);
    d.step = quotient(THREADS, p.latent_runs);
    d.run = (int32_t)threadIdx.x - d.first * (int32_t)p.latent_runs.n;
    return d;
}

/* Over what decode_run made of them, by the same thread. */
FL_DEVICE void put_outliers(const params &p, const task &t, int32_t page, portion d, const uint8_t *stored,
                            uint16_t *keys) {
    const uint16_t *kept = (const uint16_t *)(stored + p.kv.outliers_bytes);
    for (int32_t k = 0; k < p.kv.n_outliers; k++) {
        int32_t dim = p.kv.outliers[k];
        if (dim / FL_KV_RUN != d.run) continue;
        for (int32_t slot = d.first; slot < PAGE; slot += d.step)
            if (is_read(p, t, page, slot)) keys[slot * p.key_stride + dim] = kept[slot * p.kv.n_outliers + k];
    }
}

/* Latents of a page that was copied as stored. */
FL_DEVICE void decode_page(const params &p, const task &t, int32_t page, const uint8_t *stored,
                           uint16_t *keys) {
    const portion d = portion_of(p);
    if (d.first >= d.step) return;
#pragma unroll 4
    for (int32_t slot = d.first; slot < PAGE; slot += d.step) {
        uint4 packed = make_uint4(0, 0, 0, 0);
        if (is_read(p, t, page, slot)) packed = decode_run(p.kv, stored, slot, d.run * FL_KV_RUN);
        *(uint4 *)(keys + slot * p.key_stride + d.run * FL_KV_RUN) = packed;
    }
    if (p.kv.outlier_runs[d.run / 32] >> d.run % 32 & 1u) put_outliers(p, t, page, d, stored, keys);
}

/* ---- one page -------------------------------------------------------------------------------------------------- */

/* What a thread keeps over the pages. */
typedef struct state {
    uint32_t q[Q_STEPS][4];
    float o[O_STEPS][2][4];
    float m[2], l[2]; /* of the warp's two lanes */
} state;

/* Steps of 16 dimensions are dealt to the quarters in turns. */
FL_DEVICE void open_state(const params &p, const task &t, state *st) {
    int32_t key_dim = p.kv.latent_dim + p.kv.rope_dim, quarter = threadIdx.x / 32 % QUARTERS;
    int32_t row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const uint16_t *q = p.q + (t.first_line + row) * key_dim + column;
#pragma unroll
    for (int32_t i = 0; i < Q_STEPS; i++) {
        int32_t dim = (i * QUARTERS + quarter) * 16;
#pragma unroll
        for (int32_t k = 0; k < 4; k++) {
            bool there = dim < key_dim && row + k % 2 * 8 < t.n_lanes;
            st->q[i][k] = there ? *(const uint32_t *)(q + k % 2 * 8 * key_dim + dim + k / 2 * 8) : 0;
        }
    }
#pragma unroll
    for (int32_t i = 0; i < O_STEPS; i++)
#pragma unroll
        for (int32_t k = 0; k < 8; k++) st->o[i][k / 4][k % 4] = 0;
    st->m[0] = st->m[1] = -INFINITY;
    st->l[0] = st->l[1] = 0;
}

/* The warp's part of S: 32 keys, its quarter of the dimensions. */
FL_DEVICE void score_keys(const params &p, const state &st, const uint16_t *keys, float *s) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, quarter = warp % QUARTERS;
    int32_t first_key = warp / QUARTERS * 32, key_dim = p.kv.latent_dim + p.kv.rope_dim;
    /* Matrices: keys 0-7 and dimensions 0-7, the same and 8-15, keys 8-15 and 0-7, both. */
    const uint16_t *row = keys + (first_key + lane / 16 * 8 + lane % 8) * p.key_stride + lane / 8 % 2 * 8;
    float sum[4][4] = {};
#pragma unroll
    for (int32_t i = 0; i < Q_STEPS; i++) {
        int32_t dim = (i * QUARTERS + quarter) * 16;
        if (dim >= key_dim) break;
#pragma unroll
        for (int32_t half = 0; half < 2; half++) {
            uint32_t b[4];
            fl_load_matrices(b, row + half * 16 * p.key_stride + dim);
            fl_mma_bf16(sum[2 * half], st.q[i], b[0], b[1]);
            fl_mma_bf16(sum[2 * half + 1], st.q[i], b[2], b[3]);
        }
    }
    float *to = s + (quarter * LANES + lane / 4) * S_STRIDE + first_key + lane % 4 * 2;
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        *(float2 *)(to + i * 8) = make_float2(sum[i][0], sum[i][1]);
        *(float2 *)(to + 8 * S_STRIDE + i * 8) = make_float2(sum[i][2], sum[i][3]);
    }
}

/* Weights of the warp's two lanes; each of its threads has two keys. */
FL_DEVICE void weigh_keys(const params &p, const task &t, int32_t page, const layout &at, board *b,
                          state *st) {
    int32_t warp = threadIdx.x / 32, key = threadIdx.x % 32 * 2;
    int32_t first = t.first + page * PAGE;
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        int32_t lane = 2 * warp + i;
        const sight &sight = b->sights[lane];
        float2 s = *(const float2 *)(at.s + lane * S_STRIDE + key);
#pragma unroll
        for (int32_t quarter = 1; quarter < QUARTERS; quarter++) {
            float2 part = *(const float2 *)(at.s + (quarter * LANES + lane) * S_STRIDE + key);
            s.x += part.x;
            s.y += part.y;
        }
        if (p.key_step > 1 || sight.begin[1] > first || sight.end[1] < first + PAGE) {
            if (!sees(sight, first + key, p.key_step)) s.x = -INFINITY;
            if (!sees(sight, first + key + 1, p.key_step)) s.y = -INFINITY;
        }
        float top = fmaxf(st->m[i], fl_warp_max(fmaxf(s.x, s.y)));
        float from = top == -INFINITY ? 0 : top; /* nothing seen so far: all weights 0 */
        uint32_t weights = fl_pack_bf16(fl_exp2(s.x - from), fl_exp2(s.y - from));
        float scale = fl_exp2(st->m[i] - from);
        float sum = fl_warp_sum(fl_low_of_bf16x2(weights) + fl_high_of_bf16x2(weights));
        st->m[i] = top;
        st->l[i] = st->l[i] * scale + sum;
        *(uint32_t *)(at.p + lane * S_STRIDE + key) = weights;
        if (key == 0) b->scale[lane] = scale;
    }
}

/* The warp's part of O. */
FL_DEVICE void add_values(const params &p, const uint16_t *keys, const layout &at, const board *b,
                          state *st) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float scale[2] = {b->scale[lane / 4], b->scale[lane / 4 + 8]};
    uint32_t weights[PAGE / 16][4];
    /* Matrices: lanes 0-7 and keys 0-7, lanes 8-15 and keys 0-7, lanes 0-7 and keys 8-15, both. */
    const uint16_t *row = at.p + (lane / 8 % 2 * 8 + lane % 8) * S_STRIDE + lane / 16 * 8;
#pragma unroll
    for (int32_t k = 0; k < PAGE / 16; k++) fl_load_matrices(weights[k], row + k * 16);
    /* Matrices: keys 0-7 and dimensions 0-7, keys 8-15 and 0-7, keys 0-7 and 8-15, both. */
    const uint16_t *values = keys + (lane / 8 % 2 * 8 + lane % 8) * p.key_stride + lane / 16 * 8;
#pragma unroll
    for (int32_t i = 0; i < O_STEPS; i++) {
        int32_t dim = (i * WARPS + warp) * 16;
        if (dim >= p.kv.latent_dim) break;
#pragma unroll
        for (int32_t k = 0; k < 8; k++) st->o[i][k / 4][k % 4] *= scale[k % 4 / 2];
#pragma unroll
        for (int32_t k = 0; k < PAGE / 16; k++) {
            uint32_t v[4];
            fl_load_matrices_transposed(v, values + k * 16 * p.key_stride + dim);
            fl_mma_bf16(st->o[i][0], weights[k], v[0], v[1]);
            fl_mma_bf16(st->o[i][1], weights[k], v[2], v[3]);
        }
    }
}

FL_DEVICE void store_partial(const params &p, const task &t, const state &st) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int32_t i = 0; i < 2; i++)
        if (lane == 0 && 2 * warp + i < t.n_lanes)
            *state_of(p, partial_of(p, t.first_line + 2 * warp + i, t.slot)) = make_float2(st.m[i], st.l[i]);
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        int32_t row = lane / 4 + half * 8;
        if (row >= t.n_lanes) continue;
        float *o = partial_of(p, t.first_line + row, t.slot) + lane % 4 * 2;
#pragma unroll
        for (int32_t i = 0; i < O_STEPS; i++) {
            int32_t dim = (i * WARPS + warp) * 16;
            if (dim >= p.kv.latent_dim) break;
            *(float2 *)(o + dim) = make_float2(st.o[i][0][2 * half], st.o[i][0][2 * half + 1]);
            *(float2 *)(o + dim + 8) = make_float2(st.o[i][1][2 * half], st.o[i][1][2 * half + 1]);
        }
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS, 2) attn_absorbed_kernel(const __grid_constant__ params p) {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ board b;
    task t;
    state st;
    if (!find_task(p, &t)) return;
    see_pages(p, t, &b);
    uint32_t seen = b.seen[0]; /* a span is one split here */
    if (seen == 0) {
        store_nothing(p, t);
        return;
    }
    bool plain = p.stored_bytes == 0;
    layout at;
    at.s = (float *)shared;
    at.p = (uint16_t *)(shared + S_BYTES);
    at.keys = (uint16_t *)(shared + S_BYTES + P_BYTES);
    at.stored = (uint8_t *)(at.keys + PAGE * p.key_stride);
    int32_t page = __ffs(seen) - 1;
    uint16_t *keys = at.keys, *other_keys = plain ? at.keys + PAGE * p.key_stride : at.keys;
    if (plain) {
        copy_plain(p, t, page, keys);
    } else {
        copy_stored(p, t, page, at.stored);
        copy_k_pe(p, t, page, keys);
    }
    open_state(p, t, &st);
    for (;;) {
        seen &= seen - 1;
        int32_t next = __ffs(seen) - 1; /* -1: none */
        fl_copy_async_wait();
        __syncthreads(); /* the page is there, and all are done with the one before */
        if (plain) {
            if (next >= 0) copy_plain(p, t, next, other_keys);
        } else {
            decode_page(p, t, page, at.stored, keys);
            __syncthreads(); /* all is decoded, the stored bytes may go */
            if (next >= 0) copy_stored(p, t, next, at.stored);
        }
        score_keys(p, st, keys, at.s);
        __syncthreads(); /* S is there, k_pe may go */
        if (!plain && next >= 0) copy_k_pe(p, t, next, keys);
        weigh_keys(p, t, page, at, &b, &st);
        __syncthreads(); /* P is there */
        add_values(p, keys, at, &b, &st);
        if (next < 0) break;
        page = next;
        uint16_t *used = keys;
        keys = other_keys;
        other_keys = used;
    }
    store_partial(p, t, st);
}

/* ---- any shape ------------------------------------------------------------------------------------------------- */

FL_DEVICE float rounded(float x) {
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* Which line of the launch: its row's position and timeline; returns the line of the call. */
FL_DEVICE int64_t find_line(const params &p, int32_t line, int32_t *pos, const timeline **of) {
    int32_t i = 0;
    while (i + 1 < p.n_seqs && p.seqs[i + 1].first_line <= line) i++;
    const timeline &seq = p.seqs[i];
    *pos = pos_of(p, seq, line - seq.first_line);
    *of = &seq;
    return (int64_t)seq.row * p.n_heads + line - seq.first_line;
}

FL_DEVICE float dot_key(const params &p, const fl_bf16 *q, const uint8_t *piece, int32_t slot) {
    float sum = 0;
    for (int32_t i = 0; i < p.kv.latent_dim; i++)
        sum += __bfloat162float(q[i]) * rounded(fl_kv_latent_load(p.kv, piece, slot, i));
    for (int32_t i = 0; i < p.kv.rope_dim; i++)
        sum +=
            __bfloat162float(q[p.kv.latent_dim + i]) * fl_kv_f32_of_bf16(fl_kv_k_pe_at(p.kv, piece, slot)[i]);
    return sum;
}

/* Sum over the block in a fixed order; `words` [PLAIN_THREADS / 32] shared. */
FL_DEVICE float plain_sum(float *words, float x) {
    float sum = 0, warp_sum = fl_warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = warp_sum;
    __syncthreads();
    for (int32_t i = 0; i < PLAIN_THREADS / 32; i++) sum += words[i];
    return sum;
}

FL_DEVICE float plain_max(float *words, float x) {
    float top = -INFINITY, warp_top = fl_warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = warp_top;
    __syncthreads();
    for (int32_t i = 0; i < PLAIN_THREADS / 32; i++) top = fmaxf(top, words[i]);
    return top;
}

/* Grid: lines x splits, a partial result each. First a thread has keys, then dimensions. */
static __global__ void __launch_bounds__(PLAIN_THREADS)
    attn_absorbed_plain_kernel(const __grid_constant__ params p) {
    __shared__ float weights[SPLIT], words[PLAIN_THREADS / 32];
    int32_t pos, split = (int32_t)blockIdx.y, first = split * SPLIT;
    const timeline *seq;
    int64_t line = find_line(p, (int32_t)blockIdx.x, &pos, &seq);
    if (pos < first) return;
    const int32_t *pages = seq->pages;
    const sight sight = sight_of(p.view, pos);
    const fl_bf16 *q = (const fl_bf16 *)p.q + line * (p.kv.latent_dim + p.kv.rope_dim);
    float top = -INFINITY, sum = 0, *o = partial_of(p, line, split);
    for (int32_t i = threadIdx.x; i < SPLIT; i += PLAIN_THREADS) {
        int32_t t = first + i;
        float s = -INFINITY;
        if (sees(sight, t, p.key_step)) s = dot_key(p, q, fl_kv_piece_at(p.kv, pages[t / PAGE]), t % PAGE);
        weights[i] = s;
        top = fmaxf(top, s);
    }
    top = plain_max(words, top);
    for (int32_t i = threadIdx.x; i < SPLIT; i += PLAIN_THREADS) {
        weights[i] = top == -INFINITY ? 0 : rounded(fl_exp2(weights[i] - top));
        sum += weights[i];
    }
    sum = plain_sum(words, sum);
    if (threadIdx.x == 0) *state_of(p, o) = make_float2(top, sum);
    for (int32_t j = threadIdx.x; j < p.partial_stride - SCRATCH_STEP; j += PLAIN_THREADS) {
        float value = 0;
        for (int32_t i = 0; i < SPLIT && j < p.kv.latent_dim; i++) {
            if (weights[i] == 0) continue; /* may not be readable */
            const uint8_t *piece = fl_kv_piece_at(p.kv, pages[(first + i) / PAGE]);
            value += weights[i] * rounded(fl_kv_latent_load(p.kv, piece, (first + i) % PAGE, j));
        }
        o[j] = value;
    }
}

/* ---- merge ----------------------------------------------------------------------------------------------------- */

/* Of every MERGE_WARPS-th of `n` spans from `first` on, four dimensions a thread; the first span's are at `o`, the
 * next `stride` floats on. */
typedef float4 merge_run[MERGE_AHEAD];

FL_DEVICE void fetch_spans(const float *o, int64_t stride, int32_t first, int32_t n, merge_run &x) {
#pragma unroll
    for (int32_t i = 0; i < MERGE_AHEAD; i++) {
        int32_t span = first + i * MERGE_WARPS;
        x[i] = make_float4(0, 0, 0, 0);
        if (span < n) x[i] = *(const float4 *)(o + span * stride);
    }
}

/* o of span i weighs shares[i]; what a span without a key holds may be anything. */
FL_DEVICE void add_spans(const float *shares, int32_t first, int32_t n, const merge_run &x, float4 *sum) {
#pragma unroll
    for (int32_t i = 0; i < MERGE_AHEAD; i++) {
        int32_t span = first + i * MERGE_WARPS;
        float share = span < n ? shares[span] : 0;
        if (share == 0) continue; /* NaN has its part */
        sum->x += share * x[i].x;
        sum->y += share * x[i].y;
        sum->z += share * x[i].z;
        sum->w += share * x[i].w;
    }
}

/* The largest of all threads' x. */
FL_DEVICE float merge_max(float x, float *words) {
    float top = -INFINITY;
    x = fl_warp_max(x);
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = x;
    __syncthreads();
    for (int32_t i = 0; i < MERGE_WARPS; i++) top = fmaxf(top, words[i]);
    return top;
}

/* Grid: lines x slices of MERGE_DIMS dimensions. Spans without a key have l 0 and no o. What is needed first is read
 * before it is known what it weighs. */
static __global__ void __launch_bounds__(MERGE_THREADS)
    attn_absorbed_merge_kernel(const __grid_constant__ params p) {
    __shared__ float tops[MERGE_WARPS], sums[MERGE_WARPS], shares[MERGE_CHUNK];
    __shared__ float4 parts[MERGE_WARPS][MERGE_DIMS / 4];
    int32_t pos, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                 first_dim = (int32_t)blockIdx.y * MERGE_DIMS;
    const timeline *seq;
    int64_t line = find_line(p, (int32_t)blockIdx.x, &pos, &seq);
    int32_t span = span_at(p, *seq, pos), n_spans = pos / (UNIT * span) + 1, dim = first_dim + 4 * lane;
    int64_t stride = p.partial_stride;
    const float *from = partial_of(p, line, 0) + (dim < p.partial_stride - SCRATCH_STEP ? dim : 0);
    float4 o = make_float4(0, 0, 0, 0);
    float2 state = make_float2(-INFINITY, 0);
    float l = 0, sum = 0, value = 0;
    merge_run x;
    fl_grid_wait();
    fetch_spans(from, stride, warp, n_spans, x);
    if ((int32_t)threadIdx.x < n_spans) state = *state_of(p, partial_of(p, line, (int32_t)threadIdx.x));
    float top = state.x;
    for (int32_t i = threadIdx.x + MERGE_CHUNK; i < n_spans; i += MERGE_CHUNK)
        top = fmaxf(top, state_of(p, partial_of(p, line, i))->x);
    top = merge_max(top, tops);
    for (int32_t first = 0; first < n_spans; first += MERGE_CHUNK) {
        int32_t n = min((int32_t)MERGE_CHUNK, n_spans - first), i = threadIdx.x;
        if (first > 0 && i < n) state = *state_of(p, partial_of(p, line, first + i));
        __syncthreads(); /* all are done with the shares before */
        if (i < n) {
            shares[i] = state.y == 0 ? 0 : fl_exp2(state.x - top);
            l += shares[i] * state.y;
        }
        __syncthreads();
        for (i = warp; i < n; i += MERGE_AHEAD * MERGE_WARPS) {
            if (first + i > warp) fetch_spans(from + first * stride, stride, i, n, x);
            add_spans(shares, i, n, x, &o);
        }
    }
    l = fl_warp_sum(l);
    if (lane == 0) sums[warp] = l;
    parts[warp][lane] = o;
    __syncthreads();
    if (threadIdx.x >= MERGE_DIMS) return;
    for (int32_t i = 0; i < MERGE_WARPS; i++) {
        sum += sums[i];
        value += ((const float *)parts[i])[threadIdx.x];
    }
    dim = first_dim + (int32_t)threadIdx.x;
    if (dim < p.kv.latent_dim)
        ((fl_bf16 *)p.out)[line * p.kv.latent_dim + dim] = __float2bfloat16_rn(sum == 0 ? 0 : value / sum);
    if (p.lse && dim == 0) p.lse[line] = sum == 0 ? -INFINITY : top + __log2f(sum);
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

static divisor divisor_of(int32_t n) {
    divisor d = {(uint32_t)n, n > 0 ? (uint32_t)((UINT64_C(1) << 32) / (uint32_t)n + 1) : 0};
    return d;
}

static int32_t splits_of(const fl_kv_rows *seq) {
    return (seq->pos + seq->n_rows - 1) / SPLIT + 1;
}

/* Which kernel. GROUPS: wgmma; the others multiply warp by warp. */
typedef enum way { PLAIN, PAGE_BY_PAGE, RING, PAIRS_OF_WARPS, GROUPS } way;

/* (row, head) pairs that share keys. Heads alone count where a row's bits may not depend on the rows beside it. */
static int64_t lanes_of(const fl_backend *be, const fl_attn_absorbed_args *a) {
    return be->deterministic ? a->n_heads : (int64_t)a->rows * a->n_heads / a->n_seqs;
}

static way way_of(const fl_backend *be, const fl_attn_absorbed_args *a, const params *p) {
    const fl_kv_cuda *kv = &p->kv;
    bool aligned = (uintptr_t)a->q % 4 == 0 && kv->wide_latent && kv->wide_k_pe;
    bool wide = aligned && (uintptr_t)a->q % 16 == 0 && kv->latent_dim == WIDE_LATENT &&
                kv->rope_dim == WIDE_ROPE && p->key_step == 1;
    if (wide && lanes_of(be, a) >= GROUP_LANES) return GROUPS;
    if (wide && kv->group != 32) return fl_kv_format_is_plain(kv->format) ? RING : PAIRS_OF_WARPS;
    if (aligned && kv->latent_dim % 16 == 0 && kv->latent_dim <= LATENT_MAX && kv->rope_dim % 16 == 0 &&
        kv->rope_dim <= ROPE_MAX)
        return PAGE_BY_PAGE;
    return PLAIN;
}

static fl_err open_params(const fl_attn_absorbed_args *a, params *p) {
    memset(p, 0, sizeof *p);
    FL_TRY(fl_kv_cuda_of("attn_absorbed", &a->kv, &p->kv));
    p->n_heads = a->n_heads;
    for (int32_t i = 0; i < a->n_seqs; i++) /* a task has one split at least */
        if (splits_of(&a->seqs[i]) > p->n_slots) p->n_slots = splits_of(&a->seqs[i]);
    p->partial_stride = (int32_t)(fl_tasks_of(a->kv.latent_dim, SCRATCH_STEP) + 1) * SCRATCH_STEP;
    p->key_step = a->key_step > 0 ? a->key_step : 1;
    p->view = a->view;
    p->q = (const uint16_t *)a->q;
    p->out = (uint16_t *)a->out;
    p->lse = a->lse;
    p->scratch = (float *)a->scratch;
    p->key_stride = a->kv.latent_dim + a->kv.rope_dim + KEY_PAD;
    if (!fl_kv_format_is_plain(a->kv.format))
        p->stored_bytes = p->kv.outliers_bytes + PAGE * p->kv.n_outliers * (int32_t)sizeof(uint16_t);
    p->latent_runs = divisor_of(a->kv.latent_dim / FL_KV_RUN);
    p->k_pe_runs = divisor_of(a->kv.rope_dim / FL_KV_RUN);
    p->key_runs = divisor_of((a->kv.latent_dim + a->kv.rope_dim) / FL_KV_RUN);
    return FL_ERR_OK;
}

/* Tasks of the timeline's last row, or of the row below seq->pos that has most. */
static int32_t tasks_of(const timeline *seq) {
    int32_t n = (seq->pos + seq->n_rows - 1) / (UNIT * seq->span) + 1;
    return seq->pos_at && seq->span > SPLIT_UNITS && n < ROW_TASKS ? (int32_t)ROW_TASKS : n;
}

/* Adds the first rows of a timeline that have the same span, from `row` of it on; returns how many. */
static int32_t put_rows(const fl_kv_rows *from, int32_t row, params *p) {
    timeline *seq = &p->seqs[p->n_seqs++];
    int32_t n = 1, left = from->n_rows - row;
    memset(seq, 0, sizeof *seq);
    seq->span = p->spans ? span_of(p, from->pos + row) : (int32_t)SPLIT_UNITS;
    if (!p->spans || span_of(p, from->pos + from->n_rows - 1) == seq->span) n = left;
    while (n < left && span_of(p, from->pos + row + n) == seq->span) n++;
    seq->pages = from->pages;
    seq->pos_at = from->pos_at;
    seq->row = from->row + row;
    seq->n_rows = n;
    seq->pos = from->pos + row;
    seq->first_group = p->n_groups;
    seq->first_line = p->n_lines;
    p->n_lines += n * p->n_heads;
    p->n_groups += (int32_t)fl_tasks_of(n * p->n_heads, p->lanes);
    if (tasks_of(seq) > p->n_spans) p->n_spans = tasks_of(seq);
    return n;
}

static int32_t shared_bytes_of(const params *p) {
    int32_t keys_bytes = PAGE * p->key_stride * (int32_t)sizeof(uint16_t);
    return S_BYTES + P_BYTES + keys_bytes + (p->stored_bytes > 0 ? p->stored_bytes : keys_bytes);
}

static fl_err launch_page_by_page(const params *p, cudaStream_t stream) {
    int32_t shared_bytes = shared_bytes_of(p);
    FL_CUDA_TRY(cudaFuncSetAttribute((const void *)attn_absorbed_kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    /* Two blocks a multiprocessor need nearly all of it. */
    FL_CUDA_TRY(cudaFuncSetAttribute((const void *)attn_absorbed_kernel,
                                     cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
    attn_absorbed_kernel<<<(uint32_t)(p->n_groups * p->n_spans), THREADS, (size_t)shared_bytes, stream>>>(*p);
    return FL_CUDA_LAUNCHED("attn_absorbed");
}

static fl_err launch(const params *p, way way, cudaStream_t stream) {
    if ((int64_t)p->n_groups * p->n_spans > INT32_MAX || (way == PLAIN && p->n_spans > UINT16_MAX))
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_absorbed: %d lines of %d splits are more than a launch has",
                       p->n_lines, p->n_spans);
    if (way == RING) {
        FL_TRY(launch_ring(p, stream));
    } else if (way == PAIRS_OF_WARPS) {
        FL_TRY(launch_pairs(p, stream));
    } else if (way == GROUPS) {
        FL_TRY(launch_groups(p, stream));
    } else if (way == PAGE_BY_PAGE) {
        FL_TRY(launch_page_by_page(p, stream));
    } else {
        dim3 grid((uint32_t)p->n_lines, (uint32_t)p->n_spans);
        attn_absorbed_plain_kernel<<<grid, PLAIN_THREADS, 0, stream>>>(*p);
        FL_TRY(FL_CUDA_LAUNCHED("attn_absorbed (plain)"));
    }
    dim3 grid((uint32_t)p->n_lines, (uint32_t)fl_tasks_of(p->kv.latent_dim, MERGE_DIMS));
    FL_CUDA_TRY(launch_early(attn_absorbed_merge_kernel, grid, MERGE_THREADS, 0, p, stream));
    return FL_CUDA_LAUNCHED("attn_absorbed (merge)");
}

extern "C" fl_err fl_attn_absorbed_cuda(fl_backend *be, const fl_attn_absorbed_args *a) {
    FL_TRY(fl_attn_absorbed_validate(a));
    params p;
    FL_TRY(open_params(a, &p));
    way way = way_of(be, a, &p);
    p.spans = way == RING || way == PAIRS_OF_WARPS || way == GROUPS;
    p.span_times = way == GROUPS && lanes_of(be, a) >= 2 * GROUP_LANES ? GROUP_SPAN_MAX / SPAN_MAX : 1;
    /* Rows of one timeline could have spans of different lengths by then. */
    for (int32_t i = 0; i < a->n_seqs && p.spans; i++)
        if (a->seqs[i].pos_at && a->seqs[i].n_rows > 1 &&
            span_of(&p, a->seqs[i].pos + a->seqs[i].n_rows - 1) > SPLIT_UNITS)
            return FL_FAIL(
                FL_ERR_UNSUPPORTED,
                "attn_absorbed: %d rows at a position that is read when they run, up to %d: too far",
                a->seqs[i].n_rows, a->seqs[i].pos + a->seqs[i].n_rows - 1);
    p.lanes = way == GROUPS ? (int32_t)GROUP_LANES : way == RING ? ring_lanes(a, p.n_slots) : (int32_t)LANES;
    for (int32_t i = 0, row = 0; i < a->n_seqs;) {
        p.n_seqs = p.n_groups = p.n_lines = p.n_spans = 0;
        while (i < a->n_seqs && p.n_seqs < SEQS_MAX) {
            row += put_rows(&a->seqs[i], row, &p);
            if (row < a->seqs[i].n_rows) continue;
            row = 0;
            i++;
        }
        FL_TRY(launch(&p, way, fl_cuda_of(be)->stream));
    }
    return FL_ERR_OK;
}
