/* bench graph: one step of one shape, op by op and as a CUDA graph. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/format.h"
#include "engine/graph_bench.h"

/* ROWS[:POS] decode; ROWS@POS tail rows from a position on; DOCUMENT+TAIL[@POS] a prompt, all of it or behind a cached
 * part. To both of the latter /ANSWERS:POS adds answers, the deepest at POS. */
typedef struct shape {
    bool decode;
    int64_t rows, pos;    /* of decode steps, */
    fl_graph_piece piece; /* and others */
} shape;

/* The number behind `mark`, the next one of *text; 0 where the mark does not come. */
static fl_err take_number(const char **text, char mark, int32_t *out) {
    char digits[16];
    int64_t value;
    *out = 0;
    if (mark && **text != mark) return FL_ERR_OK;
    *text += mark != 0;
    size_t n = strcspn(*text, ":@+/");
    snprintf(digits, sizeof digits, "%.*s", (int)(n < sizeof digits ? n : sizeof digits - 1), *text);
    FL_TRY(fl_size_parse(digits, "--shape", &value));
    *text += n;
    if (value < 0 || value >= 1 << 24) return FL_FAIL(FL_ERR_INVALID, "--shape: '%s' is too large", digits);
    *out = (int32_t)value;
    return FL_ERR_OK;
}

static fl_err parse_shape(const char *text, shape *out) {
    const char *at = text;
    int32_t rows, tail, pos;
    *out = (shape){.pos = 2047};
    FL_TRY(take_number(&at, 0, &rows));
    out->rows = rows;
    out->decode = *at == 0 || *at == ':';
    bool document = *at == '+', has_pos = *at == ':';
    FL_TRY(take_number(&at, has_pos ? ':' : '+', &tail));
    if (has_pos) out->pos = tail;
    FL_TRY(take_number(&at, '@', &pos));
    out->piece = (fl_graph_piece){
        .document_rows = document ? rows : 0, .tail_rows = document ? tail : rows, .pos = pos};
    FL_TRY(take_number(&at, '/', &out->piece.decode_rows));
    if (out->piece.decode_rows > 0) FL_TRY(take_number(&at, ':', &out->piece.decode_pos));
    bool whole = *at == 0 && rows > 0 && !(out->decode && (pos > 0 || out->piece.decode_rows > 0));
    if (!whole)
        return FL_FAIL(FL_ERR_INVALID,
                       "--shape: expected ROWS:POS, ROWS@POS or DOCUMENT+TAIL@POS, the last two perhaps with "
                       "/ANSWERS:POS behind, found '%s'",
                       text);
    if (out->decode && (out->rows > FL_GRAPH_ROWS_MAX || out->pos < out->rows - 1))
        return FL_FAIL(FL_ERR_INVALID,
                       "--shape: expected 1..%d rows and a position of at least rows - 1, found '%s'",
                       FL_GRAPH_ROWS_MAX, text);
    return FL_ERR_OK;
}

/* Positions that an engine needs for the piece's bucket. */
static int64_t positions_of(const shape *s) {
    const fl_graph_piece *p = &s->piece;
    int64_t rows = (int64_t)p->document_rows + p->tail_rows,
            n = p->pos + rows * 3 / 2 + FL_GRAPH_TAIL_ROWS_MAX;
    if (s->decode) n = s->pos + 1;
    if (n <= p->decode_pos) n = p->decode_pos + 1;
    return n > 1024 ? n : 1024;
}

static fl_err print_json(const fl_options *o, const shape *s, const fl_graph_bench *c, const char *backend) {
    return fl_cli_print_json(json_pack(
        "{s:s, s:s, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:s}", "backend", backend, "shape",
        o->shape, "rows", (json_int_t)s->rows, "pos", (json_int_t)(s->decode ? s->pos : s->piece.pos), "runs",
        (int)o->runs, "eager_s", c->eager_s, "graph_s", c->graph_s, "first_graph_s", c->first_graph_s,
        "unfilled_s", c->unfilled_s, "graph_bytes", (json_int_t)c->graph_bytes, "n_different",
        (json_int_t)c->n_different, "n_unfilled_different", (json_int_t)c->n_unfilled_different, "fault",
        c->fault));
}

static fl_err print(const fl_options *o, const shape *s, const fl_graph_bench *c, const char *backend) {
    if (o->json) return print_json(o, s, c, backend);
    const fl_graph_piece *p = &s->piece;
    if (s->decode) printf("%s, %lld rows at position %lld", backend, (long long)s->rows, (long long)s->pos);
    else
        printf("%s, a piece of %d document and %d tail rows at position %d", backend, p->document_rows,
               p->tail_rows, p->pos);
    if (p->decode_rows > 0) printf(" beside %d answers at %d", p->decode_rows, p->decode_pos);
    printf("; median of %d steps\n\n", (int)o->runs);
    if (!s->decode) printf("as it is   %s\nfilled up to its bucket:\n", fl_format_seconds(c->unfilled_s).s);
    printf("op by op   %s\n", fl_format_seconds(c->eager_s).s);
    if (c->fault[0]) {
        printf("as graph   not recorded: %s\n", c->fault);
    } else {
        printf("as graph   %s, %.2f times as fast; the first took %s and %s\n",
               fl_format_seconds(c->graph_s).s, c->eager_s / c->graph_s,
               fl_format_seconds(c->first_graph_s).s, fl_format_bytes(c->graph_bytes).s);
        printf("logits     %lld differ\n", (long long)c->n_different);
    }
    if (!s->decode && c->n_unfilled_different > 0)
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
    if (s.decode)
        FL_TRY(fl_graph_bench_run(*engine, (int32_t)s.rows, (int32_t)s.pos, (int32_t)o->runs, &check));
    else FL_TRY(fl_graph_bench_piece(*engine, &s.piece, (int32_t)o->runs, &check));
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
