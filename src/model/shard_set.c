/* Shards are opened in name order, so messages and everything derived from the order repeat from run to run.
 */
#include "model/shard_set.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_BYTES_MAX = 64 << 20, SHARDS_MAX = 10000, SHARD_NAME_MAX = 200 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* A name from the index must be a plain file of this folder: it decides which files get opened. */
static bool name_is_plain(const char *name) {
    static const char suffix[] = ".safetensors";
    size_t n = strlen(name);
    if (n < sizeof suffix || n > SHARD_NAME_MAX || name[0] == '.') return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' || name[i] == '\\' || name[i] < 0x21 || name[i] > 0x7e) return false;
    return strcmp(name + n - (sizeof suffix - 1), suffix) == 0;
}

static int compare_text(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Makes `out` hold `n` shards with these names, in order, each once. */
static fl_err set_names(const char **names, size_t n, fl_shard_set *out) {
    if (n == 0) return FL_FAIL(FL_ERR_DATA, "%s: names no shard", index_name);
    qsort(names, n, sizeof *names, compare_text);
    size_t n_unique = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[n_unique - 1]) != 0) names[n_unique++] = names[i];
    if (n_unique > SHARDS_MAX)
        return FL_FAIL(FL_ERR_DATA, "%s: names %zu shards, at most %d are accepted", index_name, n_unique,
                       SHARDS_MAX);
    out->shards = calloc(n_unique, sizeof *out->shards);
    if (!out->shards) return FL_FAIL(FL_ERR_NOMEM, "table of %zu shards", n_unique);
    for (size_t i = 0; i < n_unique; i++) {
        out->shards[i].name = strdup(names[i]);
        if (!out->shards[i].name) return FL_FAIL(FL_ERR_NOMEM, "name of a shard");
        out->n_shards++;
    }
    return FL_ERR_OK;
}

static fl_err names_from_index(const json_t *weight_map, fl_shard_set *out) {
    const char *tensor;
    json_t *value;
    size_t n = 0;
    const char **names = calloc(json_object_size(weight_map) + 1, sizeof *names);
    if (!names) return FL_FAIL(FL_ERR_NOMEM, "%s: table of its tensors", index_name);
    json_object_foreach((json_t *)(uintptr_t)weight_map, tensor, value) {
        const char *name = json_string_value(value);
        if (!name || !name_is_plain(name)) {
            free(names);
            return FL_FAIL(
                FL_ERR_DATA,
                "%s: tensor '%.255s': expected a plain file name ending in .safetensors, found '%.100s'",
                index_name, tensor, name ? name : "something that is not a string");
        }
        names[n++] = name;
    }
    fl_err err = set_names(names, n, out);
    free(names);
    return err;
}

/* On success *root is owned by the caller and *weight_map lies in it. */
static fl_err load_index(const char *dir, json_t **root, const json_t **weight_map) {
    char *text = NULL;
    size_t n_bytes = 0;
    json_error_t why;
    FL_TRY(fl_file_read(dir, index_name, INDEX_BYTES_MAX, &text, &n_bytes));
    *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!*root)
        return FL_FAIL(FL_ERR_DATA, "%s: not valid JSON, line %d: %s", index_name, why.line, why.text);
    *weight_map = json_object_get(*root, "weight_map");
    if (json_is_object(*weight_map) && json_object_size(*weight_map) > 0) return FL_ERR_OK;
    json_decref(*root);
    *root = NULL;
    return FL_FAIL(FL_ERR_DATA, "%s: expected an object 'weight_map' with at least one tensor", index_name);
}

/* Fills in the names; *root is NULL for a single file, else the index, which the caller frees. */
static fl_err list_names(const char *dir, fl_shard_set *out, json_t **root, const json_t **weight_map) {
    bool single = fl_file_exists(dir, single_name), sharded = fl_file_exists(dir, index_name);
    *root = NULL;
    if (single && sharded)
        return FL_FAIL(FL_ERR_DATA, "%s and %s are both there, expected one of them", single_name,
                       index_name);
    if (!single && !sharded)
        return FL_FAIL(FL_ERR_DATA, "no weights in '%s': expected %s or %s", dir, single_name, index_name);
    out->list_name = single ? single_name : index_name;
    if (single) {
        const char *names[] = {single_name};
        return set_names(names, 1, out);
    }
    FL_TRY(load_index(dir, root, weight_map));
    return names_from_index(*weight_map, out);
}

static int compare_shard(const void *name, const void *shard) {
    return strcmp(name, ((const fl_shard *)shard)->name);
}

static const fl_shard *find_shard(const fl_shard_set *set, const char *name) {
    return bsearch(name, set->shards, (size_t)set->n_shards, sizeof *set->shards, compare_shard);
}

/* Every listed tensor is in its shard, and every tensor of a shard is listed there. Together with unique
 * names in the index this also rules out one tensor in two shards. */
static fl_err check_index(const fl_shard_set *set, const json_t *weight_map) {
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)weight_map, tensor, value) {
        const char *file = json_string_value(value);
        const fl_shard *shard = file ? find_shard(set, file) : NULL;
        if (!shard || !fl_safetensors_find(&shard->st, tensor))
            return FL_FAIL(FL_ERR_DATA, "%s: tensor '%.255s' is missing: %s says it is there",
                           file ? file : "?", tensor, index_name);
    }
    for (int32_t i = 0; i < set->n_shards; i++) {
        const fl_shard *shard = &set->shards[i];
        for (int64_t j = 0; j < shard->st.n_entries; j++) {
            const char *name = shard->st.entries[j].name;
            const char *listed = json_string_value(json_object_get(weight_map, name));
            if (!listed || strcmp(listed, shard->name) != 0)
                return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s' is surplus: %s has it in %s", shard->name, name,
                               index_name, listed ? listed : "no shard");
        }
    }
    return FL_ERR_OK;
}

fl_err fl_shard_set_list(const char *dir, fl_shard_set *out) {
    json_t *root = NULL;
    const json_t *weight_map = NULL;
    *out = (fl_shard_set){0};
    fl_err err = list_names(dir, out, &root, &weight_map);
    json_decref(root);
    if (err != FL_ERR_OK) fl_shard_set_close(out);
    return err;
}

fl_err fl_shard_set_open(const char *dir, fl_shard_set *out) {
    json_t *root = NULL;
    const json_t *weight_map = NULL;
    fl_err err;
    *out = (fl_shard_set){0};
    FL_TRY_GOTO(list_names(dir, out, &root, &weight_map));
    for (int32_t i = 0; i < out->n_shards; i++) {
        fl_shard *shard = &out->shards[i];
        FL_TRY_GOTO(fl_file_map_open(dir, shard->name, &shard->map));
        FL_TRY_GOTO(fl_safetensors_parse(shard->name, shard->map.bytes, shard->map.n_bytes, &shard->st));
    }
    if (root) FL_TRY_GOTO(check_index(out, weight_map));
    json_decref(root);
    return FL_ERR_OK;
fail:
    json_decref(root);
    fl_shard_set_close(out);
    return err;
}

void fl_shard_set_close(fl_shard_set *set) {
    for (int32_t i = 0; i < set->n_shards; i++) {
        fl_safetensors_close(&set->shards[i].st);
        fl_file_map_close(&set->shards[i].map);
        free(set->shards[i].name);
    }
    free(set->shards);
    *set = (fl_shard_set){0};
}
