/* Who is let in. The bounds are on answers in flight, on prompt tokens that wait for their first token, and on the
 * predicted wait; all three are known before a byte of the prompt is tokenised. */
#include "server/front.h"

#include <math.h>
#include <string.h>

enum { QUEUE_CONTEXTS = 16 }; /* of prompt tokens that may wait, where no bound was given */

void fl_admission_open(fl_admission *a) {
    *a = (fl_admission){.n_requests = 0};
    pthread_mutex_init(&a->lock, NULL);
}

void fl_admission_close(fl_admission *a) {
    pthread_mutex_destroy(&a->lock);
}

static double cost_of(const fl_link_status *status, int64_t n_tokens) {
    return status->has_info ? fl_link_prefill_s(&status->load, n_tokens) : 0;
}

static int32_t bin_of(const fl_engine_load *load, double cost_s) {
    int32_t bin = 0;
    while (bin + 1 < load->n_bins && cost_s >= load->bin_end_s[bin]) bin++;
    return bin;
}

/* What the engine last said is up to a second old; what is in flight here is not. Needs the lock. */
static double wait_of(const fl_admission *a, const fl_engine_load *load, double cost_s) {
    fl_engine_load now = *load;
    memcpy(now.bin_queued_s, a->queued_s, sizeof now.bin_queued_s);
    return now.n_bins > 0 ? fl_load_wait_s(&now, cost_s) : a->queued_s[0];
}

double fl_admission_wait_s(fl_front *front, int64_t n_tokens) {
    fl_link_status status;
    fl_worker_link_status(front->link, &status);
    double cost_s = cost_of(&status, n_tokens);
    pthread_mutex_lock(&front->admission.lock);
    double wait_s = wait_of(&front->admission, &status.load, cost_s);
    pthread_mutex_unlock(&front->admission.lock);
    return wait_s;
}

static bool refuse(fl_front *front, fl_counter which, double after_s, fl_api_error *error,
                   double *retry_after_s, const char *why) {
    fl_metrics_count(front->metrics, which);
    *retry_after_s = after_s < 1 ? 1 : after_s > 3600 ? 3600 : ceil(after_s);
    (void)fl_api_error_set(error, which == FL_COUNTER_REJECTED_LOADING ? 503 : 429, NULL, NULL, "%s", why);
    return false;
}

static bool worker_takes(fl_front *front, const fl_link_status *status, fl_api_error *error,
                         double *retry_after_s) {
    if (status->state == FL_LINK_READY) return true;
    const char *why = status->state == FL_LINK_LOADING ? "the model is being loaded"
                      : status->state == FL_LINK_RESTARTING
                          ? "the worker is being restarted"
                          : "the worker does not start; see the server's log";
    return refuse(front, FL_COUNTER_REJECTED_LOADING, 5, error, retry_after_s, why);
}

/* Needs the lock. */
static bool fits(fl_front *front, const fl_ticket *more, const fl_link_status *status, fl_api_error *error,
                 double *retry_after_s) {
    const fl_admission *a = &front->admission;
    const fl_front_limits *l = &front->limits;
    int64_t contexts = status->has_info ? QUEUE_CONTEXTS * status->info.ctx_tokens : 0;
    int64_t tokens_max = l->tokens_max > 0 ? l->tokens_max : contexts;
    double wait_s = wait_of(a, &status->load, more->cost_s);
    if (a->n_requests + more->n_requests > l->requests_max)
        return refuse(front, FL_COUNTER_REJECTED_QUEUE, wait_s, error, retry_after_s,
                      "too many requests are in flight; try again later");
    if (tokens_max > 0 && a->n_tokens > 0 && a->n_tokens + more->n_tokens > tokens_max)
        return refuse(front, FL_COUNTER_REJECTED_TOKENS, wait_s, error, retry_after_s,
                      "too many prompt tokens are waiting; try again later");
    if (l->wait_max_s > 0 && wait_s > l->wait_max_s)
        return refuse(front, FL_COUNTER_REJECTED_WAIT, wait_s - l->wait_max_s, error, retry_after_s,
                      "the predicted wait is longer than this server allows; try again later");
    return true;
}

/* Needs the lock. */
static void add(fl_admission *a, const fl_ticket *t, int sign) {
    a->n_requests += sign * t->n_requests;
    a->n_tokens += sign * t->n_tokens;
    a->queued_s[t->bin] += sign * t->left_s;
    if (a->queued_s[t->bin] < 1e-9) a->queued_s[t->bin] = 0; /* sums of differences */
}

/* `old`, if there is one, makes room for `ticket`, and stays if that is refused. */
static bool enter(fl_front *front, const fl_ticket *old, const fl_ticket *ticket,
                  const fl_link_status *status, fl_api_error *error, double *retry_after_s) {
    fl_admission *a = &front->admission;
    pthread_mutex_lock(&a->lock);
    if (old) add(a, old, -1);
    bool in = fits(front, ticket, status, error, retry_after_s);
    if (in) add(a, ticket, 1);
    else if (old) add(a, old, 1);
    pthread_mutex_unlock(&a->lock);
    return in;
}

static fl_ticket make_ticket(const fl_link_status *status, int32_t n_requests, int64_t n_tokens) {
    double cost_s = cost_of(status, n_tokens);
    return (fl_ticket){.n_requests = n_requests,
                       .n_tokens = n_tokens,
                       .bin = bin_of(&status->load, cost_s),
                       .cost_s = cost_s,
                       .left_s = cost_s};
}

bool fl_admission_enter(fl_front *front, int64_t n_tokens, fl_ticket *out, fl_api_error *error,
                        double *retry_after_s) {
    fl_link_status status;
    fl_worker_link_status(front->link, &status);
    if (!worker_takes(front, &status, error, retry_after_s)) return false;
    *out = make_ticket(&status, 1, n_tokens);
    return enter(front, NULL, out, &status, error, retry_after_s);
}

bool fl_admission_settle(fl_front *front, int32_t n_requests, int64_t n_tokens, fl_ticket *ticket,
                         fl_api_error *error, double *retry_after_s) {
    fl_link_status status;
    fl_worker_link_status(front->link, &status);
    if (!worker_takes(front, &status, error, retry_after_s)) return false; /* it ended while the body came */
    fl_ticket exact = make_ticket(&status, n_requests, n_tokens);
    if (!enter(front, ticket, &exact, &status, error, retry_after_s)) return false;
    *ticket = exact;
    return true;
}

void fl_admission_progress(fl_front *front, fl_ticket *ticket, double fraction) {
    fl_ticket now = *ticket;
    now.left_s = fraction >= 1 ? 0 : ticket->cost_s * (1 - fraction);
    if (fraction >= 1) now.n_tokens = 0;
    pthread_mutex_lock(&front->admission.lock);
    add(&front->admission, ticket, -1);
    add(&front->admission, &now, 1);
    *ticket = now;
    pthread_mutex_unlock(&front->admission.lock);
}

void fl_admission_leave(fl_front *front, fl_ticket *ticket) {
    pthread_mutex_lock(&front->admission.lock);
    add(&front->admission, ticket, -1);
    pthread_mutex_unlock(&front->admission.lock);
    *ticket = (fl_ticket){.n_requests = 0};
}
