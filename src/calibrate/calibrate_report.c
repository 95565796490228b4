/* What a calibration found, as JSON and as tables. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attn/density.h"
#include "calibrate/calibrate.h"

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

/* NaN = not measured. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *layer_table(const fl_calibrate_result *r, const double *values) {
    json_t *table = json_array();
    for (int32_t i = 0; i < r->layers; i++) {
        json_t *row = json_array();
        for (int32_t h = 0; h < r->heads; h++)
            json_array_append_new(row, number(values[(size_t)i * (size_t)r->heads + (size_t)h]));
        json_array_append_new(table, row);
    }
    return table;
}

static double mean_of(const fl_calibrate_result *r, const double *values, int32_t alpha) {
    size_t n = (size_t)r->layers * (size_t)r->heads;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[(size_t)alpha * n + i];
    return sum / (double)n;
}

static const double *at_alpha(const fl_calibrate_result *r, const double *values) {
    return values + (size_t)r->alpha * (size_t)r->layers * (size_t)r->heads;
}

static json_t *loss_json(const fl_calibrate_loss *l) {
    if (!l->measured) return json_null();
    return json_pack("{s:f, s:f, s:f, s:f}", "points", l->points, "nll", l->nll, "text", l->text, "density",
                     l->density);
}

static json_t *alphas_json(const fl_calibrate_result *r, int32_t block) {
    json_t *list = json_array();
    for (int32_t i = 0; i < FL_CALIBRATE_ALPHAS; i++)
        json_array_append_new(list, json_pack("{s:f, s:f, s:f, s:o}", "alpha", fl_calibrate_alpha(i), "kept",
                                              mean_of(r, r->mass[block].kept, i), "density",
                                              mean_of(r, r->mass[block].density, i), "loss",
                                              loss_json(&r->losses[block][i])));
    return list;
}

static json_t *outliers_json(const fl_calibrate_result *r) {
    json_t *gains = json_array();
    for (int32_t i = 0; i < FL_KV_OUTLIERS_MAX; i++)
        json_array_append_new(gains, json_real(r->outlier_gain[i]));
    return gains;
}

static json_t *temperature_json(const fl_calibrate_result *r) {
    json_t *list = json_array();
    for (int32_t i = 0; r->temperature_measured && i < FL_CALIBRATE_TEMPERATURES; i++)
        json_array_append_new(
            list, json_pack("{s:f, s:f}", "factor", r->temperatures[i], "nll", r->temperature_nll[i]));
    return list;
}

json_t *fl_calibrate_measured_json(const fl_calibrate_plan *plan, const fl_calibrate_result *r) {
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *full = json_pack("{s:f, s:f, s:i, s:i}", "points", r->full_points, "nll", r->full_nll,
                             "questions", r->n_questions, "counted", r->n_counted);
    json_t *heads = json_pack("{s:f, s:I, s:i, s:i, s:o}", "alpha", fl_calibrate_alpha(r->head_alpha),
                              "length", (json_int_t)r->head_length_tokens, "documents", r->n_head_documents,
                              "measured", r->n_heads_measured, "nll", layer_table(r, r->head_loss));
    return json_pack("{s:s, s:s, s:I, s:i, s:i, s:f, s:f, s:f, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
                     "s:o, s:o, s:o}",
                     "date", date, "engine", fl_version(), "seed", (json_int_t)plan->seed, "documents",
                     plan->n_documents, "texts", plan->n_texts, "max_loss", plan->max_loss_points, "nll_max",
                     r->nll_max, "elapsed_s", r->elapsed_s, "reached", r->reached, "full", full, "loss",
                     loss_json(&r->loss), "dense_trial", loss_json(&r->trial), "with_bias",
                     loss_json(&r->with_bias), "block_64", alphas_json(r, 0), "block_128", alphas_json(r, 1),
                     "kept", layer_table(r, at_alpha(r, r->mass[r->block].kept)), "density",
                     layer_table(r, at_alpha(r, r->mass[r->block].density)), "head_loss", heads,
                     "outlier_gain", outliers_json(r), "temperature", temperature_json(r));
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

static void print_alphas(FILE *f, const fl_calibrate_result *r) {
    fprintf(f, "  %-44s%s\n", "         block 64: lost", "block 128: lost");
    fprintf(f, "  alpha  ");
    for (int32_t b = 0; b < FL_CALIBRATE_BLOCKS; b++)
        fprintf(f, "  kept  density  points  answers     text  ");
    fputc('\n', f);
    for (int32_t i = 0; i < FL_CALIBRATE_ALPHAS; i++) {
        fprintf(f, "  1/%-5.0f", 1 / fl_calibrate_alpha(i));
        for (int32_t b = 0; b < FL_CALIBRATE_BLOCKS; b++) {
            const fl_calibrate_loss *l = &r->losses[b][i];
            double density = l->measured ? l->density : mean_of(r, r->mass[b].density, i);
            fprintf(f, "%6.4f  %6.1f%%", mean_of(r, r->mass[b].kept, i), 100 * density);
            if (l->measured) fprintf(f, "%8.2f %8.5f %8.5f", l->points, l->nll, l->text);
            else fprintf(f, "%8s %8s %8s", "-", "-", "-");
            fputs(b == 0 ? "  " : "\n", f);
        }
    }
}

/* One row a layer; a head that stays dense is marked. */
static void print_heads(FILE *f, const fl_calibrate_result *r, const double *values, const char *format) {
    fprintf(f, "  layer");
    for (int32_t h = 0; h < r->heads && h < 16; h++) fprintf(f, "  head %-2d", h);
    fputs(r->heads > 16 ? "  (the others: --json)\n" : "\n", f);
    for (int32_t i = 0; i < r->layers; i++) {
        fprintf(f, "  %5d", i);
        for (int32_t h = 0; h < r->heads && h < 16; h++) {
            size_t at = (size_t)i * (size_t)r->heads + (size_t)h;
            char text[32] = "-";
            if (isfinite(values[at])) snprintf(text, sizeof text, format, values[at]);
            fprintf(f, " %8s%s", text, r->chosen.dense && r->chosen.dense[at] ? "*" : " ");
        }
        fputc('\n', f);
    }
}

static void print_chosen(FILE *f, const fl_calibrate_plan *p, const fl_calibrate_result *r) {
    int32_t n_dense = 0;
    for (int32_t i = 0; r->chosen.dense && i < r->layers * r->heads; i++) n_dense += r->chosen.dense[i];
    fprintf(f, "chosen  block %d, alpha 1/%.0f, %d of %d heads dense, %d outlier dimensions\n",
            r->chosen.block, 1 / r->chosen.alpha, n_dense, r->layers * r->heads, r->chosen.n_outliers);
    fprintf(f,
            "        %.1f%% of the blocks attended; lost %.2f points, %.5f nats a token of answers, %.5f of "
            "text\n",
            100 * r->loss.density, r->loss.points, r->loss.nll, r->loss.text);
    fprintf(f, "        with the means' measured bias %.5f of text: %s\n", r->with_bias.text,
            r->chosen.bias ? "kept" : "left out");
    fprintf(f, "        (allowed %.2f points and %.5f nats)\n", p->max_loss_points, r->nll_max);
    if (r->chosen.temperature) {
        fprintf(f, "        temperature by layer");
        for (int32_t i = 0; i < r->layers; i++) fprintf(f, " %.3f", (double)r->chosen.temperature[i]);
        fputc('\n', f);
    }
    if (!r->reached)
        fprintf(f, "        no alpha holds the allowed loss: these are the numbers that lose least\n");
    if (100.0 / r->n_counted > p->max_loss_points)
        fprintf(f, "        one answer of %d is %.2f points: more documents (--n) tell %.2f apart\n",
                r->n_counted, 100.0 / r->n_counted, p->max_loss_points);
}

void fl_calibrate_print(FILE *f, const fl_calibrate_plan *p, const fl_calibrate_result *r) {
    fprintf(f,
            "%d documents of %lld tokens; full attention: %.1f points, %.4f nats a token over %d of %d "
            "questions, %.4f of text\n\n",
            p->n_documents, (long long)p->length_tokens, r->full_points, r->full_nll, r->n_counted,
            r->n_questions, r->full_text);
    print_alphas(f, r);
    fprintf(f, "\nattention mass kept by the lists (block %d, alpha 1/%.0f; * = stays dense)\n",
            r->chosen.block, 1 / r->chosen.alpha);
    print_heads(f, r, at_alpha(r, r->mass[r->block].kept), "%.4f");
    if (r->n_heads_measured > 0) {
        fprintf(f,
                "\nnats a token lost by a head sparse alone (alpha 1/%.0f, %d documents of %lld tokens; %d "
                "of %d heads)\n",
                1 / fl_calibrate_alpha(r->head_alpha), r->n_head_documents, (long long)r->head_length_tokens,
                r->n_heads_measured, r->layers * r->heads);
        print_heads(f, r, r->head_loss, "%+.5f");
    }
    const fl_density_table attended = {r->layers, r->heads, r->chosen.density_by_head};
    fprintf(f, "\nshare of visible blocks attended, dense heads among them\n");
    fl_density_print(f, &attended);
    fputc('\n', f);
    print_chosen(f, p, r);
}
