/* "repository": a made-up source repository as `firstlight run -f FOLDER` would show it, each file under a header with
 * its path. Every question needs two files or more.
 *
 * repo_xref: a two-hop reference between comments of two files, in the phrasings of the model's training. repo_chain: a
 * chain of variables, a link a file. repo_constant: which number a function adds, through a constant that another file
 * defines. Difficulty d: 8 d references that nobody asks for, chains of up to 2 + 4 d. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval_draft.h"
#include "eval/eval_words.h"

typedef enum language { PYTHON, C, CONFIG, N_LANGUAGES } language;

typedef struct repository_build {
    fl_eval_draft *d;
    fl_eval_random filler;   /* its own numbers, so that a little more text changes little of what is there */
    fl_eval_needles needles; /* at_byte = of the document, before they are inserted */
    int32_t group_file[FL_EVAL_FACTS_MAX]; /* the file that last took one of the group */
    int32_t n_groups, file;
    language language;
    size_t file_end; /* where this file should end */
} repository_build;

/* ---- filler ---------------------------------------------------------------------------------------------------- */

static char upper(char c) {
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static const char *adjective(repository_build *b) {
    return fl_eval_adjectives[fl_eval_random_below(&b->filler, fl_eval_n_adjectives)];
}

static const char *noun(repository_build *b) {
    return fl_eval_nouns[fl_eval_random_below(&b->filler, fl_eval_n_nouns)];
}

/* Words and numbers for one piece of filler, drawn one after the other: arguments of a call have no order. */
typedef struct draw {
    const char *adjective, *noun[5];
    int n[4]; /* 2..9, 2..99, 2..999, 2..9999 */
} draw;

static draw draw_words(repository_build *b) {
    draw w = {.adjective = adjective(b)};
    int64_t most = 9;
    for (int i = 0; i < 5; i++) w.noun[i] = noun(b);
    for (int i = 0; i < 4; i++, most = 10 * most + 9) w.n[i] = (int)fl_eval_random_range(&b->filler, 2, most);
    return w;
}

static void put_python(repository_build *b) {
    fl_eval_text *t = &b->d->text;
    draw w = draw_words(b);
    const char *what = w.noun[0], *other = w.noun[1];
    switch (fl_eval_random_below(&b->filler, 4)) {
    case 0:
        fl_eval_text_print(t, "def %s_%s(%s, limit=%d):\n    kept = []\n    for item in %s:\n", w.adjective,
                           what, other, w.n[2], other);
        fl_eval_text_print(
            t, "        if item.%s > limit:\n            continue\n        kept.append(item)\n", w.noun[2]);
        fl_eval_text_put(t, "    return kept\n\n\n");
        break;
    case 1:
        fl_eval_text_print(t, "class %c%s:\n    \"\"\"Keeps the %s of one %s.\"\"\"\n\n", upper(what[0]),
                           what + 1, w.noun[2], other);
        fl_eval_text_print(t,
                           "    def __init__(self, %s):\n        self.%s = %s\n        self.count = %d\n\n",
                           other, other, other, w.n[1]);
        fl_eval_text_print(t, "    def %s(self):\n        return self.count * len(self.%s)\n\n\n", w.noun[3],
                           other);
        break;
    case 2:
        fl_eval_text_print(t, "def open_%s(path):\n    with open(path, encoding='utf-8') as source:\n", what);
        fl_eval_text_print(t, "        rows = [line.split('%c') for line in source]\n", ",;:|"[w.n[3] % 4]);
        fl_eval_text_print(t, "    return {row[0]: int(row[%d]) for row in rows if len(row) > %d}\n\n\n",
                           w.n[0], w.n[1]);
        break;
    default:
        fl_eval_text_print(t, "def test_%s_%s():\n    %s = %d\n", w.adjective, what, other, w.n[2]);
        fl_eval_text_print(t, "    assert %s + %d == %d\n\n\n", other, w.n[1], w.n[1] + w.n[2]);
        break;
    }
}

static void put_c(repository_build *b) {
    fl_eval_text *t = &b->d->text;
    draw w = draw_words(b);
    const char *what = w.noun[0], *other = w.noun[1];
    switch (fl_eval_random_below(&b->filler, 3)) {
    case 0:
        fl_eval_text_print(t, "static int %s_%s(const int *%s, int n) {\n    int sum = 0;\n", w.adjective,
                           what, other);
        fl_eval_text_print(t, "    for (int i = 0; i < n; i += %d)\n        sum += %s[i] %% %d;\n", w.n[0],
                           other, w.n[1]);
        fl_eval_text_put(t, "    return sum;\n}\n\n");
        break;
    case 1:
        fl_eval_text_print(t, "struct %s_%s {\n    int %s;\n", w.adjective, what, w.noun[2]);
        fl_eval_text_print(t, "    char %s[%d];\n    struct %s *next;\n};\n\n", other, w.n[1], w.noun[3]);
        break;
    default:
        fl_eval_text_print(t, "void %s_close(struct %s *%s) {\n    if (!%s)\n        return;\n", what, what,
                           other, other);
        fl_eval_text_print(t, "    free(%s->%s);\n    %s->%s = 0;\n}\n\n", other, w.noun[2], other,
                           w.noun[3]);
        break;
    }
}

static void put_config(repository_build *b) {
    fl_eval_text *t = &b->d->text;
    draw w = draw_words(b);
    fl_eval_text_print(t, "[%s.%s]\n%s = %d\n%s = \"%s-%s\"\n", w.noun[0], w.noun[1], w.noun[2], w.n[3],
                       w.noun[3], w.adjective, w.noun[0]);
    fl_eval_text_print(t, "%s_seconds = %d\nenabled = %s\n\n", w.noun[4], w.n[2],
                       w.n[1] % 2 ? "true" : "false");
}

static void begin_file(repository_build *b) {
    enum { SHORT_BYTES = 400, USUAL_BYTES = 2400, LONG_BYTES = 12000 };
    static const char *const folder[N_LANGUAGES] = {"app", "src", "config"}, *const ending[N_LANGUAGES] = {
                                                                                 "py", "c", "toml"};
    char path[FL_EVAL_SENTENCE_BYTES];
    fl_eval_text *t = &b->d->text;
    fl_eval_random *r = &b->filler;
    b->language = (language)fl_eval_random_below(r, N_LANGUAGES);
    do {
        draw w = draw_words(b);
        snprintf(path, sizeof path, "%s/%s/%s_%s.%s", folder[b->language], w.noun[0], w.adjective, w.noun[1],
                 ending[b->language]);
    } while (!fl_eval_draft_new(b->d, path));
    if (t->n > 0 && t->bytes && t->bytes[t->n - 1] == '\n') fl_eval_text_put(t, "\n");
    fl_eval_text_print(t, "==> %s <==\n", path);
    if (b->language == PYTHON) fl_eval_text_print(t, "import %s\n\n\n", noun(b));
    if (b->language == C) fl_eval_text_print(t, "#include \"%s.h\"\n\n", noun(b));
    bool is_long = fl_eval_random_below(r, 10) == 0;
    b->file_end = t->n + (size_t)fl_eval_random_range(r, SHORT_BYTES, is_long ? LONG_BYTES : USUAL_BYTES);
    b->file++;
}

/* ---- facts ----------------------------------------------------------------------------------------------------- */

static void hide(repository_build *b, int32_t group, int32_t fact, const char *text) {
    fl_eval_needle *needle = fl_eval_needle_add(&b->needles, fact);
    if (!needle) return;
    snprintf(needle->text, sizeof needle->text, "%s", text);
    needle->at_token = group; /* no token place here */
}

static void ask(repository_build *b, fl_eval_ask a) {
    char text[FL_EVAL_SENTENCE_BYTES + 8];
    snprintf(text, sizeof text, ".\n\n%s", a.text);
    a.text = text;
    fl_eval_draft_ask(b->d, &a);
}

static void add_xrefs(repository_build *b) {
    fl_eval_draft *d = b->d;
    int32_t n = FL_EVAL_XREF_KINDS + (int32_t)(8 * d->spec->difficulty);
    for (int32_t i = 0; i < n; i++) {
        fl_eval_xref x;
        bool asked = i < FL_EVAL_XREF_KINDS;
        fl_eval_xref_make(d, i % FL_EVAL_XREF_KINDS, &x);
        int32_t fact = asked ? fl_eval_draft_facts(d, 2) : -1, group = b->n_groups++;
        hide(b, group, fact, x.first);
        hide(b, group, asked ? fact + 1 : -1, x.second);
        if (asked)
            ask(b, (fl_eval_ask){.task = "repo_xref",
                                 .text = x.question,
                                 .reference = x.answer,
                                 .fact_first = fact,
                                 .fact_count = 2});
    }
}

static void add_chains(repository_build *b) {
    enum { CHAINS = 3 };
    fl_eval_draft *d = b->d;
    for (int32_t i = 0; i < CHAINS; i++) {
        fl_eval_chain chain;
        int32_t n = 2 + (int32_t)fl_eval_random_below(&d->random, 1 + (int64_t)(4 * d->spec->difficulty));
        fl_eval_chain_make(d, n, &chain);
        int32_t fact = fl_eval_draft_facts(d, n), group = b->n_groups++;
        for (int32_t k = 0; k < n; k++) hide(b, group, fact + k, chain.link[k]);
        ask(b, (fl_eval_ask){.task = "repo_chain",
                             .text = chain.question,
                             .reference = chain.answer,
                             .fact_first = fact,
                             .fact_count = n});
    }
}

/* A definition and a function that uses it; both are code, not comments: they begin with a blank here. */
static void add_constants(repository_build *b) {
    enum { CONSTANTS = 3, DIGITS = 5 };
    fl_eval_draft *d = b->d;
    for (int32_t i = 0; i < CONSTANTS; i++) {
        char key[FL_EVAL_NAME_BYTES], function[FL_EVAL_NAME_BYTES], constant[FL_EVAL_NAME_BYTES],
            value[FL_EVAL_NAME_BYTES];
        char text[FL_EVAL_SENTENCE_BYTES], reference[FL_EVAL_SENTENCE_BYTES];
        fl_eval_name_key(d, key);
        for (size_t k = 0; k <= strlen(key); k++) constant[k] = key[k] == '-' ? '_' : upper(key[k]);
        fl_eval_name_key(d, key);
        for (size_t k = 0; k <= strlen(key); k++) function[k] = key[k] == '-' ? '_' : key[k];
        fl_eval_name_number(d, value, DIGITS);
        int32_t fact = fl_eval_draft_facts(d, 2), group = b->n_groups++;
        snprintf(text, sizeof text, " def %.60s(n):\n    return n + %.60s\n", function, constant);
        hide(b, group, fact, text);
        snprintf(text, sizeof text, " %.60s = %.60s\n", constant, value);
        hide(b, group, fact + 1, text);
        snprintf(text, sizeof text, "Which number does the function %.60s add to n?", function);
        snprintf(reference, sizeof reference, "It adds %.60s. %.60s = %.60s. The number is %.60s.", constant,
                 constant, value, value);
        ask(b, (fl_eval_ask){.task = "repo_constant",
                             .text = text,
                             .reference = reference,
                             .values = (const char *const[]){value},
                             .n_values = 1,
                             .fact_first = fact,
                             .fact_count = 2});
    }
}

static int by_place(const void *a, const void *b) {
    const fl_eval_needle *x = a, *y = b;
    if (x->at_byte != y->at_byte) return x->at_byte < y->at_byte ? -1 : 1;
    return strcmp(x->text, y->text);
}

static void put_fact(repository_build *b, const fl_eval_needle *needle) {
    fl_eval_text *t = &b->d->text;
    int64_t group = needle->at_token;
    bool is_code = needle->text[0] == ' ';
    while (b->group_file[group] == b->file || (is_code && b->language != PYTHON)) begin_file(b);
    b->group_file[group] = b->file;
    if (!is_code) fl_eval_text_put(t, b->language == C ? "// " : "# ");
    fl_eval_draft_mark(b->d, needle->fact);
    fl_eval_text_put(t, needle->text + is_code);
    fl_eval_text_put(t, is_code ? "\n\n" : "\n");
    if (!is_code && b->language != PYTHON) fl_eval_text_put(t, "\n");
}

static fl_err build(fl_eval_draft *d) {
    repository_build b = {.d = d};
    size_t fact_end = 0;
    fl_eval_random_init(&b.filler, fl_eval_random_next(&d->random));
    add_xrefs(&b);
    add_chains(&b);
    add_constants(&b);
    fl_eval_needles_spread(d, &b.needles, 0, d->size_bytes);
    if (b.needles.n > 0) qsort(b.needles.items, (size_t)b.needles.n, sizeof *b.needles.items, by_place);
    int32_t next = 0;
    begin_file(&b);
    while ((d->text.n < d->size_bytes || next < b.needles.n) && !d->text.failed && !b.needles.failed) {
        if (d->text.n >= b.file_end) begin_file(&b);
        bool due =
            next < b.needles.n && (b.needles.items[next].at_byte <= d->text.n || d->text.n >= d->size_bytes);
        if (due) {
            put_fact(&b, &b.needles.items[next++]);
            fact_end = d->text.n;
        }
        if (due) continue;
        if (b.language == PYTHON) put_python(&b);
        else if (b.language == C) put_c(&b);
        else put_config(&b);
    }
    while (!d->text.failed && d->text.n > d->size_bytes && d->text.n > fact_end) { /* whole lines of filler */
        d->text.n--;
        while (d->text.n > fact_end && d->text.bytes[d->text.n - 1] != '\n') d->text.n--;
    }
    fl_eval_text_print(&d->text, "\n==> README <==\nThis is the end of the listing");
    if (b.needles.failed) d->failed = true;
    fl_eval_needles_free(&b.needles);
    return FL_ERR_OK;
}

const fl_eval_family fl_eval_family_repository = {.name = "repository", .tokens_min = 2048, .build = build};
