#include "eval/eval_result.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "eval/eval_document.h"

static const char format_name[] = "firstlight eval 1";

enum { FILE_BYTES_MAX = 1 << 30, DOCUMENTS_MAX = 1 << 22 };

/* ---- results ---------------------------------------------------------------------------------------------------- */

static const char *find_name(const char *const *names, const char *name) {
    for (; *names; names++)
        if (strcmp(*names, name) == 0) return *names;
    return NULL;
}

const char *fl_eval_known_task(const char *name, bool families_too) {
    const char *known = find_name(fl_eval_task_names(), name);
    return known || !families_too ? known : find_name(fl_eval_family_names(), name);
}

/* Names what there is. */
static fl_err unknown_task(const char *name) {
    char list[1024] = "";
    size_t n = 0;
    for (const char *const *known = fl_eval_family_names(); *known && n < sizeof list; known++)
        n += (size_t)snprintf(list + n, sizeof list - n, ", %s", *known);
    return FL_FAIL(FL_ERR_INVALID, "there is no task or family '%.100s'; families are%s", name, list + 1);
}

fl_err fl_eval_results_open(const fl_eval_grid *g, fl_eval_results *out) {
    int64_t n = 0;
    *out = (fl_eval_results){.n_sides = g->n_sides};
    if (g->n_sides < 1 || g->n_sides > FL_EVAL_SIDES_MAX)
        return FL_FAIL(FL_ERR_INVALID, "expected at most %d variants, found %d", FL_EVAL_SIDES_MAX - 1,
                       g->n_sides - 1);
    if (!fl_mul_i64(g->n_lengths, g->n_tasks, &n) || !fl_mul_i64(n, g->n_documents, &n) || n < 1 ||
        n > DOCUMENTS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "expected 1 to %d documents, found %d lengths x %d tasks x %d",
                       DOCUMENTS_MAX, g->n_lengths, g->n_tasks, g->n_documents);
    out->items = calloc((size_t)n, sizeof *out->items);
    if (!out->items) return FL_FAIL(FL_ERR_NOMEM, "results of %lld documents", (long long)n);
    for (int32_t l = 0; l < g->n_lengths; l++)
        for (int32_t t = 0; t < g->n_tasks; t++) {
            const char *task = fl_eval_known_task(g->tasks[t], true);
            for (int32_t i = 0; task && i < g->n_documents; i++)
                out->items[out->n++] =
                    (fl_eval_result){.task = task, .length_tokens = g->lengths[l], .index = i};
            if (task) continue;
            fl_eval_results_close(out);
            return unknown_task(g->tasks[t]);
        }
    return FL_ERR_OK;
}

void fl_eval_results_close(fl_eval_results *results) {
    for (int32_t i = 0; i < results->n; i++) free(results->items[i].rows);
    free(results->items);
    *results = (fl_eval_results){0};
}

/* ---- lines out -------------------------------------------------------------------------------------------------- */

struct fl_eval_resume {
    FILE *file;
    char *path;
};

static json_t *outcome_json(const fl_eval_outcome *o) {
    return json_pack("[f,f,f,b]", o->score, o->nll, o->kl, (int)o->exact);
}

static json_t *row_json(const fl_eval_row *row, int32_t n_sides) {
    json_t *sides = json_array();
    for (int32_t s = 0; s < n_sides; s++) json_array_append_new(sides, outcome_json(&row->sides[s]));
    return json_pack("{s:s, s:f, s:i, s:i, s:o}", "task", row->task, "depth", row->depth, "segment_distance",
                     (int)row->segment_distance, "tokens", (int)row->n_scored, "sides", sides);
}

static json_t *result_json(const fl_eval_result *r, int32_t n_sides) {
    json_t *rows = json_array(), *costs = json_array();
    for (int32_t i = 0; i < r->n_rows; i++) json_array_append_new(rows, row_json(&r->rows[i], n_sides));
    for (int32_t s = 0; s < n_sides; s++)
        json_array_append_new(
            costs, json_pack("[f,I,I,i]", r->costs[s].prefill_s, (json_int_t)r->costs[s].computed_tokens,
                             (json_int_t)r->costs[s].cached_tokens, (int)r->costs[s].n_reads));
    return json_pack("{s:I, s:s, s:i, s:o, s:o}", "length", (json_int_t)r->length_tokens, "task", r->task,
                     "index", (int)r->index, "rows", rows, "costs", costs);
}

/* Takes the reference. All digits, so that a resumed run's report equals an uninterrupted one's. */
static fl_err write_line(fl_eval_resume *resume, json_t *line) {
    if (!line) return FL_FAIL(FL_ERR_NOMEM, "a line of %s", resume->path);
    int failed = json_dumpf(line, resume->file, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(line);
    if (failed || putc('\n', resume->file) == EOF || fflush(resume->file) != 0)
        return FL_FAIL(FL_ERR_IO, "cannot write %s: %s", resume->path, strerror(errno));
    return FL_ERR_OK;
}

fl_err fl_eval_resume_add(fl_eval_resume *resume, const fl_eval_result *result, int32_t n_sides) {
    return write_line(resume, result_json(result, n_sides));
}

/* ---- lines in --------------------------------------------------------------------------------------------------- */

static bool is_number(const json_t *value, double least, double most) {
    return json_is_number(value) && json_number_value(value) >= least && json_number_value(value) <= most;
}

static bool is_integer(const json_t *value, int64_t least, int64_t most) {
    return json_is_integer(value) && json_integer_value(value) >= least && json_integer_value(value) <= most;
}

static bool read_outcome(const json_t *in, fl_eval_outcome *out) {
    if (!json_is_array(in) || json_array_size(in) != 4) return false;
    const json_t *score = json_array_get(in, 0), *nll = json_array_get(in, 1), *kl = json_array_get(in, 2);
    if (!is_number(score, 0, 1) || !is_number(nll, 0, 1e6) || !is_number(kl, -1e-6, 1e6)) return false;
    if (!json_is_boolean(json_array_get(in, 3))) return false;
    *out = (fl_eval_outcome){.score = json_number_value(score),
                             .nll = json_number_value(nll),
                             .kl = json_number_value(kl),
                             .exact = json_is_true(json_array_get(in, 3))};
    return true;
}

static bool read_row(const json_t *in, int32_t n_sides, fl_eval_row *out) {
    const char *task = json_string_value(json_object_get(in, "task"));
    const json_t *depth = json_object_get(in, "depth"), *distance = json_object_get(in, "segment_distance"),
                 *tokens = json_object_get(in, "tokens"), *sides = json_object_get(in, "sides");
    if (!task || !(out->task = fl_eval_known_task(task, false))) return false;
    if (!is_number(depth, -1, 1) || (json_number_value(depth) < 0 && json_number_value(depth) != -1))
        return false;
    if (!is_integer(distance, 0, 1 << 24) || !is_integer(tokens, 1, 1 << 24)) return false;
    if (!json_is_array(sides) || json_array_size(sides) != (size_t)n_sides) return false;
    out->depth = json_number_value(depth);
    out->segment_distance = (int32_t)json_integer_value(distance);
    out->n_scored = (int32_t)json_integer_value(tokens);
    for (int32_t s = 0; s < n_sides; s++)
        if (!read_outcome(json_array_get(sides, (size_t)s), &out->sides[s])) return false;
    return true;
}

static bool read_costs(const json_t *in, int32_t n_sides, fl_eval_cost *out) {
    if (!json_is_array(in) || json_array_size(in) != (size_t)n_sides) return false;
    for (int32_t s = 0; s < n_sides; s++) {
        const json_t *cost = json_array_get(in, (size_t)s);
        if (!json_is_array(cost) || json_array_size(cost) != 4) return false;
        const json_t *prefill = json_array_get(cost, 0), *computed = json_array_get(cost, 1),
                     *cached = json_array_get(cost, 2), *reads = json_array_get(cost, 3);
        if (!is_number(prefill, 0, 1e9) || !is_integer(computed, 0, (int64_t)1 << 40) ||
            !is_integer(cached, 0, (int64_t)1 << 40) || !is_integer(reads, 0, 1 << 24))
            return false;
        out[s] = (fl_eval_cost){json_number_value(prefill), json_integer_value(computed),
                                json_integer_value(cached), (int32_t)json_integer_value(reads)};
    }
    return true;
}

static fl_eval_result *find_result(fl_eval_results *results, const char *task, int64_t length,
                                   int64_t index) {
    for (int32_t i = 0; i < results->n; i++) {
        fl_eval_result *r = &results->items[i];
        if (r->index == index && r->length_tokens == length && strcmp(r->task, task) == 0) return r;
    }
    return NULL;
}

static fl_err take_rows(const json_t *rows, int32_t n_sides, const char *path, int64_t line,
                        fl_eval_result *out) {
    size_t n = json_array_size(rows);
    out->rows = calloc(n, sizeof *out->rows);
    if (!out->rows) return FL_FAIL(FL_ERR_NOMEM, "results of %zu questions", n);
    out->n_rows = (int32_t)n;
    for (size_t i = 0; i < n; i++)
        if (!read_row(json_array_get(rows, i), n_sides, &out->rows[i]))
            return FL_FAIL(FL_ERR_DATA, "%s, line %lld: rows[%zu] is not a question's result for %d sides",
                           path, (long long)line, i, n_sides);
    return FL_ERR_OK;
}

static fl_err take_result(const json_t *in, const char *path, int64_t line, fl_eval_results *results) {
    const char *task = json_string_value(json_object_get(in, "task"));
    const json_t *length = json_object_get(in, "length"), *index = json_object_get(in, "index"),
                 *rows = json_object_get(in, "rows");
    fl_eval_result read = {0};
    if (!task || !fl_eval_known_task(task, true) || !is_integer(length, 1, INT32_MAX) ||
        !is_integer(index, 0, DOCUMENTS_MAX) || !json_is_array(rows) || json_array_size(rows) < 1 ||
        json_array_size(rows) > FL_EVAL_QUESTIONS_MAX ||
        !read_costs(json_object_get(in, "costs"), results->n_sides, read.costs))
        return FL_FAIL(FL_ERR_DATA, "%s, line %lld: expected length, task, index, rows and costs of %d sides",
                       path, (long long)line, results->n_sides);
    fl_err err = take_rows(rows, results->n_sides, path, line, &read);
    fl_eval_result *place = find_result(results, task, json_integer_value(length), json_integer_value(index));
    if (err == FL_ERR_OK && place && place->rows)
        err = FL_FAIL(FL_ERR_DATA, "%s, line %lld: this document was there already", path, (long long)line);
    if (err != FL_ERR_OK || !place) {
        free(read.rows);
        return err;
    }
    place->rows = read.rows;
    place->n_rows = read.n_rows;
    memcpy(place->costs, read.costs, sizeof place->costs);
    return FL_ERR_OK;
}

/* Shows both values from a little before their first difference on. */
static fl_err other_setting(const char *path, const char *name, const char *there, const char *here) {
    enum { BEFORE = 24 };
    size_t same = 0, from;
    while (there[same] && there[same] == here[same]) same++;
    from = same > BEFORE ? same - BEFORE : 0;
    return FL_FAIL(
        FL_ERR_CONFIG,
        "%s was made with other settings: %s is '%s%.120s' there and '%s%.120s' here; name another file",
        path, name, from ? ".." : "", there + from, from ? ".." : "", here + from);
}

static fl_err check_settings(const json_t *in, const char *path, const fl_eval_setting *settings, int32_t n) {
    const char *format = json_string_value(json_object_get(in, "format"));
    const json_t *found = json_object_get(in, "settings");
    if (!format || strcmp(format, format_name) != 0 || !json_is_object(found))
        return FL_FAIL(FL_ERR_DATA, "%s: its first line is not that of a '%s' file", path, format_name);
    for (int32_t i = 0; i < n; i++) {
        const char *value = json_string_value(json_object_get(found, settings[i].name));
        if (!value || strcmp(value, settings[i].value) != 0)
            return other_setting(path, settings[i].name, value ? value : "not set", settings[i].value);
    }
    if (json_object_size(found) != (size_t)n)
        return FL_FAIL(FL_ERR_CONFIG, "%s was made with other settings: it has %zu of them, expected %d",
                       path, json_object_size(found), n);
    return FL_ERR_OK;
}

static fl_err read_line(const fl_eval_lines *in, const char *text, size_t n_bytes, int64_t line,
                        fl_eval_results *results) {
    json_error_t error;
    json_t *object = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) {
        json_decref(object);
        return FL_FAIL(FL_ERR_DATA, "%s, line %lld: not a JSON object", in->path, (long long)line);
    }
    fl_err err = line == 1 ? check_settings(object, in->path, in->settings, in->n_settings)
                           : take_result(object, in->path, line, results);
    json_decref(object);
    return err;
}

fl_err fl_eval_results_read(const fl_eval_lines *in, fl_eval_results *results, size_t *whole_bytes) {
    *whole_bytes = 0;
    for (int64_t line = 1; *whole_bytes < in->n_bytes; line++) {
        const char *begin = in->text + *whole_bytes, *end = memchr(begin, '\n', in->n_bytes - *whole_bytes);
        if (!end) break;
        FL_TRY(read_line(in, begin, (size_t)(end - begin), line, results));
        *whole_bytes = (size_t)(end - in->text) + 1;
    }
    return FL_ERR_OK;
}

/* Whether a file without a whole line may be begun anew: nothing in it, or the beginning of our first line. Any other
 * file was named by mistake. */
static fl_err check_begun(const char *path, const char *text, size_t n_bytes) {
    char begin[64];
    size_t n = (size_t)snprintf(begin, sizeof begin, "{\"format\":\"%s\"", format_name);
    if (memcmp(text, begin, n_bytes < n ? n_bytes : n) == 0) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_DATA, "%s: not a '%s' file", path, format_name);
}

static json_t *settings_json(const fl_eval_setting *settings, int32_t n) {
    json_t *all = json_object();
    for (int32_t i = 0; i < n; i++)
        json_object_set_new(all, settings[i].name, json_string(settings[i].value));
    return json_pack("{s:s, s:o}", "format", format_name, "settings", all);
}

/* Splits at the last '/'; the parts are joined again by base/file. */
static fl_err read_whole(const char *path, char **text, size_t *n_bytes) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    if (!folder) return FL_FAIL(FL_ERR_NOMEM, "path %s", path);
    fl_err err = fl_file_read(folder, slash ? slash + 1 : path, FILE_BYTES_MAX, text, n_bytes);
    free(folder);
    return err;
}

static fl_err open_file(fl_eval_resume *resume, size_t keep_bytes) {
    int fd = open(resume->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && ftruncate(fd, (off_t)keep_bytes) == 0 && lseek(fd, 0, SEEK_END) >= 0)
        resume->file = fdopen(fd, "w");
    if (resume->file) return FL_ERR_OK;
    fl_err err = FL_FAIL(FL_ERR_IO, "cannot write %s: %s", resume->path, strerror(errno));
    if (fd >= 0) close(fd);
    return err;
}

fl_err fl_eval_resume_open(const char *path, const fl_eval_setting *settings, int32_t n_settings,
                           fl_eval_results *results, fl_eval_resume **out) {
    char *text = NULL;
    size_t n_bytes = 0, whole_bytes = 0;
    fl_err err = FL_ERR_OK;
    fl_eval_resume *resume = calloc(1, sizeof *resume);
    if (!resume || !(resume->path = strdup(path))) {
        err = FL_FAIL(FL_ERR_NOMEM, "resume file");
        goto fail;
    }
    if (access(path, F_OK) == 0) FL_TRY_GOTO(read_whole(path, &text, &n_bytes));
    const fl_eval_lines lines = {path, text, n_bytes, settings, n_settings};
    FL_TRY_GOTO(fl_eval_results_read(&lines, results, &whole_bytes));
    if (whole_bytes == 0 && n_bytes > 0) FL_TRY_GOTO(check_begun(path, text, n_bytes));
    FL_TRY_GOTO(open_file(resume, whole_bytes));
    if (whole_bytes == 0) FL_TRY_GOTO(write_line(resume, settings_json(settings, n_settings)));
    free(text);
    *out = resume;
    return FL_ERR_OK;
fail:
    free(text);
    fl_eval_resume_close(resume);
    return err;
}

void fl_eval_resume_close(fl_eval_resume *resume) {
    if (!resume) return;
    if (resume->file) fclose(resume->file);
    free(resume->path);
    free(resume);
}
