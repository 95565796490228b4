/* Deadlines, waits and lengths of steps: what follows from the policy's numbers alone. */
#include "sched/sched.h"

bool fl_sched_too_late(const fl_sched_policy *policy, const fl_sched_item *item, double deadline_s,
                       double left_s, double now_s) {
    return deadline_s > 0 && now_s - item->arrival_s + policy->deadline_trust * left_s > deadline_s;
}

double fl_sched_wait_s(const fl_sched_policy *policy, const double *queued_s, double cost_s) {
    int32_t bin = fl_sched_bin(policy, cost_s);
    double own_s = queued_s[bin] + cost_s, wait_s = queued_s[bin];
    for (int32_t b = 0; b < policy->n_bins; b++) {
        double share_s = own_s * policy->weight[b] / policy->weight[bin];
        if (b == bin) continue;
        wait_s += policy->kind == FL_SCHED_FCFS || queued_s[b] < share_s ? queued_s[b] : share_s;
    }
    return wait_s;
}

double fl_sched_step_s(const fl_sched_policy *policy, fl_sched_beside beside) {
    if (beside == FL_SCHED_ALONE) return policy->idle_step_s;
    bool stall = beside == FL_SCHED_ANSWERS && policy->stall_s < policy->quantum_s;
    return stall ? policy->stall_s : policy->quantum_s;
}
