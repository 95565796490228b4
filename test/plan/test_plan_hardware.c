/* Machines by name, and the table's numbers against the sheets they are taken from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "plan/hardware.h"

static void machines_are_read(void **state) {
    (void)state;
    const struct {
        const char *text, *name;
        int32_t n;
    } cases[] = {{"8xH20", "H20", 8},
                 {"h200", "H200", 1},
                 {"2XH100", "H100", 2},
                 {"4096xB200", "B200", 4096},
                 {"2xepyc-9654", "EPYC-9654", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_machine m;
        assert_int_equal(fl_machine_parse(cases[i].text, &m), FL_ERR_OK);
        assert_string_equal(m.kind->name, cases[i].name);
        assert_int_equal(m.n, cases[i].n);
    }
}

static void others_are_refused_by_name(void **state) {
    (void)state;
    const struct {
        const char *text, *says;
    } cases[] = {
        {"8xH21", "H20, H100, H200"}, {"", "unknown"},        {"0xH20", "expected 1 to 4096"},
        {"-1xH20", "expected 1 to"},  {"8 H20", "unknown"},   {"8x", "unknown"},
        {"5000xH20", "1 to 4096"},    {"8xx H20", "unknown"}, {"99999999999999999999xH20", "1 to 4096"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_machine m;
        assert_int_equal(fl_machine_parse(cases[i].text, &m), FL_ERR_INVALID);
        if (!strstr(fl_err_detail(), cases[i].says)) fail_msg("'%s': %s", cases[i].text, fl_err_detail());
    }
}

/* Eight H20: 8 x 96 GB = 768 GB, 8 x 148 = 1,184 and 8 x 296 = 2,368 TFLOP/s. */
static void the_table_holds_together(void **state) {
    (void)state;
    fl_machine m;
    assert_int_equal(fl_machine_parse("8xH20", &m), FL_ERR_OK);
    assert_int_equal(m.n * m.kind->memory_bytes, INT64_C(768000000000));
    assert_true(m.n * m.kind->bf16_flops_per_s == 1184e12);
    assert_true(m.n * m.kind->fp8_flops_per_s == 2368e12);
    size_t n = 0;
    for (const fl_hardware *h = fl_hardware_at(n); h; h = fl_hardware_at(++n)) {
        assert_true(h->memory_bytes > 0 && h->memory_bytes_per_s > 0 && h->bf16_flops_per_s > 0 &&
                    h->box > 0);
        assert_true(h->fp8_flops_per_s == 0 || h->fp8_flops_per_s > 1.5 * h->bf16_flops_per_s);
        assert_true(h->cpu == (h->link_bytes_per_s == 0));
        assert_true(strlen(h->source) > 20);
    }
    assert_true(n >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_are_read),
        cmocka_unit_test(others_are_refused_by_name),
        cmocka_unit_test(the_table_holds_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
