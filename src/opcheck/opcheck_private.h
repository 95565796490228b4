/* The harness's own state, shared by its files. */
#ifndef FL_OPCHECK_OPCHECK_PRIVATE_H
#define FL_OPCHECK_OPCHECK_PRIVATE_H

#include <setjmp.h>

#include "backend/timed.h"
#include "opcheck/opcheck_case.h"

enum {
    OC_SAMPLES_MAX = 25,
    OC_NAME_BYTES = 160,
    OC_FAULTS_SHOWN = 3,
    OC_PAGE_BYTES = 4096,
    OC_FENCES_MAX = 256
};

typedef struct oc_private {
    const fl_opcheck_options *options;
    fl_opcheck_row *row; /* of the current op and backend */
    char name[OC_NAME_BYTES];
    bool in_case;
    int32_t faults; /* of the current case */
    uint64_t random;
    uint8_t *memory; /* one arena, reset by every case */
    int64_t memory_bytes, memory_used;
    bool device; /* the backend under test is one */
    fl_timed waiting[2];
    jmp_buf out_of_memory;
    uint8_t *fences[OC_FENCES_MAX]; /* pages of the current case that may not be touched */
    int32_t n_fences;
    int32_t n_samples; /* of the current timing, -1 = none yet */
    double sample_s[OC_SAMPLES_MAX], sample_start_s, timing_start_s;
    double timed_s; /* of the row: sum of medians, and what was done in them */
    fl_cost timed_cost;
} oc_private;

static const int64_t oc_memory_bytes = (int64_t)8 << 30;        /* address space */
static const int64_t oc_device_memory_bytes = (int64_t)1 << 30; /* pinned */

void oc_case_end(oc_run *run);

#endif
