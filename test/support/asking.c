#include "support/asking.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

fl_request *submit(fl_session *s, const int32_t *ids, int64_t n, int64_t document) {
    fl_request_params p;
    fl_request *r = NULL;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = n;
    p.document_tokens = document;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    if (fl_submit(s, &p, &r) != FL_ERR_OK) fail_msg("submit: %s", fl_err_detail());
    return r;
}

static int64_t most_rows(const fl_request *r) {
    static fl_mark marks[1024];
    int32_t n = fl_request_timeline(r, marks, 1024);
    int64_t most = 0;
    for (int32_t i = 0; i < n; i++)
        if (strcmp(marks[i].name, "prefill") == 0 && marks[i].tokens > most) most = marks[i].tokens;
    return most;
}

answer finish(fl_request *r) {
    answer a = {0};
    fl_event e;
    do {
        assert_int_equal(fl_poll(r, 500, &e), FL_ERR_OK);
        if (e.type == FL_EVENT_NONE) fail_msg("no event in 500 s");
        if (e.type == FL_EVENT_TOKEN) {
            assert_true(a.n < ANSWER);
            a.tokens[a.n] = e.token;
            a.logprobs[a.n++] = e.logprob;
        }
        if (e.text) strncat(a.text, e.text, sizeof a.text - strlen(a.text) - 1);
    } while (e.type != FL_EVENT_DONE);
    a.finish = e.finish;
    a.err = e.err;
    a.cached = e.cached_tokens;
    a.ttft_s = e.ttft_s;
    a.most_rows = most_rows(r);
    if (e.err_detail) snprintf(a.detail, sizeof a.detail, "%s", e.err_detail);
    fl_request_close(r);
    return a;
}

answer ask(fl_engine *e, const int32_t *ids, int64_t n, int64_t document) {
    fl_session *s = NULL;
    assert_int_equal(fl_session_open(e, &s), FL_ERR_OK);
    answer a = finish(submit(s, ids, n, document));
    assert_int_equal(fl_session_close(s), FL_ERR_OK);
    return a;
}

void assert_same(const answer *a, const answer *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->logprobs, b->logprobs, sizeof a->logprobs);
    assert_string_equal(a->text, b->text);
}
