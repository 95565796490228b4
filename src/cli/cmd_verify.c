/* verify: is the checkpoint whole, and is it the one that the lock was made for? */
#include "cli/cli.h"
#include "cli/progress.h"
#include "model/checkpoint.h"
#include "model/fingerprint.h"

typedef struct verifying {
    const fl_options *options;
    fl_progress progress;
    json_t *mismatches; /* NULL without --json */
    int32_t n_mismatches;
} verifying;

static void on_bytes(void *context, int64_t done_bytes, int64_t total_bytes) {
    fl_progress_bytes(&((verifying *)context)->progress, done_bytes, total_bytes);
}

static void on_mismatch(void *context, const fl_lock_mismatch *m) {
    verifying *v = context;
    v->n_mismatches++;
    fl_progress_clear(&v->progress);
    if (v->mismatches)
        json_array_append_new(v->mismatches, json_pack("{s:s, s:s, s:s}", "field", m->field, "expected",
                                                       m->expected, "found", m->found));
    else printf("%s differs\n  expected %s\n  found    %s\n", m->field, m->expected, m->found);
}

/* Opening reads every value once. */
static fl_err check_whole(verifying *v, const char *dir) {
    fl_checkpoint *checkpoint = NULL;
    fl_progress_begin(&v->progress, "checking");
    FL_TRY(fl_checkpoint_open(dir, &checkpoint));
    fl_checkpoint_close(checkpoint);
    return FL_ERR_OK;
}

static fl_err verify(verifying *v) {
    const char *dir = v->options->operands.items[0];
    FL_TRY(check_whole(v, dir));
    fl_progress_begin(&v->progress, "hashing");
    if (v->options->write) return fl_lock_write(dir, on_bytes, v);
    if (!fl_lock_exists(dir))
        return FL_FAIL(FL_ERR_CONFIG,
                       "%s/%s: no such file; the checkpoint itself is whole, and --write makes it", dir,
                       FL_LOCK_NAME);
    return fl_lock_check(dir, &(fl_lock_calls){.progress = on_bytes, .mismatch = on_mismatch, .context = v});
}

int fl_cmd_verify(const fl_options *options) {
    verifying v = {.options = options, .mismatches = options->json ? json_array() : NULL};
    fl_progress_init(&v.progress, options);
    fl_err err = verify(&v);
    fl_progress_clear(&v.progress);
    int code = err == FL_ERR_OK ? 0 : fl_cli_fail("verify", err);
    if (options->json) {
        fl_err printed =
            fl_cli_print_json(json_pack("{s:b, s:o}", "ok", err == FL_ERR_OK, "mismatches", v.mismatches));
        if (printed != FL_ERR_OK && code == 0) code = fl_cli_fail("verify", printed);
    } else if (err == FL_ERR_OK) {
        printf(options->write ? "wrote %s/%s\n" : "%s matches %s\n", options->operands.items[0],
               FL_LOCK_NAME);
    }
    return code;
}
