#include "support/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/safetensors.h"

static unsigned char *read_file(const char *path, size_t *n_bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s is missing", path);
    fseek(file, 0, SEEK_END);
    *n_bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*n_bytes);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n_bytes, file), *n_bytes);
    fclose(file);
    return bytes;
}

static void *take(const fl_safetensors *st, const char *name, int64_t expected_items) {
    const fl_safetensors_entry *e = fl_safetensors_find(st, name);
    assert_non_null(e);
    if (expected_items > 0) assert_int_equal(e->elements, expected_items);
    int64_t bytes = e->end_bytes - e->begin_bytes;
    void *copy = malloc((size_t)bytes + 1);
    assert_non_null(copy);
    memcpy(copy, st->data + e->begin_bytes, (size_t)bytes);
    return copy;
}

static void read_greedy(golden *g) {
    json_error_t error;
    json_t *prompts = json_load_file("test/golden/prompts.json", 0, &error), *prompt;
    if (!prompts) fail_msg("prompts.json: %s", error.text);
    size_t i;
    bool found = false;
    json_array_foreach(prompts, i, prompt) {
        if (strcmp(json_string_value(json_object_get(prompt, "name")), g->name) != 0) continue;
        json_t *ids = json_object_get(prompt, "greedy_ids");
        assert_int_equal(json_array_size(ids), GOLDEN_GREEDY);
        for (size_t k = 0; k < GOLDEN_GREEDY; k++)
            g->greedy[k] = (int32_t)json_integer_value(json_array_get(ids, k));
        found = true;
    }
    assert_true(found);
    json_decref(prompts);
}

void golden_read(const char *name, golden *out) {
    char path[128];
    size_t n_bytes;
    fl_safetensors st;
    *out = (golden){0};
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(path, sizeof path, "test/golden/%s.safetensors", name);
    unsigned char *bytes = read_file(path, &n_bytes);
    assert_int_equal(fl_safetensors_parse(path, bytes, n_bytes, &st), FL_ERR_OK);
    out->n = (int32_t)fl_safetensors_find(&st, "ids")->elements;
    out->ids = take(&st, "ids", out->n);
    out->top1_ids = take(&st, "top1_ids", out->n);
    out->top1_logprobs = take(&st, "top1_logprobs", out->n);
    out->next_logprobs = take(&st, "next_logprobs", out->n - 1);
    out->last_logits = take(&st, "last_logits", GOLDEN_VOCAB);
    fl_safetensors_close(&st);
    free(bytes);
    read_greedy(out);
}

void golden_free(golden *g) {
    free(g->ids);
    free(g->top1_ids);
    free(g->top1_logprobs);
    free(g->next_logprobs);
    free(g->last_logits);
}
