/* Attention over scores that climb by 96 binary orders of magnitude every 50 keys, and fall on odd rows: whatever a
 * kernel takes as the base of its weights must move, within a tile, from tile to tile and over splits, and for
 * some rows of a tile only. The expected values are means over one stair, written down without a softmax. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "op/act.h"
#include "op/kv_format.h"

enum { STAIR = 50, HEADS = 2, NOPE = 64, ROPE = 32, V = 64, LATENT = 128, ROWS = 70 };

static const double CLIMB = 96, TOLERANCE = 0.01; /* values are below 1 */

/* How high the stair of a key is. */
static double height(int32_t key) {
    int32_t stair = key / STAIR;
    return CLIMB * stair;
}

static void *zeros(int64_t bytes) {
    void *memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    assert_non_null(memory);
    return memset(memory, 0, (size_t)bytes);
}

/* Something between -1 and 1 for every (key, dimension). */
static double value_of(int32_t key, int32_t d) {
    uint32_t bits = (uint32_t)(key * 1000 + d) * 2654435761u;
    return (double)(bits >> 16 & 0xff) / 128 - 1;
}

/* The keys that have all the weight for the row at position p: the last stair it sees, or the first. */
static void heavy_keys(int32_t row, int32_t p, int32_t *from, int32_t *to) {
    *from = row % 2 ? 0 : p / STAIR * STAIR;
    *to = row % 2 && p >= STAIR ? STAIR : p + 1;
}

static double heavy_mean(int32_t row, int32_t p, int32_t d) {
    int32_t from, to;
    double sum = 0;
    heavy_keys(row, p, &from, &to);
    for (int32_t key = from; key < to; key++) sum += value_of(key, d);
    return sum / (to - from);
}

static void check_prefill(fl_backend *be, int32_t pos) {
    int32_t n_keys = pos + ROWS, q_dim = NOPE + ROPE, kv_dim = NOPE + V;
    int64_t element = (int64_t)fl_dtype_bytes(be->act_dtype);
    uint8_t *q = zeros(ROWS * HEADS * q_dim * element),
            *kv = zeros((int64_t)n_keys * HEADS * kv_dim * element);
    uint8_t *k_pe = zeros(n_keys * ROPE * element), *out = zeros(ROWS * HEADS * V * element);
    void *state = zeros(fl_attn_prefill_state_bytes(ROWS, HEADS, V));
    for (int32_t i = 0; i < ROWS * HEADS; i++)
        fl_act_store(q, be->act_dtype, (int64_t)i * q_dim + NOPE, i / HEADS % 2 ? -1 : 1);
    for (int32_t key = 0; key < n_keys; key++) {
        fl_act_store(k_pe, be->act_dtype, (int64_t)key * ROPE, (float)height(key));
        for (int32_t i = 0; i < HEADS * V; i++)
            fl_act_store(kv, be->act_dtype, ((int64_t)key * HEADS + i / V) * kv_dim + NOPE + i % V,
                         (float)value_of(key, i % V));
    }
    for (int32_t key = 0; key < n_keys; key += FL_ATTN_SPLIT_TOKENS) {
        int32_t n = n_keys - key < FL_ATTN_SPLIT_TOKENS ? n_keys - key : FL_ATTN_SPLIT_TOKENS;
        fl_attn_prefill_args a = {
            .rows = ROWS, .pos = pos, .n_heads = HEADS, .q = q, .state = state, .out = out};
        a.nope_dim = NOPE, a.rope_dim = ROPE, a.v_dim = V;
        a.kv = kv + (int64_t)key * HEADS * kv_dim * element;
        a.k_pe = k_pe + (int64_t)key * ROPE * element;
        a.key_pos = key, a.n_keys = n;
        a.first = key == 0, a.last = key + n == n_keys;
        a.scratch = zeros(fl_attn_prefill_scratch_bytes(&a));
        assert_int_equal(be->op->attn_prefill(be, &a), FL_ERR_OK);
        free(a.scratch);
    }
    for (int32_t i = 0; i < ROWS * HEADS * V; i++) {
        double found = (double)fl_act_load(out, be->act_dtype, i);
        int32_t row = i / (HEADS * V);
        assert_true(fabs(found - heavy_mean(row, pos + row, i % V)) <= TOLERANCE);
    }
    free(q), free(kv), free(k_pe), free(out), free(state);
}

static void check_absorbed(fl_backend *be, int32_t rows, int32_t pos) {
    enum { PAGES = 32 };
    int32_t pages[PAGES], q_dim = LATENT + ROPE;
    int64_t element = (int64_t)fl_dtype_bytes(be->act_dtype);
    fl_kv_layer kv = {.latent_dim = LATENT, .rope_dim = ROPE, .format = FL_KV_BF16};
    kv.page_stride_bytes = fl_kv_piece_bytes(&kv);
    kv.base = zeros(PAGES * kv.page_stride_bytes);
    for (int32_t i = 0; i < PAGES; i++) pages[i] = PAGES - 1 - i;
    for (int32_t key = 0; key < pos + rows; key++) {
        uint8_t *piece = fl_kv_piece(&kv, pages[key / FL_KV_PAGE_TOKENS]);
        int32_t slot = key % FL_KV_PAGE_TOKENS;
        for (int32_t d = 0; d < LATENT; d++)
            fl_act_store(piece, FL_DTYPE_BF16, slot * LATENT + d, (float)value_of(key, d));
        fl_act_store(piece, FL_DTYPE_BF16, FL_KV_PAGE_TOKENS * LATENT + slot * ROPE, (float)height(key));
    }
    uint8_t *q = zeros(rows * HEADS * q_dim * element), *out = zeros(rows * HEADS * LATENT * element);
    float *lse = zeros(rows * HEADS * (int64_t)sizeof *lse);
    for (int32_t i = 0; i < rows * HEADS; i++)
        fl_act_store(q, be->act_dtype, (int64_t)i * q_dim + LATENT, i / HEADS % 2 ? -1 : 1);
    fl_kv_rows seq = {.row = 0, .n_rows = rows, .pos = pos, .pages = pages};
    fl_attn_absorbed_args a = {.seqs = &seq, .n_seqs = 1, .rows = rows, .n_heads = HEADS, .kv = kv, .q = q};
    a.out = out, a.lse = lse;
    a.scratch = zeros(fl_attn_absorbed_scratch_bytes(rows, HEADS, LATENT, pos + rows - 1));
    assert_int_equal(be->op->attn_absorbed(be, &a), FL_ERR_OK);
    for (int32_t i = 0; i < rows * HEADS; i++) {
        int32_t row = i / HEADS, from, to;
        heavy_keys(row, pos + row, &from, &to);
        double top = row % 2 ? 0 : height(from);
        assert_true(fabs((double)lse[i] - top - log2(to - from)) <= TOLERANCE);
        for (int32_t d = 0; d < LATENT; d++) {
            double found = (double)fl_act_load(out, be->act_dtype, (int64_t)i * LATENT + d);
            assert_true(fabs(found - heavy_mean(row, pos + row, d)) <= TOLERANCE);
        }
    }
    free(a.scratch), free(q), free(out), free(lse), free(kv.base);
}

static void on_every_backend(void (*check)(fl_backend *be)) {
    int32_t n = 0;
    for (const char *const *name = fl_backend_names(); *name; name++) {
        fl_backend *be = NULL;
        if (!fl_backend_available(*name)) continue;
        assert_int_equal(fl_backend_open(*name, 2, &be), FL_ERR_OK);
        if (be->pool) check(be), n++; /* the counting backend computes nothing */
        fl_backend_close(be);
    }
    assert_true(n >= 1);
}

static void prefill(fl_backend *be) {
    check_prefill(be, 0);
    check_prefill(be, 333);
    check_prefill(be, FL_ATTN_SPLIT_TOKENS - 20); /* over the end of a split */
}

static void absorbed(fl_backend *be) {
    check_absorbed(be, 1, 1300);
    check_absorbed(be, 9, FL_ATTN_ABSORBED_SPLIT_TOKENS - 3);
    check_absorbed(be, 40, 700);
}

static void prefill_follows_climbing_scores(void **state) {
    (void)state;
    on_every_backend(prefill);
}

static void absorbed_follows_climbing_scores(void **state) {
    (void)state;
    on_every_backend(absorbed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_follows_climbing_scores),
        cmocka_unit_test(absorbed_follows_climbing_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
