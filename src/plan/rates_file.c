#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "plan/rates.h"

enum { FORMAT = 2, FILE_BYTES_MAX = 1 << 20 };

static void set_fill(const fl_rate *r, json_t *item) {
    json_t *fill = json_array();
    for (int32_t i = 0; i < FL_RATE_FILLS; i++) json_array_append_new(fill, json_real(r->fill[i]));
    json_object_set_new(item, "fill_s", json_real(r->fill_s));
    json_object_set_new(item, "fill", fill);
}

static json_t *rates_json(const fl_rates *rates) {
    json_t *root = json_pack("{s:i, s:s, s:b, s:b, s:{}}", "format", FORMAT, "source", rates->source,
                             "measured", (int)rates->measured, "recorded", (int)rates->recorded, "rates");
    for (int32_t i = 0; root && i < FL_N_RATES; i++) {
        const fl_rate *r = &rates->of[i];
        json_t *item = json_pack("{s:f, s:f, s:f, s:f, s:I, s:f}", "call_s", r->call_s, "fp8_flop_s",
                                 r->fp8_flop_s, "flop_s", r->flop_s, "byte_s", r->byte_s, "samples",
                                 (json_int_t)r->n_samples, "error", r->error);
        if (r->fill_s > 0) set_fill(r, item);
        if (json_object_set_new(json_object_get(root, "rates"), fl_rate_name((fl_rate_kind)i), item) == 0)
            continue;
        json_decref(root);
        root = NULL;
    }
    return root;
}

fl_err fl_rates_write(const fl_rates *rates, const char *path) {
    json_t *root = rates_json(rates);
    char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
    fl_err err = text ? fl_file_write(*path == '/' ? "/" : ".", path, text, strlen(text))
                      : FL_FAIL(FL_ERR_NOMEM, "%s", path);
    free(text);
    json_decref(root);
    return err;
}

static fl_err read_number(const char *path, const json_t *item, const char *field, double *out) {
    const json_t *value = json_object_get(item, field);
    *out = json_number_value(value);
    if (json_is_number(value) && *out >= 0 && isfinite(*out)) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_DATA,
                   "%s: %s: expected a number, 0 or more; `firstlight plan MODEL --measure` "
                   "writes such a file",
                   path, field);
}

/* Of a device's rates. */
static fl_err read_fill(const char *path, const json_t *item, fl_rate *out) {
    const json_t *fill = json_object_get(item, "fill");
    if (!fill) return FL_ERR_OK;
    FL_TRY(read_number(path, item, "fill_s", &out->fill_s));
    for (size_t i = 0; i < FL_RATE_FILLS; i++) {
        const json_t *value = json_array_get(fill, i);
        out->fill[i] = json_number_value(value);
        if (!json_is_number(value) || !(out->fill[i] >= 0 && isfinite(out->fill[i])))
            return FL_FAIL(FL_ERR_DATA, "%s: fill: expected %d numbers, 0 or more", path, FL_RATE_FILLS);
    }
    return FL_ERR_OK;
}

static fl_err read_rate(const char *path, const json_t *all, fl_rate_kind kind, fl_rate *out) {
    const json_t *item = json_object_get(all, fl_rate_name(kind));
    double samples;
    if (!json_is_object(item))
        return FL_FAIL(FL_ERR_DATA,
                       "%s: rates.%s: expected an object; this firstlight has other kinds of "
                       "calls: measure again",
                       path, fl_rate_name(kind));
    FL_TRY(read_number(path, item, "call_s", &out->call_s));
    FL_TRY(read_number(path, item, "flop_s", &out->flop_s));
    FL_TRY(read_number(path, item, "fp8_flop_s", &out->fp8_flop_s));
    FL_TRY(read_number(path, item, "byte_s", &out->byte_s));
    FL_TRY(read_number(path, item, "error", &out->error));
    FL_TRY(read_number(path, item, "samples", &samples));
    out->n_samples = samples < 1e15 ? (int64_t)samples : 0;
    return read_fill(path, item, out);
}

static fl_err read_root(const char *path, const json_t *root, fl_rates *out) {
    const char *source = json_string_value(json_object_get(root, "source"));
    const json_t *measured = json_object_get(root, "measured");
    if (json_integer_value(json_object_get(root, "format")) != FORMAT || !source ||
        !json_is_boolean(measured))
        return FL_FAIL(FL_ERR_DATA,
                       "%s: expected rates that `firstlight plan MODEL --measure` wrote, format %d", path,
                       FORMAT);
    *out = (fl_rates){.measured = json_is_true(measured),
                      .recorded = json_is_true(json_object_get(root, "recorded"))};
    snprintf(out->source, sizeof out->source, "%s", source);
    for (int32_t i = 0; i < FL_N_RATES; i++)
        FL_TRY(read_rate(path, json_object_get(root, "rates"), (fl_rate_kind)i, &out->of[i]));
    return FL_ERR_OK;
}

fl_err fl_rates_read(const char *path, fl_rates *out) {
    char *text = NULL;
    size_t n_bytes;
    json_error_t fault;
    FL_TRY(fl_file_read(*path == '/' ? "/" : ".", path, FILE_BYTES_MAX, &text, &n_bytes));
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &fault);
    fl_err err = root ? read_root(path, root, out)
                      : FL_FAIL(FL_ERR_DATA, "%s: line %d: %s", path, fault.line, fault.text);
    json_decref(root);
    free(text);
    return err;
}
