/* A body as JSON under limits. Parsing costs many times a body's bytes in memory ("[{},{},..."), and a
 * parser recurses as deep as it nests, so a plain scan counts values and levels before anything is built. */
#ifndef FL_SERVER_API_JSON_H
#define FL_SERVER_API_JSON_H

#include "server/api_request.h"

/* Parses an object: strict JSON, no key twice. *out is a new reference. The error's param is the top-level
 * field in which the fault lies, where there is one. */
fl_err fl_api_json_load(const char *body, size_t n_bytes, const fl_api_settings *settings, json_t **out,
                        fl_api_error *error);

#endif
