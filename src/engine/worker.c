/* The worker thread: takes the live requests in order of arrival, admits what fits, runs steps. */
#include "base/clock.h"
#include "engine/engine.h"

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

/* Live requests, oldest first, into run[], held until the next call. Waits while there is none. False: the engine
 * closes. */
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
        if (*n > 0 || e->closing) break;
        pthread_cond_wait(&e->work, &e->lock);
    }
    bool goes_on = !e->closing;
    pthread_mutex_unlock(&e->lock);
    return goes_on;
}

/* Predicted FLOPs of a prompt from `pos` on; 0 if unknown: only the bar's scale is lost. */
static double predict(fl_engine *e, int32_t pos, const fl_request *r) {
    const fl_dry_prompt prompt = {
        .pos = pos, .document_end = r->document_end, .n_tokens = r->n_prompt, .span_tokens = e->span_tokens};
    fl_count count;
    return fl_dry_run_prompt(e->dry, &prompt, &count) == FL_ERR_OK ? count.total.flops : 0;
}

static void admit(fl_engine *e, fl_request *r) {
    fl_err err = fl_session_prepare(r->session, r);
    if (err == FL_ERR_AGAIN) return; /* stays queued; pages come back when others end */
    r->cost_total = predict(e, r->session->n_tokens, r);
    fl_request_add_mark(r, "queue", r->submit_s, 0);
    pthread_mutex_lock(&e->lock);
    r->phase = FL_PHASE_PREFILL;
    r->progressed = true;
    fl_request_tell(r);
    pthread_mutex_unlock(&e->lock);
}

/* Ends cancelled requests and admits queued ones in order: nobody overtakes one that waits for pages. */
static int32_t prepare(fl_engine *e, fl_request **run, int32_t n) {
    int32_t n_ready = 0;
    bool waiting = false;
    for (int32_t i = 0; i < n; i++) {
        fl_request *r = run[i];
        if (atomic_load(&r->cancel)) {
            fl_request_finish(r, FL_FINISH_CANCELLED, FL_ERR_OK);
            continue;
        }
        if (r->phase == FL_PHASE_QUEUED && !waiting) admit(e, r);
        if (r->phase == FL_PHASE_QUEUED) waiting = true;
        else run[n_ready++] = r;
    }
    return n_ready;
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
    while (gather(e, run, &n)) {
        if (fl_engine_end_lost(e, run, n)) continue;
        n = prepare(e, run, n);
        if (n > 0) fl_step_run(e, run, n);
    }
    end_all(e, run, n);
    return NULL;
}
