#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buffer.h"

static void bytes_grow_in_order(void **state) {
    (void)state;
    fl_buffer b;
    fl_buffer_init(&b, 1 << 20);
    for (int i = 0; i < 10000; i++) fl_buffer_add(&b, &(char){(char)i}, 1);
    assert_int_equal(b.n, 10000);
    for (int i = 0; i < 10000; i++) assert_int_equal((unsigned char)b.bytes[i], i & 0xff);
    assert_int_equal(fl_buffer_check(&b), FL_ERR_OK);
    fl_buffer_free(&b);
    assert_int_equal(b.n, 0);
}

static void the_cap_is_hard_and_failure_sticks(void **state) {
    (void)state;
    fl_buffer b;
    fl_buffer_init(&b, 5);
    fl_buffer_add_text(&b, "abc");
    fl_buffer_add_text(&b, "def");
    fl_buffer_add_text(&b, "g"); /* would fit, but comes after a failure */
    assert_int_equal(b.n, 3);
    assert_memory_equal(b.bytes, "abc", 3);
    assert_int_equal(fl_buffer_check(&b), FL_ERR_LIMIT);
    assert_non_null(strstr(fl_err_detail(), "5 bytes"));
    fl_buffer_clear(&b);
    fl_buffer_add_text(&b, "hello");
    assert_int_equal(fl_buffer_check(&b), FL_ERR_OK);
    assert_int_equal(b.n, 5);
    fl_buffer_add(&b, b.bytes, SIZE_MAX); /* no overflow in the sum */
    assert_int_equal(fl_buffer_check(&b), FL_ERR_LIMIT);
    fl_buffer_free(&b);
}

static void readers_take_from_the_front(void **state) {
    (void)state;
    fl_buffer b;
    fl_buffer_init(&b, 100);
    fl_buffer_drop(&b, 0);
    fl_buffer_add_text(&b, "abcdef");
    fl_buffer_drop(&b, 2);
    assert_int_equal(b.n, 4);
    assert_memory_equal(b.bytes, "cdef", 4);
    fl_buffer_drop(&b, 100);
    assert_int_equal(b.n, 0);
    fl_buffer_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_grow_in_order),
        cmocka_unit_test(the_cap_is_hard_and_failure_sticks),
        cmocka_unit_test(readers_take_from_the_front),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
