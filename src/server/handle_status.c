/* GET: how the server is. */
#include "base/hex.h"
#include "server/api_response.h"
#include "server/json_write.h"
#include "server/route.h"

#include <stdio.h>
#include <string.h>

enum { STATUS_BYTES_MAX = 64 << 10, METRICS_BYTES_MAX = 1 << 20, NAME_BYTES_MAX = 1024 };

static void answer_unready(fl_http_exchange *exchange, const fl_link_status *status) {
    fl_api_error error;
    const char *what = status->state == FL_LINK_LOADING      ? "the model is being loaded"
                       : status->state == FL_LINK_RESTARTING ? "the worker is being restarted"
                                                             : "the worker does not start";
    (void)fl_api_error_set(&error, 503, NULL, "unavailable", "%s: %.0f%%", what, 100 * status->load_fraction);
    fl_front_answer_error(exchange, &error, 5, 0);
}

static void answer_ok(fl_http_exchange *exchange) {
    fl_buffer out;
    fl_buffer_init(&out, STATUS_BYTES_MAX);
    fl_buffer_add_text(&out, "{\"status\":\"ok\"}");
    fl_front_answer(exchange, NULL, &out);
}

void fl_handle_health(fl_front *front, fl_http_exchange *exchange) {
    fl_link_status status;
    fl_worker_link_status(front->link, &status);
    if (status.state == FL_LINK_READY) answer_ok(exchange);
    else answer_unready(exchange, &status);
}

void fl_handle_ready(fl_front *front, fl_http_exchange *exchange) {
    fl_api_error error;
    if (!fl_http_draining(front->http)) {
        fl_handle_health(front, exchange);
        return;
    }
    (void)fl_api_error_set(&error, 503, NULL, "unavailable", "the server is being stopped");
    fl_front_answer_error(exchange, &error, 1, 0);
}

void fl_handle_version(fl_front *front, fl_http_exchange *exchange) {
    fl_buffer out;
    (void)front;
    fl_buffer_init(&out, STATUS_BYTES_MAX);
    fl_buffer_add_text(&out, "{\"version\":");
    fl_json_text(&out, fl_version());
    fl_buffer_add_text(&out, "}");
    fl_front_answer(exchange, NULL, &out);
}

static void read_gauges(fl_front *front, fl_gauges *out) {
    fl_link_status s;
    fl_http_load load;
    fl_worker_link_status(front->link, &s);
    fl_http_get_load(front->http, &load);
    int32_t held = s.load.kv_pages - s.load.kv_pages_free - s.load.kv_pages_cached;
    *out = (fl_gauges){.n_running = s.load.n_running,
                       .n_waiting = s.load.n_waiting,
                       .kv_usage = s.load.kv_pages > 0 ? (double)held / s.load.kv_pages : 0,
                       .kv_tokens = s.has_info ? s.info.kv_tokens : 0,
                       .prompt_tokens = s.prompt_tokens,
                       .cached_tokens = s.cached_tokens,
                       .computed_tokens = s.computed_tokens,
                       .answer_tokens = s.answer_tokens,
                       .disk_bytes = s.load.kv_disk_bytes,
                       .disk_pages_waiting = s.load.kv_disk_waiting,
                       .disk_pages_lost = s.load.kv_disk_lost,
                       .disk_pages_read = s.load.kv_disk_read,
                       .n_worker_restarts = s.n_restarts,
                       .ready = s.state == FL_LINK_READY,
                       .load_fraction = s.load_fraction,
                       .n_connections = load.connections,
                       .n_exchanges = load.exchanges,
                       .n_body_bytes = load.body_bytes,
                       .meters = s.meters,
                       .predicted_wait_s = fl_admission_wait_s(front, 1)};
}

void fl_handle_metrics(fl_front *front, fl_http_exchange *exchange) {
    fl_gauges gauges;
    fl_buffer out;
    fl_buffer_init(&out, METRICS_BYTES_MAX);
    read_gauges(front, &gauges);
    fl_metrics_write(front->metrics, &gauges, &out);
    fl_front_answer(exchange, "text/plain; version=0.0.4; charset=utf-8", &out);
}

/* The byte of two hexadecimal digits; 0 = there are none, or it is NUL. */
static int byte_of(const char *text) {
    int high = fl_hex_digit(text[0]), low = high < 0 ? -1 : fl_hex_digit(text[1]);
    return low < 0 ? 0 : 16 * high + low;
}

/* The name behind /v1/models/: a client may write any byte of it as %XX, and must for some (RFC 3986, 2.1). One that is
 * too long or no text is nobody's: "". NULL: the path has none. */
static const char *name_of(const char *path, char name[NAME_BYTES_MAX]) {
    const char *from = strchr(path + strlen("/v1/models"), '/');
    size_t n = 0;
    if (!from) return NULL;
    for (from++; *from && n + 1 < NAME_BYTES_MAX; from++) {
        bool written = *from == '%';
        int byte = written ? byte_of(from + 1) : *from;
        if (byte == 0) break;
        if (written) from += 2;
        name[n++] = (char)byte;
    }
    name[*from ? 0 : n] = '\0';
    return name;
}

/* /v1/models, and /v1/models/NAME. */
void fl_handle_models(fl_front *front, fl_http_exchange *exchange) {
    char room[NAME_BYTES_MAX];
    const char *name = name_of(fl_http_get_head(exchange)->path, room);
    fl_link_status status;
    fl_api_error error;
    fl_buffer out;
    fl_worker_link_status(front->link, &status);
    int64_t ctx_tokens = status.has_info ? status.info.ctx_tokens : 0;
    if (name && !fl_front_knows_model(front, name, &error)) {
        fl_front_answer_error(exchange, &error, 0, 0);
        return;
    }
    fl_buffer_init(&out, STATUS_BYTES_MAX);
    if (name) fl_api_model_write(name, front->created, ctx_tokens, &out);
    else {
        fl_buffer_add_text(&out, "{\"object\":\"list\",\"data\":[");
        for (int i = 0; i < front->n_names; i++) {
            if (i > 0) fl_buffer_add_text(&out, ",");
            fl_api_model_write(front->names[i], front->created, ctx_tokens, &out);
        }
        fl_buffer_add_text(&out, "]}");
    }
    fl_front_answer(exchange, NULL, &out);
}
