/* eval: a baseline and variants beside it, asked the same questions. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/cli_answer.h"
#include "cli/progress.h"
#include "engine/engine.h"
#include "eval/eval_report.h"
#include "eval/eval_variant.h"
#include "eval/haystack.h"
#include "eval/heat_map.h"
#include "eval/paired.h"
#include "model/fingerprint.h"

enum { LENGTHS_MAX = 16, TASKS_MAX = 64, RESAMPLES = 10000 };

typedef struct evaluating {
    const fl_options *options;
    fl_progress progress;
    fl_eval_variant variants[FL_EVAL_SIDES_MAX]; /* [n_sides] */
    fl_engine *engines[FL_EVAL_SIDES_MAX];
    int32_t n_sides;
    int64_t lengths[LENGTHS_MAX], longest;
    char *task_list; /* --tasks, cut at its commas */
    const char *tasks[TASKS_MAX];
    int32_t n_lengths, n_tasks;
    fl_haystack haystack;
    fl_fingerprint fingerprint;
    fl_eval_results results;
    fl_eval_resume *resume;
    fl_eval_report report;
    fl_eval_about about;
} evaluating;

/* ---- what is asked ---------------------------------------------------------------------------------------------- */

static fl_err parse_lengths(evaluating *e) {
    for (const char *text = e->options->lengths; *text;) {
        char item[32];
        size_t n = strcspn(text, ",");
        int64_t *length = &e->lengths[e->n_lengths];
        if (e->n_lengths == LENGTHS_MAX)
            return FL_FAIL(FL_ERR_INVALID, "--lengths: expected at most %d lengths", LENGTHS_MAX);
        snprintf(item, sizeof item, "%.*s", (int)(n < sizeof item ? n : sizeof item - 1), text);
        FL_TRY(fl_size_parse(item, "--lengths", length));
        if (*length < 1 || *length > 1 << 24)
            return FL_FAIL(FL_ERR_INVALID, "--lengths: expected 1 to %d, found %s", 1 << 24, item);
        for (int32_t i = 0; i < e->n_lengths; i++)
            if (e->lengths[i] == *length)
                return FL_FAIL(FL_ERR_INVALID, "--lengths: %s is there twice", item);
        if (*length > e->longest) e->longest = *length;
        e->n_lengths++;
        text += n + (text[n] == ',');
    }
    return e->n_lengths > 0 ? FL_ERR_OK : FL_FAIL(FL_ERR_INVALID, "--lengths: expected a length such as 4k");
}

static fl_err add_task(evaluating *e, const char *task) {
    if (e->n_tasks == TASKS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "--tasks: expected at most %d tasks", TASKS_MAX);
    for (int32_t i = 0; i < e->n_tasks; i++)
        if (strcmp(e->tasks[i], task) == 0)
            return FL_FAIL(FL_ERR_INVALID, "--tasks: '%s' is there twice", task);
    e->tasks[e->n_tasks++] = task;
    return FL_ERR_OK;
}

/* "ruler_*": every family whose name begins so. */
static fl_err add_families(evaluating *e, const char *pattern, size_t n_begin) {
    int32_t n_before = e->n_tasks;
    for (const char *const *family = fl_eval_family_names(); *family; family++)
        if (strncmp(*family, pattern, n_begin) == 0) FL_TRY(add_task(e, *family));
    return e->n_tasks > n_before
               ? FL_ERR_OK
               : FL_FAIL(FL_ERR_INVALID, "--tasks: no family of tasks begins like '%s'", pattern);
}

static fl_err parse_tasks(evaluating *e) {
    e->task_list = strdup(e->options->tasks);
    if (!e->task_list) return FL_FAIL(FL_ERR_NOMEM, "tasks");
    char *next = e->task_list;
    for (char *task; (task = strsep(&next, ","));) {
        size_t n = strlen(task);
        FL_TRY(n > 0 && task[n - 1] == '*' ? add_families(e, task, n - 1) : add_task(e, task));
    }
    return FL_ERR_OK;
}

static fl_err add_side(evaluating *e, const char *spec) {
    if (e->n_sides == FL_EVAL_SIDES_MAX)
        return FL_FAIL(FL_ERR_INVALID, "expected at most %d variants", FL_EVAL_SIDES_MAX - 1);
    FL_TRY(fl_eval_variant_parse(spec, &e->variants[e->n_sides]));
    e->n_sides++;
    return FL_ERR_OK;
}

/* The variant that --policy and its kin name, written as the others are. */
static fl_err add_options(evaluating *e) {
    const fl_options *o = e->options;
    const char *values[] = {o->eval_policy, o->eval_kv, o->eval_tail, o->eval_rope};
    static const char *const keys[] = {"", "kv=", "tail=", "rope="}; /* a policy stands alone */
    char spec[1024] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!values[i]) continue;
        if (strchr(values[i], ' ') || strlen(values[i]) > 200)
            return FL_FAIL(FL_ERR_INVALID, "expected one short word, found '%.220s'", values[i]);
        n += (size_t)snprintf(spec + n, sizeof spec - n, "%s%s%s", n > 0 ? " " : "", keys[i], values[i]);
    }
    if (o->eval_rope_factor > 0)
        n += (size_t)snprintf(spec + n, sizeof spec - n, "%srope-factor=%.17g", n > 0 ? " " : "",
                              o->eval_rope_factor);
    return n > 0 ? add_side(e, spec) : FL_ERR_OK;
}

static fl_err parse(evaluating *e) {
    FL_TRY(parse_lengths(e));
    FL_TRY(parse_tasks(e));
    FL_TRY(add_side(e, e->options->compare));
    FL_TRY(add_options(e));
    for (int32_t i = 0; i < e->options->variants.n; i++) FL_TRY(add_side(e, e->options->variants.items[i]));
    const fl_eval_grid grid = {.lengths = e->lengths,
                               .n_lengths = e->n_lengths,
                               .tasks = e->tasks,
                               .n_tasks = e->n_tasks,
                               .n_documents = (int32_t)e->options->n_documents,
                               .n_sides = e->n_sides};
    return fl_eval_results_open(&grid, &e->results);
}

/* ---- the sides -------------------------------------------------------------------------------------------------- */

static fl_err open_engine(evaluating *e, int32_t side) {
    const fl_options *o = e->options;
    fl_settings settings;
    fl_ask_engine(o, &settings);
    settings.ctx_tokens =
        e->longest; /* documents leave room for template and answer; more is another bucket */
    settings.check_lock = side == 0; /* one look at the weights is enough */
    settings.progress = fl_progress_bytes;
    settings.progress_context = &e->progress;
    fl_eval_variant_apply(&e->variants[side], &settings);
    fl_progress_begin(&e->progress, "loading");
    fl_err err = fl_engine_open(&settings, &e->engines[side]);
    fl_progress_clear(&e->progress);
    return err;
}

static void describe(evaluating *e) {
    const fl_options *o = e->options;
    e->about.model = o->operands.items[0];
    e->about.documents = o->documents ? o->documents : "the bundled books";
    e->about.seed = (uint64_t)o->seed;
    e->about.difficulty = o->difficulty;
    e->about.n_segments = (int32_t)o->n_segments;
    for (int32_t i = 0; i < e->n_sides; i++) {
        fl_engine_info info;
        fl_engine_get_info(e->engines[i], &info);
        e->about.sides[i] = (fl_eval_side){.spec = e->variants[i].spec,
                                           .policy = info.policy,
                                           .kv_dtype = info.kv_dtype,
                                           .backend = info.backend,
                                           .position_warning = info.position_warning,
                                           .block_density = info.block_density,
                                           .block_overflow = info.block_overflow};
    }
}

/* What results depend on, beside length, task and index, which are in each line. */
static fl_err open_resume(evaluating *e) {
    const fl_options *o = e->options;
    char seed[32], difficulty[32], segments[32], haystack[FL_SHA256_HEX_BYTES];
    if (!o->resume) return FL_ERR_OK;
    size_t n = 1;
    for (int32_t i = 0; i < e->n_sides; i++)
        n += strlen(e->about.sides[i].spec) + strlen(e->about.sides[i].policy) + 32;
    char *sides = calloc(n, 1);
    if (!sides) return FL_FAIL(FL_ERR_NOMEM, "settings of %d sides", e->n_sides);
    for (int32_t i = 0, at = 0; i < e->n_sides; i++)
        at += snprintf(sides + at, n - (size_t)at, "%s%s (%s, %.8s)", i > 0 ? "; " : "",
                       e->about.sides[i].spec, e->about.sides[i].policy, e->about.sides[i].kv_dtype);
    fl_err err = fl_fingerprint_compute(o->operands.items[0], NULL, NULL, &e->fingerprint);
    if (err == FL_ERR_OK) err = fl_sha256_of(e->haystack.text, e->haystack.n_bytes, haystack);
    snprintf(seed, sizeof seed, "%lld", (long long)o->seed);
    snprintf(difficulty, sizeof difficulty, "%.17g", o->difficulty);
    snprintf(segments, sizeof segments, "%lld", (long long)o->n_segments);
    const fl_eval_setting settings[] = {
        {"model", e->fingerprint.hex},       {"sides", sides},       {"seed", seed},
        {"difficulty", difficulty},          {"segments", segments}, {"documents", haystack},
        {"backend", e->engines[0]->be->name}};
    if (err == FL_ERR_OK)
        err = fl_eval_resume_open(o->resume, settings, sizeof settings / sizeof *settings, &e->results,
                                  &e->resume);
    free(sides);
    return err;
}

static void show(void *context, double fraction, const char *note) {
    fl_progress_show(context, fraction, note);
}

static fl_err ask(evaluating *e) {
    const fl_options *o = e->options;
    const fl_config *config = e->engines[0]->config;
    if (config->n_eos_ids < 1) return FL_FAIL(FL_ERR_UNSUPPORTED, "the checkpoint names no end token");
    const fl_paired_plan plan = {.engines = e->engines,
                                 .n_sides = e->n_sides,
                                 .end_token = config->eos_ids[0],
                                 .seed = (uint64_t)o->seed,
                                 .difficulty = o->difficulty,
                                 .n_segments = (int32_t)o->n_segments,
                                 .haystack = e->haystack.text,
                                 .haystack_bytes = e->haystack.n_bytes,
                                 .resume = e->resume,
                                 .progress = show,
                                 .progress_context = &e->progress};
    fl_progress_begin(&e->progress, "asking");
    fl_err err = fl_paired_run(&plan, &e->results);
    fl_progress_clear(&e->progress);
    return err;
}

/* ---- the report ------------------------------------------------------------------------------------------------- */

static fl_err write_heat_map(const evaluating *e) {
    const char *path = e->options->heat_map;
    FILE *file = fopen(path, "we");
    if (!file) return FL_FAIL(FL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    fl_err err = fl_heat_map_write(file, &e->report, &e->about);
    if (fclose(file) != 0 && err == FL_ERR_OK)
        err = FL_FAIL(FL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    return err;
}

static fl_err report(evaluating *e) {
    const fl_eval_chance chance = {.resamples = RESAMPLES, .seed = (uint64_t)e->options->seed};
    describe(e);
    return fl_eval_report_make(&e->results, &chance, &e->report);
}

/* The picture last: a full disk must not take the report with it. */
static fl_err show_report(const evaluating *e) {
    if (e->options->json) {
        FL_TRY(fl_cli_print_json(fl_eval_report_json(&e->report, &e->about)));
    } else {
        fl_eval_report_print(stdout, &e->report, &e->about);
        FL_TRY(fl_cli_flush());
    }
    return e->options->heat_map ? write_heat_map(e) : FL_ERR_OK;
}

static fl_err evaluate(evaluating *e) {
    fl_progress_init(&e->progress, e->options);
    FL_TRY(parse(e));
    FL_TRY(fl_haystack_open(e->options->documents, &e->haystack));
    for (int32_t i = 0; i < e->n_sides; i++) FL_TRY(open_engine(e, i));
    describe(e);
    FL_TRY(open_resume(e));
    FL_TRY(ask(e));
    return report(e);
}

static void close_all(evaluating *e) {
    fl_progress_clear(&e->progress);
    fl_eval_report_close(&e->report);
    fl_eval_resume_close(e->resume);
    fl_eval_results_close(&e->results);
    fl_fingerprint_close(&e->fingerprint);
    fl_haystack_close(&e->haystack);
    for (int32_t i = 0; i < e->n_sides; i++) {
        fl_engine_close(e->engines[i]);
        fl_eval_variant_close(&e->variants[i]);
    }
    free(e->task_list);
    free(e);
}

fl_err fl_eval_to_json(const fl_options *options, json_t **out) {
    evaluating *e = calloc(1, sizeof *e);
    if (!e) return FL_FAIL(FL_ERR_NOMEM, "eval");
    e->options = options;
    fl_err err = evaluate(e);
    if (err == FL_ERR_OK) *out = fl_eval_report_json(&e->report, &e->about);
    if (err == FL_ERR_OK && !*out) err = FL_FAIL(FL_ERR_NOMEM, "the evaluation's report");
    close_all(e);
    return err;
}

int fl_cmd_eval(const fl_options *options) {
    evaluating *e = calloc(1, sizeof *e);
    if (!e) return fl_cli_fail("eval", FL_FAIL(FL_ERR_NOMEM, "eval"));
    e->options = options;
    fl_err err = evaluate(e);
    if (err == FL_ERR_OK) err = show_report(e);
    int code = err == FL_ERR_OK ? 0 : fl_cli_fail("eval", err);
    close_all(e);
    return code;
}
