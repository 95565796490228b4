#include "sched/sched.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

void fl_sched_policy_default(fl_sched_policy *policy) {
    *policy = (fl_sched_policy){
        .kind = FL_SCHED_BINS,
        .n_bins = 4,
        /* A question, a file, a book, a repository. */
        .bound_s = {1, 8, 64, INFINITY},
        .weight = {4, 2, 1, 1},
        .quantum_s = 1,
        .stall_s = 0.25,
        .idle_step_s = 0,
        .overhead_max = 0.05,
        .stall_overhead_max = 0.25,
        .aging_s = 10,
        .together_s = 0.25,
        .overtake_s = 5,
        .deadline_trust = 0.8,
    };
}

static const char *const kinds[] = {[FL_SCHED_BINS] = "bins", [FL_SCHED_FCFS] = "fcfs"};

bool fl_sched_kind_parse(const char *name, fl_sched_kind *out) {
    for (int32_t i = 0; i < (int32_t)(sizeof kinds / sizeof *kinds); i++) {
        if (strcmp(name, kinds[i]) != 0) continue;
        *out = (fl_sched_kind)i;
        return true;
    }
    return false;
}

const char *fl_sched_kind_name(fl_sched_kind kind) {
    return kinds[kind];
}

fl_err fl_sched_open(const fl_sched_policy *policy, fl_sched *out) {
    *out = (fl_sched){.policy = *policy, .broken = -1};
    if (policy->n_bins < 1 || policy->n_bins > FL_SCHED_BINS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "n_bins: expected 1..%d, found %d", FL_SCHED_BINS_MAX, policy->n_bins);
    for (int32_t i = 0; i < policy->n_bins; i++) {
        if (i > 0 && !(policy->bound_s[i] > policy->bound_s[i - 1]))
            return FL_FAIL(FL_ERR_INVALID, "bound_s[%d]: expected more than %g, found %g", i,
                           policy->bound_s[i - 1], policy->bound_s[i]);
        if (!(policy->weight[i] >= 0.01 && policy->weight[i] <= 100))
            return FL_FAIL(FL_ERR_INVALID, "weight[%d]: expected 0.01..100, found %g", i, policy->weight[i]);
    }
    const struct {
        const char *name;
        double value, low;
    } times[] = {{"quantum_s", policy->quantum_s, 1e-4},  {"stall_s", policy->stall_s, 1e-4},
                 {"idle_step_s", policy->idle_step_s, 0}, {"aging_s", policy->aging_s, 1e-3},
                 {"together_s", policy->together_s, 0},   {"overtake_s", policy->overtake_s, 0}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (!(times[i].value >= times[i].low && times[i].value <= 86400))
            return FL_FAIL(FL_ERR_INVALID, "%s: expected %g..86400, found %g", times[i].name, times[i].low,
                           times[i].value);
    return FL_ERR_OK;
}

int32_t fl_sched_bin(const fl_sched_policy *policy, double cost_s) {
    int32_t bin = 0;
    while (bin < policy->n_bins - 1 && cost_s >= policy->bound_s[bin]) bin++;
    return bin;
}

/* How far from the best priority there is, after aging: 0 = competes. Halved each aging_s, so that the largest distance
 * an int32_t has is gone after 33 of them. */
static int64_t distance(const fl_sched *s, const fl_sched_item *item, int32_t best, double now_s) {
    int64_t apart = (int64_t)item->priority - best;
    double waited = (now_s - item->arrival_s) / s->policy.aging_s;
    if (waited >= 40) return 0;
    return waited > 0 ? apart >> (int32_t)waited : apart;
}

bool fl_sched_before(const fl_sched *s, const fl_sched_item *a, const fl_sched_item *b, double now_s) {
    if (s->policy.kind == FL_SCHED_BINS) {
        int32_t best = a->priority < b->priority ? a->priority : b->priority;
        int64_t apart_a = distance(s, a, best, now_s), apart_b = distance(s, b, best, now_s);
        if (apart_a != apart_b) return apart_a < apart_b;
    }
    return a->arrival_s < b->arrival_s;
}

/* ---- the next item of each bin ---- */

typedef struct picking {
    const fl_sched_item *const *items;
    int32_t n;
    int32_t best; /* priority */
    double now_s;
    int32_t oldest[FL_SCHED_BINS_MAX], head[FL_SCHED_BINS_MAX]; /* -1 = the bin has nothing to do */
} picking;

static bool goes_first(const fl_sched_item *a, const fl_sched_item *b) {
    if (a->started != b->started) return a->started;
    if (a->cost_s != b->cost_s) return a->cost_s > b->cost_s;
    return a->arrival_s < b->arrival_s;
}

static void find_heads(const fl_sched *s, picking *p) {
    const fl_sched_item *const *items = p->items;
    for (int32_t b = 0; b < s->policy.n_bins; b++) p->oldest[b] = p->head[b] = -1;
    for (int32_t i = 1; i < p->n; i++)
        if (items[i]->priority < p->best) p->best = items[i]->priority;
    for (int32_t i = 0; i < p->n; i++) {
        int32_t *oldest = &p->oldest[items[i]->bin];
        if (distance(s, items[i], p->best, p->now_s) > 0) continue;
        if (*oldest < 0 || items[i]->arrival_s < items[*oldest]->arrival_s) *oldest = i;
    }
    for (int32_t i = 0; i < p->n; i++) {
        int32_t oldest = p->oldest[items[i]->bin], *head = &p->head[items[i]->bin];
        if (oldest < 0 || distance(s, items[i], p->best, p->now_s) > 0) continue;
        if (items[i]->arrival_s > items[oldest]->arrival_s + s->policy.together_s) continue;
        if (*head < 0 || goes_first(items[i], items[*head])) *head = i;
    }
}

/* ---- deficit round robin ---- */

static void take_turn(fl_sched *s, int32_t bin) {
    s->turn = bin;
    s->deficit_s[bin] += s->policy.quantum_s * s->policy.weight[bin];
}

/* A bin that has just got work is next, with one turn, so that one that is seldom used does not wait for all others.
 * The turn that it breaks into goes on behind it: else frequent breaks would keep the round from going round. */
static void wake_bins(fl_sched *s, const picking *p) {
    int32_t woken = -1;
    for (int32_t b = s->policy.n_bins - 1; b >= 0; b--) {
        bool active = p->head[b] >= 0;
        if (active && !s->active[b]) woken = b;
        if (!active || !s->active[b]) s->deficit_s[b] = 0;
        s->active[b] = active;
    }
    if (woken < 0) return;
    if (s->broken < 0) s->broken = s->turn;
    take_turn(s, woken);
}

static void next_turn(fl_sched *s) {
    int32_t next = s->broken;
    s->broken = -1;
    if (next >= 0 && s->active[next] && s->deficit_s[next] > 0) {
        s->turn = next;
        return;
    }
    next = (next >= 0 ? next : s->turn) + 1;
    while (!s->active[next % s->policy.n_bins]) next++;
    take_turn(s, next % s->policy.n_bins);
}

static int32_t pick_first(const picking *p) {
    int32_t first = p->n > 0 ? 0 : -1;
    for (int32_t i = 1; i < p->n; i++)
        if (p->items[i]->arrival_s < p->items[first]->arrival_s) first = i;
    return first;
}

int32_t fl_sched_pick(fl_sched *s, const fl_sched_item *const *items, int32_t n, double now_s) {
    picking p = {.items = items, .n = n, .now_s = now_s};
    if (s->policy.kind == FL_SCHED_FCFS || n == 0) return pick_first(&p);
    p.best = items[0]->priority;
    find_heads(s, &p);
    wake_bins(s, &p);
    /* Ends: some bin is active, and every round adds to its deficit. */
    while (!s->active[s->turn] || s->deficit_s[s->turn] <= 0) next_turn(s);
    return p.head[s->turn];
}

void fl_sched_charge(fl_sched *s, int32_t bin, double seconds) {
    const double most = 1000 * s->policy.quantum_s; /* what a step may owe: no prediction locks a bin out */
    s->deficit_s[bin] -= seconds < most ? seconds : most;
}
