/* Any bytes as messages, one behind the other, as a link or a worker reads them. What is accepted must be in range and,
 * written again, read back to the same bytes. */
#include "server/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void need(bool holds) {
    if (!holds) abort();
}

/* The message that was accepted; writing what it said gives these bytes. Padding is free, so only lengths are compared
 * where texts or arrays are. */
static void check_again(fl_buffer *out, fl_err err, size_t body_bytes) {
    need(err == FL_ERR_OK);
    need(out->n == FL_WIRE_HEADER_BYTES + body_bytes);
    fl_buffer_clear(out);
}

static void check_event(const fl_event *e) {
    need(e->type >= FL_EVENT_PROGRESS && e->type <= FL_EVENT_DONE);
    need(e->n_top >= 0 && e->n_top <= FL_TOP_LOGPROBS_MAX);
    need(e->text || e->text_bytes == 0);
    need(!e->text || e->text[e->text_bytes] == '\0');
    need(e->err <= 0 && e->err >= FL_ERR_INTERNAL);
}

static void read_front(fl_buffer *out, const fl_wire_header *h, const uint8_t *body) {
    fl_wire_hello hello;
    fl_wire_submit submit;
    if (h->type == FL_WIRE_HELLO && fl_wire_get_hello(body, h->body_bytes, &hello) == FL_ERR_OK)
        check_again(out, fl_wire_put_hello(out, &hello.settings), h->body_bytes);
    if (h->type == FL_WIRE_SUBMIT && fl_wire_get_submit(body, h->body_bytes, &submit) == FL_ERR_OK) {
        int64_t sum = 0;
        for (int64_t i = 0; i < submit.params.n_tokens; i++) sum += submit.params.tokens[i];
        for (int32_t i = 0; i < submit.params.n_stops; i++)
            sum += submit.params.stops[i] ? (int64_t)strlen(submit.params.stops[i]) : 0;
        need(sum != INT64_MIN);
        check_again(out, fl_wire_put_submit(out, h->id, &submit.params), h->body_bytes);
    }
}

static void read_worker(fl_buffer *out, const fl_wire_header *h, const uint8_t *body) {
    static fl_wire_done done;
    fl_event event;
    fl_engine_load load;
    fl_meters meters;
    fl_wire_ready ready;
    fl_wire_failed failed;
    double fraction;
    size_t n = h->body_bytes;
    if (h->type == FL_WIRE_EVENT && fl_wire_get_event(body, n, &event) == FL_ERR_OK) {
        check_event(&event);
        check_again(out, fl_wire_put_event(out, h->id, &event), n);
    }
    if (h->type == FL_WIRE_DONE && fl_wire_get_done(body, n, &done) == FL_ERR_OK) {
        check_event(&done.event);
        check_again(out, fl_wire_put_done(out, h->id, &done.event, done.marks, done.n_marks), n);
    }
    if (h->type == FL_WIRE_LOAD && fl_wire_get_load(body, n, &load, &meters) == FL_ERR_OK) {
        need(load.n_costs > 0 && load.n_costs <= FL_COST_POINTS_MAX);
        check_again(out, fl_wire_put_load(out, &load, &meters), n);
    }
    if (h->type == FL_WIRE_READY && fl_wire_get_ready(body, n, &ready) == FL_ERR_OK)
        check_again(out, fl_wire_put_ready(out, &ready.info), n);
    if (h->type == FL_WIRE_FAILED && fl_wire_get_failed(body, n, &failed) == FL_ERR_OK)
        check_again(out, fl_wire_put_failed(out, failed.err, failed.detail), n);
    if (h->type == FL_WIRE_LOADING && fl_wire_get_loading(body, n, &fraction) == FL_ERR_OK)
        check_again(out, fl_wire_put_loading(out, fraction), n);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    fl_buffer out;
    fl_wire_header h;
    fl_buffer_init(&out, 1 << 24);
    while (n_bytes >= FL_WIRE_HEADER_BYTES && fl_wire_get_header(bytes, &h) == FL_ERR_OK &&
           n_bytes - FL_WIRE_HEADER_BYTES >= h.body_bytes) {
        uint8_t *body = malloc(h.body_bytes > 0 ? h.body_bytes : 1); /* aligned, and of exactly this size */
        need(body != NULL);
        memcpy(body, bytes + FL_WIRE_HEADER_BYTES, h.body_bytes);
        read_front(&out, &h, body);
        read_worker(&out, &h, body);
        free(body);
        bytes += FL_WIRE_HEADER_BYTES + h.body_bytes;
        n_bytes -= FL_WIRE_HEADER_BYTES + h.body_bytes;
    }
    fl_buffer_free(&out);
    return 0;
}
