#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli/ladder.h"

/* Long enough that no step is cut for the streams' sake. */
static const double no_bound_s = 60;

typedef struct listing {
    fl_ladder_stage *out, now;
    int32_t n;
} listing;

static fl_err add(listing *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

static fl_err add(listing *l, const char *format, ...) {
    va_list values;
    if (l->n == FL_LADDER_STAGES_MAX)
        return FL_FAIL(FL_ERR_INVALID, "--also: a ladder has at most %d rows", FL_LADDER_STAGES_MAX);
    va_start(values, format);
    vsnprintf(l->now.name, sizeof l->now.name, format, values);
    va_end(values);
    l->out[l->n++] = l->now;
    return FL_ERR_OK;
}

/* Positions for prompts beyond the trained length: by the options, else YaRN from the first row on. */
static void set_positions(const fl_ladder_about *a, fl_ladder_stage *s) {
    const fl_options *o = a->options;
    s->rope = o->rope;
    s->rope_factor = o->rope_factor;
    if (strcmp(o->rope, "model") != 0 || a->positions == 0 || o->ladder_tokens <= a->positions) return;
    s->rope = "yarn";
    s->rope_factor = ceil((double)o->ladder_tokens / (double)a->positions);
}

static fl_err add_policy(listing *l, const char *policy) {
    const char *before = l->now.policy;
    l->now.policy = policy;
    if (strcmp(before, "full") == 0) return add(l, "%s", policy);
    return add(l, "%s in place of %.*s", policy, (int)strcspn(before, ":"), before);
}

fl_err fl_ladder_stages(const fl_ladder_about *a, fl_ladder_stage *out, int32_t *n) {
    const fl_options *o = a->options;
    listing l = {.out = out,
                 .now = {.policy = "full",
                         .kv = "bf16",
                         .backend = o->backend,
                         .synthetic = o->synthetic,
                         .eager = a->device,
                         .decode_stall_s = no_bound_s}};
    set_positions(a, &l.now);
    bool extended = strcmp(l.now.rope, "model") != 0;
    if (extended) FL_TRY(add(&l, "full attention, KV in bf16, %s x%g", l.now.rope, l.now.rope_factor));
    else FL_TRY(add(&l, "full attention, KV in bf16"));
    if (a->fp8_weights) {
        l.now.backend = "cuda-w8a8";
        l.now.synthetic = "moonlight-16b-a3b-fp8";
        FL_TRY(add(&l, "FP8 weights and activations (W8A8)"));
    }
    l.now.kv = "int4";
    FL_TRY(add(&l, "KV in int4"));
    for (int32_t i = 0; i < o->also.n; i++) FL_TRY(add_policy(&l, o->also.items[i]));
    FL_TRY(add_policy(&l, o->ladder_policy));
    if (extended && strcmp(l.now.rope, "two-path") != 0) {
        l.now.rope = "two-path";
        FL_TRY(add(&l, "two-path positions in place of %s", out[0].rope));
    }
    if (a->device) {
        l.now.eager = false;
        FL_TRY(add(&l, "short steps as CUDA graphs"));
    }
    l.now.decode_stall_s = 0; /* the engine's own bound */
    FL_TRY(add(&l, "scheduling: steps cut for the decode streams"));
    l.now.reuse = true;
    FL_TRY(add(&l, "a second question about the same document (prefix reuse)"));
    *n = l.n;
    return FL_ERR_OK;
}

int32_t fl_ladder_last(const fl_ladder *l) {
    int32_t last = 0;
    for (int32_t i = 0; i < l->n_rows; i++)
        if (!l->rows[i].stage.reuse) last = i;
    return last;
}
