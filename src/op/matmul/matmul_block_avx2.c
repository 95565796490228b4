/* Register tile 6 rows x 16 columns: 12 accumulators, the panel's 16 bf16 widened by one shift and one mask into
 * even and odd columns (put back in order when stored), x broadcast. 12 FMA to 7 loads a step: FMA bound. A single
 * row takes 4 panels at once to hide the FMA latency; it is bound by the panels' memory traffic. */
#include "op/matmul/matmul_block_avx2.h"

#include "op/vec_avx2.h"

enum { TILE_ROWS = 6, ROW_PANELS = 4, L2_SHARE_BYTES = 256 * 1024 };

/* ROW_PANELS * 2 or TILE_ROWS * 2 accumulators: of rows (panels = 1) or of panels (rows = 1). Both counts are
 * constants after inlining. */
__attribute__((always_inline)) static inline void run_tile(const fl_matmul_block_avx2 *b, int32_t row,
                                                           int32_t panel, int32_t rows, int32_t panels) {
    const float *x = b->x + row * b->x_stride;
    int64_t panel_stride = (int64_t)b->k * FL_PANEL_AVX2, x_stride = b->x_stride;
    const uint16_t *w = b->panels + panel * panel_stride;
    __m256 even[TILE_ROWS], odd[TILE_ROWS];
    int32_t n = rows * panels;
    for (int32_t i = 0; i < n; i++) even[i] = odd[i] = _mm256_setzero_ps();
    for (int32_t j = 0; j < b->k; j++, w += FL_PANEL_AVX2, x++)
        for (int32_t p = 0; p < panels; p++) {
            __m256i halves = _mm256_loadu_si256((const __m256i *)(w + p * panel_stride));
            __m256 w_even = fl_bf16_even_avx2(halves), w_odd = fl_bf16_odd_avx2(halves);
            for (int32_t r = 0; r < rows; r++) {
                __m256 value = _mm256_broadcast_ss(x + r * x_stride);
                even[r + p] = _mm256_fmadd_ps(value, w_even, even[r + p]);
                odd[r + p] = _mm256_fmadd_ps(value, w_odd, odd[r + p]);
            }
        }
    for (int32_t i = 0; i < n; i++) {
        float *out = b->out + (row + (panels == 1 ? i : 0)) * b->out_stride +
                     (int64_t)(panel + (panels == 1 ? 0 : i)) * FL_PANEL_AVX2;
        __m256 low = _mm256_unpacklo_ps(even[i], odd[i]), high = _mm256_unpackhi_ps(even[i], odd[i]);
        _mm256_storeu_ps(out, _mm256_permute2f128_ps(low, high, 0x20));
        _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(low, high, 0x31));
    }
}

static void run_rows(const fl_matmul_block_avx2 *b, int32_t row, int32_t panel, int32_t rows) {
    switch (rows) {
    case 1: run_tile(b, row, panel, 1, 1); break;
    case 2: run_tile(b, row, panel, 2, 1); break;
    case 3: run_tile(b, row, panel, 3, 1); break;
    case 4: run_tile(b, row, panel, 4, 1); break;
    case 5: run_tile(b, row, panel, 5, 1); break;
    default: run_tile(b, row, panel, TILE_ROWS, 1); break;
    }
}

void fl_matmul_block_run_avx2(const fl_matmul_block_avx2 *b) {
    int32_t panel = 0;
    if (b->n_rows == 1)
        for (; panel + ROW_PANELS <= b->n_panels; panel += ROW_PANELS) run_tile(b, 0, panel, 1, ROW_PANELS);
    for (; panel < b->n_panels; panel++)
        for (int32_t row = 0; row < b->n_rows; row += TILE_ROWS)
            run_rows(b, row, panel, b->n_rows - row < TILE_ROWS ? b->n_rows - row : TILE_ROWS);
}

int32_t fl_matmul_block_rows_avx2(int32_t k) {
    int32_t tiles = L2_SHARE_BYTES / (k * TILE_ROWS * (int32_t)sizeof(float));
    return TILE_ROWS * (tiles < 2 ? 2 : tiles > 16 ? 16 : tiles);
}
