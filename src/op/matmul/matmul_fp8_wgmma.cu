/* Products of e4m3 codes with block scales on Hopper's tensor cores. Grid: one block a multiprocessor, each walking
 * through tiles of 128, 192 or 256 rows x 64, 128 or 192 features (SwiGLU: 64 gates and their 64 ups), of the shape
 * with which the device is done first; two of them may form a cluster, whose tiles lie side by side, so that each
 * fetches a half of the rows' codes for both. Block: one warpgroup that fetches, one warp of it by bulk copies and
 * one the weights' scales; two or three that multiply. Shared: a ring of stages of 128 inputs, one block of the
 * scales. Bound by the tensor cores where rows are many, by reading the weights where they are few. It is launched
 * before the kernel in front of it ends, and waits for that once its barriers are set up.
 *
 * Two levels of sums: the tensor cores add a block's 128 products (they keep about 13 bits of a sum of e4m3), then the
 * block's sum, times the row's and the weight's scale, is added in f32, block after block. The accumulators of the
 * second level take half of the registers, so a warpgroup waits for each product, but in tiles of 128 x 64 and 128 x
 * 128 it has room for two and adds one while the next is under way. The other warpgroups' keep the tensor cores at
 * work as well: nothing keeps them in step, and they drift apart by themselves. Three with 64 rows each hide the
 * stores of one too; two with 128 read less, 256 flops a byte from L2. A stage leaves the copying thread less than
 * 1,000 cycles, so it issues three copies for it and nothing else; it alone works out which tiles there are.
 *
 * SwiGLU as codes: a group of 128 features lies in both blocks of a cluster, half in each, so each tells the other the
 * largest of its half of every row. What one warp waits for is the warp of the same rows in the other block, which is
 * at the same stage but for the depth of the ring.
 *
 * Nothing about a row's sums depends on the tile's shape or the row's place in it: opcheck compares the bits of large
 * products with those of the same rows 64 at a time. Rows and features outside are copied as zeros or as a neighbour's,
 * multiplied and not stored. */
#include "op/cuda/codes.cuh"
#include "op/cuda/hopper.cuh"
#include "op/matmul/matmul_fp8.cuh"
#include "op/matmul/matmul_tiles.cuh"

enum {
    GROUP_THREADS = 128,      /* the first warpgroup fetches, the others multiply */
    STAGE_K = FL_SCALE_BLOCK, /* 128 bytes, a row of the swizzle */
    STEP_K = 32,
    WAVE_ROWS = 64,
    STRIP_FEATURES = 64, /* a tile is 1, 2 or 3 strips wide; SwiGLU's two are gates and their ups */
    RING_BYTES_MAX = 200 << 10,
    TILE_ROWS_MAX = 256,
    WARPS_MULTIPLYING_MAX = 12,
    BAND_ROWS = 2048, /* that one tile of weights is used for before the next */
    SWIZZLE_ALIGN = 1024,
    STAGES_MAX = 8,
    TILES_KEPT = 16, /* more than STAGES_MAX + 1: a tile is in use until its results are stored */
    /* SwiGLU's: */
    ROWS_OF_CLUSTER = 128, /* a group has on average, for clusters of two */
    ROWS_OF_MIDDLE = 384,  /* for tiles of 192 rows */
    ROWS_OF_LARGE = 1024,  /* for tiles of 256 rows, .. */
    K_OF_LARGE = 4096,     /* .. and inputs: stores matter less than what is read from L2 */
};

/* What the host has worked out. A row tile of the walk is a tile of each block of the cluster, side by side. */
typedef struct plan {
    fl_tile_walk walk;
    fl_tile_out y;
    fl_codes y_codes;               /* FL_MATMUL_SWIGLU_CODES */
    const float *x_scale, *w_scale; /* x_scale: 16-byte aligned, at or before the first row's */
    int64_t x_scale_stride, w_scale_group_stride, w_scale_stride;
    int32_t scale_skew; /* rows from x_scale to the first */
    int32_t scale_end;  /* rows from x_scale to the end of the last four */
    int32_t blocks;     /* of k */
    int32_t x_rows;     /* copied for a tile: fewer where there are fewer */
    int32_t scale_rows; /* of a group's w_scale */
    int32_t to_second;  /* features from a tile's first strip to the second */
} plan;

/* Scales of a stage. The copy engine takes 16 bytes at a time, so the rows' begin up to three rows before the tile's
 * first. */
typedef struct stage_scales {
    float x[TILE_ROWS_MAX + 4];
    float w[4]; /* of each strip */
} stage_scales;

typedef struct shared_state {
    stage_scales scales[STAGES_MAX]; /* first: 16-byte aligned */
    fl_tile tiles[TILES_KEPT];       /* the block's tile i at i % TILES_KEPT */
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    float largest[2][TILE_ROWS_MAX]; /* of the other block's half of a row's codes, of every second tile */
    uint64_t told[2][WARPS_MULTIPLYING_MAX];
    fl_tile_counts counts;
} shared_state;

/* GROUPS warpgroups multiply WAVES times 64 rows each by STRIPS times 64 features, in clusters of BLOCKS blocks. DEEP:
 * each has a product under way while it adds the one before, where registers have room for both. */
template <int GROUPS_, int WAVES_, int BLOCKS_, int STRIPS_> struct tile_shape {
    static constexpr int32_t GROUPS = GROUPS_, WAVES = WAVES_, BLOCKS = BLOCKS_, STRIPS = STRIPS_;
    static constexpr bool DEEP = GROUPS == 2 && WAVES * STRIPS <= 2;
    static constexpr int32_t THREADS = (1 + GROUPS) * GROUP_THREADS;
    static constexpr int32_t TILE_ROWS = GROUPS * WAVES * WAVE_ROWS, FEATURES = STRIPS * STRIP_FEATURES;
    static constexpr int32_t SUMS = FEATURES / 2; /* of a thread and 64 rows */
    static constexpr int32_t ROWS_BYTES = TILE_ROWS * STAGE_K, WEIGHT_BYTES = FEATURES * STAGE_K;
    static constexpr int32_t STAGE_BYTES = ROWS_BYTES + WEIGHT_BYTES;
    static constexpr int32_t STAGES = RING_BYTES_MAX / STAGE_BYTES, RING_BYTES = STAGES * STAGE_BYTES;
    static constexpr int32_t SCALES_READ = STRIPS <= 2 ? 16 : 8; /* of a row of the weights' scales at once */
    /* of a thread: all 65,536 of a multiprocessor between the warpgroups */
    static constexpr int32_t REGISTERS_MULTIPLYING = GROUPS == 2 ? 232 : 152;
    static constexpr int32_t REGISTERS_FETCHING = GROUPS == 2 ? 40 : 56;
    static_assert(STAGES <= STAGES_MAX && TILE_ROWS <= TILE_ROWS_MAX, "the state has room for all stages");
};

typedef tile_shape<2, 1, 1, 1> narrow;
typedef tile_shape<2, 1, 1, 2> square;
typedef tile_shape<2, 1, 1, 3> wide;
typedef tile_shape<3, 1, 1, 2> tall;
typedef tile_shape<2, 1, 2, 2> square_pair;
typedef tile_shape<3, 1, 2, 2> tall_pair;
typedef tile_shape<2, 2, 2, 2> large_pair;

/* This block's part of tile t. */
template <class SHAPE> FL_DEVICE fl_tile find_tile(const plan *plan, const shared_state *s, int32_t t) {
    fl_tile at = fl_tile_find(&plan->walk, &s->counts, t);
    if constexpr (SHAPE::BLOCKS > 1)
        at.feature += (int32_t)fl_cluster_rank() * (plan->walk.tile_features / SHAPE::BLOCKS);
    return at;
}

/* ---- fetching ---- */

/* Copies the operands and the rows' scales of all tiles of this block into the ring, and tells the tiles. One thread.
 * In a cluster of two each block copies one half of the rows' codes into both rings. */
template <class SHAPE>
FL_DEVICE void copy_tiles(const plan *plan, const CUtensorMap *map_x, const CUtensorMap *map_w,
                          shared_state *s, uint8_t *ring) {
    fl_ring_place<SHAPE::STAGES> place = {0, 1}; /* a fresh barrier counts as having ended its phase 1 */
    int32_t tiles = fl_tile_total(&plan->walk, &s->counts), kept = 0;
    for (int32_t t = (int32_t)blockIdx.x / SHAPE::BLOCKS; t < tiles;
         t += (int32_t)gridDim.x / SHAPE::BLOCKS, kept++) {
        fl_tile at = find_tile<SHAPE>(plan, s, t);
        int32_t scale_row = (at.row + plan->scale_skew) & ~3;
        const float *x_scale = plan->x_scale + scale_row;
        uint32_t scale_bytes =
            (uint32_t)min(SHAPE::TILE_ROWS + 4, plan->scale_end - scale_row) * (uint32_t)sizeof(float);
#pragma unroll 1
        for (int32_t b = 0; b < plan->blocks; b++, x_scale += plan->x_scale_stride, place.advance()) {
            uint8_t *x = ring + place.stage * SHAPE::STAGE_BYTES;
            uint64_t *full = &s->full[place.stage];
            fl_barrier_wait(&s->empty[place.stage], place.parity);
            if (b == 0) s->tiles[kept % TILES_KEPT] = at;
            fl_barrier_expect(full, (uint32_t)plan->x_rows * STAGE_K + SHAPE::WEIGHT_BYTES + scale_bytes);
            if constexpr (SHAPE::BLOCKS == 1) {
                fl_tma_load_3d(x, map_x, full, b * STAGE_K, at.row, 0);
            } else {
                int32_t half = (int32_t)fl_cluster_rank(), half_rows = SHAPE::TILE_ROWS / 2;
                fl_tma_load_3d_to(3, x + half * half_rows * STAGE_K, map_x, full, b * STAGE_K,
                                  at.row + half * half_rows, 0);
            }
            fl_tma_load_4d(x + SHAPE::ROWS_BYTES, map_w, full, b * STAGE_K, at.feature, 0, at.group);
            fl_bulk_load(s->scales[place.stage].x, x_scale, scale_bytes, full);
        }
    }
}

/* The scales of the weights for the features from `feature` on. */
FL_DEVICE const float *weight_scales(const plan *plan, int32_t group, int32_t feature) {
    int32_t row = min(feature / FL_SCALE_BLOCK, plan->scale_rows - 1); /* a tile may lie outside */
    return plan->w_scale + group * plan->w_scale_group_stride + row * plan->w_scale_stride;
}

/* Puts the weights' scales of all tiles of this block into the ring. One warp: SCALES_READ lanes read the next scales
 * of each strip, then they are handed out stage by stage. */
template <class SHAPE> FL_DEVICE void fetch_scales(const plan *plan, shared_state *s) {
    constexpr int32_t READ = SHAPE::SCALES_READ;
    int32_t lane = threadIdx.x % 32, ahead = lane % READ, strip = lane / READ;
    int32_t to_strip = SHAPE::STRIPS <= 2 ? strip * plan->to_second : min(strip, 2) * STRIP_FEATURES;
    fl_ring_place<SHAPE::STAGES> place = {0, 1};
    int32_t tiles = fl_tile_total(&plan->walk, &s->counts);
    for (int32_t t = (int32_t)blockIdx.x / SHAPE::BLOCKS; t < tiles;
         t += (int32_t)gridDim.x / SHAPE::BLOCKS) {
        fl_tile at = find_tile<SHAPE>(plan, s, t);
        /* A plain tile of two strips lies in one block of the scales. */
        const float *scale = weight_scales(plan, at.group, at.feature + to_strip);
        float read = 0;
#pragma unroll 1
        for (int32_t b = 0; b < plan->blocks; b++, place.advance()) {
            if (b % READ == 0 && b + ahead < plan->blocks) read = scale[b + ahead];
            fl_barrier_wait(&s->empty[place.stage], place.parity);
            float w[4];
#pragma unroll
            for (int i = 0; i < 32 / READ; i++) w[i] = __shfl_sync(~0u, read, b % READ + i * READ);
            if (lane != 0) continue;
            if constexpr (READ == 16) *(float2 *)s->scales[place.stage].w = make_float2(w[0], w[1]);
            else *(float4 *)s->scales[place.stage].w = make_float4(w[0], w[1], w[2], w[3]);
            fl_barrier_arrive(&s->full[place.stage]);
        }
    }
}

/* ---- products ---- */

/* The first row of a tile that this warpgroup multiplies: the same in a warp, which the compiler cannot see. */
template <class SHAPE> FL_DEVICE int32_t first_row_of(void) {
    return (__shfl_sync(~0u, (int32_t)threadIdx.x / GROUP_THREADS, 0) - 1) * SHAPE::WAVES * WAVE_ROWS;
}

/* d = 64 rows of x times the stage's features, of one block of k. Issued, not waited for. */
template <int N> FL_DEVICE void issue_block(float (&d)[N], const uint8_t *x, const uint8_t *w) {
    uint64_t a = fl_wgmma_k_major(x), b = fl_wgmma_k_major(w);
    fl_wgmma_begin();
#pragma unroll
    for (int step = 0; step < STAGE_K / STEP_K; step++)
        fl_wgmma_e4m3(d, a + step * 2, b + step * 2, step > 0);
    fl_wgmma_commit();
}

/* The row of a tile that this thread's first results of a warpgroup's first 64 belong to. */
FL_DEVICE int32_t own_row(int32_t first_row) {
    return first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

/* A stage's scales for this thread's two rows, from scales->x[row] on: scale[strip][row]; w: of the strips. */
template <int STRIPS>
FL_DEVICE void scales_of(const stage_scales *scales, int32_t row, const float (&w)[STRIPS],
                         float (&scale)[STRIPS][2]) {
    float x0 = scales->x[row], x1 = scales->x[row + 8];
#pragma unroll
    for (int i = 0; i < STRIPS; i++) {
        scale[i][0] = x0 * w[i];
        scale[i][1] = x1 * w[i];
    }
}

/* All strips' of a stage, read at once. */
template <int STRIPS> FL_DEVICE void weight_scales_of(const stage_scales *scales, float (&w)[STRIPS]) {
    if constexpr (STRIPS == 1) {
        w[0] = scales->w[0];
    } else if constexpr (STRIPS == 2) {
        float2 both = *(const float2 *)scales->w;
        w[0] = both.x;
        w[1] = both.y;
    } else {
        float4 all = *(const float4 *)scales->w;
        w[0] = all.x;
        w[1] = all.y;
        w[2] = all.z;
    }
}

/* One block of k of this warpgroup's rows, added to the sums. The tile's first row is `skew` behind its scales'. */
template <class SHAPE>
FL_DEVICE void add_block(float (&sum)[SHAPE::WAVES][SHAPE::SUMS], int32_t first_row, int32_t skew,
                         const uint8_t *x, const stage_scales *scales, uint64_t *empty) {
    int32_t row = skew + own_row(first_row);
    const uint8_t *w = x + SHAPE::ROWS_BYTES;
    float w_scale[SHAPE::STRIPS], scale[SHAPE::STRIPS][2];
    weight_scales_of(scales, w_scale);
#pragma unroll
    for (int wave = 0; wave < SHAPE::WAVES; wave++) {
        float d[SHAPE::SUMS];
        issue_block(d, x + (first_row + wave * WAVE_ROWS) * STAGE_K, w);
        scales_of(scales, row + wave * WAVE_ROWS, w_scale, scale);
        fl_wgmma_wait<0>();
        fl_wgmma_pin(d);
        if (wave == SHAPE::WAVES - 1) fl_barrier_release_together<SHAPE::BLOCKS>(empty);
#pragma unroll
        for (int i = 0; i < SHAPE::SUMS; i++)
            sum[wave][i] = fmaf(d[i], scale[i / 32][i / 2 % 2], sum[wave][i]);
    }
}

/* Waits until LEFT products at most are under way, then adds a block's, and gives its stage back. */
template <class SHAPE, int LEFT>
FL_DEVICE void finish_block(float (&sum)[SHAPE::SUMS], float (&d)[SHAPE::SUMS], int32_t row,
                            const stage_scales *scales, uint64_t *empty) {
    float w_scale[SHAPE::STRIPS], scale[SHAPE::STRIPS][2];
    weight_scales_of(scales, w_scale);
    scales_of(scales, row, w_scale, scale);
    fl_wgmma_wait<LEFT>();
    fl_wgmma_pin(d);
    fl_barrier_release_together<SHAPE::BLOCKS>(empty);
#pragma unroll
    for (int i = 0; i < SHAPE::SUMS; i++) sum[i] = fmaf(d[i], scale[i / 32][i / 2 % 2], sum[i]);
}

/* A warpgroup's first row in the tile, this thread's first one among the stage's scales. */
typedef struct own_rows {
    int32_t first, scale;
} own_rows;

/* All blocks of k in a DEEP shape; `place` goes through their stages. */
template <class SHAPE>
FL_DEVICE void add_blocks_deep(float (&sum)[SHAPE::SUMS], own_rows rows, int32_t blocks, shared_state *s,
                               const uint8_t *ring, fl_ring_place<SHAPE::STAGES> *place) {
    int32_t row = rows.scale, before;
    float d[2][SHAPE::SUMS];
    auto issue = [&](float(&to)[SHAPE::SUMS]) {
        const uint8_t *stage = ring + place->stage * SHAPE::STAGE_BYTES;
        fl_barrier_wait(&s->full[place->stage], place->parity);
        issue_block(to, stage + rows.first * STAGE_K, stage + SHAPE::ROWS_BYTES);
        before = place->stage;
        place->advance();
    };
    issue(d[0]);
    int32_t left = blocks - 1; /* that were not issued yet */
    for (; left >= 2; left -= 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int32_t stage = before;
            issue(d[1 - i]);
            finish_block<SHAPE, 1>(sum, d[i], row, &s->scales[stage], &s->empty[stage]);
        }
    }
    int32_t stage = before;
    if (left == 1) {
        issue(d[1]);
        finish_block<SHAPE, 1>(sum, d[0], row, &s->scales[stage], &s->empty[stage]);
        finish_block<SHAPE, 0>(sum, d[1], row, &s->scales[before], &s->empty[before]);
    } else {
        finish_block<SHAPE, 0>(sum, d[0], row, &s->scales[stage], &s->empty[stage]);
    }
}

/* Results of this warpgroup's rows. */
template <class SHAPE, fl_matmul_out OUT>
FL_DEVICE void store_tile(const fl_tile_out *y, const fl_tile *tile, int32_t first_row,
                          const float (&sum)[SHAPE::WAVES][SHAPE::SUMS]) {
    fl_tile at = *tile;
#pragma unroll
    for (int wave = 0; wave < SHAPE::WAVES; wave++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int32_t row = at.row + own_row(first_row) + wave * WAVE_ROWS + 8 * i;
            fl_tile_row<OUT>(y, row, row < at.row_end, at.feature, sum[wave], i);
        }
}

/* SwiGLU of this warpgroup's rows, pairs of bf16 as fl_tile_row_bf16 has them, and the largest of each row in this
 * block: in the four lanes of the row. */
template <class SHAPE>
FL_DEVICE void gate_tile(const float (&sum)[SHAPE::WAVES][SHAPE::SUMS], uint32_t (&words)[SHAPE::WAVES][2][8],
                         float (&largest)[SHAPE::WAVES][2]) {
#pragma unroll
    for (int r = 0; r < SHAPE::WAVES * 2; r++) {
        const int wave = r / 2, i = r % 2;
        float most = FL_CODES_LEAST;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float *gate = &sum[wave][4 * j + 2 * i], *up = &sum[wave][4 * (j + 8) + 2 * i];
            uint32_t word = fl_pack_bf16(fl_swiglu(gate[0], up[0]), fl_swiglu(gate[1], up[1]));
            most = fmaxf(most, fmaxf(fabsf(fl_low_of_bf16x2(word)), fabsf(fl_high_of_bf16x2(word))));
            words[wave][i][j] = word;
        }
        largest[wave][i] = fl_quad_max(most);
    }
}

/* This block's 64 features of a row as codes. The four lanes of a row exchange words, so that each stores 16. */
FL_DEVICE void store_row_codes(uint8_t *to, bool inside, const uint32_t (&words)[8], float inverse) {
    uint32_t v[4]; /* v[m]: features 16 m + 2 q and the next, 16 m + 8 + 2 q and the next */
#pragma unroll
    for (int m = 0; m < 4; m++) v[m] = fl_codes_of_bf16x4(words[2 * m], words[2 * m + 1], inverse);
    fl_tile_exchange(&v[0], &v[1], 1);
    fl_tile_exchange(&v[2], &v[3], 1);
    fl_tile_exchange(&v[0], &v[2], 2);
    fl_tile_exchange(&v[1], &v[3], 2);
    if (!inside) return;
    *(uint4 *)(to + threadIdx.x % 4 * 16) =
        make_uint4(__byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410),
                   __byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x7632));
}

/* SwiGLU of this warpgroup's rows as codes; `turn` counts the tiles that it has stored. By both blocks of a cluster. A
 * warp tells the next tile's largest before the other has read this one's, but not the one's after that: two places. */
template <class SHAPE>
FL_DEVICE void store_codes(const plan *plan, shared_state *s, const fl_tile *tile, int32_t first_row,
                           uint32_t turn, const float (&sum)[SHAPE::WAVES][SHAPE::SUMS]) {
    fl_tile at = *tile;
    uint32_t words[SHAPE::WAVES][2][8], rank = fl_cluster_rank(), q = threadIdx.x % 4;
    float largest[SHAPE::WAVES][2];
    int32_t row = first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, width = plan->y.width;
    float *theirs = s->largest[turn % 2] + row;
    uint64_t *told = &s->told[turn % 2][threadIdx.x / 32 - GROUP_THREADS / 32];
    if (threadIdx.x % 32 == 0) fl_barrier_expect(told, SHAPE::WAVES * 16 * (uint32_t)sizeof(float));
    gate_tile<SHAPE>(sum, words, largest);
#pragma unroll
    for (int r = 0; r < SHAPE::WAVES * 2; r++)
        if (q == 0)
            fl_store_at(theirs + r / 2 * WAVE_ROWS + r % 2 * 8, largest[r / 2][r % 2], told, rank ^ 1);
    fl_barrier_wait_together(told, turn / 2 % 2);
#pragma unroll
    for (int r = 0; r < SHAPE::WAVES * 2; r++) {
        const int wave = r / 2, i = r % 2;
        int32_t in_tile = wave * WAVE_ROWS + i * 8;
        int64_t y = at.row + row + in_tile;
        float most = fmaxf(largest[wave][i], theirs[in_tile]);
        bool inside = y < at.row_end;
        store_row_codes(plan->y_codes.codes + y * width + at.feature, inside, words[wave][i],
                        fl_codes_inverse(most));
        if (inside && q == 0 && rank == 0)
            plan->y_codes.scale[at.feature / FL_SCALE_BLOCK * plan->y_codes.scale_stride + y] =
                fl_codes_scale(most);
    }
}

/* Multiplies this warpgroup's rows of all tiles of this block. One whose rows or features all lie outside only gives
 * the stages back. */
template <class SHAPE, fl_matmul_out OUT>
FL_DEVICE void multiply_tiles(const plan *plan, shared_state *s, const uint8_t *ring) {
    int32_t first_row = first_row_of<SHAPE>();
    fl_ring_place<SHAPE::STAGES> place = {0, 0};
    int32_t tiles = fl_tile_total(&plan->walk, &s->counts), kept = 0;
    [[maybe_unused]] uint32_t turn = 0;
    for (int32_t t = (int32_t)blockIdx.x / SHAPE::BLOCKS; t < tiles;
         t += (int32_t)gridDim.x / SHAPE::BLOCKS, kept++) {
        const fl_tile *at = &s->tiles[kept % TILES_KEPT];
        fl_barrier_wait(&s->full[place.stage], place.parity); /* the tile is known with its first stage */
        bool idle = at->row + first_row >= at->row_end || at->feature >= plan->y.width;
        int32_t skew = (at->row + plan->scale_skew) & 3;
        float sum[SHAPE::WAVES][SHAPE::SUMS];
#pragma unroll
        for (int i = 0; i < SHAPE::WAVES * SHAPE::SUMS; i++) sum[i / SHAPE::SUMS][i % SHAPE::SUMS] = 0;
        if (SHAPE::DEEP && !idle)
            add_blocks_deep<SHAPE>(sum[0], {first_row, skew + own_row(first_row)}, plan->blocks, s, ring,
                                   &place);
        else
            for (int32_t b = 0; b < plan->blocks; b++, place.advance()) {
                fl_barrier_wait(&s->full[place.stage], place.parity);
                if (SHAPE::DEEP || idle) fl_barrier_release_together<SHAPE::BLOCKS>(&s->empty[place.stage]);
                else
                    add_block<SHAPE>(sum, first_row, skew, ring + place.stage * SHAPE::STAGE_BYTES,
                                     &s->scales[place.stage], &s->empty[place.stage]);
            }
        if (idle) continue;
        if constexpr (OUT == FL_MATMUL_SWIGLU_CODES) store_codes<SHAPE>(plan, s, at, first_row, turn++, sum);
        else store_tile<SHAPE, OUT>(&plan->y, at, first_row, sum);
    }
}

/* A kernel for each kind of output: with all of them in one, the compiler puts the loop over k into plain registers
 * where uniform ones do, which costs a tenth of its speed. */
template <class SHAPE, fl_matmul_out OUT>
static __global__ void __launch_bounds__(SHAPE::THREADS, 1)
    product_fp8_kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                       const __grid_constant__ plan plan) {
    extern __shared__ uint8_t memory[];
    uint8_t *ring = memory + (-fl_shared_address(memory) & (SWIZZLE_ALIGN - 1));
    shared_state *s = (shared_state *)(ring + SHAPE::RING_BYTES);
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < STAGES_MAX; i++) {
            fl_barrier_init(&s->full[i], 2); /* copies, the weights' scales */
            fl_barrier_init(&s->empty[i], SHAPE::GROUPS * 4 * SHAPE::BLOCKS);
        }
        if constexpr (OUT == FL_MATMUL_SWIGLU_CODES)
            for (int32_t i = 0; i < 2 * WARPS_MULTIPLYING_MAX; i++)
                fl_barrier_init(&s->told[i % 2][i / 2], 1);
        fl_barrier_init_fence();
        fl_tma_prefetch(&map_x);
        fl_tma_prefetch(&map_w);
    }
    fl_grid_wait();
    fl_grid_begin_next();
    fl_tile_count(&plan.walk, &s->counts);
    if constexpr (SHAPE::BLOCKS > 1) fl_cluster_sync();
    if (threadIdx.x < 128) {
        fl_registers_release<SHAPE::REGISTERS_FETCHING>();
        if (threadIdx.x < 32) {
            if (fl_elect_one()) copy_tiles<SHAPE>(&plan, &map_x, &map_w, s, ring);
        } else if (threadIdx.x < 64) {
            fetch_scales<SHAPE>(&plan, s);
        }
    } else {
        fl_registers_claim<SHAPE::REGISTERS_MULTIPLYING>();
        multiply_tiles<SHAPE, OUT>(&plan, s, ring);
    }
    if constexpr (SHAPE::BLOCKS > 1) fl_cluster_sync(); /* the other block still writes here, and arrives */
}

/* ---- the host's side ---- */

template <class SHAPE>
static fl_err make_maps(const fl_fp8_product *p, int32_t x_rows, CUtensorMap *map_x, CUtensorMap *map_w) {
    fl_tma_shape x = {.base = p->x.codes,
                      .dtype = FL_DTYPE_F8_E4M3,
                      .rank = 3,
                      .size = {p->k, p->rows, 1},
                      .stride = {1, p->k, p->k},
                      .box = {STAGE_K, x_rows / SHAPE::BLOCKS, 1},
                      .swizzle = true};
    int32_t halves = fl_matmul_is_swiglu(p->out) ? 2 : 1, width = p->n / halves;
    fl_tma_shape w = {.base = p->w,
                      .dtype = FL_DTYPE_F8_E4M3,
                      .rank = 4,
                      .size = {p->k, width, halves, p->n_groups},
                      .stride = {1, p->k, (int64_t)width * p->k, p->w_group_stride},
                      .box = {STAGE_K, SHAPE::FEATURES / halves, halves, 1},
                      .swizzle = true};
    FL_TRY(fl_tma_map(&x, map_x));
    return fl_tma_map(&w, map_w);
}

/* Tiles down the rows of all groups, at most. */
static int64_t count_row_tiles(const fl_fp8_product *p, int32_t tile_rows) {
    return p->rows / tile_rows + (p->rows < p->n_groups ? p->rows : p->n_groups);
}

template <class SHAPE> static plan make_plan(const fl_cuda *cuda, const fl_fp8_product *p) {
    constexpr int32_t TILE_ROWS = SHAPE::TILE_ROWS;
    bool swiglu = fl_matmul_is_swiglu(p->out);
    int32_t width = fl_matmul_width(p->out, p->n),
            features = SHAPE::BLOCKS * (swiglu ? STRIP_FEATURES : SHAPE::FEATURES);
    int32_t skew = (int32_t)((uintptr_t)p->x.scale % 16 / sizeof(float));
    plan plan = {.y_codes = p->y_codes,
                 .x_scale = p->x.scale - skew,
                 .w_scale = p->w_scale,
                 .x_scale_stride = p->x.scale_stride,
                 .w_scale_group_stride = p->w_scale_group_stride,
                 .w_scale_stride = fl_scale_stride(p->k),
                 .scale_skew = skew,
                 .scale_end = (int32_t)fl_align_up(p->rows + skew, 4),
                 .blocks = p->k / FL_SCALE_BLOCK,
                 .x_rows = SHAPE::BLOCKS == 1 && p->rows < TILE_ROWS ? p->rows : TILE_ROWS,
                 .scale_rows = (int32_t)fl_tasks_of(p->n, FL_SCALE_BLOCK),
                 .to_second = swiglu ? width : STRIP_FEATURES};
    plan.walk = (fl_tile_walk){.group_rows = p->group_rows,
                               .fault = cuda->fault,
                               .n_groups = p->n_groups,
                               .rows = p->rows,
                               .tile_rows = TILE_ROWS,
                               .tile_features = features,
                               .tiles_n = (int32_t)fl_tasks_of(width, features),
                               .band_tiles = BAND_ROWS / TILE_ROWS,
                               .all_groups = p->all_groups};
    plan.y = (fl_tile_out){.y = p->y,
                           .y_stride = p->y_stride,
                           .width = width,
                           .together = fl_tile_together(p->y, p->y_stride, p->out),
                           .rope = p->rope};
    return plan;
}

template <class SHAPE, fl_matmul_out OUT>
static fl_err launch_kernel(fl_cuda *cuda, const fl_fp8_product *p) {
    const int32_t shared_bytes = SWIZZLE_ALIGN + SHAPE::RING_BYTES + (int32_t)sizeof(shared_state);
    CUtensorMap map_x, map_w;
    const plan made = make_plan<SHAPE>(cuda, p);
    FL_TRY(make_maps<SHAPE>(p, made.x_rows, &map_x, &map_w));
    auto kernel = product_fp8_kernel<SHAPE, OUT>;
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    int64_t tiles = count_row_tiles(p, made.walk.tile_rows) * made.walk.tiles_n;
    int64_t clusters = cuda->n_multiprocessors / SHAPE::BLOCKS;
    if (tiles > FL_TILES_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "matmul: %d rows of %d outputs are too many for one call", p->rows,
                       p->n);
    fl_early_launch early = fl_early_clusters(SHAPE::BLOCKS);
    cudaLaunchConfig_t config = {.gridDim =
                                     dim3((unsigned)((tiles < clusters ? tiles : clusters) * SHAPE::BLOCKS)),
                                 .blockDim = dim3(SHAPE::THREADS),
                                 .dynamicSmemBytes = (size_t)shared_bytes,
                                 .stream = cuda->stream,
                                 .attrs = early.list,
                                 .numAttrs = FL_EARLY_ATTRIBUTES};
    FL_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, map_x, map_w, made));
    return FL_CUDA_LAUNCHED("matmul of fp8 on tensor cores");
}

template <class SHAPE> static fl_err launch_plain(fl_cuda *cuda, const fl_fp8_product *p) {
    switch (p->out) {
    case FL_MATMUL_F32: return launch_kernel<SHAPE, FL_MATMUL_F32>(cuda, p);
    case FL_MATMUL_ACT: return launch_kernel<SHAPE, FL_MATMUL_ACT>(cuda, p);
    case FL_MATMUL_ROPE: return launch_kernel<SHAPE, FL_MATMUL_ROPE>(cuda, p);
    default: return FL_FAIL(FL_ERR_INTERNAL, "matmul of fp8: output %d has no kernel", (int)p->out);
    }
}

/* Codes of SwiGLU are pairs of blocks' work. */
template <class SHAPE> static fl_err launch_swiglu(fl_cuda *cuda, const fl_fp8_product *p) {
    if constexpr (SHAPE::BLOCKS == 2)
        if (p->out == FL_MATMUL_SWIGLU_CODES) return launch_kernel<SHAPE, FL_MATMUL_SWIGLU_CODES>(cuda, p);
    return launch_kernel<SHAPE, FL_MATMUL_SWIGLU>(cuda, p);
}

static fl_err choose_swiglu(fl_cuda *cuda, const fl_fp8_product *p) {
    int64_t rows = p->rows / p->n_groups; /* of a group, on average */
    if (rows < ROWS_OF_CLUSTER && p->out == FL_MATMUL_SWIGLU) return launch_swiglu<square>(cuda, p);
    if (rows < ROWS_OF_MIDDLE) return launch_swiglu<square_pair>(cuda, p);
    if (rows < ROWS_OF_LARGE || p->k < K_OF_LARGE) return launch_swiglu<tall_pair>(cuda, p);
    return launch_swiglu<large_pair>(cuda, p);
}

/* Microseconds of an H200 at work on a tile: for each block of k, and for its beginning and its results, which take
 * twice as long in f32. The time of the last blocks at work decides. */
typedef struct tile_cost {
    int32_t rows, features, blocks;
    double step_us, ends_us;
} tile_cost;

enum { NARROW, SQUARE, WIDE, TALL, LARGE, N_PLAIN };
static const tile_cost plain_costs[N_PLAIN] = {
    {128, 64, 1, 0.29, 0.4},  {128, 128, 1, 0.50, 0.95}, {128, 192, 1, 0.85, 1.0},
    {192, 128, 1, 0.69, 1.6}, {256, 256, 2, 0.93, 3.5},
};

static double time_of(const fl_cuda *cuda, const fl_fp8_product *p, const tile_cost *c) {
    double tiles =
        fl_product_row_tiles(p->rows, p->n_groups, c->rows) * (double)fl_tasks_of(p->n, c->features);
    double turns = ceil(tiles / (cuda->n_multiprocessors / c->blocks));
    return turns * (p->k / FL_SCALE_BLOCK * c->step_us + c->ends_us * (p->out == FL_MATMUL_F32 ? 2 : 1));
}

static fl_err choose_plain(fl_cuda *cuda, const fl_fp8_product *p) {
    int32_t best = 0;
    for (int32_t i = 1; i < N_PLAIN; i++)
        if (time_of(cuda, p, &plain_costs[i]) < time_of(cuda, p, &plain_costs[best])) best = i;
    switch (best) {
    case NARROW: return launch_plain<narrow>(cuda, p);
    case SQUARE: return launch_plain<square>(cuda, p);
    case WIDE: return launch_plain<wide>(cuda, p);
    case TALL: return p->n_groups > 1 ? launch_plain<tall_pair>(cuda, p) : launch_plain<tall>(cuda, p);
    default: return launch_plain<large_pair>(cuda, p);
    }
}

/* Sums do not depend on the choice. */
fl_err fl_fp8_product_wgmma(fl_cuda *cuda, const fl_fp8_product *p) {
    return fl_matmul_is_swiglu(p->out) ? choose_swiglu(cuda, p) : choose_plain(cuda, p);
}
