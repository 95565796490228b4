/* Opening whole checkpoints: the bundled model and synthetic ones of every kind, and what must be refused. */
#include "model/checkpoint.h"

#include "base/half.h"
#include "model/tiny_checkpoint.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char model_dir[] = "build/models/spark-66m";

static fl_checkpoint *open_ok(const char *dir) {
    fl_checkpoint *checkpoint = NULL;
    fl_err err = fl_checkpoint_open(dir, &checkpoint);
    if (err != FL_ERR_OK) fail_msg("%s: %s", dir, fl_err_detail());
    return checkpoint;
}

/* Writes `tiny`, expects FL_ERR_DATA with both texts in the message, and frees it. */
static void refuse(tiny_checkpoint *tiny, const char *text, const char *other_text) {
    char *dir = tiny_dir_make();
    fl_checkpoint *checkpoint = NULL;
    tiny_checkpoint_write(tiny, dir);
    fl_err err = fl_checkpoint_open(dir, &checkpoint);
    if (err != FL_ERR_DATA || !strstr(fl_err_detail(), text) || !strstr(fl_err_detail(), other_text))
        fail_msg("expected '%s' and '%s', got %d: %s", text, other_text, err, fl_err_detail());
    tiny_checkpoint_free(tiny);
    tiny_dir_remove(dir);
}

static tiny_checkpoint *tiny_fp8(void) {
    return tiny_checkpoint_new(
        &(tiny_options){.linear = FL_DTYPE_F8_E4M3, .others = FL_DTYPE_BF16, .n_shards = 2});
}

static void test_bundled_model(void **state) {
    (void)state;
    fl_checkpoint *c = open_ok(model_dir);
    const fl_config *config = fl_checkpoint_config(c);
    assert_int_equal(config->layers, 8);
    assert_int_equal(config->vocab_size, 8192);
    assert_int_equal(fl_checkpoint_count(c), 849);
    assert_int_equal(fl_checkpoint_shard_count(c), 6);
    assert_string_equal(fl_checkpoint_shard_name(c, 5), "model-00006-of-00006.safetensors");

    fl_tensor t;
    assert_int_equal(fl_checkpoint_find(c, &t, "model.layers.%d.self_attn.kv_a_proj_with_mqa.weight", 3),
                     FL_ERR_OK);
    assert_string_equal(t.file, "model-00003-of-00006.safetensors");
    assert_int_equal(t.dtype, FL_DTYPE_F8_E4M3);
    assert_int_equal(t.ndim, 2);
    assert_int_equal(t.dims[0], 160);
    assert_int_equal(t.dims[1], 512);
    assert_int_equal(t.bytes, 160 * 512);
    assert_int_equal(t.scale_rows, 2);
    assert_int_equal(t.scale_cols, 4);
    assert_int_equal(t.block_rows, 128);
    assert_non_null(t.scale_inv);
    assert_int_equal(fl_checkpoint_find(c, &t, "model.embed_tokens.weight"), FL_ERR_OK);
    assert_int_equal(t.dtype, FL_DTYPE_BF16);
    assert_null(t.scale_inv);
    assert_int_equal(fl_checkpoint_find(c, &t, "model.layers.8.input_layernorm.weight"), FL_ERR_INVALID);
    fl_checkpoint_close(c);
}

static void test_every_kind(void **state) {
    (void)state;
    static const fl_dtype linear[] = {FL_DTYPE_F32, FL_DTYPE_BF16, FL_DTYPE_F16, FL_DTYPE_F8_E4M3};
    for (int kind = TINY_V3; kind <= TINY_DENSE; kind++) {
        for (size_t i = 0; i < 4; i++) {
            tiny_options options = {.kind = (tiny_kind)kind,
                                    .linear = linear[i],
                                    .others = i == 2 ? FL_DTYPE_F16 : FL_DTYPE_BF16,
                                    .n_shards = (int32_t)i,
                                    .n_layers = 2};
            tiny_checkpoint *tiny = tiny_checkpoint_new(&options);
            char *dir = tiny_dir_make();
            tiny_checkpoint_write(tiny, dir);
            fl_checkpoint *c = open_ok(dir);
            assert_int_equal(fl_checkpoint_count(c), tiny->n_tensors);
            assert_int_equal(fl_checkpoint_config(c)->n_eos_ids, 2);
            assert_int_equal(fl_checkpoint_config(c)->eos_ids[1], 3);
            fl_checkpoint_close(c);
            tiny_checkpoint_free(tiny);
            tiny_dir_remove(dir);
        }
    }
}

/* The bytes and factors handed out are those of the file: dequantised values match what was written. */
static void test_values(void **state) {
    (void)state;
    tiny_options f32 = {.n_layers = 1}, fp8 = {.n_layers = 1, .linear = FL_DTYPE_F8_E4M3, .n_shards = 3};
    tiny_checkpoint *exact = tiny_checkpoint_new(&f32), *stored = tiny_checkpoint_new(&fp8);
    char *dir = tiny_dir_make();
    tiny_checkpoint_write(stored, dir);
    fl_checkpoint *c = open_ok(dir);
    fl_tensor t;
    const char *name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight";
    const unsigned char *expected = tiny_checkpoint_tensor(exact, name)->bytes;
    assert_int_equal(fl_checkpoint_find(c, &t, "%s", name), FL_ERR_OK);
    for (int64_t i = 0; i < t.elements; i++) {
        float value;
        memcpy(&value, expected + 4 * i, 4);
        int64_t row = i / t.dims[1], col = i % t.dims[1];
        float scale = t.scale_inv[row / t.block_rows * t.scale_cols + col / t.block_cols];
        float found = fl_f32_of_e4m3(((const uint8_t *)t.data)[i]) * scale;
        assert_true(fabsf(found - value) <= fabsf(value) / 16 + scale * 0x1p-10f);
    }
    fl_checkpoint_close(c);
    tiny_checkpoint_free(exact);
    tiny_checkpoint_free(stored);
    tiny_dir_remove(dir);
}

static void test_tied_and_ignored(void **state) {
    (void)state;
    tiny_checkpoint *tiny = tiny_checkpoint_new(&(tiny_options){.tied = true, .mtp = true, .n_layers = 2});
    tiny_checkpoint_add(tiny, "model.layers.1.self_attn.rotary_emb.inv_freq", "I64", 1, (int64_t[]){16});
    char *dir = tiny_dir_make();
    tiny_checkpoint_write(tiny, dir);
    fl_checkpoint *c = open_ok(dir);
    fl_tensor head, embed, t;
    assert_int_equal(fl_checkpoint_find(c, &head, "lm_head.weight"), FL_ERR_OK);
    assert_int_equal(fl_checkpoint_find(c, &embed, "model.embed_tokens.weight"), FL_ERR_OK);
    assert_ptr_equal(head.data, embed.data);
    assert_int_equal(fl_checkpoint_find(c, &t, "model.layers.2.enorm.weight"), FL_ERR_INVALID);
    int ignored = 0;
    for (int64_t i = 0; i < fl_checkpoint_count(c); i++) {
        fl_checkpoint_at(c, i, &t);
        ignored += t.role == FL_TENSOR_IGNORED;
        if (strstr(t.name, "rotary_emb")) assert_int_equal(t.dtype, FL_N_DTYPES);
    }
    assert_true(ignored > 30);
    fl_checkpoint_close(c);
    tiny_dir_remove(dir);

    json_object_set_new(tiny->config, "num_nextn_predict_layers", json_integer(0));
    refuse(tiny, "model.layers.2.", "surplus");
}

static void test_missing_and_surplus(void **state) {
    (void)state;
    tiny_checkpoint *tiny = tiny_fp8();
    tiny_checkpoint_remove(tiny, "model.layers.1.mlp.experts.3.up_proj.weight");
    refuse(tiny, "'model.layers.1.mlp.experts.3.up_proj.weight' is missing", "expected shape [128, 128]");
    tiny = tiny_fp8();
    tiny_checkpoint_remove(tiny, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv");
    refuse(tiny, "kv_a_proj_with_mqa.weight_scale_inv' is missing", "expected shape [2, 1]");
    tiny = tiny_fp8();
    tiny_checkpoint_add(tiny, "model.layers.0.mlp.gate.weight", "F32", 2, (int64_t[]){8, 128});
    refuse(tiny, "'model.layers.0.mlp.gate.weight' is surplus", "model-00002-of-00002.safetensors");
    tiny = tiny_fp8();
    tiny_checkpoint_add(tiny, "model.norm.weight_scale_inv", "F32", 2, (int64_t[]){1, 1});
    refuse(tiny, "'model.norm.weight_scale_inv' is surplus", "");
    tiny = tiny_checkpoint_new(&(tiny_options){0});
    tiny_checkpoint_remove(tiny, "lm_head.weight");
    refuse(tiny, "lm_head.weight", "is missing");
}

static void test_shapes_and_dtypes(void **state) {
    (void)state;
    tiny_checkpoint *tiny = tiny_fp8();
    tiny_tensor *t = tiny_checkpoint_tensor(tiny, "model.layers.0.self_attn.kv_b_proj.weight");
    t->dims[0] /= 2;
    t->dims[1] *= 2;
    refuse(tiny, "expected shape [512, 128], found [256, 256]", "kv_b_proj");
    tiny = tiny_fp8();
    tiny_checkpoint_tensor(tiny, "model.norm.weight")->dtype = "I16";
    refuse(tiny, "'model.norm.weight': expected dtype F32, BF16 or F16, found I16", "model-00001-of-00002");
    tiny = tiny_fp8();
    tiny_checkpoint_tensor(tiny, "model.layers.0.self_attn.o_proj.weight")->dtype = "F8_E5M2";
    refuse(tiny, "expected dtype F32, BF16, F16 or F8_E4M3, found F8_E5M2", "o_proj");
    tiny = tiny_fp8();
    json_object_del(tiny->config, "quantization_config");
    refuse(tiny, "is F8_E4M3, but config.json has no quantization_config", "");
    tiny = tiny_fp8();
    json_object_set_new(tiny->config, "num_hidden_layers", json_integer(4));
    refuse(tiny, "model.layers.3.input_layernorm.weight", "is missing");
    tiny = tiny_fp8();
    json_object_set_new(tiny->config, "num_hidden_layers", json_integer(2));
    refuse(tiny, "model.layers.2.", "is surplus");
}

static void put_float(tiny_checkpoint *tiny, const char *name, size_t i, float value) {
    memcpy(tiny_checkpoint_tensor(tiny, name)->bytes + 4 * i, &value, sizeof value);
}

static void test_values_not_finite(void **state) {
    (void)state;
    const char *scale = "model.layers.2.mlp.experts.7.down_proj.weight_scale_inv";
    const float bad[] = {NAN, INFINITY, -INFINITY, -1.0f};
    for (size_t i = 0; i < 4; i++) {
        tiny_checkpoint *tiny = tiny_fp8();
        put_float(tiny, scale, 0, bad[i]);
        refuse(tiny, scale, i < 3 ? "expected a finite value" : "expected a scale of at least 0, found -1");
    }
    tiny_checkpoint *tiny = tiny_fp8();
    tiny_checkpoint_tensor(tiny, "model.layers.2.mlp.experts.7.up_proj.weight")->bytes[5000] = 0xff;
    refuse(tiny, "up_proj.weight': element 5000: expected a finite value, found", "nan");
    tiny = tiny_fp8();
    memcpy(tiny_checkpoint_tensor(tiny, "model.norm.weight")->bytes + 14, &(uint16_t){0x7f80}, 2);
    refuse(tiny, "'model.norm.weight': element 7: expected a finite value, found inf", "");
    tiny = tiny_fp8();
    put_float(tiny, "model.layers.1.mlp.gate.e_score_correction_bias", 3, NAN);
    refuse(tiny, "e_score_correction_bias': element 3", "");
    tiny = tiny_checkpoint_new(&(tiny_options){.linear = FL_DTYPE_F16});
    memcpy(tiny_checkpoint_tensor(tiny, "model.layers.1.self_attn.o_proj.weight")->bytes, &(uint16_t){0xfc00},
           2);
    refuse(tiny, "o_proj.weight': element 0: expected a finite value, found -inf", "");
}

/* Without reading all weights a bad one goes unseen, a bad norm or scale does not. */
static void test_open_unread(void **state) {
    (void)state;
    tiny_checkpoint *tiny = tiny_fp8();
    fl_checkpoint *c = NULL;
    char *dir = tiny_dir_make();
    tiny_checkpoint_tensor(tiny, "model.layers.2.mlp.experts.7.up_proj.weight")->bytes[5000] = 0x7f;
    tiny_checkpoint_write(tiny, dir);
    assert_int_equal(fl_checkpoint_open_unread(dir, &c), FL_ERR_OK);
    fl_checkpoint_close(c);
    assert_int_equal(fl_checkpoint_open(dir, &c), FL_ERR_DATA);
    memcpy(tiny_checkpoint_tensor(tiny, "model.norm.weight")->bytes, &(uint16_t){0x7fc0}, 2);
    tiny_checkpoint_write(tiny, dir);
    assert_int_equal(fl_checkpoint_open_unread(dir, &c), FL_ERR_DATA);
    tiny_checkpoint_free(tiny);
    tiny_dir_remove(dir);
}

static void test_no_checkpoint(void **state) {
    (void)state;
    fl_checkpoint *c = NULL;
    assert_int_equal(fl_checkpoint_open("test/no-such-folder", &c), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "config.json"));
    fl_checkpoint_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bundled_model),
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_tied_and_ignored),
        cmocka_unit_test(test_missing_and_surplus),
        cmocka_unit_test(test_shapes_and_dtypes),
        cmocka_unit_test(test_values_not_finite),
        cmocka_unit_test(test_open_unread),
        cmocka_unit_test(test_no_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
