#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "text/stop.h"

static void check(const char *const *stops, int32_t n, const char *held, size_t show, bool found) {
    fl_stop stop;
    size_t shown = 99;
    assert_int_equal(fl_stop_init(&stop, stops, n), FL_ERR_OK);
    assert_int_equal(fl_stop_find(&stop, held, strlen(held), &shown), found);
    assert_int_equal(shown, show);
    fl_stop_free(&stop);
}

static void holds_back_what_may_begin_a_stop(void **state) {
    (void)state;
    const char *const stops[] = {"END", "\n\n"};
    check(stops, 2, "", 0, false);
    check(stops, 2, "text", 4, false);
    check(stops, 2, "text E", 5, false);
    check(stops, 2, "text EN", 5, false);
    check(stops, 2, "text ENG", 8, false);
    check(stops, 2, "text END more", 5, true);
    check(stops, 2, "EEND", 1, true);
    check(stops, 2, "a\n", 1, false);
    check(stops, 2, "a\n\nEND", 1, true);
    check(NULL, 0, "anything", 8, false);
}

/* However the text comes: the first stop that is complete ends it, also inside the beginning of another. */
static void the_first_to_end_counts(void **state) {
    (void)state;
    const char *const stops[] = {"END OF TEXT", "OF", "D O"};
    check(stops, 2, "the END", 4, false);
    check(stops, 2, "the END OF", 8, true);
    check(stops, 2, "the END OF TEXT", 8, true);
    check(stops, 3, "the END OF TEXT", 6, true);
    check(stops, 1, "the END OF TEXT", 4, true);
    const char *const same_end[] = {"b", "ab"};
    check(same_end, 2, "xab", 1, true); /* of two that end there the longer */
}

static void bad_stops_are_refused(void **state) {
    (void)state;
    fl_stop stop;
    char wide[FL_STOP_BYTES_MAX + 2];
    memset(wide, 'x', sizeof wide - 1);
    wide[sizeof wide - 1] = '\0';
    const char *const empty[] = {"fine", ""}, *const too_long[] = {wide};
    assert_int_equal(fl_stop_init(&stop, empty, 2), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "stops[1]"));
    assert_int_equal(fl_stop_init(&stop, too_long, 1), FL_ERR_INVALID);
    assert_int_equal(fl_stop_init(&stop, empty, FL_STOPS_MAX + 1), FL_ERR_INVALID);
    assert_int_equal(fl_stop_init(&stop, empty, -1), FL_ERR_INVALID);
    assert_int_equal(fl_stop_init(&stop, NULL, 1), FL_ERR_INVALID);
    wide[FL_STOP_BYTES_MAX] = '\0';
    assert_int_equal(fl_stop_init(&stop, too_long, 1), FL_ERR_OK);
    fl_stop_free(&stop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_back_what_may_begin_a_stop),
        cmocka_unit_test(the_first_to_end_counts),
        cmocka_unit_test(bad_stops_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
