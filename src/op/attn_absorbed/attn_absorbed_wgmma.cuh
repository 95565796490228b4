/* attn_absorbed, CUDA, for latents of 512 and k_pe of 64 dimensions where 64 (row, head) pairs of a timeline share
 * keys: wgmma products of 64 lanes. A block has three warpgroups: one that brings keys, two that multiply. These see
 * the span in pairs of pages, at an even and the odd position behind it:
 *   scores   the even side S[64][64] of the even page, the odd side that of the odd one
 *   weights  P = 2^(S - m), bf16, in registers as operands; the other side's copy goes through shared memory
 *   values   a side has its half of the latent dimensions, O[64][256] in registers, and adds P latent of both pages, in
 *            order
 * The even side is ahead: its exponentials run while the odd side's scores are multiplied, those of the odd side while
 * both add the even page. A page's half is given up as soon as its reader is done, and scores begin with the quarter
 * that is there first, so that the next pair comes while this one is multiplied.
 *
 * m is a whole number, set to the next one above a page's largest score when that is more than SLACK above it: sums
 * are seldom scaled anew. A page that no lane sees takes the place of its neighbour with all keys hidden, which adds
 * zeros. A lane's numbers never depend on another's.
 *
 * bf16 pages come by the bulk copy engine, swizzled. Codes of fp8 and int4 are read from memory half a page ahead and
 * decoded to bf16 by the third warpgroup, keys behind the last row's position to zeros; k_pe comes as it does in bf16.
 * All is asked into L2 a pair ahead. Where a timeline's lanes fill them, two blocks are a cluster: each brings half of
 * every page to both, and sees the pages that a lane of either sees.
 *
 * Grid: (lane groups of all timelines) x spans, groups that share pages side by side. Block: 384 threads, one a
 * multiprocessor. Shared: 227 KiB, room for one pair: a page's way from one use of its room to the next (brought,
 * scored, weighed, added) is what bounds. On an H200 the matrix units are busy 72% of the time with bf16, 46% with
 * int4, where the odd side waits for its page more than half of the time. Half the decoding a warpgroup, by a fourth
 * one, did not change that, nor did room given up by quarters. */
#ifndef FL_OP_ATTN_ABSORBED_WGMMA_CUH
#define FL_OP_ATTN_ABSORBED_WGMMA_CUH

#include "op/attn_absorbed/attn_absorbed_wgmma_keys.cuh"

#define FL_GROUP_SLACK 1.0f

/* ---- scores ---------------------------------------------------------------------------------------------------- */

/* What a thread of a side keeps over the pairs: rows lane / 4 and + 8 of its warp's 16 lanes. */
typedef struct group_state {
    float o[WIDE_LATENT / 4]; /* [8 x 8 of the side's dimensions][2 rows][2] */
    float m[2], l[2];         /* l of the thread's keys */
    uint32_t q[K_STEPS][4];   /* k_pe part of q, as operands */
} group_state;

typedef uint32_t group_weights[K_STEPS][4];

FL_DEVICE int32_t group_lane(int32_t row) {
    return threadIdx.x / 32 % GROUP_WARPS * 16 + threadIdx.x % 32 / 4 + 8 * row;
}

FL_DEVICE void open_group_state(const params &p, const task &t, group_state *st) {
#pragma unroll
    for (int32_t i = 0; i < WIDE_LATENT / 4; i++) st->o[i] = 0;
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        int32_t lane = group_lane(row);
        const uint16_t *q = p.q + (t.first_line + lane) * WIDE_KEY + WIDE_LATENT + threadIdx.x % 4 * 2;
        st->m[row] = -INFINITY;
        st->l[row] = 0;
#pragma unroll
        for (int32_t k = 0; k < K_STEPS; k++) {
            st->q[k][row] = lane < t.n_lanes ? *(const uint32_t *)(q + k * 16) : 0;
            st->q[k][2 + row] = lane < t.n_lanes ? *(const uint32_t *)(q + k * 16 + 8) : 0;
        }
    }
}

FL_DEVICE void issue_quarter(float (&sum)[32], uint64_t q, uint64_t keys) {
#pragma unroll
    for (int32_t i = 0; i < 8; i++) {
        int32_t at = i / 4 * (TILE_BYTES >> 4) + i % 4 * 2;
        fl_wgmma_bf16(sum, q + at, keys + at, 1);
    }
}

/* Keys behind the last row's position: what is stored there may be NaN, weight 0 or not. Their latents become zeros. */
FL_DEVICE void blank_page(group_shared *s, int32_t side, int32_t there, uint32_t parity) {
    int32_t runs = (PAGE - there) * (ROW / 16);
    for (int32_t i = 0; i < QUARTERS_OF_KEY; i++) fl_barrier_wait_together(&s->full[side][i], parity);
    for (int32_t tile = 0; tile < 2 * HALF_TILES; tile++)
        for (int32_t i = threadIdx.x % GROUP_THREADS; i < runs; i += GROUP_THREADS)
            *(uint4 *)(s->keys[side][tile] + there * ROW + i * 16) = make_uint4(0, 0, 0, 0);
    fl_async_proxy_fence();
    fl_named_barrier_wait(BLANKED + side, GROUP_THREADS);
}

/* S of the side's page of pair i; under way when it returns. */
template <int SIDE, bool PLAIN_KEYS>
FL_DEVICE void issue_scores(group_shared *s, int32_t i, const group_state &st, float (&sum)[32]) {
    uint32_t parity = (uint32_t)i & 1;
    uint64_t q = fl_wgmma_k_major(s->q[0]), keys = fl_wgmma_k_major(s->keys[SIDE][0]);
    uint64_t k_pe = fl_wgmma_k_major(s->keys[SIDE][2 * HALF_TILES]);
    if (PLAIN_KEYS && s->pages[SIDE][i].there < PAGE) blank_page(s, SIDE, s->pages[SIDE][i].there, parity);
    fl_barrier_wait_together(&s->full[SIDE][PART_K_PE], parity);
    fl_wgmma_begin();
#pragma unroll
    for (int32_t k = 0; k < K_STEPS; k++) fl_wgmma_bf16(sum, st.q[k], k_pe + 2 * k, k > 0);
#pragma unroll
    for (int32_t quarter = 0; quarter < QUARTERS_OF_KEY; quarter++) {
        int32_t at = quarter * 2 * (TILE_BYTES >> 4);
        fl_barrier_wait_together(&s->full[SIDE][quarter], parity);
        fl_wgmma_begin();
        issue_quarter(sum, q + at, keys + at);
    }
    fl_wgmma_commit();
}

/* ---- weights --------------------------------------------------------------------------------------------------- */

/* -INFINITY where keys are not seen. */
FL_DEVICE void hide_group_keys(const params &p, const task &t, int32_t first, float (&sum)[32]) {
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        sight sight = {};
        int32_t lane = group_lane(row);
        if (lane < t.n_lanes) sight = sight_of(p.view, pos_of(p, p.seqs[t.seq], t.first_lane + lane));
#pragma unroll
        for (int32_t i = 0; i < 16; i++)
            if (!sees(sight, first + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2, 1))
                sum[i / 2 * 4 + 2 * row + i % 2] = -INFINITY;
    }
}

FL_DEVICE float next_m(float m, float top) {
    return top > m + FL_GROUP_SLACK ? ceilf(top) : m;
}

/* What the sums so far are worth at a new m. */
FL_DEVICE void move_sums(group_state *st, const float (&m)[2]) {
    if (!__any_sync(~0u, m[0] != st->m[0] || m[1] != st->m[1])) return;
    float scale[2];
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        scale[row] = m[row] == st->m[row] ? 1 : fl_exp2(st->m[row] - m[row]);
        st->m[row] = m[row];
        st->l[row] *= scale[row];
    }
#pragma unroll
    for (int32_t i = 0; i < WIDE_LATENT / 4; i++) st->o[i] *= scale[i / 2 % 2];
}

/* P of a page at `m`, its sum to `l`. */
FL_DEVICE void weigh_scores(const float (&sum)[32], const float (&m)[2], float (&l)[2],
                            group_weights &weights) {
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        float from = m[row] == -INFINITY ? 0 : m[row]; /* nothing seen so far: all weights 0 */
#pragma unroll
        for (int32_t i = 0; i < 8; i++) {
            float x = fl_exp2(sum[4 * i + 2 * row] - from), y = fl_exp2(sum[4 * i + 2 * row + 1] - from);
            l[row] += x + y;
            weights[i / 2][i % 2 * 2 + row] = fl_pack_bf16(x, y);
        }
    }
}

/* As rows of 64 keys, which wgmma reads. */
FL_DEVICE void send_rows(uint8_t *to, const group_weights &weights) {
    int32_t column = threadIdx.x % 4 * 4;
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        int32_t lane = group_lane(row);
#pragma unroll
        for (int32_t i = 0; i < 8; i++)
            *(uint32_t *)(to + lane * ROW + (i ^ lane % 8) * 16 + column) = weights[i / 2][i % 2 * 2 + row];
    }
    fl_async_proxy_fence();
}

FL_DEVICE void send_weights(uint4 (*to)[GROUP_THREADS], const group_weights &weights) {
#pragma unroll
    for (int32_t k = 0; k < K_STEPS; k++)
        to[k][threadIdx.x % GROUP_THREADS] =
            make_uint4(weights[k][0], weights[k][1], weights[k][2], weights[k][3]);
}

FL_DEVICE void take_weights(const uint4 (*from)[GROUP_THREADS], group_weights &weights) {
#pragma unroll
    for (int32_t k = 0; k < K_STEPS; k++) take_operand(from[k], threadIdx.x % GROUP_THREADS, weights[k]);
}

/* The largest score of each row; S with hidden keys. */
FL_DEVICE void find_tops(const params &p, const group_shared *s, const group_page &page, float (&sum)[32],
                         float (&top)[2]) {
    if (page.partial) hide_group_keys(p, s->t, page.first, sum);
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        top[row] = fmaxf(sum[2 * row], sum[2 * row + 1]);
#pragma unroll
        for (int32_t i = 1; i < 8; i++)
            top[row] = fmaxf(top[row], fmaxf(sum[4 * i + 2 * row], sum[4 * i + 2 * row + 1]));
        top[row] = fl_quad_max(top[row]);
    }
}

FL_DEVICE void send_m(float *to, const float (&m)[2]) {
    if (threadIdx.x % 4 != 0) return;
    to[group_lane(0)] = m[0];
    to[group_lane(1)] = m[1];
}

FL_DEVICE void take_m(const float *from, float (&m)[2]) {
    m[0] = from[group_lane(0)];
    m[1] = from[group_lane(1)];
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

/* O += P latent of the side's half of a page; under way when it returns. */
template <int SIDE>
FL_DEVICE void issue_page(group_shared *s, int32_t page_side, const group_weights &weights, group_state *st) {
    uint64_t latent = fl_wgmma_mn_major(s->keys[page_side][SIDE * HALF_TILES], TILE_BYTES);
    fl_wgmma_begin();
#pragma unroll
    for (int32_t k = 0; k < K_STEPS; k++) fl_wgmma_bf16_mn(st->o, weights[k], latent + k * 128, 1);
    fl_wgmma_commit();
}

/* The same of the even page for the odd side, P in shared memory. */
FL_DEVICE void issue_even_page(group_shared *s, group_state *st) {
    uint64_t latent = fl_wgmma_mn_major(s->keys[0][HALF_TILES], TILE_BYTES);
    uint64_t weights = fl_wgmma_k_major(s->even_weights);
    fl_wgmma_begin();
#pragma unroll
    for (int32_t k = 0; k < K_STEPS; k++) fl_wgmma_bf16_mn(st->o, weights + 2 * k, latent + k * 128, 1);
    fl_wgmma_commit();
}

/* All values so far are added; the side's half of a page is given up. */
template <int SIDE, bool PAIRED>
FL_DEVICE void finish_page(group_shared *s, int32_t page_side, group_state *st) {
    fl_wgmma_wait<0>();
    fl_wgmma_pin(st->o);
    fl_barrier_release<PAIRED ? 2 : 1>(&s->empty[page_side][SIDE]);
}

template <bool PLAIN_KEYS, bool PAIRED>
FL_DEVICE void even_pair(const params &p, group_shared *s, int32_t i, group_state *st) {
    float sum[32], top[2], m[2];
    group_weights own, other;
    issue_scores<0, PLAIN_KEYS>(s, i, *st, sum);
    fl_wgmma_wait<0>();
    fl_wgmma_pin(sum);
    fl_barrier_release<PAIRED ? 2 : 1>(&s->empty[0][HALF_K_PE]);
    find_tops(p, s, s->pages[0][i], sum, top);
    m[0] = next_m(st->m[0], top[0]), m[1] = next_m(st->m[1], top[1]);
    send_m(s->m[0], m);
    move_sums(st, m);
    weigh_scores(sum, st->m, st->l, own);
    send_rows(s->even_weights, own);
    fl_named_barrier_arrive(EVEN_THERE, 2 * GROUP_THREADS);
    issue_page<0>(s, 0, own, st);
    finish_page<0, PAIRED>(s, 0, st);
    fl_named_barrier_wait(ODD_THERE, 2 * GROUP_THREADS);
    take_weights(s->odd_weights, other);
    take_m(s->m[1], m);
    move_sums(st, m);
    issue_page<0>(s, 1, other, st);
    finish_page<0, PAIRED>(s, 1, st);
}

/* The even page's values follow the odd page's scores, whatever those are. */
template <bool PLAIN_KEYS, bool PAIRED>
FL_DEVICE void odd_pair(const params &p, group_shared *s, int32_t i, group_state *st) {
    float sum[32], top[2], m[2], l[2] = {};
    group_weights own;
    issue_scores<1, PLAIN_KEYS>(s, i, *st, sum);
    fl_named_barrier_wait(EVEN_THERE, 2 * GROUP_THREADS);
    fl_wgmma_wait<0>(); /* the even page's took as long: O may move warp by warp, with no product under way */
    fl_wgmma_pin(sum);
    fl_barrier_release<PAIRED ? 2 : 1>(&s->empty[1][HALF_K_PE]);
    take_m(s->m[0], m);
    move_sums(st, m);
    issue_even_page(s, st);
    find_tops(p, s, s->pages[1][i], sum, top);
    m[0] = next_m(m[0], top[0]), m[1] = next_m(m[1], top[1]);
    send_m(s->m[1], m);
    weigh_scores(sum, m, l, own);
    send_weights(s->odd_weights, own);
    fl_named_barrier_arrive(ODD_THERE, 2 * GROUP_THREADS);
    finish_page<1, PAIRED>(s, 0, st);
    move_sums(st, m);
    st->l[0] += l[0], st->l[1] += l[1];
    issue_page<1>(s, 1, own, st);
    finish_page<1, PAIRED>(s, 1, st);
}

/* ---- results --------------------------------------------------------------------------------------------------- */

template <int SIDE> FL_DEVICE void store_group(const params &p, group_shared *s, const group_state &st) {
    const task &t = s->t;
    float l[2] = {fl_quad_sum(st.l[0]), fl_quad_sum(st.l[1])};
    if (SIDE == 1) {
        send_m(s->m[0], l);
        fl_named_barrier_arrive(EVEN_THERE, 2 * GROUP_THREADS);
    } else {
        fl_named_barrier_wait(EVEN_THERE, 2 * GROUP_THREADS);
    }
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        int32_t lane = group_lane(row);
        if (lane >= t.n_lanes) continue;
        float *partial = partial_of(p, t.first_line + lane, t.slot);
        float *o = partial + SIDE * SIDE_DIMS + threadIdx.x % 4 * 2;
        if (SIDE == 0 && threadIdx.x % 4 == 0)
            *state_of(p, partial) = make_float2(st.m[row], l[row] + s->m[0][lane]);
#pragma unroll
        for (int32_t i = 0; i < SIDE_DIMS / 8; i++)
            *(float2 *)(o + 8 * i) = make_float2(st.o[4 * i + 2 * row], st.o[4 * i + 2 * row + 1]);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

template <int SIDE, bool PLAIN_KEYS, bool PAIRED>
FL_DEVICE void multiply(const params &p, group_shared *s, int32_t n) {
    group_state st;
    open_group_state(p, s->t, &st);
#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        if (SIDE == 0) even_pair<PLAIN_KEYS, PAIRED>(p, s, i, &st);
        else odd_pair<PLAIN_KEYS, PAIRED>(p, s, i, &st);
    }
    store_group<SIDE>(p, s, st);
}

template <bool PLAIN_KEYS, bool PAIRED> FL_DEVICE void open_group_barriers(group_shared *s) {
    if (threadIdx.x != 0) return;
    for (int32_t side = 0; side < 2; side++) {
        for (int32_t i = 0; i < PARTS; i++)
            fl_barrier_init(&s->full[side][i], PLAIN_KEYS || i == PART_K_PE ? 1 : GROUP_WARPS);
        for (int32_t i = 0; i < HALVES; i++)
            fl_barrier_init(&s->empty[side][i], (PAIRED ? 2 : 1) * GROUP_WARPS);
    }
    fl_barrier_init_fence();
}

template <int FORMAT, bool PAIRED>
static __global__ void __launch_bounds__(GROUPS_THREADS, 1)
    attn_absorbed_wgmma_kernel(const __grid_constant__ group_params r) {
    constexpr bool PLAIN_KEYS = FORMAT == FL_KV_BF16;
    constexpr int OWN_REGISTERS = PLAIN_KEYS ? 240 : 216;
    extern __shared__ __align__(1024) uint8_t memory[];
    group_shared *s = (group_shared *)memory;
    task t;
    find_task(r.p, &t);
    const group_rows rows = rows_of<PAIRED>(r.p, t);
    if (rows.last_pos < t.first) return;
    if (threadIdx.x == 0) s->t = t;
    open_group_barriers<PLAIN_KEYS, PAIRED>(s);
    see_group_pages(r.p, t, rows, s);
    int32_t n = list_pairs(t, rows, s), role = __shfl_sync(~0u, (int32_t)threadIdx.x / GROUP_THREADS, 0);
    if (n == 0) {
        store_nothing(r.p, t);
        return;
    }
    copy_q(r.p, t, s);
    __syncthreads();
    if (PAIRED) fl_cluster_sync(); /* the other block's barriers are there */
    if (role == 2) {
        fl_registers_release<3 * 168 - 2 * OWN_REGISTERS>();
        int32_t warp = __shfl_sync(~0u, (int32_t)threadIdx.x / 32 % GROUP_WARPS, 0);
        if constexpr (!PLAIN_KEYS) decode_pages<FORMAT == FL_KV_INT4, PAIRED>(r, s, n);
        else if (warp < 2) feed_pages<PAIRED>(r, s, warp, n);
    } else if (role == 0) {
        fl_registers_claim<OWN_REGISTERS>();
        multiply<0, PLAIN_KEYS, PAIRED>(r.p, s, n);
    } else {
        fl_registers_claim<OWN_REGISTERS>();
        multiply<1, PLAIN_KEYS, PAIRED>(r.p, s, n);
    }
    if (PAIRED) fl_cluster_sync(); /* nothing comes to this block's memory any more */
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* Two blocks of a timeline side by side, everywhere. */
static bool has_pairs(const params *p) {
    for (int32_t i = 0; i < p->n_seqs; i++)
        if (fl_tasks_of(p->seqs[i].n_rows * p->n_heads, GROUP_LANES) % 2 != 0) return false;
    return true;
}

template <int FORMAT, bool PAIRED> static fl_err launch_groups_as(const params *p, cudaStream_t stream) {
    group_params r;
    memset(&r, 0, sizeof r);
    r.p = *p;
    if (FORMAT == FL_KV_BF16) FL_TRY(map_boxes(p->kv.base, p, WIDE_LATENT * 2, PAGE, &r.latent));
    FL_TRY(map_boxes(p->kv.base + p->kv.k_pe_bytes, p, ROW, PAGE, &r.k_pe));
    const void *kernel = (const void *)attn_absorbed_wgmma_kernel<FORMAT, PAIRED>;
    FL_CUDA_TRY(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(group_shared)));
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {PAIRED ? 2u : 1u, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)(p->n_groups * p->n_spans));
    config.blockDim = dim3(GROUPS_THREADS);
    config.dynamicSmemBytes = sizeof(group_shared);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    void *args[1] = {&r};
    FL_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, args));
    return FL_CUDA_LAUNCHED("attn_absorbed (wgmma)");
}

template <int FORMAT> static fl_err launch_groups_of(const params *p, cudaStream_t stream) {
    return has_pairs(p) ? launch_groups_as<FORMAT, true>(p, stream)
                        : launch_groups_as<FORMAT, false>(p, stream);
}

static fl_err launch_groups(const params *p, cudaStream_t stream) {
    if (p->kv.format == FL_KV_FP8) return launch_groups_of<FL_KV_FP8>(p, stream);
    if (p->kv.format == FL_KV_INT4) return launch_groups_of<FL_KV_INT4>(p, stream);
    return launch_groups_of<FL_KV_BF16>(p, stream);
}

#endif
