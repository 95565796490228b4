/* What a request's head must be before anything reads it: stricter than the HTTP library, and than RFC 9112 where the
 * standard leaves a choice that two programs in a row could take differently (request smuggling). Pure functions. */
#ifndef FL_SERVER_HTTP_GUARD_H
#define FL_SERVER_HTTP_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FL_HTTP_GUARD_FIELDS_MAX = 96 };

typedef struct fl_http_field {
    const char *name, *value; /* not NUL-terminated; may hold any byte */
    size_t name_bytes, value_bytes;
} fl_http_field;

typedef struct fl_http_raw_head {
    const char *method, *target, *version; /* as sent */
    const fl_http_field *fields;           /* [n_fields] in the order they were sent */
    size_t n_fields;
    size_t head_bytes; /* of all of it as it came in, empty line included; 0 = not known */
} fl_http_raw_head;

typedef struct fl_http_verdict {
    int status;             /* 0 = fine */
    const char *reason;     /* static */
    const char *path;       /* within raw->target: where the path begins */
    size_t path_bytes;      /* to the question mark or the end */
    int64_t content_length; /* 0 = no body, -1 = in chunks */
    bool expects_continue;
    const fl_http_field *host, *authorization, *content_type; /* NULL = none */
} fl_http_verdict;

/* Refuses with 400 (and the caller closes the connection): repeated or malformed Content-Length, any
 * Transfer-Encoding but one "chunked", both together; control bytes and NUL in a name, value or target; names
 * that are no token; no Host or two; a target that is neither a path nor an absolute form with the Host's own
 * authority; an Expect other than one "100-continue"; a repeated Authorization or Content-Type; more bytes than
 * the request line and the fields, each written "Name: value", have: the library cuts values at a NUL and drops lines
 * without a name, and what it hides another program may see. 413: a length of too many digits. 415: a
 * Content-Encoding. 431: too many fields. 505: a version other than 1.0 and 1.1. */
void fl_http_guard(const fl_http_raw_head *raw, fl_http_verdict *out);

#endif
