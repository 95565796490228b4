/* An error as a client of the API sees it: an HTTP status and {"error":{message, type, param, code}}. */
#ifndef FL_SERVER_API_ERROR_H
#define FL_SERVER_API_ERROR_H

#include "base/buffer.h"

#include <stdint.h>

typedef struct fl_api_error {
    int32_t status;    /* of HTTP; 0 = no error */
    const char *type;  /* static: "invalid_request_error", "server_error", ... */
    const char *code;  /* static; NULL = null */
    char param[128];   /* the field to blame, as "messages[2].content"; "" = null */
    char message[640]; /* what was expected and what was found; no control bytes */
} fl_api_error;

/* Fills all of it; the type follows from the status. `param` and `code` may be NULL. Returns FL_ERR_INVALID
 * for 4xx, FL_ERR_INTERNAL otherwise, with the message as the detail. */
fl_err fl_api_error_set(fl_api_error *error, int32_t status, const char *param, const char *code,
                        const char *format, ...) FL_PRINTF(5, 6);

/* What a client is told when the engine failed with `err` and `detail`: 400 for INVALID and LIMIT (a field
 * the parser could not judge, a prompt that can never fit) and for whatever is about a field of the
 * request, which is then the param; 429 for AGAIN, 499 for CANCELLED, 501 for UNSUPPORTED, 503 for DEVICE
 * and NOMEM, 500 for the rest. `detail` NULL = the code's name. */
void fl_api_error_from(fl_api_error *error, fl_err err, const char *detail);

/* Appends {"error":{"message":..,"type":..,"param":..,"code":..}}. */
void fl_api_error_write(const fl_api_error *error, fl_buffer *out);

#endif
