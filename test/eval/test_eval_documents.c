/* Documents of the evaluation: their lengths, what is in them, and whether what they ask can be answered from them by a
 * reader that knows only the text. */
#include "eval/eval_document.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "eval/haystack.h"
#include "text/tokenizer.h"

static fl_haystack haystack;
static fl_tokenizer *tokenizer;

static int64_t tokens_of(const char *text, size_t n_bytes) {
    int32_t *ids = NULL;
    int64_t n = 0;
    assert_int_equal(fl_tokenizer_encode(tokenizer, text, n_bytes, NULL, 0, &ids, &n), FL_ERR_OK);
    free(ids);
    return n;
}

static fl_err count(void *context, const char *text, size_t n_bytes, int64_t *n_tokens) {
    int32_t *ids = NULL;
    fl_err err = fl_tokenizer_encode(context, text, n_bytes, NULL, 0, &ids, n_tokens);
    free(ids);
    return err;
}

static fl_eval_spec spec_of(const char *task, int64_t length) {
    return (fl_eval_spec){.task = task,
                          .length_tokens = length,
                          .segment_tokens = (int32_t)(length / 8),
                          .seed = 7,
                          .difficulty = 0.5,
                          .haystack = haystack.text,
                          .haystack_bytes = haystack.n_bytes,
                          .count = count,
                          .count_context = tokenizer};
}

static fl_eval_document make(const fl_eval_spec *spec) {
    fl_eval_document document;
    fl_err err = fl_eval_document_make(spec, &document);
    if (err != FL_ERR_OK)
        fail_msg("%s at %lld: %s", spec->task, (long long)spec->length_tokens, fl_err_detail());
    return document;
}

static int occurrences(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p++) n++;
    return n;
}

static bool same(const fl_eval_document *a, const fl_eval_document *b) {
    if (a->text_bytes != b->text_bytes || memcmp(a->text, b->text, a->text_bytes) != 0) return false;
    if (a->n_questions != b->n_questions) return false;
    for (int32_t i = 0; i < a->n_questions; i++)
        if (strcmp(a->questions[i].text, b->questions[i].text) != 0 ||
            strcmp(a->questions[i].reference, b->questions[i].reference) != 0)
            return false;
    return true;
}

/* ---- a reader: answers from the text alone. Each returns where its (first) fact lies, or fails the test ---------- */

/* The text between two strings; they must frame it. */
static void between(const char *text, const char *before, const char *after, char *out) {
    const char *begin = strstr(text, before);
    if (!begin) fail_msg("\"%s\" is not in \"%.200s\"", before, text);
    begin += strlen(before);
    const char *end = strstr(begin, after);
    if (!end || end - begin > 300) fail_msg("\"%s\" does not follow \"%s\"", after, before);
    snprintf(out, 320, "%.*s", (int)(end - begin), begin);
}

/* The one place where `what` stands. */
static const char *only(const char *text, const char *what) {
    int n = occurrences(text, what);
    if (n != 1) fail_msg("\"%s\" occurs %d times", what, n);
    return strstr(text, what);
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static void append(char *list, const char *text) {
    snprintf(list + strlen(list), 2048 - strlen(list), "%s", text);
}

static size_t read_needle(const char *text, const char *question, char *answer) {
    char key[320], needle[400], value[320];
    between(question, "What is the special magic number for ", " mentioned", key);
    snprintf(needle, sizeof needle, "One of the special magic numbers for %.300s is: ", key);
    const char *at = only(text, needle);
    between(at, needle, ".", value);
    snprintf(answer, 2048, "The special magic number for %s mentioned in the provided text is %s.", key,
             value);
    return (size_t)(at - text);
}

/* Follows VAR NAME = VAR OTHER ... to the number. */
static size_t read_chain(const char *text, const char *question, char *answer) {
    char name[320], statement[400], value[320];
    size_t first = SIZE_MAX;
    between(question, "What value is assigned to VAR ", "?", name);
    answer[0] = '\0';
    for (int hop = 0; hop < 10; hop++) {
        snprintf(statement, sizeof statement, "VAR %.300s = ", name);
        const char *at = only(text, statement);
        first = smaller(first, (size_t)(at - text));
        between(at, statement, ".", value);
        append(answer, statement);
        append(answer, value);
        append(answer, ". ");
        if (strncmp(value, "VAR ", 4) != 0) break;
        memmove(name, value + 4, strlen(value + 4) + 1);
    }
    append(answer, "The value is ");
    append(answer, value);
    append(answer, ".");
    return first;
}

/* The six two-hop forms: around the subject in the question; between subject and link, and behind the link, in the
 * first sentence; around the link, and behind the value, in the second; around the value in the answer's last words. */
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

static size_t read_xref(const char *text, const char *question, char *answer) {
    char subject[320], link[320], value[320], one[400], two[400];
    for (int i = 0; i < N_XREF; i++) {
        const struct xref_form *f = &XREF[i];
        if (!strstr(question, f->ask)) continue;
        between(question, f->ask, f->ask_end, subject);
        snprintf(one, sizeof one, "%s%.160s%s", f->one, subject, f->one_middle);
        const char *first = only(text, one);
        const char *end = f->one_end;
        if (i == 3)
            end = i == 3 && first[strlen(one) + 1] == '.' ? ".\n" : "."; /* "A. Name" has a stop inside */
        if (i == 3) {
            snprintf(link, sizeof link, "%.2s", first + strlen(one));
            char rest[320];
            between(first + strlen(one) + 2, "", ".", rest);
            append(link, rest);
            end = ".";
        } else {
            between(first, one, end, link);
        }
        snprintf(two, sizeof two, "%s%.160s%s", f->two, link, f->two_middle);
        const char *second = only(text, two);
        between(second, two, f->two_end, value);
        snprintf(answer, 2048, "%s%s%s %s%s%s %s%s%s", one, link, f->one_end, two, value, f->two_end, f->say,
                 value, f->say_end);
        return smaller((size_t)(first - text), (size_t)(second - text));
    }
    fail_msg("no form for \"%s\"", question);
    return 0;
}

static size_t read_sentence(const char *text, const char *question, char *answer) {
    const char *mark = "begins with: ";
    const char *beginning = strstr(question, mark);
    assert_non_null(beginning);
    const char *at = only(text, beginning + strlen(mark));
    const char *end = strchr(at, '.');
    assert_non_null(end);
    snprintf(answer, 2048, "%.*s", (int)(end - at + 1), at);
    return (size_t)(at - text);
}

typedef size_t read_fn(const char *text, const char *question, char *answer);

static read_fn *reader_of(const char *task) {
    if (strncmp(task, "niah_", 5) == 0) return read_needle;
    if (strcmp(task, "chain") == 0) return read_chain;
    if (strcmp(task, "xref") == 0) return read_xref;
    if (strcmp(task, "copy_begin") == 0) return read_sentence;
    return NULL;
}

/* RULER's needle questions: all values of all keys asked for. Returns the earliest needle. */
static size_t read_ruler_needles(const char *text, const fl_eval_question *q) {
    size_t first = SIZE_MAX;
    int n_values = 0;
    char keys[1024];
    const char *type = strstr(q->text, "uuid") ? "uuid" : "number";
    const char *begin = strstr(q->text, " for "), *end = strstr(q->text, " mentioned in");
    assert_non_null(begin);
    assert_non_null(end);
    snprintf(keys, sizeof keys, "%.*s", (int)(end - begin - 5), begin + 5);
    for (char *rest = NULL, *key = strtok_r(keys, ",", &rest); key; key = strtok_r(NULL, ",", &rest)) {
        char needle[300], value[320];
        while (*key == ' ') key++;
        if (strncmp(key, "and ", 4) == 0) key += 4;
        snprintf(needle, sizeof needle, "One of the special magic %ss for %s is: ", type, key);
        for (const char *p = text; (p = strstr(p, needle)) != NULL; p++) {
            between(p, needle, ".", value);
            assert_true(n_values < q->n_values);
            if (strcmp(value, q->values[n_values]) != 0)
                fail_msg("%s: %s, not %s", key, q->values[n_values], value);
            assert_non_null(strstr(q->reference, value));
            first = smaller(first, (size_t)(p - text));
            n_values++;
        }
    }
    assert_int_equal(n_values, q->n_values);
    return first;
}

static void check_question(const fl_eval_document *document, const fl_eval_spec *spec, int32_t i) {
    const fl_eval_question *q = &document->questions[i];
    char answer[2048];
    size_t first;
    if (strncmp(q->task, "ruler_niah", 10) == 0) {
        first = read_ruler_needles(document->text, q);
    } else {
        read_fn *reader = reader_of(q->task);
        if (!reader) fail_msg("no reader for %s", q->task);
        first = reader(document->text, q->text, answer);
        assert_string_equal(q->reference, answer);
    }
    assert_true(fl_eval_score(q, q->reference, strlen(q->reference)) == 1);
    int64_t before = tokens_of(document->text, first), all = tokens_of(document->text, document->text_bytes);
    double depth = (double)before / (double)all;
    if (fabs(depth - q->depth) > 0.02) fail_msg("%s: depth %.3f, found at %.3f", q->task, q->depth, depth);
    /* Tokens are counted piece by piece, so places are known to a few dozen tokens. */
    enum { PLACE_TOKENS = 48 };
    int64_t segment = spec->segment_tokens;
    int64_t least = (all - PLACE_TOKENS) / segment - (before + PLACE_TOKENS) / segment;
    int64_t most = (all + PLACE_TOKENS) / segment - (before - PLACE_TOKENS) / segment;
    bool one_fact =
        q->n_values == 1 || strncmp(q->task, "niah_", 5) == 0 || strcmp(q->task, "copy_begin") == 0;
    if (one_fact && (q->segment_distance < least || q->segment_distance > most))
        fail_msg("%s: distance %d, found %lld..%lld", q->task, (int)q->segment_distance, (long long)least,
                 (long long)most);
    assert_true(q->segment_distance >= 0 && q->segment_distance <= all / segment);
}

static void check_length(const fl_eval_document *document, const fl_eval_spec *spec) {
    int64_t longest = 0, document_tokens = tokens_of(document->text, document->text_bytes);
    for (int32_t i = 0; i < document->n_questions; i++) {
        const fl_eval_question *q = &document->questions[i];
        char *prompt = malloc(document->text_bytes + strlen(q->text) + 1);
        assert_non_null(prompt);
        memcpy(prompt, document->text, document->text_bytes + 1);
        strcpy(prompt + document->text_bytes, q->text);
        int64_t n = tokens_of(prompt, strlen(prompt)) + tokens_of(q->answer_head, strlen(q->answer_head));
        int64_t reference = tokens_of(q->reference, strlen(q->reference));
        assert_true(q->max_tokens >= reference);
        n += q->max_tokens;
        free(prompt);
        if (n > longest) longest = n;
    }
    int64_t length = spec->length_tokens;
    bool list =
        strcmp(spec->task, "ruler_niah_multikey_2") == 0 || strcmp(spec->task, "ruler_niah_multikey_3") == 0;
    int64_t slack = length / 50 + (list ? 100 : 0);
    if (longest + 16 > length || longest + 30 < length - slack)
        fail_msg("%s: %lld tokens (document %lld) for a length of %lld", spec->task, (long long)longest,
                 (long long)document_tokens, (long long)length);
}

static void check_at(int64_t length) {
    for (const char *const *family = fl_eval_family_names(); *family; family++) {
        fl_eval_spec spec = spec_of(*family, length);
        for (spec.index = 0; spec.index < 2; spec.index++) {
            fl_eval_document document = make(&spec);
            assert_true(document.n_questions > 0);
            assert_int_equal(strlen(document.text), document.text_bytes);
            check_length(&document, &spec);
            for (int32_t i = 0; i < document.n_questions; i++) check_question(&document, &spec, i);
            fl_eval_document_close(&document);
        }
    }
}

static void short_documents(void **state) {
    (void)state;
    check_at(2048);
}

static void long_documents(void **state) {
    (void)state;
    check_at(16384);
}

static void same_spec_same_document(void **state) {
    (void)state;
    for (const char *const *family = fl_eval_family_names(); *family; family++) {
        fl_eval_spec spec = spec_of(*family, 4096);
        fl_eval_document a = make(&spec), b = make(&spec);
        assert_true(same(&a, &b));
        fl_eval_document_close(&b);
        spec.index = 1;
        b = make(&spec);
        assert_false(same(&a, &b));
        fl_eval_document_close(&b);
        spec.index = 0;
        spec.seed++;
        b = make(&spec);
        assert_false(same(&a, &b));
        fl_eval_document_close(&b);
        fl_eval_document_close(&a);
    }
}

static void a_task_is_its_familys_document(void **state) {
    (void)state;
    for (const char *const *task = fl_eval_task_names(); *task; task++) {
        const char *family = fl_eval_family_of(*task);
        assert_non_null(family);
        fl_eval_spec spec = spec_of(family, 4096);
        fl_eval_document whole = make(&spec);
        spec.task = *task;
        fl_eval_document part = make(&spec);
        assert_string_equal(whole.text, part.text);
        int32_t n = 0;
        for (int32_t i = 0; i < whole.n_questions; i++) {
            if (strcmp(whole.questions[i].task, *task) != 0) continue;
            assert_true(n < part.n_questions);
            assert_string_equal(whole.questions[i].text, part.questions[n++].text);
        }
        assert_true(n > 0);
        assert_int_equal(n, part.n_questions);
        fl_eval_document_close(&whole);
        fl_eval_document_close(&part);
    }
}

static void bad_specs_are_refused(void **state) {
    (void)state;
    fl_eval_document document;
    for (const char *const *family = fl_eval_family_names(); *family; family++) {
        fl_eval_spec spec = spec_of(*family, 100);
        assert_int_equal(fl_eval_document_make(&spec, &document), FL_ERR_INVALID);
        assert_non_null(strstr(fl_err_detail(), "length 100"));
        assert_null(document.text);
    }
    fl_eval_spec spec = spec_of("no-such-task", 4096);
    assert_int_equal(fl_eval_document_make(&spec, &document), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "no-such-task"));
    assert_null(fl_eval_family_of("no-such-task"));
    spec = spec_of("spark", 4096);
    spec.difficulty = 1.5;
    assert_int_equal(fl_eval_document_make(&spec, &document), FL_ERR_INVALID);
    spec = spec_of("spark", 4096);
    spec.haystack_bytes = 100;
    assert_int_equal(fl_eval_document_make(&spec, &document), FL_ERR_INVALID);
}

static void every_difficulty_works(void **state) {
    (void)state;
    for (const char *const *family = fl_eval_family_names(); *family; family++) {
        for (int step = 0; step <= 2; step++) {
            fl_eval_spec spec = spec_of(*family, 4096);
            spec.difficulty = 0.5 * step;
            fl_eval_document document = make(&spec);
            check_length(&document, &spec);
            for (int32_t i = 0; i < document.n_questions; i++) check_question(&document, &spec, i);
            fl_eval_document_close(&document);
        }
    }
}

static void long_ones_are_made_quickly(void **state) {
    (void)state;
    for (const char *const *family = fl_eval_family_names(); *family; family++) {
        fl_eval_spec spec = spec_of(*family, 131072);
        struct timespec begin, end;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        fl_eval_document document = make(&spec);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        double s = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
        if (s > 2) fail_msg("%s: %.2f s", *family, s);
        check_length(&document, &spec);
        fl_eval_document_close(&document);
    }
}

static void scores(void **state) {
    (void)state;
    char *values[] = {"1234567", "abc-DEF"};
    fl_eval_question q = {
        .reference = " The value is 5. ", .values = values, .n_values = 2, .scoring = FL_EVAL_EXACT};
    assert_true(fl_eval_score(&q, "The value is 5.", 15) == 1);
    assert_true(fl_eval_score(&q, "\nThe value is 5.\n", 17) == 1);
    assert_true(fl_eval_score(&q, "The value is 5.x", 15) == 1); /* the length counts, not a NUL */
    assert_true(fl_eval_score(&q, "the value is 5.", 15) == 0);
    assert_true(fl_eval_score(&q, "The value is 5", 14) == 0);
    assert_true(fl_eval_score(&q, "", 0) == 0);
    q.scoring = FL_EVAL_FIND_ALL;
    assert_true(fl_eval_score(&q, "x1234567, ABC-def.", 18) == 1);
    assert_true(fl_eval_score(&q, "1234567", 7) == 0.5);
    assert_true(fl_eval_score(&q, "123456", 6) == 0);
    assert_true(fl_eval_score(&q, "", 0) == 0);
    q.scoring = FL_EVAL_FIND_PART;
    assert_true(fl_eval_score(&q, "it is Abc-Def", 13) == 1);
    assert_true(fl_eval_score(&q, "it is 12345", 11) == 0);
}

static void running_text(void **state) {
    (void)state;
    assert_true(haystack.n_bytes > 1500000);
    assert_int_equal(strlen(haystack.text), haystack.n_bytes);
    fl_haystack own;
    assert_int_equal(fl_haystack_open("share/demo", &own), FL_ERR_OK);
    assert_non_null(strstr(own.text, "hidden-lantern"));
    fl_haystack_close(&own);
    assert_int_equal(fl_haystack_open("share/demo/document.txt", &own), FL_ERR_OK);
    assert_int_equal(own.text[own.n_bytes - 1], '\n');
    fl_haystack_close(&own);
    assert_int_equal(fl_haystack_open("share/eval/haystack.txt.zst", &own), FL_ERR_DATA); /* no text */
    assert_int_equal(fl_haystack_open("no/such/folder", &own), FL_ERR_IO);
    assert_null(own.text);
}

static int open_all(void **state) {
    (void)state;
    if (fl_haystack_open(NULL, &haystack) != FL_ERR_OK) return -1;
    return fl_tokenizer_open("models/spark-66m", &tokenizer) == FL_ERR_OK ? 0 : -1;
}

static int close_all(void **state) {
    (void)state;
    fl_haystack_close(&haystack);
    fl_tokenizer_close(tokenizer);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(running_text),
        cmocka_unit_test(scores),
        cmocka_unit_test(short_documents),
        cmocka_unit_test(long_documents),
        cmocka_unit_test(every_difficulty_works),
        cmocka_unit_test(same_spec_same_document),
        cmocka_unit_test(a_task_is_its_familys_document),
        cmocka_unit_test(bad_specs_are_refused),
        cmocka_unit_test(long_ones_are_made_quickly),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
