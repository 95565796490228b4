/* A prompt that comes while others decode: what a loaded row of the ladder measures. */
#ifndef FL_CLI_BENCH_STREAMS_H
#define FL_CLI_BENCH_STREAMS_H

#include "cli/bench.h"

enum { FL_STREAMS_MAX = 64 };

/* `n` requests with prompts of `tokens` tokens, all decoding when the prompt comes and until it has its first token. */
typedef struct fl_streams {
    int32_t n;
    int64_t tokens;
} fl_streams;

typedef struct fl_loaded {
    double ttft_s;        /* of the prompt */
    double token_s;       /* of a stream, between the prompt's submission and its first token */
    double quiet_token_s; /* of a stream before that */
    double stall_s;       /* longest wait of a stream for its next token meanwhile */
} fl_loaded;

/* KV that the streams and a prompt of n tokens need beside each other. */
int64_t fl_streams_kv_tokens(const fl_streams *streams, int64_t n_tokens);

/* A cold prompt of n_tokens beside the streams. FL_ERR_CANCELLED never: Ctrl-C ends the process. */
fl_err fl_bench_loaded(fl_bench *bench, const fl_streams *streams, int64_t n_tokens, fl_loaded *out);

#endif
