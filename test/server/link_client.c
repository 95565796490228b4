#include "server/link_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"

static const double PATIENCE_S = 60;
static const struct timespec nap = {.tv_nsec = 2000000};

void got_init(got *g) {
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
}

void got_free(got *g) {
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->changed);
}

void got_event(void *context, const fl_event *e, const fl_mark *marks, int32_t n_marks) {
    got *g = context;
    pthread_mutex_lock(&g->lock);
    g->late = g->late || g->n_done > 0;
    if (e->type == FL_EVENT_TOKEN && g->n_tokens < GOT_TOKENS) {
        g->tokens[g->n_tokens] = e->token;
        g->logprobs[g->n_tokens++] = e->logprob;
    }
    if (e->text) strncat(g->text, e->text, sizeof g->text - strlen(g->text) - 1);
    g->n_progress += e->type == FL_EVENT_PROGRESS;
    g->last = *e;
    g->n_marks = n_marks;
    for (int32_t i = 0; i < n_marks; i++)
        if (strcmp(marks[i].name, "first_token") == 0 || strcmp(marks[i].name, "decode") == 0)
            g->marked_tokens += marks[i].tokens;
    if (e->err_detail) snprintf(g->detail, sizeof g->detail, "%s", e->err_detail);
    g->n_done += e->type == FL_EVENT_DONE;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void wait_for(got *g, int32_t n_tokens, int32_t n_progress, const char *what) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)PATIENCE_S;
    int code = 0;
    pthread_mutex_lock(&g->lock);
    while (g->n_done == 0 && (g->n_tokens < n_tokens || g->n_progress < n_progress) && code == 0)
        code = pthread_cond_timedwait(&g->changed, &g->lock, &until);
    pthread_mutex_unlock(&g->lock);
    if (code != 0) fail_msg("no %s in %.0f s", what, PATIENCE_S);
}

void got_wait_tokens(got *g, int32_t n) {
    wait_for(g, n, 0, "token");
}

void got_wait_progress(got *g) {
    wait_for(g, 0, 1, "progress");
}

void got_wait_done(got *g) {
    wait_for(g, INT32_MAX, 0, "end");
    assert_false(g->late);
}

void link_submit(fl_worker_link *link, const int32_t *ids, int64_t n, int64_t max_tokens, got *g) {
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = n;
    p.max_tokens = max_tokens;
    p.ignore_eos = true;
    if (fl_worker_link_submit(link, &p, got_event, g, &g->id) != FL_ERR_OK)
        fail_msg("submit: %s", fl_err_detail());
}

static fl_link_status wait_status(fl_worker_link *link, fl_link_state state, int32_t n_restarts) {
    fl_link_status s;
    for (double end_s = fl_now_s() + PATIENCE_S; fl_now_s() < end_s; nanosleep(&nap, NULL)) {
        fl_worker_link_status(link, &s);
        if (s.state == state && s.n_restarts >= n_restarts) return s;
        if (s.state == FL_LINK_FAILED) fail_msg("the link gave up: %s", s.error);
    }
    fail_msg("state %d after %.0f s, %d restarts: %s", (int)s.state, PATIENCE_S, s.n_restarts, s.error);
    return s;
}

fl_link_status link_wait(fl_worker_link *link, fl_link_state state) {
    return wait_status(link, state, 0);
}

fl_link_status link_wait_restarts(fl_worker_link *link, int32_t n) {
    return wait_status(link, FL_LINK_READY, n);
}

void link_wait_pages(fl_worker_link *link) {
    fl_link_status s;
    for (double end_s = fl_now_s() + PATIENCE_S; fl_now_s() < end_s; nanosleep(&nap, NULL)) {
        fl_worker_link_status(link, &s);
        if (s.load.n_running + s.load.n_waiting == 0 &&
            s.load.kv_pages_free + s.load.kv_pages_cached == s.load.kv_pages)
            return;
    }
    fail_msg("%d of %d pages free, %d cached", s.load.kv_pages_free, s.load.kv_pages, s.load.kv_pages_cached);
}

void link_no_child(void) {
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}
