/* A JSON schema, a NUL, bytes of an answer. A schema that compiles takes some of the bytes; wherever the answer
 * stands it can go on or is whole, and what is whole is JSON. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check_state(const fl_schema *schema, const fl_schema_state *state) {
    static fl_schema_state next;
    bool goes_on = false;
    if (state->n_threads < 1 || state->n_threads > FL_SCHEMA_THREADS_MAX ||
        state->n_frames > FL_SCHEMA_FRAMES_MAX)
        abort();
    for (int byte = 0; byte < 256 && !goes_on; byte++)
        goes_on = fl_schema_step(schema, state, (uint8_t)byte, &next);
    if (!goes_on && !fl_schema_is_complete(schema, state)) abort();
    if (goes_on && fl_schema_is_final(schema, state)) abort();
}

static void check_whole(const char *text, size_t n_bytes) {
    json_t *value = json_loadb(text, n_bytes, JSON_DECODE_ANY, NULL);
    if (!value) abort();
    json_decref(value);
}

static void feed(const fl_schema *schema, const uint8_t *bytes, size_t n_bytes) {
    static fl_schema_state state, next;
    size_t n = 0;
    fl_schema_start(schema, &state);
    check_state(schema, &state);
    for (size_t i = 0; i < n_bytes; i++) {
        if (!fl_schema_step(schema, &state, bytes[i], &next)) break;
        state = next;
        if (++n % 8 == 0) check_state(schema, &state);
        if (fl_schema_is_complete(schema, &state)) check_whole((const char *)bytes, n);
    }
    check_state(schema, &state);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    const uint8_t *end = n_bytes > 0 ? memchr(bytes, 0, n_bytes) : NULL;
    fl_schema *schema;
    if (!end) return 0;
    fl_err err = fl_schema_compile((const char *)bytes, &schema);
    if ((err == FL_ERR_OK) != (schema != NULL)) abort();
    if (schema) feed(schema, end + 1, n_bytes - (size_t)(end + 1 - bytes));
    fl_schema_close(schema);
    return 0;
}
