/* The runner: opens the backends, calls every op's check on each, keeps score. */
#include "opcheck/opcheck.h"

#include <string.h>

#include "opcheck/opcheck_private.h"

typedef struct check_entry {
    const char *op;
    void (*check)(oc_run *run);
} check_entry;

static const check_entry checks[] = {
#define X(op) {#op, fl_##op##_check},
#include "op/oplist.inc"
#undef X
};

enum { N_CHECKS = sizeof checks / sizeof *checks };

static fl_err known_op(const char *name) {
    for (size_t i = 0; i < N_CHECKS; i++)
        if (!name || strcmp(name, checks[i].op) == 0) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INVALID, "op '%s' is unknown", name);
}

static void check_op(oc_run *run, const check_entry *entry) {
    oc_private *p = run->private;
    fl_opcheck_row *row = p->row;
    *row = (fl_opcheck_row){.op = entry->op, .backend = run->be->name};
    p->timed_s = 0;
    p->timed_cost = (fl_cost){0};
    if (setjmp(p->out_of_memory) == 0) entry->check(run);
    oc_case_end(run);
    if (p->timed_s <= 0) return;
    row->gbytes_per_s = p->timed_cost.bytes / p->timed_s * 1e-9;
    row->flops_per_s = p->timed_cost.flops / p->timed_s;
}

/* Ops that the reference with w8a8 does otherwise than the reference. */
static bool differs_by_w8a8(const char *op) {
    return strcmp(op, "matmul") == 0 || strcmp(op, "block_score") == 0;
}

static fl_err check_backend(oc_run *run, const char *name, fl_opcheck_report *out) {
    const fl_opcheck_options *options = run->private->options;
    fl_err err;
    FL_TRY_GOTO(fl_backend_open(name, 2, &run->be));
    FL_TRY_GOTO(fl_backend_open(name, 1, &run->one));
    FL_TRY_GOTO(oc_take_memory(run));
    run->is_reference = strcmp(name, "reference") == 0;
    for (size_t i = 0; i < N_CHECKS; i++) {
        if (options->only && strcmp(options->only, checks[i].op) != 0) continue;
        if (run->be->w8a8 && run->be->op == run->ref->op && !differs_by_w8a8(checks[i].op)) continue;
        if (out->n_rows == FL_OPCHECK_ROWS_MAX) {
            err = FL_FAIL(FL_ERR_INTERNAL, "more than %d rows in the report", FL_OPCHECK_ROWS_MAX);
            goto fail;
        }
        fl_opcheck_row *row = &out->rows[out->n_rows];
        run->private->row = row;
        check_op(run, &checks[i]);
        out->cases += row->cases;
        out->passed += row->passed;
        out->n_rows++;
    }
    err = FL_ERR_OK;
fail:
    oc_give_memory(run);
    fl_backend_close(run->be);
    fl_backend_close(run->one);
    run->be = run->one = NULL;
    return err;
}

static bool wanted(const fl_opcheck_options *options, const char *name) {
    if (options->backend) return strcmp(options->backend, name) == 0;
    return fl_backend_available(name) && strcmp(name, "count") != 0;
}

fl_err fl_opcheck_run(const fl_opcheck_options *options, fl_opcheck_report *out) {
    oc_private private = {.options = options};
    oc_run run = {.private = &private};
    fl_err err;
    memset(out, 0, sizeof *out);
    FL_TRY(known_op(options->only));
    if (options->backend && strcmp(options->backend, "count") == 0)
        return FL_FAIL(FL_ERR_INVALID, "backend 'count' computes nothing that could be checked");
    FL_TRY_GOTO(fl_backend_open("reference", 2, &run.ref));
    for (const char *const *name = fl_backend_names(); *name; name++)
        if (wanted(options, *name)) FL_TRY_GOTO(check_backend(&run, *name, out));
    if (out->n_rows == 0)
        err = FL_FAIL(FL_ERR_INVALID, "backend '%s' is unknown", options->backend ? options->backend : "");
fail:
    fl_backend_close(run.ref);
    return err;
}
