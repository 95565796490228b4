/* The per-thread error text. One buffer a thread, so a failure on one request never overwrites another
 * thread's. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

enum { TEXT_BYTES = 1024, PLACE_BYTES = 160 };

static _Thread_local char last_text[TEXT_BYTES];
static _Thread_local char last_place[PLACE_BYTES];

fl_err fl_err_set(fl_err code, const char *file, int line, const char *format, ...) {
    char text[TEXT_BYTES]; /* the arguments may point into last_text itself */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t i = 0;
    for (; text[i] != '\0' && i + 1 < sizeof last_text; i++) {
        unsigned char c = (unsigned char)text[i];
        last_text[i] = (c < 0x20 || c == 0x7f) ? '?' : text[i];
    }
    last_text[i] = '\0';
    snprintf(last_place, sizeof last_place, "%s:%d", file, line);
    return code;
}

const char *fl_err_detail(void) {
    return last_text;
}

const char *fl_err_place(void) {
    return last_place;
}

const char *fl_err_name(fl_err code) {
    switch (code) {
#define CASE(name, value, text)                                                                              \
    case FL_ERR_##name: return text;
        FL_ERR_LIST(CASE)
#undef CASE
    }
    return "unknown error";
}

int fl_err_exit_code(fl_err code) {
    switch (code) {
    case FL_ERR_OK: return 0;
    case FL_ERR_DATA: return 65;
    case FL_ERR_DEVICE: return 69;
    case FL_ERR_INTERNAL: return 70;
    case FL_ERR_AGAIN: return 75;
    case FL_ERR_CONFIG: return 78;
    case FL_ERR_INVALID: return 2;
    default: return 1;
    }
}
