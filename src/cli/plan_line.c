/* The sentences of a plan, the same on the terminal, in JSON and on the page. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/format.h"
#include "cli/plan_report.h"

const char *fl_plan_weights(const fl_config *config) {
    return config->quantisation.type == FL_QUANTISATION_FP8 ? "fp8" : "bf16";
}

static void write_lack(const fl_plan_report *r, char line[FL_PLAN_LINE_BYTES]) {
    const fl_outcome *best = fl_plan_report_best(r);
    const fl_share_memory *m = &best->share.memory;
    double all = (double)r->box.n_gpus * (double)r->box.gpu->memory_bytes;
    if ((double)r->weights_bytes > all)
        snprintf(line, FL_PLAN_LINE_BYTES, "does not fit: the weights alone are %sB, %d x %s have %sB",
                 fl_format_si((double)r->weights_bytes).s, r->box.n_gpus, r->box.gpu->name,
                 fl_format_si(all).s);
    else
        snprintf(
            line, FL_PLAN_LINE_BYTES,
            "does not fit: the layout that needs least (%s) needs %sB on a GPU of %sB, %sB of them weights",
            fl_layout_name(best->share.layout, best->share.n_gpus), fl_format_si((double)m->total).s,
            fl_format_si((double)r->box.gpu->memory_bytes).s, fl_format_si((double)m->weights).s);
}

void fl_plan_verdict(const fl_plan_report *r, char line[FL_PLAN_LINE_BYTES]) {
    if (!r->fits) {
        write_lack(r, line);
        return;
    }
    if (r->goal_s <= 0) snprintf(line, FL_PLAN_LINE_BYTES, "fits");
    else if (r->ttft_s <= r->goal_s)
        snprintf(line, FL_PLAN_LINE_BYTES, "possible: a first token after %s is the floor, %s were asked for",
                 fl_format_seconds(r->ttft_s).s, fl_format_seconds(r->goal_s).s);
    else if (r->linear_floor_s > r->goal_s)
        snprintf(line, FL_PLAN_LINE_BYTES,
                 "impossible with all tokens: the linear layers alone are %sFLOP, %s at the peak of "
                 "%d x %s, "
                 "%.1f times the %s asked for",
                 fl_format_si(fl_count_linear_flops(&r->whole)).s, fl_format_seconds(r->linear_floor_s).s,
                 r->box.n_gpus, r->box.gpu->name, r->linear_floor_s / r->goal_s,
                 fl_format_seconds(r->goal_s).s);
    else
        snprintf(line, FL_PLAN_LINE_BYTES,
                 "impossible so: %s are the floor, %.1f times the %s asked for; most is %s",
                 fl_format_seconds(r->ttft_s).s, r->ttft_s / r->goal_s, fl_format_seconds(r->goal_s).s,
                 fl_stage_name(fl_plan_report_best(r)->largest));
}

void fl_plan_ceiling(const fl_plan_report *r, char line[FL_PLAN_LINE_BYTES]) {
    double n = (double)r->sides[0].task.n_tokens, computed = (double)r->ceiling.computed_tokens;
    snprintf(line, FL_PLAN_LINE_BYTES,
             "in %s these GPUs do at most the linear layers of %.1f%% of the tokens; with their attention, "
             "%.1f%% that "
             "are kept and attend one another, or the last %.2f%% behind a prefix that is cached",
             fl_format_seconds(r->goal_s).s, fmin(100, 100 * r->ceiling.linear_share),
             100 * (double)r->ceiling.kept_tokens / n, 100 * computed / n);
}

bool fl_plan_note(const fl_plan_report *r, char line[FL_PLAN_LINE_BYTES]) {
    if (r->positions == 0 || r->sides[0].task.n_tokens <= r->positions) return false;
    snprintf(
        line, FL_PLAN_LINE_BYTES,
        "the checkpoint can be trusted with %s positions: a longer prompt needs --rope and --rope-factor",
        fl_format_count(r->positions).s);
    return true;
}

static int write_side(const char *what, int32_t n, const fl_outcome *o, char *line, int room) {
    return snprintf(line, (size_t)room, "%s on %d: %sB a GPU (weights %sB, KV %sB)%s", what, n,
                    fl_format_si((double)o->share.memory.total).s,
                    fl_format_si((double)o->share.memory.weights).s,
                    fl_format_si((double)o->share.memory.kv).s, o->fits ? "" : ", does not fit");
}

void fl_plan_pd_verdict(const fl_plan_report *r, char line[FL_PLAN_LINE_BYTES]) {
    const fl_pd *pd = &r->pd;
    int n = snprintf(
        line, FL_PLAN_LINE_BYTES,
        "%s: ", pd->two_copies_fit ? "two copies of the weights fit" : "two copies of the weights: refused");
    n += write_side("prefill", pd->prefill_gpus, &pd->prefill, line + n, FL_PLAN_LINE_BYTES - n);
    n += snprintf(line + n, (size_t)(FL_PLAN_LINE_BYTES - n), "; ");
    n += write_side("decode", pd->decode_gpus, &pd->decode, line + n, FL_PLAN_LINE_BYTES - n);
    snprintf(line + n, (size_t)(FL_PLAN_LINE_BYTES - n), "; a GPU has %sB",
             fl_format_si((double)r->box.gpu->memory_bytes).s);
}

const char *fl_plan_advice_caution(const fl_advice *a) {
    switch (a->change) {
    case FL_CHANGE_CACHED:
        return a->setting ? a->setting->caution : "exact: the same document was read before";
    case FL_CHANGE_KEEP: return "changes answers; the scorer's own time is not in it";
    case FL_CHANGE_GPUS: return "the sheet's link is taken to reach all of them";
    case FL_CHANGE_SETTING: break;
    }
    return a->setting->caution;
}

void fl_plan_advice_line(const fl_plan_report *r, const fl_advice *a, char line[FL_PLAN_LINE_BYTES]) {
    const fl_plan_task *t = a->setting ? a->setting->task : &r->sides[0].task;
    int n = 0;
    switch (a->change) {
    case FL_CHANGE_CACHED:
        n = snprintf(line, FL_PLAN_LINE_BYTES, "a prefix hit of %.2f%%: %s of %s tokens cached",
                     100 * a->share, fl_format_count(a->tokens).s, fl_format_count(t->n_tokens).s);
        break;
    case FL_CHANGE_KEEP:
        n = snprintf(line, FL_PLAN_LINE_BYTES, "keep %.1f%% of the tokens: %s of %s", 100 * a->share,
                     fl_format_count(a->tokens).s, fl_format_count(t->n_tokens).s);
        break;
    case FL_CHANGE_GPUS:
        n = snprintf(line, FL_PLAN_LINE_BYTES, "%d x %s, %.3g times as many", a->n_gpus, r->box.gpu->name,
                     (double)a->n_gpus / r->box.n_gpus);
        break;
    case FL_CHANGE_SETTING: n = snprintf(line, FL_PLAN_LINE_BYTES, "%s", a->setting->text); break;
    }
    if (a->setting && a->change != FL_CHANGE_SETTING)
        snprintf(line + n, (size_t)(FL_PLAN_LINE_BYTES - n), ", with %s", a->setting->text);
}
