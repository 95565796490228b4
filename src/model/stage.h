/* What the host made of a step, where the ops of a device can read it. */
#ifndef FL_MODEL_STAGE_H
#define FL_MODEL_STAGE_H

#include "model/forward.h"

enum { FL_STEP_SEQS_MAX = 256 };

typedef struct fl_stage {
    fl_step step; /* what the layers run */
    fl_kv_rows seqs[FL_STEP_SEQS_MAX];
    /* A step that may be a replay: positions of tail rows are read where seqs[].pos_at says, all up to the ceiling, and
     * small things are gathered on the host and uploaded together. */
    bool recordable;
    int32_t ceiling;
    uint8_t *base,
        *host; /* the gathered bytes: where they go, where they are; host NULL: each goes by itself */
    int64_t host_bytes, mark; /* mark: of the arena, where they begin */
} fl_stage;

/* Copies ids, rotation tables and page tables into memory of the arena and takes room for the logits there; on host
 * backends stage->step is *step. On the counting backend nothing is copied, but the room is counted. */
fl_err fl_stage_open(fl_backend *be, const fl_step *step, const fl_config *config, fl_arena *arena,
                     fl_stage *stage);

/* Brings those logits back from which no token is drawn and waits for the step; its first fault. */
fl_err fl_stage_close(fl_backend *be, const fl_step *step, const fl_config *config, const fl_stage *stage);

#endif
