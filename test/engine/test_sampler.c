#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sampler.h"

enum { N = 6 };

static fl_sampling plain(float temperature) {
    return (fl_sampling){.temperature = temperature, .top_p = 1, .repetition_penalty = 1};
}

static fl_backend *backend;
static fl_sampler *sampler;
static uint64_t scratch[64];

static int open_all(void **state) {
    (void)state;
    const fl_sampler_sizes sizes = {.rows = 3, .n_vocab = N, .n_known = N - 1, .list_bytes = 256};
    assert_int_equal(fl_backend_open("reference", 1, &backend), FL_ERR_OK);
    assert_int_equal(fl_sampler_open(backend, &sizes, &sampler), FL_ERR_OK);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    fl_sampler_close(sampler);
    fl_backend_close(backend);
    return 0;
}

/* One row alone; id 5 has no token. */
static fl_err draw(const float *logits, const fl_draw *how, fl_sample *out) {
    const fl_sampler_mark mark = fl_sampler_get_mark(sampler);
    fl_sample_args args;
    const fl_sample *found;
    assert_true(fl_sample_scratch_bytes(N) <= (int64_t)sizeof scratch);
    FL_TRY(fl_sampler_add(sampler, how));
    FL_TRY(fl_sampler_args(sampler, mark, &args));
    args.logits = logits;
    args.scratch = scratch;
    FL_TRY(backend->op->sample(backend, &args));
    fl_err err = fl_sampler_token(sampler, mark, 0, &found);
    if (err == FL_ERR_OK) *out = *found;
    fl_sampler_reset(sampler, mark);
    return err;
}

/* How often each token comes in `draws` draws. */
static void count(const float *logits, const fl_sampling *sampling, int32_t draws, int32_t counts[N]) {
    memset(counts, 0, N * sizeof *counts);
    for (int32_t i = 0; i < draws; i++) {
        fl_sample out;
        const fl_draw how = {.sampling = sampling, .index = (uint64_t)i};
        assert_int_equal(draw(logits, &how, &out), FL_ERR_OK);
        assert_in_range(out.token, 0, N - 1);
        counts[out.token]++;
    }
}

static const float LOGITS[N] = {0, 2, 1, 2, -1, 9};

static void greedy_takes_the_first_best_known_token(void **state) {
    (void)state;
    int32_t counts[N];
    fl_sampling s = plain(0);
    count(LOGITS, &s, 3, counts);
    assert_int_equal(counts[1], 3);
}

static void frequencies_follow_the_softmax(void **state) {
    (void)state;
    enum { DRAWS = 20000 };
    int32_t counts[N];
    fl_sampling s = plain(2);
    count(LOGITS, &s, DRAWS, counts);
    double sum = 0;
    for (int32_t i = 0; i < 5; i++) sum += exp((double)LOGITS[i] / 2);
    for (int32_t i = 0; i < 5; i++) {
        double p = exp((double)LOGITS[i] / 2) / sum, sigma = sqrt(DRAWS * p * (1 - p));
        assert_true(fabs(counts[i] - DRAWS * p) < 5 * sigma);
    }
    assert_int_equal(counts[5], 0);
}

static void filters_cut_the_right_tokens(void **state) {
    (void)state;
    int32_t counts[N];
    fl_sampling s = plain(1);
    s.top_k = 3;
    count(LOGITS, &s, 3000, counts);
    assert_true(counts[1] > 0 && counts[3] > 0 && counts[2] > 0);
    assert_int_equal(counts[0] + counts[4], 0);
    s = plain(1);
    s.top_p = 0.5f; /* e^2 alone is 0.40 of the mass, two of them 0.80 */
    count(LOGITS, &s, 3000, counts);
    assert_true(counts[1] > 0 && counts[3] > 0);
    assert_int_equal(counts[0] + counts[2] + counts[4], 0);
    s = plain(1);
    s.min_p = 0.3f; /* e^-1 = 0.37 of the best stays, e^-2 = 0.14 goes */
    count(LOGITS, &s, 3000, counts);
    assert_true(counts[2] > 0);
    assert_int_equal(counts[0] + counts[4], 0);
}

static void penalty_logprobs_and_alternatives(void **state) {
    (void)state;
    fl_sample out;
    const fl_sample_mark seen[] = {{1, 0}, {4, 0}};
    fl_sampling s = plain(0);
    s.repetition_penalty = 2;
    const fl_draw how = {.marks = seen, .n_marks = 2, .sampling = &s, .n_top = 3};
    assert_int_equal(draw(LOGITS, &how, &out), FL_ERR_OK);
    assert_int_equal(out.token, 3); /* 2 / 2 for the seen one */
    double sum = 0;
    for (int32_t i = 0; i < 5; i++) sum += exp((double)LOGITS[i]);
    assert_true(fabs(out.logprob - (2 - log(sum))) < 1e-5); /* of the plain logits */
    assert_int_equal(out.top[0].token, 1);
    assert_int_equal(out.top[1].token, 3);
    assert_int_equal(out.top[2].token, 2);
    const float broken[N] = {0, NAN, 0, 0, 0, 0};
    assert_int_equal(draw(broken, &how, &out), FL_ERR_NUMERIC);
    assert_non_null(strstr(fl_err_detail(), "token 1"));
}

/* The token that greedy sampling takes with these arguments added. */
static int32_t greedy(fl_draw how) {
    fl_sample out = {.token = -1};
    fl_sampling s = how.sampling ? *how.sampling : plain(0);
    how.sampling = &s;
    return draw(LOGITS, &how, &out) == FL_ERR_OK ? out.token : -1;
}

static void presence_and_frequency_count_the_answer(void **state) {
    (void)state;
    fl_sampling s = plain(0);
    const fl_sample_mark one[] = {{1, 1}, {3, 1}}, many[] = {{1, 1}, {3, 3}};
    fl_draw args = {.sampling = &s, .marks = one, .n_marks = 2};
    s.presence_penalty = 0.9f; /* 2 - 0.9 > 1: still the best two */
    assert_int_equal(greedy(args), 1);
    s.presence_penalty = 1.1f; /* 0.9 < 1 */
    assert_int_equal(greedy(args), 2);
    s.presence_penalty = 0;
    s.frequency_penalty = -0.5f; /* 2 + 0.5 against 2 + 1.5 */
    args.marks = many;
    assert_int_equal(greedy(args), 3);
    s.frequency_penalty = 0.4f; /* 1.6 against 0.8 */
    assert_int_equal(greedy(args), 1);
}

static void biases_and_bans_steer(void **state) {
    (void)state;
    const fl_logit_bias up[] = {{4, 3.5f}, {5, 100}}; /* id 5 has no token: not even a bias makes it one */
    assert_int_equal(greedy((fl_draw){.biases = up, .n_biases = 2}), 4);
    const int32_t ends[] = {1, 3, 5}, all[] = {0, 1, 2, 3, 4};
    assert_int_equal(greedy((fl_draw){.banned = ends, .n_banned = 3}), 2);
    assert_int_equal(greedy((fl_draw){.banned = all, .n_banned = 5}), 1); /* nothing is left */
    const uint64_t end_only = 1 << 3;
    assert_int_equal(greedy((fl_draw){.banned = ends, .n_banned = 3, .allowed = &end_only}), 3);
    fl_sampling hot = plain(100);
    for (uint64_t i = 0; i < 2000; i++) { /* nearly flat, and still never a banned one */
        fl_sample out;
        const fl_draw how = {.banned = ends, .n_banned = 2, .sampling = &hot, .index = i};
        assert_int_equal(draw(LOGITS, &how, &out), FL_ERR_OK);
        assert_true(out.token != 1 && out.token != 3);
    }
}

/* A list of length `n` at `list`; NULL counts too. */
static fl_err validate_tokens(const int32_t *stops, int32_t n_stops, const fl_logit_bias *biases,
                              int32_t n_biases, int64_t min_tokens) {
    fl_request_params p = {.max_tokens = 10,
                           .stop_tokens = stops,
                           .n_stop_tokens = n_stops,
                           .logit_biases = biases,
                           .n_logit_biases = n_biases,
                           .min_tokens = min_tokens};
    return fl_sampling_validate_tokens(&p, N);
}

static void bad_lists_and_ranges_are_named(void **state) {
    (void)state;
    const int32_t good[] = {0, N - 1}, bad[] = {0, N}, negative[] = {-1};
    const fl_logit_bias bias[] = {{N - 1, -100}}, far[] = {{N, 0}}, strong[] = {{0, 100.5f}},
                        nan[] = {{0, NAN}};
    assert_int_equal(validate_tokens(good, 2, bias, 1, 10), FL_ERR_OK);
    assert_int_equal(validate_tokens(NULL, 0, NULL, 0, 0), FL_ERR_OK);
    assert_int_equal(validate_tokens(bad, 2, NULL, 0, 0), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "stop_tokens[1]"));
    assert_int_equal(validate_tokens(negative, 1, NULL, 0, 0), FL_ERR_INVALID);
    assert_int_equal(validate_tokens(good, FL_STOP_TOKENS_MAX + 1, NULL, 0, 0), FL_ERR_INVALID);
    assert_int_equal(validate_tokens(NULL, 1, NULL, 0, 0), FL_ERR_INVALID);
    assert_int_equal(validate_tokens(NULL, 0, far, 1, 0), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "logit_biases[0].token"));
    assert_int_equal(validate_tokens(NULL, 0, strong, 1, 0), FL_ERR_INVALID);
    assert_int_equal(validate_tokens(NULL, 0, nan, 1, 0), FL_ERR_INVALID);
    assert_int_equal(validate_tokens(NULL, 0, NULL, 0, 11), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "min_tokens"));
    assert_int_equal(validate_tokens(NULL, 0, NULL, 0, -1), FL_ERR_INVALID);
    fl_sampling s = plain(0);
    s.presence_penalty = 2.5f;
    assert_int_equal(fl_sampling_validate(&s), FL_ERR_INVALID);
    s = plain(0);
    s.frequency_penalty = NAN;
    assert_int_equal(fl_sampling_validate(&s), FL_ERR_INVALID);
}

static void only_allowed_tokens_come(void **state) {
    (void)state;
    const uint64_t allowed = 1 << 0 | 1 << 4, none = 1 << 5; /* 5 has no token */
    fl_sampling sampling = plain(0);
    fl_draw how = {.allowed = &allowed, .sampling = &sampling, .n_top = 1};
    fl_sample out;
    assert_int_equal(draw(LOGITS, &how, &out), FL_ERR_OK);
    assert_int_equal(out.token, 0);
    assert_int_equal(out.top[0].token, 1); /* the model's own */
    sampling = plain(100);
    for (how.index = 0; how.index < 100; how.index++) {
        assert_int_equal(draw(LOGITS, &how, &out), FL_ERR_OK);
        assert_true(out.token == 0 || out.token == 4);
    }
    how.allowed = &none;
    assert_int_equal(draw(LOGITS, &how, &out), FL_ERR_INTERNAL);
    sampling = plain(0);
    assert_int_equal(draw(LOGITS, &how, &out), FL_ERR_INTERNAL);
}

/* A step inside another's adds rows behind its rows, and takes them back. */
static void rows_keep_their_lists(void **state) {
    (void)state;
    const fl_logit_bias up[] = {{4, 9}}, other[] = {{0, 9}};
    const fl_sampling s = plain(0);
    const fl_draw first = {.sampling = &s, .biases = up, .n_biases = 1},
                  second = {.sampling = &s, .biases = other, .n_biases = 1};
    const fl_sampler_mark begin = fl_sampler_get_mark(sampler);
    fl_sample_args args;
    const fl_sample *found;
    fl_sample inner;
    float two[2 * N];
    memcpy(two, LOGITS, sizeof LOGITS);
    memcpy(two + N, LOGITS, sizeof LOGITS);
    assert_int_equal(fl_sampler_add(sampler, &first), FL_ERR_OK);
    assert_int_equal(fl_sampler_add(sampler, &second), FL_ERR_OK);
    assert_int_equal(fl_sampler_args(sampler, begin, &args), FL_ERR_OK);
    assert_int_equal(args.n_rows, 2);
    assert_int_equal(draw(LOGITS, &second, &inner), FL_ERR_OK);
    assert_int_equal(inner.token, 0);
    args.logits = two;
    args.scratch = scratch;
    assert_int_equal(backend->op->sample(backend, &args), FL_ERR_OK);
    assert_int_equal(fl_sampler_token(sampler, begin, 0, &found), FL_ERR_OK);
    assert_int_equal(found->token, 4);
    assert_int_equal(fl_sampler_token(sampler, begin, 1, &found), FL_ERR_OK);
    assert_int_equal(found->token, 0);
    assert_int_equal(fl_sampler_add(sampler, &first), FL_ERR_OK);
    assert_int_equal(fl_sampler_add(sampler, &first), FL_ERR_INTERNAL); /* three rows at a time */
    fl_sampler_reset(sampler, begin);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_best_known_token),
        cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(filters_cut_the_right_tokens),
        cmocka_unit_test(only_allowed_tokens_come),
        cmocka_unit_test(penalty_logprobs_and_alternatives),
        cmocka_unit_test(presence_and_frequency_count_the_answer),
        cmocka_unit_test(biases_and_bans_steer),
        cmocka_unit_test(rows_keep_their_lists),
        cmocka_unit_test(bad_lists_and_ranges_are_named),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
