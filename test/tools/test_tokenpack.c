/* The pack of tokenizer files: comes back byte for byte, refuses what it cannot keep and what is damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "tools/tokenpack.h"

#define LINE "            "
static const char SMALL[] =
    "{ \"x\": \"\u00e9\",\n \"vocab\": {\n" LINE "\"a\": 0,\n" LINE "\"\\\"\": 1,\n" LINE
    "\"a\\\"\": 2,\n" LINE "\"a\\\"a\": 3\n },\n \"merges\": [\n" LINE "\"a \\\"\",\n" LINE
    "\"a\\\" a\"\n ]\n}";

static void a_small_file_comes_back(void **state) {
    (void)state;
    char *pack, *back;
    size_t pack_bytes, back_bytes;
    assert_int_equal(fl_tokenpack_encode(SMALL, strlen(SMALL), 3, &pack, &pack_bytes), FL_ERR_OK);
    assert_int_equal(fl_tokenpack_decode(pack, pack_bytes, &back, &back_bytes), FL_ERR_OK);
    assert_int_equal(back_bytes, strlen(SMALL));
    assert_memory_equal(back, SMALL, back_bytes);
    free(pack);
    free(back);
}

static void other_layouts_are_refused(void **state) {
    (void)state;
    static const char *const BAD[] = {
        "",
        "{}",
        "\"vocab\": {\n" LINE "\"a\": 0\n}",
        "\"vocab\": {\n" LINE "\"a\": 0,\n" LINE "\"aa\": 2\n},\"merges\": [\n" LINE
        "\"a a\"\n]", /* ids with a hole */
        "\"vocab\": {\n" LINE "\"a\": 0,\n" LINE "\"aa\": 1\n},\"merges\": [\n" LINE
        "\"a b\"\n]", /* no such token */
        "\"vocab\": {\n" LINE "\"a\": 0,\n" LINE "\"ab\": 1\n},\"merges\": [\n" LINE
        "\"a a\"\n]", /* makes another */
        "\"vocab\": {\n" LINE "\"a\": 0\n},\"merges\": [\n" LINE "\"a a\",\n" LINE "\"a a\"\n]",
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char *pack;
        size_t pack_bytes;
        assert_int_not_equal(fl_tokenpack_encode(BAD[i], strlen(BAD[i]), 3, &pack, &pack_bytes), FL_ERR_OK);
        assert_null(pack);
    }
}

static void damaged_packs_are_refused_or_decode_to_something(void **state) {
    (void)state;
    char *pack, *bytes, *back;
    size_t pack_bytes, n_bytes, back_bytes;
    assert_int_equal(fl_tokenpack_encode(SMALL, strlen(SMALL), 3, &pack, &pack_bytes), FL_ERR_OK);
    assert_int_equal(fl_tokenpack_decode(pack, pack_bytes - 1, &back, &back_bytes), FL_ERR_DATA);
    assert_int_equal(fl_frame_decode(pack, pack_bytes, &bytes, &n_bytes), FL_ERR_OK);
    /* Every byte of the content changed in turn: memory checkers watch. */
    size_t n_refused = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        char *frame;
        size_t frame_bytes;
        bytes[i] = (char)(bytes[i] ^ 0xff);
        assert_int_equal(fl_frame_encode(bytes, n_bytes, 1, &frame, &frame_bytes), FL_ERR_OK);
        n_refused += fl_tokenpack_decode(frame, frame_bytes, &back, &back_bytes) != FL_ERR_OK;
        bytes[i] = (char)(bytes[i] ^ 0xff);
        free(frame);
        free(back);
    }
    assert_true(n_refused > 20);
    free(bytes);
    free(pack);
}

static void the_tracked_pack_is_the_original_file(void **state) {
    (void)state;
    char *pack, *json;
    size_t pack_bytes, json_bytes;
    assert_int_equal(fl_file_read("test/data", "deepseek-v3.tokenpack", (size_t)1 << 21, &pack, &pack_bytes),
                     FL_ERR_OK);
    assert_int_equal(fl_tokenpack_decode(pack, pack_bytes, &json, &json_bytes), FL_ERR_OK);
    assert_int_equal(json_bytes, 7847652);
    free(json);
    free(pack);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_file_comes_back),
        cmocka_unit_test(other_layouts_are_refused),
        cmocka_unit_test(damaged_packs_are_refused_or_decode_to_something),
        cmocka_unit_test(the_tracked_pack_is_the_original_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
