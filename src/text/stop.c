#include "text/stop.h"

#include <stdlib.h>
#include <string.h>

fl_err fl_stop_init(fl_stop *stop, const char *const *texts, int32_t n) {
    *stop = (fl_stop){0};
    if (n < 0 || n > FL_STOPS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "stops: expected 0..%d strings, found %d", FL_STOPS_MAX, n);
    for (int32_t i = 0; i < n; i++) {
        size_t bytes = texts && texts[i] ? strnlen(texts[i], FL_STOP_BYTES_MAX + 1) : 0;
        if (bytes == 0 || bytes > FL_STOP_BYTES_MAX) {
            fl_stop_free(stop);
            return FL_FAIL(FL_ERR_INVALID, "stops[%d]: expected 1..%d bytes", i, FL_STOP_BYTES_MAX);
        }
        stop->texts[i] = malloc(bytes + 1);
        if (!stop->texts[i]) {
            fl_stop_free(stop);
            return FL_FAIL(FL_ERR_NOMEM, "stop strings");
        }
        memcpy(stop->texts[i], texts[i], bytes + 1);
        stop->bytes[i] = bytes;
        stop->n = i + 1;
    }
    return FL_ERR_OK;
}

void fl_stop_free(fl_stop *stop) {
    for (int32_t i = 0; i < stop->n; i++) free(stop->texts[i]);
    *stop = (fl_stop){0};
}

/* How many bytes of the stop the text begins with or, if it is shorter, ends with; 0: it is another text. */
static size_t common_bytes(const fl_stop *stop, int32_t i, const char *text, size_t n_bytes) {
    size_t common = n_bytes < stop->bytes[i] ? n_bytes : stop->bytes[i];
    return memcmp(text, stop->texts[i], common) == 0 ? common : 0;
}

/* The held text is short (a few tokens more than the longest stop), so each start is simply tried. One stop may be
 * complete inside what may become another: the first to end counts, as if bytes came one by one. */
bool fl_stop_find(const fl_stop *stop, const char *held, size_t held_bytes, size_t *show_bytes) {
    size_t first = held_bytes;   /* where one may begin */
    size_t end = held_bytes + 1; /* of the first that is complete */
    for (size_t start = 0; start < held_bytes; start++) {
        for (int32_t i = 0; i < stop->n; i++) {
            size_t common = common_bytes(stop, i, held + start, held_bytes - start);
            if (common > 0 && common < stop->bytes[i] && start < first) first = start;
            if (common < stop->bytes[i] || start + common >= end) continue;
            end = start + common;
            *show_bytes = start;
        }
    }
    if (end <= held_bytes) return true;
    *show_bytes = first;
    return false;
}
