/* Values come from splitmix64 seeded by the tensor's name, so adding a tensor changes no other. */
#include "model/tiny_checkpoint.h"

#include "base/half.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HIDDEN = 128, HEADS = 4, Q_RANK = 96, KV_RANK = 128, NOPE = 64, ROPE = 32, V_DIM = 64 };
enum { DENSE = 256, EXPERT = 128, EXPERTS = 8, VOCAB = 512, BLOCK = 128 };

static _Noreturn void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("tiny_checkpoint: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

static void *must(void *memory) {
    if (!memory) die("out of memory");
    return memory;
}

/* ---- values
 * ---------------------------------------------------------------------------------------------------- */

static uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* -1..1 */
static float random_unit(uint64_t *state) {
    return (float)((double)(random_next(state) >> 11) * 0x1p-52 - 1.0);
}

static uint64_t seed_of(uint64_t seed, const char *name) {
    uint64_t hash = 0xcbf29ce484222325u ^ seed;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

/* Nearest e4m3 code; |value| <= 448. The positive codes 0..0x7e are in order of their values. */
static uint8_t e4m3_of(float value) {
    float magnitude = fabsf(value);
    int low = 0, high = 0x7e;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (fl_f32_of_e4m3((uint8_t)middle) <= magnitude) low = middle;
        else high = middle;
    }
    float below = magnitude - fl_f32_of_e4m3((uint8_t)low), above = fl_f32_of_e4m3((uint8_t)high) - magnitude;
    return (uint8_t)((above < below ? high : low) | (value < 0 ? 0x80 : 0));
}

/* Rounds towards zero: good enough for weights that only have to be reproducible. */
static uint16_t f16_of(float value) {
    uint32_t bits = fl_bits_of_f32(value), sign = (bits >> 16) & 0x8000u, exponent = (bits >> 23) & 255u;
    if (exponent < 113) return (uint16_t)sign;
    if (exponent > 142) die("%g does not fit F16", (double)value);
    return (uint16_t)(sign | (exponent - 112) << 10 | ((bits >> 13) & 1023u));
}

static void store(fl_dtype dtype, unsigned char *bytes, int64_t i, float value) {
    uint16_t half = dtype == FL_DTYPE_F16 ? f16_of(value) : fl_bf16_of_f32(value);
    if (dtype == FL_DTYPE_F32) memcpy(bytes + 4 * i, &value, 4);
    if (dtype == FL_DTYPE_BF16 || dtype == FL_DTYPE_F16) memcpy(bytes + 2 * i, &half, 2);
    if (dtype == FL_DTYPE_F8_E4M3) bytes[i] = e4m3_of(value);
}

/* ---- tensors
 * --------------------------------------------------------------------------------------------------- */

tiny_tensor *tiny_checkpoint_add(tiny_checkpoint *tiny, const char *name, const char *dtype, int32_t ndim,
                                 const int64_t *dims) {
    if (tiny->n_tensors == tiny->capacity) {
        tiny->capacity = tiny->capacity ? 2 * tiny->capacity : 64;
        tiny->tensors = must(realloc(tiny->tensors, (size_t)tiny->capacity * sizeof *tiny->tensors));
    }
    tiny_tensor *t = &tiny->tensors[tiny->n_tensors++];
    *t = (tiny_tensor){.dtype = dtype, .ndim = ndim};
    snprintf(t->name, sizeof t->name, "%s", name);
    size_t size = strcmp(dtype, "F32") == 0 ? 4 : strstr(dtype, "16") ? 2 : strstr(dtype, "64") ? 8 : 1;
    t->n_bytes = size;
    for (int32_t i = 0; i < ndim; i++) {
        t->dims[i] = dims[i];
        t->n_bytes *= (size_t)dims[i];
    }
    t->bytes = must(calloc(t->n_bytes ? t->n_bytes : 1, 1));
    return t;
}

/* F8_E4M3: each block is scaled so that its largest value becomes 448. */
static void add_fp8(tiny_checkpoint *tiny, const char *name, const int64_t *dims, const float *values) {
    char scale_name[160];
    int64_t rows = (dims[0] + BLOCK - 1) / BLOCK, cols = (dims[1] + BLOCK - 1) / BLOCK;
    float *scales = must(calloc((size_t)(rows * cols), sizeof *scales));
    for (int64_t i = 0; i < dims[0] * dims[1]; i++) {
        float *scale = &scales[i / dims[1] / BLOCK * cols + i % dims[1] / BLOCK];
        *scale = fmaxf(*scale, fabsf(values[i]) / 448.0f);
    }
    tiny_tensor *t = tiny_checkpoint_add(tiny, name, "F8_E4M3", 2, dims);
    for (int64_t i = 0; i < dims[0] * dims[1]; i++)
        t->bytes[i] = e4m3_of(
            fminf(448, fmaxf(-448, values[i] / scales[i / dims[1] / BLOCK * cols + i % dims[1] / BLOCK])));
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    t = tiny_checkpoint_add(tiny, scale_name, "F32", 2, (int64_t[]){rows, cols});
    memcpy(t->bytes, scales, t->n_bytes);
    free(scales);
}

/* Values centre + -spread..spread. */
static void add_random(tiny_checkpoint *tiny, const char *name, fl_dtype dtype, const int64_t dims[2],
                       float centre, float spread) {
    uint64_t state = seed_of(tiny->options.seed, name);
    int32_t ndim = dims[1] ? 2 : 1;
    int64_t n = dims[0] * (dims[1] ? dims[1] : 1);
    float *values = must(malloc((size_t)n * sizeof *values));
    for (int64_t i = 0; i < n; i++) values[i] = centre + spread * random_unit(&state);
    if (dtype == FL_DTYPE_F8_E4M3) {
        add_fp8(tiny, name, dims, values);
    } else {
        tiny_tensor *t = tiny_checkpoint_add(tiny, name, fl_dtype_name(dtype), ndim, dims);
        for (int64_t i = 0; i < n; i++) store(dtype, t->bytes, i, values[i]);
    }
    free(values);
}

static void name_of(char name[128], int32_t layer, const char *part) {
    snprintf(name, 128, "model.layers.%d.%s", layer, part);
}

static void add_linear(tiny_checkpoint *tiny, int32_t layer, const char *part, int64_t out, int64_t in) {
    char name[128];
    name_of(name, layer, part);
    add_random(tiny, name, tiny->options.linear, (int64_t[]){out, in}, 0, sqrtf(3.0f / (float)in));
}

static void add_norm(tiny_checkpoint *tiny, int32_t layer, const char *part, int64_t n) {
    char name[128];
    name_of(name, layer, part);
    add_random(tiny, name, tiny->options.others, (int64_t[]){n, 0}, 1, 0.25f);
}

static void add_mlp(tiny_checkpoint *tiny, int32_t layer, const char *where, int64_t width) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        char part[96];
        snprintf(part, sizeof part, "%s.%s.weight", where, parts[i]);
        add_linear(tiny, layer, part, i == 2 ? HIDDEN : width, i == 2 ? width : HIDDEN);
    }
}

static void add_experts(tiny_checkpoint *tiny, int32_t layer) {
    tiny_kind kind = tiny->options.kind;
    char name[128];
    name_of(name, layer, "mlp.gate.weight");
    add_random(tiny, name, FL_DTYPE_F32, (int64_t[]){EXPERTS, HIDDEN}, 0, 0.2f);
    if (kind == TINY_V3 || kind == TINY_KIMI) {
        name_of(name, layer, "mlp.gate.e_score_correction_bias");
        add_random(tiny, name, FL_DTYPE_F32, (int64_t[]){EXPERTS, 0}, 0.1f, 0.1f);
    }
    add_mlp(tiny, layer, "mlp.shared_experts", kind == TINY_V2_LITE ? 2 * EXPERT : EXPERT);
    for (int expert = 0; expert < EXPERTS; expert++) {
        char where[64];
        snprintf(where, sizeof where, "mlp.experts.%d", expert);
        add_mlp(tiny, layer, where, EXPERT);
    }
}

static void add_layer(tiny_checkpoint *tiny, int32_t layer) {
    add_norm(tiny, layer, "input_layernorm.weight", HIDDEN);
    add_norm(tiny, layer, "post_attention_layernorm.weight", HIDDEN);
    if (tiny->options.kind == TINY_V2_LITE) {
        add_linear(tiny, layer, "self_attn.q_proj.weight", HEADS * (NOPE + ROPE), HIDDEN);
    } else {
        add_linear(tiny, layer, "self_attn.q_a_proj.weight", Q_RANK, HIDDEN);
        add_norm(tiny, layer, "self_attn.q_a_layernorm.weight", Q_RANK);
        add_linear(tiny, layer, "self_attn.q_b_proj.weight", HEADS * (NOPE + ROPE), Q_RANK);
    }
    add_linear(tiny, layer, "self_attn.kv_a_proj_with_mqa.weight", KV_RANK + ROPE, HIDDEN);
    add_norm(tiny, layer, "self_attn.kv_a_layernorm.weight", KV_RANK);
    add_linear(tiny, layer, "self_attn.kv_b_proj.weight", HEADS * (NOPE + V_DIM), KV_RANK);
    add_linear(tiny, layer, "self_attn.o_proj.weight", HIDDEN, HEADS * V_DIM);
    if (layer == 0 || tiny->options.kind == TINY_DENSE) add_mlp(tiny, layer, "mlp", DENSE);
    else add_experts(tiny, layer);
}

static void add_mtp_extras(tiny_checkpoint *tiny, int32_t layer) {
    add_norm(tiny, layer, "enorm.weight", HIDDEN);
    add_norm(tiny, layer, "hnorm.weight", HIDDEN);
    add_norm(tiny, layer, "shared_head.norm.weight", HIDDEN);
    char name[128];
    name_of(name, layer, "eh_proj.weight");
    add_random(tiny, name, tiny->options.others, (int64_t[]){HIDDEN, 2 * HIDDEN}, 0, 0.1f);
}

/* ---- configuration
 * --------------------------------------------------------------------------------------------- */

static void set_int(json_t *object, const char *key, int64_t value) {
    json_object_set_new(object, key, json_integer(value));
}

static void set_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key, json_real(value));
}

static json_t *yarn(double factor, double beta_fast, double mscale) {
    return must(json_pack("{s:s, s:f, s:i, s:f, s:f, s:f, s:f}", "type", "yarn", "factor", factor,
                          "original_max_position_embeddings", 4096, "beta_fast", beta_fast, "beta_slow", 1.0,
                          "mscale", mscale, "mscale_all_dim", mscale));
}

static void set_shape(json_t *c, const tiny_options *o) {
    set_int(c, "hidden_size", HIDDEN);
    set_int(c, "num_hidden_layers", o->n_layers);
    set_int(c, "num_attention_heads", HEADS);
    set_int(c, "num_key_value_heads", HEADS);
    json_object_set_new(c, "q_lora_rank", o->kind == TINY_V2_LITE ? json_null() : json_integer(Q_RANK));
    set_int(c, "kv_lora_rank", KV_RANK);
    set_int(c, "qk_nope_head_dim", NOPE);
    set_int(c, "qk_rope_head_dim", ROPE);
    set_int(c, "v_head_dim", V_DIM);
    set_int(c, "intermediate_size", DENSE);
    set_int(c, "vocab_size", VOCAB);
    set_int(c, "max_position_embeddings", 131072);
    set_int(c, "num_nextn_predict_layers", o->mtp);
    set_real(c, "rms_norm_eps", 1e-6);
    set_real(c, "rope_theta", o->kind == TINY_KIMI ? 50000.0 : 10000.0);
    json_object_set_new(c, "tie_word_embeddings", json_boolean(o->tied));
}

static void set_routing(json_t *c, tiny_kind kind) {
    bool sigmoid = kind == TINY_V3 || kind == TINY_KIMI, groups = kind == TINY_V3 || kind == TINY_V2;
    set_int(c, "n_routed_experts", EXPERTS);
    set_int(c, "n_shared_experts", kind == TINY_V2_LITE ? 2 : 1);
    set_int(c, "num_experts_per_tok", 2);
    set_int(c, "moe_intermediate_size", EXPERT);
    set_int(c, "first_k_dense_replace", 1);
    set_int(c, "moe_layer_freq", 1);
    set_int(c, "n_group", groups ? 4 : 1);
    set_int(c, "topk_group", groups ? 2 : 1);
    json_object_set_new(c, "norm_topk_prob", json_boolean(sigmoid));
    set_real(c, "routed_scaling_factor", sigmoid ? 2.5 : 1.0);
    json_object_set_new(c, "scoring_func", json_string(sigmoid ? "sigmoid" : "softmax"));
    json_object_set_new(c, "topk_method",
                        json_string(sigmoid           ? "noaux_tc"
                                    : kind == TINY_V2 ? "group_limited_greedy"
                                                      : "greedy"));
}

static json_t *make_config(const tiny_options *o) {
    static const char *const types[] = {"deepseek_v3", "deepseek_v2", "deepseek_v2", "kimi_k2",
                                        "deepseek_v3"};
    json_t *c = must(json_object());
    json_object_set_new(c, "model_type", json_string(types[o->kind]));
    json_object_set_new(c, "hidden_act", json_string("silu"));
    json_object_set_new(c, "attention_bias", json_false());
    set_int(c, "bos_token_id", 0);
    set_int(c, "eos_token_id", 1);
    set_shape(c, o);
    if (o->kind == TINY_V3 || o->kind == TINY_V2) json_object_set_new(c, "rope_scaling", yarn(40, 32, 1));
    if (o->kind == TINY_V2_LITE) json_object_set_new(c, "rope_scaling", yarn(40, 32, 0.707));
    if (o->kind == TINY_KIMI) json_object_set_new(c, "rope_scaling", yarn(32, 1, 1));
    if (o->kind != TINY_DENSE) set_routing(c, o->kind);
    if (o->linear == FL_DTYPE_F8_E4M3)
        json_object_set_new(
            c, "quantization_config",
            must(json_pack("{s:s, s:s, s:s, s:[i, i]}", "quant_method", "fp8", "fmt", "e4m3",
                           "activation_scheme", "dynamic", "weight_block_size", BLOCK, BLOCK)));
    return c;
}

/* ---- whole checkpoints
 * ----------------------------------------------------------------------------------------- */

tiny_checkpoint *tiny_checkpoint_new(const tiny_options *options) {
    tiny_checkpoint *tiny = must(calloc(1, sizeof *tiny));
    tiny->options = *options;
    if (tiny->options.n_layers == 0) tiny->options.n_layers = 3;
    const tiny_options *o = &tiny->options;
    tiny->config = make_config(o);
    add_random(tiny, "model.embed_tokens.weight", o->others, (int64_t[]){VOCAB, HIDDEN}, 0, 1);
    add_random(tiny, "model.norm.weight", o->others, (int64_t[]){HIDDEN, 0}, 1, 0.25f);
    if (!o->tied) add_random(tiny, "lm_head.weight", o->others, (int64_t[]){VOCAB, HIDDEN}, 0, 0.2f);
    for (int32_t layer = 0; layer < o->n_layers + (o->mtp ? 1 : 0); layer++) add_layer(tiny, layer);
    if (o->mtp) add_mtp_extras(tiny, o->n_layers);
    return tiny;
}

void tiny_checkpoint_free(tiny_checkpoint *tiny) {
    if (!tiny) return;
    json_decref(tiny->config);
    for (int32_t i = 0; i < tiny->n_tensors; i++) free(tiny->tensors[i].bytes);
    free(tiny->tensors);
    free(tiny);
}

tiny_tensor *tiny_checkpoint_tensor(tiny_checkpoint *tiny, const char *name) {
    for (int32_t i = 0; i < tiny->n_tensors; i++)
        if (strcmp(tiny->tensors[i].name, name) == 0) return &tiny->tensors[i];
    die("no tensor '%s'", name);
}

void tiny_checkpoint_remove(tiny_checkpoint *tiny, const char *name) {
    tiny_tensor *t = tiny_checkpoint_tensor(tiny, name);
    free(t->bytes);
    *t = tiny->tensors[--tiny->n_tensors];
}

/* Tensors first..last-1 as one safetensors file. */
static void write_shard(const tiny_checkpoint *tiny, const char *dir, const char *file, int32_t first,
                        int32_t last) {
    json_t *header = must(json_object());
    size_t data_bytes = 0;
    for (int32_t i = first; i < last; i++) {
        const tiny_tensor *t = &tiny->tensors[i];
        json_t *shape = must(json_array());
        json_int_t begin = (json_int_t)data_bytes, end = begin + (json_int_t)t->n_bytes;
        for (int32_t d = 0; d < t->ndim; d++) json_array_append_new(shape, json_integer(t->dims[d]));
        json_t *entry =
            json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape, "data_offsets", begin, end);
        json_object_set_new(header, t->name, must(entry));
        data_bytes += t->n_bytes;
    }
    char *text = must(json_dumps(header, JSON_COMPACT));
    uint64_t header_bytes = strlen(text);
    unsigned char *bytes = must(malloc(8 + header_bytes + data_bytes)), *at = bytes + 8 + header_bytes;
    memcpy(bytes, &header_bytes, 8);
    memcpy(bytes + 8, text, header_bytes);
    for (int32_t i = first; i < last; i++) {
        memcpy(at, tiny->tensors[i].bytes, tiny->tensors[i].n_bytes);
        at += tiny->tensors[i].n_bytes;
    }
    tiny_file_write(dir, file, bytes, 8 + header_bytes + data_bytes);
    free(bytes);
    free(text);
    json_decref(header);
}

static void write_json(const char *dir, const char *file, json_t *value) {
    char *text = must(json_dumps(value, JSON_INDENT(1)));
    tiny_file_write(dir, file, text, strlen(text));
    free(text);
}

static void write_shards(const tiny_checkpoint *tiny, const char *dir, int32_t n_shards) {
    json_t *map = must(json_object()), *index = must(json_object());
    for (int32_t shard = 0; shard < n_shards; shard++) {
        char file[64];
        int32_t first = tiny->n_tensors * shard / n_shards, last = tiny->n_tensors * (shard + 1) / n_shards;
        snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", shard + 1, n_shards);
        write_shard(tiny, dir, file, first, last);
        for (int32_t i = first; i < last; i++)
            json_object_set_new(map, tiny->tensors[i].name, json_string(file));
    }
    json_object_set_new(index, "weight_map", map);
    write_json(dir, "model.safetensors.index.json", index);
    json_decref(index);
}

void tiny_checkpoint_write(const tiny_checkpoint *tiny, const char *dir) {
    write_json(dir, "config.json", tiny->config);
    json_t *generation = must(json_pack("{s:i, s:[i, i]}", "bos_token_id", 0, "eos_token_id", 1, 3));
    write_json(dir, "generation_config.json", generation);
    json_decref(generation);
    if (tiny->options.n_shards > 0) write_shards(tiny, dir, tiny->options.n_shards);
    else write_shard(tiny, dir, "model.safetensors", 0, tiny->n_tensors);
}

/* ---- files
 * ----------------------------------------------------------------------------------------------------- */

static void path_of(char path[4096], const char *dir, const char *name) {
    if (snprintf(path, 4096, "%s/%s", dir, name) >= 4096) die("path too long");
}

char *tiny_dir_make(void) {
    const char *base = getenv("TMPDIR");
    char path[4096];
    if (!base || !*base) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    path_of(path, base, "firstlight-test-XXXXXX");
    if (!mkdtemp(path)) die("cannot make a folder %s", path);
    return must(strdup(path));
}

void tiny_dir_remove(char *dir) {
    DIR *entries = opendir(dir);
    if (!entries) die("cannot list %s", dir);
    for (struct dirent *entry = readdir(entries); entry; entry = readdir(entries))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            tiny_file_remove(dir, entry->d_name);
    closedir(entries);
    if (rmdir(dir) != 0) die("cannot remove %s", dir);
    free(dir);
}

unsigned char *tiny_file_read(const char *dir, const char *name, size_t *n_bytes) {
    char path[4096];
    path_of(path, dir, name);
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) die("cannot read %s", path);
    long size = ftell(file);
    rewind(file);
    unsigned char *bytes = must(malloc((size_t)size + 1));
    if (fread(bytes, 1, (size_t)size, file) != (size_t)size) die("cannot read %s", path);
    fclose(file);
    bytes[size] = '\0';
    *n_bytes = (size_t)size;
    return bytes;
}

void tiny_file_write(const char *dir, const char *name, const void *bytes, size_t n_bytes) {
    char path[4096];
    path_of(path, dir, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n_bytes, file) != n_bytes || fclose(file) != 0)
        die("cannot write %s", path);
}

void tiny_file_remove(const char *dir, const char *name) {
    char path[4096];
    path_of(path, dir, name);
    if (unlink(path) != 0 && rmdir(path) != 0) die("cannot remove %s", path);
}
