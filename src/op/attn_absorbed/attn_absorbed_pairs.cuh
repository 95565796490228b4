/* attn_absorbed, CUDA, for int4 (groups of 64) and fp8 latents of 512 and k_pe of 64 dimensions: codes become operands
 * of the products in registers, and warps work in pairs that never wait for other pairs.
 *
 * Chunks of 32 keys come as they are stored, by the bulk copy engine, through a ring of buffers that each pair has. Of
 * a chunk each warp of the pair has all 16 lanes and half of the dimensions:
 *   scores  S[16 lanes][32 keys] = q key^T by mma.sync, q's operands in shared memory; the other warp's half of the sum
 *           comes through shared memory behind the pair's barrier, the only one of a chunk
 *   weights both warps make the same P, in registers, where it lies as the next product wants it
 *   values  O[16][256] += P latent, in registers
 * At the end the block adds up its four pairs' O, in order.
 *
 * Codes are multiplied as they are, read from shared memory twice by ldmatrix (as they lie for scores, transposed in
 * units of 16 bits for values):
 *   int4    q . latent = sum over groups of scale * (q . codes) + minimum * sum(q), and P latent = (P scale) codes
 *           + P minimum. A code's bits, masked, are an f16 already: a subnormal one, 2^-24 of its value. Two codes side
 *           by side, u and v, are taken as u and as u + 16 v, which takes one operation an operand: q's and O's side
 *           make it good, q_u - q_v / 16 and q_v / 16 instead of q_u and q_v, (O_v - O_u) / 16 instead of O_v. All of
 *           this is f16; q is scaled by a power of two, lane by lane, so that nothing is lost, the sums of q are pairs
 *           of f16. Outliers have code 0; their bf16 copies are a step of S and columns of O of their own, beside those
 *           of P minimum.
 *   fp8     scores: e4m3 is exact in f16; q scaled as above. Values: e4m3 bits moved into a bf16 read 2^-120 of the
 *           value (subnormals too); half of that power goes to P scale, half to the result. The NaN code reads as 480
 *           there.
 * The order of dimensions within a product's 16 is whatever the codes' bits suggest; q is stored in the same order. A
 * latent is therefore rounded to act nowhere, P scale is.
 *
 * P is 2^(s - m) for an m that is set SLACK above the largest s so far whenever one is more than SLACK above it: f16
 * has room on both sides, and sums are seldom scaled anew. A lane's numbers never depend on another's: what is scaled
 * for another's sake is scaled by 1.
 *
 * Grid: (lane groups of all timelines) x spans, groups that share pages side by side. Block: 256 threads, one a
 * multiprocessor. Shared: about 210 KiB for int4, 222 KiB for fp8. Bound by memory traffic for one row of 16 heads in
 * fp8; for int4 and for more lanes by how fast two warps a scheduler get through instructions. */
#ifndef FL_OP_ATTN_ABSORBED_PAIRS_CUH
#define FL_OP_ATTN_ABSORBED_PAIRS_CUH

#include "op/attn_absorbed/attn_absorbed_pairs_scores.cuh"

#define FL_PAIRS_SLACK 2.0f

#define FL_EVEN_PAGES 0x5555555555555555ull

/* What a thread keeps over the chunks: rows lane / 4 and + 8 of the task's lanes. */
template <int FORM> struct pairs_state {
    float o[32][4];   /* 8 x 8 of the warp's dimensions, four of each two pieces of 16 bytes of codes */
    float rest[4];    /* int4: columns of P minimum of the warp's four groups, of four outliers */
    float m[2], l[2]; /* l of the thread's keys */
};

/* ---- weights --------------------------------------------------------------------------------------------------- */

/* Adds the other warp's half of S. Turns alternate, so that one barrier is enough. */
FL_DEVICE void join_scores(const pair_thread &w, pairs_board *pb, int32_t turn, chunk_scores &sum) {
    float4(*parts)[TILES_OF_KEYS][32] = pb->parts[w.pair][turn];
#pragma unroll
    for (int32_t n = 0; n < TILES_OF_KEYS; n++)
        parts[w.half][n][w.lane] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
    fl_named_barrier_wait(1 + w.pair, 64);
#pragma unroll
    for (int32_t n = 0; n < TILES_OF_KEYS; n++) {
        float4 part = parts[1 - w.half][n][w.lane];
        sum[n][0] += part.x;
        sum[n][1] += part.y;
        sum[n][2] += part.z;
        sum[n][3] += part.w;
    }
}

/* -INFINITY where keys from position `first` on are not seen. */
template <int FORM> FL_DEVICE void hide_keys(const pairs_board *pb, int32_t first, chunk_scores &sum) {
    int32_t row = threadIdx.x % 32 / 4, key = first + key_of_column<FORM>(threadIdx.x % 4 * 2);
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        const sight s = pb->b.sights[row + 8 * half];
#pragma unroll
        for (int32_t i = 0; i < 2 * TILES_OF_KEYS; i++)
            if (!sees(s, key + own_key<FORM>(i % 4) + i / 4 * 16, 1))
                sum[i / 2][2 * half + i % 2] = -INFINITY;
    }
}

/* What the sums so far are worth after new maxima. */
template <int FORM> FL_DEVICE void rescale(const float (&scale)[2], pairs_state<FORM> *st) {
#pragma unroll
    for (int32_t i = 0; i < 32; i++)
#pragma unroll
        for (int32_t k = 0; k < 4; k++) st->o[i][k] *= scale[k / 2];
#pragma unroll
    for (int32_t k = 0; k < 4; k++) st->rest[k] *= scale[k / 2];
    st->l[0] *= scale[0];
    st->l[1] *= scale[1];
}

/* P of a chunk, as operands of 16 keys each. */
template <int FORM>
FL_DEVICE void weigh_chunk(const pair_thread &w, const pairs_board *pb, const chunk_scores &sum,
                           pairs_state<FORM> *st, uint32_t (&weights)[STEPS][4]) {
    const float down[2] = {pb->down[w.lane / 4], pb->down[w.lane / 4 + 8]};
    float top[2], from[2];
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        top[row] = sum[0][2 * row];
#pragma unroll
        for (int32_t i = 1; i < 2 * TILES_OF_KEYS; i++)
            top[row] = fmaxf(top[row], sum[i / 2][2 * row + i % 2]);
    }
#pragma unroll
    for (int32_t row = 0; row < 2; row++) top[row] *= down[row];
    if (__any_sync(~0u, top[0] > st->m[0] + FL_PAIRS_SLACK || top[1] > st->m[1] + FL_PAIRS_SLACK)) {
        float scale[2] = {1, 1};
        top[0] = fl_quad_max(top[0]);
        top[1] = fl_quad_max(top[1]);
        const bool higher[2] = {top[0] > st->m[0] + FL_PAIRS_SLACK, top[1] > st->m[1] + FL_PAIRS_SLACK};
#pragma unroll
        for (int32_t row = 0; row < 2; row++)
            if (higher[row]) {
                scale[row] = fl_exp2(st->m[row] - (top[row] + FL_PAIRS_SLACK));
                st->m[row] = top[row] + FL_PAIRS_SLACK;
            }
        rescale(scale, st);
    }
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        from[row] = st->m[row] == -INFINITY ? 0 : st->m[row]; /* nothing seen so far: all weights 0 */
#pragma unroll
        for (int32_t n = 0; n < TILES_OF_KEYS; n++) {
            float x = fl_exp2(fmaf(sum[n][2 * row], down[row], -from[row]));
            float y = fl_exp2(fmaf(sum[n][2 * row + 1], down[row], -from[row]));
            st->l[row] += x + y;
            weights[n / 2][n % 2 * 2 + row] = FORM == FORM_INT4 ? fl_pack_f16(x, y) : fl_pack_bf16(x, y);
        }
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

/* P of 16 keys times fp8's scales at the thread's four. */
FL_DEVICE void scale_bf16(const uint32_t (&weights)[4], const float (&scales)[4], uint32_t (&out)[4]) {
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        out[i] = fl_pack_bf16(fl_low_of_bf16x2(weights[i]) * scales[i / 2 * 2],
                              fl_high_of_bf16x2(weights[i]) * scales[i / 2 * 2 + 1]);
}

/* int4, 16 keys from `first` on. */
FL_DEVICE void add_codes(const pair_thread &w, const uint8_t *chunk, int32_t first,
                         const uint32_t (&weights)[4], pairs_state<FORM_INT4> *st) {
    typedef pairs<FORM_INT4> S;
    const uint32_t *scales = own_scales<FORM_INT4>(w, chunk) + first * S::KEY_GROUPS;
    const uint8_t *box = chunk + w.half * BOX_BYTES + first * ROW;
    uint32_t fit[4][4];
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        uint4 four = *(const uint4 *)(scales + own_key<FORM_INT4>(i) * S::KEY_GROUPS);
        fit[i][0] = four.x, fit[i][1] = four.y, fit[i][2] = four.z, fit[i][3] = four.w;
    }
#pragma unroll
    for (int32_t group = 0; group < S::OWN_GROUPS; group++) {
        const uint32_t scale[2] = {__byte_perm(fit[0][group], fit[1][group], 0x5410),
                                   __byte_perm(fit[2][group], fit[3][group], 0x5410)};
        uint32_t scaled[4], words[4];
#pragma unroll
        for (int32_t i = 0; i < 4; i++) scaled[i] = fl_multiply_f16x2(weights[i], scale[i / 2]);
        fl_load_matrices_transposed(words, box + (w.value_row ^ group * 32));
#pragma unroll
        for (int32_t piece = 0; piece < 2; piece++) {
            uint32_t x[4], y[4];
            pairs_of_int4(words[2 * piece], x);
            pairs_of_int4(words[2 * piece + 1], y);
#pragma unroll
            for (int32_t i = 0; i < 4; i++) fl_mma_f16(st->o[group * 8 + piece * 4 + i], scaled, x[i], y[i]);
        }
    }
}

/* int4: P minimum and outliers. Columns 0-3 of D are the warp's groups, 4-7 the warp's outliers; what those that are
 * not there hold is never read. */
FL_DEVICE void add_rest(const pair_thread &w, int32_t n, const uint8_t *chunk, int32_t first,
                        const uint32_t (&weights)[4], pairs_state<FORM_INT4> *st) {
    typedef pairs<FORM_INT4> S;
    int32_t column = w.lane / 4, key = first + w.column;
    bool outlier = column >= 4 && n > 0;
    const uint8_t *from = chunk + S::REST + (w.half * S::OWN_GROUPS + column % 4) * 4 + 2;
    int32_t key_bytes = S::KEY_GROUPS * 4;
    uint32_t x[4];
    if (outlier) {
        from = chunk + S::REST + S::SCALES + min(w.half * 4 + column - 4, n - 1) * 2;
        key_bytes = n * 2;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        x[i] = *(const uint16_t *)(from + (key + own_key<FORM_INT4>(i)) * key_bytes);
    uint32_t low = x[0] | x[1] << 16, high = x[2] | x[3] << 16;
    if (outlier) { /* f16 holds what bf16 does but for the range */
        low = fl_pack_f16(fl_low_of_bf16x2(low), fl_high_of_bf16x2(low));
        high = fl_pack_f16(fl_low_of_bf16x2(high), fl_high_of_bf16x2(high));
    }
    fl_mma_f16(st->rest, weights, low, high);
}

/* fp8, 16 keys from `first` on. */
FL_DEVICE void add_codes(const pair_thread &w, const uint8_t *chunk, int32_t first,
                         const uint32_t (&weights)[4], pairs_state<FORM_FP8> *st) {
    typedef pairs<FORM_FP8> S;
    const float *scales = (const float *)own_scales<FORM_FP8>(w, chunk) + first * S::KEY_GROUPS;
#pragma unroll
    for (int32_t group = 0; group < S::OWN_GROUPS; group++) {
        const uint8_t *box = chunk + (w.half * S::OWN_GROUPS + group) * BOX_BYTES + first * ROW;
        float scale[4];
        uint32_t scaled[4];
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            scale[i] = scales[own_key<FORM_FP8>(i) * S::KEY_GROUPS + group] * FL_PAIRS_HALF;
        scale_bf16(weights, scale, scaled);
#pragma unroll
        for (int32_t two = 0; two < S::PIECES / 2; two++) {
            uint32_t words[4];
            fl_load_matrices_transposed(words, box + (w.value_row ^ two * 32));
#pragma unroll
            for (int32_t piece = 0; piece < 2; piece++) {
                uint32_t x[2], y[2];
                bf16_of_fp8(words[2 * piece], x);
                bf16_of_fp8(words[2 * piece + 1], y);
#pragma unroll
                for (int32_t i = 0; i < 2; i++)
                    fl_mma_bf16(st->o[group * 16 + two * 4 + piece * 2 + i], scaled, x[i], y[i]);
            }
        }
    }
}

/* ---- results --------------------------------------------------------------------------------------------------- */

/* The thread's dimensions of its row `row` of O, times `share`, to the row's sums. */
FL_DEVICE void put_row(const pairs_state<FORM_INT4> &st, int32_t row, float share, float *to) {
    float *from = to + half_of() * HALF + threadIdx.x % 4 * 8;
#pragma unroll
    for (int32_t i = 0; i < 8; i++) { /* pieces of 32 dimensions */
        float rest = __shfl_sync(~0u, st.rest[2 * row + i / 2 % 2], (int)(threadIdx.x % 32 / 4 * 4 + i / 4));
        float x[8];
#pragma unroll
        for (int32_t k = 0; k < 8; k++) {
            float own = st.o[i * 4 + k % 4][2 * row + k / 4];
            if (k % 2 == 1) own -= st.o[i * 4 + k % 4 - 1][2 * row + k / 4];
            x[k] = fmaf(own, k % 2 == 1 ? 0x1p20f : 0x1p24f, rest) * share;
        }
        *(float4 *)(from + i * 32) = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)(from + i * 32 + 4) = make_float4(x[4], x[5], x[6], x[7]);
    }
}

FL_DEVICE void put_row(const pairs_state<FORM_FP8> &st, int32_t row, float share, float *to) {
    float *from = to + half_of() * HALF + threadIdx.x % 4 * 4;
#pragma unroll
    for (int32_t i = 0; i < 16; i++) { /* pieces of 16 dimensions */
        const float(&x)[4] = st.o[i * 2], (&y)[4] = st.o[i * 2 + 1];
        float scale = share * FL_PAIRS_HALF;
        *(float4 *)(from + i * 16) = make_float4(x[2 * row] * scale, y[2 * row] * scale,
                                                 x[2 * row + 1] * scale, y[2 * row + 1] * scale);
    }
}

/* Outliers, over what stands in their places. */
FL_DEVICE void put_outliers(const params &p, const pairs_state<FORM_INT4> &st, int32_t row, float share,
                            float *to) {
    int32_t k = half_of() * 4 + (threadIdx.x % 4 - 2) * 2;
    if (threadIdx.x % 4 < 2) return;
#pragma unroll
    for (int32_t i = 0; i < 2; i++)
        if (k + i < p.kv.n_outliers) to[p.kv.outliers[k + i]] = st.rest[2 * row + i] * share;
}

/* What a pair's sums are worth in those of the block. */
FL_DEVICE float share_of(const pairs_board *pb, int32_t pair, int32_t lane) {
    float top = pb->m[0][lane];
#pragma unroll
    for (int32_t i = 1; i < PAIRS; i++) top = fmaxf(top, pb->m[i][lane]);
    float own = pb->m[pair][lane];
    return own == -INFINITY ? 0 : fl_exp2(own - top);
}

/* m and l of the block's lanes. */
FL_DEVICE void store_states(const params &p, const task &t, const pairs_board *pb) {
    int32_t lane = threadIdx.x;
    if (lane >= t.n_lanes) return;
    float top = pb->m[0][lane], l = 0;
    for (int32_t i = 0; i < PAIRS; i++) {
        top = fmaxf(top, pb->m[i][lane]);
        l += pb->l[i][lane] * share_of(pb, i, lane);
    }
    *state_of(p, partial_of(p, t.first_line + lane, t.slot)) = make_float2(top, l);
}

/* Sums of the four pairs to the partial results. `sums` [PAIRS][LANES][LATENT_STRIDE], where stages were. */
template <int FORM>
FL_DEVICE void store_pairs(const params &p, const task &t, pairs_board *pb, const pairs_state<FORM> &st,
                           float *sums) {
    int32_t pair = pair_of(), lane = threadIdx.x % 32 / 4;
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        float l = fl_quad_sum(st.l[row]);
        if (half_of() != 0 || threadIdx.x % 4 != 0) continue;
        pb->m[pair][lane + 8 * row] = st.m[row];
        pb->l[pair][lane + 8 * row] = l;
    }
    __syncthreads(); /* and no pair reads stages any more */
    float *own = sums + (pair * LANES + lane) * LATENT_STRIDE, share[2];
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        share[row] = share_of(pb, pair, lane + 8 * row);
        put_row(st, row, share[row], own + 8 * row * LATENT_STRIDE);
    }
    __syncthreads();
    if constexpr (FORM == FORM_INT4)
        if (p.kv.n_outliers > 0) {
#pragma unroll
            for (int32_t row = 0; row < 2; row++)
                put_outliers(p, st, row, share[row], own + 8 * row * LATENT_STRIDE);
            __syncthreads();
        }
    store_states(p, t, pb);
    for (int32_t i = threadIdx.x; i < t.n_lanes * (WIDE_LATENT / 4); i += THREADS) {
        int32_t line = i / (WIDE_LATENT / 4), dim = i % (WIDE_LATENT / 4) * 4;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int32_t k = 0; k < PAIRS; k++) {
            float4 part = *(const float4 *)(sums + (k * LANES + line) * LATENT_STRIDE + dim);
            sum.x += part.x;
            sum.y += part.y;
            sum.z += part.z;
            sum.w += part.w;
        }
        *(float4 *)(partial_of(p, t.first_line + line, t.slot) + dim) = sum;
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

/* The task, its pages and the barriers; `page` is this thread's of the span's pages. Returns the pages that some lane
 * sees. */
template <int FORM>
FL_DEVICE uint64_t open_pairs(const params &p, const task &t, int32_t page, pairs_board *pb) {
    typedef pairs<FORM> S;
    see_pages(p, t, &pb->b);
    uint64_t seen = pages_of(pb->b.seen), below = ((uint64_t)1 << threadIdx.x % 64) - 1;
    if (threadIdx.x == 0) {
        pb->t = t;
        for (int32_t i = 0; i < PAIRS * S::STAGES; i++)
            fl_barrier_init(&pb->full[i / S::STAGES][i % S::STAGES], 1);
        fl_barrier_init_fence();
    }
    if (threadIdx.x < SPAN_PAGES && (seen >> threadIdx.x & 1)) {
        int32_t first = t.first + threadIdx.x * PAGE, odd = threadIdx.x % 2;
        bool partial = pages_of(pb->b.partial) >> threadIdx.x & 1;
        pb->pages[odd][__popcll(seen & FL_EVEN_PAGES << odd & below)] = {page, partial ? ~first : first};
    }
    __syncthreads();
    return seen;
}

/* OUTLIERS: int4 has some. */
template <int FORM, bool OUTLIERS>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_absorbed_pairs_kernel(const __grid_constant__ pairs_params r) {
    typedef pairs<FORM> S;
    extern __shared__ __align__(1024) uint8_t shared[];
    const params &p = r.p;
    pairs_board *pb = (pairs_board *)(shared + PAIRS * S::STAGES * r.stage_bytes);
    task opened;
    fl_grid_wait();
    fl_grid_begin_next();
    if (!find_task(p, &opened)) return;
    /* Read before the copies begin, which fill the way to memory. */
    pairs_q_runs runs = fetch_pairs_q<FORM>(p, opened);
    int32_t page_at = threadIdx.x % SPAN_PAGES;
    bool there = opened.first + page_at * PAGE <= opened.last_pos;
    uint64_t seen = open_pairs<FORM>(p, opened, there ? __ldg(opened.pages + page_at) : 0, pb);
    if (seen == 0) {
        store_nothing(p, opened);
        return;
    }
    const task &t = pb->t;
    int32_t n = __popcll(seen & FL_EVEN_PAGES << pair_of() / CHUNKS);
    for (int32_t i = 0; i < min(n, (int32_t)S::STAGES); i++) feed_pair<FORM>(r, shared, pb, i);
    open_pairs_q<FORM>(p, t, runs, pb);
    pairs_state<FORM> st = {};
    st.m[0] = st.m[1] = -INFINITY;
    const pair_thread w = pair_thread_of<FORM>();
    uint8_t *stages = shared + w.pair * S::STAGES * r.stage_bytes, *at = stages;
    int32_t stage = 0, parity = 0;
    seen_page page = own_pages(pb)[0];
#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        chunk_scores sum;
        uint32_t weights[STEPS][4];
        fl_barrier_wait(&pb->full[w.pair][stage], (uint32_t)parity);
        if (page.first < 0 && ~page.first + own_keys() + CHUNK - 1 > t.last_pos) {
            blank_chunk<FORM>(r, t.last_pos + 1 - (~page.first + own_keys()), at);
            pair_sync();
        }
        score_chunk<FORM>(w, OUTLIERS ? p.kv.n_outliers : 0, pb, at, sum);
        join_scores(w, pb, i % 2, sum); /* and both warps are done with the chunk before, which makes room */
        if (i > 0 && i - 1 + S::STAGES < n) feed_pair<FORM>(r, shared, pb, i - 1 + S::STAGES);
        if (page.first < 0) hide_keys<FORM>(pb, ~page.first + own_keys(), sum);
        weigh_chunk(w, pb, sum, &st, weights);
#pragma unroll
        for (int32_t step = 0; step < STEPS; step++) {
            add_codes(w, at, step * 16, weights[step], &st);
            if constexpr (S::INT4)
                add_rest(w, OUTLIERS ? p.kv.n_outliers : 0, at, step * 16, weights[step], &st);
        }
        page = own_pages(pb)[min(i + 1, n - 1)];
        at += r.stage_bytes;
        if (++stage == S::STAGES) stage = 0, parity ^= 1, at = stages;
    }
    store_pairs(p, t, pb, st, (float *)shared);
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

template <int FORM, bool OUTLIERS> static fl_err launch_pairs_of(const params *p, cudaStream_t stream) {
    typedef pairs<FORM> S;
    pairs_params r;
    memset(&r, 0, sizeof r);
    r.p = *p;
    FL_TRY(map_keys(p->kv.base, p, (int32_t)S::BOXES * (int32_t)ROW, &r.latent));
    FL_TRY(map_keys(p->kv.base + p->kv.k_pe_bytes, p, ROW, &r.k_pe));
    r.outliers_of_chunk = CHUNK * p->kv.n_outliers * (int32_t)sizeof(uint16_t);
    r.stage_bytes = (int32_t)fl_tasks_of(S::REST + S::SCALES + r.outliers_of_chunk, 1024) * 1024;
    int32_t shared_bytes = PAIRS * S::STAGES * r.stage_bytes + (int32_t)sizeof(pairs_board);
    const void *kernel = (const void *)attn_absorbed_pairs_kernel<FORM, OUTLIERS>;
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    dim3 grid((uint32_t)(p->n_groups * p->n_spans));
    FL_CUDA_TRY(
        launch_early(attn_absorbed_pairs_kernel<FORM, OUTLIERS>, grid, THREADS, shared_bytes, &r, stream));
    return FL_CUDA_LAUNCHED("attn_absorbed (pairs)");
}

static fl_err launch_pairs(const params *p, cudaStream_t stream) {
    if (p->kv.format == FL_KV_FP8) return launch_pairs_of<FORM_FP8, false>(p, stream);
    return p->kv.n_outliers > 0 ? launch_pairs_of<FORM_INT4, true>(p, stream)
                                : launch_pairs_of<FORM_INT4, false>(p, stream);
}

#endif
