/* The harness's own state, shared by its files. */
#ifndef FL_OPCHECK_OPCHECK_PRIVATE_H
#define FL_OPCHECK_OPCHECK_PRIVATE_H

#include <setjmp.h>

#include "opcheck/opcheck_case.h"

enum {
    OC_SAMPLES_MAX = 25,
    OC_NAME_BYTES = 160,
    OC_FAULTS_SHOWN = 3,
    OC_PAGE_BYTES = 4096,
    OC_FENCES_MAX = 256
};

/* An op table whose ops are waited for, and repeated. */
typedef struct oc_waiting {
    fl_op_table table; /* first: the entries find the rest through it */
    const fl_op_table *real;
    oc_run *run;
} oc_waiting;

typedef struct oc_private {
    const fl_opcheck_options *options;
    fl_opcheck_row *row; /* of the current op and backend */
    char name[OC_NAME_BYTES];
    bool in_case;
    int32_t faults; /* of the current case */
    uint64_t random;
    uint8_t *memory; /* one arena, reset by every case */
    int64_t memory_bytes, memory_used;
    bool device;             /* the backend under test is one */
    oc_waiting waiting[2];   /* the op tables of `be` and `one` on a device */
    uint8_t *before, *after; /* what the memory held, for repeats */
    jmp_buf out_of_memory;
    uint8_t *fences[OC_FENCES_MAX]; /* pages of the current case that may not be touched */
    int32_t n_fences;
    int32_t n_samples; /* of the current timing, -1 = none yet */
    double sample_s[OC_SAMPLES_MAX], sample_start_s, timing_start_s;
    double timed_s; /* of the row: sum of medians, and what was done in them */
    fl_cost timed_cost;
} oc_private;

static const int64_t oc_memory_bytes = (int64_t)8 << 30; /* address space */

void oc_case_end(oc_run *run);

/* Memory of the cases: the host's, with pages that fault; for a device, memory that both sides touch, and ops that wait
 * for themselves. Given back in any case. */
fl_err oc_take_memory(oc_run *run);
void oc_give_memory(oc_run *run);

#endif
