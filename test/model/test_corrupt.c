/* More than two hundred corrupted checkpoints: each must be refused with FL_ERR_DATA (exit code 65) and a message
 * that names the file, and where given the tensor or field at fault. Flips that no reader could notice are left out
 * by construction: the headers here hold no free text, and flipped weight bits are the lock's business (last test).
 */
#include "model/checkpoint.h"
#include "model/fingerprint.h"
#include "model/tiny_checkpoint.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static const char shard1[] = "model-00001-of-00002.safetensors";
static const char shard2[] = "model-00002-of-00002.safetensors";
static const char index_file[] = "model.safetensors.index.json";
static const char *const files[] = {shard1, shard2, index_file, "config.json", "generation_config.json"};

enum { N_FILES = 5, CASES_MIN = 200 };

/* A good checkpoint on disk, its files in memory, and the count of refused variants. */
typedef struct fixture {
    tiny_checkpoint *tiny;
    char *dir;
    unsigned char *bytes[N_FILES];
    size_t n_bytes[N_FILES];
    int n_cases;
} fixture;

static void restore(const fixture *f) {
    for (int i = 0; i < N_FILES; i++) tiny_file_write(f->dir, files[i], f->bytes[i], f->n_bytes[i]);
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    tiny_options options = {
        .linear = FL_DTYPE_F8_E4M3, .others = FL_DTYPE_BF16, .n_shards = 2, .n_layers = 2};
    f->tiny = tiny_checkpoint_new(&options);
    f->dir = tiny_dir_make();
    tiny_checkpoint_write(f->tiny, f->dir);
    for (int i = 0; i < N_FILES; i++) f->bytes[i] = tiny_file_read(f->dir, files[i], &f->n_bytes[i]);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    int n_cases = f->n_cases;
    tiny_checkpoint_free(f->tiny);
    tiny_dir_remove(f->dir);
    for (int i = 0; i < N_FILES; i++) free(f->bytes[i]);
    free(f);
    printf("%d corrupted checkpoints refused\n", n_cases);
    return n_cases >= CASES_MIN ? 0 : -1;
}

/* The folder as it is now must be refused with both texts; then it is put right again. */
static void refuse(fixture *f, const char *text, const char *other_text) {
    fl_checkpoint *checkpoint = NULL;
    fl_err err = fl_checkpoint_open(f->dir, &checkpoint);
    const char *detail = fl_err_detail();
    if (err != FL_ERR_DATA || !strstr(detail, text) || !strstr(detail, other_text))
        fail_msg("case %d: expected '%s' and '%s', got %d: %s", f->n_cases, text, other_text, err, detail);
    assert_int_equal(fl_err_exit_code(err), 65);
    f->n_cases++;
    restore(f);
}

static void test_untouched(void **state) {
    const fixture *f = *state;
    fl_checkpoint *checkpoint = NULL;
    if (fl_checkpoint_open(f->dir, &checkpoint) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    fl_checkpoint_close(checkpoint);
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static size_t header_end(const fixture *f, int file) {
    uint64_t n = 0;
    memcpy(&n, f->bytes[file], 8);
    return 8 + (size_t)n;
}

/* One flipped bit anywhere in length and header: it ends in a syntax error, a name the index does not know, a shape
 * that does not match its bytes, or a range that does not meet its neighbours. */
static void test_header_bits(void **state) {
    fixture *f = *state;
    uint64_t random = 20261130;
    for (int i = 0; i < 120; i++) {
        int file = i % 2;
        size_t place = i < 16 ? (size_t)i / 2 : next_random(&random) % header_end(f, file);
        unsigned char mask = (unsigned char)(1u << (next_random(&random) % 8));
        f->bytes[file][place] ^= mask;
        tiny_file_write(f->dir, files[file], f->bytes[file], f->n_bytes[file]);
        f->bytes[file][place] ^= mask;
        refuse(f, ".safetensors", "");
    }
}

static void test_truncated(void **state) {
    fixture *f = *state;
    for (int file = 0; file < 2; file++) {
        size_t end = header_end(f, file), n = f->n_bytes[file];
        const size_t lengths[] = {0, 1, 7, 8, 9, end / 2, end - 1, end, end + 1, n / 2, n - 4096, n - 1};
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            tiny_file_write(f->dir, files[file], f->bytes[file], lengths[i]);
            refuse(f, files[file], "");
        }
        f->bytes[file][n] = 0; /* the reader left room for one more */
        tiny_file_write(f->dir, files[file], f->bytes[file], n + 1);
        refuse(f, files[file], "data bytes");
    }
    for (int file = 2; file < N_FILES; file++) {
        for (size_t i = 0; i < 8; i++) {
            tiny_file_write(f->dir, files[file], f->bytes[file], f->n_bytes[file] * i / 8);
            refuse(f, files[file], "not valid JSON");
        }
        tiny_file_write(f->dir, files[file], "[1, 2]", 6);
        refuse(f, files[file], "expected");
    }
}

static void test_shard_files(void **state) {
    fixture *f = *state;
    tiny_file_write(f->dir, shard1, f->bytes[1], f->n_bytes[1]);
    tiny_file_write(f->dir, shard2, f->bytes[0], f->n_bytes[0]);
    refuse(f, "is missing: model.safetensors.index.json says it is there", shard1);
    tiny_file_write(f->dir, shard2, f->bytes[0], f->n_bytes[0]);
    refuse(f, "is missing", shard2);
    for (int i = 0; i < 4; i++) {
        tiny_file_remove(f->dir, files[i]);
        refuse(f, files[i], i == 2 ? "no weights" : "cannot open");
    }
    tiny_file_write(f->dir, "model.safetensors", f->bytes[0], f->n_bytes[0]);
    refuse(f, "model.safetensors and model.safetensors.index.json are both there", "");
    tiny_file_remove(f->dir, "model.safetensors");
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", f->dir, shard1);
    tiny_file_remove(f->dir, shard1);
    assert_int_equal(mkdir(path, 0700), 0);
    fl_checkpoint *checkpoint = NULL;
    assert_int_equal(fl_checkpoint_open(f->dir, &checkpoint), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "expected a regular file"));
    tiny_file_remove(f->dir, shard1);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(fl_checkpoint_open(f->dir, &checkpoint), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "expected a regular file"));
    tiny_file_remove(f->dir, shard1);
    restore(f);
}

/* Puts `to` where `from` first stands in the file (in a shard's header, whose length is set anew). */
static void replace(const fixture *f, int file, const char *from, const char *to) {
    bool shard = file < 2;
    const char *text = (const char *)f->bytes[file];
    size_t first = shard ? 8 : 0;
    const char *at = strstr(text + first, from);
    if (!at) {
        fail_msg("'%s' is not in %s", from, files[file]);
        return;
    }
    size_t before = (size_t)(at - text), n = f->n_bytes[file] - strlen(from) + strlen(to);
    unsigned char *bytes = malloc(n);
    assert_non_null(bytes);
    memcpy(bytes, text, before);
    memcpy(bytes + before, to, strlen(to));
    memcpy(bytes + before + strlen(to), at + strlen(from), f->n_bytes[file] - before - strlen(from));
    if (shard) {
        uint64_t header = header_end(f, file) - 8 - strlen(from) + strlen(to);
        memcpy(bytes, &header, 8);
    }
    tiny_file_write(f->dir, files[file], bytes, n);
    free(bytes);
}

static void test_index(void **state) {
    fixture *f = *state;
    static const char *const names[] = {"../x.safetensors",
                                        "/etc/passwd",
                                        "a/b.safetensors",
                                        "..",
                                        "",
                                        ".hid.safetensors",
                                        "a.bin",
                                        ".safetensors",
                                        "a\\\\b.safetensors",
                                        "a\\n.safetensors",
                                        "\xc3\xa9.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        replace(f, 2, shard2, names[i]);
        refuse(f, index_file, "expected a plain file name");
    }
    replace(f, 2, shard2, "model-00003-of-00002.safetensors");
    refuse(f, "model-00003-of-00002.safetensors", "cannot open");
    replace(f, 2, shard1, shard2);
    refuse(f, shard2, "is missing");
    replace(f, 2, "\"model.norm.weight\"", "\"model.norm.weigh\"");
    refuse(f, "model.norm.weigh", "is missing");
    replace(f, 2, "\"model.norm.weight\"", "\"lm_head.weight\"");
    refuse(f, index_file, "not valid JSON"); /* listed twice */
    replace(f, 2, "\"model.norm.weight\"", "\"extra\": 1, \"model.norm.weight\"");
    refuse(f, index_file, "tensor 'extra': expected a plain file name");
    replace(f, 2, "weight_map", "weight_mop");
    refuse(f, index_file, "weight_map");
    tiny_file_write(f->dir, index_file, "{\"weight_map\":{}}", 17);
    refuse(f, index_file, "weight_map");
    tiny_file_write(f->dir, index_file, "{\"weight_map\":[]}", 17);
    refuse(f, index_file, "weight_map");
}

static void test_header_claims(void **state) {
    fixture *f = *state;
    static const char *const changes[][3] = {
        {"\"model.norm.weight\":", "\"model.embed_tokens.weight\":", "listed twice"},
        {"\"data_offsets\":[0,", "\"data_offsets\":[1,", "data_offsets"},
        {"\"data_offsets\":[0,", "\"data_offsets\":[9223372036854775807,", "data_offsets"},
        {"\"data_offsets\":[0,", "\"data_offsets\":[9223372036854775808,", "below 2^63"},
        {"\"data_offsets\":[0,", "\"data_offsets\":[-8,", "at least 0"},
        {"\"shape\":[512,128]", "\"shape\":[512,127]", "expects 130048 bytes"},
        {"\"shape\":[512,128]", "\"shape\":[4611686018427387904,4]", "too large"},
        {"\"shape\":[512,128]", "\"shape\":[18446744073709551616,1]", "below 2^63"},
        {"\"shape\":[512,128]", "\"shape\":[1,1,1,1,1,1,1,1,512,128]", "too long"},
        {"\"shape\":[512,128]", "\"shape\":[65536]", "expected shape [512, 128], found [65536]"},
        {"\"shape\":[512,128]", "\"shape\":[512,128,1]", "found [512, 128, 1]"},
        {"\"shape\":[512,128]", "\"shape\":\"512\"", "'['"},
        {"\"dtype\":\"BF16\"", "\"dtype\":\"BF17\"", "BF17"},
        {"\"dtype\":\"BF16\"", "\"dtype\":null", "a string"},
        {"\"dtype\":\"BF16\"", "\"dtype\":\"F32\"", "bytes"},
        {"\"dtype\":\"BF16\",", "", "dtype, shape and data_offsets"},
        {"{\"dtype\"", "{\"strides\":[1],\"dtype\"", "once"},
        {"{\"model", "{\"\":{},\"model", "tensor name"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        replace(f, 0, changes[i][0], changes[i][1]);
        refuse(f, shard1, changes[i][2]);
    }
}

/* Two neighbours that claim the same bytes while shapes and sizes stay right. */
static void test_overlap(void **state) {
    fixture *f = *state;
    char from[64], to[64];
    const char *norm = strstr((const char *)f->bytes[0] + 8, "\"model.norm.weight\"");
    assert_non_null(norm);
    norm = strstr(norm, "[131072,");
    assert_non_null(norm);
    snprintf(from, sizeof from, "%.*s", (int)(strchr(norm, ']') - norm + 1), norm);
    snprintf(to, sizeof to, "[%d,%d]", 131072 - 256, 131072);
    replace(f, 0, from, to);
    refuse(f, "model.norm.weight", "it overlaps another tensor");
}

/* Changes to the checkpoint in memory, written, refused and undone. */
static void refuse_written(fixture *f, const char *text, const char *other_text) {
    tiny_checkpoint_write(f->tiny, f->dir);
    refuse(f, text, other_text);
}

static void test_wrong_shapes(void **state) {
    fixture *f = *state;
    for (int32_t i = 0; i < f->tiny->n_tensors; i++) {
        tiny_tensor *t = &f->tiny->tensors[i];
        int64_t rows = t->dims[0], cols = t->dims[1];
        if (t->ndim != 2 || rows == cols || strstr(t->name, "experts.3")) continue;
        t->dims[0] = cols;
        t->dims[1] = rows;
        refuse_written(f, t->name, "expected shape");
        t->dims[0] = rows;
        t->dims[1] = cols;
    }
}

static void test_wrong_dtypes(void **state) {
    fixture *f = *state;
    static const char *const changes[][3] = {
        {"model.layers.0.self_attn.o_proj.weight", "F8_E5M2", "found F8_E5M2"},
        {"model.layers.0.self_attn.o_proj.weight", "U8", "found U8"},
        {"model.layers.0.self_attn.o_proj.weight", "I8", "found I8"},
        {"model.layers.0.self_attn.o_proj.weight", "BOOL", "found BOOL"},
        {"model.layers.1.mlp.experts.0.up_proj.weight_scale_inv", "I32", "found I32"},
        {"model.layers.1.mlp.experts.0.up_proj.weight_scale_inv", "U32", "found U32"},
        {"model.layers.1.mlp.gate.weight", "I32", "found I32"},
        {"model.layers.1.mlp.gate.e_score_correction_bias", "U32", "found U32"},
        {"model.norm.weight", "I16", "found I16"},
        {"model.embed_tokens.weight", "U16", "found U16"},
        {"lm_head.weight", "I16", "found I16"},
        {"model.layers.1.input_layernorm.weight", "U16", "found U16"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        tiny_tensor *t = tiny_checkpoint_tensor(f->tiny, changes[i][0]);
        const char *dtype = t->dtype;
        t->dtype = changes[i][1];
        refuse_written(f, changes[i][0], changes[i][2]);
        t->dtype = dtype;
    }
}

static void test_bad_values(void **state) {
    fixture *f = *state;
    const float bad[] = {NAN, INFINITY, -INFINITY, -1e-3f};
    int n_scales = 0;
    for (int32_t i = 0; i < f->tiny->n_tensors; i++) {
        tiny_tensor *t = &f->tiny->tensors[i];
        unsigned char kept[4];
        bool scale = strstr(t->name, "_scale_inv"), norm = strstr(t->name, "norm.weight"),
             fp8 = t->dtype[1] == '8';
        if (!scale && !norm && !fp8) continue;
        unsigned char *last = t->bytes + t->n_bytes - 4;
        memcpy(kept, last, 4);
        if (scale) memcpy(last, &bad[n_scales++ % 4], 4);
        if (norm) memcpy(last + 2, &(uint16_t){0xff80}, 2);
        if (fp8) last[3] = i % 2 ? 0x7f : 0xff;
        refuse_written(f, t->name, scale ? "expected a" : "expected a finite value");
        memcpy(last, kept, 4);
    }
    assert_true(n_scales > 30);
}

static void test_config_fields(void **state) {
    fixture *f = *state;
    static const char *const fields[] = {
        "hidden_size",       "num_hidden_layers",     "num_attention_heads", "q_lora_rank",
        "kv_lora_rank",      "qk_nope_head_dim",      "qk_rope_head_dim",    "v_head_dim",
        "intermediate_size", "moe_intermediate_size", "n_routed_experts",    "first_k_dense_replace",
        "vocab_size",        "num_key_value_heads"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        json_t *kept = json_incref(json_object_get(f->tiny->config, fields[i]));
        json_int_t value = json_integer_value(kept);
        json_t *changed[] = {json_integer(value + 1), json_integer(2 * value), json_integer(value - 1),
                             json_integer(INT64_MAX), json_real(1.5),          json_string("")};
        for (size_t j = 0; j < sizeof changed / sizeof changed[0]; j++) {
            json_object_set_new(f->tiny->config, fields[i], changed[j]);
            refuse_written(f, j < 3 ? "" : fields[i], ".");
        }
        json_object_set_new(f->tiny->config, fields[i], kept);
    }
    replace(f, 3, "\"hidden_act\"", "\"hidden_bct\"");
    refuse(f, "config.json: field 'hidden_bct' is not known", "");
    replace(f, 3, "deepseek_v3", "deepseek_v4");
    refuse(f, "config.json: field 'model_type': expected one of", "found 'deepseek_v4'");
    replace(f, 3, "\"fp8\"", "\"fp9\"");
    refuse(f, "quant_method", "found 'fp9'");
    replace(f, 3, "128\n", "64\n");
    refuse(f, "weight_scale_inv': expected shape [1, 2], found [1, 1]", "");
    replace(f, 4, "3\n", "512\n");
    refuse(f, "generation_config.json: field 'eos_token_id': expected ids in 0..511", "");
}

/* What structure cannot show: any other flipped bit, caught by the lock with the name of the file. */
static void test_weight_bits_and_lock(void **state) {
    fixture *f = *state;
    uint64_t random = 7;
    assert_int_equal(fl_lock_write(f->dir, NULL, NULL), FL_ERR_OK);
    assert_int_equal(fl_lock_check(f->dir, &(fl_lock_calls){0}), FL_ERR_OK);
    for (int i = 0; i < 20; i++) {
        int file = i % N_FILES;
        size_t first = file < 2 ? header_end(f, file) : 0;
        size_t place = first + next_random(&random) % (f->n_bytes[file] - first);
        unsigned char mask = (unsigned char)(1u << (next_random(&random) % 8));
        f->bytes[file][place] ^= mask;
        tiny_file_write(f->dir, files[file], f->bytes[file], f->n_bytes[file]);
        f->bytes[file][place] ^= mask;
        fl_err err = fl_lock_check(f->dir, &(fl_lock_calls){0});
        if (file == 2 && err == FL_ERR_DATA)
            err = FL_ERR_CONFIG; /* the index itself may have become unreadable */
        assert_int_equal(err, FL_ERR_CONFIG);
        assert_non_null(strstr(fl_err_detail(), file == 2 ? "safetensors" : files[file]));
        restore(f);
    }
    tiny_file_remove(f->dir, FL_LOCK_NAME);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_untouched),     cmocka_unit_test(test_header_bits),
        cmocka_unit_test(test_truncated),     cmocka_unit_test(test_shard_files),
        cmocka_unit_test(test_index),         cmocka_unit_test(test_header_claims),
        cmocka_unit_test(test_overlap),       cmocka_unit_test(test_wrong_shapes),
        cmocka_unit_test(test_wrong_dtypes),  cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_config_fields), cmocka_unit_test(test_weight_bits_and_lock),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
