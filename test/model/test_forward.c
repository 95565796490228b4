/* The forward pass: handing activations on as codes, and rotating queries as they are made, changes no bit of the
 * result, on the reference and on a GPU where there is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/shapes.h"
#include "support/timeline.h"

enum { DOCUMENT = 70, TAIL = 3, ROWS = DOCUMENT + TAIL };

/* wide: random weights of two layers whose heads are as wide as a group of codes. */
static timeline *open_timeline(const char *backend, bool wide) {
    fl_config config;
    timeline_options options = {.model_dir = "build/models/spark-66m",
                                .backend = backend,
                                .ctx_tokens = 128,
                                .kv_format = backend[0] == 'r' ? FL_KV_F32 : FL_KV_BF16,
                                .scratch_bytes = 64 << 20};
    timeline *t = NULL;
    assert_int_equal(fl_shape_find("spark-66m:2", &config), FL_ERR_OK);
    config.qk_nope_head_dim = config.v_head_dim = 128;
    config.qk_rope_head_dim = 64;
    if (wide) options.config = &config;
    if (timeline_open(&options, &t) != FL_ERR_OK) fail_msg("%s: %s", backend, fl_err_detail());
    return t;
}

/* Logits of all rows. */
static float *run(timeline *t) {
    int32_t vocab = t->weights->config.vocab_size, ids[ROWS];
    float *logits = malloc((size_t)ROWS * (size_t)vocab * sizeof *logits);
    assert_non_null(logits);
    for (int32_t i = 0; i < ROWS; i++) ids[i] = 100 + i * 37 % 4000;
    const timeline_step step = {
        .ids = ids, .rows = ROWS, .tail_rows = TAIL, .n_logits = ROWS, .logits = logits};
    if (timeline_run(t, &step) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    return logits;
}

/* As if nobody took codes: every product quantises for itself. */
static void forget_codes(timeline *t) {
    const fl_forms act = {.act = true};
    fl_weights *w = t->weights;
    for (int32_t i = 0; i < w->config.layers; i++) {
        fl_layer *layer = &w->layers[i];
        layer->attn_in = layer->q_in = layer->o_in = layer->ffn_in = act;
        layer->expert_in = layer->expert_inner = act;
        layer->dense.inner = layer->shared.inner = act;
    }
}

static void codes_are_handed_on_where_weights_have_scales(void **state) {
    (void)state;
    timeline *plain = open_timeline("reference", false), *fp8 = open_timeline("reference-w8a8", false);
    for (int32_t i = 0; i < plain->weights->config.layers; i++) {
        const fl_layer *a = &plain->weights->layers[i], *b = &fp8->weights->layers[i];
        assert_true(a->attn_in.act && !a->attn_in.codes && a->ffn_in.act && !a->ffn_in.codes);
        assert_true(!b->attn_in.act && b->attn_in.codes && b->ffn_in.codes);
        assert_int_equal(b->ffn_in.act, b->moe);                   /* the router's */
        assert_true(a->o_in.act && b->o_in.act && !b->o_in.codes); /* heads of half a group */
        assert_true(b->moe ? b->expert_in.codes && b->expert_inner.codes : b->dense.inner.codes);
    }
    timeline_close(plain);
    timeline_close(fp8);
    fp8 = open_timeline("reference-w8a8", true);
    assert_true(fp8->weights->layers[0].o_in.codes && !fp8->weights->layers[0].o_in.act);
    timeline_close(fp8);
}

typedef void change_fn(timeline *t);

static void changes_no_bit(const char *backend, bool wide, change_fn *change, change_fn *before) {
    if (!fl_backend_available(backend)) return;
    timeline *t = open_timeline(backend, wide);
    size_t bytes = (size_t)ROWS * (size_t)t->weights->config.vocab_size * sizeof(float);
    if (before) before(t);
    float *one = run(t);
    timeline_close(t);
    t = open_timeline(backend, wide);
    change(t);
    float *two = run(t);
    timeline_close(t);
    assert_memory_equal(one, two, bytes);
    free(one);
    free(two);
}

static void codes_change_no_bit(void **state) {
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        changes_no_bit("reference-w8a8", wide, forget_codes, NULL);
        changes_no_bit("cuda-w8a8-deterministic", wide, forget_codes, NULL);
    }
}

static void fuse_rope(timeline *t) {
    t->be->matmul_rope = true;
}

static void part_rope(timeline *t) {
    t->be->matmul_rope = false;
}

/* The reference has the epilogue too, as its definition, though its forward pass does without. */
static void rotated_queries_change_no_bit(void **state) {
    (void)state;
    changes_no_bit("reference", false, part_rope, fuse_rope);
    changes_no_bit("cuda-deterministic", false, part_rope, fuse_rope);
    changes_no_bit("cuda-w8a8-deterministic", false, part_rope, fuse_rope);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_handed_on_where_weights_have_scales),
        cmocka_unit_test(codes_change_no_bit),
        cmocka_unit_test(rotated_queries_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
