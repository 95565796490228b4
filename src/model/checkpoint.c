/* Opening runs in one direction: configuration, shards, one sorted table of all tensors, the manifest claims
 * its tensors from the table, what is left is surplus, then the values. */
#include "model/checkpoint.h"

#include "base/half.h"
#include "model/finite.h"
#include "model/manifest.h"
#include "model/shard_set.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One tensor of the files and what became of it. */
typedef struct slot {
    const fl_shard *shard;
    const fl_safetensors_entry *entry;
    bool claimed;
    fl_tensor_role role;
    fl_manifest_kind kind;    /* of a weight */
    const struct slot *scale; /* of an F8_E4M3 weight */
    float *factors;           /* of a scale: its values in fp32, inside checkpoint.factors */
} slot;

struct fl_checkpoint {
    fl_config config;
    fl_shard_set set;
    slot *slots; /* [n_slots] by name */
    int64_t n_slots;
    float *factors; /* all block scales, aligned, one after the other */
};

static const char scale_suffix[] = "_scale_inv";

static int compare_slots(const void *left, const void *right) {
    return strcmp(((const slot *)left)->entry->name, ((const slot *)right)->entry->name);
}

static slot *find_slot(const fl_checkpoint *c, const char *name) {
    fl_safetensors_entry entry = {.name = name};
    slot key = {.entry = &entry};
    if (c->n_slots == 0) return NULL;
    return bsearch(&key, c->slots, (size_t)c->n_slots, sizeof *c->slots, compare_slots);
}

static fl_err build_slots(fl_checkpoint *c) {
    int64_t n = 0;
    for (int32_t i = 0; i < c->set.n_shards; i++) n += c->set.shards[i].st.n_entries;
    c->slots = calloc(n ? (size_t)n : 1, sizeof *c->slots);
    if (!c->slots) return FL_FAIL(FL_ERR_NOMEM, "table of %lld tensors", (long long)n);
    for (int32_t i = 0; i < c->set.n_shards; i++) {
        const fl_shard *shard = &c->set.shards[i];
        for (int64_t j = 0; j < shard->st.n_entries; j++)
            c->slots[c->n_slots++] = (slot){.shard = shard, .entry = &shard->st.entries[j]};
    }
    if (n) qsort(c->slots, (size_t)n, sizeof *c->slots, compare_slots);
    return FL_ERR_OK;
}

static fl_err check_shape(const slot *s, int32_t ndim, const int64_t *dims) {
    const fl_safetensors_entry *entry = s->entry;
    if (entry->ndim == ndim && memcmp(entry->dims, dims, (size_t)ndim * sizeof *dims) == 0) return FL_ERR_OK;
    char expected[64], found[200];
    return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s': expected shape %s, found %s", s->shard->name, entry->name,
                   fl_safetensors_shape_text(expected, sizeof expected, ndim, dims),
                   fl_safetensors_shape_text(found, sizeof found, entry->ndim, entry->dims));
}

static fl_err check_dtype(const slot *s, bool f8_allowed) {
    int32_t dtype = s->entry->dtype;
    if (dtype >= 0 && (f8_allowed || dtype != FL_DTYPE_F8_E4M3)) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s': expected dtype F32, BF16%s, found %s", s->shard->name,
                   s->entry->name, f8_allowed ? ", F16 or F8_E4M3" : " or F16", s->entry->dtype_name);
}

/* Finds the factors of an F8_E4M3 weight: one for each started block. */
static fl_err claim_scale(fl_checkpoint *c, slot *weight) {
    const fl_quantisation *q = &c->config.quantisation;
    const fl_safetensors_entry *entry = weight->entry;
    if (q->type != FL_QUANTISATION_FP8)
        return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s' is F8_E4M3, but config.json has no quantization_config",
                       weight->shard->name, entry->name);
    char name[FL_SAFETENSORS_NAME_MAX + sizeof scale_suffix];
    snprintf(name, sizeof name, "%s%s", entry->name, scale_suffix);
    slot *scale = find_slot(c, name);
    int64_t dims[2] = {(entry->dims[0] + q->block_rows - 1) / q->block_rows,
                       (entry->dims[1] + q->block_cols - 1) / q->block_cols};
    if (!scale)
        return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s' is missing, expected shape [%lld, %lld]",
                       c->set.list_name, name, (long long)dims[0], (long long)dims[1]);
    FL_TRY(check_shape(scale, 2, dims));
    FL_TRY(check_dtype(scale, false));
    scale->claimed = true;
    scale->role = FL_TENSOR_SCALE;
    weight->scale = scale;
    return FL_ERR_OK;
}

static fl_err claim(void *context, const fl_manifest_tensor *expected) {
    fl_checkpoint *c = context;
    slot *s = find_slot(c, expected->name);
    if (!s && expected->optional) return FL_ERR_OK;
    if (!s) {
        char shape[64];
        return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s' is missing, expected shape %s", c->set.list_name,
                       expected->name,
                       fl_safetensors_shape_text(shape, sizeof shape, expected->ndim, expected->dims));
    }
    FL_TRY(check_shape(s, expected->ndim, expected->dims));
    FL_TRY(check_dtype(s, expected->kind == FL_MANIFEST_LINEAR));
    s->claimed = true;
    s->role = expected->optional ? FL_TENSOR_IGNORED : FL_TENSOR_WEIGHT;
    s->kind = expected->kind;
    return s->entry->dtype == FL_DTYPE_F8_E4M3 ? claim_scale(c, s) : FL_ERR_OK;
}

static fl_err claim_rest(fl_checkpoint *c) {
    for (int64_t i = 0; i < c->n_slots; i++) {
        slot *s = &c->slots[i];
        if (s->claimed) continue;
        if (!fl_manifest_ignores(&c->config, s->entry->name))
            return FL_FAIL(FL_ERR_DATA,
                           "%s: tensor '%s' is surplus: expected none of this name for config.json",
                           s->shard->name, s->entry->name);
        s->role = FL_TENSOR_IGNORED;
    }
    return FL_ERR_OK;
}

static const unsigned char *slot_data(const slot *s) {
    return s->shard->st.data + s->entry->begin_bytes;
}

static float value_at(fl_dtype dtype, const unsigned char *data, int64_t i) {
    uint32_t word;
    uint16_t half;
    switch (dtype) {
    case FL_DTYPE_F32: memcpy(&word, data + 4 * i, sizeof word); return fl_f32_of_bits(word);
    case FL_DTYPE_BF16: memcpy(&half, data + 2 * i, sizeof half); return fl_f32_of_bf16(half);
    case FL_DTYPE_F16: memcpy(&half, data + 2 * i, sizeof half); return fl_f32_of_f16(half);
    case FL_DTYPE_F8_E4M3: return fl_f32_of_e4m3(data[i]);
    case FL_N_DTYPES: break;
    }
    return 0;
}

static fl_err check_finite(const slot *s) {
    fl_dtype dtype = (fl_dtype)s->entry->dtype;
    int64_t bad = fl_finite_find_bad(dtype, slot_data(s), s->entry->elements);
    if (bad < 0) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s': element %lld: expected a finite value, found %g",
                   s->shard->name, s->entry->name, (long long)bad,
                   (double)value_at(dtype, slot_data(s), bad));
}

/* Block scales become aligned fp32, whatever the file's format and alignment. A negative factor cannot come
 * from any quantiser and would flip signs unseen; zero is what an all-zero block may have. */
static fl_err read_factors(fl_checkpoint *c) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_slots; i++)
        if (c->slots[i].role == FL_TENSOR_SCALE) n += c->slots[i].entry->elements;
    c->factors = malloc(n ? (size_t)n * sizeof *c->factors : 1);
    if (!c->factors) return FL_FAIL(FL_ERR_NOMEM, "%lld block scales", (long long)n);
    float *next = c->factors;
    for (int64_t i = 0; i < c->n_slots; i++) {
        slot *s = &c->slots[i];
        if (s->role != FL_TENSOR_SCALE) continue;
        FL_TRY(check_finite(s));
        s->factors = next;
        for (int64_t j = 0; j < s->entry->elements; j++) {
            float factor = value_at((fl_dtype)s->entry->dtype, slot_data(s), j);
            if (factor < 0)
                return FL_FAIL(FL_ERR_DATA,
                               "%s: tensor '%s': element %lld: expected a scale of at least 0, found %g",
                               s->shard->name, s->entry->name, (long long)j, (double)factor);
            *next++ = factor;
        }
    }
    return FL_ERR_OK;
}

static fl_err check_values(const fl_checkpoint *c, bool read_all) {
    for (int64_t i = 0; i < c->n_slots; i++) {
        const slot *s = &c->slots[i];
        if (s->role == FL_TENSOR_WEIGHT && (read_all || s->kind == FL_MANIFEST_VECTOR))
            FL_TRY(check_finite(s));
    }
    return FL_ERR_OK;
}

/* Scales, norms and biases lie scattered between large weights: read-ahead would fetch most of a checkpoint that is
 * only looked at. */
static void expect_jumps(const fl_checkpoint *c, bool jumps) {
    for (int32_t i = 0; i < c->set.n_shards; i++) fl_file_map_expect_jumps(&c->set.shards[i].map, jumps);
}

static fl_err open_checkpoint(const char *dir, bool read_all, fl_checkpoint **out) {
    fl_err err;
    fl_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return FL_FAIL(FL_ERR_NOMEM, "checkpoint: %zu bytes", sizeof *c);
    FL_TRY_GOTO(fl_config_read(dir, &c->config));
    FL_TRY_GOTO(fl_shard_set_open(dir, &c->set));
    FL_TRY_GOTO(build_slots(c));
    FL_TRY_GOTO(fl_manifest_visit(&c->config, claim, c));
    FL_TRY_GOTO(claim_rest(c));
    expect_jumps(c, true);
    FL_TRY_GOTO(read_factors(c));
    if (read_all) expect_jumps(c, false);
    FL_TRY_GOTO(check_values(c, read_all));
    expect_jumps(c, false);
    *out = c;
    return FL_ERR_OK;
fail:
    fl_checkpoint_close(c);
    return err;
}

fl_err fl_checkpoint_open(const char *dir, fl_checkpoint **out) {
    return open_checkpoint(dir, true, out);
}

fl_err fl_checkpoint_open_unread(const char *dir, fl_checkpoint **out) {
    return open_checkpoint(dir, false, out);
}

void fl_checkpoint_close(fl_checkpoint *checkpoint) {
    if (!checkpoint) return;
    fl_shard_set_close(&checkpoint->set);
    free(checkpoint->slots);
    free(checkpoint->factors);
    free(checkpoint);
}

const fl_config *fl_checkpoint_config(const fl_checkpoint *checkpoint) {
    return &checkpoint->config;
}

static void describe_slot(const fl_checkpoint *c, const slot *s, fl_tensor *out) {
    const fl_safetensors_entry *entry = s->entry;
    *out = (fl_tensor){.name = entry->name,
                       .file = s->shard->name,
                       .role = s->role,
                       .dtype_name = entry->dtype_name,
                       .dtype = entry->dtype >= 0 ? (fl_dtype)entry->dtype : FL_N_DTYPES,
                       .ndim = entry->ndim,
                       .elements = entry->elements,
                       .data = slot_data(s),
                       .bytes = entry->end_bytes - entry->begin_bytes};
    memcpy(out->dims, entry->dims, sizeof out->dims);
    if (!s->scale) return;
    out->scale_inv = s->scale->factors;
    out->scale_rows = s->scale->entry->dims[0];
    out->scale_cols = s->scale->entry->dims[1];
    out->block_rows = c->config.quantisation.block_rows;
    out->block_cols = c->config.quantisation.block_cols;
}

fl_err fl_checkpoint_find(const fl_checkpoint *checkpoint, fl_tensor *out, const char *name_format, ...) {
    char name[FL_SAFETENSORS_NAME_MAX + 1];
    va_list args;
    va_start(args, name_format);
    vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    bool tied = checkpoint->config.tie_word_embeddings && strcmp(name, "lm_head.weight") == 0;
    const slot *s = find_slot(checkpoint, tied ? "model.embed_tokens.weight" : name);
    if (!s || s->role != FL_TENSOR_WEIGHT)
        return FL_FAIL(FL_ERR_INVALID, "the model has no weight '%s'", name);
    describe_slot(checkpoint, s, out);
    return FL_ERR_OK;
}

int64_t fl_checkpoint_count(const fl_checkpoint *checkpoint) {
    return checkpoint->n_slots;
}

void fl_checkpoint_at(const fl_checkpoint *checkpoint, int64_t i, fl_tensor *out) {
    describe_slot(checkpoint, &checkpoint->slots[i], out);
}

int32_t fl_checkpoint_shard_count(const fl_checkpoint *checkpoint) {
    return checkpoint->set.n_shards;
}

const char *fl_checkpoint_shard_name(const fl_checkpoint *checkpoint, int32_t i) {
    return checkpoint->set.shards[i].name;
}
