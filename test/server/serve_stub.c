#include "server/serve_stub.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "server/http_client.h"

void stub_options(fl_serve_options *options, const char *const *command) {
    fl_serve_options_default(options);
    options->http.port = 0;
    options->log_fd = -1;
    options->link.settings.model_path = "build/models/spark-66m";
    options->link.command = command;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

void stub_wait_ready(int32_t port) {
    double until_s = fl_now_s() + 30;
    for (int status = 0; status != 200; nap()) {
        if (fl_now_s() > until_s) fail_msg("the server does not become ready");
        reply r = http_get(port, "/health");
        status = r.status;
        reply_free(&r);
    }
}

fl_serve *stub_serve(const fl_serve_options *options) {
    fl_serve *serve = NULL;
    if (fl_serve_open(options, &serve) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    stub_wait_ready(fl_serve_port(serve));
    return serve;
}

void stub_wait_idle(int32_t port) {
    double until_s = fl_now_s() + 30;
    while (http_metric(port, "firstlight:num_requests_running") > 0) {
        if (fl_now_s() > until_s) fail_msg("the worker is not idle");
        nap();
    }
}
