/* One step run op by op and as a graph: `bench graph`. */
#ifndef FL_ENGINE_GRAPH_BENCH_H
#define FL_ENGINE_GRAPH_BENCH_H

#include "engine/engine.h"

typedef struct fl_graph_bench {
    double eager_s, graph_s, first_graph_s; /* a step, median; first: recording, making and running it */
    int64_t graph_bytes;                    /* device memory that the driver took for it */
    int64_t n_different;                    /* logits that are not the same bits */
    double unfilled_s; /* of a piece of a prompt: op by op, without the rows that fill its bucket */
    int64_t
        n_unfilled_different; /* logits that are not the bits of that; where a backend's products depend on the
                                   number of rows they may */
    char fault[256];          /* why it was not recorded; "" = it was */
} fl_graph_bench;

/* `rows` requests, the last at `pos`, the others at the positions before it, on pages nobody holds, `runs` times each
 * way. While no request runs. FL_ERR_UNSUPPORTED: the engine keeps no graphs. */
fl_err fl_graph_bench_run(fl_engine *engine, int32_t rows, int32_t pos, int32_t runs, fl_graph_bench *out);

/* A piece of a prompt alike, filled up to its bucket. FL_ERR_UNSUPPORTED: it has none. */
fl_err fl_graph_bench_piece(fl_engine *engine, const fl_graph_piece *piece, int32_t runs,
                            fl_graph_bench *out);

#endif
