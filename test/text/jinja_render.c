/* Rendering small templates for tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/jinja_render.h"

#include <stdlib.h>
#include <string.h>

static const char variables_text[] =
    "{\"word\": \"wort\", \"n\": 7, \"f\": 2.5, \"yes\": true, \"nil\": null, \"list\": [1, \"b\", null],"
    "\"d\": {\"k\": \"v\", \"items\": 1, \"e\": {}, \"l\": []}, \"uni\": \"a\\u00e9\\u6f22\\ud83d\\ude00z\","
    "\"esc\": \"\\\"\\\\\\n\\u0001\\u007f\\u00e9\\ud83d\\ude00\"}";
static const char content[] = " <s> x ", other[] = "yz";

enum { VARS_MAX = 16 };

fl_err jinja_render(const char *source, size_t n_source, const fl_jinja_limits *limits, char **text,
                    char **marks) {
    fl_jinja *jinja = NULL;
    fl_jrun run;
    fl_jvar vars[VARS_MAX];
    size_t n_vars = 2;
    const fl_jstr *out = NULL;
    const char *key;
    json_t *value, *json = json_loads(variables_text, 0, NULL);
    assert_non_null(json);
    *text = *marks = NULL;
    fl_jrun_init(&run, limits);
    fl_err err = fl_jinja_open(source, n_source, limits, &jinja);
    vars[0].name = "content";
    vars[1].name = "other";
    if (err == FL_ERR_OK) err = fl_jval_from_marked(&run.arena, content, strlen(content), 0, &vars[0].value);
    if (err == FL_ERR_OK) err = fl_jval_from_marked(&run.arena, other, strlen(other), 1, &vars[1].value);
    json_object_foreach(json, key, value) {
        assert_in_range(n_vars, 0, VARS_MAX - 1);
        vars[n_vars].name = key;
        if (err == FL_ERR_OK) err = fl_jval_from_json(&run, value, &vars[n_vars++].value);
    }
    if (err == FL_ERR_OK) err = fl_jinja_render(jinja, &run, vars, n_vars, &out);
    if (err == FL_ERR_OK) {
        *text = calloc(out->n + 1, 1);
        *marks = calloc(out->n + 1, 1);
        memcpy(*text, out->bytes, out->n);
        memset(*marks, '.', out->n);
        for (size_t i = 0; i < out->n_marks; i++) {
            const fl_jmark *mark = &out->marks[i];
            char kind = mark->origin == FL_JORIGIN_TEMPLATE ? 't' : (char)('0' + mark->origin);
            memset(*marks + mark->begin, kind, mark->end - mark->begin);
        }
    }
    fl_jrun_clear(&run);
    fl_jinja_close(jinja);
    json_decref(json);
    return err;
}

fl_err jinja_render_default(const char *source, char **text, char **marks) {
    fl_jinja_limits limits;
    fl_jinja_limits_default(&limits);
    return jinja_render(source, strlen(source), &limits, text, marks);
}

char *jinja_repeat(const char *before, const char *middle, size_t n, const char *after) {
    char *text = malloc(strlen(before) + strlen(middle) * n + strlen(after) + 1), *end = text;
    assert_non_null(text);
    end = stpcpy(end, before);
    for (size_t i = 0; i < n; i++) end = stpcpy(end, middle);
    stpcpy(end, after);
    return text;
}
