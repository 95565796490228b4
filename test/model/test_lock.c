/* Fingerprint, lock and inspection. */
#include "model/fingerprint.h"
#include "model/inspect.h"
#include "model/tiny_checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char model_dir[] = "build/models/spark-66m";
static const char shard2[] = "model-00002-of-00003.safetensors";

/* Mismatches as lines "FIELD|EXPECTED|FOUND\n". */
typedef struct seen {
    char text[4096];
    int64_t last_bytes, total_bytes;
    bool went_back;
} seen;

static void on_mismatch(void *context, const fl_lock_mismatch *m) {
    seen *s = context;
    size_t used = strlen(s->text);
    snprintf(s->text + used, sizeof s->text - used, "%s|%s|%s\n", m->field, m->expected, m->found);
}

static void on_progress(void *context, int64_t done_bytes, int64_t total_bytes) {
    seen *s = context;
    if (done_bytes < s->last_bytes) s->went_back = true;
    s->last_bytes = done_bytes;
    s->total_bytes = total_bytes;
}

static fl_err check(const char *dir, seen *s) {
    *s = (seen){0};
    return fl_lock_check(dir,
                         &(fl_lock_calls){.progress = on_progress, .mismatch = on_mismatch, .context = s});
}

static char *make_locked(void) {
    tiny_checkpoint *tiny = tiny_checkpoint_new(&(tiny_options){.linear = FL_DTYPE_BF16, .n_shards = 3});
    char *dir = tiny_dir_make();
    tiny_checkpoint_write(tiny, dir);
    tiny_checkpoint_free(tiny);
    tiny_file_write(dir, "tokenizer.json", "{}", 2);
    tiny_file_write(dir, "README.md", "not hashed", 10);
    assert_false(fl_lock_exists(dir));
    assert_int_equal(fl_lock_write(dir, NULL, NULL), FL_ERR_OK);
    assert_true(fl_lock_exists(dir));
    return dir;
}

static void flip_byte(const char *dir, const char *name, size_t back) {
    size_t n_bytes = 0;
    unsigned char *bytes = tiny_file_read(dir, name, &n_bytes);
    bytes[n_bytes - back] ^= 1;
    tiny_file_write(dir, name, bytes, n_bytes);
    free(bytes);
}

static void test_digest(void **state) {
    (void)state;
    char hex[FL_SHA256_HEX_BYTES], of_file[FL_SHA256_HEX_BYTES];
    assert_int_equal(fl_sha256_of("abc", 3, hex), FL_ERR_OK); /* FIPS 180-4's own example */
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    char *dir = tiny_dir_make();
    int64_t n_bytes = 0;
    size_t size = (3 << 20) + 17;
    unsigned char *bytes = malloc(size);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i * 31);
    tiny_file_write(dir, "big", bytes, size);
    assert_int_equal(fl_sha256_of(bytes, size, hex), FL_ERR_OK);
    assert_int_equal(fl_sha256_file(dir, "big", NULL, NULL, of_file, &n_bytes), FL_ERR_OK);
    assert_string_equal(hex, of_file);
    assert_int_equal(n_bytes, size);
    assert_int_equal(fl_sha256_file(dir, "none", NULL, NULL, of_file, &n_bytes), FL_ERR_DATA);
    free(bytes);
    tiny_dir_remove(dir);
}

static void test_lock_matches(void **state) {
    (void)state;
    char *dir = make_locked();
    seen s;
    assert_int_equal(check(dir, &s), FL_ERR_OK);
    assert_string_equal(s.text, "");
    assert_false(s.went_back);
    assert_true(s.total_bytes > 100000);
    assert_int_equal(s.last_bytes, s.total_bytes);
    flip_byte(dir, "README.md", 1);
    assert_int_equal(check(dir, &s), FL_ERR_OK);
    assert_int_equal(fl_lock_check(dir, &(fl_lock_calls){0}), FL_ERR_OK);
    tiny_dir_remove(dir);
}

/* One flipped weight bit, which no structural check can see. */
static void test_weight_bit(void **state) {
    (void)state;
    char *dir = make_locked();
    seen s;
    fl_checkpoint *c = NULL;
    flip_byte(dir, shard2, 2);
    assert_int_equal(fl_checkpoint_open(dir, &c), FL_ERR_OK);
    fl_checkpoint_close(c);
    assert_int_equal(check(dir, &s), FL_ERR_CONFIG);
    assert_memory_equal(s.text, shard2, sizeof shard2 - 1);
    assert_ptr_equal(strchr(s.text, '\n'), s.text + strlen(s.text) - 1);
    assert_non_null(strstr(fl_err_detail(), shard2));
    assert_non_null(strstr(fl_err_detail(), "expected "));
    tiny_dir_remove(dir);
}

static void test_every_field(void **state) {
    (void)state;
    char *dir = make_locked();
    seen s;
    flip_byte(dir, "config.json", 3);
    tiny_file_write(dir, "tokenizer.json", "{ }", 3);
    tiny_file_write(dir, "tokenizer_config.json", "{}", 2);
    tiny_file_remove(dir, "generation_config.json");
    assert_int_equal(check(dir, &s), FL_ERR_CONFIG);
    assert_non_null(strstr(s.text, "config.json|"));
    assert_non_null(strstr(s.text, "tokenizer.json|2 bytes|3 bytes\n"));
    assert_non_null(strstr(
        s.text, "tokenizer_config.json|no such file|44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e83"));
    assert_non_null(strstr(s.text, "generation_config.json|"));
    assert_non_null(strstr(s.text, "|no such file\n"));
    assert_null(strstr(s.text, "fingerprint"));
    assert_non_null(strstr(fl_err_detail(), "field 'config.json'"));
    tiny_dir_remove(dir);
}

/* Replaces the member of the lock, writes it back and checks. */
static fl_err check_with(const char *dir, const char *key, json_t *value, seen *s) {
    size_t n_bytes = 0;
    char *text = (char *)tiny_file_read(dir, FL_LOCK_NAME, &n_bytes);
    json_t *lock = json_loads(text, 0, NULL);
    assert_non_null(lock);
    if (value) json_object_set_new(lock, key, value);
    else json_object_del(lock, key);
    char *changed = json_dumps(lock, 0);
    tiny_file_write(dir, FL_LOCK_NAME, changed, strlen(changed));
    fl_err err = check(dir, s);
    tiny_file_write(dir, FL_LOCK_NAME, text, n_bytes);
    json_decref(lock);
    free(changed);
    free(text);
    return err;
}

static void test_lock_contents(void **state) {
    (void)state;
    char *dir = make_locked();
    seen s;
    assert_int_equal(check_with(dir, "engine", json_string("0.0.0-other"), &s), FL_ERR_CONFIG);
    assert_string_equal(s.text, "engine|0.0.0-other|" FL_VERSION "\n");
    assert_int_equal(check_with(dir, "fingerprint", json_string("abc"), &s), FL_ERR_CONFIG);
    assert_memory_equal(s.text, "fingerprint|abc|", 16);
    assert_int_equal(check_with(dir, "format", json_integer(2), &s), FL_ERR_CONFIG);
    assert_int_equal(check_with(dir, "files", json_array(), &s), FL_ERR_CONFIG);
    assert_int_equal(check_with(dir, "files", NULL, &s), FL_ERR_CONFIG);
    assert_int_equal(check_with(dir, "files", json_object(), &s), FL_ERR_CONFIG);
    assert_non_null(strstr(s.text, "config.json|no such file|"));
    json_t *odd = json_pack("{s:{s:s}}", "config.json", "sha256", "abc");
    assert_int_equal(check_with(dir, "files", odd, &s), FL_ERR_CONFIG);
    assert_int_equal(check_with(dir, "extra", json_null(), &s), FL_ERR_CONFIG);
    assert_int_equal(check(dir, &s), FL_ERR_OK);
    tiny_file_write(dir, FL_LOCK_NAME, "{\"format\":1", 11);
    assert_int_equal(check(dir, &s), FL_ERR_CONFIG);
    assert_non_null(strstr(fl_err_detail(), "not valid JSON"));
    tiny_file_remove(dir, FL_LOCK_NAME);
    assert_int_equal(check(dir, &s), FL_ERR_CONFIG);
    assert_non_null(strstr(fl_err_detail(), "verify MODEL --write"));
    tiny_dir_remove(dir);
}

static void test_missing_shard(void **state) {
    (void)state;
    char *dir = make_locked();
    seen s;
    tiny_file_remove(dir, shard2);
    assert_int_equal(check(dir, &s), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), shard2));
    tiny_dir_remove(dir);
}

static void test_fingerprint(void **state) {
    (void)state;
    char *dir = make_locked();
    fl_fingerprint first, second;
    assert_int_equal(fl_fingerprint_compute(dir, NULL, NULL, &first), FL_ERR_OK);
    assert_int_equal(fl_fingerprint_compute(dir, NULL, NULL, &second), FL_ERR_OK);
    assert_string_equal(first.hex, second.hex);
    assert_int_equal(first.n_files, 7); /* 3 shards, index, config, generation_config, tokenizer */
    for (int32_t i = 1; i < first.n_files; i++)
        assert_true(strcmp(first.files[i - 1].name, first.files[i].name) < 0);
    fl_fingerprint_close(&second);
    flip_byte(dir, shard2, 2);
    assert_int_equal(fl_fingerprint_compute(dir, NULL, NULL, &second), FL_ERR_OK);
    assert_string_not_equal(first.hex, second.hex);
    fl_fingerprint_close(&first);
    fl_fingerprint_close(&second);
    tiny_dir_remove(dir);
}

static void test_inspect(void **state) {
    (void)state;
    fl_checkpoint *c = NULL;
    fl_inspection i;
    assert_int_equal(fl_checkpoint_open_unread(model_dir, &c), FL_ERR_OK);
    fl_inspect_checkpoint(c, &i);
    assert_int_equal(i.parameters, 63245936); /* both as in the model's card */
    assert_true(i.active_parameters > 25950000 && i.active_parameters < 26050000);
    assert_int_equal(i.tensors, 849);
    assert_int_equal(i.bytes, 71832160);
    assert_int_equal(i.n_shards, 6);
    assert_int_equal(i.n_dtypes, 3);
    assert_string_equal(i.dtypes[0].name, "BF16");
    assert_string_equal(i.dtypes[1].name, "F32");
    assert_string_equal(i.dtypes[2].name, "F8_E4M3");
    assert_int_equal(i.dtypes[2].bytes, i.dtypes[2].elements);
    assert_int_equal(i.dtypes[0].bytes, 2 * i.dtypes[0].elements);
    assert_int_equal(i.dtypes[0].tensors + i.dtypes[1].tensors + i.dtypes[2].tensors, 849);
    fl_checkpoint_close(c);

    tiny_checkpoint *tiny =
        tiny_checkpoint_new(&(tiny_options){.kind = TINY_DENSE, .tied = true, .n_layers = 1});
    char *dir = tiny_dir_make();
    tiny_checkpoint_write(tiny, dir);
    assert_int_equal(fl_checkpoint_open(dir, &c), FL_ERR_OK);
    fl_inspect_checkpoint(c, &i);
    assert_int_equal(i.parameters, i.active_parameters); /* every weight is used, the table as the head */
    assert_int_equal(i.bytes, 4 * i.parameters);
    fl_checkpoint_close(c);
    tiny_checkpoint_free(tiny);
    tiny_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest),        cmocka_unit_test(test_lock_matches),
        cmocka_unit_test(test_weight_bit),    cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_lock_contents), cmocka_unit_test(test_missing_shard),
        cmocka_unit_test(test_fingerprint),   cmocka_unit_test(test_inspect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
