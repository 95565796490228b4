#include "attn/calibration.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { FORMAT = 1, FILE_BYTES_MAX = 16 << 20, LAYERS_MAX = 1024, HEADS_MAX = 4096 };

/* The least is a float, so that what is written is read. */
static const double densities[2] = {0x1p-20, 1};

typedef struct reading {
    const char *name;
    const json_t *root;
    fl_calibration *out;
} reading;

static fl_err bad(const reading *r, const char *field, const char *expected) {
    return FL_FAIL(FL_ERR_CONFIG, "%s: %s: expected %s; make it anew with `firstlight calibrate`", r->name,
                   field, expected);
}

static fl_err need_integer(const reading *r, const char *field, int64_t expected) {
    const json_t *value = json_object_get(r->root, field);
    if (json_is_integer(value) && json_integer_value(value) == expected) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_CONFIG, "%s: %s: expected %lld, as the checkpoint has; it was made for another one",
                   r->name, field, (long long)expected);
}

static bool read_number(const json_t *value, double low, double high, float *out) {
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= low && x <= high)) return false;
    *out = (float)x;
    return true;
}

/* An array of `rows` arrays of `columns` numbers each (rows 0: one array) in [low, high]. Absent: *out stays NULL. */
static fl_err read_table(const reading *r, const char *field, const int32_t size[2], const double range[2],
                         float **out) {
    const json_t *table = json_object_get(r->root, field);
    size_t rows = size[0] > 0 ? (size_t)size[0] : 1, columns = (size_t)size[1];
    if (!table) return FL_ERR_OK;
    if (size[0] > 0 && json_array_size(table) != rows) return bad(r, field, "an entry a layer");
    *out = malloc(rows * columns * sizeof(float));
    if (!*out) return FL_FAIL(FL_ERR_NOMEM, "%s", r->name);
    for (size_t i = 0; i < rows; i++) {
        const json_t *row = size[0] > 0 ? json_array_get(table, i) : table;
        if (json_array_size(row) != columns) return bad(r, field, "an entry a layer and head");
        for (size_t j = 0; j < columns; j++)
            if (!read_number(json_array_get(row, j), range[0], range[1], *out + i * columns + j))
                return bad(r, field, "numbers in range");
    }
    return FL_ERR_OK;
}

static bool read_index(const json_t *value, int32_t end, int32_t *out) {
    json_int_t index = json_integer_value(value);
    if (!json_is_integer(value) || index < 0 || index >= end) return false;
    *out = (int32_t)index;
    return true;
}

static fl_err read_dense(const reading *r) {
    const json_t *pairs = json_object_get(r->root, "dense_heads");
    fl_calibration *c = r->out;
    if (!pairs) return FL_ERR_OK;
    if (!json_is_array(pairs)) return bad(r, "dense_heads", "an array of [layer, head]");
    c->dense = calloc((size_t)c->layers * (size_t)c->heads, sizeof(bool));
    if (!c->dense) return FL_FAIL(FL_ERR_NOMEM, "%s", r->name);
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *pair = json_array_get(pairs, i);
        int32_t layer, head;
        if (json_array_size(pair) != 2 || !read_index(json_array_get(pair, 0), c->layers, &layer) ||
            !read_index(json_array_get(pair, 1), c->heads, &head))
            return bad(r, "dense_heads", "an array of [layer, head]");
        c->dense[layer * c->heads + head] = true;
    }
    return FL_ERR_OK;
}

static fl_err read_outliers(const reading *r) {
    const json_t *table = json_object_get(r->root, "outliers");
    fl_calibration *c = r->out;
    if (!table) return FL_ERR_OK;
    size_t n = json_array_size(json_array_get(table, 0));
    if (json_array_size(table) != (size_t)c->layers || n > FL_KV_OUTLIERS_MAX)
        return bad(r, "outliers", "an array of at most 8 dimensions a layer");
    c->n_outliers = (int32_t)n;
    if (n == 0) return FL_ERR_OK;
    c->outliers = calloc((size_t)c->layers * n, sizeof(uint16_t));
    if (!c->outliers) return FL_FAIL(FL_ERR_NOMEM, "%s", r->name);
    for (size_t i = 0; i < (size_t)c->layers; i++) {
        const json_t *row = json_array_get(table, i);
        int32_t last = -1, dim;
        if (json_array_size(row) != n) return bad(r, "outliers", "as many dimensions in every layer");
        for (size_t j = 0; j < n; j++, last = dim) {
            if (!read_index(json_array_get(row, j), c->latent_dim, &dim) || dim <= last)
                return bad(r, "outliers", "ascending latent dimensions");
            c->outliers[i * n + j] = (uint16_t)dim;
        }
    }
    return FL_ERR_OK;
}

static fl_err read_scalars(const reading *r) {
    const json_t *block = json_object_get(r->root, "block"), *alpha = json_object_get(r->root, "alpha"),
                 *length = json_object_get(r->root, "length");
    fl_calibration *c = r->out;
    if (block && json_integer_value(block) != 64 && json_integer_value(block) != 128)
        return bad(r, "block", "64 or 128");
    if (alpha && !(json_is_number(alpha) && json_number_value(alpha) > 0 && json_number_value(alpha) <= 1))
        return bad(r, "alpha", "0 < alpha <= 1");
    const json_t *density = json_object_get(r->root, "density");
    if (density && !(json_number_value(density) > 0 && json_number_value(density) <= 1))
        return bad(r, "density", "0 < density <= 1");
    if (length && !(json_is_integer(length) && json_integer_value(length) > 0))
        return bad(r, "length", "a number of tokens");
    c->block = (int32_t)json_integer_value(block);
    c->density = json_number_value(density);
    c->alpha = json_number_value(alpha);
    c->length = json_integer_value(length);
    return FL_ERR_OK;
}

static fl_err read_all(const reading *r) {
    static const double alphas[2] = {1e-30, 1}, biases[2] = {-64, 64}, temperatures[2] = {0.1, 10};
    fl_calibration *c = r->out;
    const int32_t heads[2] = {c->layers, c->heads}, layers[2] = {0, c->layers};
    FL_TRY(need_integer(r, "format", FORMAT));
    FL_TRY(need_integer(r, "layers", c->layers));
    FL_TRY(need_integer(r, "heads", c->heads));
    FL_TRY(need_integer(r, "latent_dim", c->latent_dim));
    FL_TRY(read_scalars(r));
    FL_TRY(read_table(r, "alpha_by_head", heads, alphas, &c->alpha_by_head));
    FL_TRY(read_table(r, "density_by_head", heads, densities, &c->density_by_head));
    FL_TRY(read_table(r, "bias", heads, biases, &c->bias));
    FL_TRY(read_table(r, "temperature", layers, temperatures, &c->temperature));
    FL_TRY(read_dense(r));
    return read_outliers(r);
}

static fl_err read_density(const reading *r) {
    fl_calibration *c = r->out;
    const json_t *table = json_object_get(r->root, "density_by_head");
    if (!read_index(json_object_get(r->root, "layers"), LAYERS_MAX + 1, &c->layers) || c->layers < 1)
        return bad(r, "layers", "1 to 1024");
    if (!read_index(json_object_get(r->root, "heads"), HEADS_MAX + 1, &c->heads) || c->heads < 1)
        return bad(r, "heads", "1 to 4096");
    const int32_t size[2] = {c->layers, c->heads};
    if (!table) return bad(r, "density_by_head", "shares by layer and head");
    return read_table(r, "density_by_head", size, densities, &c->density_by_head);
}

typedef fl_err read_fn(const reading *r);

static fl_err parse(const char *name, const char *text, size_t text_bytes, read_fn *read,
                    fl_calibration *out) {
    json_error_t why;
    json_t *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &why);
    if (!root) return FL_FAIL(FL_ERR_CONFIG, "%s: not valid JSON, line %d: %s", name, why.line, why.text);
    const reading r = {name, root, out};
    fl_err err = read(&r);
    json_decref(root);
    return err;
}

static fl_err read_file(const char *dir, const char *name, read_fn *read, fl_calibration *out) {
    char *text = NULL;
    size_t n_bytes = 0;
    FL_TRY(fl_file_read(dir, name, FILE_BYTES_MAX, &text, &n_bytes));
    fl_err err = parse(name, text, n_bytes, read, out);
    free(text);
    return err;
}

fl_err fl_calibration_parse(const char *name, const char *text, size_t text_bytes, fl_calibration *out) {
    return parse(name, text, text_bytes, read_all, out);
}

fl_err fl_calibration_read(const char *dir, const char *name, fl_calibration *out) {
    return read_file(dir, name, read_all, out);
}

fl_err fl_calibration_parse_density(const char *name, const char *text, size_t text_bytes,
                                    fl_calibration *out) {
    return parse(name, text, text_bytes, read_density, out);
}

fl_err fl_calibration_read_density(const char *dir, const char *name, fl_calibration *out) {
    return read_file(dir, name, read_density, out);
}

void fl_calibration_close(fl_calibration *c) {
    free(c->alpha_by_head);
    free(c->density_by_head);
    free(c->bias);
    free(c->dense);
    free(c->temperature);
    free(c->outliers);
    *c = (fl_calibration){0};
}
