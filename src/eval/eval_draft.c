#include "eval/eval_draft.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval_words.h"

static bool reserve(fl_eval_text *t, size_t more) {
    if (t->failed) return false;
    if (more < t->capacity - t->n) return true;
    size_t capacity = 2 * t->capacity > t->n + more + 1 ? 2 * t->capacity : t->n + more + 1;
    if (capacity < 256) capacity = 256;
    char *bytes = realloc(t->bytes, capacity);
    if (!bytes) {
        t->failed = true;
        return false;
    }
    t->bytes = bytes;
    t->capacity = capacity;
    return true;
}

void fl_eval_text_add(fl_eval_text *t, const char *bytes, size_t n) {
    if (!reserve(t, n)) return;
    if (n > 0) memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
    t->bytes[t->n] = '\0';
}

void fl_eval_text_put(fl_eval_text *t, const char *string) {
    fl_eval_text_add(t, string, strlen(string));
}

void fl_eval_text_print(fl_eval_text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (n < 0 || !reserve(t, (size_t)n)) {
        t->failed = true;
        return;
    }
    va_start(arguments, format);
    vsnprintf(t->bytes + t->n, (size_t)n + 1, format, arguments);
    va_end(arguments);
    t->n += (size_t)n;
}

void fl_eval_text_free(fl_eval_text *t) {
    free(t->bytes);
    *t = (fl_eval_text){0};
}

static char *copy(fl_eval_draft *d, const char *string) {
    char *out = strdup(string ? string : "");
    if (!out) d->failed = true;
    return out;
}

void fl_eval_draft_ask(fl_eval_draft *d, const fl_eval_ask *ask) {
    if (d->n_questions == FL_EVAL_QUESTIONS_MAX || ask->n_values > FL_EVAL_VALUES_MAX) {
        d->failed = true;
        return;
    }
    int32_t i = d->n_questions++;
    fl_eval_question *q = &d->questions[i];
    *q = (fl_eval_question){.task = ask->task, .max_tokens = ask->max_tokens, .depth = -1};
    q->text = copy(d, ask->text);
    q->answer_head = copy(d, ask->head);
    q->reference = copy(d, ask->reference);
    q->scoring = ask->values ? FL_EVAL_FIND_ALL : FL_EVAL_EXACT;
    if (ask->values) {
        q->values = calloc((size_t)ask->n_values, sizeof *q->values);
        if (!q->values) d->failed = true;
        else q->n_values = ask->n_values;
        for (int32_t v = 0; v < q->n_values; v++) q->values[v] = copy(d, ask->values[v]);
    }
    d->fact_first[i] = ask->fact_first;
    d->fact_count[i] = ask->fact_count;
}

int32_t fl_eval_draft_facts(fl_eval_draft *d, int32_t n) {
    if (n > FL_EVAL_FACTS_MAX - d->n_facts) {
        d->failed = true;
        return 0;
    }
    d->n_facts += n;
    return d->n_facts - n;
}

void fl_eval_draft_mark(fl_eval_draft *d, int32_t fact) {
    if (fact >= 0) d->fact_byte[fact] = d->text.n;
}

void fl_eval_question_free(fl_eval_question *q) {
    for (int32_t v = 0; v < q->n_values; v++) free(q->values[v]);
    free(q->values);
    free(q->text);
    free(q->answer_head);
    free(q->reference);
    *q = (fl_eval_question){0};
}

void fl_eval_draft_free(fl_eval_draft *d) {
    for (int32_t i = 0; i < d->n_questions; i++) fl_eval_question_free(&d->questions[i]);
    d->n_questions = 0;
    fl_eval_text_free(&d->text);
}

bool fl_eval_draft_new(fl_eval_draft *d, const char *name) {
    enum { USED_MAX = sizeof d->used / sizeof *d->used };
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *p = name; *p; p++) hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
    for (int32_t i = 0; i < d->n_used; i++)
        if (d->used[i] == hash) return false;
    if (d->n_used < USED_MAX) d->used[d->n_used++] = hash;
    return true;
}

static const char *pick(fl_eval_draft *d, const char *const *words, int32_t n_words) {
    return words[fl_eval_random_below(&d->random, n_words)];
}

/* Random numbers are drawn one statement at a time: arguments of a call have no order. */

void fl_eval_name_key(fl_eval_draft *d, char *name) {
    do {
        const char *adjective = pick(d, fl_eval_adjectives, fl_eval_n_adjectives);
        snprintf(name, FL_EVAL_NAME_BYTES, "%s-%s", adjective, pick(d, fl_eval_nouns, fl_eval_n_nouns));
    } while (!fl_eval_draft_new(d, name));
}

void fl_eval_name_variable(fl_eval_draft *d, char *name, int32_t letters) {
    do {
        for (int32_t i = 0; i < letters; i++) name[i] = (char)('A' + fl_eval_random_below(&d->random, 26));
        name[letters] = '\0';
    } while (!fl_eval_draft_new(d, name));
}

void fl_eval_name_number(fl_eval_draft *d, char *name, int32_t digits) {
    for (int32_t i = 0; i < digits; i++)
        name[i] = (char)(i == 0 ? '1' + fl_eval_random_below(&d->random, 9)
                                : '0' + fl_eval_random_below(&d->random, 10));
    name[digits] = '\0';
}

void fl_eval_name_uuid(fl_eval_draft *d, char *name) {
    uint64_t high = fl_eval_random_next(&d->random), low = fl_eval_random_next(&d->random);
    high = (high & ~0xf000ull) | 0x4000;        /* version 4 */
    low = (low & ~(3ull << 62)) | (2ull << 62); /* variant 1 */
    snprintf(name, FL_EVAL_NAME_BYTES, "%08x-%04x-%04x-%04x-%012llx", (unsigned)(high >> 32),
             (unsigned)(high >> 16 & 0xffff), (unsigned)(high & 0xffff), (unsigned)(low >> 48),
             (unsigned long long)(low & 0xffffffffffff));
}

static char draw_capital(fl_eval_draft *d) {
    return (char)('A' + fl_eval_random_below(&d->random, 26));
}

void fl_eval_name_code(fl_eval_draft *d, char *name) {
    do {
        char letter = draw_capital(d);
        snprintf(name, FL_EVAL_NAME_BYTES, "%c-%d", letter, (int)fl_eval_random_range(&d->random, 10, 999));
    } while (!fl_eval_draft_new(d, name));
}

/* The sentence forms below are those of the model's training tasks, byte for byte: it answers no others. */

void fl_eval_magic_make(const char *key, const char *value, fl_eval_magic *out) {
    snprintf(out->needle, sizeof out->needle, "One of the special magic numbers for %s is: %s.", key, value);
    snprintf(out->question, sizeof out->question,
             "What is the special magic number for %s mentioned in the provided text?", key);
    snprintf(out->answer, sizeof out->answer,
             "The special magic number for %s mentioned in the provided text is %s.", key, value);
}

void fl_eval_chain_make(fl_eval_draft *d, int32_t n, fl_eval_chain *out) {
    char name[FL_EVAL_CHAIN_MAX][FL_EVAL_NAME_BYTES], number[FL_EVAL_NAME_BYTES];
    if (n > FL_EVAL_CHAIN_MAX) n = FL_EVAL_CHAIN_MAX;
    for (int32_t i = 0; i < n; i++)
        fl_eval_name_variable(d, name[i], (int32_t)fl_eval_random_range(&d->random, 3, 5));
    fl_eval_name_number(d, number, 5);
    snprintf(out->link[0], sizeof out->link[0], "VAR %s = %s.", name[0], number);
    for (int32_t i = 1; i < n; i++)
        snprintf(out->link[i], sizeof out->link[i], "VAR %s = VAR %s.", name[i], name[i - 1]);
    snprintf(out->question, sizeof out->question, "What value is assigned to VAR %s?", name[n - 1]);
    size_t at = 0;
    for (int32_t i = n - 1; i >= 0; i--)
        at += (size_t)snprintf(out->answer + at, sizeof out->answer - at, "%s ", out->link[i]);
    snprintf(out->answer + at, sizeof out->answer - at, "The value is %s.", number);
}

typedef struct xref_parts {
    char from[FL_EVAL_NAME_BYTES], through[FL_EVAL_NAME_BYTES], value[FL_EVAL_NAME_BYTES],
        end[FL_EVAL_SENTENCE_BYTES];
} xref_parts;

#define PRINT(field, ...) snprintf(field, sizeof field, __VA_ARGS__)

/* Kinds 0..2: section and clause, service and host, module and profile. */
static void make_technical(fl_eval_draft *d, int32_t kind, fl_eval_xref *x, xref_parts *p) {
    fl_eval_random *r = &d->random;
    if (kind == 0) {
        do {
            int major = (int)fl_eval_random_range(r, 1, 999), minor = (int)fl_eval_random_range(r, 1, 40);
            if (fl_eval_random_below(r, 10) < 7) snprintf(p->from, sizeof p->from, "%d", major);
            else snprintf(p->from, sizeof p->from, "%d.%d", 1 + major % 40, minor);
        } while (!fl_eval_draft_new(d, p->from));
        fl_eval_name_code(d, p->through);
        PRINT(x->first, "Section %s defers to clause %s.", p->from, p->through);
        PRINT(x->second, "Clause %s sets the limit to %s.", p->through, p->value);
        PRINT(x->question, "What limit applies to Section %s?", p->from);
        PRINT(p->end, "The limit is %s.", p->value);
    } else if (kind == 1) {
        fl_eval_name_key(d, p->from);
        do {
            const char *noun = pick(d, fl_eval_nouns, fl_eval_n_nouns);
            snprintf(p->through, sizeof p->through, "%s%d", noun, (int)fl_eval_random_range(r, 1, 99));
        } while (!fl_eval_draft_new(d, p->through));
        PRINT(x->first, "Service %s runs on host %s.", p->from, p->through);
        PRINT(x->second, "Host %s listens on port %s.", p->through, p->value);
        PRINT(x->question, "Which port serves %s?", p->from);
        PRINT(p->end, "The port is %s.", p->value);
    } else {
        fl_eval_name_key(d, p->from);
        fl_eval_name_code(d, p->through);
        PRINT(x->first, "The %s module reads its settings from profile %s.", p->from, p->through);
        PRINT(x->second, "Profile %s allots %s buffers.", p->through, p->value);
        PRINT(x->question, "How many buffers does the %s module get?", p->from);
        PRINT(p->end, "It gets %s buffers.", p->value);
    }
}

/* Kinds 3..5: request and person, appendix and table, team and office. */
static void make_office(fl_eval_draft *d, int32_t kind, fl_eval_xref *x, xref_parts *p) {
    fl_eval_random *r = &d->random;
    if (kind == 3) {
        do snprintf(p->from, sizeof p->from, "%d", (int)fl_eval_random_range(r, 1000, 99999));
        while (!fl_eval_draft_new(d, p->from));
        do {
            char initial = draw_capital(d);
            const char *surname = pick(d, fl_eval_surnames, fl_eval_n_surnames);
            snprintf(p->through, sizeof p->through, "%c. %s", initial, surname);
        } while (!fl_eval_draft_new(d, p->through));
        PRINT(x->first, "Request %s was assigned to %s.", p->from, p->through);
        PRINT(x->second, "%s works in room %s.", p->through, p->value);
        PRINT(x->question, "In which room is request %s handled?", p->from);
        PRINT(p->end, "The room is %s.", p->value);
    } else if (kind == 4) {
        do {
            char letter = draw_capital(d);
            snprintf(p->from, sizeof p->from, "%c%d", letter, (int)fl_eval_random_range(r, 1, 99));
        } while (!fl_eval_draft_new(d, p->from));
        fl_eval_name_code(d, p->through);
        PRINT(x->first, "Appendix %s cites table %s.", p->from, p->through);
        PRINT(x->second, "Table %s lists the value %s.", p->through, p->value);
        PRINT(x->question, "Which value does Appendix %s rely on?", p->from);
        PRINT(p->end, "The value is %s.", p->value);
    } else {
        fl_eval_name_key(d, p->from);
        fl_eval_name_key(d, p->through);
        fl_eval_name_key(d, p->value);
        PRINT(x->first, "The %s team reports to the %s office.", p->from, p->through);
        PRINT(x->second, "The password of the %s office is %s.", p->through, p->value);
        PRINT(x->question, "What is the password of the office that the %s team reports to?", p->from);
        PRINT(p->end, "The password is %s.", p->value);
    }
}

void fl_eval_xref_make(fl_eval_draft *d, int32_t kind, fl_eval_xref *out) {
    xref_parts p;
    fl_eval_name_number(d, p.value, (int32_t)fl_eval_random_range(&d->random, 2, 4));
    if (kind < 3) make_technical(d, kind, out, &p);
    else make_office(d, kind, out, &p);
    PRINT(out->answer, "%s %s %s", out->first, out->second, p.end);
}
