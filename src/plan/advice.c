#include "plan/advice.h"

#include <stdlib.h>

enum { TILE_ROWS = FL_ATTN_LIST_ROWS };

/* ---- fewer tokens ---- */

/* A prompt of which only some tokens are computed. */
typedef enum fewer { FEWER_CACHED, FEWER_KEPT } fewer;

static fl_err time_of(const fl_plan_task *task, const fl_box *box, fewer how, int64_t computed,
                      fl_outcome *out) {
    fl_plan_task part = *task;
    fl_outcomes all;
    if (how == FEWER_CACHED) part.cached_tokens = task->n_tokens - computed;
    else part.n_tokens = computed;
    if (part.question_tokens >= computed) part.question_tokens = 0;
    FL_TRY(fl_outcomes_of(&part, box, &all));
    *out = *fl_outcomes_best(&all);
    return FL_ERR_OK;
}

/* More tokens never take less time: by halves. */
static fl_err most_tokens(const fl_plan_task *task, const fl_box *box, double ttft_s, fewer how,
                          int64_t *out) {
    int64_t low = 0, high = (task->n_tokens - task->cached_tokens) / TILE_ROWS; /* in tiles */
    int64_t rest = how == FEWER_CACHED ? task->n_tokens % TILE_ROWS : 0;        /* caches hold whole tiles */
    fl_outcome outcome;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        FL_TRY(time_of(task, box, how, middle * TILE_ROWS + rest, &outcome));
        if (outcome.ttft_s <= ttft_s) low = middle;
        else high = middle - 1;
    }
    *out = low > 0 ? low * TILE_ROWS + rest : 0;
    return FL_ERR_OK;
}

/* All layouts at every length would take long, and the best one hardly changes: the one that is best now. */
static fl_err fix_layout(const fl_plan_task *task, const fl_box *box, fl_box *out) {
    fl_outcomes all;
    FL_TRY(fl_outcomes_of(task, box, &all));
    *out = *box;
    if (box->n_gpus > 1) out->layout = fl_layout_name(fl_outcomes_best(&all)->share.layout, box->n_gpus);
    return FL_ERR_OK;
}

static fl_err fewer_tokens(const fl_plan_task *task, const fl_box *box, double ttft_s, fewer how,
                           int64_t *out) {
    fl_box fixed;
    FL_TRY(fix_layout(task, box, &fixed));
    return most_tokens(task, &fixed, ttft_s, how, out);
}

fl_err fl_advice_computed(const fl_plan_task *task, const fl_box *box, double ttft_s, int64_t *out) {
    return fewer_tokens(task, box, ttft_s, FEWER_CACHED, out);
}

fl_err fl_advice_kept(const fl_plan_task *task, const fl_box *box, double ttft_s, int64_t *out) {
    return fewer_tokens(task, box, ttft_s, FEWER_KEPT, out);
}

/* ---- the list ---- */

static void set_outcome(const fl_goal *goal, const fl_outcome *o, fl_advice *a) {
    a->fits = o->fits;
    a->ttft_s = o->ttft_s;
    a->enough = o->fits && (goal->ttft_s <= 0 || o->ttft_s <= goal->ttft_s);
}

static fl_advice *add(fl_advice_list *list, fl_change change, const fl_variant *setting) {
    fl_advice *a = &list->of[list->n < FL_ADVICE_MAX ? list->n++ : FL_ADVICE_MAX - 1];
    *a = (fl_advice){.change = change, .setting = setting};
    return a;
}

/* A prefix that is there already, or kept tokens, under the goal's own settings or a variant's. */
static fl_err add_fewer(const fl_goal *goal, const fl_variant *setting, fewer how, fl_advice_list *list) {
    const fl_plan_task *task = setting ? setting->task : goal->task;
    fl_box box = *goal->box;
    fl_outcome outcome;
    int64_t computed;
    box.fp8_attention |= setting && setting->fp8_attention;
    FL_TRY(fix_layout(task, &box, &box));
    FL_TRY(most_tokens(task, &box, goal->ttft_s, how, &computed));
    if (computed == 0) return FL_ERR_OK;
    FL_TRY(time_of(task, &box, how, computed, &outcome));
    fl_advice *a = add(list, how == FEWER_CACHED ? FL_CHANGE_CACHED : FL_CHANGE_KEEP, setting);
    a->tokens = how == FEWER_CACHED ? task->n_tokens - computed : computed;
    a->share = (double)a->tokens / (double)task->n_tokens;
    set_outcome(goal, &outcome, a);
    return FL_ERR_OK;
}

static fl_err on_gpus(const fl_goal *goal, int32_t n_gpus, fl_outcome *out) {
    fl_outcomes all;
    fl_box box = *goal->box;
    box.n_gpus = n_gpus;
    box.layout = NULL;
    fl_err err = fl_outcomes_of(goal->task, &box, &all);
    if (err != FL_ERR_OK) return err;
    *out = *fl_outcomes_best(&all);
    return FL_ERR_OK;
}

static bool reaches(const fl_goal *goal, const fl_outcome *o) {
    return o->fits && (goal->ttft_s <= 0 || o->ttft_s <= goal->ttft_s);
}

/* The fewest machines of usual size: doubled until it is enough, then by halves between the last two. */
static fl_err add_gpus(const fl_goal *goal, fl_advice_list *list) {
    int32_t box = goal->box->gpu->box, had = (goal->box->n_gpus + box - 1) / box, low = had, high = had;
    fl_outcome outcome = {0}, found = {0};
    if (goal->box->gpu->link_bytes_per_s == 0) return FL_ERR_OK;
    do {
        low = high;
        high *= 2;
        if (high * box > FL_MACHINE_MAX) return FL_ERR_OK;
        FL_TRY(on_gpus(goal, high * box, &found));
    } while (!reaches(goal, &found));
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        FL_TRY(on_gpus(goal, middle * box, &outcome));
        if (reaches(goal, &outcome)) {
            high = middle;
            found = outcome;
        } else {
            low = middle;
        }
    }
    fl_advice *a = add(list, FL_CHANGE_GPUS, NULL);
    a->n_gpus = high * box;
    set_outcome(goal, &found, a);
    return FL_ERR_OK;
}

static fl_err add_setting(const fl_goal *goal, const fl_variant *v, fl_advice_list *list) {
    fl_outcomes all;
    fl_box box = *goal->box;
    box.fp8_attention |= v->fp8_attention;
    FL_TRY(fl_outcomes_of(v->task, &box, &all));
    set_outcome(goal, fl_outcomes_best(&all), add(list, FL_CHANGE_SETTING, v));
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

fl_err fl_advice_find(const fl_goal *goal, fl_advice_list *out) {
    out->n = 0;
    for (int32_t i = 0; i < goal->n_variants; i++) FL_TRY(add_setting(goal, &goal->variants[i], out));
    const fl_variant *beside = soonest(out);
    if (goal->ttft_s > 0) {
        FL_TRY(add_fewer(goal, NULL, FEWER_CACHED, out));
        FL_TRY(add_fewer(goal, NULL, FEWER_KEPT, out));
        if (beside) FL_TRY(add_fewer(goal, beside, FEWER_CACHED, out));
        if (beside) FL_TRY(add_fewer(goal, beside, FEWER_KEPT, out));
    }
    FL_TRY(add_gpus(goal, out));
    rank(out);
    return FL_ERR_OK;
}
