/* Logits of spark-66m against Hugging Face transformers in fp32 (test/golden). The reference backend must agree to
 * rounding; the fast backends within the published bounds of their short formats. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"
#include "support/timeline.h"

static const char MODEL[] = "build/models/spark-66m";
enum { CHUNK = 512, SCRATCH_BYTES = 256 << 20 };

static double logprob(const float *row, int32_t id) {
    double top = row[argmax(row, GOLDEN_VOCAB)], sum = 0;
    for (int32_t i = 0; i < GOLDEN_VOCAB; i++) sum += exp(row[i] - top);
    return row[id] - top - log(sum);
}

typedef struct score {
    int64_t rows, top1_equal;        /* all positions */
    int64_t clear_rows, clear_equal; /* positions whose golden top-2 gap is > 0.1: unknown, see below */
    double difference_sum;           /* of |log-prob| of the golden's top-1 and of the next token */
    int64_t differences;
    double last_max_difference;
} score;

/* The goldens hold the top-1 log-prob only. Where our second best is within 0.1 of our best, the gap is not clear. */
static bool is_clear(const float *row, int32_t best) {
    float second = -INFINITY;
    for (int32_t i = 0; i < GOLDEN_VOCAB; i++)
        if (i != best && row[i] > second) second = row[i];
    return row[best] - second > 0.1f;
}

static void score_row(const golden *g, int32_t position, const float *row, score *s) {
    int32_t best = argmax(row, GOLDEN_VOCAB);
    bool equal = best == g->top1_ids[position];
    s->rows++;
    s->top1_equal += equal;
    if (is_clear(row, best)) {
        s->clear_rows++;
        s->clear_equal += equal;
    }
    s->difference_sum += fabs(logprob(row, g->top1_ids[position]) - g->top1_logprobs[position]);
    s->differences++;
    if (position + 1 < g->n) {
        s->difference_sum += fabs(logprob(row, g->ids[position + 1]) - g->next_logprobs[position]);
        s->differences++;
        return;
    }
    for (int32_t i = 0; i < GOLDEN_VOCAB; i++)
        s->last_max_difference = fmax(s->last_max_difference, fabs(row[i] - g->last_logits[i]));
}

static timeline *open_timeline(const char *backend, int32_t ctx) {
    const timeline_options options = {.model_dir = MODEL,
                                      .backend = backend,
                                      .ctx_tokens = ctx,
                                      .kv_format = backend[0] == 'r' ? FL_KV_F32 : FL_KV_BF16,
                                      .scratch_bytes = SCRATCH_BYTES};
    timeline *t = NULL;
    if (timeline_open(&options, &t) != FL_ERR_OK) fail_msg("%s: %s", backend, fl_err_detail());
    return t;
}

static void run_prompt(timeline *t, const golden *g, score *s) {
    float *logits = malloc((size_t)CHUNK * GOLDEN_VOCAB * sizeof(float));
    assert_non_null(logits);
    for (int32_t pos = 0; pos < g->n; pos += CHUNK) {
        int32_t rows = g->n - pos < CHUNK ? g->n - pos : CHUNK;
        const timeline_step step = {
            .ids = g->ids + pos, .pos = pos, .rows = rows, .n_logits = rows, .logits = logits};
        if (timeline_run(t, &step) != FL_ERR_OK) fail_msg("%s: %s", g->name, fl_err_detail());
        for (int32_t i = 0; i < rows; i++) score_row(g, pos + i, logits + (int64_t)i * GOLDEN_VOCAB, s);
    }
    free(logits);
}

static int32_t greedy_equal(timeline *t, const golden *g) {
    float *logits = malloc(GOLDEN_VOCAB * sizeof(float));
    int32_t token = g->greedy[0], equal = 1;
    for (int32_t i = 1; i < GOLDEN_GREEDY; i++) {
        const timeline_step step = {
            .ids = &token, .pos = g->n + i - 1, .rows = 1, .tail_rows = 1, .n_logits = 1, .logits = logits};
        if (timeline_run(t, &step) != FL_ERR_OK) fail_msg("%s: %s", g->name, fl_err_detail());
        token = argmax(logits, GOLDEN_VOCAB);
        if (token != g->greedy[i]) break;
        equal++;
    }
    free(logits);
    return equal;
}

static void reference_agrees_to_rounding(void **state) {
    (void)state;
    const char *const names[] = {"empty", "chat", "code", "unicode"};
    timeline *t = open_timeline("reference", 1024);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g;
        score s = {0};
        golden_read(names[i], &g);
        run_prompt(t, &g, &s);
        int32_t greedy = greedy_equal(t, &g);
        print_message("reference %-9s last logits max |diff| %.2g, top-1 %lld/%lld, mean |log-prob diff| "
                      "%.2g, greedy %d/32\n",
                      g.name, s.last_max_difference, (long long)s.top1_equal, (long long)s.rows,
                      s.difference_sum / (double)s.differences, greedy);
        assert_true(s.last_max_difference <= 2e-3);
        assert_int_equal(s.top1_equal, s.rows);
        assert_int_equal(greedy, GOLDEN_GREEDY);
        golden_free(&g);
    }
    timeline_close(t);
}

/* What fp8 activations cost: the reference with them against the golden values. */
static void reference_with_fp8_activations_agrees_mostly(void **state) {
    (void)state;
    const char *const names[] = {"empty", "chat", "unicode"};
    timeline *t = open_timeline("reference-w8a8", 1024);
    score s = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g;
        golden_read(names[i], &g);
        run_prompt(t, &g, &s);
        golden_free(&g);
    }
    double difference = s.difference_sum / (double)s.differences;
    print_message("reference-w8a8: top-1 %lld/%lld, clear %lld/%lld, mean |log-prob diff| %.3f\n",
                  (long long)s.top1_equal, (long long)s.rows, (long long)s.clear_equal,
                  (long long)s.clear_rows, difference);
    assert_true(difference > 1e-4); /* it is not the reference */
    assert_true((double)s.top1_equal >= 0.87 * (double)s.rows);
    assert_true(difference <= 0.2);
    timeline_close(t);
}

static void fast_backend_agrees(const char *backend) {
    const char *const names[] = {"empty", "chat", "code", "unicode", "doc2k", "needle8k"};
    timeline *t = open_timeline(backend, 8192);
    score s = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g;
        golden_read(names[i], &g);
        score one = {0};
        run_prompt(t, &g, &one);
        print_message("%s %-9s top-1 %lld/%lld, clear %lld/%lld, mean |log-prob diff| %.4f, greedy %d/32\n",
                      backend, g.name, (long long)one.top1_equal, (long long)one.rows,
                      (long long)one.clear_equal, (long long)one.clear_rows,
                      one.difference_sum / (double)one.differences, greedy_equal(t, &g));
        s.rows += one.rows;
        s.top1_equal += one.top1_equal;
        s.clear_rows += one.clear_rows;
        s.clear_equal += one.clear_equal;
        s.difference_sum += one.difference_sum;
        s.differences += one.differences;
        golden_free(&g);
    }
    double all = (double)s.top1_equal / (double)s.rows, clear = (double)s.clear_equal / (double)s.clear_rows;
    double difference = s.difference_sum / (double)s.differences;
    print_message("%s in all: top-1 %.4f, clear %.4f, mean |log-prob diff| %.4f\n", backend, all, clear,
                  difference);
    assert_true(all >= 0.98);
    assert_true(clear >= 0.99);
    assert_true(difference <= 0.03);
    timeline_close(t);
}

static void fast_backends_agree_within_their_formats(void **state) {
    (void)state;
    const char *const *names = fl_backend_names();
    for (int32_t i = 0; names[i]; i++)
        if (names[i][0] != 'r' && !strstr(names[i], "w8a8") && strcmp(names[i], "count") != 0 &&
            fl_backend_available(names[i]))
            fast_backend_agrees(names[i]);
}

/* Logits of every row of a prompt. */
static float *all_logits(timeline *t, const golden *g) {
    float *logits = malloc((size_t)g->n * GOLDEN_VOCAB * sizeof(float));
    assert_non_null(logits);
    for (int32_t pos = 0; pos < g->n; pos += CHUNK) {
        int32_t rows = g->n - pos < CHUNK ? g->n - pos : CHUNK;
        const timeline_step step = {.ids = g->ids + pos,
                                    .pos = pos,
                                    .rows = rows,
                                    .n_logits = rows,
                                    .logits = logits + (int64_t)pos * GOLDEN_VOCAB};
        if (timeline_run(t, &step) != FL_ERR_OK) fail_msg("%s: %s", g->name, fl_err_detail());
    }
    return logits;
}

typedef struct agreement {
    int64_t rows, equal;   /* top-1 */
    double difference_sum; /* of the log-prob of the top-1 of the second */
} agreement;

static void compare_logits(timeline *got, timeline *want, const char *name, agreement *sum) {
    golden g;
    golden_read(name, &g);
    float *a = all_logits(got, &g), *b = all_logits(want, &g);
    for (int32_t r = 0; r < g.n; r++) {
        const float *x = a + (int64_t)r * GOLDEN_VOCAB, *y = b + (int64_t)r * GOLDEN_VOCAB;
        int32_t best = argmax(y, GOLDEN_VOCAB);
        sum->rows++;
        sum->equal += argmax(x, GOLDEN_VOCAB) == best;
        sum->difference_sum += fabs(logprob(x, best) - logprob(y, best));
    }
    free(a);
    free(b);
    golden_free(&g);
}

static void print_agreement(const char *what, const agreement *sum) {
    print_message("%s: top-1 %lld/%lld, mean |log-prob diff| %.2g\n", what, (long long)sum->equal,
                  (long long)sum->rows, sum->difference_sum / (double)sum->rows);
}

/* The reference's norms with a relative error of 2^-20, either way by the element: below what any sum in f32 has. */
static fl_err noisy_rmsnorm(fl_backend *be, const fl_rmsnorm_args *a) {
    float *values = malloc((size_t)a->rows * (size_t)a->dim * sizeof *values);
    fl_rmsnorm_args plain = *a;
    assert_non_null(values);
    plain.y = values;
    plain.y_stride = a->dim;
    plain.y_codes.codes = NULL;
    fl_err err = fl_op_table_reference.rmsnorm(be, &plain);
    for (int32_t r = 0; r < a->rows && err == FL_ERR_OK; r++) {
        float *y = values + (int64_t)r * a->dim;
        for (int32_t i = 0; i < a->dim; i++)
            y[i] *= (uint32_t)(r * a->dim + i) * 2654435761u >> 31 ? 1 + 0x1p-20f : 1 - 0x1p-20f;
        if (a->y) memcpy((float *)a->y + r * a->y_stride, y, (size_t)a->dim * sizeof *y);
        if (a->y_codes.codes) fl_codes_quantise(y, a->dim, &a->y_codes, r);
    }
    free(values);
    return err;
}

/* How far apart two runs of the same fp8 arithmetic are when nothing but the last bits of f32 differ. A code that flips
 * is an error of the size of a quantisation step, so what begins as 2^-20 ends, layers later, as far apart as
 * either is from fp32: no implementation that does not sum in the very same order can come closer. */
static void fp8_activations_amplify_rounding(void **state) {
    (void)state;
    const char *const backends[] = {"reference", "reference-w8a8"};
    double difference[2];
    for (int32_t i = 0; i < 2; i++) {
        timeline *plain = open_timeline(backends[i], 1024), *noisy = open_timeline(backends[i], 1024);
        fl_op_table table = *noisy->be->op;
        table.rmsnorm = noisy_rmsnorm;
        noisy->be->op = &table;
        agreement sum = {0};
        char what[96];
        compare_logits(noisy, plain, "code", &sum);
        snprintf(what, sizeof what, "%s beside itself with noise of 2^-20", backends[i]);
        print_agreement(what, &sum);
        difference[i] = sum.difference_sum / (double)sum.rows;
        timeline_close(plain);
        timeline_close(noisy);
    }
    assert_true(difference[0] < 1e-4);
    assert_true(difference[1] > 100 * difference[0]);
}

/* A GPU's fp8 products against the reference in the same arithmetic; see the test above for what can be asked. */
static void fp8_products_agree_with_the_reference(void **state) {
    (void)state;
    static const char gpu[] = "cuda-w8a8";
    const char *const names[] = {"empty", "chat", "code", "unicode", "doc2k"};
    if (!fl_backend_available(gpu)) return;
    timeline *t = open_timeline(gpu, 2048), *ref = open_timeline("reference-w8a8", 2048);
    agreement sum = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) compare_logits(t, ref, names[i], &sum);
    print_agreement("cuda-w8a8 beside reference-w8a8", &sum);
    assert_true((double)sum.equal / (double)sum.rows >= 0.92);
    assert_true(sum.difference_sum / (double)sum.rows <= 0.1);
    timeline_close(t);
    timeline_close(ref);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_backends_agree_within_their_formats),
        cmocka_unit_test(reference_agrees_to_rounding),
        cmocka_unit_test(reference_with_fp8_activations_agrees_mostly),
        cmocka_unit_test(fp8_activations_amplify_rounding),
        cmocka_unit_test(fp8_products_agree_with_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
