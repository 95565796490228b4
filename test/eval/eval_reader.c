#include "eval/eval_reader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NAME_BYTES = 320, ANSWER_BYTES = 2048 };

typedef struct reader {
    const char *text, *question;
    char answer[ANSWER_BYTES];
    eval_reading found;
} reader;

/* The text between two strings, the second behind the first. */
static void between(const char *text, const char *before, const char *after, char *out) {
    const char *begin = strstr(text, before);
    if (!begin) fail_msg("\"%s\" is not in \"%.200s\"", before, text);
    begin += strlen(before);
    const char *end = strstr(begin, after);
    if (!end || end - begin >= NAME_BYTES) fail_msg("\"%s\" does not follow \"%s\"", after, before);
    memcpy(out, begin, (size_t)(end - begin));
    out[end - begin] = '\0';
}

static int occurrences(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p++) n++;
    return n;
}

/* The one place where `what` stands. */
static const char *only(const reader *r, const char *what) {
    int n = occurrences(r->text, what);
    if (n != 1) fail_msg("\"%s\" occurs %d times", what, n);
    return strstr(r->text, what);
}

static void note(reader *r, const char *at) {
    size_t place = (size_t)(at - r->text);
    eval_reading *f = &r->found;
    if (f->n_facts == 0 || place < f->first) f->first = place;
    if (f->n_facts == 0 || place > f->last) f->last = place;
    f->n_facts++;
}

static void say(reader *r, const char *text) {
    size_t n = strlen(r->answer);
    snprintf(r->answer + n, ANSWER_BYTES - n, "%s", text);
}

/* ---- the trained phrasings --------------------------------------------------------------------------------------- */

static void read_needle(reader *r) {
    char key[NAME_BYTES], needle[2 * NAME_BYTES], value[NAME_BYTES];
    between(r->question, "What is the special magic number for ", " mentioned", key);
    snprintf(needle, sizeof needle, "One of the special magic numbers for %s is: ", key);
    const char *at = only(r, needle);
    note(r, at);
    between(at, needle, ".", value);
    snprintf(r->answer, ANSWER_BYTES, "The special magic number for %s mentioned in the provided text is %s.",
             key, value);
}

/* Follows VAR NAME = VAR OTHER ... to the number. */
static void read_chain(reader *r) {
    char name[NAME_BYTES], statement[2 * NAME_BYTES], value[NAME_BYTES];
    between(r->question, "What value is assigned to VAR ", "?", name);
    for (int hop = 0; hop < 10; hop++) {
        snprintf(statement, sizeof statement, "VAR %s = ", name);
        const char *at = only(r, statement);
        note(r, at);
        between(at, statement, ".", value);
        say(r, statement);
        say(r, value);
        say(r, ". ");
        if (strncmp(value, "VAR ", 4) != 0) break;
        memmove(name, value + 4, strlen(value + 4) + 1);
    }
    say(r, "The value is ");
    say(r, value);
    say(r, ".");
}

/* The six two-hop forms: around the subject in the question; around the subject and behind the link in the first
 * sentence; around the link and behind the value in the second; around the value in the answer's last words. */
static const struct xref_form {
    const char *ask, *ask_end, *one, *one_middle, *one_end, *two, *two_middle, *two_end, *say, *say_end;
} XREF[] = {
    {"What limit applies to Section ", "?", "Section ", " defers to clause ", ".", "Clause ",
     " sets the limit to ", ".", "The limit is ", "."},
    {"Which port serves ", "?", "Service ", " runs on host ", ".", "Host ", " listens on port ", ".",
     "The port is ", "."},
    {"How many buffers does the ", " module", "The ", " module reads its settings from profile ", ".",
     "Profile ", " allots ", " buffers.", "It gets ", " buffers."},
    {"In which room is request ", " handled", "Request ", " was assigned to ", ".", "", " works in room ",
     ".", "The room is ", "."},
    {"Which value does Appendix ", " rely", "Appendix ", " cites table ", ".", "Table ", " lists the value ",
     ".", "The value is ", "."},
    {"What is the password of the office that the ", " team", "The ", " team reports to the ", " office.",
     "The password of the ", " office is ", ".", "The password is ", "."},
};
enum { N_XREF = sizeof XREF / sizeof *XREF };

static void read_xref(reader *r) {
    char subject[NAME_BYTES], link[NAME_BYTES] = "", value[NAME_BYTES], one[2 * NAME_BYTES],
                              two[2 * NAME_BYTES];
    const struct xref_form *f = XREF;
    while (f < XREF + N_XREF && !strstr(r->question, f->ask)) f++;
    if (f == XREF + N_XREF) fail_msg("no form for \"%s\"", r->question);
    between(r->question, f->ask, f->ask_end, subject);
    snprintf(one, sizeof one, "%s%s%s", f->one, subject, f->one_middle);
    const char *first = only(r, one), *begin = first + strlen(one);
    size_t initial = begin[1] == '.' ? 2 : 0; /* "A. Name": a stop inside */
    memcpy(link, begin, initial);
    between(begin + initial, "", f->one_end, link + initial);
    snprintf(two, sizeof two, "%s%s%s", f->two, link, f->two_middle);
    const char *second = only(r, two);
    between(second, two, f->two_end, value);
    note(r, first);
    note(r, second);
    const char *const parts[] = {one,        link, f->one_end, " ",   two,       value,
                                 f->two_end, " ",  f->say,     value, f->say_end};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) say(r, parts[i]);
}

/* The sentence that stands at `at`, to its full stop. */
static void say_sentence(reader *r, const char *at) {
    char sentence[ANSWER_BYTES];
    const char *end = strchr(at, '.');
    assert_non_null(end);
    snprintf(sentence, sizeof sentence, "%.*s", (int)(end - at + 1), at);
    say(r, sentence);
}

static void read_sentence(reader *r) {
    static const char mark[] = "begins with: ";
    const char *beginning = strstr(r->question, mark);
    assert_non_null(beginning);
    const char *at = only(r, beginning + strlen(mark));
    note(r, at);
    say_sentence(r, at);
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

/* The values in order, the one asked for last. */
static void read_latest(reader *r) {
    static const char *const order[] = {"third", "second", "first"};
    char key[NAME_BYTES], needle[2 * NAME_BYTES];
    read_needle(r);
    size_t behind = r->found.last;
    between(r->question, "number for latest ", " mentioned", key);
    for (int i = 0; i < 3; i++) {
        snprintf(needle, sizeof needle, "One of the special magic numbers for %s %s is: ", order[i], key);
        if (i < 2 && !strstr(r->text, needle)) continue;
        const char *at = only(r, needle);
        assert_true((size_t)(at - r->text) < behind);
        behind = (size_t)(at - r->text);
        note(r, at);
    }
}

/* The i-th note of a number, by its order in the text. */
static void read_note(reader *r) {
    enum { NOTES = 3 };
    char number[NAME_BYTES], mark[2 * NAME_BYTES];
    int order = strstr(r->question, "first note") ? 0 : strstr(r->question, "second note") ? 1 : 2;
    between(r->question, " note ", " exactly", number);
    snprintf(mark, sizeof mark, "Note %s: ", number);
    assert_int_equal(occurrences(r->text, mark), NOTES);
    const char *at = r->text;
    for (int i = 0; i < NOTES; i++) {
        at = strstr(at + (i > 0), mark);
        note(r, at);
        if (i == order) say_sentence(r, at);
    }
}

static void read_edge(reader *r) {
    if (strstr(r->question, "magic number")) read_needle(r);
    else read_xref(r);
}

/* ---- code -------------------------------------------------------------------------------------------------------- */

/* The number that a function adds, by a constant's name. */
static void read_constant(reader *r) {
    char function[NAME_BYTES], head[2 * NAME_BYTES], constant[NAME_BYTES], line[2 * NAME_BYTES],
        value[NAME_BYTES];
    between(r->question, "does the function ", " add", function);
    snprintf(head, sizeof head, "def %s(n):\n    return n + ", function);
    const char *one = only(r, head);
    between(one, head, "\n", constant);
    snprintf(line, sizeof line, "\n%s = ", constant);
    const char *two = only(r, line);
    between(two, line, "\n", value);
    note(r, one);
    note(r, two + 1);
    snprintf(r->answer, ANSWER_BYTES, "It adds %.99s. %.99s = %.99s. The number is %.99s.", constant,
             constant, value, value);
}

/* Facts of a repository must not share a file. */
static void check_files(const reader *r) {
    const char *at = r->text + r->found.first, *end = r->text + r->found.last;
    int n_files = 0;
    for (; (at = strstr(at, "==> ")) != NULL && at < end; at++) n_files++;
    assert_true(n_files >= r->found.n_facts - 1);
}

/* ---- lists: compared with the question's values ------------------------------------------------------------- */

static void check_value(const fl_eval_question *q, int32_t i, const char *value) {
    assert_true(i < q->n_values);
    if (strcmp(value, q->values[i]) != 0)
        fail_msg("%s: value %d is %s, not %s", q->task, (int)i, q->values[i], value);
    assert_non_null(strstr(q->reference, value));
}

/* All values of all keys asked for. */
static void read_ruler_needles(reader *r, const fl_eval_question *q) {
    int32_t n_values = 0;
    char keys[ANSWER_BYTES];
    const char *type = strstr(q->text, "uuid") ? "uuid" : "number";
    const char *begin = strstr(q->text, " for "), *end = strstr(q->text, " mentioned in");
    assert_true(begin && end && begin < end);
    snprintf(keys, sizeof keys, "%.*s", (int)(end - begin - 5), begin + 5);
    for (char *rest = NULL, *key = strtok_r(keys, ",", &rest); key; key = strtok_r(NULL, ",", &rest)) {
        char needle[ANSWER_BYTES + 64], value[NAME_BYTES];
        while (*key == ' ') key++;
        if (strncmp(key, "and ", 4) == 0) key += 4;
        snprintf(needle, sizeof needle, "One of the special magic %ss for %s is: ", type, key);
        for (const char *p = r->text; (p = strstr(p, needle)) != NULL; p++) {
            between(p, needle, ".", value);
            check_value(q, n_values++, value);
            note(r, p);
        }
    }
    assert_int_equal(n_values, q->n_values);
}

/* All variables that get the number, directly or through others. */
static void read_ruler_variables(reader *r, const fl_eval_question *q) {
    char number[NAME_BYTES], statement[2 * NAME_BYTES], name[NAME_BYTES];
    between(q->text, "the value ", " in the text", number);
    snprintf(statement, sizeof statement, " = %s\n", number);
    for (int32_t i = 0; i < q->n_values; i++) {
        const char *at = only(r, statement);
        while (at[-1] != '\n') at--;
        note(r, at);
        between(at, "VAR ", " = ", name);
        check_value(q, i, name);
        snprintf(statement, sizeof statement, " = VAR %s\n", name);
    }
    assert_null(strstr(r->text, statement)); /* the chain ends here */
}

static int by_string(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Every value must be more frequent than every other word of the list that follows the last `mark`, item numbers and
 * dots apart. */
static void read_ruler_words(const reader *r, const fl_eval_question *q, const char *mark) {
    const char *begin = NULL;
    for (const char *p = r->text; (p = strstr(p, mark)) != NULL; p++) begin = p + strlen(mark);
    assert_non_null(begin);
    char *list = strdup(begin), **word = malloc((strlen(begin) + 1) * sizeof *word);
    assert_true(list && word);
    size_t n = 0;
    for (char *rest = NULL, *w = strtok_r(list, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        if (w[strlen(w) - 1] != '.') word[n++] = w;
    qsort(word, n, sizeof *word, by_string);
    size_t least = n, most_other = 0;
    int32_t n_found = 0;
    for (size_t i = 0, end; i < n; i = end) {
        bool is_value = false;
        for (end = i; end < n && strcmp(word[end], word[i]) == 0;) end++;
        for (int32_t v = 0; v < q->n_values; v++) is_value = is_value || strcmp(q->values[v], word[i]) == 0;
        n_found += is_value;
        if (is_value && end - i < least) least = end - i;
        if (!is_value && end - i > most_other) most_other = end - i;
    }
    assert_int_equal(n_found, q->n_values);
    if (least <= most_other) fail_msg("%s: %zu times, another word %zu times", q->task, least, most_other);
    free(word);
    free(list);
}

static void read_json(reader *r, const fl_eval_question *q) {
    char key[NAME_BYTES], pair[2 * NAME_BYTES], value[NAME_BYTES];
    between(q->text, "the key \"", "\"", key);
    snprintf(pair, sizeof pair, "\"%s\": \"", key);
    const char *at = only(r, pair);
    note(r, at);
    between(at, pair, "\"", value);
    assert_int_equal(q->n_values, 1);
    check_value(q, 0, value);
}

typedef void read_fn(reader *r);

static const struct trained_task {
    const char *task;
    read_fn *read;
} TRAINED[] = {
    {"niah_single", read_needle},
    {"niah_multikey", read_needle},
    {"xref", read_xref},
    {"chain", read_chain},
    {"copy_begin", read_sentence},
    {"x_chain", read_chain},
    {"x_join", read_xref},
    {"x_overwrite", read_latest},
    {"x_ordinal", read_note},
    {"x_edge", read_edge},
    {"repo_xref", read_xref},
    {"repo_chain", read_chain},
    {"repo_constant", read_constant},
};

eval_reading eval_read(const fl_eval_document *document, const fl_eval_question *q) {
    reader r = {.text = document->text, .question = q->text};
    bool read = true;
    if (strncmp(q->task, "ruler_niah", 10) == 0) read_ruler_needles(&r, q);
    else if (strcmp(q->task, "ruler_vt") == 0) read_ruler_variables(&r, q);
    else if (strcmp(q->task, "ruler_cwe") == 0) read_ruler_words(&r, q, "appear most often.\n");
    else if (strcmp(q->task, "ruler_fwe") == 0) read_ruler_words(&r, q, "coded words. ");
    else if (strcmp(q->task, "json_kv") == 0) read_json(&r, q);
    else read = false;
    for (size_t i = 0; i < sizeof TRAINED / sizeof *TRAINED && !read; i++) {
        if (strcmp(q->task, TRAINED[i].task) != 0) continue;
        TRAINED[i].read(&r);
        assert_string_equal(q->reference, r.answer);
        read = true;
    }
    if (!read) fail_msg("nobody can read %s", q->task);
    if (strncmp(q->task, "repo_", 5) == 0) check_files(&r);
    if (r.found.n_facts == 1) r.found.last = document->text_bytes;
    return r.found;
}
