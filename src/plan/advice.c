#include "plan/advice.h"

enum { TILE_ROWS = FL_ATTN_LIST_ROWS };

/* ---- fewer tokens ---- */

/* A prompt of which only some tokens are computed. */
typedef enum fewer { FEWER_CACHED, FEWER_KEPT } fewer;

static fl_plan_task part_of(const fl_plan_task *task, fewer how, int64_t computed) {
    fl_plan_task part = *task;
    if (how == FEWER_CACHED) part.cached_tokens = task->n_tokens - computed;
    else part.n_tokens = computed;
    if (part.question_tokens >= computed) part.question_tokens = 0;
    return part;
}

/* Seconds of a task on a box. */
typedef fl_err time_fn(const fl_plan_task *task, const fl_box *box, double *out);

static fl_err planned_time(const fl_plan_task *task, const fl_box *box, double *out) {
    fl_outcomes all;
    FL_TRY(fl_outcomes_of(task, box, &all));
    *out = fl_outcomes_best(&all)->ttft_s;
    return FL_ERR_OK;
}

/* Of one product's FLOPs at the peaks of all GPUs. */
static double product_time(const fl_box *box, fl_rate_kind op, const fl_cost *cost) {
    fl_bound bound;
    const fl_cost flops = {.flops = cost->flops, .fp8_flops = cost->fp8_flops};
    return fl_box_op_time(box, op, &flops, &bound) / box->n_gpus;
}

static fl_err ceiling_time(const fl_plan_task *task, const fl_box *box, double *out) {
    fl_count c;
    FL_TRY(fl_layout_whole(task, &c));
    *out = product_time(box, FL_RATE_matmul, &c.matmul) +
           product_time(box, FL_RATE_matmul_head, &c.matmul_head) +
           product_time(box, FL_RATE_moe_route, &c.moe_route) +
           product_time(box, FL_RATE_attn_prefill, &c.attn_prefill) +
           product_time(box, FL_RATE_attn_absorbed, &c.attn_absorbed);
    return FL_ERR_OK;
}

/* More tokens never take less time: by halves. */
static fl_err most_tokens(const fl_goal *goal, fewer how, time_fn *time, int64_t *out) {
    const fl_plan_task *task = goal->task;
    int64_t low = 0, high = (task->n_tokens - task->cached_tokens) / TILE_ROWS; /* in tiles */
    int64_t rest = how == FEWER_CACHED ? task->n_tokens % TILE_ROWS : 0;        /* caches hold whole tiles */
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        fl_plan_task part = part_of(task, how, middle * TILE_ROWS + rest);
        double time_s;
        FL_TRY(time(&part, goal->box, &time_s));
        if (time_s <= goal->ttft_s) low = middle;
        else high = middle - 1;
    }
    *out = low > 0 ? low * TILE_ROWS + rest : 0;
    return FL_ERR_OK;
}

fl_err fl_ceiling_of(const fl_plan_task *task, const fl_box *box, double ttft_s, fl_ceiling *out) {
    const fl_goal goal = {.task = task, .box = box, .ttft_s = ttft_s};
    fl_count whole;
    FL_TRY(fl_layout_whole(task, &whole));
    double peak = fl_box_linear_peak(box, task->config);
    out->linear_share = ttft_s * peak / fl_count_linear_flops(&whole);
    FL_TRY(most_tokens(&goal, FEWER_CACHED, ceiling_time, &out->computed_tokens));
    return most_tokens(&goal, FEWER_KEPT, ceiling_time, &out->kept_tokens);
}

/* ---- the list ---- */

static bool reaches(const fl_goal *goal, const fl_outcome *o) {
    return o->fits && (goal->ttft_s <= 0 || o->ttft_s <= goal->ttft_s);
}

static void add(const fl_advice *advice, const fl_goal *goal, const fl_outcome *o, fl_advice_list *list) {
    if (list->n == FL_ADVICE_MAX) return;
    fl_advice *a = &list->of[list->n++];
    *a = *advice;
    a->fits = o->fits;
    a->ttft_s = o->ttft_s;
    a->enough = reaches(goal, o);
}

static fl_err best_of(const fl_plan_task *task, const fl_box *box, fl_outcome *out) {
    fl_outcomes all;
    FL_TRY(fl_outcomes_of(task, box, &all));
    *out = *fl_outcomes_best(&all);
    return FL_ERR_OK;
}

/* The goal under another setting, or under its own. */
typedef struct aim {
    fl_goal goal;
    fl_box box;
    const fl_variant *setting; /* or NULL */
} aim;

static void set_aim(const fl_goal *goal, const fl_variant *setting, aim *out) {
    *out = (aim){.goal = *goal, .box = *goal->box, .setting = setting};
    out->goal.box = &out->box;
    if (!setting) return;
    out->goal.task = setting->task;
    if (!setting->fp8_attention) return;
    out->box.fp8_attention = true;
    fl_box_set_rates(&out->box);
}

/* A prefix that is there already, or kept tokens. All layouts at every length would take long, and the best one
 * hardly changes: the one that is best now. */
static fl_err add_fewer(const fl_goal *goal, const fl_variant *setting, fewer how, fl_advice_list *list) {
    aim to;
    fl_outcome outcome;
    int64_t computed, all = goal->task->n_tokens;
    set_aim(goal, setting, &to);
    FL_TRY(best_of(to.goal.task, &to.box, &outcome));
    if (!outcome.fits) return FL_ERR_OK;
    if (to.box.n_gpus > 1) to.box.layout = fl_layout_name(outcome.share.layout, to.box.n_gpus);
    FL_TRY(most_tokens(&to.goal, how, planned_time, &computed));
    if (computed == 0) return FL_ERR_OK;
    fl_plan_task part = part_of(to.goal.task, how, computed);
    FL_TRY(best_of(&part, &to.box, &outcome));
    fl_advice a = {.change = how == FEWER_CACHED ? FL_CHANGE_CACHED : FL_CHANGE_KEEP, .setting = setting};
    a.tokens = how == FEWER_CACHED ? all - computed : computed;
    a.share = (double)a.tokens / (double)all;
    add(&a, goal, &outcome, list);
    return FL_ERR_OK;
}

static fl_err on_gpus(const aim *to, int32_t n_gpus, fl_outcome *out) {
    fl_box box = to->box;
    box.n_gpus = n_gpus;
    box.layout = NULL;
    return best_of(to->goal.task, &box, out);
}

/* The fewest that are enough: doubled inside a box, then whole boxes, doubled until they are enough and by halves
 * between the last two. *n 0: not even FL_MACHINE_MAX. */
static fl_err fewest_gpus(const aim *to, int32_t *n, fl_outcome *out) {
    int32_t size = to->box.gpu->box, low = to->box.n_gpus / size, high = low > 0 ? low : 1;
    fl_outcome outcome;
    for (*n = 2 * to->box.n_gpus; *n < size; *n *= 2) {
        FL_TRY(on_gpus(to, *n, out));
        if (reaches(&to->goal, out)) return FL_ERR_OK;
    }
    *n = 0;
    if (low > 0) high *= 2;
    for (;; high *= 2) {
        if (high * size > FL_MACHINE_MAX) return FL_ERR_OK;
        FL_TRY(on_gpus(to, high * size, out));
        if (reaches(&to->goal, out)) break;
        low = high;
    }
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        FL_TRY(on_gpus(to, middle * size, &outcome));
        bool enough = reaches(&to->goal, &outcome);
        if (enough) *out = outcome;
        if (enough) high = middle;
        else low = middle;
    }
    *n = high * size;
    return FL_ERR_OK;
}

static fl_err add_gpus(const fl_goal *goal, const fl_variant *setting, fl_advice_list *list) {
    aim to;
    fl_outcome found;
    fl_advice a = {.change = FL_CHANGE_GPUS, .setting = setting};
    set_aim(goal, setting, &to);
    if (to.box.gpu->link_bytes_per_s == 0) return FL_ERR_OK;
    FL_TRY(fewest_gpus(&to, &a.n_gpus, &found));
    if (a.n_gpus > 0) add(&a, goal, &found, list);
    return FL_ERR_OK;
}

static fl_err add_setting(const fl_goal *goal, const fl_variant *v, fl_advice_list *list) {
    aim to;
    fl_outcome outcome;
    set_aim(goal, v, &to);
    FL_TRY(best_of(v->task, &to.box, &outcome));
    add(&(fl_advice){.change = FL_CHANGE_SETTING, .setting = v}, goal, &outcome, list);
    return FL_ERR_OK;
}

/* What is enough first; kinds in the order of the enum, but settings alone before kept tokens; then as found. */
static int rank_of(const fl_advice *a) {
    static const int ranks[] = {
        [FL_CHANGE_CACHED] = 0, [FL_CHANGE_SETTING] = 2, [FL_CHANGE_KEEP] = 3, [FL_CHANGE_GPUS] = 5};
    int beside = a->setting && a->change != FL_CHANGE_SETTING;
    return (a->enough ? 0 : 10) + ranks[a->change] + beside;
}

static void rank(fl_advice_list *list) {
    for (int32_t i = 1; i < list->n; i++) { /* insertion keeps equals in order */
        fl_advice moved = list->of[i];
        int32_t at = i;
        for (; at > 0 && rank_of(&list->of[at - 1]) > rank_of(&moved); at--) list->of[at] = list->of[at - 1];
        list->of[at] = moved;
    }
}

/* The sparsest of the settings, beside which fewer tokens are tried once more. */
static const fl_variant *soonest(const fl_advice_list *list) {
    const fl_advice *best = NULL;
    for (int32_t i = 0; i < list->n; i++) {
        const fl_advice *a = &list->of[i];
        if (a->change != FL_CHANGE_SETTING || a->setting->fp8_attention || !a->fits) continue;
        if (!best || a->ttft_s < best->ttft_s) best = a;
    }
    return best ? best->setting : NULL;
}

/* More GPUs to fit at all, where these are too few whatever the time. */
static fl_err add_gpus_to_fit(const fl_goal *goal, fl_advice_list *list) {
    fl_goal fit = *goal;
    fl_outcome now;
    FL_TRY(best_of(goal->task, goal->box, &now));
    if (now.fits || goal->ttft_s <= 0) return FL_ERR_OK;
    fit.ttft_s = 0;
    FL_TRY(add_gpus(&fit, NULL, list));
    if (list->n > 0 && list->of[list->n - 1].change == FL_CHANGE_GPUS) list->of[list->n - 1].enough = false;
    return FL_ERR_OK;
}

fl_err fl_advice_find(const fl_goal *goal, fl_advice_list *out) {
    out->n = 0;
    for (int32_t i = 0; i < goal->n_variants; i++) FL_TRY(add_setting(goal, &goal->variants[i], out));
    const fl_variant *beside = soonest(out);
    for (int i = 0; i < 2 && goal->ttft_s > 0; i++) {
        if (i == 1 && !beside) break;
        FL_TRY(add_fewer(goal, i == 1 ? beside : NULL, FEWER_CACHED, out));
        FL_TRY(add_fewer(goal, i == 1 ? beside : NULL, FEWER_KEPT, out));
    }
    FL_TRY(add_gpus(goal, NULL, out));
    if (beside) FL_TRY(add_gpus(goal, beside, out));
    FL_TRY(add_gpus_to_fit(goal, out));
    rank(out);
    return FL_ERR_OK;
}
