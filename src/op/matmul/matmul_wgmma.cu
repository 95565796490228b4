/* matmul on Hopper's tensor cores: bf16 operands, f32 sums. Grid: one block a multiprocessor, each walking through
 * tiles of 128 rows x FEATURES features, as many as the device is done first with; BLOCKS of them form a cluster, whose
 * tiles lie below each other, so that each fetches a share of the weights for all. Block: one warpgroup that only
 * issues bulk tensor copies, two that multiply 64 rows each. Shared: a ring of stages of 64 elements of k, up to 200
 * KiB in all, so that copies run ahead of the products across tiles. Bound by the tensor cores where rows are many
 * (256 features, clusters of 2: 128 flops a byte from L2), by reading the weights where they are few (64 features:
 * most blocks at work). It is launched before the kernel in front of it ends, and waits for that once its barriers
 * are set up.
 *
 * Sums go through k in steps of 16 from 0 up in one accumulator, whatever FEATURES and the place in the tile, so a
 * row's bits depend on nothing else: opcheck compares the bits of large products with those of the same rows 64 at a
 * time. Rows and features outside are copied as zeros or as a neighbour's, multiplied and not stored.
 *
 * SwiGLU: half of a tile's features are gates, the others the same features' ups, n / 2 further on. Both then lie in
 * the accumulators of one thread. */
#include "op/cuda/hopper.cuh"
#include "op/cuda/rope.cuh"
#include "op/matmul/matmul_cuda.cuh"

enum {
    THREADS = 384, /* copies: 0..127; products: 128..255, 256..383 */
    TILE_ROWS = 128,
    GROUP_ROWS = 64, /* of a warpgroup */
    STAGE_K = 64,    /* 128 bytes, a row of the swizzle */
    STEP_K = 16,
    RING_BYTES = 200 << 10,
    ROWS_BYTES = TILE_ROWS * STAGE_K * 2, /* x of a stage */
    BAND_ROWS = 2048,                     /* that one tile of weights is used for before the next */
    SWIZZLE_ALIGN = 1024,
    WARPS_MULTIPLYING = 8,
    STAGES_MAX = 8,
    TILES_MAX = 1 << 30,
    REGISTERS_COPYING = 40,
    REGISTERS_MULTIPLYING = 232,
};

/* What the host has worked out. Here and below a row tile is TILE_ROWS rows for each block of a cluster. */
typedef struct plan {
    fl_product p;
    int32_t width;     /* of y */
    int32_t tiles_n;   /* tiles across the features */
    int32_t tiles_row; /* without group_rows: row tiles of a group */
    int32_t together;  /* neighbouring elements of y that can be stored at once: 8 (bf16), 4 (f32), 2 or 1 */
} plan;

typedef struct tile {
    int32_t group, row, row_end,
        feature; /* rows row .. row_end - 1 are stored, at most TILE_ROWS, perhaps none */
} tile;

typedef struct shared_state {
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    int32_t first_tile[FL_PRODUCT_GROUPS_MAX + 1]; /* row tiles before group g */
    int32_t first_row[FL_PRODUCT_GROUPS_MAX + 1];
} shared_state;

/* ---- which tiles ---- */

FL_DEVICE int32_t row_tiles_of(const shared_state *s, int32_t group, int32_t tile_rows) {
    return (max(s->first_row[group + 1] - s->first_row[group], 0) + tile_rows - 1) / tile_rows;
}

/* Fills first_row and first_tile. By all threads. */
FL_DEVICE void count_tiles(const fl_product *p, shared_state *s, int32_t tile_rows) {
    int32_t n = p->n_groups;
    for (int32_t g = threadIdx.x; g <= n; g += THREADS) {
        s->first_row[g] = fl_product_group_row(p, g);
        if (blockIdx.x == 0) fl_product_check_group(p, g);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        int32_t lane = threadIdx.x, share = (n + 31) / 32;
        int32_t begin = min(lane * share, n), end = min(begin + share, n), sum = 0;
        for (int32_t g = begin; g < end; g++) sum += row_tiles_of(s, g, tile_rows);
        int32_t before = sum; /* becomes the sum up to and with this lane */
        for (int32_t step = 1; step < 32; step *= 2) {
            int32_t other = __shfl_up_sync(~0u, before, step);
            if (lane >= step) before += other;
        }
        if (lane == 31) s->first_tile[n] = before;
        before -= sum;
        for (int32_t g = begin; g < end; g++) {
            s->first_tile[g] = before;
            before += row_tiles_of(s, g, tile_rows);
        }
    }
    __syncthreads();
}

/* TILES_MAX at most: the host sees to it, so that no division here is one of 64 bits, a subroutine. */
FL_DEVICE int32_t tiles_of(const plan *plan, const shared_state *s) {
    int32_t rows = plan->p.group_rows ? s->first_tile[plan->p.n_groups] : plan->tiles_row * plan->p.n_groups;
    return rows * plan->tiles_n;
}

/* The last group that begins at or before a row tile: the one it belongs to. */
FL_DEVICE int32_t find_group(const shared_state *s, int32_t n_groups, int32_t row_tile) {
    int32_t low = 0, high = n_groups - 1;
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        if (s->first_tile[middle] <= row_tile) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* This block's part of tile t, in an order in which blocks at work at the same time share operands in L2: groups one
 * after another, within a group bands of BAND_ROWS rows, within a band feature by feature. About 16 x 8 tiles of 128
 * rows are under way at once. */
template <int FEATURES, int BLOCKS>
FL_DEVICE tile find_tile(const plan *plan, const shared_state *s, int32_t t) {
    constexpr int32_t BAND_TILES = BAND_ROWS / (TILE_ROWS * BLOCKS);
    const fl_product *p = &plan->p;
    int32_t rank = BLOCKS > 1 ? (int32_t)fl_cluster_rank() : 0;
    int32_t tile_features = p->out == FL_MATMUL_SWIGLU ? FEATURES / 2 : FEATURES;
    int32_t row_tile = t / plan->tiles_n; /* as if row by row: right for the group */
    int32_t group, first, count, row_begin = 0, row_end = p->rows;
    if (p->group_rows) {
        group = find_group(s, p->n_groups, row_tile);
        first = s->first_tile[group];
        count = s->first_tile[group + 1] - first;
        row_begin = s->first_row[group];
        row_end = s->first_row[group + 1];
    } else {
        group = row_tile / plan->tiles_row;
        first = group * plan->tiles_row;
        count = plan->tiles_row;
    }
    int32_t within = t - first * plan->tiles_n, band_size = BAND_TILES * plan->tiles_n;
    int32_t band = within / band_size * BAND_TILES;
    int32_t in_band = within % band_size, height = min(BAND_TILES, count - band);
    int32_t row = row_begin + ((band + in_band % height) * BLOCKS + rank) * TILE_ROWS;
    return (tile){.group = group,
                  .row = row,
                  .row_end = min(row_end, row + TILE_ROWS),
                  .feature = in_band / height * tile_features};
}

/* ---- copies ---- */

/* Copies the operands of all tiles of this block into the ring. One thread. In a cluster of two each block copies one
 * half of the weights into both rings. */
template <int FEATURES, int BLOCKS>
FL_DEVICE void copy_tiles(const plan *plan, const CUtensorMap *map_x, const CUtensorMap *map_w,
                          shared_state *s, uint8_t *ring) {
    constexpr int32_t STAGE_BYTES = ROWS_BYTES + FEATURES * STAGE_K * 2, STAGES = RING_BYTES / STAGE_BYTES;
    constexpr int32_t HALF = FEATURES / 2, HALF_BYTES = HALF * STAGE_K * 2;
    int32_t to_second = plan->p.out == FL_MATMUL_SWIGLU ? plan->width : HALF;
    fl_ring_place<STAGES> place = {0, 1}; /* a fresh barrier counts as having ended its phase 1 */
    int32_t tiles = tiles_of(plan, s);
    for (int32_t t = (int32_t)blockIdx.x / BLOCKS; t < tiles; t += (int32_t)gridDim.x / BLOCKS) {
        tile at = find_tile<FEATURES, BLOCKS>(plan, s, t);
        int32_t x_group = plan->p.group_rows ? 0 : at.group;
        for (int32_t k = 0; k < plan->p.k; k += STAGE_K, place.advance()) {
            uint8_t *x = ring + place.stage * STAGE_BYTES, *w = x + ROWS_BYTES;
            uint64_t *full = &s->full[place.stage];
            fl_barrier_wait(&s->empty[place.stage], place.parity);
            fl_barrier_expect(full, STAGE_BYTES);
            fl_tma_load_3d(x, map_x, full, k, at.row, x_group);
            if constexpr (BLOCKS == 1) {
                fl_tma_load_3d(w, map_w, full, k, at.feature, at.group);
                fl_tma_load_3d(w + HALF_BYTES, map_w, full, k, at.feature + to_second, at.group);
            } else {
                int32_t half = (int32_t)fl_cluster_rank();
                fl_tma_load_3d_to(3, w + half * HALF_BYTES, map_w, full, k, at.feature + half * to_second,
                                  at.group);
            }
        }
    }
}

/* ---- results ---- */

/* Before: v[m] of lane q of four is (row m, column q) of a 4 x 4 matrix. After: v[m] of lane q is (row q, column m). */
FL_DEVICE void transpose_quad(uint32_t (&v)[4], int32_t q) {
    bool odd = q & 1, high = q & 2;
    uint32_t got_low = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1);
    uint32_t got_high = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
    uint32_t low[2] = {odd ? got_low : v[0], odd ? v[1] : got_low};  /* of row q % 2 */
    uint32_t up[2] = {odd ? got_high : v[2], odd ? v[3] : got_high}; /* of row 2 + q % 2 */
    uint32_t got[2] = {__shfl_xor_sync(~0u, high ? low[0] : up[0], 2),
                       __shfl_xor_sync(~0u, high ? low[1] : up[1], 2)};
    v[0] = high ? got[0] : low[0];
    v[1] = high ? got[1] : low[1];
    v[2] = high ? up[0] : got[0];
    v[3] = high ? up[1] : got[1];
}

/* Pairs of bf16 of one row: words[j] is features 8 j + 2 q and + 1 of the tile. `y` is the row; all lanes come here,
 * those with `inside` false store nothing. */
template <int N>
FL_DEVICE void store_bf16(const plan *plan, const tile *at, uint16_t *y, bool inside,
                          const uint32_t (&words)[N]) {
    int32_t q = threadIdx.x % 4;
    if (plan->together == 8) {
#pragma unroll
        for (int j = 0; j < N; j += 4) {
            uint32_t v[4] = {words[j], words[j + 1], words[j + 2], words[j + 3]};
            int32_t feature = at->feature + 8 * (j + q);
            transpose_quad(v, q);
            if (!inside) continue;
            if (feature + 8 <= plan->width) {
                *(uint4 *)(y + feature) = make_uint4(v[0], v[1], v[2], v[3]);
            } else {
#pragma unroll
                for (int c = 0; c < 8; c++)
                    if (feature + c < plan->width) y[feature + c] = (uint16_t)(v[c / 2] >> c % 2 * 16);
            }
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        int32_t feature = at->feature + 8 * j + 2 * q;
        if (!inside || feature >= plan->width) continue;
        if (plan->together == 2 && feature + 1 < plan->width) {
            *(uint32_t *)(y + feature) = words[j];
        } else {
            y[feature] = (uint16_t)words[j];
            if (feature + 1 < plan->width) y[feature + 1] = (uint16_t)(words[j] >> 16);
        }
    }
}

/* One row in f32: v[2 j] and v[2 j + 1] are features 8 j + 2 q and + 1 of the tile. All lanes come here, as above. */
template <int N>
FL_DEVICE void store_f32(const plan *plan, const tile *at, float *y, bool inside, const float (&v)[N]) {
    int32_t q = threadIdx.x % 4;
    if (plan->together == 4) { /* neighbouring lanes swap, so that each has four features of one j */
        bool odd = q & 1;
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float got0 = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 2], 1);
            float got1 = __shfl_xor_sync(~0u, odd ? v[i + 1] : v[i + 3], 1);
            float4 four =
                odd ? make_float4(got0, got1, v[i + 2], v[i + 3]) : make_float4(v[i], v[i + 1], got0, got1);
            int32_t feature = at->feature + 4 * i + (odd ? 8 : 0) + q / 2 * 4;
            if (!inside) continue;
            if (feature + 4 <= plan->width) {
                *(float4 *)(y + feature) = four;
            } else {
                if (feature < plan->width) y[feature] = four.x;
                if (feature + 1 < plan->width) y[feature + 1] = four.y;
                if (feature + 2 < plan->width) y[feature + 2] = four.z;
            }
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        int32_t feature = at->feature + 4 * i + 2 * q;
        if (!inside || feature >= plan->width) continue;
        if (plan->together == 2 && feature + 1 < plan->width) {
            *(float2 *)(y + feature) = make_float2(v[i], v[i + 1]);
        } else {
            y[feature] = v[i];
            if (feature + 1 < plan->width) y[feature + 1] = v[i + 1];
        }
    }
}

/* The results of one warpgroup. */
template <int N>
FL_DEVICE void store_tile(const plan *plan, const tile *at, int32_t first_row, const float (&d)[N]) {
    const fl_product *p = &plan->p;
    int64_t y_group = p->group_rows ? 0 : at->group * p->y_group_stride;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int32_t row = first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i;
        int64_t y = y_group + row * p->y_stride;
        bool inside = row < at->row_end;
        if (p->out == FL_MATMUL_F32) {
            float values[N / 2];
#pragma unroll
            for (int j = 0; j < N / 2; j++) values[j] = d[j / 2 * 4 + 2 * i + j % 2];
            store_f32(plan, at, (float *)p->y + y, inside, values);
        } else if (p->out == FL_MATMUL_ACT) {
            uint32_t words[N / 4];
#pragma unroll
            for (int j = 0; j < N / 4; j++) words[j] = fl_pack_bf16(d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
            store_bf16(plan, at, (uint16_t *)p->y + y, inside, words);
        } else if (p->out == FL_MATMUL_ROPE) {
            float2 pairs[N / 4];
            uint32_t words[N / 4];
#pragma unroll
            for (int j = 0; j < N / 4; j++) pairs[j] = make_float2(d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
            fl_rope_row(&p->rope, inside ? row : 0, at->feature + (int32_t)(threadIdx.x % 4) * 2, pairs,
                        words);
            store_bf16(plan, at, (uint16_t *)p->y + y, inside, words);
        } else {
            uint32_t words[N / 8];
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float *gate = &d[4 * j + 2 * i], *up = &d[4 * (j + N / 8) + 2 * i];
                words[j] = fl_pack_bf16(fl_swiglu(gate[0], up[0]), fl_swiglu(gate[1], up[1]));
            }
            store_bf16(plan, at, (uint16_t *)p->y + y, inside, words);
        }
    }
}

/* ---- products ---- */

/* Multiplies 64 rows of all tiles of this block. One warpgroup. A stage is given back once its products have ended,
 * which is one stage later than they were issued, so that the tensor cores always have the next ones waiting. A
 * warpgroup without rows leaves them to the other. */
template <int FEATURES, int BLOCKS>
FL_DEVICE void multiply_tiles(const plan *plan, shared_state *s, const uint8_t *ring) {
    constexpr int32_t STAGE_BYTES = ROWS_BYTES + FEATURES * STAGE_K * 2, STAGES = RING_BYTES / STAGE_BYTES;
    /* the same in all lanes, which the compiler could not see */
    int32_t skip_rows = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0) * GROUP_ROWS;
    int32_t steps_k = (plan->p.k + STAGE_K - 1) / STAGE_K;
    fl_ring_place<STAGES> place = {0, 0};
    int32_t tiles = tiles_of(plan, s);
    for (int32_t t = (int32_t)blockIdx.x / BLOCKS; t < tiles; t += (int32_t)gridDim.x / BLOCKS) {
        tile at = find_tile<FEATURES, BLOCKS>(plan, s, t);
        if (at.row + skip_rows >= at.row_end) {
            for (int32_t k = 0; k < steps_k; k++, place.advance()) {
                fl_barrier_wait(&s->full[place.stage], place.parity);
                fl_barrier_release<BLOCKS>(&s->empty[place.stage]);
            }
            continue;
        }
        float d[FEATURES / 2];
        int32_t before = 0;
        for (int32_t k = 0; k < steps_k; k++, place.advance()) {
            const uint8_t *x = ring + place.stage * STAGE_BYTES;
            uint64_t a = fl_wgmma_k_major(x + skip_rows * STAGE_K * 2);
            uint64_t b = fl_wgmma_k_major(x + ROWS_BYTES);
            fl_barrier_wait(&s->full[place.stage], place.parity);
            fl_wgmma_begin();
#pragma unroll
            for (int step = 0; step < STAGE_K / STEP_K; step++)
                fl_wgmma_bf16(d, a + step * 2, b + step * 2, k > 0 || step > 0);
            fl_wgmma_commit();
            fl_wgmma_wait<1>();
            if (k > 0) fl_barrier_release<BLOCKS>(&s->empty[before]);
            before = place.stage;
        }
        fl_wgmma_wait<0>();
        fl_wgmma_pin(d);
        fl_barrier_release<BLOCKS>(&s->empty[before]);
        store_tile(plan, &at, at.row + skip_rows, d);
    }
}

template <int FEATURES, int BLOCKS>
static __global__ void __launch_bounds__(THREADS, 1)
    product_wgmma_kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                         const __grid_constant__ plan plan) {
    extern __shared__ uint8_t memory[];
    uint8_t *ring = memory + (-fl_shared_address(memory) & (SWIZZLE_ALIGN - 1));
    shared_state *s = (shared_state *)(ring + RING_BYTES);
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < STAGES_MAX; i++) {
            fl_barrier_init(&s->full[i], 1);
            fl_barrier_init(&s->empty[i], WARPS_MULTIPLYING * BLOCKS);
        }
        fl_barrier_init_fence();
        fl_tma_prefetch(&map_x);
        fl_tma_prefetch(&map_w);
    }
    fl_grid_wait();
    fl_grid_begin_next();
    if (plan.p.group_rows) count_tiles(&plan.p, s, TILE_ROWS * BLOCKS);
    if constexpr (BLOCKS == 1) __syncthreads();
    else fl_cluster_sync();
    if (threadIdx.x < 128) {
        fl_registers_release<REGISTERS_COPYING>();
        if (threadIdx.x < 32 && fl_elect_one()) copy_tiles<FEATURES, BLOCKS>(&plan, &map_x, &map_w, s, ring);
        __syncwarp();
    } else {
        fl_registers_claim<REGISTERS_MULTIPLYING>();
        multiply_tiles<FEATURES, BLOCKS>(&plan, s, ring);
    }
    /* the other block's copies and arrivals still come to this one's memory */
    if constexpr (BLOCKS > 1) fl_cluster_sync();
}

/* ---- host ---- */

bool fl_product_wgmma_takes(const fl_product *p) {
    bool x_fits = (uintptr_t)p->x % 16 == 0 && p->x_stride % 8 == 0 &&
                  (p->group_rows || p->n_groups == 1 || p->x_group_stride % 8 == 0);
    bool y_fits = p->out != FL_MATMUL_ROPE || fl_rope_pairs(&p->rope);
    return x_fits && y_fits && (uintptr_t)p->w % 16 == 0 && p->w_group_stride % 8 == 0 && p->k % 8 == 0;
}

static fl_err make_maps(const fl_product *p, int32_t features, CUtensorMap *map_x, CUtensorMap *map_w) {
    int32_t x_groups = p->group_rows ? 1 : p->n_groups;
    fl_tma_shape x = {.base = p->x,
                      .dtype = FL_DTYPE_BF16,
                      .rank = 3,
                      .size = {p->k, p->rows, x_groups},
                      .stride = {1, p->x_stride, x_groups > 1 ? p->x_group_stride : p->x_stride},
                      .box = {STAGE_K, TILE_ROWS, 1},
                      .swizzle = true};
    fl_tma_shape w = {.base = p->w,
                      .dtype = FL_DTYPE_BF16,
                      .rank = 3,
                      .size = {p->k, p->n, p->n_groups},
                      .stride = {1, p->k, p->w_group_stride},
                      .box = {STAGE_K, features / 2, 1},
                      .swizzle = true};
    FL_TRY(fl_tma_map(&x, map_x));
    return fl_tma_map(&w, map_w);
}

/* By the alignment of every row of y. */
static int32_t store_together(const fl_product *p) {
    int32_t bytes = p->out == FL_MATMUL_F32 ? 4 : 2;
    int64_t group_stride = p->group_rows || p->n_groups == 1 ? 0 : p->y_group_stride;
    const int32_t counts[] = {16 / bytes, 2};
    for (int32_t i = 0; i < 2; i++) {
        bool base = (uintptr_t)p->y % (uintptr_t)(counts[i] * bytes) == 0;
        if (base && p->y_stride % counts[i] == 0 && group_stride % counts[i] == 0) return counts[i];
    }
    return 1;
}

/* Row tiles of all groups, at most. */
static int64_t row_tiles(const fl_product *p, int32_t tile_rows) {
    if (!p->group_rows) return fl_tasks_of(p->rows, tile_rows) * p->n_groups;
    return p->rows / tile_rows + (p->rows < p->n_groups ? p->rows : p->n_groups);
}

/* Turns of the last block or cluster at work, times how long one takes it: a tile's features, and a little more the
 * narrower it is, because it reads the rows more often. Clusters read the weights once for two. */
static double time_of(const fl_cuda *cuda, const fl_product *p, int32_t features, int32_t blocks) {
    double rows = p->group_rows ? fl_product_row_tiles(p->rows, p->n_groups, TILE_ROWS * blocks)
                                : (double)row_tiles(p, TILE_ROWS * blocks);
    double turns = ceil(rows * (double)fl_tasks_of(p->n, features) / (cuda->n_multiprocessors / blocks));
    double tile_time = blocks == 2       ? 256 * 0.985
                       : features == 256 ? 256
                       : features == 192 ? 192 * 1.02
                       : features == 128 ? 128 * 1.12
                                         : 64 * 1.45;
    return turns * tile_time;
}

template <int FEATURES, int BLOCKS> static fl_err launch(fl_cuda *cuda, const fl_product *p) {
    const int32_t shared_bytes = SWIZZLE_ALIGN + RING_BYTES + (int32_t)sizeof(shared_state);
    CUtensorMap map_x, map_w;
    FL_TRY(make_maps(p, FEATURES, &map_x, &map_w));
    plan plan = {.p = *p,
                 .width = fl_product_width(p),
                 .tiles_n = (int32_t)fl_tasks_of(p->n, FEATURES),
                 .tiles_row = (int32_t)fl_tasks_of(p->rows, TILE_ROWS * BLOCKS),
                 .together = store_together(p)};
    int64_t clusters = row_tiles(p, TILE_ROWS * BLOCKS) * plan.tiles_n;
    if (clusters > TILES_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "matmul: %d rows of %d outputs are too many for one call", p->rows,
                       p->n);
    if (clusters > cuda->n_multiprocessors / BLOCKS) clusters = cuda->n_multiprocessors / BLOCKS;
    fl_early_launch early = fl_early_clusters(BLOCKS);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)clusters * BLOCKS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = cuda->stream;
    config.attrs = early.list;
    config.numAttrs = FL_EARLY_ATTRIBUTES;
    FL_CUDA_TRY(cudaFuncSetAttribute(product_wgmma_kernel<FEATURES, BLOCKS>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    return fl_cuda_check(
        cudaLaunchKernelEx(&config, product_wgmma_kernel<FEATURES, BLOCKS>, map_x, map_w, plan),
        "matmul on tensor cores");
}

/* The shape of tiles that fills the device best. Sums do not depend on it. */
fl_err fl_product_wgmma(fl_cuda *cuda, const fl_product *p) {
    const double times[] = {time_of(cuda, p, 256, 2), time_of(cuda, p, 256, 1), time_of(cuda, p, 192, 1),
                            time_of(cuda, p, 128, 1), time_of(cuda, p, 64, 1)};
    int32_t best = 0;
    for (int32_t i = 1; i < (int32_t)(sizeof times / sizeof *times); i++)
        if (times[i] < times[best]) best = i;
    switch (best) {
    case 0: return launch<256, 2>(cuda, p);
    case 1: return launch<256, 1>(cuda, p);
    case 2: return launch<192, 1>(cuda, p);
    case 3: return launch<128, 1>(cuda, p);
    default: return launch<64, 1>(cuda, p);
    }
}
