#include "server/log.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"

enum { QUEUE_BYTES_MAX = 1 << 20 };

static const double GATHER_S = 0.02; /* for which lines wait for more */

struct fl_log {
    int fd;
    bool json;
    fl_log_level least;
    bool started;
    pthread_t writer;
    pthread_mutex_t lock; /* guards what follows; never held while writing */
    pthread_cond_t more;
    char *queue; /* [QUEUE_BYTES_MAX], of which n bytes are lines not yet written */
    size_t n;
    int64_t n_dropped;
    bool idle; /* the writer waits for a first line */
    bool stop;
};

/* A line being made; what does not fit is cut off. */
typedef struct line {
    char text[FL_LOG_LINE_BYTES_MAX];
    size_t n;
} line;

static void add(line *l, const char *text, size_t n) {
    size_t room = sizeof l->text - l->n - 2; /* a closing brace and the newline always fit */
    if (n > room) n = room;
    memcpy(l->text + l->n, text, n);
    l->n += n;
}

static void add_text(line *l, const char *text) {
    add(l, text, strlen(text));
}

/* In quotes, with JSON's escapes, in both formats. Bytes above 0x7e are escaped as well: a terminal may take some of
 * them for commands, and broken UTF-8 would not be JSON. Values are cut so that the line stays whole. */
static void add_quoted(line *l, const char *text) {
    enum { VALUE_BYTES_MAX = 1024 };
    char escape[8];
    add_text(l, "\"");
    size_t end = l->n + VALUE_BYTES_MAX, most = sizeof l->text - 64;
    if (end > most) end = most;
    for (const unsigned char *c = (const unsigned char *)text; *c && l->n < end; c++) {
        bool plain = *c >= 0x20 && *c <= 0x7e && *c != '"' && *c != '\\';
        if (plain) {
            l->text[l->n++] = (char)*c;
            continue;
        }
        if (*c == '"' || *c == '\\') snprintf(escape, sizeof escape, "\\%c", *c);
        else snprintf(escape, sizeof escape, "\\u%04x", *c);
        add_text(l, escape);
    }
    add_text(l, "\"");
}

static void add_key(line *l, bool json, const char *key) {
    if (l->n > 0) add_text(l, json ? "," : " ");
    if (json && l->n == 0) add_text(l, "{");
    if (json) add_text(l, "\"");
    add_text(l, key);
    add_text(l, json ? "\":" : "=");
}

static void add_time(line *l, bool json) {
    char text[40];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + n, sizeof text - n, ".%03ldZ", now.tv_nsec / 1000000);
    add_key(l, json, "time");
    if (json) add_quoted(l, text);
    else add_text(l, text);
}

static bool is_plain(const char *text) {
    if (!*text) return false;
    for (const char *c = text; *c; c++)
        if (*c <= 0x20 || *c > 0x7e || *c == '"' || *c == '=' || *c == '\\') return false;
    return strlen(text) < 256;
}

static void add_field(line *l, bool json, const fl_log_field *f) {
    char number[40];
    add_key(l, json, f->key);
    if (f->text && !json && is_plain(f->text)) add_text(l, f->text);
    else if (f->text) add_quoted(l, f->text);
    else {
        snprintf(number, sizeof number, f->real ? "%.6g" : "%.0f", isfinite(f->number) ? f->number : 0.0);
        add_text(l, number);
    }
}

static void make(const fl_log *log, line *l, fl_log_level level, const char *event,
                 const fl_log_field *fields, int n_fields) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    l->n = 0;
    add_time(l, log->json);
    add_field(l, log->json, &FL_LOG_TEXT("level", names[level]));
    add_field(l, log->json, &FL_LOG_TEXT("event", event));
    for (int i = 0; i < n_fields && sizeof l->text - l->n > 256; i++) add_field(l, log->json, &fields[i]);
    if (log->json) l->text[l->n++] = '}';
    l->text[l->n++] = '\n';
}

void fl_log_write(fl_log *log, fl_log_level level, const char *event, const fl_log_field *fields,
                  int n_fields) {
    line l;
    if (!log || level < log->least) return;
    make(log, &l, level, event, fields, n_fields);
    pthread_mutex_lock(&log->lock);
    if (log->n + l.n <= QUEUE_BYTES_MAX) {
        memcpy(log->queue + log->n, l.text, l.n);
        log->n += l.n;
        if (log->idle || log->n > QUEUE_BYTES_MAX / 2) pthread_cond_signal(&log->more);
        log->idle = false;
    } else log->n_dropped++;
    pthread_mutex_unlock(&log->lock);
}

/* Another process that has the same pipe or terminal may have made it one that does not block. */
static void write_all(int fd, const char *bytes, size_t n) {
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    while (n > 0) {
        ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno == EAGAIN) (void)poll(&room, 1, -1);
        else if (done < 0 && errno != EINTR) return;
        if (done <= 0) continue;
        bytes += done;
        n -= (size_t)done;
    }
}

/* Lines that come soon after one another are one wake-up and one write. Needs the lock. */
static void gather(fl_log *log) {
    const struct timespec until = fl_timespec_at(fl_now_s() + GATHER_S);
    while (!log->stop && log->n < QUEUE_BYTES_MAX / 2 &&
           pthread_cond_timedwait(&log->more, &log->lock, &until) != ETIMEDOUT)
        continue;
}

static void *writer_main(void *context) {
    fl_log *log = context;
    char *out = malloc(QUEUE_BYTES_MAX);
    line l;
    pthread_mutex_lock(&log->lock);
    while (out && (!log->stop || log->n > 0)) {
        log->idle = log->n == 0;
        if (log->idle) {
            pthread_cond_wait(&log->more, &log->lock);
            continue;
        }
        gather(log);
        size_t n = log->n;
        int64_t dropped = log->n_dropped;
        memcpy(out, log->queue, n);
        log->n = 0;
        log->n_dropped = 0;
        pthread_mutex_unlock(&log->lock);
        write_all(log->fd, out, n);
        if (dropped > 0) {
            make(log, &l, FL_LOG_WARN, "log_lines_dropped", &FL_LOG_INT("lines", dropped), 1);
            write_all(log->fd, l.text, l.n);
        }
        pthread_mutex_lock(&log->lock);
    }
    pthread_mutex_unlock(&log->lock);
    free(out);
    return NULL;
}

fl_err fl_log_open(int fd, bool json, fl_log_level least, fl_log **out) {
    fl_log *log = calloc(1, sizeof *log);
    if (log) log->queue = malloc(QUEUE_BYTES_MAX);
    if (!log || !log->queue) {
        free(log);
        return FL_FAIL(FL_ERR_NOMEM, "the log");
    }
    log->fd = fd;
    log->json = json;
    log->least = least;
    pthread_mutex_init(&log->lock, NULL);
    fl_cond_init(&log->more);
    int failed = pthread_create(&log->writer, NULL, writer_main, log);
    log->started = !failed;
    if (failed) {
        fl_log_close(log);
        return FL_FAIL(FL_ERR_IO, "the log's thread: %s", strerror(failed));
    }
    *out = log;
    return FL_ERR_OK;
}

void fl_log_close(fl_log *log) {
    if (!log) return;
    if (log->started) {
        pthread_mutex_lock(&log->lock);
        log->stop = true;
        pthread_cond_signal(&log->more);
        pthread_mutex_unlock(&log->lock);
        pthread_join(log->writer, NULL);
    }
    pthread_cond_destroy(&log->more);
    pthread_mutex_destroy(&log->lock);
    free(log->queue);
    free(log);
}
