/* What front and worker say to each other over a stream socket of one machine: messages of a fixed header and a body of
 * fields, each field a multiple of 8 bytes in the machine's own byte order, so that arrays are read where they lie.
 *
 *   header  magic u32, type u32, id u64, bytes u32 (of the body), zero u32
 *   number  i64, or f64, 8 bytes
 *   text    u64 length or UINT64_MAX for NULL, then bytes, NUL, zeros up to a multiple of 8
 *   array   u64 count, then items, zeros up to a multiple of 8
 *
 * Which fields a body has is one table for each struct (wire.c): a new member of fl_settings, fl_request_params,
 * fl_event, fl_engine_info, fl_engine_load or fl_meters is one more line there. The other side is a process
 * that may be broken: every length, count, number and text is checked against its table before anything is
 * used. */
#ifndef FL_SERVER_WIRE_H
#define FL_SERVER_WIRE_H

#include "base/buffer.h"

enum {
    FL_WIRE_VERSION = 1,
    FL_WIRE_HEADER_BYTES = 24,
    FL_WIRE_MARKS_MAX = 1024,
    FL_WIRE_IDS_MAX = 65536,      /* ids of requests are below: the front's slots */
    FL_WIRE_BODY_MAX = 96 << 20,  /* of any message; a prompt of 2^24 tokens has 64 MiB */
    FL_WIRE_EVENT_MAX = 4 << 20,  /* of what a worker says */
    FL_WIRE_TOKENS_MAX = 1 << 24, /* of a prompt */
};

typedef enum fl_wire_type {
    FL_WIRE_HELLO = 1, /* front: version, settings */
    FL_WIRE_SUBMIT,    /* front: a request's params, for the id */
    FL_WIRE_CANCEL,    /* front: the id; no body */
    FL_WIRE_LOADING,   /* worker: share of the weights that is loaded */
    FL_WIRE_FAILED,    /* worker: loading failed; it exits */
    FL_WIRE_READY,     /* worker: version, the engine's info; again when its warnings change */
    FL_WIRE_EVENT,     /* worker: an event of the id that is not DONE */
    FL_WIRE_DONE,      /* worker: the last one, with the timeline; the id is free again */
    FL_WIRE_LOAD,      /* worker: the engine's load and meters, at least twice a second */
    FL_WIRE_TYPES
} fl_wire_type;

typedef struct fl_wire_header {
    fl_wire_type type;
    uint64_t id;
    uint32_t body_bytes;
} fl_wire_header;

/* Bodies as read. Texts and arrays lie in the body that was read, which must outlive them. */
typedef struct fl_wire_hello {
    int32_t version;
    fl_settings settings;
} fl_wire_hello;

typedef struct fl_wire_submit {
    fl_request_params params;
    const char *stops[FL_STOPS_MAX]; /* params.stops points here */
} fl_wire_submit;

typedef struct fl_wire_failed {
    fl_err err;
    const char *detail;
} fl_wire_failed;

typedef struct fl_wire_ready {
    int32_t version;
    fl_engine_info info;
} fl_wire_ready;

typedef struct fl_wire_done {
    fl_event event;
    int32_t n_marks;
    fl_mark marks[FL_WIRE_MARKS_MAX];
} fl_wire_done;

/* Each appends one whole message or, on failure, nothing: the buffer stays usable. FL_ERR_LIMIT: it is full, or the
 * message is longer than its kind may be. FL_ERR_INVALID: a list has more items than it may have. */
fl_err fl_wire_put_hello(fl_buffer *out, const fl_settings *settings);
fl_err fl_wire_put_submit(fl_buffer *out, uint64_t id, const fl_request_params *params);
fl_err fl_wire_put_cancel(fl_buffer *out, uint64_t id);
fl_err fl_wire_put_loading(fl_buffer *out, double fraction);
fl_err fl_wire_put_failed(fl_buffer *out, fl_err err, const char *detail);
fl_err fl_wire_put_ready(fl_buffer *out, const fl_engine_info *info);
fl_err fl_wire_put_event(fl_buffer *out, uint64_t id, const fl_event *event);
fl_err fl_wire_put_done(fl_buffer *out, uint64_t id, const fl_event *event, const fl_mark *marks,
                        int32_t n_marks);
fl_err fl_wire_put_load(fl_buffer *out, const fl_engine_load *load, const fl_meters *meters);

/* Reads the FL_WIRE_HEADER_BYTES bytes at `bytes`. FL_ERR_DATA: not a message, of no known type, too long for its type,
 * an id where there is none. */
fl_err fl_wire_get_header(const uint8_t *bytes, fl_wire_header *out);

/* Each reads the body of one message, [n] bytes at an address that is a multiple of 8. FL_ERR_DATA: names the field. */
fl_err fl_wire_get_hello(const uint8_t *body, size_t n, fl_wire_hello *out);
fl_err fl_wire_get_submit(const uint8_t *body, size_t n, fl_wire_submit *out);
fl_err fl_wire_get_loading(const uint8_t *body, size_t n, double *fraction);
fl_err fl_wire_get_failed(const uint8_t *body, size_t n, fl_wire_failed *out);
fl_err fl_wire_get_ready(const uint8_t *body, size_t n, fl_wire_ready *out);
fl_err fl_wire_get_event(const uint8_t *body, size_t n, fl_event *out);
fl_err fl_wire_get_done(const uint8_t *body, size_t n, fl_wire_done *out);
fl_err fl_wire_get_load(const uint8_t *body, size_t n, fl_engine_load *load, fl_meters *meters);

#endif
