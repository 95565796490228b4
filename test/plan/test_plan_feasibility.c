/* Times against roofs done by hand; the case the planner is for: 512K tokens of DeepSeek-V3 on 8 x H20 in 2.6 s. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "plan/advice.h"
#include "plan/planned.h"

enum { N = 524288 };

#define WINDOW "window-anchors:window=16k,stride=4k"

static fl_box box_of(const char *text) {
    fl_machine m;
    assert_int_equal(fl_machine_parse(text, &m), FL_ERR_OK);
    fl_box box = {.gpu = m.kind, .n_gpus = m.n, .efficiency = 1};
    fl_box_set_rates(&box);
    return box;
}

/* On an H20: 296 TFLOP of codes take 1 s, 148 TFLOP of bf16 1 s, 4 TB 1 s; the longer of compute and memory
 * counts. */
static void an_op_by_its_roofs(void **state) {
    (void)state;
    fl_box box = box_of("H20");
    fl_bound bound;
    const fl_cost both = {.flops = 444e12, .fp8_flops = 296e12, .bytes = 4e12};
    assert_near(fl_box_op_time(&box, FL_RATE_matmul, &both, &bound), 2, 1e-12);
    assert_int_equal(bound, FL_BOUND_COMPUTE);
    const fl_cost moved = {.flops = 148e12, .bytes = 12e12};
    assert_near(fl_box_op_time(&box, FL_RATE_matmul, &moved, &bound), 3, 1e-12);
    assert_int_equal(bound, FL_BOUND_MEMORY);
    const fl_cost attention = {.flops = 296e12};
    assert_near(fl_box_op_time(&box, FL_RATE_attn_prefill, &attention, &bound), 2, 1e-12);
    box.fp8_attention = true;
    fl_box_set_rates(&box);
    assert_near(fl_box_op_time(&box, FL_RATE_attn_prefill, &attention, &bound), 1, 1e-12);
    assert_near(fl_box_op_time(&box, FL_RATE_matmul, &attention, &bound), 2, 1e-12);
    box.efficiency = 0.5;
    fl_box_set_rates(&box);
    assert_near(fl_box_op_time(&box, FL_RATE_attn_prefill, &attention, &bound), 2, 1e-12);
    const fl_cost codes = {.flops = 624e12, .fp8_flops = 624e12};
    box = box_of("A100"); /* no units for fp8: 312 TFLOP/s for all */
    assert_near(fl_box_op_time(&box, FL_RATE_matmul, &codes, &bound), 2, 1e-12);
}

/* Stages and the whole are the same sum, op by op; communication is bytes by the link's 450 GB/s. */
static void stages_add_up(void **state) {
    (void)state;
    fl_box box = box_of("8xH200");
    planned p;
    fl_outcome o;
    double time_s = 0, flops = 0;
    planned_open(&(plan_words){"deepseek-v3", "blocks", "int4", false, 0.04, 65536}, &p);
    assert_int_equal(fl_outcome_of_layout(&p.task, &box, FL_LAYOUT_EP, &o), FL_ERR_OK);
    assert_true(o.possible && o.fits);
    for (int32_t i = 0; i < FL_N_STAGES; i++) time_s += o.stages[i].time_s;
    for (int32_t i = 0; i < FL_N_STAGES; i++) flops += o.stages[i].cost.flops;
    assert_near(o.ttft_s, time_s, 1e-12);
    assert_near(flops, o.share.work.total.flops, 1e-9);
    assert_near(o.stages[FL_STAGE_COMM].time_s, fl_share_comm_bytes(&o.share) / 450e9, 1e-12);
    assert_true(o.stages[FL_STAGE_CHOOSING].time_s > 0);
    planned_close(&p);
}

/* Linear layers 37.43 PFLOP at 8 x 296 TFLOP/s: 15.8 s. In 2.6 s at most 16.4% of that. */
static void two_seconds_and_a_half_on_eight_h20(void **state) {
    (void)state;
    fl_box box = box_of("8xH20");
    planned p;
    fl_outcomes all;
    fl_count whole;
    planned_open(&(plan_words){"deepseek-v3", "full", "int4", false, 0, N}, &p);
    assert_int_equal(fl_layout_whole(&p.task, &whole), FL_ERR_OK);
    assert_near(fl_count_linear_flops(&whole), 37.4e15, 0.02);
    assert_near(fl_count_linear_flops(&whole) / fl_box_linear_peak(&box, &p.config), 15.8, 0.02);
    assert_near(fl_count_attention_flops(&whole), 686.8e15, 0.02);
    assert_near(fl_count_attention_flops(&whole) / (8 * 148e12), 580, 0.02);
    assert_int_equal(fl_outcomes_of(&p.task, &box, &all), FL_ERR_OK);
    const fl_outcome *best = fl_outcomes_best(&all);
    assert_true(best->fits && best->ttft_s > 580 && best->largest == FL_STAGE_ATTENTION);
    assert_int_equal(best->stages[best->largest].bound, FL_BOUND_COMPUTE);
    planned_close(&p);
}

/* In 2.6 s: linear layers alone 16.4% of the tokens; kept tokens k that attend one another, 15.8 s k + 580 s k^2 =
 * 2.6 s: 5.5%; with a 16K window behind a cached prefix 2.6 / (15.8 + 36.0) = 5.0%, a hit of 95.0%. */
static void how_many_tokens_are_possible(void **state) {
    (void)state;
    fl_box box = box_of("8xH20");
    planned p;
    fl_ceiling c;
    planned_open(&(plan_words){"deepseek-v3", "full", "int4", false, 0, N}, &p);
    assert_int_equal(fl_ceiling_of(&p.task, &box, 2.6, &c), FL_ERR_OK);
    assert_near(c.linear_share, 0.164, 0.02);
    assert_near((double)c.kept_tokens, 28700, 0.02);
    assert_true((double)c.computed_tokens / N < 0.002); /* behind 512K tokens attended in full */
    planned_close(&p);
    planned_open(&(plan_words){"deepseek-v3", WINDOW, "int4", false, 0, N}, &p);
    assert_int_equal(fl_ceiling_of(&p.task, &box, 2.6, &c), FL_ERR_OK);
    assert_near(1 - (double)c.computed_tokens / N, 0.950, 0.02);
    assert_near((double)c.computed_tokens, 26000,
                0.04); /* kv_b is bf16 here, and makes the window's keys again */
    planned_close(&p);
}

/* bf16: 671e9 parameters are 1.34 TB, eight H20 have 768 GB; no layout fits, sixteen do. */
static void sixteen_bits_do_not_fit(void **state) {
    (void)state;
    fl_box box = box_of("8xH20");
    planned p;
    fl_outcomes all;
    planned_open(&(plan_words){"deepseek-v3", "full", "int4", true, 0, N}, &p);
    assert_int_equal(fl_outcomes_of(&p.task, &box, &all), FL_ERR_OK);
    for (int32_t i = 0; i < all.n; i++) assert_false(all.of[i].fits);
    assert_near((double)all.of[FL_LAYOUT_CP].share.memory.weights, 1.34e12, 0.02);
    box.n_gpus = 16;
    assert_int_equal(fl_outcomes_of(&p.task, &box, &all), FL_ERR_OK);
    assert_true(fl_outcomes_best(&all)->fits);
    planned_close(&p);
}

/* 671 GB and more: over 100 GB a card on 6, over 300 GB on 2, of 96; one copy over all eight fits, and has 6/8 of
 * them. On 2 x 141 GB decode has no room either; Moonlight fits twice. */
static void two_copies_are_refused(void **state) {
    (void)state;
    fl_box box = box_of("8xH20");
    planned p;
    fl_outcomes all;
    fl_pd pd = {.prefill_gpus = 6, .decode_gpus = 2};
    planned_open(&(plan_words){"deepseek-v3", "full", "int4", false, 0, N}, &p);
    assert_int_equal(fl_outcomes_of(&p.task, &box, &all), FL_ERR_OK);
    assert_int_equal(fl_pd_of(&p.task, &box, &all, &pd), FL_ERR_OK);
    assert_false(pd.two_copies_fit);
    assert_false(pd.prefill.fits || pd.decode.fits);
    assert_true((double)pd.prefill.share.memory.weights > 100e9 &&
                (double)pd.decode.share.memory.weights > 300e9);
    assert_true(pd.one_copy_fits);
    assert_near(pd.one_copy_ttft_s, fl_outcomes_best(&all)->ttft_s * 8 / 6, 1e-12);
    assert_near(pd.transfer_bytes, 13304332288.0, 0);
    assert_near(pd.transfer_s, 13304332288.0 / 900e9, 1e-9); /* two links of 450 GB/s */
    box = box_of("8xH200");
    assert_int_equal(fl_outcomes_of(&p.task, &box, &all), FL_ERR_OK);
    assert_int_equal(fl_pd_of(&p.task, &box, &all, &pd), FL_ERR_OK);
    assert_true(!pd.two_copies_fit && !pd.decode.fits);
    planned_close(&p);
    planned_open(&(plan_words){"moonlight-16b-a3b", "full", "int4", false, 0, N}, &p);
    assert_int_equal(fl_outcomes_of(&p.task, &box, &all), FL_ERR_OK);
    assert_int_equal(fl_pd_of(&p.task, &box, &all, &pd), FL_ERR_OK);
    assert_true(pd.two_copies_fit);
    planned_close(&p);
}

static const fl_advice *find(const fl_advice_list *list, fl_change change, bool alone) {
    for (int32_t i = 0; i < list->n; i++)
        if (list->of[i].change == change && (list->of[i].setting == NULL) == alone) return &list->of[i];
    return NULL;
}

/* What is advised does what it says when it is planned again, and a tile of tokens more does not. */
static void advice_holds(void **state) {
    (void)state;
    fl_box box = box_of("8xH20");
    planned full, window;
    fl_advice_list list;
    fl_outcomes all;
    planned_open(&(plan_words){"deepseek-v3", "full", "int4", false, 0, N}, &full);
    planned_open(&(plan_words){"deepseek-v3", WINDOW, "int4", false, 0, N}, &window);
    const fl_variant variants[] = {{WINDOW, "", &window.task, false}, {"fp8", "", &full.task, true}};
    const fl_goal goal = {&full.task, &box, 2.6, variants, 2};
    assert_int_equal(fl_advice_find(&goal, &list), FL_ERR_OK);
    assert_true(list.n >= 6 && list.of[0].change == FL_CHANGE_CACHED && list.of[0].enough);
    for (int32_t i = 1; i < list.n; i++) assert_true(list.of[i - 1].enough >= list.of[i].enough);
    const fl_advice *cached = find(&list, FL_CHANGE_CACHED, false), *keep = find(&list, FL_CHANGE_KEEP, true);
    const fl_advice *gpus = find(&list, FL_CHANGE_GPUS, false),
                    *setting = find(&list, FL_CHANGE_SETTING, false);
    assert_true(cached && cached->enough && cached->share > 0.90 && cached->share < 0.98);
    assert_true(keep && keep->enough && keep->share > 0.04 && keep->share < 0.16);
    assert_true(gpus && gpus->enough && gpus->n_gpus % 8 == 0 && gpus->n_gpus >= 20 * 8);
    assert_true(setting && !setting->enough);
    fl_plan_task part = full.task;
    part.n_tokens = keep->tokens;
    assert_int_equal(fl_outcomes_of(&part, &box, &all), FL_ERR_OK);
    assert_true(fl_outcomes_best(&all)->ttft_s <= 2.6);
    part.n_tokens += 256;
    assert_int_equal(fl_outcomes_of(&part, &box, &all), FL_ERR_OK);
    assert_true(fl_outcomes_best(&all)->ttft_s > 2.6);
    planned_close(&full);
    planned_close(&window);
}

static void several_cpus_have_no_link(void **state) {
    (void)state;
    fl_box box = box_of("2xEPYC-9654");
    planned p;
    fl_outcomes all;
    planned_open(&(plan_words){.shape = "spark-66m", .tokens = 4096}, &p);
    assert_int_equal(fl_outcomes_of(&p.task, &box, &all), FL_ERR_UNSUPPORTED);
    assert_non_null(strstr(fl_err_detail(), "no link"));
    box.n_gpus = 1;
    assert_int_equal(fl_outcomes_of(&p.task, &box, &all), FL_ERR_OK);
    assert_int_equal(all.n, 1);
    planned_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_op_by_its_roofs),
        cmocka_unit_test(stages_add_up),
        cmocka_unit_test(two_seconds_and_a_half_on_eight_h20),
        cmocka_unit_test(how_many_tokens_are_possible),
        cmocka_unit_test(sixteen_bits_do_not_fit),
        cmocka_unit_test(two_copies_are_refused),
        cmocka_unit_test(advice_holds),
        cmocka_unit_test(several_cpus_have_no_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
