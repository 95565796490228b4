#include <stdlib.h>
#include <string.h>

#include "attn/calibration.h"
#include "base/file.h"

enum { FORMAT = 1, DIGITS = 9 }; /* of a number: enough for every float */

/* Adds `value` (its reference passes) unless something failed before; *ok says whether all went well. */
static void put(json_t *object, const char *key, json_t *value, bool *ok) {
    *ok = json_object_set_new(object, key, value) == 0 && *ok;
}

static json_t *number_row(const float *values, int32_t n) {
    json_t *row = json_array();
    for (int32_t i = 0; row && i < n; i++) {
        if (json_array_append_new(row, json_real((double)values[i])) == 0) continue;
        json_decref(row);
        return NULL;
    }
    return row;
}

json_t *fl_calibration_table_json(const float *values, int32_t rows, int32_t columns) {
    json_t *table = json_array();
    for (int32_t i = 0; table && i < rows; i++) {
        if (json_array_append_new(table, number_row(values + (int64_t)i * columns, columns)) == 0) continue;
        json_decref(table);
        return NULL;
    }
    return table;
}

static json_t *dense_pairs(const fl_calibration *c) {
    json_t *pairs = json_array();
    for (int32_t i = 0; pairs && c->dense && i < c->layers * c->heads; i++) {
        if (!c->dense[i]) continue;
        if (json_array_append_new(pairs, json_pack("[i, i]", i / c->heads, i % c->heads)) == 0) continue;
        json_decref(pairs);
        return NULL;
    }
    return pairs;
}

static json_t *outlier_rows(const fl_calibration *c) {
    json_t *table = json_array();
    for (int32_t i = 0; table && i < c->layers; i++) {
        json_t *row = json_array();
        bool ok = row != NULL;
        for (int32_t j = 0; ok && j < c->n_outliers; j++)
            ok = json_array_append_new(row, json_integer(c->outliers[i * c->n_outliers + j])) == 0;
        ok = json_array_append_new(table, row) == 0 && ok;
        if (ok) continue;
        json_decref(table);
        return NULL;
    }
    return table;
}

json_t *fl_calibration_json(const fl_calibration *c) {
    json_t *root = json_object();
    bool ok = root != NULL;
    if (!root) return NULL;
    put(root, "format", json_integer(FORMAT), &ok);
    put(root, "layers", json_integer(c->layers), &ok);
    put(root, "heads", json_integer(c->heads), &ok);
    put(root, "latent_dim", json_integer(c->latent_dim), &ok);
    if (c->length > 0) put(root, "length", json_integer(c->length), &ok);
    if (c->block > 0) put(root, "block", json_integer(c->block), &ok);
    if (c->alpha > 0) put(root, "alpha", json_real(c->alpha), &ok);
    if (c->density > 0) put(root, "density", json_real(c->density), &ok);
    if (c->density_by_head)
        put(root, "density_by_head", fl_calibration_table_json(c->density_by_head, c->layers, c->heads), &ok);
    put(root, "dense_heads", dense_pairs(c), &ok);
    if (c->alpha_by_head)
        put(root, "alpha_by_head", fl_calibration_table_json(c->alpha_by_head, c->layers, c->heads), &ok);
    if (c->bias) put(root, "bias", fl_calibration_table_json(c->bias, c->layers, c->heads), &ok);
    if (c->temperature) put(root, "temperature", number_row(c->temperature, c->layers), &ok);
    if (c->n_outliers > 0) put(root, "outliers", outlier_rows(c), &ok);
    if (ok) return root;
    json_decref(root);
    return NULL;
}

fl_err fl_calibration_write(const char *dir, const char *name, const fl_calibration *c, json_t *measured) {
    json_t *root = fl_calibration_json(c);
    char *text = NULL;
    if (root && (!measured || json_object_set(root, "measured", measured) == 0))
        text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(DIGITS));
    fl_err err = text ? fl_file_write(dir, name, text, strlen(text))
                      : FL_FAIL(FL_ERR_INTERNAL,
                                "%s: cannot be made: no memory, or a number that is not finite", name);
    free(text);
    json_decref(root);
    return err;
}
