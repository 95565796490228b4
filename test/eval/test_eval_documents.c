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

#include "base/sha256.h"
#include "eval/eval_reader.h"
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
                          .segment_tokens = (int32_t)(length < 4096 ? 512 : length / 8),
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

static bool same(const fl_eval_document *a, const fl_eval_document *b) {
    if (a->text_bytes != b->text_bytes || memcmp(a->text, b->text, a->text_bytes) != 0) return false;
    if (a->n_questions != b->n_questions) return false;
    for (int32_t i = 0; i < a->n_questions; i++)
        if (strcmp(a->questions[i].text, b->questions[i].text) != 0 ||
            strcmp(a->questions[i].reference, b->questions[i].reference) != 0)
            return false;
    return true;
}

/* Needles beside an edge end before it or begin behind it, most of them within 64 tokens. */
static int n_beside, n_near;

static void check_edge(const fl_eval_question *q, int64_t first, int64_t segment) {
    if (!strstr(q->text, "magic number")) {
        assert_true(q->segment_distance >= 1); /* a reference across the edge */
        return;
    }
    int64_t beside = (first + segment / 2) % segment - segment / 2;
    if (llabs(beside) > 100) fail_msg("%lld tokens from the edge", (long long)beside);
    n_beside++;
    n_near += llabs(beside) <= 64;
}

/* The answer can be found in the text, where the question says it is. */
/* Running text goes on where the document ends, as the haystack does. */
static void check_running(const fl_eval_document *document, const fl_eval_spec *spec) {
    enum { AROUND = 60 };
    const char *reference = document->questions[0].reference;
    char around[2 * AROUND];
    assert_int_equal(document->n_questions, 1);
    assert_true(document->text_bytes > AROUND && strlen(reference) > AROUND);
    assert_true(tokens_of(reference, strlen(reference)) >= spec->length_tokens / 8 ||
                strlen(reference) >= 3000);
    memcpy(around, document->text + document->text_bytes - AROUND, AROUND);
    memcpy(around + AROUND, reference, AROUND);
    assert_non_null(memmem(spec->haystack, spec->haystack_bytes, around, sizeof around));
}

static void check_question(const fl_eval_document *document, const fl_eval_spec *spec, int32_t i) {
    if (document->questions[i].running_text) {
        check_running(document, spec);
        return;
    }
    enum { PLACE_TOKENS = 8 }; /* the makers count piece by piece */
    const fl_eval_question *q = &document->questions[i];
    int64_t segment = spec->segment_tokens;
    assert_true(fl_eval_score(q, q->reference, strlen(q->reference)) == 1);
    eval_reading reading = eval_read(document, q);
    if (reading.n_facts == 0) {
        assert_true(q->depth == -1 && q->segment_distance == 0);
        return;
    }
    int64_t first = tokens_of(document->text, reading.first), last = tokens_of(document->text, reading.last);
    double depth = (double)first / (double)tokens_of(document->text, document->text_bytes);
    if (fabs(depth - q->depth) > 0.01) fail_msg("%s: depth %.3f, found at %.3f", q->task, q->depth, depth);
    int64_t least = (last - PLACE_TOKENS) / segment - (first + PLACE_TOKENS) / segment;
    int64_t most = (last + PLACE_TOKENS) / segment - (first - PLACE_TOKENS) / segment;
    if (q->segment_distance < least || q->segment_distance > most)
        fail_msg("%s: distance %d, found %lld..%lld", q->task, (int)q->segment_distance, (long long)least,
                 (long long)most);
    if (strcmp(q->task, "x_edge") == 0) check_edge(q, first, segment);
    if (strcmp(q->task, "x_chain") == 0) assert_int_equal(q->segment_distance, reading.n_facts - 1);
    if (strcmp(q->task, "x_join") == 0) assert_true(q->segment_distance >= 1);
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
    bool list = strcmp(spec->task, "spark") != 0 && strcmp(spec->task, "segments") != 0 &&
                strcmp(spec->task, "repository") != 0;
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
    n_beside = n_near = 0;
    check_at(16384);
    assert_true(n_beside > 0 && 4 * n_near >= 3 * n_beside);
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

/* The same bytes with every compiler and on every machine. Whoever changes a task on purpose changes its line: results
 * of before and after then are results of different tasks. */
static const struct known_document {
    const char *family, *sha256; /* the first 16 digits, of text and questions */
} KNOWN[] = {
    {"spark", "4574f74defff3b1d"},
    {"ruler_niah_single_1", "0759f6bdb3190920"},
    {"ruler_niah_single_2", "10b66c280367c679"},
    {"ruler_niah_single_3", "65d8d9288ecb45e0"},
    {"ruler_niah_multikey_1", "68147868c92a25d5"},
    {"ruler_niah_multikey_2", "ad73bdcfe6d0287a"},
    {"ruler_niah_multikey_3", "4b52592e01c64ebc"},
    {"ruler_niah_multivalue", "9f7df67c3d40c07d"},
    {"ruler_niah_multiquery", "abfdb011da6b0737"},
    {"ruler_vt", "87f9d20d406283ad"},
    {"ruler_cwe", "a7a4297c6a29951e"},
    {"ruler_fwe", "fdfeb478cf9d06fa"},
    {"json_kv", "062b540e34725176"},
    {"segments", "83ddb64cae9d81ab"},
    {"repository", "8957cd61e3e48a1c"},
};

static void documents_are_the_same_everywhere(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        fl_eval_spec spec = spec_of(KNOWN[i].family, 4096);
        fl_eval_document document = make(&spec);
        size_t n = document.text_bytes, capacity = n + (1 << 16);
        char *all = malloc(capacity), hex[FL_SHA256_HEX_BYTES];
        assert_non_null(all);
        memcpy(all, document.text, n);
        for (int32_t k = 0; k < document.n_questions; k++) {
            const fl_eval_question *q = &document.questions[k];
            n += (size_t)snprintf(all + n, capacity - n, "%s\n%s\n%s\n", q->text, q->answer_head,
                                  q->reference);
            assert_true(n < capacity);
        }
        assert_int_equal(fl_sha256_of(all, n, hex), FL_ERR_OK);
        hex[16] = '\0';
        if (strcmp(hex, KNOWN[i].sha256) != 0)
            fail_msg("%s: %s, not %s", KNOWN[i].family, hex, KNOWN[i].sha256);
        free(all);
        fl_eval_document_close(&document);
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
        cmocka_unit_test(documents_are_the_same_everywhere),
        cmocka_unit_test(a_task_is_its_familys_document),
        cmocka_unit_test(bad_specs_are_refused),
        cmocka_unit_test(long_ones_are_made_quickly),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
