/* serve: starts the server, waits for a signal, lets what runs come to its end. */
#include "server/serve.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/cli_answer.h"

static fl_err read_options(const fl_options *o, fl_serve_options *s) {
    const char *model = o->model ? o->model : o->operands.n > 0 ? o->operands.items[0] : NULL;
    if (!model || (o->model && o->operands.n > 0))
        return FL_FAIL(FL_ERR_INVALID, "expected one model: firstlight serve MODEL");
    fl_serve_options_default(s);
    FL_TRY(fl_ask_settings(o, o->serve_ctx, &s->link.settings));
    s->link.settings.model_path = model;
    s->link.settings.scheduling_policy = o->scheduling_policy;
    s->link.settings.max_step_s = o->step_max;
    s->http.host = o->host;
    s->http.port = (int32_t)o->port;
    s->http.connections_max = (int32_t)o->connections_max;
    s->names = o->names.items;
    s->n_names = o->names.n;
    s->keys = o->keys.items;
    s->n_keys = o->keys.n;
    s->key_file = o->key_file;
    s->hosts = o->hosts.items;
    s->n_hosts = o->hosts.n;
    s->body_bytes_max = o->body_bytes_max;
    s->requests_max = (int32_t)(o->seqs_max + o->queued_max);
    s->link.settings.running_max = (int32_t)o->seqs_max;
    s->tokens_max = o->queued_tokens_max;
    s->wait_max_s = o->wait_max;
    s->comment_s = o->comment_interval;
    s->answer_tokens_default = o->default_tokens;
    s->n_threads = (int)o->request_threads;
    s->log_json = strcmp(o->log_format, "json") == 0;
    s->log_debug = strcmp(o->log_level, "debug") == 0;
    s->notify_socket = o->notify_socket;
    return FL_ERR_OK;
}

/* The signals that end a server; blocked in all threads, fetched by this one. */
static void block_signals(sigset_t *ends) {
    sigemptyset(ends);
    sigaddset(ends, SIGTERM);
    sigaddset(ends, SIGINT);
    sigaddset(ends, SIGHUP);
    pthread_sigmask(SIG_BLOCK, ends, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* Whether one came within the time. */
static bool signal_within(const sigset_t *ends, double seconds) {
    struct timespec wait = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    return sigtimedwait(ends, NULL, &wait) > 0;
}

static fl_err serve_until_signal(fl_serve *serve, const sigset_t *ends, double drain_max_s) {
    while (!signal_within(ends, 0.25)) FL_TRY(fl_serve_failure(serve));
    fl_serve_drain(serve);
    double until_s = fl_now_s() + drain_max_s;
    while (fl_serve_busy(serve) > 0 && fl_now_s() < until_s)
        if (signal_within(ends, 0.05)) break;
    return FL_ERR_OK;
}

int fl_cmd_serve(const fl_options *options) {
    fl_serve_options serve_options;
    fl_serve *serve = NULL;
    sigset_t ends;
    fl_err err = read_options(options, &serve_options);
    if (err != FL_ERR_OK) return fl_cli_fail("serve", err);
    block_signals(&ends);
    err = fl_serve_open(&serve_options, &serve);
    if (err != FL_ERR_OK) return fl_cli_fail("serve", err);
    err = serve_until_signal(serve, &ends, options->drain_max);
    int code = err == FL_ERR_OK ? 0 : fl_cli_fail("serve", err);
    fl_serve_close(serve);
    return code;
}
