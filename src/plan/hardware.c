#include "plan/hardware.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define GB (INT64_C(1000000000))
#define T  1e12
#define G  1e9

/* CPUs: FLOP/s are base clock x cores x FLOP a cycle, bytes/s are channels x transfers x 8 bytes, memory is one
 * module of 64 GB a channel, which is what one buys and no property of the CPU. */
static const fl_hardware table[] = {
    {"H20", 96 * GB, 4.0 * T, 148 * T, 296 * T, 450 * G, 8, false,
     "HGX H20 specification of server makers: 96 GB HBM3, 4.0 TB/s, 148 TFLOPS bf16, 296 fp8, NVLink 900 "
     "GB/s"},
    {"H100", 80 * GB, 3.35 * T, 989.4 * T, 1978.9 * T, 450 * G, 8, false,
     "NVIDIA H100 data sheet, SXM: 80 GB, 3.35 TB/s, 1,979 bf16 and 3,958 fp8 TFLOPS with sparsity, NVLink "
     "900 "
     "GB/s"},
    {"H200", 141 * GB, 4.8 * T, 989.4 * T, 1978.9 * T, 450 * G, 8, false,
     "NVIDIA H200 data sheet, SXM: 141 GB, 4.8 TB/s, 1,979 bf16 and 3,958 fp8 TFLOPS with sparsity, NVLink "
     "900 "
     "GB/s"},
    {"H800", 80 * GB, 3.35 * T, 989.4 * T, 1978.9 * T, 200 * G, 8, false,
     "as H100 SXM, with NVLink 400 GB/s (HGX H800 specification of server makers)"},
    {"A100", 80 * GB, 2.039 * T, 312 * T, 0, 300 * G, 8, false,
     "NVIDIA A100 data sheet, SXM 80 GB: 2,039 GB/s, 312 TFLOPS bf16, NVLink 600 GB/s; no fp8"},
    {"B200", 180 * GB, 8.0 * T, 2250 * T, 4500 * T, 900 * G, 8, false,
     "NVIDIA HGX B200 data sheet, an eighth of it: 180 GB, 8 TB/s, 4.5 bf16 and 9 fp8 PFLOPS with sparsity, "
     "NVLink "
     "1.8 TB/s"},
    {"L40S", 48 * GB, 0.864 * T, 362.05 * T, 733 * T, 32 * G, 8, false,
     "NVIDIA L40S data sheet: 48 GB GDDR6, 864 GB/s, 733 bf16 and 1,466 fp8 TFLOPS with sparsity, PCIe 4.0 "
     "x16"},
    {"EPYC-9654", 768 * GB, 460.8 * G, 14.7 * T, 0, 0, 1, true,
     "AMD EPYC 9654 product page: 96 cores, 2.4 GHz, 12 channels DDR5-4800; 64 bf16 FLOP a cycle (Zen 4)"},
    {"EPYC-9755", 768 * GB, 576 * G, 44.2 * T, 0, 0, 1, true,
     "AMD EPYC 9755 product page: 128 cores, 2.7 GHz, 12 channels DDR5-6000; 128 bf16 FLOP a cycle (Zen 5)"},
    {"Xeon-8480", 512 * GB, 307.2 * G, 14.3 * T, 0, 0, 1, true,
     "Intel Xeon Platinum 8480+ product page: 56 cores, 2.0 GHz, 8 channels DDR5-4800; 128 bf16 FLOP a cycle "
     "with "
     "AVX-512 (its AMX units, which firstlight does not use, have more)"},
};
enum { N_KINDS = sizeof table / sizeof *table };

const fl_hardware *fl_hardware_at(size_t i) {
    return i < N_KINDS ? &table[i] : NULL;
}

static const fl_hardware *find(const char *name) {
    for (size_t i = 0; i < N_KINDS; i++)
        if (strcasecmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

static fl_err unknown(const char *text) {
    char names[256];
    size_t n = 0;
    for (size_t i = 0; i < N_KINDS && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? ", " : "", table[i].name);
    return FL_FAIL(FL_ERR_INVALID,
                   "machine '%s' is unknown: expected one of %s, or several of them as in 8xH20", text,
                   names);
}

fl_err fl_machine_parse(const char *text, fl_machine *out) {
    const char *name = text;
    long n = 1;
    if (text[0] == '-' || (text[0] >= '0' && text[0] <= '9')) {
        char *end;
        n = strtol(text, &end, 10);
        if (*end != 'x' && *end != 'X') return unknown(text);
        name = end + 1;
        if (n < 1 || n > FL_MACHINE_MAX)
            return FL_FAIL(FL_ERR_INVALID, "machine '%s': expected 1 to %d of them", text, FL_MACHINE_MAX);
    }
    out->kind = find(name);
    out->n = (int32_t)n;
    return out->kind ? FL_ERR_OK : unknown(text);
}
