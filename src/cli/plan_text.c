/* A plan on the terminal. */
#include <stdio.h>
#include <string.h>

#include "cli/format.h"
#include "cli/plan_report.h"

enum { BAR_COLUMNS = 30, PAGE_COLUMNS = 100 };

static fl_text32 bytes_text(double bytes) { /* in 10^9, as data sheets count */
    fl_text32 out = bytes < 1 ? (fl_text32){"0 "} : fl_format_si(bytes);
    strncat(out.s, "B", sizeof out.s - strlen(out.s) - 1);
    return out;
}

static void print_asked(const fl_plan_report *r) {
    const fl_plan_side *side = &r->sides[0];
    const fl_plan_task *t = &side->task;
    printf("%s, a prompt of %s tokens on %d x %s\n", r->model, fl_format_count(t->n_tokens).s, r->box.n_gpus,
           r->box.gpu->name);
    printf("weights %s, KV %s, attention %s", fl_plan_weights(&side->config), fl_kv_format_name(t->kv.format),
           side->attending.policy_text);
    if (side->density > 0) printf(" with %.3g%% of blocks (%s)", 100 * side->density, side->density_why);
    if (t->cached_tokens > 0) printf(", %s tokens cached", fl_format_count(t->cached_tokens).s);
    if (r->box.fp8_attention) printf(", attention in fp8 (firstlight has no kernel for it)");
    printf("\nA projection: ");
    if (r->box.efficiency < 1) printf("%.0f%% of the data sheet's", 100 * r->box.efficiency);
    else printf("the data sheet's");
    printf(" peaks, nothing overlapped. No time here was measured.\n");
}

static void print_work(const fl_plan_report *r) {
    const fl_hardware *gpu = r->box.gpu;
    const fl_plan_task *t = &r->sides[0].task;
    const char *weights = fl_plan_weights(&r->sides[0].config);
    double best = strcmp(weights, "fp8") == 0 ? gpu->fp8_flops_per_s : gpu->bf16_flops_per_s;
    double attention = fl_count_attention_flops(&r->whole), n = r->box.n_gpus;
    printf("\nthe prompt's own work\n");
    printf("  linear layers  %8sFLOP   %s at the %s peak of all, %sFLOP/s\n",
           fl_format_si(fl_count_linear_flops(&r->whole)).s, fl_format_seconds(r->linear_floor_s).s, weights,
           fl_format_si(best * n).s);
    printf("  attention      %8sFLOP   %s at the bf16 peak of all, %sFLOP/s\n", fl_format_si(attention).s,
           fl_format_seconds(attention / gpu->bf16_flops_per_s / n).s,
           fl_format_si(gpu->bf16_flops_per_s * n).s);
    printf("  weights        %8sB\n", fl_format_si((double)r->weights_bytes).s);
    printf("  KV             %8sB      %.0f bytes a token and layer\n", fl_format_si((double)r->kv_bytes).s,
           (double)fl_kv_page_bytes(&t->kv) / FL_KV_PAGE_TOKENS / t->kv.n_layers);
}

static void print_layout(const fl_plan_report *r, const fl_outcome *o, bool best) {
    const fl_share_memory *m = &o->share.memory;
    if (!o->possible) {
        printf("  %s\n", o->why);
        return;
    }
    printf("%c %-4s %9s %9s %9s %9s %9s %9s %9s%s %8s  %s\n", best ? '>' : ' ',
           fl_layout_name(o->share.layout, o->share.n_gpus), bytes_text((double)m->weights).s,
           bytes_text((double)m->kv).s, bytes_text((double)m->activations).s, bytes_text((double)m->lists).s,
           bytes_text((double)(m->scratch + m->logits + m->recordings)).s, bytes_text((double)m->exchange).s,
           bytes_text((double)m->total).s, o->fits ? " " : "!", fl_format_count(o->share.span_tokens).s,
           fl_format_seconds(o->ttft_s).s);
    (void)r;
}

static void print_layouts(const fl_plan_report *r) {
    bool over = false;
    printf("\nmemory of each (%sB)%*srows of\n", fl_format_si((double)r->box.gpu->memory_bytes).s, 61, "");
    printf("       weights        KV  activat.     lists   scratch  exchange       all     a step  first "
           "token\n");
    for (int32_t i = 0; i < r->outcomes.n; i++) {
        print_layout(r, &r->outcomes.of[i], i == r->outcomes.best);
        over |= r->outcomes.of[i].possible && !r->outcomes.of[i].fits;
    }
    if (over) printf("  ! does not fit\n");
    if (r->box.n_gpus > 1)
        printf(
            "  tp: heads and columns cut, KV whole on every GPU; sp: the same, KV cut along the sequence;\n"
            "  cp: rows cut, all weights everywhere; ep: rows cut, experts spread\n");
}

static void print_stages(const fl_plan_report *r) {
    const fl_outcome *best = fl_plan_report_best(r);
    printf("\nwhere the time goes (%s, the slowest GPU)\n",
           fl_layout_name(best->share.layout, best->share.n_gpus));
    for (int32_t i = 0; i < FL_N_STAGES; i++) {
        const fl_stage_cost *s = &best->stages[i];
        if (s->time_s <= 0) continue;
        printf("  %-15s %12s  %s  %-13s ", fl_stage_name((fl_stage)i), fl_format_seconds(s->time_s).s,
               fl_format_bar(0, s->time_s / best->ttft_s, BAR_COLUMNS, " ").s, fl_bound_name(s->bound));
        if (i == FL_STAGE_COMM) printf("%sB received\n", fl_format_si(s->comm_bytes).s);
        else printf("%sFLOP, %sB\n", fl_format_si(s->cost.flops).s, fl_format_si(s->cost.bytes).s);
    }
    printf("  %-15s %12s  in %s step%s\n", "first token", fl_format_seconds(best->ttft_s).s,
           fl_format_count(best->share.n_steps).s, best->share.n_steps == 1 ? "" : "s");
}

static void print_indented(const char *head, const char *text) {
    printf("%s", head);
    fl_print_wrapped(stdout, text, (int)strlen(head), PAGE_COLUMNS);
}

static void print_pd(const fl_plan_report *r) {
    const fl_pd *pd = &r->pd;
    char line[FL_PLAN_LINE_BYTES];
    fl_plan_pd_verdict(r, line);
    printf("\nprefill on %d cards, decode on %d\n", pd->prefill_gpus, pd->decode_gpus);
    print_indented("  ", line);
    if (pd->two_copies_fit)
        printf("  first token after %s; KV of %sB travels in %s, layer by layer beside the prefill\n",
               fl_format_seconds(pd->two_copies_ttft_s).s, fl_format_si(pd->transfer_bytes).s,
               fl_format_seconds(pd->transfer_s).s);
    snprintf(line, sizeof line,
             "one copy over all %d cards, two schedules: %s; first token after %s idle, %s while decode has "
             "its %d "
             "cards' share",
             pd->prefill_gpus + pd->decode_gpus, pd->one_copy_fits ? "fits" : "does not fit",
             fl_format_seconds(fl_plan_report_best(r)->ttft_s).s, fl_format_seconds(pd->one_copy_ttft_s).s,
             pd->decode_gpus);
    print_indented("  ", line);
}

static void print_advice(const fl_plan_report *r) {
    bool enough = true, fits = r->advice.n > 0 && r->advice.of[0].fits;
    int32_t number = 0;
    char line[FL_PLAN_LINE_BYTES], head[64];
    if (r->advice.n == 0) return;
    printf("\nwhat would do\n");
    if (!r->advice.of[0].enough) printf("  nothing of what is known here\n");
    for (int32_t i = 0; i < r->advice.n; i++) {
        const fl_advice *a = &r->advice.of[i];
        if (fits && !a->fits) continue; /* no help where others are */
        if (enough && !a->enough) printf("not enough alone\n");
        enough = a->enough;
        fl_plan_advice_line(r, a, line);
        snprintf(head, sizeof head, "  %2d %12s  ", ++number,
                 a->fits ? fl_format_seconds(a->ttft_s).s : "does not fit");
        print_indented(head, line);
        if (*fl_plan_advice_caution(a)) printf("%*s(%s)\n", (int)strlen(head), "", fl_plan_advice_caution(a));
    }
}

static void print_next(const fl_plan_report *r) {
    printf("\nnext: ");
    if (r->feasible && r->goal_s > 0)
        printf("measure it, kernels reach 60-95%% of these peaks: firstlight bench prefill\n");
    else if (r->feasible) printf("say when the first token has to be there: --ttft 3s\n");
    else if (r->advice.n > 0 && r->advice.of[0].enough)
        printf("choose one of these; --policy, --kv, --cached and --gpus plan with it\n");
    else printf("a smaller model, a shorter --context or other --gpus\n");
}

void fl_plan_print(const fl_plan_report *r) {
    char line[FL_PLAN_LINE_BYTES];
    print_asked(r);
    print_work(r);
    print_layouts(r);
    print_stages(r);
    if (r->has_pd) print_pd(r);
    if (fl_plan_note(r, line)) {
        printf("\n");
        print_indented("note: ", line);
    }
    fl_plan_verdict(r, line);
    printf("\n");
    print_indented("verdict: ", line);
    if (!r->feasible && r->goal_s > 0) {
        fl_plan_ceiling(r, line);
        print_indented("ceiling: ", line);
    }
    print_advice(r);
    print_next(r);
    printf("roofs: %s\n", r->box.gpu->source);
}
