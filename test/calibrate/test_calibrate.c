/* Calibration: what it chooses from measurements, and a whole small run on the bundled model. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "calibrate/calibrate.h"
#include "engine/engine.h"
#include "eval/haystack.h"

enum { LENGTH = 1536 };

/* ---- choices ---------------------------------------------------------------------------------------------------- */

static void work_counts_means_and_scores(void **state) {
    (void)state;
    /* All blocks listed: the scores alone are added. None: one mean and one score a block. */
    assert_true(fabs(fl_calibrate_work(1, 64, 0.5) - (1 + 0.5 / 64)) < 1e-12);
    assert_true(fabs(fl_calibrate_work(0, 128, 0.5) - 1.5 / 128) < 1e-12);
    assert_true(fl_calibrate_work(0.2, 128, 0.6) < fl_calibrate_work(0.2, 64, 0.6));
}

static void the_worst_heads_become_dense(void **state) {
    (void)state;
    const double loss[6] = {0.01, -0.02, 0.04, NAN, 0.05, 0.0};
    bool dense[6];
    fl_calibrate_losers l = {.loss = loss, .n = 6, .n_max = 6, .total = 1, .target = 0.6};
    assert_int_equal(fl_calibrate_mark(&l, dense), 1); /* half of the loss gone */
    assert_true(dense[4] && !dense[2]);
    l.target = 0.2;
    assert_int_equal(fl_calibrate_mark(&l, dense), 2);
    assert_true(dense[4] && dense[2] && !dense[0]);
    l.target = -1; /* out of reach: those that lose anything, no others */
    assert_int_equal(fl_calibrate_mark(&l, dense), 3);
    assert_true(dense[0] && !dense[1] && !dense[3] && !dense[5]);
    l.n_max = 1;
    assert_int_equal(fl_calibrate_mark(&l, dense), 1);
    l.target = 2;
    assert_int_equal(fl_calibrate_mark(&l, dense), 0);
    assert_false(dense[4]);
}

/* Mean squared range of groups of 4 without some dimensions, the slow way. */
static double slow_range(const float *values, int32_t n, const bool *removed) {
    double sum = 0;
    for (int32_t t = 0; t < n; t++)
        for (int32_t g = 0; g < 8; g += 4) {
            float high = -INFINITY, low = INFINITY;
            for (int32_t i = g; i < g + 4; i++) {
                if (removed[i]) continue;
                high = fmaxf(high, values[t * 8 + i]);
                low = fminf(low, values[t * 8 + i]);
            }
            double range = high > low ? (double)high - (double)low : 0;
            sum += range * range;
        }
    return sum / (2.0 * n);
}

static void outliers_are_what_widens_groups(void **state) {
    (void)state;
    enum { N = 50 };
    float values[N * 8];
    fl_calibrate_outliers found;
    bool removed[8] = {false};
    uint32_t random = 7;
    for (int32_t i = 0; i < N * 8; i++) {
        random = random * 1664525u + 1013904223u;
        values[i] = (float)(random >> 8) / (float)(1 << 24) - 0.5f;
    }
    for (int32_t t = 0; t < N; t++) {
        values[t * 8 + 6] *= 40; /* wide both ways */
        values[t * 8 + 1] += 9;  /* far to one side */
    }
    const fl_calibrate_latents latents = {values, N, 8, 4};
    assert_int_equal(fl_calibrate_find_outliers(&latents, &found), FL_ERR_OK);
    assert_int_equal(found.dims[0], 6);
    assert_int_equal(found.dims[1], 1);
    for (int32_t i = 0; i <= FL_KV_OUTLIERS_MAX; i++) {
        double expected = slow_range(values, N, removed);
        assert_true(fabs(found.range[i] - expected) <= 1e-9 * (1 + expected));
        if (i == FL_KV_OUTLIERS_MAX) break;
        assert_false(removed[found.dims[i]]);
        removed[found.dims[i]] = true;
    }
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static void the_file_is_read_back_equal(void **state) {
    (void)state;
    float by_head[6] = {0.5f, 0.25f, 1e-3f, 1, 0.1f, 0.7f}, bias[6] = {0, -1.1f, 2.3f, 1e-7f, 5, -8};
    float temperature[2] = {1.07f, 0.9f};
    float density[6] = {0.3f, 1, 0.01f, 0.5f, 0.1f, 1};
    bool dense[6] = {false, true, false, false, false, true};
    uint16_t outliers[4] = {1, 15, 0, 7};
    const fl_calibration c = {.layers = 2,
                              .heads = 3,
                              .latent_dim = 16,
                              .length = 4096,
                              .block = 128,
                              .density = 0.375,
                              .alpha = 0.0009765625,
                              .alpha_by_head = by_head,
                              .density_by_head = density,
                              .bias = bias,
                              .dense = dense,
                              .temperature = temperature,
                              .outliers = outliers,
                              .n_outliers = 2};
    fl_calibration r = {.layers = 2, .heads = 3, .latent_dim = 16};
    char dir[] = "/tmp/fl_calibrate.XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    json_t *measured = json_pack("{s:s}", "note", "for people");
    assert_int_equal(fl_calibration_write(dir, "c.json", &c, measured), FL_ERR_OK);
    json_decref(measured);
    if (fl_calibration_read(dir, "c.json", &r) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    assert_int_equal(r.length, c.length);
    assert_int_equal(r.block, c.block);
    assert_true(r.density == c.density && r.alpha == c.alpha);
    assert_memory_equal(r.alpha_by_head, by_head, sizeof by_head);
    assert_memory_equal(r.density_by_head, density, sizeof density);
    assert_memory_equal(r.bias, bias, sizeof bias);
    assert_memory_equal(r.dense, dense, sizeof dense);
    assert_memory_equal(r.temperature, temperature, sizeof temperature);
    assert_int_equal(r.n_outliers, 2);
    assert_memory_equal(r.outliers, outliers, sizeof outliers);
    fl_calibration_close(&r);
    /* Numbers that JSON has not, and folders that are not there. */
    bias[3] = NAN;
    assert_int_equal(fl_calibration_write(dir, "c.json", &c, NULL), FL_ERR_INTERNAL);
    bias[3] = 0;
    assert_int_equal(fl_calibration_write("/nonexistent", "c.json", &c, NULL), FL_ERR_IO);
    snprintf(path, sizeof path, "%s/c.json", dir);
    unlink(path);
    rmdir(dir);
}

/* ---- a run ------------------------------------------------------------------------------------------------------ */

static fl_engine *open_engine(const char *policy, const char *calibration, int64_t ctx_tokens) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.model_path = "build/models/spark-66m";
    s.policy = policy;
    s.calibration = calibration;
    s.ctx_tokens = ctx_tokens;
    s.kv_tokens = 2 * ctx_tokens;
    s.n_threads = 1; /* short steps, and a machine that may be busy */
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    return e;
}

static fl_engine *open_for_calibration(void) {
    fl_settings s;
    char policy[FL_CALIBRATE_POLICY_BYTES];
    fl_settings_default(&s);
    fl_calibrate_settings(LENGTH, policy, &s);
    return open_engine(s.policy, s.calibration, s.ctx_tokens);
}

static void check_masses(const fl_calibrate_result *r) {
    size_t n = (size_t)r->layers * (size_t)r->heads;
    for (int32_t b = 0; b < FL_CALIBRATE_BLOCKS; b++)
        for (size_t i = 0; i < FL_CALIBRATE_ALPHAS * n; i++) {
            double kept = r->mass[b].kept[i], density = r->mass[b].density[i];
            assert_true(kept > 0 && kept <= 1 && density > 0 && density <= 1);
            if (i < n) continue;
            /* A smaller alpha lists what a larger one did, and more; lse is f32. */
            assert_true(density >= r->mass[b].density[i - n]);
            assert_true(kept >= r->mass[b].kept[i - n] - 1e-3);
        }
    double least = 1, fewest = 1;
    for (size_t i = 0; i < n; i++) {
        least = fmin(least, r->mass[0].kept[i]);
        fewest = fmin(fewest, r->mass[0].density[i]);
    }
    assert_true(least < 0.99 && fewest < 0.95); /* something was left out, and it was worth something */
}

static void check_chosen(const fl_calibrate_result *r) {
    const fl_calibration *c = &r->chosen;
    assert_true(r->reached && r->n_counted > 0 && r->full_points > 60);
    assert_true(r->loss.measured && r->loss.density > 0.1 && r->loss.density < 1);
    assert_true(c->alpha == fl_calibrate_alpha(r->alpha) && c->density == r->loss.density);
    /* Running text is harder to foresee than answers, and block lists change it a little. */
    assert_true(r->full_text > 10 * r->full_nll && r->full_text < 8);
    assert_true(r->loss.text != 0 && fabs(r->loss.text) <= r->nll_max);
    assert_int_equal(c->block, fl_calibrate_block_tokens(r->block));
    assert_int_equal(c->length, LENGTH);
    assert_null(c->temperature);
    /* Layer by layer what the sum says, and not all alike. */
    const fl_density_table attended = {c->layers, c->heads, c->density_by_head};
    const fl_density_range range = fl_density_range_of(&attended);
    assert_true(fabs(range.mean - c->density) < 1e-6);
    assert_true(range.least > 0 && range.least < range.mean && range.most <= 1 && range.most > range.mean);
    int32_t n_measured = 0;
    for (int32_t i = 0; i < r->layers * r->heads; i++) n_measured += isfinite(r->head_loss[i]);
    assert_int_equal(n_measured, 2);
}

/* The written file in force: the engine's numbers are the file's. */
static void check_engine(const char *path, const fl_calibrate_result *r) {
    fl_engine *e = open_engine("blocks", path, LENGTH + 512);
    const fl_attend_config *a = &e->attending;
    assert_true(a->calibrated);
    assert_int_equal(a->attend.block_tokens, r->chosen.block);
    assert_true(fabs(a->attend.planned_density - r->chosen.density) < 1e-8);
    for (int32_t i = 0; i < r->layers * r->heads; i++) {
        assert_true(a->log2_alpha[i] == log2f((float)r->chosen.alpha));
        assert_true(a->mean_bias[i] ==
                    log2f((float)r->chosen.block) + (r->chosen.bias ? r->chosen.bias[i] : 0));
    }
    fl_engine_close(e);
}

static void a_run_measures_and_its_file_is_used(void **state) {
    (void)state;
    char dir[] = "/tmp/fl_calibrate.XXXXXX", path[64];
    fl_haystack text;
    fl_calibrate_result r;
    fl_engine *e = open_for_calibration();
    assert_int_equal(fl_haystack_open(NULL, &text), FL_ERR_OK);
    const fl_calibrate_plan plan = {.engine = e,
                                    .length_tokens = LENGTH,
                                    .n_documents = 1,
                                    .seed = 3,
                                    .max_loss_points = 1,
                                    .heads_max = 2,
                                    .texts = {{text.text, text.n_bytes}},
                                    .n_texts = 1};
    if (fl_calibrate_run(&plan, &r) != FL_ERR_OK) fail_msg("run: %s", fl_err_detail());
    check_masses(&r);
    check_chosen(&r);
    /* The engine is as it was: nothing of the run is pointed at any more. */
    assert_null(e->attending.attend.dense);
    assert_null(e->attending.attend.probe);
    assert_int_equal(fl_kv_pool_free_pages(e->pool), fl_kv_pool_pages(e->pool));
    fl_engine_close(e);
    assert_non_null(mkdtemp(dir));
    json_t *measured = fl_calibrate_measured_json(&plan, &r);
    assert_non_null(measured);
    assert_int_equal(json_array_size(json_object_get(measured, "block_64")), FL_CALIBRATE_ALPHAS);
    assert_int_equal(json_array_size(json_object_get(measured, "kept")), r.layers);
    assert_true(json_is_array(json_object_get(measured, "outlier_gain")));
    assert_true(json_is_array(json_object_get(measured, "temperature")));
    assert_int_equal(fl_calibration_write(dir, "c.json", &r.chosen, measured), FL_ERR_OK);
    json_decref(measured);
    snprintf(path, sizeof path, "%s/c.json", dir);
    check_engine(path, &r);
    unlink(path);
    rmdir(dir);
    fl_calibrate_close(&r);
    fl_haystack_close(&text);
}

/* ---- heads ------------------------------------------------------------------------------------------------------ */

static void read_tokens(fl_engine *e, int32_t n) {
    fl_request_params p;
    fl_session *session = NULL;
    fl_request *request = NULL;
    fl_event event;
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    assert_non_null(tokens);
    for (int32_t i = 0; i < n; i++) tokens[i] = 100 + (i * 7919) % 5000;
    fl_request_params_default(&p);
    p.tokens = tokens;
    p.n_tokens = n;
    p.max_tokens = 1;
    p.ignore_eos = true;
    assert_int_equal(fl_session_open(e, &session), FL_ERR_OK);
    assert_int_equal(fl_submit(session, &p, &request), FL_ERR_OK);
    do {
        assert_int_equal(fl_poll(request, 500, &event), FL_ERR_OK);
    } while (event.type != FL_EVENT_DONE);
    assert_int_equal(event.finish, FL_FINISH_LENGTH);
    fl_request_close(request);
    assert_int_equal(fl_session_close(session), FL_ERR_OK);
    free(tokens);
}

static void dense_heads_list_all_they_see(void **state) {
    (void)state;
    enum { TOKENS = 1200 }; /* nine tiles of document rows */
    char dir[] = "/tmp/fl_calibrate.XXXXXX", path[64];
    bool dense[64] = {false};
    const fl_calibration c = {
        .layers = 8, .heads = 8, .latent_dim = 128, .block = 64, .alpha = 0.5, .dense = dense};
    dense[3 * 8 + 5] = true;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(fl_calibration_write(dir, "c.json", &c, NULL), FL_ERR_OK);
    snprintf(path, sizeof path, "%s/c.json", dir);
    fl_engine *e = open_engine("blocks:window=64", path, 2048);
    const fl_attend_config *a = &e->attending;
    memset(a->listed, 0, 64 * sizeof *a->listed); /* warming up has counted */
    memset(a->visible, 0, 8 * sizeof *a->visible);
    read_tokens(e, TOKENS);
    int64_t visible = a->visible[3];
    assert_int_equal(visible, 2 * (9 * 10 / 2)); /* planned rows are not counted, read ones are once */
    assert_int_equal(a->listed[3 * 8 + 5], visible);
    for (int32_t h = 0; h < 8; h++)
        if (h != 5) assert_true(a->listed[3 * 8 + h] < visible);
    /* Forgotten: read again from the start. */
    fl_engine_forget(e);
    assert_int_equal(fl_kv_pool_free_pages(e->pool), fl_kv_pool_pages(e->pool));
    read_tokens(e, TOKENS);
    assert_int_equal(a->listed[3 * 8 + 5], 2 * visible);
    fl_engine_close(e);
    unlink(path);
    rmdir(dir);
}

static void plans_that_cannot_be_are_refused(void **state) {
    (void)state;
    fl_calibrate_result r;
    static const char text[] = "Some words.";
    fl_engine *e = open_engine("full", "", 1024);
    fl_calibrate_plan plan = {.engine = e,
                              .length_tokens = 512,
                              .n_documents = 1,
                              .max_loss_points = 1,
                              .texts = {{text, sizeof text - 1}},
                              .n_texts = 1};
    assert_int_equal(fl_calibrate_run(&plan, &r), FL_ERR_INVALID);
    fl_calibrate_close(&r);
    fl_engine_close(e);
    plan.engine = e = open_engine("blocks", "", 1024);
    plan.length_tokens = 4096;
    assert_int_equal(fl_calibrate_run(&plan, &r), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "context"));
    fl_calibrate_close(&r);
    plan.length_tokens = 64;
    assert_int_equal(fl_calibrate_run(&plan, &r), FL_ERR_INVALID);
    fl_calibrate_close(&r);
    fl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_counts_means_and_scores),
        cmocka_unit_test(the_worst_heads_become_dense),
        cmocka_unit_test(outliers_are_what_widens_groups),
        cmocka_unit_test(the_file_is_read_back_equal),
        cmocka_unit_test(a_run_measures_and_its_file_is_used),
        cmocka_unit_test(dense_heads_list_all_they_see),
        cmocka_unit_test(plans_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
