/* How a side of an evaluation is written: "full", "blocks:alpha=0.1 kv=int4 tail=sparse", "policy=full rope=two-path
 * rope-factor=4". Words are separated by spaces; each is KEY=VALUE, or a policy alone. */
#ifndef FL_EVAL_EVAL_VARIANT_H
#define FL_EVAL_EVAL_VARIANT_H

#include "base/err.h"

typedef struct fl_eval_variant {
    char *spec;  /* as written, but for spaces; owned */
    char *words; /* its words, each with a NUL behind; owned; what follows points into it, NULL = not said */
    const char *policy, *kv_dtype, *tail, *rope, *backend;
    const char *calibration; /* "" = none */
    double rope_factor;      /* 0 = not said */
    bool force_positions;
} fl_eval_variant;

/* Keys: policy, kv, tail, rope, rope-factor, calibration (a file, or "none"), force-positions (0 or 1),
 * backend. FL_ERR_INVALID: an unknown or repeated key, a bad number. What the values mean is the engine's business.
 * On success the caller closes *out. */
fl_err fl_eval_variant_parse(const char *spec, fl_eval_variant *out);
void fl_eval_variant_close(fl_eval_variant *variant);

/* Sets what was said; the settings borrow it. */
void fl_eval_variant_apply(const fl_eval_variant *variant, fl_settings *settings);

#endif
