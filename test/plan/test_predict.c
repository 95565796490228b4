/* Predicted times against what can be worked out by hand from the dry run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/shapes.h"
#include "plan/memory_plan.h"
#include "plan/predict.h"

typedef struct planned {
    fl_config config;
    fl_backend *be;
    fl_dry_run *dry;
} planned;

static planned open_shape(const char *name) {
    planned p = {0};
    assert_int_equal(fl_shape_find(name, &p.config), FL_ERR_OK);
    assert_int_equal(fl_backend_open("count:reference", 1, &p.be), FL_ERR_OK);
    const fl_kv_shape kv = fl_kv_shape_of_config(&p.config, FL_KV_BF16);
    assert_int_equal(fl_dry_run_open(&p.config, p.be, &kv, NULL, &p.dry), FL_ERR_OK);
    return p;
}

static void close_shape(planned *p) {
    fl_dry_run_close(p->dry);
    fl_backend_close(p->be);
}

static void near(double found, double expected) {
    if (!(fabs(found - expected) <= 1e-9 * fabs(expected)))
        fail_msg("expected %.12g, found %.12g", expected, found);
}

/* A second a call and nothing else: as many seconds as calls. Of spark-66m:2, a dense and a routed layer, the calls
 * that can be counted without reading the model: one embedding; KV written and attention once a layer; experts
 * multiplied twice (up with gate, down) for each routing. */
static void every_call_counts_once(void **state) {
    (void)state;
    planned p = open_shape("spark-66m:2");
    fl_rates rates = {.measured = true};
    fl_prediction found;
    double calls = 0;
    for (int i = 0; i < FL_RATE_step; i++) rates.of[i].call_s = 1;
    const fl_dry_rows rows = {.document_rows = 256, .n_logits = 1};
    assert_int_equal(fl_predict_step(p.dry, &rates, &rows, &found), FL_ERR_OK);
    for (int i = 0; i < FL_RATE_step; i++) calls += found.calls[i];
    near(found.time_s, calls);
    assert_true(found.calls[FL_RATE_embed] == 1 && found.calls[FL_RATE_moe_route] == 1);
    assert_true(found.calls[FL_RATE_kv_write] == 2 && found.calls[FL_RATE_attn_prefill] == 2);
    assert_true(found.calls[FL_RATE_matmul_experts] == 2 * found.calls[FL_RATE_moe_route]);
    assert_true(found.calls[FL_RATE_step] == 1 && found.steps == 1);
    close_shape(&p);
}

/* At 1 TFLOP/s and bytes for nothing the time is FLOPs / 1e12, of a step and of a prompt. */
static void time_is_work_over_rate(void **state) {
    (void)state;
    planned p = open_shape("spark-66m");
    fl_rates rates = {.measured = true};
    fl_prediction found;
    fl_count count;
    for (int i = 0; i < FL_RATE_step; i++) rates.of[i].flop_s = rates.of[i].fp8_flop_s = 1e-12;
    const fl_dry_prompt prompt = {.document_end = 9984, .n_tokens = 10000, .span_tokens = 4096};
    assert_int_equal(fl_predict_prompt(p.dry, &rates, &prompt, NULL, &found), FL_ERR_OK);
    assert_int_equal(fl_dry_run_prompt(p.dry, &prompt, &count), FL_ERR_OK);
    /* Attention counts the tiles of 64 keys by 64 rows along the diagonal whole: of 9,984 rows that see p + 1 keys
     * each, 156 x 157 / 2 tiles in place of 9,984 x 9,985 / 2 pairs. */
    double tiles = 156. * 157 / 2 * 64 * 64, seen = 9984. * 9985 / 2;
    double attention = count.attn_prefill.flops * tiles / seen;
    near(found.time_s, (count.total.flops - count.attn_prefill.flops + attention) / 1e12);
    assert_int_equal(found.steps, 3); /* 4,096, 4,096, 1,792 + 16 rows */
    near(found.rate_s[FL_RATE_attn_prefill], attention / 1e12);
    /* Host time: 1 ms a step, 1 us a row. */
    rates.of[FL_RATE_step] = (fl_rate){.call_s = 1e-3, .flop_s = 1e-6};
    fl_prediction more;
    assert_int_equal(fl_predict_prompt(p.dry, &rates, &prompt, NULL, &more), FL_ERR_OK);
    near(more.time_s, found.time_s + 3 * 1e-3 + 10000 * 1e-6);
    rates.of[FL_RATE_request] = (fl_rate){.call_s = 5, .flop_s = 1e-4}; /* of the prompt, not of its steps */
    assert_int_equal(fl_predict_prompt(p.dry, &rates, &prompt, NULL, &more), FL_ERR_OK);
    near(more.time_s, found.time_s + 3 * 1e-3 + 10000 * 1e-6 + 5 + 10000 * 1e-4);
    /* Six requests that decode beside it: 18 rows more in three steps. */
    const fl_predict_load load = {.decode_rows = 6, .decode_pos = 1000};
    fl_prediction loaded;
    assert_int_equal(fl_predict_prompt(p.dry, &rates, &prompt, &load, &loaded), FL_ERR_OK);
    near(loaded.rate_s[FL_RATE_step], 3 * 1e-3 + 10018 * 1e-6);
    assert_true(loaded.time_s > more.time_s && loaded.scratch_bytes >= more.scratch_bytes);
    /* Each of 18 rows attends 1,001 keys in each layer: 2 heads (2 latent + rope) FLOPs a key. */
    const fl_config *c = &p.config;
    double pairs = 18. * 1001 * c->layers,
           a_pair = 2. * c->heads * (2. * c->kv_lora_rank + c->qk_rope_head_dim);
    near(loaded.ops.attn_absorbed.flops - more.ops.attn_absorbed.flops, pairs * a_pair);
    close_shape(&p);
}

/* A second a call on the device. A host that hands out a call in 3 s makes three times as long of it; one that needs
 * half a second is never waited for. */
static void a_slow_host_holds_its_device_up(void **state) {
    (void)state;
    planned p = open_shape("spark-66m:1");
    fl_rates rates = {.measured = true};
    fl_prediction alone, slow, quick;
    const fl_dry_rows rows = {.document_rows = 256, .n_logits = 1};
    for (int i = 0; i < FL_RATE_step; i++) rates.of[i].call_s = 1;
    assert_int_equal(fl_predict_step(p.dry, &rates, &rows, &alone), FL_ERR_OK);
    rates.of[FL_RATE_issue].flop_s = 3;
    assert_int_equal(fl_predict_step(p.dry, &rates, &rows, &slow), FL_ERR_OK);
    rates.of[FL_RATE_issue].flop_s = 0.5;
    assert_int_equal(fl_predict_step(p.dry, &rates, &rows, &quick), FL_ERR_OK);
    near(slow.time_s, 3 * alone.time_s);
    near(slow.rate_s[FL_RATE_issue], 2 * alone.time_s);
    near(quick.time_s, alone.time_s);
    /* A recording is not issued, behind a cached part and beside answers neither; a longer piece is none. */
    const fl_dry_rows late = {.document_rows = 256, .document_pos = 256, .decode_rows = 3, .n_logits = 4},
                      longer = {.document_rows = 2 * FL_GRAPH_DOCUMENT_ROWS_MAX, .n_logits = 1};
    rates.of[FL_RATE_issue].flop_s = 3;
    rates.recorded = true;
    assert_int_equal(fl_predict_step(p.dry, &rates, &rows, &quick), FL_ERR_OK);
    near(quick.time_s, alone.time_s);
    assert_int_equal(fl_predict_step(p.dry, &rates, &late, &quick), FL_ERR_OK);
    near(quick.rate_s[FL_RATE_issue], 0);
    assert_int_equal(fl_predict_step(p.dry, &rates, &longer, &slow), FL_ERR_OK);
    near(slow.rate_s[FL_RATE_issue], slow.time_s * 2 / 3);
    close_shape(&p);
}

/* 1,088 rows are recorded as 1,280, and a recording's calls have all of its time. */
static void a_recording_has_the_rows_of_its_bucket(void **state) {
    (void)state;
    planned p = open_shape("spark-66m:1");
    fl_rates rates = {.measured = true};
    fl_prediction asked, bucket, found;
    const fl_dry_rows rows = {.document_rows = 1088, .n_logits = 1},
                      more = {.document_rows = 1280, .n_logits = 1};
    for (int i = 0; i < FL_RATE_step; i++) rates.of[i].flop_s = rates.of[i].fp8_flop_s = 1e-12;
    assert_int_equal(fl_predict_step(p.dry, &rates, &rows, &asked), FL_ERR_OK);
    assert_int_equal(fl_predict_step(p.dry, &rates, &more, &bucket), FL_ERR_OK);
    assert_true(bucket.time_s > 1.1 * asked.time_s);
    rates.of[FL_RATE_step].call_s = 1;
    rates.recorded = true;
    assert_int_equal(fl_predict_step(p.dry, &rates, &rows, &found), FL_ERR_OK);
    near(found.time_s, bucket.time_s);
    close_shape(&p);
}

static void too_many_decode_rows_are_refused(void **state) {
    (void)state;
    planned p = open_shape("spark-66m:1");
    fl_rates rates = {.measured = true};
    fl_prediction found;
    const fl_dry_rows rows = {.decode_rows = FL_DECODE_ROWS_MAX + 1, .decode_pos = 100};
    assert_int_equal(fl_predict_step(p.dry, &rates, &rows, &found), FL_ERR_INVALID);
    close_shape(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_counts_once),
        cmocka_unit_test(time_is_work_over_rate),
        cmocka_unit_test(a_slow_host_holds_its_device_up),
        cmocka_unit_test(a_recording_has_the_rows_of_its_bucket),
        cmocka_unit_test(too_many_decode_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
