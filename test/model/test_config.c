/* config.json as published checkpoints have it, and every way of being wrong. Each case changes members of one of the
 * bases below. */
#include "model/config.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SHAPE                                                                                                \
    "'hidden_size':7168,'num_hidden_layers':61,'num_attention_heads':128,'num_key_value_heads':128,"         \
    "'kv_lora_rank':512,'qk_nope_head_dim':128,'qk_rope_head_dim':64,'v_head_dim':128,"                      \
    "'intermediate_size':18432,'moe_intermediate_size':2048,'max_position_embeddings':163840,"               \
    "'vocab_size':129280,'rms_norm_eps':1e-06,'rope_theta':10000,'hidden_act':'silu','attention_bias':"      \
    "false,"                                                                                                 \
    "'first_k_dense_replace':3,'bos_token_id':0,'eos_token_id':1,'tie_word_embeddings':false,"
#define V3                                                                                                   \
    "{'model_type':'deepseek_v3','architectures':['DeepseekV3ForCausalLM'],'auto_map':{'AutoModel':'x.Y'}"   \
    "," SHAPE "'q_lora_rank':1536,'n_routed_experts':256,'n_shared_experts':1,'num_experts_per_tok':8,"      \
    "'n_group':8,'topk_group':4,'topk_method':'noaux_tc','scoring_func':'sigmoid','norm_topk_prob':true,"    \
    "'routed_scaling_factor':2.5,'moe_layer_freq':1,'num_nextn_predict_layers':1,'ep_size':1,"               \
    "'attention_dropout':0.0,'initializer_range':0.02,'use_cache':true,'torch_dtype':'bfloat16',"            \
    "'aux_loss_alpha':0.001,'seq_aux':true,'pretraining_tp':1,'transformers_version':'4.33.1',"              \
    "'rope_scaling':{'beta_fast':32,'beta_slow':1,'factor':40,'mscale':1.0,'mscale_all_dim':1.0,"            \
    "'original_max_position_embeddings':4096,'type':'yarn'},"                                                \
    "'quantization_config':{'activation_scheme':'dynamic','fmt':'e4m3','quant_method':'fp8',"                \
    "'weight_block_size':[128,128]}}"
#define V2                                                                                                   \
    "{'model_type':'deepseek_v2'," SHAPE                                                                     \
    "'q_lora_rank':null,'n_routed_experts':64,'n_shared_experts':2,'num_experts_per_tok':6,"                 \
    "'n_group':1,'topk_group':1,'topk_method':'greedy','scoring_func':'softmax','norm_topk_prob':false,"     \
    "'routed_scaling_factor':1.0,'rope_scaling':{'beta_fast':32,'beta_slow':1,'factor':40,'mscale':0.707,"   \
    "'mscale_all_dim':0.707,'original_max_position_embeddings':4096,'type':'yarn'}}"

/* `base` with single quotes for double ones, and its members replaced by those of `changes` (a JSON object in the same
 * spelling; a member 'DELETE' is taken out). Freed by the caller. */
static char *make(const char *base, const char *changes) {
    char *texts[] = {strdup(base), strdup(changes)};
    for (int i = 0; i < 2; i++)
        for (char *at = texts[i]; *at; at++)
            if (*at == '\'') *at = '"';
    json_t *config = json_loads(texts[0], 0, NULL), *other = json_loads(texts[1], 0, NULL), *value;
    if (!config || !other) fail_msg("bad case %s", changes);
    const char *key;
    json_object_foreach(other, key, value) {
        if (json_is_string(value) && strcmp(json_string_value(value), "DELETE") == 0)
            json_object_del(config, key);
        else json_object_set(config, key, value);
    }
    char *text = json_dumps(config, 0);
    json_decref(config);
    json_decref(other);
    free(texts[0]);
    free(texts[1]);
    return text;
}

static fl_config accept_config(const char *base, const char *changes) {
    fl_config config;
    char *text = make(base, changes);
    if (fl_config_parse(text, strlen(text), &config) != FL_ERR_OK)
        fail_msg("%s: %s", changes, fl_err_detail());
    free(text);
    return config;
}

static void refuse_config(const char *base, const char *changes, const char *expected) {
    fl_config config;
    char *text = make(base, changes);
    fl_err err = fl_config_parse(text, strlen(text), &config);
    if (err != FL_ERR_DATA || !strstr(fl_err_detail(), expected))
        fail_msg("%s: expected '%s', got %d: %s", changes, expected, err, fl_err_detail());
    free(text);
}

static void test_v3(void **state) {
    (void)state;
    fl_config c = accept_config(V3, "{}");
    assert_int_equal(c.model_type, FL_MODEL_DEEPSEEK_V3);
    assert_string_equal(c.model_type_name, "deepseek_v3");
    assert_int_equal(c.hidden, 7168);
    assert_int_equal(c.layers, 61);
    assert_int_equal(c.heads, 128);
    assert_int_equal(c.q_lora_rank, 1536);
    assert_int_equal(c.kv_lora_rank, 512);
    assert_int_equal(c.qk_nope_head_dim, 128);
    assert_int_equal(c.qk_rope_head_dim, 64);
    assert_int_equal(c.v_head_dim, 128);
    assert_int_equal(c.intermediate, 18432);
    assert_int_equal(c.moe_intermediate, 2048);
    assert_int_equal(c.n_routed_experts, 256);
    assert_int_equal(c.n_shared_experts, 1);
    assert_int_equal(c.experts_per_token, 8);
    assert_int_equal(c.n_group, 8);
    assert_int_equal(c.topk_group, 4);
    assert_int_equal(c.scoring, FL_SCORING_SIGMOID);
    assert_int_equal(c.topk_method, FL_TOPK_NOAUX_TC);
    assert_true(c.norm_topk_prob);
    assert_float_equal(c.routed_scaling_factor, 2.5, 0);
    assert_float_equal(c.rms_norm_eps, 1e-6, 0);
    assert_float_equal(c.rope_theta, 10000, 0);
    assert_int_equal(c.rope_scaling.type, FL_ROPE_SCALING_YARN);
    assert_float_equal(c.rope_scaling.factor, 40, 0);
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 4096);
    assert_float_equal(c.rope_scaling.mscale_all_dim, 1, 0);
    assert_int_equal(c.max_position_embeddings, 163840);
    assert_int_equal(c.n_mtp_layers, 1);
    assert_int_equal(c.n_eos_ids, 1);
    assert_int_equal(c.eos_ids[0], 1);
    assert_int_equal(c.bos_id, 0);
    assert_int_equal(c.quantisation.type, FL_QUANTISATION_FP8);
    assert_int_equal(c.quantisation.block_rows, 128);
    assert_false(fl_config_layer_is_moe(&c, 2));
    assert_true(fl_config_layer_is_moe(&c, 3));
    c.moe_layer_freq = 2;
    assert_false(fl_config_layer_is_moe(&c, 3));
    assert_true(fl_config_layer_is_moe(&c, 4));
}

static void test_v2(void **state) {
    (void)state;
    fl_config c = accept_config(V2, "{}");
    assert_int_equal(c.model_type, FL_MODEL_DEEPSEEK_V2);
    assert_int_equal(c.q_lora_rank, 0);
    assert_int_equal(c.scoring, FL_SCORING_SOFTMAX);
    assert_int_equal(c.topk_method, FL_TOPK_GREEDY);
    assert_false(c.norm_topk_prob);
    assert_int_equal(c.moe_layer_freq, 1);
    assert_float_equal(c.rope_scaling.mscale, 0.707, 0);
    assert_int_equal(c.quantisation.type, FL_QUANTISATION_NONE);
    c = accept_config(V2, "{'q_lora_rank':1536,'n_routed_experts':160,'n_group':8,'topk_group':3,"
                          "'topk_method':'group_limited_greedy','routed_scaling_factor':16.0}");
    assert_int_equal(c.topk_method, FL_TOPK_GROUP_LIMITED_GREEDY);
    c = accept_config(V2,
                      "{'n_group':null,'topk_group':null,'topk_method':'DELETE','scoring_func':'DELETE'}");
    assert_int_equal(c.n_group, 1);
    assert_int_equal(c.topk_method, FL_TOPK_GREEDY);
    refuse_config(V2, "{'norm_topk_prob':true,'routed_scaling_factor':16.0}", "disagree");
    accept_config(V2, "{'norm_topk_prob':true}");
}

static void test_kimi_and_dense(void **state) {
    (void)state;
    fl_config c =
        accept_config(V3, "{'model_type':'kimi_k2','num_attention_heads':64,'num_key_value_heads':64,"
                          "'n_routed_experts':384,'n_group':1,'topk_group':1,'first_k_dense_replace':1,"
                          "'routed_scaling_factor':2.827,'rope_theta':50000.0,'vocab_size':163840,"
                          "'bos_token_id':163584,'eos_token_id':[163585,163586],"
                          "'num_nextn_predict_layers':0}");
    assert_int_equal(c.model_type, FL_MODEL_KIMI_K2);
    assert_int_equal(c.n_eos_ids, 2);
    assert_int_equal(c.eos_ids[1], 163586);
    c = accept_config(V3, "{'n_routed_experts':null,'n_shared_experts':null}");
    assert_int_equal(c.n_routed_experts, 0);
    assert_int_equal(c.experts_per_token, 0);
    assert_false(fl_config_layer_is_moe(&c, 60));
}

static void test_rope(void **state) {
    (void)state;
    fl_config c = accept_config(V3, "{'rope_scaling':null}");
    assert_int_equal(c.rope_scaling.type, FL_ROPE_SCALING_NONE);
    assert_float_equal(c.rope_scaling.factor, 0, 0);
    c = accept_config(
        V3, "{'rope_scaling':'DELETE','rope_theta':'DELETE','rope_interleave':true,'dtype':'bfloat16',"
            "'rope_parameters':{'rope_type':'default','rope_theta':500000.0}}");
    assert_int_equal(c.rope_scaling.type, FL_ROPE_SCALING_NONE);
    assert_float_equal(c.rope_theta, 500000, 0);
    c = accept_config(V3, "{'rope_scaling':{'rope_type':'yarn','type':'yarn','factor':4,"
                          "'original_max_position_embeddings':131072}}");
    assert_float_equal(c.rope_scaling.beta_fast, 32, 0);
    assert_float_equal(c.rope_scaling.beta_slow, 1, 0);
    assert_float_equal(c.rope_scaling.mscale, 1, 0);
    assert_float_equal(c.rope_scaling.mscale_all_dim, 0, 0);
    refuse_config(V3, "{'rope_scaling':{'type':'linear','factor':4}}",
                  "field 'type': expected one of default, yarn");
    refuse_config(V3, "{'rope_scaling':{'factor':4}}", "'rope_scaling.type' is missing");
    refuse_config(V3, "{'rope_scaling':{'type':'yarn','rope_type':'default','factor':4}}", "differ");
    refuse_config(V3, "{'rope_scaling':{'type':'yarn','original_max_position_embeddings':4096}}", "factor");
    refuse_config(V3, "{'rope_scaling':{'type':'yarn','factor':4}}", "original_max_position_embeddings");
    refuse_config(V3, "{'rope_scaling':{'type':'yarn','factor':0.5,'original_max_position_embeddings':4096}}",
                  "'rope_scaling.factor': expected a number in 1..10000, found 0.5");
    refuse_config(V3,
                  "{'rope_scaling':{'type':'yarn','factor':4,'original_max_position_embeddings':4096,"
                  "'beta_fast':1,'beta_slow':2}}",
                  "beta_slow 2 is above beta_fast 1");
    refuse_config(V3, "{'rope_scaling':{'type':'yarn','gain':4}}", "'rope_scaling.gain' is not known");
    refuse_config(V3, "{'rope_scaling':[1]}", "expected an object or null");
    refuse_config(V3, "{'rope_parameters':{'rope_type':'default'}}", "both rope_scaling and rope_parameters");
    refuse_config(V3, "{'rope_theta':'DELETE'}", "'rope_theta' is missing");
    refuse_config(V3, "{'rope_theta':-1}", "'rope_theta': expected");
    refuse_config(V3, "{'rope_interleave':false}", "'rope_interleave': expected true, found false");
}

static void test_refused_fields(void **state) {
    (void)state;
    refuse_config(V3, "{'model_type':'deepseek_v32'}", "'deepseek_v32'");
    refuse_config(V3, "{'model_type':'DELETE'}", "'model_type' is missing");
    refuse_config(V3, "{'model_type':7}", "'model_type': expected a string");
    refuse_config(V3, "{'index_topk':2048}",
                  "'index_topk' is not supported: the model uses a learned sparse");
    refuse_config(V3, "{'sliding_window':4096}", "'sliding_window' is not supported");
    accept_config(V3, "{'sliding_window':null,'use_sliding_window':false}");
    refuse_config(V3, "{'text_config':{}}", "wraps several models");
    refuse_config(V3, "{'foo':1}", "field 'foo' is not known to firstlight");
    refuse_config(V3, "{'foo':null}", "field 'foo' is not known to firstlight");
    refuse_config(V3, "{'hidden_act':'gelu'}", "'hidden_act': expected \"silu\", found \"gelu\"");
    refuse_config(V3, "{'attention_bias':true}", "'attention_bias': expected false, found true");
    refuse_config(V3, "{'pretraining_tp':2}", "'pretraining_tp': expected 1, found 2");
    refuse_config(V3, "{'num_key_value_heads':1}", "'num_key_value_heads': expected 128");
    refuse_config(V3, "{'head_dim':192}", "'head_dim': expected 64");
    accept_config(V3, "{'head_dim':64,'qk_head_dim':192,'pretraining_tp':1.0}");
    refuse_config(V3, "{'tie_word_embeddings':1}", "'tie_word_embeddings': expected true or false");
}

static void test_routing(void **state) {
    (void)state;
    refuse_config(V3, "{'n_group':7}", "n_group 7 does not divide n_routed_experts 256");
    refuse_config(V3, "{'topk_group':9}", "topk_group 9 is above n_group 8");
    refuse_config(V3, "{'num_experts_per_tok':129}", "above the 128 experts that can be chosen");
    refuse_config(V3, "{'n_group':256,'topk_group':8}", "groups of at least 2 experts");
    refuse_config(V3, "{'topk_method':'greedy'}", "'greedy' with scoring_func 'sigmoid' is not supported");
    refuse_config(V3, "{'scoring_func':'softmax'}", "'noaux_tc' with scoring_func 'softmax'");
    refuse_config(V3, "{'topk_method':'best'}", "greedy, group_limited_greedy, noaux_tc, found 'best'");
    refuse_config(V3, "{'first_k_dense_replace':62}", "above num_hidden_layers 61");
    static const char *const needed[] = {"moe_intermediate_size",
                                         "num_experts_per_tok",
                                         "first_k_dense_replace",
                                         "norm_topk_prob",
                                         "routed_scaling_factor",
                                         "n_group",
                                         "topk_group"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        char changes[80], expected[80];
        snprintf(changes, sizeof changes, "{'%s':'DELETE'}", needed[i]);
        snprintf(expected, sizeof expected, "'%s' is missing", needed[i]);
        refuse_config(V3, changes, expected);
    }
}

/* Every number, each of the values that have broken other loaders. */
static void test_hostile_numbers(void **state) {
    (void)state;
    static const char *const fields[] = {
        "hidden_size",         "num_hidden_layers",        "num_attention_heads", "q_lora_rank",
        "kv_lora_rank",        "qk_nope_head_dim",         "qk_rope_head_dim",    "v_head_dim",
        "intermediate_size",   "moe_intermediate_size",    "n_routed_experts",    "n_shared_experts",
        "num_experts_per_tok", "first_k_dense_replace",    "moe_layer_freq",      "n_group",
        "topk_group",          "routed_scaling_factor",    "rms_norm_eps",        "max_position_embeddings",
        "vocab_size",          "num_nextn_predict_layers", "eos_token_id",        "bos_token_id",
        "num_key_value_heads"};
    static const char *const values[] = {
        "-1", "1e308", "2147483648", "9007199254740993", "9223372036854775807", "'1'", "true",
        "{}", "-0.5",  "[[]]"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        for (size_t j = 0; j < sizeof values / sizeof values[0]; j++) {
            char changes[160];
            snprintf(changes, sizeof changes, "{'%s':%s}", fields[i], values[j]);
            refuse_config(V3, changes, fields[i]);
        }
    }
    refuse_config(V3, "{'qk_rope_head_dim':63}", "qk_rope_head_dim 63 is odd");
}

static void refuse_text(const char *text, size_t n_bytes, const char *expected) {
    fl_config config;
    fl_err err = fl_config_parse(text, n_bytes, &config);
    if (err != FL_ERR_DATA || !strstr(fl_err_detail(), expected))
        fail_msg("%.40s: expected '%s', got %d: %s", text, expected, err, fl_err_detail());
}

static void test_hostile_json(void **state) {
    (void)state;
    refuse_text("", 0, "not valid JSON");
    refuse_text("[]", 2, "expected a JSON object");
    refuse_text("{\"model_type\":\"deepseek_v3\",\"model_type\":\"deepseek_v3\"}", 53, "not valid JSON");
    refuse_text("{\"hidden_size\":9223372036854775808}", 35, "not valid JSON");
    refuse_text("{\"hidden_size\":NaN}", 19, "not valid JSON");
    refuse_text("{\"hidden_size\":1e999}", 21, "not valid JSON");
    refuse_text("{} {}", 5, "not valid JSON");
    refuse_text("{\"a\":\"\\u0000\"}", 14, "not valid JSON");
    size_t depth = 100000;
    char *deep = malloc(depth);
    assert_non_null(deep);
    memset(deep, '[', depth);
    refuse_text(deep, depth, "not valid JSON");
    free(deep);
    size_t n = 1 << 20;
    char *longest = malloc(n);
    assert_non_null(longest);
    memset(longest, 'k', n);
    memcpy(longest, "{\"", 2);
    memcpy(longest + n - 4, "\":1}", 4);
    refuse_text(longest, n, "'model_type' is missing");
    free(longest);
}

static void test_quantisation(void **state) {
    (void)state;
#define Q(members) "{'quantization_config':{" members "}}"
    accept_config(V3, Q("'quant_method':'fp8','fmt':'e4m3','weight_block_size':[32,64],'scale_fmt':'ue8m0'"));
    refuse_config(V3, Q("'quant_method':'awq','bits':4"), "'quant_method': expected one of fp8, found 'awq'");
    refuse_config(V3, Q("'fmt':'e4m3'"), "quant_method' is missing");
    refuse_config(V3, Q("'quant_method':'fp8'"), "weight_block_size': expected [rows, columns]");
    refuse_config(V3, Q("'quant_method':'fp8','weight_block_size':[128]"), "expected [rows, columns]");
    refuse_config(V3, Q("'quant_method':'fp8','weight_block_size':[128,0]"),
                  "expected a whole number in 1..65536");
    refuse_config(V3, Q("'quant_method':'fp8','fmt':'e5m2','weight_block_size':[128,128]"), "found 'e5m2'");
    refuse_config(V3, Q("'quant_method':'fp8','weight_block_size':[128,128],'bits':4"),
                  ".bits' is not known");
    refuse_config(V3, Q("'quant_method':'fp8','weight_block_size':[128,128],'activation_scheme':'static'"),
                  "expected \"dynamic\", found \"static\"");
    refuse_config(V3, "{'quantization_config':7}", "expected an object or null");
#undef Q
}

static void test_generation(void **state) {
    (void)state;
    fl_config c = accept_config(V3, "{}");
    const char *good = "{\"bos_token_id\":5,\"eos_token_id\":[2,9],\"temperature\":0.6,\"anything\":{}}";
    assert_int_equal(fl_config_parse_generation(good, strlen(good), &c), FL_ERR_OK);
    assert_int_equal(c.bos_id, 5);
    assert_int_equal(c.n_eos_ids, 2);
    assert_int_equal(c.eos_ids[1], 9);
    assert_int_equal(fl_config_parse_generation("{}", 2, &c), FL_ERR_OK);
    assert_int_equal(c.n_eos_ids, 2);
    static const char *const bad[] = {
        "{\"eos_token_id\":129280}", "{\"eos_token_id\":-1}",
        "{\"eos_token_id\":\"1\"}",  "{\"eos_token_id\":[1,1.5]}",
        "{\"bos_token_id\":[1]}",    "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
        "{\"eos_token_id\":1",       "7"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(fl_config_parse_generation(bad[i], strlen(bad[i]), &c), FL_ERR_DATA);
        assert_memory_equal(fl_err_detail(), "generation_config.json: ", 24);
    }
}

static void test_bundled(void **state) {
    (void)state;
    fl_config c;
    assert_int_equal(fl_config_read("build/models/spark-66m", &c), FL_ERR_OK);
    assert_int_equal(c.layers, 8);
    assert_int_equal(c.n_group, 4);
    assert_float_equal(c.rope_theta, 500000, 0);
    assert_int_equal(c.rope_scaling.type, FL_ROPE_SCALING_NONE);
    assert_int_equal(c.eos_ids[0], 1);
    assert_int_equal(fl_config_read("test/no-such-folder", &c), FL_ERR_DATA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v3),
        cmocka_unit_test(test_v2),
        cmocka_unit_test(test_kimi_and_dense),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_refused_fields),
        cmocka_unit_test(test_routing),
        cmocka_unit_test(test_hostile_numbers),
        cmocka_unit_test(test_hostile_json),
        cmocka_unit_test(test_quantisation),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_bundled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
