#include "cli/bench_streams.h"

#include <stdlib.h>

#include "base/clock.h"

enum { QUIET_TOKENS = 16, ANSWER_MAX = 4096 };

typedef struct stream {
    fl_session *session;
    fl_request *request;
    int32_t *ids;
    int64_t tokens;
    double last_s; /* when the last token came; 0 = none yet */
    double stall_s;
    bool ended;
} stream;

typedef struct loading {
    fl_bench *bench;
    stream all[FL_STREAMS_MAX + 1]; /* [0] is the prompt */
    int32_t n;                      /* with it */
} loading;

int64_t fl_streams_kv_tokens(const fl_streams *s, int64_t n_tokens) {
    return fl_align_up(n_tokens, FL_KV_PAGE_TOKENS) +
           s->n * fl_align_up(s->tokens + ANSWER_MAX + FL_KV_PAGE_TOKENS, FL_KV_PAGE_TOKENS);
}

static fl_err submit(loading *l, stream *s, int64_t n_tokens, int64_t max_tokens) {
    fl_request_params params;
    fl_request_params_default(&params);
    int64_t room = l->bench->engine->ctx_tokens - n_tokens;
    FL_TRY(fl_bench_prompt(l->bench, n_tokens, &s->ids));
    FL_TRY(fl_session_open(l->bench->engine, &s->session));
    params.tokens = s->ids;
    params.n_tokens = params.document_tokens = n_tokens;
    params.max_tokens = max_tokens < room ? max_tokens : room;
    params.ignore_eos = true;
    params.context = s;
    return fl_submit(s->session, &params, &s->request);
}

/* What a request has to tell now. */
static fl_err take_events(stream *s) {
    fl_event event;
    do {
        FL_TRY(fl_poll(s->request, 0, &event));
        double now_s = fl_now_s();
        if (event.type == FL_EVENT_TOKEN) {
            if (s->last_s > 0 && now_s - s->last_s > s->stall_s) s->stall_s = now_s - s->last_s;
            s->last_s = now_s;
            s->tokens++;
        }
        if (event.type == FL_EVENT_DONE) {
            s->ended = true;
            if (event.finish == FL_FINISH_ERROR) return FL_FAIL(event.err, "%s", event.err_detail);
        }
    } while (event.type != FL_EVENT_NONE && event.type != FL_EVENT_DONE);
    return FL_ERR_OK;
}

/* Until every one of [first, n) has `tokens` tokens. */
static fl_err follow(loading *l, int32_t first, int32_t n, int64_t tokens) {
    fl_request *ready[FL_STREAMS_MAX + 1];
    for (;;) {
        bool all = true;
        for (int32_t i = first; i < n; i++) all = all && l->all[i].tokens >= tokens;
        if (all) return FL_ERR_OK;
        int32_t n_ready = fl_engine_wait(l->bench->engine, 1, ready, FL_STREAMS_MAX + 1);
        for (int32_t i = 0; i < n_ready; i++) FL_TRY(take_events(fl_request_context(ready[i])));
        for (int32_t i = 1; i < l->n; i++)
            if (l->all[i].ended)
                return FL_FAIL(FL_ERR_INVALID,
                               "a decode stream ended before the prompt had its first token: --tokens is too "
                               "short beside --stream-tokens %lld",
                               (long long)l->bench->options->stream_tokens);
    }
}

static int64_t stream_tokens(const loading *l) {
    int64_t sum = 0;
    for (int32_t i = 1; i < l->n; i++) sum += l->all[i].tokens;
    return sum;
}

static fl_err run(loading *l, const fl_streams *streams, int64_t n_tokens, fl_loaded *out) {
    stream *prompt = &l->all[0];
    for (int32_t i = 0; i < streams->n; i++, l->n++)
        FL_TRY(submit(l, &l->all[1 + i], streams->tokens, ANSWER_MAX));
    FL_TRY(follow(l, 1, l->n, 2));
    double start_s = fl_now_s();
    int64_t before = stream_tokens(l);
    FL_TRY(follow(l, 1, l->n, l->all[1].tokens + QUIET_TOKENS));
    out->quiet_token_s = (fl_now_s() - start_s) * streams->n / (double)(stream_tokens(l) - before);
    for (int32_t i = 1; i < l->n; i++) l->all[i].stall_s = 0;
    start_s = fl_now_s();
    before = stream_tokens(l);
    FL_TRY(submit(l, prompt, n_tokens, 1));
    FL_TRY(follow(l, 0, 1, 1));
    double window_s = prompt->last_s - start_s;
    out->ttft_s = window_s;
    int64_t made = stream_tokens(l) - before;
    out->token_s = made > 0 ? window_s * streams->n / (double)made : window_s;
    for (int32_t i = 1; i < l->n; i++) {
        double open_s = prompt->last_s - l->all[i].last_s; /* still waiting */
        if (l->all[i].stall_s > out->stall_s) out->stall_s = l->all[i].stall_s;
        if (open_s > out->stall_s) out->stall_s = open_s;
    }
    return FL_ERR_OK;
}

fl_err fl_bench_loaded(fl_bench *b, const fl_streams *streams, int64_t n_tokens, fl_loaded *out) {
    *out = (fl_loaded){0};
    if (streams->n < 1 || streams->n > FL_STREAMS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "--streams: expected 1 to %d, found %d", FL_STREAMS_MAX, streams->n);
    loading *l = calloc(1, sizeof *l);
    if (!l) return FL_FAIL(FL_ERR_NOMEM, "streams");
    l->bench = b;
    l->n = 1;
    fl_err err = run(l, streams, n_tokens, out);
    for (int32_t i = 0; i < l->n; i++)
        if (l->all[i].request) fl_cancel(l->all[i].request);
    for (int32_t i = 0; i <= streams->n; i++) {
        fl_request_close(l->all[i].request);
        fl_session_close(l->all[i].session);
        free(l->all[i].ids);
    }
    free(l);
    return err;
}
