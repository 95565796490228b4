#include "eval/eval_variant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char keys[] = "policy, kv, tail, rope, rope-factor, calibration, force-positions, backend";

static fl_err set_text(const char **field, const char *key, const char *value) {
    if (*field)
        return FL_FAIL(FL_ERR_INVALID, "a variant has two values of %s: '%s' and '%s'", key, *field, value);
    *field = value;
    return FL_ERR_OK;
}

static fl_err set_factor(fl_eval_variant *v, const char *value) {
    char *end = NULL;
    double factor = strtod(value, &end);
    if (end == value || *end != '\0' || !isfinite(factor) || factor < 1 || v->rope_factor != 0)
        return FL_FAIL(FL_ERR_INVALID, "rope-factor: expected one number of at least 1, found '%s'", value);
    v->rope_factor = factor;
    return FL_ERR_OK;
}

static fl_err set_force(fl_eval_variant *v, const char *value) {
    if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
        return FL_FAIL(FL_ERR_INVALID, "force-positions: expected 0 or 1, found '%s'", value);
    v->force_positions = value[0] == '1';
    return FL_ERR_OK;
}

/* A word with a colon before its first '=' is a policy with settings of its own. */
static fl_err take_word(fl_eval_variant *v, char *word) {
    size_t n_key = strcspn(word, "=:");
    if (word[n_key] != '=') return set_text(&v->policy, "policy", word);
    const char *value = word + n_key + 1;
    word[n_key] = '\0';
    if (strcmp(word, "policy") == 0) return set_text(&v->policy, word, value);
    if (strcmp(word, "kv") == 0) return set_text(&v->kv_dtype, word, value);
    if (strcmp(word, "tail") == 0) return set_text(&v->tail, word, value);
    if (strcmp(word, "rope") == 0) return set_text(&v->rope, word, value);
    if (strcmp(word, "backend") == 0) return set_text(&v->backend, word, value);
    if (strcmp(word, "calibration") == 0)
        return set_text(&v->calibration, word, strcmp(value, "none") == 0 ? "" : value);
    if (strcmp(word, "rope-factor") == 0) return set_factor(v, value);
    if (strcmp(word, "force-positions") == 0) return set_force(v, value);
    return FL_FAIL(FL_ERR_INVALID, "a variant has %s; found '%s'", keys, word);
}

static fl_err take_words(fl_eval_variant *v) {
    char *next = v->words;
    for (char *word; (word = strsep(&next, " "));) {
        if (!*word) continue;
        if (*v->spec) strcat(v->spec, " "); /* the spec is never longer than what was written */
        strcat(v->spec, word);
        FL_TRY(take_word(v, word));
    }
    return *v->spec ? FL_ERR_OK : FL_FAIL(FL_ERR_INVALID, "a variant is empty; it has %s", keys);
}

fl_err fl_eval_variant_parse(const char *spec, fl_eval_variant *out) {
    *out = (fl_eval_variant){.spec = calloc(strlen(spec) + 1, 1), .words = strdup(spec)};
    fl_err err = out->spec && out->words ? take_words(out)
                                         : FL_FAIL(FL_ERR_NOMEM, "variant of %zu bytes", strlen(spec));
    if (err != FL_ERR_OK) fl_eval_variant_close(out);
    return err;
}

void fl_eval_variant_close(fl_eval_variant *variant) {
    free(variant->spec);
    free(variant->words);
    *variant = (fl_eval_variant){0};
}

void fl_eval_variant_apply(const fl_eval_variant *v, fl_settings *settings) {
    if (v->policy) settings->policy = v->policy;
    if (v->kv_dtype) settings->kv_dtype = v->kv_dtype;
    if (v->tail) settings->tail = v->tail;
    if (v->rope) settings->rope = v->rope;
    if (v->backend) settings->backend = v->backend;
    if (v->calibration) settings->calibration = v->calibration;
    if (v->rope_factor > 0) settings->rope_factor = v->rope_factor;
    settings->force_positions = v->force_positions;
}
