/* What falls to one GPU, against sums done by hand, and against the plain dry run where both can say it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "plan/memory_plan.h"
#include "plan/planned.h"

enum { N = 524288 };

static fl_share share_of(const plan_words *words, fl_layout layout, int32_t n_gpus, int32_t span) {
    planned p;
    fl_layout_run *run;
    fl_share share;
    planned_open(words, &p);
    if (fl_layout_open(&p.task, layout, n_gpus, &run) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    if (fl_layout_share(run, span, &share) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    fl_layout_close(run);
    planned_close(&p);
    return share;
}

/* Layers behind the dense ones are taken to be alike: the sum over three and one, times what is left, is the sum over
 * all. */
static void layers_alike(void **state) {
    (void)state;
    const char *const policies[] = {"full", "window-anchors", "blocks"};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        const plan_words words = {"deepseek-v3:9", policies[i], "int4", false, 0.1, 40000};
        fl_share share = share_of(&words, FL_LAYOUT_TP, 1, 16384);
        planned p;
        fl_dry_run *dry;
        fl_count all;
        planned_open(&words, &p);
        assert_int_equal(fl_dry_run_open(&p.config, p.like, &p.task.kv, &p.attend, &dry), FL_ERR_OK);
        const fl_dry_prompt prompt = {.document_end = 39936, .n_tokens = 40000, .span_tokens = 16384};
        assert_int_equal(fl_dry_run_prompt(dry, &prompt, &all), FL_ERR_OK);
        assert_near(share.work.total.flops, all.total.flops, 1e-9);
        assert_near(share.work.total.bytes, all.total.bytes, 1e-9);
        assert_near(share.work.matmul.fp8_flops, all.matmul.fp8_flops, 1e-9);
        assert_int_equal(share.memory.weights, fl_dry_run_weights_bytes(dry));
        fl_memory_plan plan;
        const fl_memory_sizes sizes = {
            .ctx_tokens = 40000, .kv_tokens = 40000, .span_tokens = 16384, .kv = p.task.kv};
        assert_int_equal(fl_memory_plan_make(dry, &p.config, &sizes, &plan), FL_ERR_OK);
        assert_int_equal(share.memory.total, plan.total_bytes);
        fl_dry_run_close(dry);
        planned_close(&p);
    }
}

/* An eighth: tp cuts all but q_a, kv_a (15,138,816 multiply-adds a token and layer) and the router (1,835,008 in
 * 58 layers). Of 35,697,917,952: 61 x 15,138,816 + 58 x 1,835,008 = 1,029,898,240 on every GPU, an eighth of the
 * rest 34,668,019,712 = 4,333,502,464: 5,363,400,704. Attention is an eighth of all heads' work. */
static void tensor_parallel(void **state) {
    (void)state;
    const plan_words words = {"deepseek-v3", "full", "int4", false, 0, N};
    fl_share share = share_of(&words, FL_LAYOUT_TP, 8, N);
    assert_near(fl_count_linear_flops(&share.work), 2.0 * 5363400704.0 * N, 1e-6);
    assert_near(fl_count_attention_flops(&share.work), 81920.0 * 61 * 137439215616.0 / 8, 1e-5);
    assert_int_equal(share.memory.kv, INT64_C(13304332288)); /* whole: the latent is one for all heads */
    /* Two sums a layer of [N][7168] bf16, each received as 7/8 twice: 4 x 7/8 x 524,288 x 14,336 x 61 = 1.605 TB. */
    assert_near(share.reduce_bytes, 1.6047e12, 1e-3);
    assert_near(fl_share_comm_bytes(&share), share.reduce_bytes, 0);
    share = share_of(&words, FL_LAYOUT_SP, 8, N / 2);
    assert_int_equal(share.memory.kv, INT64_C(13304332288) / 8);
    /* Of two steps the second gathers 7/8 of the first one's keys: 262,144 x 7/8 x 416 B x 61 = 5.821 GB. */
    assert_near(share.gather_bytes, 262144.0 * 7 / 8 * 416 * 61, 1e-9);
}

/* Pieces 0 and 15 of 16 for the first GPU, 7 and 8 for the last: as many pairs, N (N + 1) / 2 / 8. Keys are made
 * again on each: the first GPU makes those of piece 0 and all of them, 17/16 N; without kv_b an eighth of the
 * linear work. */
static void context_parallel(void **state) {
    (void)state;
    const plan_words words = {"deepseek-v3", "full", "bf16", false, 0, N};
    fl_share share = share_of(&words, FL_LAYOUT_CP, 8, N / 8);
    assert_int_equal(share.n_steps, 1);
    assert_near(fl_count_attention_flops(&share.work), 81920.0 * 61 * 137439215616.0 / 8, 1e-4);
    double kv_b = 2.0 * 61 * 16777216.0 * N, all = 2.0 * 35697917952.0 * N;
    assert_near(fl_count_linear_flops(&share.work), (all - kv_b) / 8 + kv_b * 17 / 16, 1e-5);
    /* 7/8 of 604 MB a layer: 528 MB, 61 of them 32.24 GB. */
    assert_near(share.gather_bytes, 524288.0 * 7 / 8 * 1152 * 61, 1e-9);
    assert_near(share.gather_bytes / 61, 528e6, 2e-3);
    assert_int_equal(share.memory.kv, INT64_C(36842766336) / 8);
}

/* Rows of 7168 codes and 56 scales of 4 bytes: 7,392 B to 4 x 7/8 = 3.5 other GPUs for each of 65,536 rows: 1.696
 * GB a layer; 14,336 B back: 3.288 GB. An eighth of 58 x 256 experts stays: 58 x 32 x 44,040,192 codes = 81.7 GB. */
static void expert_parallel(void **state) {
    (void)state;
    const plan_words words = {"deepseek-v3", "full", "bf16", false, 0, N};
    fl_share ep = share_of(&words, FL_LAYOUT_EP, 8, N / 8), cp = share_of(&words, FL_LAYOUT_CP, 8, N / 8);
    assert_near(ep.expert_bytes, (65536 * 3.5 * 7392 + 65536 * 3.5 * 14336) * 58, 1e-9);
    assert_near(65536 * 3.5 * 7392, 1.70e9, 5e-3);
    assert_near(ep.work.total.flops, cp.work.total.flops, 1e-12);
    assert_near((double)(cp.memory.weights - ep.memory.weights), 58 * 224 * 44040192.0, 1e-3);
    /* An eighth of the experts' codes are read in a step: 58 x 224 x 44 MB fewer. */
    assert_near(cp.work.matmul.bytes - ep.work.matmul.bytes, 58 * 224 * 44040192.0, 1e-3);
}

/* Chosen by groups: 4 groups of 8 lie on 4 of 8 GPUs, on 8 of 16, and 8 experts never on more than 8. Without
 * groups 6 of 64 experts go to 8 (1 - (7/8)^6) = 4.41 of 8 GPUs. */
static void destinations(void **state) {
    (void)state;
    planned v3, moonlight;
    planned_open(&(plan_words){.shape = "deepseek-v3", .tokens = N}, &v3);
    planned_open(&(plan_words){.shape = "moonlight-16b-a3b", .tokens = N}, &moonlight);
    assert_near(fl_layout_destinations(&v3.config, 8), 4, 0);
    assert_near(fl_layout_destinations(&v3.config, 2), 2, 0);
    assert_near(fl_layout_destinations(&v3.config, 16), 8, 0);
    assert_near(fl_layout_destinations(&v3.config, 64), 8, 0);
    assert_near(fl_layout_destinations(&moonlight.config, 8), 4.4097, 1e-4);
    planned_close(&v3);
    planned_close(&moonlight);
}

/* A window of 16,384 at position 65,536, 131,072 rows on 4 GPUs: pieces of 16,384. 16,383 keys before the first
 * and as many before the last piece (at 180,224), 44 anchors of 4096 before it. Full: 3/4 of 196,608. Blocks may
 * be any: the same. */
static void remote_keys(void **state) {
    (void)state;
    fl_policy policy;
    assert_int_equal(fl_policy_parse("window-anchors:window=16k,stride=4k", N, &policy), FL_ERR_OK);
    fl_attend windows = fl_policy_attend(&policy), full = {0}, blocks = {.blocks = true};
    assert_near(fl_layout_remote_keys(&windows, 65536, 131072, 4), 2 * 16383 + 44, 0);
    assert_near(fl_layout_remote_keys(&full, 65536, 131072, 4), 147456, 0);
    assert_near(fl_layout_remote_keys(&blocks, 65536, 131072, 4), 147456, 0);
    assert_near(fl_layout_remote_keys(&full, 65536, 131072, 1), 0, 0);
}

/* Room for one id more in each list of 128 heads and span / 128 tiles is 2 bytes each: what is called lists is
 * what the arena grows by. */
static void lists_are_what_the_arena_grows_by(void **state) {
    (void)state;
    const plan_words words = {"deepseek-v3", "blocks:capacity=2048", "bf16", false, 0.1, N};
    planned p;
    fl_layout_run *run;
    fl_share_memory few, more;
    planned_open(&words, &p);
    assert_int_equal(fl_layout_open(&p.task, FL_LAYOUT_TP, 1, &run), FL_ERR_OK);
    assert_int_equal(fl_layout_memory(run, 16384, &few), FL_ERR_OK);
    assert_near((double)few.lists, 128.0 * 128 * (2048 * 2 + 4), 0);
    p.attend.list_capacity += 32;
    assert_int_equal(fl_layout_memory(run, 16384, &more), FL_ERR_OK);
    assert_int_equal(more.lists - few.lists, 128 * 128 * 64);
    assert_int_equal(more.total - few.total, 128 * 128 * 64);
    fl_layout_close(run);
    planned_close(&p);
}

/* The longest span that fits; with no room at all the shortest. Longer steps do less work: fewer keys are made
 * again. */
static void spans(void **state) {
    (void)state;
    planned p;
    fl_layout_run *run;
    fl_share_memory m;
    fl_share slow, quick;
    int32_t span;
    planned_open(&(plan_words){"deepseek-v3", "full", "int4", false, 0, N}, &p);
    assert_int_equal(fl_layout_open(&p.task, FL_LAYOUT_SP, 8, &run), FL_ERR_OK);
    assert_int_equal(fl_layout_span(run, INT64_C(96000000000), 0, &span), FL_ERR_OK);
    assert_int_equal(fl_layout_memory(run, span, &m), FL_ERR_OK);
    assert_true(m.total <= INT64_C(96000000000) && span % 128 == 0);
    assert_int_equal(fl_layout_memory(run, 2 * span, &m), FL_ERR_OK);
    assert_true(m.total > INT64_C(96000000000));
    assert_int_equal(fl_layout_share(run, span, &slow), FL_ERR_OK);
    assert_int_equal(fl_layout_share(run, 2 * span, &quick), FL_ERR_OK);
    assert_true(quick.work.matmul.flops < slow.work.matmul.flops);
    assert_int_equal(fl_layout_span(run, 1, 0, &span), FL_ERR_OK);
    assert_int_equal(span, 1024);
    assert_int_equal(fl_layout_span(run, INT64_MAX, 4096, &span), FL_ERR_OK);
    assert_int_equal(span, 4096);
    fl_layout_close(run);
    planned_close(&p);
}

static void refuses(fl_layout layout, int32_t n_gpus, const char *shape, fl_err err, const char *says) {
    planned p;
    fl_layout_run *run = NULL;
    planned_open(&(plan_words){.shape = shape, .tokens = 4096}, &p);
    if (*says == '4') p.task.cached_tokens = 4096;
    assert_int_equal(fl_layout_open(&p.task, layout, n_gpus, &run), err);
    if (!strstr(fl_err_detail(), says)) fail_msg("'%s' does not say '%s'", fl_err_detail(), says);
    planned_close(&p);
}

static void what_cannot_be_cut(void **state) {
    (void)state;
    refuses(FL_LAYOUT_TP, 7, "deepseek-v3", FL_ERR_UNSUPPORTED, "128 heads cannot be cut over 7");
    refuses(FL_LAYOUT_SP, 32, "deepseek-v3", FL_ERR_UNSUPPORTED, "columns of the dense feed-forward");
    refuses(FL_LAYOUT_TP, 8, "moonlight-16b-a3b-fp8", FL_ERR_UNSUPPORTED, "1408 columns of an expert");
    refuses(FL_LAYOUT_EP, 8, "deepseek-v3:2", FL_ERR_UNSUPPORTED, "no experts");
    refuses(FL_LAYOUT_CP, 8, "deepseek-v3", FL_ERR_INVALID, "4096 of 4096 tokens are cached");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_alike),
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(context_parallel),
        cmocka_unit_test(expert_parallel),
        cmocka_unit_test(destinations),
        cmocka_unit_test(remote_keys),
        cmocka_unit_test(lists_are_what_the_arena_grows_by),
        cmocka_unit_test(spans),
        cmocka_unit_test(what_cannot_be_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
