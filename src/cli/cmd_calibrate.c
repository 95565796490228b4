/* calibrate: measures a checkpoint and writes the numbers of the policy "blocks" beside it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "calibrate/calibrate.h"
#include "cli/cli.h"
#include "cli/cli_answer.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "eval/haystack.h"
#include "model/fingerprint.h"

typedef struct calibrating {
    const fl_options *options;
    fl_progress progress;
    fl_haystack bundled, own;
    fl_engine *engine;
    fl_calibrate_plan plan;
    fl_calibrate_result result;
    char *dir, *name; /* of the file to write */
} calibrating;

/* Cuts --output into folder and name; without it, the checkpoint's. */
static fl_err split_output(calibrating *c) {
    const char *path = c->options->output, *slash = path ? strrchr(path, '/') : NULL;
    if (!path) c->dir = strdup(c->options->operands.items[0]);
    else if (!slash) c->dir = strdup(".");
    else c->dir = strndup(path, slash > path ? (size_t)(slash - path) : 1);
    c->name = strdup(!path ? FL_CALIBRATION_NAME : slash ? slash + 1 : path);
    if (!c->dir || !c->name) return FL_FAIL(FL_ERR_NOMEM, "output");
    if (*c->name == '\0') return FL_FAIL(FL_ERR_INVALID, "--output: expected a file, found a folder");
    return FL_ERR_OK;
}

/* Before hours of work: a file can be made there. */
static fl_err check_writable(const calibrating *c) {
    static const char probe[] = ".firstlight.calibrate.tmp";
    char *path = NULL;
    FL_TRY(fl_file_path(c->dir, probe, &path));
    fl_err err = fl_file_write(c->dir, probe, "", 0);
    if (err == FL_ERR_OK) unlink(path);
    free(path);
    if (err == FL_ERR_OK) return FL_ERR_OK;
    return FL_FAIL(err, "cannot write %s/%s (%s); --output FILE writes it elsewhere", c->dir, c->name,
                   fl_err_detail());
}

static fl_err open_engine(calibrating *c) {
    const fl_options *o = c->options;
    char policy[FL_CALIBRATE_POLICY_BYTES];
    fl_settings settings;
    fl_ask_engine(o, &settings);
    settings.rope = o->rope;
    settings.rope_factor = o->rope_factor;
    settings.progress = fl_progress_bytes;
    settings.progress_context = &c->progress;
    fl_calibrate_settings(o->length, policy, &settings);
    fl_progress_begin(&c->progress, "loading");
    fl_err err = fl_engine_open(&settings, &c->engine);
    fl_progress_clear(&c->progress);
    return err;
}

static void show(void *context, double fraction, const char *note) {
    fl_progress_show(context, fraction, note);
}

static fl_err measure(calibrating *c) {
    const fl_options *o = c->options;
    c->plan = (fl_calibrate_plan){.engine = c->engine,
                                  .length_tokens = o->length,
                                  .n_documents = (int32_t)o->calibrate_n,
                                  .seed = (uint64_t)o->seed,
                                  .max_loss_points = o->max_loss,
                                  .heads_max = (int32_t)o->heads_max,
                                  .texts = {{c->bundled.text, c->bundled.n_bytes}},
                                  .n_texts = 1,
                                  .progress = show,
                                  .progress_context = &c->progress};
    if (o->calibrate_documents)
        c->plan.texts[c->plan.n_texts++] = (fl_calibrate_text){c->own.text, c->own.n_bytes};
    fl_progress_begin(&c->progress, "measuring");
    fl_err err = fl_calibrate_run(&c->plan, &c->result);
    fl_progress_clear(&c->progress);
    return err;
}

static fl_err print_json(const calibrating *c, json_t *measured) {
    const fl_calibrate_result *r = &c->result;
    json_t *root = fl_calibration_json(&r->chosen);
    json_t *ones = json_array();
    for (int32_t i = 0; ones && i < r->layers; i++) json_array_append_new(ones, json_real(1));
    if (!root || (!r->chosen.temperature && json_object_set(root, "temperature", ones) != 0) ||
        json_object_set_new(root, "output", json_sprintf("%s/%s", c->dir, c->name)) != 0 ||
        json_object_set(root, "measured", measured) != 0) {
        json_decref(root);
        root = NULL;
    }
    json_decref(ones);
    return fl_cli_print_json(root);
}

/* A lock covers calibration.json, so a new one no longer matches it. */
static void print_closing(const calibrating *c) {
    const char *model = c->options->operands.items[0];
    bool beside = !c->options->output;
    printf("wrote %s/%s in %s; ", c->dir, c->name, fl_format_seconds(c->result.elapsed_s).s);
    if (beside && fl_lock_exists(model))
        printf("the lock covers it: run `firstlight verify %s --write` if it is to stay\n", model);
    else if (beside) printf("--policy blocks uses it from now on\n");
    else printf("use it with --policy blocks --calibration %s\n", c->options->output);
}

static fl_err report(const calibrating *c) {
    json_t *measured = fl_calibrate_measured_json(&c->plan, &c->result);
    fl_err err = measured ? fl_calibration_write(c->dir, c->name, &c->result.chosen, measured)
                          : FL_FAIL(FL_ERR_NOMEM, "what was measured, as JSON");
    if (err == FL_ERR_OK && c->options->json) {
        err = print_json(c, measured);
    } else if (err == FL_ERR_OK) {
        fl_calibrate_print(stdout, &c->plan, &c->result);
        print_closing(c);
        err = fl_cli_flush();
    }
    json_decref(measured);
    return err;
}

static fl_err calibrate(calibrating *c) {
    FL_TRY(split_output(c));
    FL_TRY(check_writable(c));
    FL_TRY(fl_haystack_open(NULL, &c->bundled));
    if (c->options->calibrate_documents) FL_TRY(fl_haystack_open(c->options->calibrate_documents, &c->own));
    FL_TRY(open_engine(c));
    FL_TRY(measure(c));
    return report(c);
}

int fl_cmd_calibrate(const fl_options *options) {
    calibrating c = {.options = options};
    fl_progress_init(&c.progress, options);
    fl_err err = calibrate(&c);
    int code = err == FL_ERR_OK ? 0 : fl_cli_fail("calibrate", err);
    fl_calibrate_close(&c.result);
    fl_engine_close(c.engine);
    fl_haystack_close(&c.bundled);
    fl_haystack_close(&c.own);
    free(c.dir);
    free(c.name);
    return code;
}
