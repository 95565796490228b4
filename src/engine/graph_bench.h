/* One decode step run op by op and as a graph: `bench graph`. */
#ifndef FL_ENGINE_GRAPH_BENCH_H
#define FL_ENGINE_GRAPH_BENCH_H

#include "engine/engine.h"

typedef struct fl_graph_bench {
    double eager_s, graph_s, first_graph_s; /* a step, median; first: recording, making and running it */
    int64_t graph_bytes;                    /* device memory that the driver took for it */
    int64_t n_different;                    /* logits that are not the same bits */
    char fault[256];                        /* why it was not recorded; "" = it was */
} fl_graph_bench;

/* `rows` requests, the last at `pos`, the others at the positions before it, on pages nobody holds, `runs` times each
 * way. While no request runs. FL_ERR_UNSUPPORTED: the engine keeps no graphs. */
fl_err fl_graph_bench_run(fl_engine *engine, int32_t rows, int32_t pos, int32_t runs, fl_graph_bench *out);

#endif
