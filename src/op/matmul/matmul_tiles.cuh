/* Tiles of a product for groups of rows: which ones a block takes, and how it stores their results from the
 * accumulators of wgmma. */
#ifndef FL_OP_MATMUL_MATMUL_TILES_CUH
#define FL_OP_MATMUL_MATMUL_TILES_CUH

#include "op/cuda/rope.cuh"
#include "op/matmul/matmul_cuda.cuh"

/* The walk: groups one after another, within a group bands of band_tiles row tiles, within a band feature by feature,
 * so that blocks at work at the same time share operands in L2. */
typedef struct fl_tile_walk {
    const int32_t *group_rows; /* device, [n_groups + 1]; NULL = one group with all rows */
    int32_t *fault; /* device: told of wrong group_rows, which are read inside 0 .. rows whatever they say */
    int32_t n_groups, rows;           /* at most FL_PRODUCT_GROUPS_MAX */
    int32_t tile_rows, tile_features; /* features of y */
    int32_t tiles_n;                  /* tiles across the features */
    int32_t band_tiles;
    bool all_groups; /* group_rows begins at 0 and ends at rows */
} fl_tile_walk;

enum { FL_TILES_MAX = 1 << 30 };

/* In shared memory. */
typedef struct fl_tile_counts {
    int32_t first_tile[FL_PRODUCT_GROUPS_MAX + 1]; /* row tiles before group g */
    int32_t first_row[FL_PRODUCT_GROUPS_MAX + 1];
} fl_tile_counts;

/* Rows row .. row_end - 1 are stored, at most tile_rows. */
typedef struct fl_tile {
    int32_t group, row, row_end, feature;
} fl_tile;

/* Row tiles of a group. */
FL_DEVICE int32_t fl_tile_group_size(const fl_tile_walk *walk, const fl_tile_counts *counts, int32_t g) {
    int32_t rows = max(counts->first_row[g + 1] - counts->first_row[g], 0);
    return (rows + walk->tile_rows - 1) / walk->tile_rows;
}

/* Entry g of group_rows; told if it is not right beside the one before. */
FL_DEVICE int32_t fl_tile_first_row(const fl_tile_walk *walk, int32_t g) {
    if (!walk->group_rows) return g == 0 ? 0 : walk->rows;
    int32_t row = walk->group_rows[g], before = g > 0 ? walk->group_rows[g - 1] : 0;
    bool first = walk->all_groups && g == 0, last = walk->all_groups && g == walk->n_groups;
    bool wrong = row < before || row > walk->rows || (first && row != 0) || (last && row != walk->rows);
    if (wrong && blockIdx.x == 0) atomicCAS(walk->fault, FL_CUDA_FAULT_NONE, FL_CUDA_FAULT_GROUP_ROWS);
    return min(max(row, 0), walk->rows);
}

/* Fills the counts. By all threads of the block; ends with a barrier. */
FL_DEVICE void fl_tile_count(const fl_tile_walk *walk, fl_tile_counts *counts) {
    int32_t n = walk->n_groups;
    for (int32_t g = threadIdx.x; g <= n; g += blockDim.x) counts->first_row[g] = fl_tile_first_row(walk, g);
    __syncthreads();
    if (threadIdx.x < 32) { /* one warp: each lane some groups in a row, then a sum over lanes */
        int32_t lane = threadIdx.x, share = (n + 31) / 32;
        int32_t begin = min(lane * share, n), end = min(begin + share, n), own = 0;
        for (int32_t g = begin; g < end; g++) own += fl_tile_group_size(walk, counts, g);
        int32_t total = own; /* becomes the sum up to and with this lane */
        for (int32_t step = 1; step < 32; step *= 2) {
            int32_t other = __shfl_up_sync(~0u, total, step);
            if (lane >= step) total += other;
        }
        int32_t at = total - own;
        for (int32_t g = begin; g < end; g++) {
            counts->first_tile[g] = at;
            at += fl_tile_group_size(walk, counts, g);
        }
        if (lane == 31) counts->first_tile[n] = total;
    }
    __syncthreads();
}

/* FL_TILES_MAX at most: the host sees to it. */
FL_DEVICE int32_t fl_tile_total(const fl_tile_walk *walk, const fl_tile_counts *counts) {
    return counts->first_tile[walk->n_groups] * walk->tiles_n;
}

FL_DEVICE fl_tile fl_tile_find(const fl_tile_walk *walk, const fl_tile_counts *counts, int32_t t) {
    int32_t row_tile = t / walk->tiles_n;         /* as if row by row: right for the group */
    int32_t group = 0, high = walk->n_groups - 1; /* group becomes the last that begins at or before it */
    while (group < high) {
        int32_t middle = (group + high + 1) / 2;
        if (counts->first_tile[middle] <= row_tile) group = middle;
        else high = middle - 1;
    }
    int32_t first = counts->first_tile[group], count = counts->first_tile[group + 1] - first;
    int32_t within = t - first * walk->tiles_n, band_size = walk->band_tiles * walk->tiles_n;
    int32_t band = within / band_size * walk->band_tiles, in_band = within % band_size;
    int32_t height = min(walk->band_tiles, count - band);
    int32_t row = counts->first_row[group] + (band + in_band % height) * walk->tile_rows;
    return fl_tile{group, row, min(counts->first_row[group + 1], row + walk->tile_rows),
                   in_band / height * walk->tile_features};
}

/* ---- results ---- */

typedef struct fl_tile_out {
    void *y;
    int64_t y_stride;
    int32_t width;       /* features of y */
    int32_t together;    /* neighbouring elements that may be stored at once: 8 (bf16), 2 or 1 */
    fl_matmul_rope rope; /* FL_MATMUL_ROPE */
} fl_tile_out;

static inline int32_t fl_tile_together(const void *y, int64_t y_stride, fl_matmul_out out) {
    uintptr_t element = out == FL_MATMUL_F32 ? sizeof(float) : sizeof(fl_bf16);
    if (element == sizeof(fl_bf16) && (uintptr_t)y % 16 == 0 && y_stride % 8 == 0) return 8;
    return (uintptr_t)y % (2 * element) == 0 && y_stride % 2 == 0 ? 2 : 1;
}

/* Eight neighbouring bf16 of a row, as many as lie inside. */
FL_DEVICE void fl_tile_put_bf16(const fl_tile_out *o, uint16_t *y, int32_t feature,
                                const uint32_t (&words)[4]) {
    if (o->together == 8 && feature + 8 <= o->width) {
        *(uint4 *)(y + feature) = make_uint4(words[0], words[1], words[2], words[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int32_t at = feature + 2 * i;
        if (at + 1 < o->width && o->together >= 2) {
            *(uint32_t *)(y + at) = words[i];
        } else {
            if (at < o->width) y[at] = (uint16_t)words[i];
            if (at + 1 < o->width) y[at + 1] = (uint16_t)(words[i] >> 16);
        }
    }
}

/* Lanes `step` apart exchange: afterwards the lower has both their first words, the upper both their second. */
FL_DEVICE void fl_tile_exchange(uint32_t *first, uint32_t *second, int32_t step) {
    bool upper = threadIdx.x & step;
    uint32_t got = __shfl_xor_sync(~0u, upper ? *first : *second, step);
    *first = upper ? got : *first;
    *second = upper ? *second : got;
}

/* A row in bf16: words[j] holds features first + 8 j + 2 q and the next, q = lane % 4. The four lanes of a row exchange
 * words, so that each stores 8 neighbouring features. By whole warps; lanes with `inside` false store nothing. */
template <int N>
FL_DEVICE void fl_tile_row_bf16(const fl_tile_out *o, int64_t row, bool inside, int32_t first,
                                const uint32_t (&words)[N]) {
    uint16_t *y = (uint16_t *)o->y + row * o->y_stride;
#pragma unroll
    for (int j = 0; j < N; j += 4) {
        uint32_t v[4] = {words[j], words[j + 1], words[j + 2], words[j + 3]};
        fl_tile_exchange(&v[0], &v[1], 1);
        fl_tile_exchange(&v[2], &v[3], 1);
        fl_tile_exchange(&v[0], &v[2], 2);
        fl_tile_exchange(&v[1], &v[3], 2);
        if (inside) fl_tile_put_bf16(o, y, first + 8 * (j + (int32_t)(threadIdx.x % 4)), v);
    }
}

/* Row i (0, 1) of this thread's two in the accumulators d of a product of 64 rows x 2 N features, stored as row `row`.
 */
template <fl_matmul_out OUT, int N>
FL_DEVICE void fl_tile_row(const fl_tile_out *o, int64_t row, bool inside, int32_t first, const float (&d)[N],
                           int i) {
    if constexpr (OUT == FL_MATMUL_F32) {
        float *y = (float *)o->y + row * o->y_stride;
        int32_t feature = first + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < N / 4; j++, feature += 8) {
            float a = d[4 * j + 2 * i], b = d[4 * j + 2 * i + 1];
            if (!inside || feature >= o->width) continue;
            if (o->together >= 2 && feature + 1 < o->width) {
                *(float2 *)(y + feature) = make_float2(a, b);
            } else {
                y[feature] = a;
                if (feature + 1 < o->width) y[feature + 1] = b;
            }
        }
    } else if constexpr (OUT == FL_MATMUL_ACT) {
        uint32_t words[N / 4];
#pragma unroll
        for (int j = 0; j < N / 4; j++) words[j] = fl_pack_bf16(d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
        fl_tile_row_bf16(o, row, inside, first, words);
    } else if constexpr (OUT == FL_MATMUL_ROPE) {
        float2 pairs[N / 4];
        uint32_t words[N / 4];
#pragma unroll
        for (int j = 0; j < N / 4; j++) pairs[j] = make_float2(d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
        fl_rope_row(&o->rope, inside ? row : 0, first + (int32_t)(threadIdx.x % 4) * 2, pairs, words);
        fl_tile_row_bf16(o, row, inside, first, words);
    } else { /* gates in the first half, ups in the second */
        static_assert(OUT == FL_MATMUL_SWIGLU);
        uint32_t words[N / 8];
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float *gate = &d[4 * j + 2 * i], *up = &d[4 * (j + N / 8) + 2 * i];
            words[j] = fl_pack_bf16(fl_swiglu(gate[0], up[0]), fl_swiglu(gate[1], up[1]));
        }
        fl_tile_row_bf16(o, row, inside, first, words);
    }
}

#endif
