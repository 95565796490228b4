/* The verb from outside: two equal sides lose nothing, exactly; a run that is named again asks nothing again. */
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

enum { TEXT_BYTES = 1 << 18 };

#define EVAL                                                                                                 \
    FL_CLI " eval build/models/spark-66m -q --tasks ruler_niah_single_1 --lengths 600 --n 2 --seed 5 "

/* Standard output and exit code of a command line. */
static int run(const char *command, char *text) {
    return run_command(command, text, TEXT_BYTES);
}

static void equal_sides_lose_exactly_nothing(void **state) {
    (void)state;
    static char text[TEXT_BYTES], command[1024];
    char path[] = "/tmp/fl_cmd_eval_XXXXXX";
    close(mkstemp(path));
    snprintf(command, sizeof command, EVAL "--variant full --json --resume %s", path);
    assert_int_equal(run(command, text), 0);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(json));
    static const char *const zeros[] = {"loss_points", "loss_low", "loss_high", "nll_diff", "kl"};
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++) assert_true(number_of(json, zeros[i]) == 0);
    assert_true(number_of(json, "score") == number_of(json, "score_full") && number_of(json, "score") >= 50);
    assert_true(json_is_false(json_object_get(json, "worse")));
    assert_non_null(json_object_get(json_object_get(json, "by_task"), "ruler_niah_single_1"));
    assert_non_null(json_object_get(json_object_get(json, "by_length"), "600"));
    assert_int_equal(json_array_size(json_object_get(json, "variants")), 1);
    double prefill_s = number_of(json, "prefill_s");
    assert_true(prefill_s > 0 && number_of(json, "document_reads") == 2);
    json_decref(json);

    assert_int_equal(run(command, text), 0); /* from the file: the same seconds */
    json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_true(number_of(json, "prefill_s") == prefill_s);
    json_decref(json);

    snprintf(command, sizeof command, EVAL "--variant full --json --heat-map /dev/full --resume %s", path);
    assert_int_equal(run(command, text), 1); /* the picture has no room, the report is there */
    json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_true(number_of(json, "prefill_s") == prefill_s);
    json_decref(json);

    snprintf(command, sizeof command, EVAL "--policy full --seed 6 --resume %s 2>&1", path);
    assert_int_equal(run(command, text), 78);
    assert_non_null(strstr(text, "seed is '5' there and '6' here"));
    unlink(path);
}

static void bad_orders_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *command, *says;
    } bad[] = {
        {EVAL "--variant speed=9 2>&1", "rope-factor"},
        {EVAL "--tasks nonsense 2>&1", "'nonsense'; families are text, spark"},
        {EVAL "--tasks 'nothing_*' 2>&1", "begins like"},
        {EVAL "--tasks 'ruler_*,ruler_niah_single_1' 2>&1", "'ruler_niah_single_1' is there twice"},
        {EVAL "--lengths 4k,4096 2>&1", "twice"},
        {EVAL "--lengths 0 2>&1", "1 to"},
        {EVAL "--lengths , 2>&1", "4k"},
        {EVAL "--policy 'a b' 2>&1", "one short word"},
    };
    static char text[TEXT_BYTES];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(run(bad[i].command, text), 2);
        if (!strstr(text, bad[i].says)) fail_msg("'%s' does not say '%s'", text, bad[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_sides_lose_exactly_nothing),
        cmocka_unit_test(bad_orders_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
