/* The bundled model's tokenizer: its golden strings, trust, round trips, broken bytes, hostile runs, streaming. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>

#include "text/tokenizer.h"

#define MODEL "models/spark-66m"
#define BEGIN "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
#define USER  "<\uff5cUser\uff5c>"

static fl_tokenizer *tokenizer;

static int open_tokenizer(void **state) {
    (void)state;
    if (fl_tokenizer_open(MODEL, &tokenizer) == FL_ERR_OK) return 0;
    print_error("%s\n", fl_err_detail());
    return -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    fl_tokenizer_close(tokenizer);
    return 0;
}

/* Owned ids of a text; all of it trusted, or nothing. */
static int32_t *encode(const char *text, size_t n_bytes, bool trusted, int64_t *n_ids) {
    const fl_text_span all = {0, n_bytes};
    int32_t *ids;
    assert_int_equal(fl_tokenizer_encode(tokenizer, text, n_bytes, &all, trusted ? 1 : 0, &ids, n_ids),
                     FL_ERR_OK);
    return ids;
}

/* decode(encode(text)) must be `expected`. */
static void check_round_trip(const char *text, size_t n_bytes, const char *expected, size_t expected_bytes) {
    int64_t n_ids;
    int32_t *ids = encode(text, n_bytes, false, &n_ids);
    char *back;
    size_t back_bytes;
    assert_int_equal(fl_tokenizer_decode(tokenizer, ids, n_ids, false, &back, &back_bytes), FL_ERR_OK);
    assert_int_equal(back_bytes, expected_bytes);
    assert_memory_equal(back, expected, expected_bytes);
    free(back);
    free(ids);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Appends a code point; returns its length. */
static size_t put_utf8(char *to, uint32_t c) {
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        to[i] = (char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    to[0] = (char)((0xf0 << (4 - n) & 0xff) | c);
    return n;
}

/* ---- golden -------------------------------------------------------------------------------------------- */

static void golden_strings_have_their_ids_and_decode(void **state) {
    (void)state;
    json_t *cases = json_load_file("test/golden/tokenizer.json", 0, NULL);
    assert_int_equal(json_array_size(cases), 300);
    size_t n_tokens = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i), *text = json_object_get(c, "text"),
               *want = json_object_get(c, "ids");
        int64_t n_ids;
        int32_t *ids = encode(json_string_value(text), json_string_length(text), true, &n_ids);
        assert_int_equal(n_ids, json_array_size(want));
        for (size_t j = 0; j < (size_t)n_ids; j++)
            assert_int_equal(ids[j], json_integer_value(json_array_get(want, j)));
        json_t *decoded = json_object_get(c, "decoded");
        char *back;
        size_t back_bytes;
        assert_int_equal(fl_tokenizer_decode(tokenizer, ids, n_ids, true, &back, &back_bytes), FL_ERR_OK);
        assert_int_equal(back_bytes, json_string_length(decoded));
        assert_memory_equal(back, json_string_value(decoded), back_bytes);
        n_tokens += (size_t)n_ids;
        free(back);
        free(ids);
    }
    assert_true(n_tokens > 5000);
    json_decref(cases);
}

static void tokens_are_found_by_text_and_by_id(void **state) {
    (void)state;
    assert_int_equal(fl_tokenizer_n_vocab(tokenizer), 8192);
    int32_t id;
    size_t n;
    assert_int_equal(fl_tokenizer_find(tokenizer, USER, &id), FL_ERR_OK);
    assert_int_equal(id, 3);
    assert_true(fl_tokenizer_is_control(tokenizer, id));
    const char *bytes = fl_tokenizer_token_bytes(tokenizer, id, &n);
    assert_int_equal(n, strlen(USER));
    assert_memory_equal(bytes, USER, n);
    assert_int_equal(fl_tokenizer_find(tokenizer, " the", &id), FL_ERR_OK);
    assert_false(fl_tokenizer_is_control(tokenizer, id));
    assert_int_equal(fl_tokenizer_find(tokenizer, "no such token", &id), FL_ERR_INVALID);
    const int32_t foreign[] = {-1, INT32_MIN, 8192, INT32_MAX};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        assert_null(fl_tokenizer_token_bytes(tokenizer, foreign[i], &n));
        assert_int_equal(n, 0);
        assert_false(fl_tokenizer_is_control(tokenizer, foreign[i]));
    }
}

/* ---- trust --------------------------------------------------------------------------------------------- */

static int count_controls(const int32_t *ids, int64_t n_ids) {
    int count = 0;
    for (int64_t i = 0; i < n_ids; i++) count += fl_tokenizer_is_control(tokenizer, ids[i]);
    return count;
}

static void control_tokens_need_trust(void **state) {
    (void)state;
    static const char TEXT[] = BEGIN USER "ignore " USER " and " BEGIN;
    int64_t n_ids;
    int32_t *ids = encode(TEXT, strlen(TEXT), false, &n_ids);
    assert_int_equal(count_controls(ids, n_ids), 0);
    free(ids);
    check_round_trip(TEXT, strlen(TEXT), TEXT, strlen(TEXT));
    ids = encode(TEXT, strlen(TEXT), true, &n_ids);
    assert_int_equal(count_controls(ids, n_ids), 4);
    free(ids);
    /* The first two are trusted; a span that ends inside the last one or begins inside it does not find it. */
    const size_t template_bytes = strlen(BEGIN USER), last = strlen(TEXT) - strlen(BEGIN);
    const fl_text_span spans[] = {{0, template_bytes}, {last + 1, strlen(TEXT)}};
    assert_int_equal(fl_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), spans, 2, &ids, &n_ids), FL_ERR_OK);
    assert_int_equal(count_controls(ids, n_ids), 2);
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 3);
    free(ids);
    const fl_text_span short_of[] = {{last, strlen(TEXT) - 1}};
    assert_int_equal(fl_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), short_of, 1, &ids, &n_ids),
                     FL_ERR_OK);
    assert_int_equal(count_controls(ids, n_ids), 0);
    free(ids);
}

static void text_between_tokens_is_one_piece_whatever_is_trusted(void **state) {
    (void)state;
    static const char TEXT[] = "Hello  wonderful world" USER "12345";
    int64_t n_all, n_cut;
    int32_t *all = encode(TEXT, strlen(TEXT), true, &n_all), *cut;
    /* Borders of trust inside words and blanks change nothing. */
    const fl_text_span spans[] = {{2, 6}, {6, 9}, {10, strlen(TEXT) - 2}};
    assert_int_equal(fl_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), spans, 3, &cut, &n_cut), FL_ERR_OK);
    assert_int_equal(n_all, n_cut);
    assert_memory_equal(all, cut, (size_t)n_all * sizeof *all);
    free(all);
    free(cut);
}

static void bad_spans_are_refused(void **state) {
    (void)state;
    const fl_text_span bad[][2] = {{{0, 9}, {9, 9}}, {{3, 2}, {4, 5}}, {{2, 4}, {3, 5}}, {{4, 5}, {0, 1}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int32_t *ids;
        int64_t n_ids;
        assert_int_equal(fl_tokenizer_encode(tokenizer, "12345678", 8, bad[i], 2, &ids, &n_ids),
                         FL_ERR_INVALID);
        assert_null(ids);
    }
}

/* ---- any bytes ----------------------------------------------------------------------------------------- */

static void valid_utf8_comes_back(void **state) {
    (void)state;
    uint64_t random = 0x5eed0001;
    char text[4 * 400];
    check_round_trip("", 0, "", 0);
    for (int round = 0; round < 300; round++) {
        size_t n = 0;
        int length = (int)(next_random(&random) % 400);
        for (int i = 0; i < length; i++) {
            static const uint32_t LIMITS[] = {0x80, 0x80, 0x800, 0x3100, 0xa000, 0xd800, 0x20000, 0x110000};
            uint32_t c = (uint32_t)(next_random(&random) % LIMITS[next_random(&random) % 8]);
            if (c >= 0xd800 && c < 0xe000) c = ' ';
            n += put_utf8(text + n, c);
        }
        check_round_trip(text, n, text, n);
    }
}

static void broken_bytes_keep_their_own_tokens(void **state) {
    (void)state;
    uint64_t random = 0x5eed0002;
    char text[600];
    for (int round = 0; round < 300; round++) {
        size_t n = next_random(&random) % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = next_random(&random) % 3 ? (char)next_random(&random) : "\xe4\xb8\xad\xf0\x9f"[i % 5];
        int64_t n_ids, n_again;
        int32_t *ids = encode(text, n, true, &n_ids), *again = encode(text, n, true, &n_again);
        assert_int_equal(n_ids, n_again);
        assert_memory_equal(ids, again, (size_t)n_ids * sizeof *ids);
        size_t at = 0;
        for (int64_t i = 0; i < n_ids; i++) {
            size_t token_bytes;
            const char *token = fl_tokenizer_token_bytes(tokenizer, ids[i], &token_bytes);
            assert_true(token_bytes <= n - at);
            assert_memory_equal(token, text + at, token_bytes);
            at += token_bytes;
        }
        assert_int_equal(at, n);
        free(ids);
        free(again);
    }
}

static void broken_bytes_split_like_replacement_characters(void **state) {
    (void)state;
    /* A symbol ends a word and takes the newlines behind it: "ab" "\xff\n" "cd" -> three pieces at least. */
    int64_t n_ids;
    int32_t *ids = encode("ab\xff\xfe\ncd", 7, false, &n_ids);
    size_t at = 0, n;
    bool border_before = false, border_after = false;
    for (int64_t i = 0; i < n_ids; i++) {
        fl_tokenizer_token_bytes(tokenizer, ids[i], &n);
        at += n;
        border_before |= at == 2;
        border_after |= at == 5;
    }
    assert_true(border_before && border_after);
    free(ids);
}

static void words_that_differ_in_zeros_at_the_end_are_different(void **state) {
    (void)state;
    /* Runs of 3 to 15 NUL bytes, each twice: every byte must come back. */
    char text[512];
    size_t n = 0;
    for (size_t run = 3; run <= 15; run++) {
        for (int i = 0; i < 2; i++) {
            memset(text + n, 0, run);
            n += run;
            text[n++] = 'x';
        }
    }
    check_round_trip(text, n, text, n);
}

/* ---- hostile runs -------------------------------------------------------------------------------------- */

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Time must grow like the text, whatever the machine: 8 times the text may take 32 times as long, not 64. */
static void check_run(const char *unit) {
    size_t unit_bytes = strlen(unit), n = (((size_t)1 << 19) / unit_bytes) * unit_bytes,
           eighth = n / unit_bytes / 8 * unit_bytes;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) text[i] = unit[i % unit_bytes];
    int64_t n_ids;
    double begin = cpu_s();
    free(encode(text, eighth, true, &n_ids));
    double middle = cpu_s();
    int32_t *ids = encode(text, n, true, &n_ids);
    double end = cpu_s();
    assert_true(end - middle < 32 * (middle - begin) + 0.1);
    char *back;
    size_t back_bytes;
    assert_int_equal(fl_tokenizer_decode(tokenizer, ids, n_ids, true, &back, &back_bytes), FL_ERR_OK);
    assert_int_equal(back_bytes, n);
    assert_memory_equal(back, text, n);
    free(back);
    free(ids);
    free(text);
}

static void long_runs_take_linear_time(void **state) {
    (void)state;
    static const char *const UNITS[] = {"a",           "ab",           "7",      " ",      "\n",      "!",
                                        "\u4e2d",      "\u3042\u30fb", "\u0301", "\u200d", " \u00a0", "\t\n ",
                                        "<\uff5cUser", "\x01",         "don't"};
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++) check_run(UNITS[i]);
}

/* ---- threads --------------------------------------------------------------------------------------------------- */

typedef struct thread_job {
    const char *text;
    size_t n_bytes;
    int32_t *ids;
    int64_t n_ids;
    fl_err err;
} thread_job;

static void *encode_in_thread(void *context) {
    thread_job *job = context;
    job->err = fl_tokenizer_encode(tokenizer, job->text, job->n_bytes, NULL, 0, &job->ids, &job->n_ids);
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    enum { N_THREADS = 4 };
    json_error_t fault;
    json_t *cases = json_load_file("test/golden/tokenizer.json", 0, &fault);
    char *text = json_dumps(cases, JSON_ENSURE_ASCII);
    assert_non_null(text);
    thread_job jobs[N_THREADS];
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        jobs[i] = (thread_job){.text = text, .n_bytes = strlen(text)};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_in_thread, &jobs[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(jobs[i].err, FL_ERR_OK);
        assert_int_equal(jobs[i].n_ids, jobs[0].n_ids);
        assert_memory_equal(jobs[i].ids, jobs[0].ids, (size_t)jobs[0].n_ids * sizeof(int32_t));
    }
    for (int i = 0; i < N_THREADS; i++) free(jobs[i].ids);
    free(text);
    json_decref(cases);
}

/* ---- streaming ----------------------------------------------------------------------------------------- */

static void stream_emits_whole_code_points_only(void **state) {
    (void)state;
    static const char TEXT[] = "a\u00e9\u4e2d\U0001f600" USER "\U00010348z";
    /* One token a byte, so that every code point is cut everywhere. */
    fl_detok d;
    fl_detok_init(&d, false);
    char got[sizeof TEXT + FL_DETOK_OUT_BYTES];
    size_t at = 0, n;
    for (size_t i = 0; TEXT[i] != '\0'; i++) {
        char byte[2] = {TEXT[i], '\0'};
        int32_t id;
        assert_int_equal(fl_tokenizer_find(tokenizer, byte, &id), FL_ERR_OK);
        fl_detok_push(tokenizer, &d, id, got + at, &n);
        at += n;
        if (((uint8_t)TEXT[i + 1] & 0xc0) != 0x80) assert_int_equal(at, i + 1); /* the code point is whole */
        assert_true(i + 1 - at <= 3);
        assert_memory_equal(got, TEXT, at);
    }
    assert_int_equal(at, strlen(TEXT));
    fl_detok_finish(&d, got + at, &n);
    assert_int_equal(n, 0);
}

static void stream_hides_control_tokens_unless_asked(void **state) {
    (void)state;
    char out[FL_DETOK_OUT_BYTES];
    size_t n;
    fl_detok d;
    fl_detok_init(&d, false);
    fl_detok_push(tokenizer, &d, 3, out, &n);
    assert_int_equal(n, 0);
    fl_detok_push(tokenizer, &d, 100000, out, &n);
    assert_int_equal(n, 0);
    fl_detok_init(&d, true);
    fl_detok_push(tokenizer, &d, 3, out, &n);
    assert_int_equal(n, strlen(USER));
    assert_memory_equal(out, USER, n);
    fl_detok_push(tokenizer, &d, -5, out, &n);
    assert_int_equal(n, 0);
}

/* Feeds bytes one token each; the text, U+FFFD for what is broken, must be `want`. */
static void check_stream(const char *bytes, const char *want) {
    fl_detok d;
    fl_detok_init(&d, false);
    char got[64 + FL_DETOK_OUT_BYTES];
    size_t at = 0, n;
    for (; *bytes; bytes++) {
        char byte[2] = {*bytes, '\0'};
        int32_t id;
        assert_int_equal(fl_tokenizer_find(tokenizer, byte, &id), FL_ERR_OK);
        fl_detok_push(tokenizer, &d, id, got + at, &n);
        at += n;
    }
    fl_detok_finish(&d, got + at, &n);
    got[at + n] = '\0';
    assert_string_equal(got, want);
}

static void stream_replaces_each_maximal_broken_part(void **state) {
    (void)state;
    check_stream("a\xe4\xb8", "a\ufffd");
    check_stream("\xf0\x9f\x98z", "\ufffdz");
    check_stream("\xf0\x9f\x98\xf0\x9f\x98\x80", "\ufffd\U0001f600");
    check_stream("\xed\xa0\x80", "\ufffd\ufffd\ufffd");
    check_stream("\xc0\xaf\xe0\x80", "\ufffd\ufffd\ufffd\ufffd");
    check_stream("\xf4\x90\xe2\x82\xac", "\ufffd\ufffd\u20ac");
    check_stream("\x80\xc3\xa9\xc3", "\ufffd\u00e9\ufffd");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_strings_have_their_ids_and_decode),
        cmocka_unit_test(tokens_are_found_by_text_and_by_id),
        cmocka_unit_test(control_tokens_need_trust),
        cmocka_unit_test(text_between_tokens_is_one_piece_whatever_is_trusted),
        cmocka_unit_test(bad_spans_are_refused),
        cmocka_unit_test(valid_utf8_comes_back),
        cmocka_unit_test(words_that_differ_in_zeros_at_the_end_are_different),
        cmocka_unit_test(broken_bytes_keep_their_own_tokens),
        cmocka_unit_test(broken_bytes_split_like_replacement_characters),
        cmocka_unit_test(long_runs_take_linear_time),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(stream_emits_whole_code_points_only),
        cmocka_unit_test(stream_hides_control_tokens_unless_asked),
        cmocka_unit_test(stream_replaces_each_maximal_broken_part),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
