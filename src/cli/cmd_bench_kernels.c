/* bench kernels: single ops at the sizes that models give them, beside what the machine does at most. */
#include <stdlib.h>

#include "cli/bench_kernel.h"
#include "cli/cli.h"
#include "cli/format.h"

static void print_row(const fl_kernel_row *r) {
    if (r->time_s <= 0) {
        printf("%-26s did not run: %s\n", r->name, r->refusal);
        return;
    }
    printf("%-26s %-19s %9s %8sFLOP/s %8sB/s %4.0f%% of %s\n", r->name, r->op, fl_format_seconds(r->time_s).s,
           fl_format_si(r->flops / r->time_s).s, fl_format_si(r->bytes / r->time_s).s,
           100 * r->floor_s / r->time_s, fl_format_seconds(r->floor_s).s);
    printf("%26s %s\n", "", r->shape);
}

static void print_text(const fl_kernel_bench *b) {
    printf("%s: %sFLOP/s (%s product), %sB/s measured now%s\n", b->be->name,
           fl_format_si(b->roof.flops_per_s).s, b->roof.format, fl_format_si(b->roof.bytes_per_s).s,
           b->be->device ? "" : "; sizes for a CPU, far below a model's");
    printf("FLOPs of unmasked pairs only; the roof of fp8 products is twice that of bf16\n\n");
    for (int32_t i = 0; i < b->n_rows; i++) print_row(&b->rows[i]);
}

static json_t *row_json(const fl_kernel_bench *b, const fl_kernel_row *r) {
    if (r->time_s <= 0) return json_pack("{s:s, s:s}", "case", r->name, "refusal", r->refusal);
    return json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "case",
                     r->name, "op", r->op, "shape", r->shape, "time_s", r->time_s, "least_s", r->least_s,
                     "most_s", r->most_s, "flops", r->flops, "bytes", r->bytes, "flops_per_s",
                     r->flops / r->time_s, "bytes_per_s", r->bytes / r->time_s, "floor_s", r->floor_s,
                     "roof_fraction", r->floor_s / r->time_s, "roof_flops_per_s", r->roof_flops_per_s,
                     "roof_bytes_per_s", b->roof.bytes_per_s);
}

static fl_err print_json(const fl_kernel_bench *b) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < b->n_rows; i++) json_array_append_new(rows, row_json(b, &b->rows[i]));
    return fl_cli_print_json(json_pack("{s:s, s:b, s:s, s:f, s:f, s:o}", "backend", b->be->name, "device",
                                       b->be->device, "roof_format", b->roof.format, "roof_flops_per_s",
                                       b->roof.flops_per_s, "roof_bytes_per_s", b->roof.bytes_per_s, "rows",
                                       rows));
}

static fl_err bench(const fl_options *o, fl_kernel_bench *b) {
    FL_TRY(fl_kernel_bench_open(o->kernel_backend, (int32_t)o->threads, (uint64_t)o->seed, b));
    b->only = o->only_kernels;
    FL_TRY(fl_kernel_attend_cases(b));
    FL_TRY(fl_kernel_product_cases(b));
    FL_TRY(fl_kernel_row_cases(b));
    if (b->n_rows > 0) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INVALID, "--only: no case has '%s' in its name", o->only_kernels);
}

/* What was measured before a failure is printed too. */
int fl_cmd_bench_kernels(const fl_options *options) {
    fl_kernel_bench b = {0};
    fl_err err = bench(options, &b);
    int code = err == FL_ERR_OK ? 0 : fl_cli_fail("bench kernels", err);
    if (b.n_rows > 0 && options->json) err = print_json(&b);
    else if (b.n_rows > 0) print_text(&b);
    fl_kernel_bench_close(&b);
    return code == 0 && err != FL_ERR_OK && options->json ? fl_cli_fail("bench kernels", err) : code;
}
