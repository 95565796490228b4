/* Answers under a JSON schema: the state of each such request, and the tokens that may come next. */
#include <stdlib.h>

#include "engine/engine.h"

fl_err fl_request_constrain(fl_request *r, const fl_request_params *p) {
    if (!p->json_schema) return FL_ERR_OK;
    if (!r->engine->masks) return FL_FAIL(FL_ERR_UNSUPPORTED, "json_schema: a synthetic model has no text");
    if (p->ignore_eos)
        return FL_FAIL(FL_ERR_INVALID,
                       "json_schema: expected ignore_eos false, since the schema says where to end");
    FL_TRY(fl_schema_compile(p->json_schema, &r->schema));
    r->schema_state = malloc(sizeof *r->schema_state);
    if (!r->schema_state) return FL_FAIL(FL_ERR_NOMEM, "json_schema");
    fl_schema_start(r->schema, r->schema_state);
    return FL_ERR_OK;
}

void fl_request_free_schema(fl_request *r) {
    fl_schema_close(r->schema);
    free(r->schema_state);
}

const uint64_t *fl_request_allowed(const fl_request *r) {
    if (!r->schema) return NULL;
    double begin_s = fl_trace_now(r->engine->trace);
    const uint64_t *mask = fl_schema_masks_get(r->engine->masks, r->schema, r->schema_state);
    fl_trace_span(r->engine->trace, FL_TRACE_TEXT, "mask", begin_s, 0);
    return mask;
}

bool fl_request_advance(fl_request *r, int32_t token) {
    size_t n;
    if (!r->schema) return false;
    const char *bytes = fl_tokenizer_token_bytes(r->engine->tokenizer, token, &n);
    if (!fl_schema_feed(r->schema, r->schema_state, bytes, n)) return true; /* no such token is allowed */
    return fl_schema_is_final(r->schema, r->schema_state);
}
