/* The worker thread: takes the live requests, admits what fits, runs steps. */
#include "engine/schedule.h"

enum { RUN_MAX = 4096 };

/* The worker looks at no request any more; those whose owners closed them meanwhile go. Under the lock. */
static void release(fl_engine *e) {
    for (fl_request **link = &e->requests; *link;) {
        fl_request *r = *link;
        r->held = false;
        if (r->closed) {
            *link = r->next;
            fl_request_free(r);
        } else {
            link = &r->next;
        }
    }
}

/* Live requests, oldest first, into run[], held until the next call. Waits while there is none and the disk tier has
 * nothing to do. False: the engine closes. */
static bool gather(fl_engine *e, fl_request **run, int32_t *n) {
    *n = 0;
    pthread_mutex_lock(&e->lock);
    release(e);
    for (;;) {
        for (fl_request *r = e->requests; r && *n < RUN_MAX; r = r->next) {
            if (r->phase == FL_PHASE_DONE) continue;
            r->held = true;
            run[(*n)++] = r;
        }
        bool moves = fl_disk_tier_busy(e->tier, e->prefix) && !e->lost[0];
        if (*n > 0 || e->closing || moves) break;
        pthread_cond_wait(&e->work, &e->lock);
    }
    bool goes_on = !e->closing;
    pthread_mutex_unlock(&e->lock);
    return goes_on;
}

static void end_all(fl_engine *e, fl_request **run, int32_t n) {
    for (int32_t i = 0; i < n; i++) fl_request_finish(run[i], FL_FINISH_CANCELLED, FL_ERR_OK);
    pthread_mutex_lock(&e->lock);
    release(e);
    pthread_mutex_unlock(&e->lock);
}

void *fl_worker_main(void *argument) {
    fl_engine *e = argument;
    static _Thread_local fl_request *run[RUN_MAX];
    int32_t n;
    fl_trace_set_lane(0);
    fl_engine_enter_device(e);
    while (gather(e, run, &n)) {
        if (fl_engine_end_lost(e, run, n)) continue;
        fl_disk_tier_pump(e);
        n = fl_schedule_admit(e, run, n);
        if (n > 0) fl_step_run(e, run, n);
        else if (e->tier) fl_disk_tier_wait(e->tier);
    }
    end_all(e, run, n);
    return NULL;
}
