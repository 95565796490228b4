/* The verb from outside: its JSON has what scripts rely on, the page is whole, what it cannot do it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "support/command.h"

enum { TEXT_BYTES = 1 << 18, COMMAND_BYTES = 512 };

/* Standard output, standard error behind it, and the exit code of `firstlight plan` with arguments. */
static int run(const char *arguments, char *text) {
    char command[COMMAND_BYTES];
    snprintf(command, sizeof command, "%s plan %s 2>&1", FL_CLI, arguments);
    return run_command(command, text, TEXT_BYTES);
}

static json_t *run_json(const char *arguments) {
    static char text[TEXT_BYTES];
    assert_int_equal(run(arguments, text), 0);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(json)) fail_msg("no JSON: %s", text);
    return json;
}

static void near(double a, double b, double share) {
    if (!(a >= b * (1 - share) && a <= b * (1 + share))) fail_msg("%g is not within %g of %g", a, share, b);
}

/* The prompt, the box and the target that the planner is for. */
static void an_impossible_target(void **state) {
    (void)state;
    json_t *json = run_json("--shape deepseek-v3 --gpus 8xH20 --context 512k --kv int4 --ttft 2.6s --json");
    assert_true(json_is_false(json_object_get(json, "feasible")) &&
                json_is_true(json_object_get(json, "fits")));
    near(number_of(json, "linear_flops"), 37.4e15, 0.02);
    near(number_of(json, "linear_floor_s"), 15.8, 0.02);
    near(number_of(json, "attention_flops"), 687e15, 0.02);
    near(number_of(json, "kv_bytes"), 13.3e9, 0.02);
    assert_true(number_of(json, "weights_bytes") > 671e9 && number_of(json, "peak_bytes") < 96e9);
    assert_true(number_of(json, "ttft_s") > 580 && number_of(json, "comm_bytes") > 0);
    assert_string_equal(json_string_value(json_object_get(json, "bound")), "compute");
    assert_non_null(strstr(json_string_value(json_object_get(json, "kind")), "projection"));
    const json_t *advice = json_object_get(json, "advice"), *first = json_array_get(advice, 0);
    assert_true(json_array_size(advice) >= 5 && json_is_true(json_object_get(first, "enough")));
    assert_string_equal(json_string_value(json_object_get(first, "change")), "cached");
    assert_true(number_of(first, "share") > 0.9 && number_of(first, "ttft_s") <= 2.6);
    assert_int_equal(json_array_size(json_object_get(json, "layouts")), 4);
    json_decref(json);
}

static void the_bundled_model(void **state) {
    (void)state;
    json_t *json = run_json("build/models/spark-66m --gpus EPYC-9654 --context 32k --json");
    assert_true(json_is_true(json_object_get(json, "feasible")));
    assert_int_equal(json_array_size(json_object_get(json, "advice")), 0);
    near(number_of(json, "kv_bytes"), 32768.0 * 8 * (128 + 32) * 2, 0);
    json_decref(json);
}

static void densities_say_where_they_come_from(void **state) {
    (void)state;
    const struct {
        const char *arguments, *from;
        double density;
    } cases[] = {{"--shape deepseek-v3 --gpus 8xH200 --context 512k --policy blocks --density 2% --json",
                  "imposed", 0.02},
                 {"--shape deepseek-v3 --gpus 8xH200 --context 512k --policy blocks --json",
                  "as much as lists can hold", 0.25},
                 {"--shape deepseek-v3 --gpus 8xH200 --context 512k --policy blocks:capacity=1024 --json",
                  "as much", 0.125}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *json = run_json(cases[i].arguments);
        near(number_of(json, "density"), cases[i].density, 1e-7); /* heads' shares are f32 */
        assert_non_null(strstr(json_string_value(json_object_get(json, "density_from")), cases[i].from));
        json_decref(json);
    }
}

static void two_copies_are_refused_with_the_sums(void **state) {
    (void)state;
    static char text[TEXT_BYTES];
    assert_int_equal(
        run("--shape deepseek-v3 --gpus 8xH20 --context 512k --kv int4 --prefill-gpus 6 --decode-gpus 2",
            text),
        0);
    assert_non_null(strstr(text, "refused: prefill on 6: 1"));
    assert_non_null(strstr(text, "a GPU has 96.0 GB"));
    assert_non_null(strstr(text, "projection"));
}

static void the_page_is_whole(void **state) {
    (void)state;
    static char text[TEXT_BYTES], arguments[COMMAND_BYTES];
    char path[] = "/tmp/fl_plan_XXXXXX";
    close(mkstemp(path));
    snprintf(arguments, sizeof arguments,
             "--shape deepseek-v3:8 --gpus 2xH200 --context 64k --ttft 10ms --html %s --json", path);
    json_decref(run_json(arguments));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, TEXT_BYTES - 1, file)] = '\0';
    fclose(file);
    unlink(path);
    assert_true(strncmp(text, "<!doctype html>", 15) == 0 && strstr(text, "</html>"));
    assert_true(strstr(text, "<svg") && strstr(text, "asked for: 10.0 ms") && strstr(text, "projection"));
    assert_null(strstr(text, "http")); /* nothing from elsewhere */
    assert_null(strstr(text, "nan"));
}

static void bad_input_is_told(void **state) {
    (void)state;
    static char text[TEXT_BYTES];
    const struct {
        const char *arguments, *says;
        int code;
    } cases[] = {
        {"--gpus H20", "plan MODEL, or plan --shape NAME", 2},
        {"--shape deepseek-v3", "--gpus: expected what it runs on", 2},
        {"--shape deepseek-v9 --gpus H20", "deepseek-v3", 2},
        {"--shape deepseek-v3 --gpus 8xH21", "'8xH21' is unknown: expected one of H20", 2},
        {"--shape deepseek-v3 --gpus 0xH20", "expected 1 to 4096", 2},
        {"--shape deepseek-v3 --gpus H20 --context 99999k", "--context: expected 1 to 16777216", 2},
        {"--shape deepseek-v3 --gpus H20 --context 8m --policy blocks", "reach 4194304 tokens", 2},
        {"--shape deepseek-v3 --gpus H20 --context 4k --cached 4k", "--cached: expected fewer", 2},
        {"--shape deepseek-v3 --gpus H20 --context 4k --question 5k", "--question: expected at most the 4096",
         2},
        {"--shape deepseek-v3 --gpus H20 --density 2%", "--density: expected --policy blocks", 2},
        {"--shape deepseek-v3 --gpus H20 --ttft soon", "expected a time such as 3s", 2},
        {"--shape deepseek-v3 --gpus H20 --policy nonsense", "expected full, window", 2},
        {"--shape deepseek-v3 --gpus 8xH20 --prefill-gpus 6 --decode-gpus 3", "add up to the 8", 2},
        {"--shape deepseek-v3 --gpus 8xA100 --weights fp8", "A100 has no units for fp8", 1},
        {"--shape deepseek-v3 --gpus 7xH20 --layout tp", "128 heads cannot be cut over 7", 1},
        {"--shape spark-66m --gpus 2xEPYC-9654", "no link", 1},
        {"/nonexistent --gpus H20", "nonexistent", 65},
        {"--shape spark-66m --gpus H20 --html /nonexistent/page.html", "--html", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int code = run(cases[i].arguments, text);
        if (code != cases[i].code || !strstr(text, cases[i].says))
            fail_msg("%s: %d %s", cases[i].arguments, code, text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_impossible_target),
        cmocka_unit_test(the_bundled_model),
        cmocka_unit_test(densities_say_where_they_come_from),
        cmocka_unit_test(two_copies_are_refused_with_the_sums),
        cmocka_unit_test(the_page_is_whole),
        cmocka_unit_test(bad_input_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
