/* Extended positions: attention over more keys than in training spreads too thin or too sharp. A factor of the softmax
 * scale, first one for all layers, then by layer where that is affordable. */
#include <stdlib.h>

#include "calibrate/calibrate_private.h"

static const double factors[FL_CALIBRATE_TEMPERATURES] = {0.9, 1, 1.07, 1.14, 1.3};

enum { REFINE_PASSES_MAX = 64 }; /* documents read for it */

#define STEP     0.05
#define GAIN_MIN 0.005 /* of the NLL; less is luck */

static fl_err ask_with(fl_calibrating *c, int32_t first, int32_t n, float factor, double *nll) {
    fl_calibrate_answers answers;
    for (int32_t i = first; i < first + n; i++) c->temperature[i] = factor;
    fl_engine_forget(c->e);
    FL_TRY(fl_calibrate_ask(c, &c->set, &answers));
    *nll = answers.nll;
    return FL_ERR_OK;
}

static fl_err refine_layers(fl_calibrating *c, double best_nll) {
    for (int32_t layer = 0; layer < c->out->layers; layer++) {
        float kept = c->temperature[layer], base = kept;
        for (int sign = -1; sign <= 1; sign += 2) {
            float tried = base * (float)(1 + sign * STEP);
            double nll;
            FL_TRY(ask_with(c, layer, 1, tried, &nll));
            if (nll >= best_nll * (1 - GAIN_MIN)) continue;
            best_nll = nll;
            kept = tried;
        }
        c->temperature[layer] = kept;
    }
    c->out->layers_refined = true;
    return FL_ERR_OK;
}

fl_err fl_calibrate_measure_temperature(fl_calibrating *c) {
    fl_calibrate_result *out = c->out;
    int32_t best = 0;
    if (c->e->attending.extension.method == FL_ROPE_MODEL) return FL_ERR_OK;
    c->phase = "temperature";
    c->temperature = calloc((size_t)out->layers, sizeof(float));
    if (!c->temperature) return FL_FAIL(FL_ERR_NOMEM, "%d temperatures", out->layers);
    c->e->attending.attend.temperature = c->temperature;
    fl_calibrate_heads_use(c, 0, -1, c->all_dense);
    for (int32_t i = 0; i < FL_CALIBRATE_TEMPERATURES; i++) {
        out->temperatures[i] = factors[i];
        FL_TRY(ask_with(c, 0, out->layers, (float)factors[i], &out->temperature_nll[i]));
        if (out->temperature_nll[i] < out->temperature_nll[best]) best = i;
    }
    for (int32_t i = 0; i < out->layers; i++) c->temperature[i] = (float)factors[best];
    if (2 * out->layers * c->set.n <= REFINE_PASSES_MAX) FL_TRY(refine_layers(c, out->temperature_nll[best]));
    out->temperature_measured = true;
    fl_engine_forget(c->e);
    out->chosen.temperature = malloc((size_t)out->layers * sizeof(float));
    if (!out->chosen.temperature) return FL_FAIL(FL_ERR_NOMEM, "%d temperatures", out->layers);
    for (int32_t i = 0; i < out->layers; i++) out->chosen.temperature[i] = c->temperature[i];
    return FL_ERR_OK;
}
