/* The ladder, the frontier and measured plans from outside, at sizes that take seconds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "support/command.h"
#include "support/folder.h"

enum { TEXT_BYTES = 1 << 18, COMMAND_BYTES = 1024 };

/* Standard output, with standard error behind it where the exit code is not 0, and that code. */
static int run(const char *arguments, char *text) {
    char command[COMMAND_BYTES];
    snprintf(command, sizeof command, "cd %s && %s %s 2>err || { cat err; false; }", folder, FL_CLI,
             arguments);
    return run_command(command, text, TEXT_BYTES);
}

static json_t *run_json(const char *arguments) {
    static char text[TEXT_BYTES];
    if (run(arguments, text) != 0) fail_msg("%s", text);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(json)) fail_msg("no JSON: %s", text);
    return json;
}

/* Blocks of 64 that a head's lists hold in `tiles` tiles from position 0 on, of those they see: 64 sinks, a window of
 * 512, the tile's own, and `share` of the blocks that have begun. */
static double listed_share(double share, int32_t tiles) {
    int64_t listed = 0, visible = 0;
    for (int32_t pos = 0; pos < 128 * tiles; pos += 128) {
        int32_t begun = pos / 64 + 2, quota = (int32_t)ceil(share * begun), free_blocks = 0;
        for (int32_t j = 0; j < begun; j++)
            free_blocks += j > 0 && pos - (64 * j + 63) >= 512; /* a block of the window ends nearer */
        listed += begun - free_blocks + (quota < free_blocks ? quota : free_blocks);
        visible += begun;
    }
    return (double)listed / (double)visible;
}

static void near(double is, double expected, double most) {
    if (!(fabs(is - expected) <= most)) fail_msg("%.9g, expected %.9g", is, expected);
}

static void expect_refusal(const char *arguments, const char *words) {
    static char text[TEXT_BYTES];
    assert_int_not_equal(run(arguments, text), 0);
    if (!strstr(text, words)) fail_msg("expected '%s' in: %s", words, text);
}

#define SMALL "--synthetic spark-66m:2 --runs 1 -q"

/* Every rate above 0 and finite is all that a test can say of a shared machine; the sums must agree. */
static void a_plan_is_measured(void **state) {
    (void)state;
    json_t *json = run_json("plan --shape spark-66m:2 --measure --context 2k --rates rates.json --json");
    const json_t *rates = json_object_get(json, "rates");
    double sum_s = 0;
    const char *name;
    json_t *rate;
    json_object_foreach((json_t *)(uintptr_t)rates, name, rate) sum_s += number_of(rate, "prompt_s");
    assert_true(sum_s > 0.999 * number_of(json, "ttft_s") && sum_s < 1.001 * number_of(json, "ttft_s"));
    static const char *const made[] = {"matmul",      "matmul_experts", "attn_prefill", "attn_window",
                                       "attn_listed", "attn_means",     "attn_anchors", "attn_absorbed",
                                       "kv_write",    "kv_write_int4",  "kv_write_fp8", "step"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        const json_t *r = json_object_get(rates, made[i]);
        if (!(number_of(r, "samples") > 0)) fail_msg("%s was not measured", made[i]);
        assert_true(number_of(r, "call_s") + number_of(r, "flop_s") + number_of(r, "byte_s") > 0);
    }
    assert_true(number_of(json, "weights_bytes") > 0 &&
                number_of(json, "peak_bytes") > number_of(json, "kv_bytes"));
    json_decref(json);
    expect_refusal("plan --shape spark-66m --measure --gpus 8xH20", "leave --gpus out");
}

/* After a_plan_is_measured, whose rates it takes. */
static void a_prefill_is_predicted(void **state) {
    (void)state;
    json_t *json =
        run_json("bench prefill " SMALL " --tokens 512 --also window-anchors --rates rates.json --json");
    const json_t *rows = json_object_get(json, "rows"), *row;
    size_t i;
    assert_int_equal(json_array_size(rows), 2);
    json_array_foreach(rows, i, row) {
        assert_true(number_of(row, "predicted_s") > 0 &&
                    number_of(row, "used_bytes") <= number_of(row, "plan_bytes"));
    }
    json_decref(json);
    text_write("broken.json", "{\"format\": 1}");
    expect_refusal("bench prefill " SMALL " --tokens 512 --rates broken.json", "broken.json");
}

static void a_ladder_of_random_weights_claims_no_loss(void **state) {
    (void)state;
    text_write("peer.json",
               "{\"peer\": \"a faster one\", \"ops\": [{\"op\": \"matmul\", \"flops_per_s\": 1e18}]}");
    json_t *json =
        run_json("bench ladder " SMALL " --tokens 1k --also blocks --density 50% --streams 2 "
                 "--stream-tokens 128 --rates rates.json --peer peer.json --svg ladder.svg --json");
    const json_t *rows = json_object_get(json, "rows"), *row;
    size_t i;
    assert_int_equal(json_array_size(rows), 6); /* full, int4, blocks, window-anchors, scheduling, reuse */
    json_array_foreach(rows, i, row) {
        assert_true(number_of(row, "ttft_s") > 0 && number_of(row, "predicted_s") > 0);
        assert_true(json_is_null(json_object_get(row, "loss_points")));
        assert_true(number_of(row, "used_bytes") <= number_of(row, "plan_bytes"));
        bool reuse = json_is_true(json_object_get(row, "reuse"));
        if (reuse) assert_true(number_of(row, "cached_tokens") >= 768);
        else assert_true(number_of(row, "loaded_ttft_s") > 0 && number_of(row, "decode_token_s") > 0);
    }
    row = json_array_get(rows, 0);
    assert_true(number_of(row, "corrected_ttft_s") > 0 &&
                number_of(row, "corrected_ttft_s") < number_of(row, "ttft_s"));
    /* total of the last cold row, the fifth, against the corrected first */
    double total = number_of(row, "corrected_ttft_s") / number_of(json_array_get(rows, 4), "ttft_s");
    assert_true(number_of(json, "ladder_total") > 0.999 * total &&
                number_of(json, "ladder_total") < 1.001 * total);
    assert_non_null(strstr(json_string_value(json_object_get(json, "loss_source")), "not measured"));
    json_decref(json);
    char *svg = text_read("ladder.svg");
    assert_non_null(strstr(svg, "</svg>"));
    assert_non_null(strstr(svg, "prefix reuse"));
    free(svg);
}

static void a_ladder_of_a_model_needs_its_loss(void **state) {
    (void)state;
    char arguments[512];
    snprintf(arguments, sizeof arguments, "bench ladder %s --tokens 2k", FL_MODEL);
    expect_refusal(arguments, "--eval-n");
    /* An evaluation of another length is none. */
    text_write("loss.json",
               "{\"variants\": [{\"spec\": \"kv=int4\", \"policy\": \"full\", \"kv_dtype\": \"int4\", "
               "\"by_length\": {\"4096\": {\"loss_points\": 0}}}]}");
    snprintf(arguments, sizeof arguments,
             "bench ladder %s --tokens 2k --runs 1 --streams 0 -q --loss loss.json --rates rates.json",
             FL_MODEL);
    expect_refusal(arguments, "--lengths 2048 --variant 'policy=full kv=int4'");
}

static void a_frontier_is_drawn(void **state) {
    (void)state;
    json_t *json = run_json("bench frontier " SMALL
                            " --tokens 512,256 --answer-tokens 4 --csv f.csv --svg f.svg --json");
    const json_t *rows = json_object_get(json, "rows");
    assert_int_equal(json_array_size(rows), 2);
    assert_true(number_of(json_array_get(rows, 0), "tokens") == 256); /* in order */
    assert_true(number_of(json_array_get(rows, 1), "decode_token_s") > 0);
    json_decref(json);
    char *csv = text_read("f.csv"), *svg = text_read("f.svg");
    assert_ptr_equal(strstr(csv, "tokens,ttft_s,prefill_tokens_per_s,decode_ms_per_token"), csv);
    assert_non_null(strstr(csv, "\n512,"));
    assert_non_null(strstr(svg, "polyline"));
    free(csv);
    free(svg);
}

/* Two layers of 8 heads onto two layers of 8 heads: each lists what the file says, and with --density as much less as
 * makes that the mean. */
static void densities_are_imposed_by_layer_and_head(void **state) {
    static const double given[2][8] = {{0.1, 0.2, 0.05, 0.4, 1, 0.01, 0.1, 0.14},
                                       {0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3}};
    char text[512];
    int n = snprintf(text, sizeof text, "{\"layers\": 2, \"heads\": 8, \"density_by_head\": [");
    for (int32_t i = 0; i < 16; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%g%s", i % 8 ? ", " : "[", given[i / 8][i % 8],
                      i == 7    ? "], "
                      : i == 15 ? "]]}"
                                : "");
    (void)state;
    text_write("density.json", text);
    json_t *o =
        run_json("bench prefill " SMALL " --tokens 2k --policy blocks --density-from density.json --json");
    const json_t *by_head = json_object_get(o, "density_by_head");
    for (size_t i = 0; i < 16; i++) {
        double is = json_number_value(json_array_get(json_array_get(by_head, i / 8), i % 8));
        near(is, listed_share((float)given[i / 8][i % 8], 16), 1e-6);
    }
    near(number_of(json_object_get(o, "density_asked"), "mean"), 0.275, 1e-6);
    json_decref(o);
    o = run_json("bench prefill " SMALL
                 " --tokens 2k --policy blocks --density-from density.json --density 5% --json");
    const json_t *asked = json_object_get(o, "density_asked"), *listed = json_object_get(o, "density_listed");
    near(number_of(asked, "mean"), 0.05, 0.0005);
    near(number_of(asked, "most"), 0.05 / 0.275, 1e-5);
    const double block = 1.0 / 272 + 1e-6; /* in all tiles: the factor is rounded */
    near(number_of(listed, "most"), listed_share(0.05 / 0.275, 16), block);
    near(number_of(listed, "least"), listed_share(0.01 * 0.05 / 0.275, 16), block);
    json_decref(o);
    expect_refusal("bench prefill " SMALL " --tokens 512 --density-from density.json", "--density-from");
    expect_refusal("bench prefill " SMALL " --tokens 512 --policy blocks --density-from none.json",
                   "none.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_is_measured),
        cmocka_unit_test(a_prefill_is_predicted),
        cmocka_unit_test(a_ladder_of_random_weights_claims_no_loss),
        cmocka_unit_test(a_ladder_of_a_model_needs_its_loss),
        cmocka_unit_test(a_frontier_is_drawn),
        cmocka_unit_test(densities_are_imposed_by_layer_and_head),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
