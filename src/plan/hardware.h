/* What machines can do at best, from their makers' data sheets: the roofs of a plan. Nothing here was measured,
 * and no kernel reaches all of it: `plan --measure` has what this machine does. */
#ifndef FL_PLAN_HARDWARE_H
#define FL_PLAN_HARDWARE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One GPU, or one CPU with all its cores. FLOP/s are of dense products (half of what sheets give "with sparsity"). */
typedef struct fl_hardware {
    const char *name;
    int64_t memory_bytes;      /* GB of the sheet are 10^9 bytes */
    double memory_bytes_per_s; /* of that memory */
    double bf16_flops_per_s;
    double fp8_flops_per_s;  /* 0 = it has no units for fp8: those products run as bf16 */
    double link_bytes_per_s; /* to its neighbours, each way: half of what sheets add up; 0 = none */
    int32_t box;             /* of these in a usual machine */
    bool cpu;
    const char *source; /* where the numbers come from */
} fl_hardware;

/* Several alike. */
typedef struct fl_machine {
    const fl_hardware *kind;
    int32_t n;
} fl_machine;

enum { FL_MACHINE_MAX = 4096 };

/* "8xH20", "H200", "2xH100": case does not matter. FL_ERR_INVALID: no such name (detail lists all), or no number
 * from 1 to FL_MACHINE_MAX. */
fl_err fl_machine_parse(const char *text, fl_machine *out);

/* Entry i of the table; NULL behind the last. */
const fl_hardware *fl_hardware_at(size_t i);

#endif
