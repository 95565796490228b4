/* Whole files: what is read, mapped and written, and what is refused. */
#include "base/file.h"
#include "model/tiny_checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void test_read(void **state) {
    (void)state;
    char *dir = tiny_dir_make(), *bytes = NULL;
    size_t n = 0;
    tiny_file_write(dir, "a", "x\0y", 3);
    tiny_file_write(dir, "empty", "", 0);
    assert_int_equal(fl_file_read(dir, "a", 3, &bytes, &n), FL_ERR_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(bytes, "x\0y\0", 4);
    free(bytes);
    assert_int_equal(fl_file_read(dir, "empty", 0, &bytes, &n), FL_ERR_OK);
    assert_int_equal(n, 0);
    assert_string_equal(bytes, "");
    free(bytes);
    assert_int_equal(fl_file_read(dir, "a", 2, &bytes, &n), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "a: 3 bytes, at most 2 are accepted"));
    assert_int_equal(fl_file_read(dir, "b", 2, &bytes, &n), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "b: cannot open"));
    assert_true(fl_file_exists(dir, "a"));
    assert_false(fl_file_exists(dir, "b"));
    tiny_dir_remove(dir);
}

/* Folders and FIFOs: neither read nor waited for. */
static void test_not_regular(void **state) {
    (void)state;
    char *dir = tiny_dir_make(), *path = NULL, *bytes = NULL;
    size_t n = 0;
    fl_file_map map;
    assert_int_equal(fl_file_path(dir, "odd", &path), FL_ERR_OK);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_false(fl_file_exists(dir, "odd"));
    assert_int_equal(fl_file_read(dir, "odd", 10, &bytes, &n), FL_ERR_DATA);
    assert_int_equal(fl_file_map_open(dir, "odd", &map), FL_ERR_DATA);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(fl_file_read(dir, "odd", 10, &bytes, &n), FL_ERR_DATA);
    assert_int_equal(fl_file_map_open(dir, "odd", &map), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "odd: expected a regular file"));
    free(path);
    tiny_dir_remove(dir);
}

static void test_map(void **state) {
    (void)state;
    char *dir = tiny_dir_make();
    fl_file_map map;
    tiny_file_write(dir, "a", "hello", 5);
    tiny_file_write(dir, "empty", "", 0);
    assert_int_equal(fl_file_map_open(dir, "a", &map), FL_ERR_OK);
    assert_int_equal(map.n_bytes, 5);
    fl_file_map_expect_jumps(&map, true);
    assert_memory_equal(map.bytes, "hello", 5);
    fl_file_map_close(&map);
    assert_null(map.bytes);
    fl_file_map_close(&map);
    assert_int_equal(fl_file_map_open(dir, "empty", &map), FL_ERR_OK);
    assert_null(map.bytes);
    fl_file_map_expect_jumps(&map, false);
    fl_file_map_close(&map);
    tiny_dir_remove(dir);
}

static void test_write(void **state) {
    (void)state;
    char *dir = tiny_dir_make(), *bytes = NULL, *path = NULL;
    size_t n = 0;
    assert_int_equal(fl_file_write(dir, "a", "first", 5), FL_ERR_OK);
    assert_int_equal(fl_file_write(dir, "a", "2nd", 3), FL_ERR_OK);
    assert_int_equal(fl_file_read(dir, "a", 10, &bytes, &n), FL_ERR_OK);
    assert_string_equal(bytes, "2nd");
    free(bytes);
    assert_int_equal(fl_file_write(dir, "no/such/place", "x", 1), FL_ERR_IO);
    assert_int_equal(fl_file_path(dir, "a", &path), FL_ERR_OK);
    assert_int_equal(unlink(path), 0);
    free(path);
    assert_int_equal(rmdir(dir), 0); /* no temporary file stayed behind, after the failure neither */
    free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_not_regular),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
