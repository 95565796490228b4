#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/flpack.h"

/* A file with an fp32, a bf16 and an fp8 tensor, a hole between them and bytes after them. */
static size_t sample(uint8_t *file) {
    static const char *const header =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"c\":{\"dtype\":\"F8_E4M3\",\"shape\":[40],\"data_offsets\":[40,80]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[15],\"data_offsets\":[8,38]},\"__metadata__\":{\"x\":\"y\"}}";
    size_t header_bytes = strlen(header);
    memset(file, 0, 8);
    file[0] = (uint8_t)header_bytes;
    memcpy(file + 8, header, header_bytes);
    for (size_t i = 0; i < 83; i++) file[8 + header_bytes + i] = (uint8_t)(i * 37 + 11);
    return 8 + header_bytes + 83;
}

static void pack_and_unpack_give_the_same_bytes(void **state) {
    (void)state;
    uint8_t file[512], *pack = NULL, *back = NULL;
    size_t file_bytes = sample(file), pack_bytes = 0, back_bytes = 0;
    assert_int_equal(fl_pack_encode(file, file_bytes, 3, &pack, &pack_bytes), FL_ERR_OK);
    assert_int_equal(fl_pack_decode(pack, pack_bytes, &back, &back_bytes), FL_ERR_OK);
    assert_int_equal(back_bytes, file_bytes);
    assert_memory_equal(back, file, file_bytes);
    free(pack);
    free(back);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    uint8_t file[512], *pack = NULL, *back = NULL;
    size_t file_bytes = sample(file), pack_bytes = 0, back_bytes = 0;
    assert_int_equal(fl_pack_encode(file, file_bytes, 3, &pack, &pack_bytes), FL_ERR_OK);
    for (size_t n = 0; n < pack_bytes; n++) {
        uint8_t *cut = malloc(n + 1); /* its own block, so that a sanitizer sees a read past the end */
        assert_non_null(cut);
        memcpy(cut, pack, n);
        assert_int_equal(fl_pack_decode(cut, n, &back, &back_bytes), FL_ERR_DATA);
        free(cut);
    }
    free(pack);
}

static void a_flipped_bit_is_refused_or_seen_by_the_sum(void **state) {
    (void)state;
    enum { N_SEGMENTS = 5, TABLES = 8 + 8 + 4 + 12 * N_SEGMENTS + 16 * FL_PACK_STREAMS };
    uint8_t file[512], *pack = NULL;
    size_t file_bytes = sample(file), pack_bytes = 0;
    assert_int_equal(fl_pack_encode(file, file_bytes, 3, &pack, &pack_bytes), FL_ERR_OK);
    assert_int_equal(pack[16], N_SEGMENTS);
    for (size_t bit = 0; bit < 8 * pack_bytes; bit++) {
        uint8_t *back = NULL;
        size_t back_bytes = 0;
        pack[bit / 8] ^= (uint8_t)(1U << bit % 8);
        fl_err err = fl_pack_decode(pack, pack_bytes, &back, &back_bytes);
        if (bit < 8 * TABLES) assert_int_equal(err, FL_ERR_DATA);
        if (err == FL_ERR_OK) assert_int_equal(back_bytes, file_bytes);
        free(back);
        pack[bit / 8] ^= (uint8_t)(1U << bit % 8);
    }
    free(pack);
}

static void broken_headers_are_named(void **state) {
    (void)state;
    static const struct {
        const char *header, *message;
    } cases[] = {
        {"[]", "safetensors header"},
        {"{\"a\":{\"dtype\":\"F32\"}}", "tensor a: dtype or data_offsets missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,9999]}}", "tensor a: data_offsets outside"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[8,4]}}", "tensor a: data_offsets outside"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"data_offsets\":[4,8]}"
         "}",
         "tensors overlap"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t file[512] = {0}, *pack = NULL;
        size_t header_bytes = strlen(cases[i].header), pack_bytes = 0;
        file[0] = (uint8_t)header_bytes;
        memcpy(file + 8, cases[i].header, header_bytes);
        assert_int_equal(fl_pack_encode(file, 8 + header_bytes + 8, 3, &pack, &pack_bytes), FL_ERR_DATA);
        assert_non_null(strstr(fl_err_detail(), cases[i].message));
    }
}

static void run(const char *command, int expected) {
    int status = system(command); /* the tool as the build uses it; all words are constants of this test */
    assert_int_equal(status >> 8, expected);
}

static void the_tool_refuses_a_damaged_folder(void **state) {
    (void)state;
    char folder[] = "/tmp/flpack-XXXXXX", command[512];
    assert_non_null(mkdtemp(folder));
    uint8_t file[512];
    size_t file_bytes = sample(file);
    snprintf(command, sizeof command, "mkdir %s/a && echo hello > %s/a/config.json", folder, folder);
    run(command, 0);
    snprintf(command, sizeof command, "%s/a/w.safetensors", folder);
    FILE *f = fopen(command, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(file, 1, file_bytes, f), file_bytes);
    fclose(f);
    snprintf(command, sizeof command,
             "%s pack %s/a %s/b >%s/log && %s unpack %s/b %s/c && diff -rx SHA256SUMS %s/a %s/c",
             FL_MODELPACK, folder, folder, folder, FL_MODELPACK, folder, folder, folder, folder);
    run(command, 0);
    snprintf(command, sizeof command, "echo world > %s/b/config.json; %s unpack %s/b %s/d 2>%s/log", folder,
             FL_MODELPACK, folder, folder, folder);
    run(command, 65);
    snprintf(command, sizeof command, "grep -q 'config.json: SHA-256 expected' %s/log && rm -r %s", folder,
             folder);
    run(command, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pack_and_unpack_give_the_same_bytes),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(a_flipped_bit_is_refused_or_seen_by_the_sum),
        cmocka_unit_test(broken_headers_are_named),
        cmocka_unit_test(the_tool_refuses_a_damaged_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
