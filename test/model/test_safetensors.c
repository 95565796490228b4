/* The container's parser on headers written out as text. */
#include "model/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A file with this header and n_data bytes of data, in memory of exactly its size so that ASan sees one byte beyond. */
static unsigned char *make_file(const char *header, size_t n_data, size_t *n_bytes) {
    uint64_t n = strlen(header);
    *n_bytes = 8 + n + n_data;
    unsigned char *bytes = calloc(*n_bytes, 1);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(n >> (8 * i));
    memcpy(bytes + 8, header, n);
    return bytes;
}

static void accept_header(const char *header, size_t n_data, int64_t n_entries) {
    size_t n_bytes = 0;
    fl_safetensors st;
    unsigned char *bytes = make_file(header, n_data, &n_bytes);
    if (fl_safetensors_parse("f", bytes, n_bytes, &st) != FL_ERR_OK)
        fail_msg("%s: %s", header, fl_err_detail());
    assert_int_equal(st.n_entries, n_entries);
    assert_ptr_equal(st.data, bytes + n_bytes - n_data);
    assert_int_equal(st.data_bytes, n_data);
    fl_safetensors_close(&st);
    free(bytes);
}

static void refuse_header(const char *header, size_t n_data, const char *text) {
    size_t n_bytes = 0;
    fl_safetensors st;
    unsigned char *bytes = make_file(header, n_data, &n_bytes);
    fl_err err = fl_safetensors_parse("f.safetensors", bytes, n_bytes, &st);
    if (err != FL_ERR_DATA || !strstr(fl_err_detail(), text) || !strstr(fl_err_detail(), "f.safetensors"))
        fail_msg("%s: expected '%s', got %d: %s", header, text, err, fl_err_detail());
    assert_null(st.entries);
    assert_null(st.names);
    free(bytes);
}

#define T(name, dtype, shape, offsets)                                                                       \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_accepted(void **state) {
    (void)state;
    accept_header("{}", 0, 0);
    accept_header("{ }  \n", 0, 0);
    accept_header("{\"__metadata__\":{}}", 0, 0);
    accept_header("{\"__metadata__\":{\"a\":\"b\",\"\\u00e9\\n\":\"\\\"{[\"}}", 0, 0);
    accept_header("{" T("a", "F32", "[]", "[0,4]") "}", 4, 1);
    accept_header("{" T("a", "F32", "[2,0]", "[0,0]") "}", 0, 1);
    accept_header("{" T("a", "F8_E4M3", "[1,1,1,1,1,1,1,3]", "[0,3]") "}", 3, 1);
    accept_header("{" T("a", "F4", "[2,3]", "[0,3]") "}", 3, 1);
    accept_header("{" T("b", "BF16", "[3]", "[4,10]") "," T("a", "F32", "[1]", "[0,4]") "}", 10, 2);
    accept_header(" {\n \"a\" : { \"data_offsets\" : [ 0 , 2 ] ,\t\"shape\":[ 2 ],\r\"dtype\":\"BOOL\" } } ",
                  2, 1);
}

static void test_entries(void **state) {
    (void)state;
    size_t n_bytes = 0;
    fl_safetensors st;
    char text[32];
    unsigned char *bytes =
        make_file("{" T("z", "BF16", "[3,2]", "[8,20]") "," T("a", "I64", "[]", "[0,8]") "}", 20, &n_bytes);
    assert_int_equal(fl_safetensors_parse("f", bytes, n_bytes, &st), FL_ERR_OK);
    assert_string_equal(st.entries[0].name, "a");
    assert_int_equal(st.entries[0].dtype, -1);
    assert_string_equal(st.entries[0].dtype_name, "I64");
    assert_int_equal(st.entries[0].elements, 1);
    const fl_safetensors_entry *z = fl_safetensors_find(&st, "z");
    assert_ptr_equal(z, &st.entries[1]);
    assert_int_equal(z->dtype, FL_DTYPE_BF16);
    assert_int_equal(z->ndim, 2);
    assert_int_equal(z->dims[0], 3);
    assert_int_equal(z->dims[1], 2);
    assert_int_equal(z->elements, 6);
    assert_int_equal(z->begin_bytes, 8);
    assert_int_equal(z->end_bytes, 20);
    assert_null(fl_safetensors_find(&st, "y"));
    assert_string_equal(fl_safetensors_shape_text(text, sizeof text, z->ndim, z->dims), "[3, 2]");
    assert_string_equal(fl_safetensors_shape_text(text, sizeof text, 0, z->dims), "[]");
    assert_string_equal(fl_safetensors_shape_text(text, 5, z->ndim, z->dims), "[3, ");
    fl_safetensors_close(&st);
    free(bytes);
}

static void test_json(void **state) {
    (void)state;
    refuse_header("", 0, "header ends at byte 0, expected '{'");
    refuse_header("[]", 0, "header byte 0: expected '{', found '['");
    refuse_header("{", 0, "expected a string");
    refuse_header("{}x", 0, "header byte 2: expected only spaces after the closing '}', found 'x'");
    refuse_header("{" T("a", "F32", "[1]", "[0,4]") ",}", 4, "expected a string");
    refuse_header("{" T("a", "F32", "[1]", "[0,4]") " " T("b", "F32", "[1]", "[4,8]") "}", 8,
                  "expected ',' or '}'");
    refuse_header("{\"a\" 1}", 0, "expected ':'");
    refuse_header("{\"a\":1}", 0, "expected '{'");
    refuse_header("{\"a\":{}}", 0, "expected a string");
    refuse_header("{\"a\":null}", 0, "expected '{'");
    refuse_header("{\"a", 0, "header ends at byte 3, expected the end of a string");
    refuse_header("{\"a\x01\":{}}", 0, "found 0x01");
    refuse_header("{\"__metadata__\":{\"a\":1}}", 0, "expected a string");
    refuse_header("{\"__metadata__\":[]}", 0, "expected '{' after __metadata__");
    refuse_header("{\"__metadata__\":{\"a\":\"\\x\"}}", 0, "expected a JSON escape");
    refuse_header("{\"__metadata__\":{\"a\":\"\\u12g4\"}}", 0, "expected a hex digit");
    refuse_header("{\"__metadata__\":{\"a\":\"\\", 0, "expected a JSON escape");
    refuse_header("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ only once");
}

static void test_names(void **state) {
    (void)state;
    char header[600], name[300];
    refuse_header("{" T("", "F32", "[1]", "[0,4]") "}", 4, "expected a tensor name");
    refuse_header("{" T("a\\n", "F32", "[1]", "[0,4]") "}", 4, "expected a tensor name");
    refuse_header("{" T("\xc3\xa9", "F32", "[1]", "[0,4]") "}", 4, "expected a tensor name");
    refuse_header("{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8,
                  "tensor 'a' is listed twice");
    memset(name, 'n', sizeof name);
    name[256] = '\0';
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
             name);
    refuse_header(header, 4, "1 to 255");
    name[255] = '\0';
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
             name);
    accept_header(header, 4, 1);
}

static void test_members(void **state) {
    (void)state;
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "expected dtype, shape and data_offsets");
    refuse_header("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
                  "expected dtype, shape and data_offsets");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
                  "each of dtype, shape and data_offsets once");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
                  "each of dtype, shape and data_offsets once");
    refuse_header("{" T("a", "F33", "[1]", "[0,4]") "}", 4,
                  "dtype 'F33' is not one of the safetensors format");
    refuse_header("{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "expected a string");
    refuse_header("{" T("a", "F32", "[1]", "[0]") "}", 4, "two data_offsets");
    refuse_header("{" T("a", "F32", "[1]", "[]") "}", 4, "two data_offsets");
    refuse_header("{" T("a", "F32", "[1]", "[0,4,4]") "}", 4, "the list is too long");
    refuse_header("{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "the list is too long");
    refuse_header("{" T("a", "F32", "[1}", "[0,4]") "}", 4, "expected ',' or ']'");
    refuse_header("{" T("a", "F32", "1", "[0,4]") "}", 4, "expected '['");
    refuse_header("{" T("a", "F32", "[1", "[0,4]") "}", 4, "expected a whole number");
}

static void test_numbers(void **state) {
    (void)state;
    refuse_header("{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "a whole number of at least 0, found '-'");
    refuse_header("{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "found '.'");
    refuse_header("{" T("a", "F32", "[1e0]", "[0,4]") "}", 4, "found 'e'");
    refuse_header("{" T("a", "F32", "[01]", "[0,4]") "}", 4, "leading zeros");
    refuse_header("{" T("a", "F32", "[9223372036854775808]", "[0,4]") "}", 4, "a number below 2^63");
    refuse_header("{" T("a", "F32", "[99999999999999999999999]", "[0,4]") "}", 4, "a number below 2^63");
    refuse_header("{" T("a", "F32", "[9223372036854775807]", "[0,4]") "}", 4, "too large for any file");
    refuse_header("{" T("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "too large for any file");
    refuse_header("{" T("a", "F32", "[4611686018427387905]", "[0,4]") "}", 4, "too large for any file");
}

static void test_ranges(void **state) {
    (void)state;
    refuse_header("{" T("a", "F32", "[2]", "[0,4]") "}", 4,
                  "shape [2] of F32 expects 8 bytes, data_offsets hold 4");
    refuse_header("{" T("a", "F4", "[3]", "[0,1]") "}", 1, "data_offsets hold 1");
    refuse_header("{" T("a", "F32", "[1]", "[4,0]") "}", 4, "leave the 4 data bytes");
    refuse_header("{" T("a", "F32", "[1]", "[0,4]") "}", 3,
                  "data_offsets [0, 4] leave the 3 data bytes of the file");
    refuse_header("{" T("a", "F32", "[1]", "[0,9223372036854775807]") "}", 4, "leave the 4 data bytes");
    refuse_header("{" T("a", "F32", "[1]", "[0,4]") "}", 5,
                  "tensors cover 4 bytes, the file holds 5 data bytes");
    refuse_header("{}", 1, "tensors cover 0 bytes, the file holds 1");
    refuse_header("{" T("a", "F32", "[1]", "[1,5]") "}", 5,
                  "begin at 1, expected 0 (bytes before it belong to none)");
    refuse_header("{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4, "overlaps");
    refuse_header("{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12, "overlaps");
}

static void test_header_length(void **state) {
    (void)state;
    unsigned char bytes[16] = {0};
    fl_safetensors st;
    for (size_t n = 0; n < 8; n++) assert_int_equal(fl_safetensors_parse("f", bytes, n, &st), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "7 bytes, a safetensors file has at least 8"));
    bytes[0] = 9;
    assert_int_equal(fl_safetensors_parse("f", bytes, sizeof bytes, &st), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "header length 9, expected at most 8"));
    memset(bytes, 0xff, 8);
    assert_int_equal(fl_safetensors_parse("f", bytes, sizeof bytes, &st), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "header length 18446744073709551615"));
}

/* Every prefix of a good file is refused. */
static void test_truncated(void **state) {
    (void)state;
    size_t n_bytes = 0;
    fl_safetensors st;
    unsigned char *bytes =
        make_file("{\"__metadata__\":{\"k\":\"v\"}," T("a", "F32", "[2,1]", "[0,8]") "}", 8, &n_bytes);
    for (size_t n = 0; n < n_bytes; n++) {
        unsigned char *part = malloc(n ? n : 1);
        assert_non_null(part);
        memcpy(part, bytes, n);
        assert_int_equal(fl_safetensors_parse("f", part, n, &st), FL_ERR_DATA);
        free(part);
    }
    assert_int_equal(fl_safetensors_parse("f", bytes, n_bytes, &st), FL_ERR_OK);
    fl_safetensors_close(&st);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),  cmocka_unit_test(test_entries),
        cmocka_unit_test(test_json),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_members),   cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_ranges),    cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
