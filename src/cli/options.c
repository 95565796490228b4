#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

fl_err fl_size_parse(const char *text, const char *what, int64_t *out) {
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    bool digits = (text[0] >= '0' && text[0] <= '9') || (text[0] == '-' && text[1] >= '0' && text[1] <= '9');
    int64_t factor = 1;
    if (digits && errno == 0 && end[0] != '\0' && end[1] == '\0') {
        switch (end[0]) {
        case 'k':
        case 'K':
            factor = 1 << 10;
            end++;
            break;
        case 'm':
        case 'M':
            factor = 1 << 20;
            end++;
            break;
        case 'g':
        case 'G':
            factor = 1 << 30;
            end++;
            break;
        default: break;
        }
    }
    if (!digits || *end != '\0' || errno != 0 || !fl_mul_i64(value, factor, out))
        return FL_FAIL(FL_ERR_INVALID, "%s: expected a number such as 4096, 4k or 512k, found '%s'", what,
                       text);
    return FL_ERR_OK;
}

static fl_err real_parse(const char *text, const char *what, double *out) {
    char *end = NULL;
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*out))
        return FL_FAIL(FL_ERR_INVALID, "%s: expected a number such as 0.7, found '%s'", what, text);
    return FL_ERR_OK;
}

static fl_err check_range(const fl_option *o, const char *what, const char *text, double value) {
    if (value >= o->min && value <= o->max) return FL_ERR_OK;
    if (o->max > 9e18)
        return FL_FAIL(FL_ERR_INVALID, "%s: expected %.12g or more, found %s", what, o->min, text);
    return FL_FAIL(FL_ERR_INVALID, "%s: expected %.12g to %.12g, found %s", what, o->min, o->max, text);
}

/* The choice that equals `text`, from the table's own string made of parts: "auto|bf16|f32". */
static fl_err choice_parse(const fl_option *o, const char *what, const char *text, const char **out) {
    size_t n = strlen(text);
    for (const char *part = o->choices; n > 0 && part; part = strchr(part, '|')) {
        if (*part == '|') part++;
        if (strncmp(part, text, n) == 0 && (part[n] == '|' || part[n] == '\0')) {
            *out = text;
            return FL_ERR_OK;
        }
    }
    return FL_FAIL(FL_ERR_INVALID, "%s: this build has %s, found '%s'", what, o->choices, text);
}

/* Lists get their room at the first item: as many as there are arguments. */
static fl_err list_add(fl_text_list *list, const char *text, int room) {
    if (!list->items) list->items = calloc((size_t)room, sizeof *list->items);
    if (!list->items) return FL_FAIL(FL_ERR_NOMEM, "%d arguments", room);
    list->items[list->n++] = text;
    return FL_ERR_OK;
}

static fl_err set_value(const fl_option *o, const char *what, const char *text, fl_options *out) {
    void *member = (char *)out + o->offset;
    switch (o->type) {
    case FL_OPTION_FLAG:
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
            return FL_FAIL(FL_ERR_INVALID, "%s: expected 0 or 1, found '%s'", what, text);
        *(bool *)member = text[0] == '1';
        return FL_ERR_OK;
    case FL_OPTION_SIZE:
        FL_TRY(fl_size_parse(text, what, member));
        return check_range(o, what, text, (double)*(int64_t *)member);
    case FL_OPTION_REAL:
        FL_TRY(real_parse(text, what, member));
        return check_range(o, what, text, *(double *)member);
    case FL_OPTION_TEXT: *(const char **)member = text; return FL_ERR_OK;
    case FL_OPTION_CHOICE: return choice_parse(o, what, text, member);
    case FL_OPTION_LIST: break; /* command line only; needs room */
    }
    return FL_FAIL(FL_ERR_INTERNAL, "option %s has no single value", o->name);
}

static fl_err set_defaults(const fl_verb *verb, fl_options *out) {
    for (const fl_option *o = fl_option_table; o->name; o++) {
        if (o->fallback) FL_TRY(set_value(o, o->name, o->fallback, out));
        const char *text = o->environment && (o->verbs & verb->bit) ? getenv(o->environment) : NULL;
        if (text && *text) FL_TRY(set_value(o, o->environment, text, out));
    }
    return FL_ERR_OK;
}

/* Edits (one letter changed, added or left out) that make a of b, for "did you mean"; long names count as far. */
static int distance(const char *a, const char *b) {
    enum { LONGEST = 32, FAR = 100 };
    int row[LONGEST + 1];
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > LONGEST || n_b > LONGEST) return FAR;
    for (size_t j = 0; j <= n_b; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n_b];
}

static bool is_close(int edits, const char *typed) {
    return edits <= 3 && (size_t)edits * 2 <= strlen(typed);
}

static fl_err unknown_option(const fl_verb *verb, const char *typed) {
    const char *nearest = NULL;
    int least = 100;
    for (const fl_option *o = fl_option_table; o->name; o++) {
        int edits = o->verbs & verb->bit ? distance(typed, o->name) : 100;
        if (edits < least) {
            least = edits;
            nearest = o->name;
        }
    }
    if (nearest && is_close(least, typed))
        return FL_FAIL(FL_ERR_INVALID, "%s has no option --%s; did you mean --%s?", verb->name, typed,
                       nearest);
    for (const fl_option *o = fl_option_table; o->name; o++)
        if (strcmp(o->name, typed) == 0)
            return FL_FAIL(FL_ERR_INVALID, "--%s is not an option of %s, only of other verbs", typed,
                           verb->name);
    return FL_FAIL(FL_ERR_INVALID, "%s has no option --%s", verb->name, typed);
}

/* The arguments being read; `at` is the next one. */
typedef struct reader {
    const fl_verb *verb;
    int argc, at;
    char **argv;
    fl_options *out;
} reader;

static fl_err take_value(reader *r, const fl_option *o, const char *what, const char *joined) {
    if (o->type == FL_OPTION_FLAG) {
        if (joined) return FL_FAIL(FL_ERR_INVALID, "%s takes no value, found '%s'", what, joined);
        *(bool *)((char *)r->out + o->offset) = true;
        return FL_ERR_OK;
    }
    if (!joined && r->at == r->argc)
        return FL_FAIL(FL_ERR_INVALID, "%s: expected a value (%s) behind it", what,
                       o->choices ? o->choices : o->value);
    const char *text = joined ? joined : r->argv[r->at++];
    if (o->type == FL_OPTION_LIST)
        return list_add((fl_text_list *)(void *)((char *)r->out + o->offset), text, r->argc);
    return set_value(o, what, text, r->out);
}

/* The table's name for another server's spelling. *passed: the argument needs nothing. */
static fl_err translate(const reader *r, char *name, size_t n_bytes, bool *passed) {
    *passed = false;
    if (r->verb->bit != FL_VERB_SERVE) return FL_ERR_OK;
    for (const fl_option_alias *a = fl_serve_aliases; a->spelling; a++)
        if (strcmp(name, a->spelling) == 0) {
            snprintf(name, n_bytes, "%s", a->name);
            return FL_ERR_OK;
        }
    for (const fl_option_verdict *v = fl_serve_verdicts; v->spelling; v++) {
        if (strcmp(name, v->spelling) != 0) continue;
        *passed = v->granted;
        return v->granted ? FL_ERR_OK : FL_FAIL(FL_ERR_INVALID, "--%s: %s", name, v->why);
    }
    return FL_ERR_OK;
}

static fl_err read_long(reader *r, const char *argument) {
    char name[64], what[72];
    const char *equals = strchr(argument, '=');
    size_t n = equals ? (size_t)(equals - argument) : strlen(argument);
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), argument);
    snprintf(what, sizeof what, "--%s", name);
    bool passed;
    FL_TRY(translate(r, name, sizeof name, &passed));
    if (passed) return FL_ERR_OK;
    for (const fl_option *o = fl_option_table; o->name; o++)
        if ((o->verbs & r->verb->bit) && strcmp(o->name, name) == 0)
            return take_value(r, o, what, equals ? equals + 1 : NULL);
    return unknown_option(r->verb, name);
}

static fl_err read_letters(reader *r, const char *letters) {
    for (; *letters; letters++) {
        const fl_option *o = fl_option_table;
        while (o->name && !((o->verbs & r->verb->bit) && o->letter == *letters)) o++;
        if (!o->name) return FL_FAIL(FL_ERR_INVALID, "%s has no option -%s", r->verb->name, letters);
        const char what[] = {'-', *letters, '\0'};
        const char *joined = o->type != FL_OPTION_FLAG && letters[1] ? letters + 1 : NULL;
        FL_TRY(take_value(r, o, what, joined));
        if (joined || o->type != FL_OPTION_FLAG) break;
    }
    return FL_ERR_OK;
}

static fl_err read_arguments(reader *r) {
    bool options_end = false;
    while (r->at < r->argc) {
        const char *argument = r->argv[r->at++];
        if (options_end || argument[0] != '-' || argument[1] == '\0')
            FL_TRY(list_add(&r->out->operands, argument, r->argc));
        else if (strcmp(argument, "--") == 0) options_end = true;
        else if (argument[1] == '-') FL_TRY(read_long(r, argument + 2));
        else FL_TRY(read_letters(r, argument + 1));
    }
    return FL_ERR_OK;
}

static fl_err check_operands(const fl_verb *verb, const fl_options *o) {
    if (o->help) return FL_ERR_OK;
    if (o->operands.n < verb->operands_min)
        return FL_FAIL(FL_ERR_INVALID, "expected: firstlight %s %s", verb->name, verb->operands);
    if (o->operands.n > verb->operands_max)
        return FL_FAIL(FL_ERR_INVALID,
                       "expected: firstlight %s %s; '%s' is one too many (put quotes around a text)",
                       verb->name, verb->operands, o->operands.items[verb->operands_max]);
    return FL_ERR_OK;
}

fl_err fl_options_parse(const fl_verb *verb, int argc, char **argv, fl_options *out) {
    reader r = {.verb = verb, .argc = argc, .argv = argv, .out = out};
    fl_err err;
    *out = (fl_options){0};
    FL_TRY_GOTO(set_defaults(verb, out));
    FL_TRY_GOTO(read_arguments(&r));
    FL_TRY_GOTO(check_operands(verb, out));
    return FL_ERR_OK;
fail:
    fl_options_close(out);
    return err;
}

void fl_options_close(fl_options *options) {
    free(options->operands.items);
    free(options->files.items);
    free(options->stops.items);
    free(options->variants.items);
    free(options->also.items);
    free(options->names.items);
    free(options->keys.items);
    free(options->hosts.items);
    *options = (fl_options){0};
}

/* "run, chat, ...", or with a first word what may stand behind it: "prefill, decode, ...", "" if nothing may. */
static const char *verb_list(const char *first, char *text, size_t n_bytes) {
    size_t n = 0, skipped = first ? strlen(first) + 1 : 0;
    text[0] = '\0';
    for (const fl_verb *v = fl_verbs; v->name && n < n_bytes; v++)
        if (!first || fl_verb_is_of(v, first))
            n += (size_t)snprintf(text + n, n_bytes - n, "%s%s", n > 0 ? ", " : "", v->name + skipped);
    return text;
}

bool fl_verb_is_of(const fl_verb *verb, const char *first) {
    size_t n = strlen(first);
    return strncmp(verb->name, first, n) == 0 && verb->name[n] == ' ';
}

fl_err fl_verb_find(int argc, char **argv, const fl_verb **out, int *n_words) {
    char list[256], typed[64];
    if (argc < 2) return FL_FAIL(FL_ERR_INVALID, "expected a verb: %s", verb_list(NULL, list, sizeof list));
    const fl_verb *nearest = NULL;
    int least = 100;
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        int words = strchr(v->name, ' ') ? 2 : 1;
        if (words == 2 && argc > 2) snprintf(typed, sizeof typed, "%s %s", argv[1], argv[2]);
        else snprintf(typed, sizeof typed, "%s", argv[1]);
        int edits = distance(typed, v->name);
        if (edits == 0) {
            *out = v;
            *n_words = words;
            return FL_ERR_OK;
        }
        if (is_close(edits, typed) && edits < least) {
            least = edits;
            nearest = v;
        }
    }
    if (nearest)
        return FL_FAIL(FL_ERR_INVALID, "there is no verb '%s'; did you mean %s?", argv[1], nearest->name);
    if (*verb_list(argv[1], list, sizeof list))
        return FL_FAIL(FL_ERR_INVALID, "expected '%s' and one of: %s", argv[1], list);
    return FL_FAIL(FL_ERR_INVALID, "there is no verb '%s'; expected one of: %s", argv[1],
                   verb_list(NULL, list, sizeof list));
}
