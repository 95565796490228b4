/* What this CPU and its operating system can run. */
#ifndef FL_BACKEND_CPUID_H
#define FL_BACKEND_CPUID_H

#include <stdbool.h>
#include <stddef.h>

/* Instruction sets a backend may need, each a fixed group: NONE any x86-64; AVX2 with FMA and F16C; AVX512
 * with F, BW, VL, DQ, VBMI and BF16, and all of AVX2. Both also need the operating system to save the wide
 * registers. */
typedef enum fl_cpu_set { FL_CPU_NONE, FL_CPU_AVX2, FL_CPU_AVX512 } fl_cpu_set;

/* True if all of `set` is there. Otherwise `missing` (of `missing_bytes`, may be NULL with 0) holds the names
 * of what is not, space-separated, cut to fit. */
bool fl_cpu_has(fl_cpu_set set, char *missing, size_t missing_bytes);

#endif
