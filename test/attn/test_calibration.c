/* calibration.json: what is read, and what is refused with the field's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "attn/calibration.h"

#define HEAD "{\"format\": 1, \"layers\": 2, \"heads\": 3, \"latent_dim\": 16"

static fl_err parse(const char *text, fl_calibration *out) {
    *out = (fl_calibration){.layers = 2, .heads = 3, .latent_dim = 16};
    return fl_calibration_parse("calibration.json", text, strlen(text), out);
}

static void everything_is_read(void **state) {
    (void)state;
    fl_calibration c;
    assert_int_equal(parse(HEAD ", \"length\": 4096, \"block\": 128, \"alpha\": 0.25, \"density\": 0.5,"
                                "\"alpha_by_head\": [[0.5, 0.25, 0.125], [1, 1, 1]],"
                                "\"density_by_head\": [[0.75, 0.5, 1], [1, 0.000001, 1]],"
                                "\"bias\": [[0, -1, 2.5], [3, 4, 5]], \"dense_heads\": [[0, 2], [1, 0]],"
                                "\"temperature\": [1, 1.25], \"outliers\": [[1, 15], [0, 2]],"
                                "\"measured\": {\"anything\": [1]}}",
                           &c),
                     FL_ERR_OK);
    assert_int_equal(c.length, 4096);
    assert_int_equal(c.block, 128);
    assert_true(c.alpha == 0.25 && c.density == 0.5);
    assert_true(c.alpha_by_head[2] == 0.125f && c.alpha_by_head[3] == 1);
    assert_true(c.density_by_head[0] == 0.75f && c.density_by_head[4] == 1e-6f);
    assert_true(c.bias[1] == -1 && c.bias[2] == 2.5f && c.bias[5] == 5);
    const bool dense[6] = {false, false, true, true, false, false};
    assert_memory_equal(c.dense, dense, sizeof dense);
    assert_true(c.temperature[1] == 1.25f);
    assert_int_equal(c.n_outliers, 2);
    assert_int_equal(c.outliers[1], 15);
    assert_int_equal(c.outliers[3], 2);
    fl_calibration_close(&c);
}

static void little_is_enough(void **state) {
    (void)state;
    fl_calibration c;
    assert_int_equal(parse(HEAD "}", &c), FL_ERR_OK);
    assert_null(c.bias);
    assert_null(c.dense);
    assert_null(c.outliers);
    assert_int_equal(c.block, 0);
    fl_calibration_close(&c);
}

static void faults_are_named(void **state) {
    static const char *const cases[][2] = {
        {"", "JSON"},
        {"[]", "format"},
        {"{\"format\": 2}", "format"},
        {"{\"format\": 1, \"layers\": 3, \"heads\": 3, \"latent_dim\": 16}", "layers"},
        {"{\"format\": 1, \"layers\": 2, \"heads\": 4, \"latent_dim\": 16}", "heads"},
        {"{\"format\": 1, \"layers\": 2, \"heads\": 3, \"latent_dim\": 17}", "latent_dim"},
        {HEAD ", \"block\": 96}", "block"},
        {HEAD ", \"block\": \"64\"}", "block"},
        {HEAD ", \"alpha\": 0}", "alpha"},
        {HEAD ", \"alpha\": 1.5}", "alpha"},
        {HEAD ", \"density\": 2}", "density"},
        {HEAD ", \"length\": -1}", "length"},
        {HEAD ", \"alpha_by_head\": [[1, 1, 1]]}", "alpha_by_head"},
        {HEAD ", \"alpha_by_head\": [[1, 1, 1], [1, 1]]}", "alpha_by_head"},
        {HEAD ", \"alpha_by_head\": [[1, 1, 0], [1, 1, 1]]}", "alpha_by_head"},
        {HEAD ", \"density_by_head\": [[1, 1, 1]]}", "density_by_head"},
        {HEAD ", \"density_by_head\": [[1, 1, 1], [1, 1, 0]]}", "density_by_head"},
        {HEAD ", \"density_by_head\": [[1, 1, 1], [1, 1, 1.01]]}", "density_by_head"},
        {HEAD ", \"bias\": [[1, 1, 1e9], [1, 1, 1]]}", "bias"},
        {HEAD ", \"bias\": 3}", "bias"},
        {HEAD ", \"temperature\": [1]}", "temperature"},
        {HEAD ", \"temperature\": [1, 0]}", "temperature"},
        {HEAD ", \"dense_heads\": [[0, 3]]}", "dense_heads"},
        {HEAD ", \"dense_heads\": [[-1, 0]]}", "dense_heads"},
        {HEAD ", \"dense_heads\": [[0]]}", "dense_heads"},
        {HEAD ", \"dense_heads\": {}}", "dense_heads"},
        {HEAD ", \"outliers\": [[1]]}", "outliers"},
        {HEAD ", \"outliers\": [[1], [16]]}", "outliers"},
        {HEAD ", \"outliers\": [[2, 1], [1, 2]]}", "outliers"},
        {HEAD ", \"outliers\": [[1, 1], [1, 2]]}", "outliers"},
        {HEAD ", \"outliers\": [[1], [1, 2]]}", "outliers"},
        {HEAD ", \"outliers\": [[0,1,2,3,4,5,6,7,8], [0,1,2,3,4,5,6,7,8]]}", "outliers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_calibration c;
        if (parse(cases[i][0], &c) != FL_ERR_CONFIG) fail_msg("taken: %s", cases[i][0]);
        if (!strstr(fl_err_detail(), cases[i][1])) fail_msg("%s: %s", cases[i][0], fl_err_detail());
        fl_calibration_close(&c);
    }
}

/* Of a model of any size, and of reports that hold more. */
static void densities_alone_are_read(void **state) {
    static const char text[] = "{\"layers\": 1, \"heads\": 2, \"rows\": [{\"heads\": []}], \"format\": 7,"
                               "\"density_by_head\": [[0.25, 1]]}";
    fl_calibration c = {0};
    (void)state;
    assert_int_equal(fl_calibration_parse_density("report", text, strlen(text), &c), FL_ERR_OK);
    assert_true(c.layers == 1 && c.heads == 2 && c.density_by_head[0] == 0.25f && c.density_by_head[1] == 1);
    assert_null(c.bias);
    fl_calibration_close(&c);
}

static void faults_of_densities_are_named(void **state) {
    static const char *const cases[][2] = {
        {"{\"layers\": 1", "JSON"},
        {"3", "JSON"},
        {"[]", "layers"},
        {"{}", "layers"},
        {"{\"layers\": 0, \"heads\": 1, \"density_by_head\": []}", "layers"},
        {"{\"layers\": 1.0, \"heads\": 1, \"density_by_head\": [[1]]}", "layers"},
        {"{\"layers\": 1025, \"heads\": 1, \"density_by_head\": [[1]]}", "layers"},
        {"{\"layers\": 9223372036854775807, \"heads\": 1, \"density_by_head\": [[1]]}", "layers"},
        {"{\"layers\": 4294967297, \"heads\": 1, \"density_by_head\": [[1]]}", "layers"},
        {"{\"layers\": 1, \"heads\": -1, \"density_by_head\": [[1]]}", "heads"},
        {"{\"layers\": 1, \"heads\": 4097, \"density_by_head\": [[1]]}", "heads"},
        {"{\"layers\": 1, \"heads\": 1}", "density_by_head"},
        {"{\"layers\": 1, \"heads\": 1, \"density_by_head\": null}", "density_by_head"},
        {"{\"layers\": 1, \"heads\": 1, \"density_by_head\": 0.5}", "density_by_head"},
        {"{\"layers\": 1, \"heads\": 1, \"density_by_head\": [0.5]}", "density_by_head"},
        {"{\"layers\": 1, \"heads\": 1, \"density_by_head\": [{\"0\": 0.5}]}", "density_by_head"},
        {"{\"layers\": 1, \"heads\": 1, \"density_by_head\": [[\"0.5\"]]}", "density_by_head"},
        {"{\"layers\": 1, \"heads\": 1, \"density_by_head\": [[1e-7]]}", "density_by_head"},
        {"{\"layers\": 1, \"heads\": 1, \"density_by_head\": [[-0.5]]}", "density_by_head"},
        {"{\"layers\": 1, \"heads\": 1, \"density_by_head\": [[0.5, 0.5]]}", "density_by_head"},
        {"{\"layers\": 1, \"heads\": 1, \"density_by_head\": [[0.5], [0.5]]}", "density_by_head"},
        {"{\"layers\": 1, \"layers\": 1}", "JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_calibration c = {0};
        if (fl_calibration_parse_density("report", cases[i][0], strlen(cases[i][0]), &c) != FL_ERR_CONFIG)
            fail_msg("taken: %s", cases[i][0]);
        if (!strstr(fl_err_detail(), cases[i][1])) fail_msg("%s: %s", cases[i][0], fl_err_detail());
        fl_calibration_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_read),
        cmocka_unit_test(little_is_enough),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(densities_alone_are_read),
        cmocka_unit_test(faults_of_densities_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
