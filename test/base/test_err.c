#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"

static void detail_keeps_text_and_strips_control_bytes(void **state) {
    (void)state;
    assert_int_equal(FL_FAIL(FL_ERR_DATA, "bad \x1b[31m%s", "value"), FL_ERR_DATA);
    assert_string_equal(fl_err_detail(), "bad ?[31mvalue");
    assert_int_equal(FL_FAIL(FL_ERR_IO, "wrapped: %s", fl_err_detail()), FL_ERR_IO);
    assert_string_equal(fl_err_detail(), "wrapped: bad ?[31mvalue");
}

static void every_code_has_a_name_and_an_exit_code(void **state) {
    (void)state;
    assert_string_equal(fl_err_name(FL_ERR_NOMEM), "out of memory");
    assert_int_equal(fl_err_exit_code(FL_ERR_DATA), 65);
    assert_int_equal(fl_err_exit_code(FL_ERR_CONFIG), 78);
    assert_int_equal(fl_err_exit_code(FL_ERR_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(detail_keeps_text_and_strips_control_bytes),
        cmocka_unit_test(every_code_has_a_name_and_an_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
