/* matmul on Hopper's tensor cores: bf16 operands, f32 sums. Grid: one block a multiprocessor, each walking through
 * tiles of 128 rows x FEATURES features. Block: one warpgroup that only issues bulk tensor copies, two that multiply
 * 64 rows each. Shared: a ring of stages of 64 elements of k, 192 KiB in all, so that copies run ahead of the products
 * across tiles. Bound by the tensor cores where rows are many (256 features: 85 flops a byte from L2), by reading the
 * weights where they are few (64 features: most blocks at work).
 *
 * Sums go through k in steps of 16 from 0 up in one accumulator, whatever FEATURES and the place in the tile, so a
 * row's bits depend on nothing else. Rows and features outside are copied as zeros or as a neighbour's, multiplied and
 * not stored.
 *
 * SwiGLU: half of a tile's features are gates, the others the same features' ups, n / 2 further on. Both then lie in
 * the accumulators of one thread. */
#include "op/cuda/hopper.cuh"
#include "op/matmul/matmul_cuda.cuh"

enum {
    THREADS = 384, /* copies: 0..127; products: 128..255, 256..383 */
    TILE_ROWS = 128,
    GROUP_ROWS = 64, /* of a warpgroup */
    STAGE_K = 64,    /* 128 bytes, a row of the swizzle */
    STEP_K = 16,
    RING_BYTES = 192 << 10,
    ROWS_BYTES = TILE_ROWS * STAGE_K * 2, /* x of a stage */
    BAND_TILES = 16, /* row tiles that one set of weight columns is used for before the next */
    SWIZZLE_ALIGN = 1024,
    WARPS_MULTIPLYING = 8,
    STAGES_MAX = 8,
    REGISTERS_COPYING = 40,
    REGISTERS_MULTIPLYING = 232,
};

/* Tile counts that the host has worked out. */
typedef struct plan {
    fl_product p;
    int32_t width;     /* of y */
    int32_t tiles_n;   /* tiles across the features */
    int32_t tiles_row; /* without group_rows: tiles down the rows of a group */
    bool paired;       /* two neighbouring elements of y can be stored at once */
} plan;

typedef struct tile {
    int32_t group, row, row_end,
        feature; /* rows row .. row_end - 1 of the group are stored, at most TILE_ROWS */
} tile;

typedef struct shared_state {
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    int32_t first_tile[FL_PRODUCT_GROUPS_MAX + 1]; /* row tiles before group g */
    int32_t first_row[FL_PRODUCT_GROUPS_MAX + 1];
} shared_state;

/* Fills first_row and first_tile. By all threads. */
FL_DEVICE void count_tiles(const fl_product *p, shared_state *s) {
    int32_t n = p->n_groups;
    for (int32_t g = threadIdx.x; g <= n; g += THREADS) {
        s->first_row[g] = fl_product_group_row(p, g);
        if (blockIdx.x == 0) fl_product_check_group(p, g);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        int32_t lane = threadIdx.x, share = (n + 31) / 32;
        int32_t begin = min(lane * share, n), end = min(begin + share, n), sum = 0;
        for (int32_t g = begin; g < end; g++)
            sum += (max(s->first_row[g + 1] - s->first_row[g], 0) + TILE_ROWS - 1) / TILE_ROWS;
        int32_t before = sum; /* becomes the sum up to and with this lane */
        for (int32_t step = 1; step < 32; step *= 2) {
            int32_t other = __shfl_up_sync(~0u, before, step);
            if (lane >= step) before += other;
        }
        if (lane == 31) s->first_tile[n] = before;
        before -= sum;
        for (int32_t g = begin; g < end; g++) {
            s->first_tile[g] = before;
            before += (max(s->first_row[g + 1] - s->first_row[g], 0) + TILE_ROWS - 1) / TILE_ROWS;
        }
    }
    __syncthreads();
}

FL_DEVICE int64_t tiles_of(const plan *plan, const shared_state *s) {
    int64_t rows =
        plan->p.group_rows ? s->first_tile[plan->p.n_groups] : (int64_t)plan->tiles_row * plan->p.n_groups;
    return rows * plan->tiles_n;
}

/* Tile t, in an order in which blocks at work at the same time share operands in L2: groups one after another, within
 * a group bands of BAND_TILES row tiles, within a band feature by feature. About 16 x 8 tiles are under way at once. */
FL_DEVICE tile find_tile(const plan *plan, const shared_state *s, int64_t t, int32_t tile_features) {
    const fl_product *p = &plan->p;
    int32_t row_tile = (int32_t)(t / plan->tiles_n); /* as if row by row: right for the group */
    int32_t group, first, count, row_begin, row_end;
    if (p->group_rows) {
        int32_t high = p->n_groups - 1;
        group = 0; /* becomes the last that begins at or before it */
        while (group < high) {
            int32_t middle = (group + high + 1) / 2;
            if (s->first_tile[middle] <= row_tile) group = middle;
            else high = middle - 1;
        }
        first = s->first_tile[group];
        count = s->first_tile[group + 1] - first;
        row_begin = s->first_row[group];
        row_end = s->first_row[group + 1];
    } else {
        group = row_tile / plan->tiles_row;
        first = group * plan->tiles_row;
        count = plan->tiles_row;
        row_begin = 0;
        row_end = p->rows;
    }
    int64_t within = t - (int64_t)first * plan->tiles_n;
    int64_t band_size = (int64_t)BAND_TILES * plan->tiles_n;
    int32_t band = (int32_t)(within / band_size) * BAND_TILES;
    int32_t in_band = (int32_t)(within % band_size), height = min(BAND_TILES, count - band);
    int32_t row = row_begin + (band + in_band % height) * TILE_ROWS;
    return (tile){.group = group,
                  .row = row,
                  .row_end = min(row_end, row + TILE_ROWS),
                  .feature = in_band / height * tile_features};
}

/* Copies the operands of all tiles of this block into the ring. One thread. */
template <int FEATURES>
FL_DEVICE void copy_tiles(const plan *plan, const CUtensorMap *map_x, const CUtensorMap *map_w,
                          shared_state *s, uint8_t *ring) {
    constexpr int32_t STAGE_BYTES = ROWS_BYTES + FEATURES * STAGE_K * 2, STAGES = RING_BYTES / STAGE_BYTES;
    bool swiglu = plan->p.out == FL_MATMUL_SWIGLU;
    int32_t tile_features = swiglu ? FEATURES / 2 : FEATURES, stage = 0;
    uint32_t parity = 1; /* of the empty barriers: a fresh one counts as having ended its phase 1 */
    int64_t tiles = tiles_of(plan, s);
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        tile at = find_tile(plan, s, t, tile_features);
        int32_t second = at.feature + (swiglu ? plan->width : FEATURES / 2);
        int32_t x_group = plan->p.group_rows ? 0 : at.group;
        for (int32_t k = 0; k < plan->p.k; k += STAGE_K) {
            uint8_t *x = ring + stage * STAGE_BYTES, *w = x + ROWS_BYTES;
            fl_barrier_wait(&s->empty[stage], parity);
            fl_barrier_expect(&s->full[stage], STAGE_BYTES);
            fl_tma_load_3d(x, map_x, &s->full[stage], k, at.row, x_group);
            fl_tma_load_3d(w, map_w, &s->full[stage], k, at.feature, at.group);
            fl_tma_load_3d(w + STAGE_BYTES / 2 - ROWS_BYTES / 2, map_w, &s->full[stage], k, second, at.group);
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
}

/* Two neighbouring results, the second only if it is inside. */
FL_DEVICE void store_f32(float *y, float a, float b, bool both, bool paired) {
    if (both && paired) {
        *(float2 *)y = make_float2(a, b);
    } else {
        y[0] = a;
        if (both) y[1] = b;
    }
}

FL_DEVICE void store_bf16(fl_bf16 *y, float a, float b, bool both, bool paired) {
    if (both && paired) {
        *(uint32_t *)y = fl_pack_bf16(a, b);
    } else {
        y[0] = __float2bfloat16(a);
        if (both) y[1] = __float2bfloat16(b);
    }
}

/* The results of one warpgroup: d[4 j + 2 i + c] is row 8 i + .., feature 8 j + c + .. */
template <int N>
FL_DEVICE void store_tile(const plan *plan, const tile *at, int32_t warpgroup, const float (&d)[N]) {
    const fl_product *p = &plan->p;
    int32_t thread = threadIdx.x % 128, quad = thread % 4 * 2;
    int64_t y_group = p->group_rows ? 0 : at->group * p->y_group_stride;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int32_t row = at->row + warpgroup * GROUP_ROWS + thread / 32 * 16 + thread % 32 / 4 + 8 * i;
        if (row >= at->row_end) continue;
        int64_t y = y_group + row * p->y_stride;
        if (p->out == FL_MATMUL_SWIGLU) {
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float *gate = &d[4 * j + 2 * i], *up = &d[4 * (j + N / 8) + 2 * i];
                int32_t feature = at->feature + 8 * j + quad;
                if (feature < plan->width)
                    store_bf16((fl_bf16 *)p->y + y + feature, fl_swiglu(gate[0], up[0]),
                               fl_swiglu(gate[1], up[1]), feature + 1 < plan->width, plan->paired);
            }
        } else {
#pragma unroll
            for (int j = 0; j < N / 4; j++) {
                int32_t feature = at->feature + 8 * j + quad;
                float a = d[4 * j + 2 * i], b = d[4 * j + 2 * i + 1];
                bool both = feature + 1 < plan->width;
                if (feature >= plan->width) continue;
                if (p->out == FL_MATMUL_F32) store_f32((float *)p->y + y + feature, a, b, both, plan->paired);
                else store_bf16((fl_bf16 *)p->y + y + feature, a, b, both, plan->paired);
            }
        }
    }
}

/* Multiplies 64 rows of all tiles of this block. One warpgroup. A stage is given back once its products have ended,
 * which is one stage later than they were issued, so that the tensor cores always have the next ones waiting. */
template <int FEATURES>
FL_DEVICE void multiply_tiles(const plan *plan, shared_state *s, const uint8_t *ring) {
    constexpr int32_t STAGE_BYTES = ROWS_BYTES + FEATURES * STAGE_K * 2, STAGES = RING_BYTES / STAGE_BYTES;
    int32_t tile_features = plan->p.out == FL_MATMUL_SWIGLU ? FEATURES / 2 : FEATURES;
    int32_t warpgroup = threadIdx.x / 128 - 1, stage = 0, before = 0;
    bool speaks = threadIdx.x % 32 == 0;
    uint32_t parity = 0;
    int64_t tiles = tiles_of(plan, s);
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        float d[FEATURES / 2];
        for (int32_t k = 0; k < plan->p.k; k += STAGE_K) {
            const uint8_t *x = ring + stage * STAGE_BYTES;
            uint64_t a = fl_wgmma_k_major(x + warpgroup * GROUP_ROWS * STAGE_K * 2);
            uint64_t b = fl_wgmma_k_major(x + ROWS_BYTES);
            fl_barrier_wait(&s->full[stage], parity);
            fl_wgmma_begin();
#pragma unroll
            for (int step = 0; step < STAGE_K / STEP_K; step++)
                fl_wgmma_bf16(d, a + step * 2, b + step * 2, k > 0 || step > 0);
            fl_wgmma_commit();
            fl_wgmma_wait<1>();
            if (k > 0 && speaks) fl_barrier_arrive(&s->empty[before]);
            before = stage;
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
        fl_wgmma_wait<0>();
        fl_wgmma_pin(d);
        if (speaks) fl_barrier_arrive(&s->empty[before]);
        tile at = find_tile(plan, s, t, tile_features);
        store_tile(plan, &at, warpgroup, d);
    }
}

template <int FEATURES>
static __global__ void __launch_bounds__(THREADS, 1)
    product_wgmma_kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                         const __grid_constant__ plan plan) {
    extern __shared__ uint8_t memory[];
    uint8_t *ring = memory + (-fl_shared_address(memory) & (SWIZZLE_ALIGN - 1));
    shared_state *s = (shared_state *)(ring + RING_BYTES);
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < STAGES_MAX; i++) {
            fl_barrier_init(&s->full[i], 1);
            fl_barrier_init(&s->empty[i], WARPS_MULTIPLYING);
        }
        fl_barrier_init_fence();
        fl_tma_prefetch(&map_x);
        fl_tma_prefetch(&map_w);
    }
    if (plan.p.group_rows) count_tiles(&plan.p, s);
    else __syncthreads();
    if (threadIdx.x < 128) {
        fl_registers_release<REGISTERS_COPYING>();
        if (threadIdx.x == 0) copy_tiles<FEATURES>(&plan, &map_x, &map_w, s, ring);
    } else {
        fl_registers_claim<REGISTERS_MULTIPLYING>();
        multiply_tiles<FEATURES>(&plan, s, ring);
    }
}

bool fl_product_wgmma_takes(const fl_product *p) {
    bool x_fits = (uintptr_t)p->x % 16 == 0 && p->x_stride % 8 == 0 &&
                  (p->group_rows || p->n_groups == 1 || p->x_group_stride % 8 == 0);
    return x_fits && (uintptr_t)p->w % 16 == 0 && p->w_group_stride % 8 == 0 && p->k % 8 == 0;
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

/* A block is at work on a wide tile longer than on a narrow one, but not in proportion: narrow ones read the rows more
 * often. In units of one feature. */
static double tile_time(int32_t features) {
    return features == 256 ? 256 : features == 128 ? 128 * 1.3 : 64 * 1.8;
}

/* Tiles down the rows of all groups, at most. */
static int64_t row_tiles(const fl_product *p) {
    if (!p->group_rows) return fl_tasks_of(p->rows, TILE_ROWS) * p->n_groups;
    return p->rows / TILE_ROWS + (p->rows < p->n_groups ? p->rows : p->n_groups);
}

static int64_t count_all(const fl_product *p, int32_t features) {
    return row_tiles(p) * fl_tasks_of(p->n, features);
}

/* The width that fills the device best. Sums do not depend on it. */
static int32_t choose_features(const fl_cuda *cuda, const fl_product *p) {
    int32_t best = 256;
    double best_time = 0;
    for (int32_t features = 256; features >= 64; features /= 2) {
        double time =
            (double)fl_tasks_of(count_all(p, features), cuda->n_multiprocessors) * tile_time(features);
        if (features == 256 || time < best_time) {
            best = features;
            best_time = time;
        }
    }
    return best;
}

template <int FEATURES> static fl_err launch(fl_cuda *cuda, const fl_product *p) {
    const int32_t shared_bytes = SWIZZLE_ALIGN + RING_BYTES + (int32_t)sizeof(shared_state);
    CUtensorMap map_x, map_w;
    FL_TRY(make_maps(p, FEATURES, &map_x, &map_w));
    int64_t element = p->out == FL_MATMUL_F32 ? sizeof(float) : sizeof(fl_bf16),
            tiles = count_all(p, FEATURES);
    plan plan = {.p = *p,
                 .width = fl_product_width(p),
                 .tiles_n = (int32_t)fl_tasks_of(p->n, FEATURES),
                 .tiles_row = (int32_t)fl_tasks_of(p->rows, TILE_ROWS),
                 .paired = (uintptr_t)p->y % (2 * element) == 0 && p->y_stride % 2 == 0 &&
                           (p->group_rows || p->n_groups == 1 || p->y_group_stride % 2 == 0)};
    FL_CUDA_TRY(cudaFuncSetAttribute(product_wgmma_kernel<FEATURES>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    int64_t blocks = tiles < cuda->n_multiprocessors ? tiles : cuda->n_multiprocessors;
    product_wgmma_kernel<FEATURES>
        <<<(unsigned)blocks, THREADS, shared_bytes, cuda->stream>>>(map_x, map_w, plan);
    return FL_CUDA_LAUNCHED("matmul on tensor cores");
}

fl_err fl_product_wgmma(fl_cuda *cuda, const fl_product *p) {
    int32_t features = choose_features(cuda, p);
    return features == 256   ? launch<256>(cuda, p)
           : features == 128 ? launch<128>(cuda, p)
                             : launch<64>(cuda, p);
}
