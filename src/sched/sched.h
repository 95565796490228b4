/* Which prompt gets the next step, and how much of it. Prompts are put into bins by predicted cost, bins share the
 * engine by deficit round robin, so a question never waits for a book to be read, and a book always gets its share.
 * Plain numbers in, plain numbers out: no engine, no threads, no clock. Seconds are predicted ones unless said
 * otherwise; `now_s` and arrivals are on one clock of the caller's. */
#ifndef FL_SCHED_SCHED_H
#define FL_SCHED_SCHED_H

#include <firstlight/firstlight.h>

enum { FL_SCHED_BINS_MAX = 8 };

typedef enum fl_sched_kind {
    FL_SCHED_BINS,
    FL_SCHED_FCFS, /* strictly in order of arrival, whatever the priority: the baseline */
} fl_sched_kind;

/* All that is tuned. fl_sched_policy_default has the values and their reasons. */
typedef struct fl_sched_policy {
    fl_sched_kind kind;
    int32_t n_bins;
    double bound_s[FL_SCHED_BINS_MAX]; /* a bin's prompts cost less than this; the last is infinite */
    double weight[FL_SCHED_BINS_MAX];  /* share of the engine, relative to other bins that have work */
    double quantum_s;                  /* a turn of a bin with weight 1; a step beside other requests */
    double stall_s;                    /* a prefill step beside running answers */
    double idle_step_s;                /* a step with nobody beside it; 0 = whole spans */
    double overhead_max;       /* limits of seconds yield where more of a step would go into what every */
    double stall_overhead_max; /* step repeats (keys are rebuilt); the second for stall_s */
    double aging_s;            /* waiting so long halves the distance to the best priority */
    double together_s;         /* prompts of a bin that arrive so close go longest first */
    double overtake_s;         /* a request that waits for pages is overtaken no longer than this */
    double deadline_trust;     /* share of a predicted cost that is believed before a request is given up */
} fl_sched_policy;

void fl_sched_policy_default(fl_sched_policy *policy);

/* "bins" or "fcfs". */
bool fl_sched_kind_parse(const char *name, fl_sched_kind *out);
const char *fl_sched_kind_name(fl_sched_kind kind);

/* A prompt that waits or is being computed. The caller's; cost_s is what it cost when it was put into its bin. */
typedef struct fl_sched_item {
    int32_t priority; /* lower = sooner */
    int32_t bin;
    double arrival_s;
    double cost_s;
    bool started; /* has had a step */
} fl_sched_item;

typedef struct fl_sched {
    fl_sched_policy policy;
    double deficit_s[FL_SCHED_BINS_MAX];
    bool active[FL_SCHED_BINS_MAX]; /* had work at the last pick */
    int32_t turn;                   /* bin */
    int32_t broken;                 /* bin whose turn a woken one broke into, or -1 */
} fl_sched;

/* FL_ERR_INVALID: names the field. */
fl_err fl_sched_open(const fl_sched_policy *policy, fl_sched *out);

int32_t fl_sched_bin(const fl_sched_policy *policy, double cost_s);

/* The item [n] that computes next, -1 for n = 0. One whose priority is not the best of all competes only once it has
 * aged; items of one bin go in order of arrival, together_s aside. */
int32_t fl_sched_pick(fl_sched *sched, const fl_sched_item *const *items, int32_t n, double now_s);

/* A bin was served for so long. */
void fl_sched_charge(fl_sched *sched, int32_t bin, double seconds);

/* The order in which requests are given pages: whether a goes before b. */
bool fl_sched_before(const fl_sched *sched, const fl_sched_item *a, const fl_sched_item *b, double now_s);

/* Whether a request can no longer have its first token in time. deadline_s: when, after arrival; 0 = none. left_s:
 * what is left of its prefill, were it alone from now on; 0 = not known. */
bool fl_sched_too_late(const fl_sched_policy *policy, const fl_sched_item *item, double deadline_s,
                       double left_s, double now_s);

/* Seconds until a new prompt of cost_s has its first token, less cost_s itself. queued_s [n_bins]: what prompts that
 * are there still need. While its bin works off what is ahead and then itself, every other bin gets its share at
 * most. */
double fl_sched_wait_s(const fl_sched_policy *policy, const double *queued_s, double cost_s);

/* What else the engine has to do beside a prompt's step. */
typedef enum fl_sched_beside { FL_SCHED_ALONE, FL_SCHED_OTHERS, FL_SCHED_ANSWERS } fl_sched_beside;

/* How long a step may take; 0 = no limit. */
double fl_sched_step_s(const fl_sched_policy *policy, fl_sched_beside beside);

#endif
