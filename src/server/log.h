/* Lines about what the server does, on standard error: logfmt (key=value) or JSON, one line an event. Whoever
 * logs never waits for the reader of standard error: lines go through a bounded queue to a thread of their
 * own, and lines that find it full are counted and dropped. Values are escaped, so that no client can forge a
 * line. */
#ifndef FL_SERVER_LOG_H
#define FL_SERVER_LOG_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct fl_log fl_log;

typedef enum fl_log_level { FL_LOG_DEBUG, FL_LOG_INFO, FL_LOG_WARN, FL_LOG_ERROR } fl_log_level;

enum { FL_LOG_LINE_BYTES_MAX = 4096 };

/* One key and value of a line. Keys are static, of letters and underscores. */
typedef struct fl_log_field {
    const char *key;
    const char *text; /* NULL: the value is a number */
    double number;
    bool real; /* shown with a fraction */
} fl_log_field;

static inline const char *fl_log_text(const char *text) {
    return text ? text : "";
}

#define FL_LOG_TEXT(key_, value_) ((fl_log_field){.key = (key_), .text = fl_log_text(value_)})
#define FL_LOG_INT(key_, value_)  ((fl_log_field){.key = (key_), .number = (double)(value_)})
#define FL_LOG_REAL(key_, value_) ((fl_log_field){.key = (key_), .number = (value_), .real = true})

/* Writes to `fd` (borrowed), lines below `least` are left out. On success the caller owns *out. */
fl_err fl_log_open(int fd, bool json, fl_log_level least, fl_log **out);

/* Any thread; `log` NULL = nowhere. */
void fl_log_write(fl_log *log, fl_log_level level, const char *event, const fl_log_field *fields,
                  int n_fields);

/* The same with the fields as arguments. */
#define FL_LOG(log, level, event, ...)                                                                       \
    fl_log_write(log, level, event, (const fl_log_field[]){__VA_ARGS__},                                     \
                 (int)(sizeof((const fl_log_field[]){__VA_ARGS__}) / sizeof(fl_log_field)))

/* Writes what is queued. Accepts NULL. */
void fl_log_close(fl_log *log);

#endif
