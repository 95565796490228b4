#include "text/stop.h"

#include <stdlib.h>
#include <string.h>

fl_err fl_stop_init(fl_stop *stop, const char *const *texts, int32_t n) {
    *stop = (fl_stop){0};
    if (n < 0 || n > FL_STOPS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "stops: expected 0..%d strings, found %d", FL_STOPS_MAX, n);
    for (int32_t i = 0; i < n; i++) {
        size_t bytes = strnlen(texts[i], FL_STOP_BYTES_MAX + 1);
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

/* The held text is short (a few tokens more than the longest stop), so each start is simply tried. */
bool fl_stop_find(const fl_stop *stop, const char *held, size_t held_bytes, size_t *show_bytes) {
    for (size_t start = 0; start < held_bytes; start++) {
        size_t rest = held_bytes - start;
        bool may_begin = false;
        for (int32_t i = 0; i < stop->n; i++) {
            size_t common = rest < stop->bytes[i] ? rest : stop->bytes[i];
            if (memcmp(held + start, stop->texts[i], common) != 0) continue;
            if (common == stop->bytes[i]) {
                *show_bytes = start;
                return true;
            }
            may_begin = true;
        }
        if (may_begin) {
            *show_bytes = start;
            return false;
        }
    }
    *show_bytes = held_bytes;
    return false;
}
