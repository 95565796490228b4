/* A trace as Chrome trace JSON. One event at a time from the ring to the file: whatever there is, the memory for it is
 * a line. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/trace.h"

/* As "cat" of an event, by which viewers filter and colour; and what its count counts. */
static const struct kind {
    const char *name, *count;
} kinds[FL_TRACE_N_KINDS] = {
    [FL_TRACE_ATTENTION] = {"attention", "rows"}, [FL_TRACE_LINEAR] = {"linear", "rows"},
    [FL_TRACE_EXPERTS] = {"experts", "rows"},     [FL_TRACE_KV] = {"kv", "rows"},
    [FL_TRACE_COMM] = {"communication", "bytes"}, [FL_TRACE_RECORDED] = {"recorded", "rows"},
    [FL_TRACE_OTHER] = {"other", "rows"},         [FL_TRACE_STEP] = {"step", "rows"},
    [FL_TRACE_LAYER] = {"layer", "layer"},        [FL_TRACE_POOL] = {"pool", "tasks"},
    [FL_TRACE_TEXT] = {"text", "tokens"},         [FL_TRACE_LOAD] = {"load", "bytes"},
    [FL_TRACE_REQUEST] = {"request", "tokens"},   [FL_TRACE_PHASE] = {"phase", "tokens"},
};

typedef struct writing {
    const fl_trace *trace;
    FILE *file;
    bool used[FL_LANES_MAX]; /* lanes that have an event */
    bool comma;
} writing;

static void write_text(FILE *file, const char *text) {
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\') fputc('\\', file);
        if (*c >= 0x20 && *c < 0x7f) fputc(*c, file);
        else fprintf(file, "\\u%04x", *c); /* names are ASCII: other bytes are shown, not lost */
    }
    fputc('"', file);
}

static void begin_event(writing *w) {
    fputs(w->comma ? ",\n" : "\n", w->file);
    w->comma = true;
}

/* Microseconds since the start. */
static void write_time(FILE *file, const char *key, double time_s) {
    fprintf(file, ",\"%s\":%.3f", key, isfinite(time_s) ? time_s * 1e6 : 0.0);
}

static void write_args(FILE *file, const fl_trace_event *e) {
    const char *comma = "";
    fputs(",\"args\":{", file);
    if (e->flops > 0 && isfinite(e->flops)) fprintf(file, "\"flops\":%.6g", (double)e->flops), comma = ",";
    if (e->bytes > 0 && isfinite(e->bytes))
        fprintf(file, "%s\"bytes\":%.6g", comma, (double)e->bytes), comma = ",";
    if (e->count != 0) fprintf(file, "%s\"%s\":%lld", comma, kinds[e->kind].count, (long long)e->count);
    fputs("}", file);
}

static void write_head(writing *w, const fl_trace_event *e, const char *phase) {
    begin_event(w);
    fputs("{\"name\":", w->file);
    write_text(w->file, e->name);
    fprintf(w->file, ",\"cat\":\"%s\",\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", kinds[e->kind].name, phase,
            w->trace->rank, e->lane);
}

static void write_event(writing *w, const fl_trace_event *e) {
    double begin_s = e->begin_s - w->trace->start_s, end_s = e->end_s - w->trace->start_s;
    if (e->id != 0) { /* a pair: spans of one id and category nest by time */
        write_head(w, e, "b");
        fprintf(w->file, ",\"id\":\"0x%llx\"", (unsigned long long)e->id);
        write_time(w->file, "ts", begin_s);
        write_args(w->file, e);
        fputs("}", w->file);
        write_head(w, e, "e");
        fprintf(w->file, ",\"id\":\"0x%llx\"", (unsigned long long)e->id);
        write_time(w->file, "ts", end_s);
    } else {
        write_head(w, e, "X");
        write_time(w->file, "ts", begin_s);
        write_time(w->file, "dur", end_s > begin_s ? end_s - begin_s : 0);
        write_args(w->file, e);
    }
    fputs("}", w->file);
}

static void write_lane(writing *w, int32_t lane) {
    char name[48];
    if (lane == 0) snprintf(name, sizeof name, "engine");
    else if (lane < FL_LANE_CALLER) snprintf(name, sizeof name, "pool %d", lane);
    else if (lane < FL_LANE_DEVICE) snprintf(name, sizeof name, "caller %d", lane - FL_LANE_CALLER);
    else snprintf(name, sizeof name, "GPU stream %d", lane - FL_LANE_DEVICE);
    begin_event(w);
    fprintf(w->file, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":",
            w->trace->rank, lane);
    write_text(w->file, name);
    fputs("}}", w->file);
    begin_event(w);
    fprintf(
        w->file,
        "{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
        w->trace->rank, lane, lane);
}

static void write_all(writing *w) {
    fl_trace_counts counts = fl_trace_get_counts(w->trace);
    fl_trace_event e;
    int64_t n_written = 0;
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", w->file);
    for (int64_t i = 0; i < counts.kept; i++) {
        if (!fl_trace_get(w->trace, i, &e) || (unsigned)e.kind >= FL_TRACE_N_KINDS) continue;
        if (e.lane < 0 || e.lane >= FL_LANES_MAX) continue;
        w->used[e.lane] |= e.id == 0;
        write_event(w, &e);
        n_written++;
    }
    begin_event(w);
    fprintf(w->file, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
            w->trace->rank, w->trace->rank);
    for (int32_t lane = 0; lane < FL_LANES_MAX; lane++)
        if (w->used[lane]) write_lane(w, lane);
    fprintf(w->file, "\n],\"otherData\":{\"events\":%lld,\"events_lost\":%lld}}\n", (long long)n_written,
            (long long)(counts.lost + counts.kept - n_written));
}

fl_err fl_trace_write(const fl_trace *t, const char *path) {
    writing w = {.trace = t, .file = fopen(path, "we")};
    if (!w.file) return FL_FAIL(FL_ERR_IO, "trace %s: cannot write: %s", path, strerror(errno));
    write_all(&w);
    bool failed = ferror(w.file) != 0;
    failed |= fclose(w.file) != 0;
    if (failed) return FL_FAIL(FL_ERR_IO, "trace %s: cannot write: %s", path, strerror(errno));
    return FL_ERR_OK;
}
