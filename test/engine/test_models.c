/* Every model family and weight format, small and synthetic: the fast backends agree with the reference, and absorbed
 * attention with non-absorbed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/tiny_checkpoint.h"
#include "support/timeline.h"

enum { ROWS = 150, TAIL = 20, CHECKED = 15 };

static timeline *open_tiny(const char *dir, const char *backend, fl_kv_format kv) {
    const timeline_options options = {.model_dir = dir,
                                      .backend = backend,
                                      .n_threads = 2,
                                      .ctx_tokens = 256,
                                      .kv_format = kv,
                                      .scratch_bytes = 64 << 20};
    timeline *t = NULL;
    if (timeline_open(&options, &t) != FL_ERR_OK) fail_msg("%s: %s", backend, fl_err_detail());
    return t;
}

/* Logits of the last CHECKED rows; `tail` rows at the end are absorbed. */
static float *run(const char *dir, const char *backend, fl_kv_format kv, int32_t tail, int32_t *n_vocab) {
    timeline *t = open_tiny(dir, backend, kv);
    int32_t ids[ROWS];
    *n_vocab = t->weights->config.vocab_size;
    for (int32_t i = 0; i < ROWS; i++) ids[i] = (i * 37 + 11) % *n_vocab;
    float *logits = malloc((size_t)CHECKED * (size_t)*n_vocab * sizeof(float));
    assert_non_null(logits);
    const timeline_step step = {
        .ids = ids, .rows = ROWS, .tail_rows = tail, .n_logits = CHECKED, .logits = logits};
    if (timeline_run(t, &step) != FL_ERR_OK) fail_msg("%s: %s", backend, fl_err_detail());
    timeline_close(t);
    return logits;
}

/* Root mean square difference over root mean square of the first. */
static double row_distance(const float *a, const float *b, int32_t n) {
    double difference = 0, size = 0;
    for (int32_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)a[i] * a[i];
    }
    assert_true(isfinite(size) && size > 0);
    return sqrt(difference / size);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median row's: random routers have near-equal scores, and where bf16 flips an expert, that one row differs much.
 */
static double distance(const float *a, const float *b, int32_t n) {
    double rows[CHECKED];
    for (int32_t i = 0; i < CHECKED; i++) rows[i] = row_distance(a + (int64_t)i * n, b + (int64_t)i * n, n);
    qsort(rows, CHECKED, sizeof *rows, by_value);
    return rows[CHECKED / 2];
}

static void check_model(const tiny_options *options) {
    char *dir = tiny_dir_make();
    tiny_checkpoint *tiny = tiny_checkpoint_new(options);
    tiny_checkpoint_write(tiny, dir);
    tiny_checkpoint_free(tiny);
    int32_t n;
    float *reference = run(dir, "reference", FL_KV_F32, 0, &n);
    float *absorbed = run(dir, "reference", FL_KV_F32, TAIL, &n);
    double two_ways = distance(reference, absorbed, n);
    print_message("kind %d, %s: absorbed %.1e", (int)options->kind, fl_dtype_name(options->linear), two_ways);
    assert_true(two_ways < 1e-5);
    for (const char *const *name = fl_backend_names(); *name; name++) {
        if ((*name)[0] != 'a' || !fl_backend_available(*name)) continue;
        float *fast = run(dir, *name, FL_KV_BF16, TAIL, &n);
        double fast_distance = distance(reference, fast, n);
        print_message(", %s %.1e", *name, fast_distance);
        assert_true(fast_distance <
                    0.05); /* bf16: three layers, experts may flip between near-equal scores */
        free(fast);
    }
    print_message("\n");
    free(reference);
    free(absorbed);
    tiny_dir_remove(dir);
}

static void every_family_runs_alike_on_every_backend(void **state) {
    (void)state;
    const tiny_kind kinds[] = {TINY_V3, TINY_V2, TINY_V2_LITE, TINY_KIMI, TINY_DENSE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        check_model(
            &(tiny_options){.kind = kinds[i], .linear = FL_DTYPE_BF16, .others = FL_DTYPE_BF16, .seed = i});
}

static void every_weight_format_loads(void **state) {
    (void)state;
    const fl_dtype formats[] = {FL_DTYPE_F32, FL_DTYPE_F16, FL_DTYPE_F8_E4M3};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        check_model(&(tiny_options){.linear = formats[i],
                                    .others = FL_DTYPE_F32,
                                    .n_shards = (int32_t)i,
                                    .tied = i == 1,
                                    .mtp = i == 2,
                                    .seed = 10 + i});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_runs_alike_on_every_backend),
        cmocka_unit_test(every_weight_format_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
