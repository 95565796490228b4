/* What steers single tokens of an answer, on the bundled model: stop tokens, min_tokens, biases,
 * penalties. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <firstlight/firstlight.h>

#include "support/asking.h"
#include "support/golden.h"

typedef struct fixture {
    fl_engine *e;
    golden g;
    answer plain; /* greedy, past end tokens */
} fixture;

static int open_fixture(void **state) {
    static fixture f;
    fl_settings s;
    fl_settings_default(&s);
    s.deterministic = true; /* of a GPU; CPUs always are */
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = 4096;
    golden_read("code", &f.g);
    if (fl_engine_open(&s, &f.e) != FL_ERR_OK) return -1;
    f.plain = ask(f.e, f.g.ids, f.g.n, -1);
    *state = &f;
    return 0;
}

static int close_fixture(void **state) {
    fixture *f = *state;
    fl_engine_close(f->e);
    golden_free(&f->g);
    return 0;
}

static fl_request_params params_of(const fixture *f) {
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = f->g.ids;
    p.n_tokens = f->g.n;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    return p;
}

static answer run(const fixture *f, const fl_request_params *p) {
    fl_session *s = NULL;
    fl_request *r = NULL;
    assert_int_equal(fl_session_open(f->e, &s), FL_ERR_OK);
    if (fl_submit(s, p, &r) != FL_ERR_OK) fail_msg("submit: %s", fl_err_detail());
    answer a = finish(r);
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
    return a;
}

/* Where the plain answer first has this token. */
static int32_t first_place(const fixture *f, int32_t token) {
    int32_t i = 0;
    while (f->plain.tokens[i] != token) i++;
    return i;
}

static void a_stop_token_ends_the_answer_and_is_no_part_of_it(void **state) {
    const fixture *f = *state;
    fl_request_params p = params_of(f);
    p.stop_tokens = &f->plain.tokens[6];
    p.n_stop_tokens = 1;
    answer a = run(f, &p);
    assert_int_equal(a.finish, FL_FINISH_STOP);
    assert_int_equal(a.n, first_place(f, f->plain.tokens[6]));
    assert_memory_equal(a.tokens, f->plain.tokens, (size_t)a.n * sizeof a.tokens[0]);
    assert_memory_equal(a.text, f->plain.text, strlen(a.text));
}

static void nothing_ends_the_answer_before_min_tokens(void **state) {
    const fixture *f = *state;
    fl_request_params p = params_of(f);
    const int32_t stop_token = f->plain.tokens[6];
    const char stop[2] = {f->plain.text[0], '\0'};
    const char *const stops[] = {stop};
    p.stop_tokens = &stop_token;
    p.n_stop_tokens = 1;
    p.stops = stops;
    p.n_stops = 1;
    answer ended = run(f, &p);
    assert_int_equal(ended.finish, FL_FINISH_STOP);
    assert_string_equal(ended.text, "");
    p.min_tokens = 12;
    answer a = run(f, &p);
    assert_true(a.n >= 12);
    for (int32_t i = 0; i < 12; i++) assert_int_not_equal(a.tokens[i], stop_token);
    p.min_tokens = ANSWER;
    p.n_stop_tokens = 0;
    a = run(f, &p);
    assert_int_equal(a.n, ANSWER);
}

static void the_last_bias_of_a_token_counts(void **state) {
    const fixture *f = *state;
    fl_request_params p = params_of(f);
    const fl_logit_bias biases[] = {{f->plain.tokens[0], 100}, {321, 100}, {f->plain.tokens[0], -100}};
    p.logit_biases = biases;
    p.n_logit_biases = 3;
    p.max_tokens = 3;
    answer a = run(f, &p);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(a.tokens[i], 321);
}

static void a_frequency_penalty_changes_what_repeats(void **state) {
    const fixture *f = *state;
    fl_request_params p = params_of(f);
    const fl_logit_bias biases[] = {{321, 100}, {322, 100}, {323, 100}};
    p.logit_biases = biases;
    p.n_logit_biases = 3;
    answer plain = run(f, &p);
    p.sampling.frequency_penalty = 2;
    answer a = run(f, &p);
    assert_memory_not_equal(a.tokens, plain.tokens, ANSWER * sizeof a.tokens[0]);
}

static void lists_are_checked_at_submit(void **state) {
    const fixture *f = *state;
    fl_session *s = NULL;
    fl_request *r = NULL;
    fl_request_params p = params_of(f);
    const int32_t beyond = 1 << 20;
    p.stop_tokens = &beyond;
    p.n_stop_tokens = 1;
    assert_int_equal(fl_session_open(f->e, &s), FL_ERR_OK);
    assert_int_equal(fl_submit(s, &p, &r), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "stop_tokens[0]"));
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_token_ends_the_answer_and_is_no_part_of_it),
        cmocka_unit_test(nothing_ends_the_answer_before_min_tokens),
        cmocka_unit_test(the_last_bias_of_a_token_counts),
        cmocka_unit_test(a_frequency_penalty_changes_what_repeats),
        cmocka_unit_test(lists_are_checked_at_submit),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
