/* What the ladder takes from elsewhere: loss from an evaluation, kernel times of a peer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/ladder.h"

enum { FILE_BYTES_MAX = 64 << 20, ARGUMENTS_MAX = 64, SPEC_BYTES = 320 };

static fl_err read_json(const char *path, json_t **out) {
    char *text = NULL;
    size_t n_bytes;
    json_error_t fault;
    FL_TRY(fl_file_read(*path == '/' ? "/" : ".", path, FILE_BYTES_MAX, &text, &n_bytes));
    *out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &fault);
    free(text);
    return *out ? FL_ERR_OK : FL_FAIL(FL_ERR_DATA, "%s: line %d: %s", path, fault.line, fault.text);
}

/* ---- loss ---- */

/* The variant of `eval` that a row is. */
static void spec_of(const fl_ladder_stage *s, char spec[SPEC_BYTES]) {
    int n = snprintf(spec, SPEC_BYTES, "policy=%s kv=%s", s->policy, s->kv);
    if (strcmp(s->rope, "model") != 0 && n > 0 && n < SPEC_BYTES)
        snprintf(spec + n, (size_t)(SPEC_BYTES - n), " rope=%s rope-factor=%g", s->rope, s->rope_factor);
}

static bool same_numbers(const fl_ladder_stage *a, const fl_ladder_stage *b) {
    return strcmp(a->policy, b->policy) == 0 && strcmp(a->kv, b->kv) == 0 && strcmp(a->rope, b->rope) == 0;
}

static const char *text_of(const json_t *object, const char *field) {
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : "";
}

/* The variant of the report that ran as the row did: policy with its numbers, KV format, positions. */
static const json_t *find_variant(const json_t *report, const fl_ladder_row *r) {
    char wanted[64] = "";
    const json_t *item;
    size_t i;
    if (strcmp(r->stage.rope, "model") != 0) snprintf(wanted, sizeof wanted, "rope=%s", r->stage.rope);
    json_array_foreach(json_object_get(report, "variants"), i, item) {
        const char *spec = text_of(item, "spec");
        bool positions = *wanted ? strstr(spec, wanted) != NULL : strstr(spec, "rope=") == NULL;
        bool backend = strstr(spec, "backend=") != NULL; /* another than the rows' */
        if (positions && !backend && strcmp(text_of(item, "policy"), r->policy) == 0 &&
            strcmp(text_of(item, "kv_dtype"), r->kv) == 0)
            return item;
    }
    return NULL;
}

static fl_err take_loss(const fl_ladder *l, const json_t *report, fl_ladder_row *r) {
    char length[32], spec[SPEC_BYTES];
    const json_t *variant = find_variant(report, r);
    snprintf(length, sizeof length, "%lld", (long long)l->ctx_tokens);
    const json_t *sum = json_object_get(json_object_get(variant, "by_length"), length);
    const json_t *points = json_object_get(sum, "loss_points");
    spec_of(&r->stage, spec);
    if (!json_is_number(points))
        return FL_FAIL(
            FL_ERR_DATA,
            "%s: no loss at %s tokens for the row \"%s\" (%s, KV in %s); expected eval --lengths %s "
            "--variant '%s'",
            l->loss_source, length, r->stage.name, r->policy, r->kv, length, spec);
    r->loss = (fl_ladder_loss){.known = true,
                               .points = json_number_value(points),
                               .low = json_number_value(json_object_get(sum, "loss_low")),
                               .high = json_number_value(json_object_get(sum, "loss_high")),
                               .questions = (int32_t)json_integer_value(json_object_get(sum, "questions"))};
    return FL_ERR_OK;
}

static const fl_verb *eval_verb(void) {
    const fl_verb *v = fl_verbs;
    while (v->bit != FL_VERB_EVAL) v++;
    return v;
}

/* An evaluation with the rows' variants, each once. */
static fl_err run_eval(const fl_ladder *l, json_t **out) {
    const fl_options *o = l->options;
    char specs[FL_LADDER_STAGES_MAX][SPEC_BYTES], length[32], n[32], threads[32], compare[SPEC_BYTES];
    const char *argv[ARGUMENTS_MAX] = {
        o->operands.items[0], "--lengths", length,      "--n",      n,           "--tasks", o->eval_tasks,
        "--compare",          compare,     "--backend", o->backend, "--threads", threads};
    int argc = 13, n_specs = 0;
    snprintf(length, sizeof length, "%lld", (long long)l->ctx_tokens);
    snprintf(threads, sizeof threads, "%lld", (long long)o->threads);
    snprintf(n, sizeof n, "%lld", (long long)o->eval_n);
    spec_of(&l->rows[0].stage, compare);
    for (int32_t i = 1; i < l->n_rows; i++) {
        bool again = false;
        for (int32_t j = 0; j < i; j++) again = again || same_numbers(&l->rows[i].stage, &l->rows[j].stage);
        if (again) continue;
        spec_of(&l->rows[i].stage, specs[n_specs]);
        argv[argc++] = "--variant";
        argv[argc++] = specs[n_specs++];
    }
    fl_options eval;
    FL_TRY(fl_options_parse(eval_verb(), argc, (char **)(uintptr_t)argv, &eval));
    eval.quiet = o->quiet;
    eval.progress = o->progress;
    fl_err err = fl_eval_to_json(&eval, out);
    fl_options_close(&eval);
    return err;
}

fl_err fl_ladder_find_losses(fl_ladder *l) {
    const fl_options *o = l->options;
    json_t *report = NULL;
    if (o->synthetic) return FL_ERR_OK;
    if (o->loss) snprintf(l->loss_source, sizeof l->loss_source, "%s", o->loss);
    else
        snprintf(l->loss_source, sizeof l->loss_source, "evaluated in this run: %s, %lld documents a task",
                 o->eval_tasks, (long long)o->eval_n);
    FL_TRY(o->loss ? read_json(o->loss, &report) : run_eval(l, &report));
    fl_err err = FL_ERR_OK;
    l->rows[0].loss = (fl_ladder_loss){.known = true}; /* the baseline itself */
    for (int32_t i = 1; i < l->n_rows && err == FL_ERR_OK; i++) {
        if (same_numbers(&l->rows[i].stage, &l->rows[0].stage)) l->rows[i].loss = l->rows[0].loss;
        else err = take_loss(l, report, &l->rows[i]);
    }
    json_decref(report);
    return err;
}

/* ---- a peer ---- */

/* Of an op the time that is left when the peer does its FLOPs faster than we did. */
static double saved_s(const json_t *op, const fl_bench_op *ops, int32_t n_ops) {
    double flops_per_s = json_number_value(json_object_get(op, "flops_per_s"));
    for (int32_t i = 0; i < n_ops; i++) {
        if (strcmp(ops[i].name, text_of(op, "op")) != 0 || ops[i].flops <= 0) continue;
        double peer_s = ops[i].flops / flops_per_s;
        return peer_s < ops[i].time_s ? ops[i].time_s - peer_s : 0;
    }
    return 0;
}

fl_err fl_ladder_correct(fl_ladder *l, const fl_bench_op *ops, int32_t n_ops) {
    json_t *root, *op;
    size_t i;
    double saved = 0;
    fl_err err = FL_ERR_OK;
    if (!l->options->peer) return FL_ERR_OK;
    FL_TRY(read_json(l->options->peer, &root));
    const json_t *all = json_object_get(root, "ops");
    if (!json_is_array(all) || *text_of(root, "peer") == '\0')
        err = FL_FAIL(FL_ERR_DATA,
                      "%s: expected {\"peer\": NAME, \"ops\": [{\"op\": NAME, \"flops_per_s\": X}, ...]}",
                      l->options->peer);
    json_array_foreach(all, i, op) {
        double rate = json_number_value(json_object_get(op, "flops_per_s"));
        if (err == FL_ERR_OK && !(rate > 0 && isfinite(rate)))
            err = FL_FAIL(FL_ERR_DATA, "%s: ops[%zu].flops_per_s: expected a number above 0",
                          l->options->peer, i);
        if (err == FL_ERR_OK) saved += saved_s(op, ops, n_ops);
    }
    if (err == FL_ERR_OK) {
        snprintf(l->peer, sizeof l->peer, "%s", text_of(root, "peer"));
        l->rows[0].corrected_s = l->rows[0].ttft_s - saved;
    }
    json_decref(root);
    return err;
}
