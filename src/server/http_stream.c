/* Streams. The library writes the head and the end. Between them it waits, with its buffers empty, and the bytes go
 * straight from here to the socket: each time that the library itself goes on it costs a wake-up of its thread and a
 * look at every connection that waits, for each token. What is sent is framed as the library would (RFC 9112, 7.1). */
#include "base/clock.h"
#include "server/http_private.h"

#include <errno.h>
#include <sys/socket.h>

enum { READER_BLOCK_BYTES = 512 }; /* the reader below hands the library no bytes */

void fl_http_stream_begin(fl_http_exchange *e, const char *content_type) {
    pthread_mutex_lock(&e->lock);
    if (!e->answered && !e->streaming) {
        e->streaming = true;
        e->stream_type = content_type;
        e->written_s = fl_now_s();
        fl_http_exchange_wake(e);
    }
    pthread_mutex_unlock(&e->lock);
}

static void add_chunk(fl_buffer *out, const char *bytes, size_t n_bytes) {
    char head[2 * sizeof n_bytes + 2];
    size_t at = sizeof head;
    head[--at] = '\n';
    head[--at] = '\r';
    for (size_t left = n_bytes; left > 0; left >>= 4) head[--at] = "0123456789abcdef"[left & 15];
    fl_buffer_add(out, head + at, sizeof head - at);
    fl_buffer_add(out, bytes, n_bytes);
    fl_buffer_add(out, "\r\n", 2);
}

fl_http_written fl_http_stream_write(fl_http_exchange *e, const char *bytes, size_t n_bytes) {
    pthread_mutex_lock(&e->lock);
    bool open = e->streaming && !e->stream_ended && !e->cut && !e->done;
    if (open && e->chunked && n_bytes > 0)
        add_chunk(&e->out, bytes, n_bytes); /* an empty one would be the end */
    else if (open) fl_buffer_add(&e->out, bytes, n_bytes);
    bool fits = open && e->out.failure == FL_ERR_OK;
    if (fits) {
        e->written_s = fl_now_s();
        fl_http_send_soon(e);
    } else if (open) {
        e->cut = true;
        fl_http_exchange_wake(e);
        fl_http_reset(e);
    }
    pthread_mutex_unlock(&e->lock);
    return fits ? FL_HTTP_WRITTEN : open ? FL_HTTP_TOO_SLOW : FL_HTTP_LEFT;
}

double fl_http_stream_written_s(fl_http_exchange *e) {
    pthread_mutex_lock(&e->lock);
    double written_s = e->written_s;
    pthread_mutex_unlock(&e->lock);
    return written_s;
}

/* Needs the lock, and a library that waits or is in on_read: it closes the descriptor no sooner than it goes on. */
static void send_out(fl_http_exchange *e) {
    ssize_t n = e->out.n > 0 ? send(e->fd, e->out.bytes, e->out.n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (n > 0) fl_buffer_drop(&e->out, (size_t)n);
    if (n < 0 && errno != EAGAIN && errno != EINTR) e->cut = true;
    e->blocked = e->out.n > 0 && !e->cut;
    if (e->blocked) fl_http_watch_room(e);
}

void fl_http_stream_send(fl_http_exchange *e) {
    if (!e->suspended || !e->streaming || e->cut || e->done) return;
    send_out(e);
    if (e->cut || (e->stream_ended && !e->blocked)) fl_http_exchange_wake(e);
}

void fl_http_stream_end(fl_http_exchange *e) {
    pthread_mutex_lock(&e->lock);
    if (e->streaming && !e->stream_ended && !e->done) {
        e->stream_ended = true;
        fl_http_slot_set_deadline(e, e->http->options.send_s);
        if (!e->blocked) fl_http_stream_send(e);
    }
    pthread_mutex_unlock(&e->lock);
}

/* The library asks for a stream's bytes: the head is out. It gets none, but waits until the end. */
static ssize_t on_read(void *context, uint64_t position, char *to, size_t n_max) {
    fl_http_exchange *e = context;
    (void)position;
    (void)to;
    (void)n_max;
    ssize_t result = 0;
    pthread_mutex_lock(&e->lock);
    bool over = e->cut || atomic_load(&e->http->closing);
    if (!over) send_out(e);
    if (over || e->cut) result = MHD_CONTENT_READER_END_WITH_ERROR;
    else if (e->stream_ended && !e->blocked) {
        fl_http_watch_forget(e);
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        e->suspended = true;
        MHD_suspend_connection(e->connection);
    }
    pthread_mutex_unlock(&e->lock);
    return result;
}

static void on_read_over(void *context) {
    fl_http_release(context);
}

struct MHD_Response *fl_http_stream_response(fl_http_exchange *e) {
    fl_http_hold(e);
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, READER_BLOCK_BYTES, on_read, e, on_read_over);
    if (!r) {
        fl_http_release(e);
        return NULL;
    }
    (void)MHD_add_response_header(r, "Content-Type", e->stream_type);
    (void)MHD_add_response_header(r, "Cache-Control", "no-cache");
    (void)MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* nginx would hold a stream back */
    return r;
}
