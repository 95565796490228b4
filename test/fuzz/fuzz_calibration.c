/* Any bytes as calibration.json, and as densities of another model. What is accepted must be in range, and a
 * calibration must be read back equal from what is written. */
#include "attn/calibration.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void need(bool holds) {
    if (!holds) abort();
}

static void check(const fl_calibration *c) {
    int32_t n = c->layers * c->heads;
    need(c->block == 0 || c->block == 64 || c->block == 128);
    need(c->alpha >= 0 && c->alpha <= 1 && c->density >= 0 && c->density <= 1 && c->length >= 0);
    for (int32_t i = 0; i < n && c->alpha_by_head; i++)
        need(c->alpha_by_head[i] > 0 && c->alpha_by_head[i] <= 1);
    for (int32_t i = 0; i < n && c->density_by_head; i++)
        need(c->density_by_head[i] > 0 && c->density_by_head[i] <= 1);
    for (int32_t i = 0; i < n && c->bias; i++) need(c->bias[i] >= -64 && c->bias[i] <= 64);
    for (int32_t i = 0; i < c->layers && c->temperature; i++) need(c->temperature[i] > 0);
    need(c->n_outliers >= 0 && c->n_outliers <= FL_KV_OUTLIERS_MAX);
    for (int32_t i = 0; i < c->layers * c->n_outliers; i++) {
        need(c->outliers[i] < c->latent_dim);
        need(i % c->n_outliers == 0 || c->outliers[i] > c->outliers[i - 1]);
    }
}

static void check_again(const fl_calibration *c) {
    fl_calibration again = {.layers = c->layers, .heads = c->heads, .latent_dim = c->latent_dim};
    size_t n = (size_t)c->layers * (size_t)c->heads;
    json_t *root = fl_calibration_json(c);
    char *text = root ? json_dumps(root, JSON_REAL_PRECISION(17)) : NULL;
    need(text && fl_calibration_parse("again", text, strlen(text), &again) == FL_ERR_OK);
    need(again.alpha == c->alpha && again.length == c->length && again.n_outliers == c->n_outliers);
    need(!c->bias || memcmp(again.bias, c->bias, n * sizeof(float)) == 0);
    need(!c->density_by_head || memcmp(again.density_by_head, c->density_by_head, n * sizeof(float)) == 0);
    need(!c->dense || memcmp(again.dense, c->dense, n * sizeof(bool)) == 0);
    free(text);
    json_decref(root);
    fl_calibration_close(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    fl_calibration c = {.layers = 2, .heads = 3, .latent_dim = 16};
    if (fl_calibration_parse("fuzz", (const char *)bytes, n_bytes, &c) == FL_ERR_OK) {
        check(&c);
        check_again(&c);
    }
    fl_calibration_close(&c);
    c = (fl_calibration){0};
    if (fl_calibration_parse_density("fuzz", (const char *)bytes, n_bytes, &c) == FL_ERR_OK) {
        need(c.layers >= 1 && c.heads >= 1 && c.density_by_head);
        check(&c);
    }
    fl_calibration_close(&c);
    return 0;
}
