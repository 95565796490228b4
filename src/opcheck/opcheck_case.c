/* Cases: names and seeds, faults, random numbers, memory, timing. */
#include "opcheck/opcheck_case.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/order.h"
#include "opcheck/opcheck_private.h"

/* FNV-1a, then mixed: names that differ little must give unrelated seeds. */
static uint64_t hash_text(const char *text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
    return hash;
}

/* splitmix64 */
static uint64_t next_random(oc_run *run) {
    uint64_t z = run->private->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void oc_case_end(oc_run *run) {
    oc_private *p = run->private;
    if (!p->in_case) return;
    p->in_case = false;
    for (; p->n_fences > 0; p->n_fences--)
        mprotect(p->fences[p->n_fences - 1], OC_PAGE_BYTES, PROT_READ | PROT_WRITE);
    if (p->faults == 0) p->row->passed++;
    else if (p->faults > OC_FAULTS_SHOWN && p->options->log)
        fprintf(p->options->log, "     and %d more\n", p->faults - OC_FAULTS_SHOWN);
}

bool oc_case(oc_run *run, oc_kind kind, const char *format, ...) {
    oc_private *p = run->private;
    oc_case_end(run);
    if (p->options->bench ? kind != OC_BENCH : p->options->quick && kind != OC_CHECK) return false;
    va_list list;
    va_start(list, format);
    vsnprintf(p->name, sizeof p->name, format, list);
    va_end(list);
    p->random = p->options->seed ^ hash_text(p->name);
    p->in_case = true;
    p->faults = 0;
    p->memory_used = 0;
    p->n_samples = -1;
    p->row->cases++;
    return true;
}

void oc_fail(oc_run *run, const char *format, ...) {
    oc_private *p = run->private;
    FILE *log = p->options->log;
    if (++p->faults > OC_FAULTS_SHOWN || !log) return;
    fprintf(log, "FAIL %s on %s, --seed %" PRIu64 ": ", p->name, run->be->name, p->options->seed);
    va_list list;
    va_start(list, format);
    vfprintf(log, format, list);
    va_end(list);
    fprintf(log, "\n");
}

bool oc_ran(oc_run *run, fl_err err, bool must) {
    if (err != FL_ERR_OK && (must || err != FL_ERR_UNSUPPORTED)) oc_fail(run, "%s", fl_err_detail());
    return err == FL_ERR_OK;
}

void oc_refused(oc_run *run, fl_err err, const char *field, int line) {
    if (err == FL_ERR_OK) oc_fail(run, "line %d: wrong %s was accepted", line, field);
    else if (!strstr(fl_err_detail(), field))
        oc_fail(run, "line %d: wrong %s was refused as: %s", line, field, fl_err_detail());
}

void oc_cost(oc_run *run, fl_cost got, double flops, double bytes) {
    if (got.flops < flops || got.flops > flops) oc_fail(run, "flops %.17g, expected %.17g", got.flops, flops);
    if (got.bytes < bytes || got.bytes > bytes) oc_fail(run, "bytes %.17g, expected %.17g", got.bytes, bytes);
}

double oc_uniform(oc_run *run) {
    return (double)(next_random(run) >> 11) * 0x1p-53;
}

int32_t oc_below(oc_run *run, int32_t n) {
    return (int32_t)(oc_uniform(run) * n);
}

double oc_normal(oc_run *run) {
    double sum = -2;
    for (int32_t i = 0; i < 4; i++) sum += oc_uniform(run);
    return sum * 1.7320508075688772; /* the sum of four has variance 1/3 */
}

void *oc_memory(oc_run *run, int64_t bytes) {
    oc_private *p = run->private;
    int64_t start = p->memory_used, end = start + fl_align_up(bytes, 64);
    if (bytes < 0 || bytes > p->memory_bytes || end > p->memory_bytes) {
        oc_fail(run, "the case needs more than %lld bytes", (long long)p->memory_bytes);
        longjmp(p->out_of_memory, 1);
    }
    p->memory_used = end;
    memset(p->memory + start, 0, (size_t)bytes);
    return p->memory + start;
}

void *oc_given(oc_run *run, const void *from, int64_t bytes) {
    void *memory = oc_memory(run, bytes);
    memcpy(memory, from, (size_t)bytes);
    return memory;
}

void *oc_memory_fenced(oc_run *run, int64_t bytes) {
    oc_private *p = run->private;
    int64_t used = fl_align_up(bytes, 64);
    if (p->n_fences == OC_FENCES_MAX || p->device) return oc_memory(run, bytes);
    /* room to move the end to a page's end, and the page behind it */
    uint8_t *start = oc_memory(run, used + 2 * OC_PAGE_BYTES);
    int64_t end = fl_align_up(start + used - p->memory, OC_PAGE_BYTES);
    if (mprotect(p->memory + end, OC_PAGE_BYTES, PROT_NONE) != 0) oc_fail(run, "no fence behind an input");
    else p->fences[p->n_fences++] = p->memory + end;
    return p->memory + end - used;
}

bool oc_timing(oc_run *run, fl_cost cost) {
    oc_private *p = run->private;
    const int32_t samples_min = 5;
    const double enough_s = 0.3;
    if (!p->options->bench) return false;
    double now = fl_now_s();
    if (p->n_samples < 0) p->timing_start_s = now; /* the check has just warmed everything up */
    else p->sample_s[p->n_samples] = now - p->sample_start_s;
    p->n_samples++;
    bool enough = p->n_samples >= samples_min && now - p->timing_start_s > enough_s;
    if (!enough && p->n_samples < OC_SAMPLES_MAX) {
        p->sample_start_s = fl_now_s();
        return true;
    }
    double median_s = fl_upper_median(p->sample_s, p->n_samples);
    p->timed_s += median_s;
    p->timed_cost.bytes += cost.bytes;
    p->timed_cost.flops += cost.flops;
    p->n_samples = -1;
    if (p->options->log)
        fprintf(p->options->log, "%-10s %-60s %10.1f us %8.2f GB/s %8.2f GFLOP/s\n", run->be->name, p->name,
                median_s * 1e6, cost.bytes / median_s * 1e-9, cost.flops / median_s * 1e-9);
    return false;
}
