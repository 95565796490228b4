/* Reads CPUID and XCR0. Names are those of /proc/cpuinfo, so that a user can compare. */
#include "backend/cpuid.h"

#include <cpuid.h>
#include <stdint.h>
#include <string.h>

typedef enum leaf_reg { LEAF1_ECX, LEAF7_EBX, LEAF7_ECX, LEAF7_1_EAX, XCR0, N_LEAF_REGS } leaf_reg;

typedef struct feature {
    const char *name;
    fl_cpu_set set;
    leaf_reg reg;
    uint32_t mask; /* all these bits must be set */
} feature;

static const feature features[] = {
    {"fma", FL_CPU_AVX2, LEAF1_ECX, 1u << 12},
    {"avx", FL_CPU_AVX2, LEAF1_ECX, 1u << 28},
    {"f16c", FL_CPU_AVX2, LEAF1_ECX, 1u << 29},
    {"avx2", FL_CPU_AVX2, LEAF7_EBX, 1u << 5},
    {"os-ymm-state", FL_CPU_AVX2, XCR0, 0x06},
    {"avx512f", FL_CPU_AVX512, LEAF7_EBX, 1u << 16},
    {"avx512dq", FL_CPU_AVX512, LEAF7_EBX, 1u << 17},
    {"avx512bw", FL_CPU_AVX512, LEAF7_EBX, 1u << 30},
    {"avx512vl", FL_CPU_AVX512, LEAF7_EBX, 1u << 31},
    {"avx512vbmi", FL_CPU_AVX512, LEAF7_ECX, 1u << 1},
    {"avx512_bf16", FL_CPU_AVX512, LEAF7_1_EAX, 1u << 5},
    {"os-zmm-state", FL_CPU_AVX512, XCR0, 0xe6},
};

static void read_regs(uint32_t regs[N_LEAF_REGS]) {
    uint32_t eax, ebx, ecx, edx;
    const uint32_t osxsave = 1u << 27;
    memset(regs, 0, N_LEAF_REGS * sizeof *regs);
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) regs[LEAF1_ECX] = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        regs[LEAF7_EBX] = ebx;
        regs[LEAF7_ECX] = ecx;
    }
    if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) regs[LEAF7_1_EAX] = eax;
    if (regs[LEAF1_ECX] & osxsave) {
        __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
        regs[XCR0] = eax;
    }
}

static void append_name(char *text, size_t text_bytes, const char *name) {
    size_t used = strlen(text), need = strlen(name) + (used > 0);
    if (used + need + 1 > text_bytes) return;
    if (used > 0) strcat(text, " ");
    strcat(text, name);
}

bool fl_cpu_has(fl_cpu_set set, char *missing, size_t missing_bytes) {
    uint32_t regs[N_LEAF_REGS];
    bool all = true;
    read_regs(regs);
    if (missing_bytes > 0) missing[0] = 0;
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        const feature *f = &features[i];
        if (f->set > set || (regs[f->reg] & f->mask) == f->mask) continue;
        all = false;
        if (missing_bytes > 0) append_name(missing, missing_bytes, f->name);
    }
    return all;
}
