/* The memory an engine reserves at start, and what `inspect --memory` shows: one sum for both. */
#ifndef FL_PLAN_MEMORY_PLAN_H
#define FL_PLAN_MEMORY_PLAN_H

#include "plan/dry_run.h"

enum {
    FL_TAIL_ROWS_MAX = 256,                     /* tail rows of one step, decode rows included */
    FL_DECODE_ROWS_MAX = 64,                    /* requests that decode in one step */
    FL_SCORED_ROWS_MAX = 128,                   /* prompt rows of one step whose logits are handed out */
    FL_DRAWN_ROWS_MAX = 1 + FL_DECODE_ROWS_MAX, /* rows of one step that a token is drawn for */
    FL_LOGIT_ROWS_MAX = FL_DRAWN_ROWS_MAX + FL_SCORED_ROWS_MAX,
    FL_SPAN_TOKENS_DEFAULT = 4096, /* document rows of one step */
    FL_DRIVER_PAGE_BYTES = 2 << 20 /* a device's driver takes memory in multiples of it */
};

typedef struct fl_memory_sizes {
    int64_t ctx_tokens; /* longest session */
    int64_t kv_tokens;  /* in the pool */
    int32_t span_tokens;
    int32_t requests_max; /* at once; 0 = as many as a step takes */
    int32_t spare_pages;  /* behind the pool's, for rows that nobody reads */
    bool eager;           /* no steps are recorded, though the backend could */
    fl_kv_shape kv;       /* as the dry run was opened with */
} fl_memory_sizes;

typedef struct fl_memory_plan {
    int64_t weights_bytes;
    int64_t kv_bytes;    /* of the pool and, behind it, of a prompt's means: */
    int64_t means_bytes; /* of its blocks, with block lists; else 0 */
    int64_t
        scratch_bytes; /* of the step that needs most: a whole span and a full tail at the context's end */
    int32_t step_rows; /* of that step */
    int64_t logits_bytes;
    int64_t
        list_bytes; /* of a row that a token is drawn for: marks, biases, bans and mask, as long as can be */
    int64_t draw_bytes; /* of all such rows, and of their tokens */
    int64_t
        recordings_bytes; /* of as many as are kept, which the driver takes when they are made: not reserved, but
                               * to be left free (fl_memory_plan_check_free) */
    int64_t total_bytes;
} fl_memory_plan;

/* The span that is used where span_tokens is asked for (0 = the default): never longer than the context's pages. */
int32_t fl_memory_plan_span(int64_t ctx_tokens, int32_t span_tokens);

fl_err fl_memory_plan_make(fl_dry_run *dry, const fl_config *config, const fl_memory_sizes *sizes,
                           fl_memory_plan *out);

/* Of as many recordings as are kept, each of the step that has most ops: document rows, a tail, an answer. To be
 * rounded up to the driver's pages. */
fl_err fl_memory_plan_recordings(fl_dry_run *dry, int64_t *bytes);

/* What a device has left once all else is reserved. FL_ERR_NOMEM with the sums: recordings would not fit. */
fl_err fl_memory_plan_check_free(const fl_memory_plan *plan, int64_t free_bytes);

#endif
