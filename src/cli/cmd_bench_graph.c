/* bench graph: one step of one shape, op by op and as a CUDA graph. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/format.h"
#include "engine/graph_bench.h"

/* ROWS[:POS] decode; ROWS@POS tail rows from a position on; DOCUMENT+TAIL a prompt from position 0 on. */
typedef struct shape {
    char kind;         /* ':', '@' or '+' */
    int64_t rows, pos; /* pos of '+': tail rows */
} shape;

static fl_err parse_shape(const char *text, shape *out) {
    char rows[32];
    size_t n = strcspn(text, ":@+");
    *out = (shape){.kind = text[n] ? text[n] : ':', .pos = 2047};
    snprintf(rows, sizeof rows, "%.*s", (int)(n < sizeof rows ? n : sizeof rows - 1), text);
    FL_TRY(fl_size_parse(rows, "--shape ROWS", &out->rows));
    if (text[n]) FL_TRY(fl_size_parse(text + n + 1, "--shape POS", &out->pos));
    if (out->rows < 1 || out->rows >= 1 << 20 || out->pos < 0 || out->pos >= 1 << 24)
        return FL_FAIL(FL_ERR_INVALID, "--shape: expected ROWS:POS, ROWS@POS or DOCUMENT+TAIL, found '%s'",
                       text);
    if (out->kind == ':' && (out->rows > FL_GRAPH_ROWS_MAX || out->pos < out->rows - 1))
        return FL_FAIL(FL_ERR_INVALID,
                       "--shape: expected 1..%d rows and a position of at least rows - 1, found '%s'",
                       FL_GRAPH_ROWS_MAX, text);
    return FL_ERR_OK;
}

/* The piece of a prompt, and positions that an engine needs for its bucket. */
static fl_graph_piece piece_of(const shape *s) {
    return s->kind == '@' ? (fl_graph_piece){.tail_rows = (int32_t)s->rows, .pos = (int32_t)s->pos}
                          : (fl_graph_piece){.document_rows = (int32_t)s->rows, .tail_rows = (int32_t)s->pos};
}

static int64_t positions_of(const shape *s) {
    int64_t n = s->kind == ':' ? s->pos + 1 : (s->rows + s->pos) * 5 / 4 + FL_GRAPH_TAIL_ROWS_MAX;
    return n > 1024 ? n : 1024;
}

static fl_err print_json(const fl_options *o, const shape *s, const fl_graph_bench *c, const char *backend) {
    return fl_cli_print_json(json_pack(
        "{s:s, s:s, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:s}", "backend", backend, "shape",
        o->shape, "rows", (json_int_t)s->rows, "pos", (json_int_t)s->pos, "runs", (int)o->runs, "eager_s",
        c->eager_s, "graph_s", c->graph_s, "first_graph_s", c->first_graph_s, "unfilled_s", c->unfilled_s,
        "graph_bytes", (json_int_t)c->graph_bytes, "n_different", (json_int_t)c->n_different,
        "n_unfilled_different", (json_int_t)c->n_unfilled_different, "fault", c->fault));
}

static fl_err print(const fl_options *o, const shape *s, const fl_graph_bench *c, const char *backend) {
    if (o->json) return print_json(o, s, c, backend);
    if (s->kind == '+')
        printf("%s, a prompt of %lld document and %lld tail rows", backend, (long long)s->rows,
               (long long)s->pos);
    else
        printf("%s, %lld %srows at position %lld", backend, (long long)s->rows, s->kind == '@' ? "tail " : "",
               (long long)s->pos);
    printf("; median of %d steps\n\n", (int)o->runs);
    if (s->kind != ':')
        printf("as it is   %s\nfilled up to its bucket:\n", fl_format_seconds(c->unfilled_s).s);
    printf("op by op   %s\n", fl_format_seconds(c->eager_s).s);
    if (c->fault[0]) {
        printf("as graph   not recorded: %s\n", c->fault);
    } else {
        printf("as graph   %s, %.2f times as fast; the first took %s and %s\n",
               fl_format_seconds(c->graph_s).s, c->eager_s / c->graph_s,
               fl_format_seconds(c->first_graph_s).s, fl_format_bytes(c->graph_bytes).s);
        printf("logits     %lld differ\n", (long long)c->n_different);
    }
    if (s->kind != ':' && c->n_unfilled_different > 0)
        printf("           %lld differ from those of the step as it is\n",
               (long long)c->n_unfilled_different);
    return FL_ERR_OK;
}

static fl_err bench(const fl_options *o, fl_progress *progress, fl_engine **engine, bool *good) {
    shape s;
    fl_graph_bench check;
    fl_engine_info info;
    FL_TRY(parse_shape(o->shape, &s));
    FL_TRY(fl_ask_open(o, positions_of(&s), progress, engine));
    fl_engine_get_info(*engine, &info);
    const fl_graph_piece piece = piece_of(&s);
    if (s.kind == ':')
        FL_TRY(fl_graph_bench_run(*engine, (int32_t)s.rows, (int32_t)s.pos, (int32_t)o->runs, &check));
    else FL_TRY(fl_graph_bench_piece(*engine, &piece, (int32_t)o->runs, &check));
    *good = check.fault[0] == 0 && check.n_different == 0;
    return print(o, &s, &check, info.backend);
}

int fl_cmd_bench_graph(const fl_options *options) {
    fl_progress progress;
    fl_engine *engine = NULL;
    bool good = false;
    fl_progress_init(&progress, options);
    fl_err err = bench(options, &progress, &engine, &good);
    fl_progress_clear(&progress);
    fl_engine_close(engine);
    if (err != FL_ERR_OK) return fl_cli_fail("bench graph", err);
    return good ? 0 : FL_EXIT_FAILED;
}
