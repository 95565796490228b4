#include "eval/paired.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A question as every side gets it: prompt, forced beginning, reference, end. */
typedef struct prompt {
    int32_t *tokens; /* [n_tokens] */
    int64_t n_tokens, document_tokens;
    int64_t n_scored;  /* the last tokens: reference and end */
    int64_t first_row; /* of the document's scored rows: where this question's begin */
} prompt;

/* The scored rows of one document: logits as the engine gave them, and the log of their sum of exponentials. */
typedef struct scored {
    float *logits;    /* [n][n_vocab] */
    double *log_sums; /* [n] */
} scored;

typedef struct asking {
    const fl_paired_plan *plan;
    const fl_eval_document *document;
    fl_eval_result *out;
    prompt *prompts; /* [n_questions] */
    int64_t n_rows;
    int32_t n_vocab;
    scored base, other;
    fl_session *session;
    double done, total; /* of the progress, in tokens read by a side */
    double weight;      /* of this document on one side */
} asking;

/* What a request's callback fills. */
typedef struct sink {
    scored *rows;
    int64_t first_row, n_scored, n_seen;
    int32_t n_vocab;
} sink;

/* ---- prompts ---------------------------------------------------------------------------------------------------- */

static fl_err append(int32_t **tokens, int64_t *n, const int32_t *more, int64_t n_more) {
    int32_t *grown = realloc(*tokens, (size_t)(*n + n_more) * sizeof *grown);
    if (!grown) return FL_FAIL(FL_ERR_NOMEM, "prompt of %lld tokens", (long long)(*n + n_more));
    memcpy(grown + *n, more, (size_t)n_more * sizeof *grown);
    *tokens = grown;
    *n += n_more;
    return FL_ERR_OK;
}

/* The answer's tokens behind the prompt. Beginning and reference are one text, so they are tokenised as one, unless a
 * token then reaches across their border: it could not be half forced. */
static fl_err append_answer(const fl_paired_plan *plan, const fl_eval_question *q, prompt *p) {
    fl_engine *engine = plan->engines[0];
    size_t head_bytes = strlen(q->answer_head), bytes = head_bytes + strlen(q->reference);
    int32_t *head = NULL, *whole = NULL, *rest = NULL;
    int64_t n_head = 0, n_whole = 0, n_rest = 0;
    fl_err err = FL_ERR_OK;
    char *text = malloc(bytes + 1);
    if (!text) return FL_FAIL(FL_ERR_NOMEM, "answer of %zu bytes", bytes);
    snprintf(text, bytes + 1, "%s%s", q->answer_head, q->reference);
    FL_TRY_GOTO(fl_tokenize(engine, text, head_bytes, false, &head, &n_head));
    FL_TRY_GOTO(fl_tokenize(engine, text, bytes, false, &whole, &n_whole));
    if (n_head <= n_whole && memcmp(head, whole, (size_t)n_head * sizeof *head) == 0) {
        FL_TRY_GOTO(append(&p->tokens, &p->n_tokens, whole, n_whole));
        p->n_scored = n_whole - n_head + 1;
    } else {
        FL_TRY_GOTO(fl_tokenize(engine, text + head_bytes, bytes - head_bytes, false, &rest, &n_rest));
        FL_TRY_GOTO(append(&p->tokens, &p->n_tokens, head, n_head));
        FL_TRY_GOTO(append(&p->tokens, &p->n_tokens, rest, n_rest));
        p->n_scored = n_rest + 1;
    }
    FL_TRY_GOTO(append(&p->tokens, &p->n_tokens, &plan->end_token, 1));
fail:
    free(rest);
    free(whole);
    free(head);
    free(text);
    return err;
}

static fl_err make_prompt(const fl_paired_plan *plan, const fl_eval_document *d, const fl_eval_question *q,
                          prompt *out) {
    size_t question_bytes = strlen(q->text), bytes = d->text_bytes + question_bytes;
    char *text = malloc(bytes + 1);
    if (!text) return FL_FAIL(FL_ERR_NOMEM, "prompt of %zu bytes", bytes);
    memcpy(text, d->text, d->text_bytes);
    memcpy(text + d->text_bytes, q->text, question_bytes + 1);
    const fl_message message = {.role = "user", .content = text, .content_bytes = bytes};
    fl_chat_prompt chat;
    fl_err err = fl_chat_tokenize(plan->engines[0], &message, 1, question_bytes, &chat);
    free(text);
    if (err != FL_ERR_OK) return err;
    *out =
        (prompt){.tokens = chat.tokens, .n_tokens = chat.n_tokens, .document_tokens = chat.document_tokens};
    if (chat.document_tokens < 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "the chat template hides where a question begins");
    return append_answer(plan, q, out);
}

/* Plain text from its first token on; the reference's tokens are those behind the document's. */
static fl_err make_running(const fl_paired_plan *plan, const fl_eval_document *d, const fl_eval_question *q,
                           prompt *out) {
    size_t more_bytes = strlen(q->reference), bytes = d->text_bytes + more_bytes;
    int32_t *document = NULL, *whole = NULL;
    int64_t n_document = 0, n_whole = 0;
    fl_err err = FL_ERR_OK;
    fl_engine_info info;
    fl_engine_get_info(plan->engines[0], &info);
    char *text = malloc(bytes + 1);
    if (!text) return FL_FAIL(FL_ERR_NOMEM, "text of %zu bytes", bytes);
    memcpy(text, d->text, d->text_bytes);
    memcpy(text + d->text_bytes, q->reference, more_bytes + 1);
    FL_TRY_GOTO(fl_tokenize(plan->engines[0], text, d->text_bytes, false, &document, &n_document));
    FL_TRY_GOTO(fl_tokenize(plan->engines[0], text, bytes, false, &whole, &n_whole));
    if (info.bos_token >= 0) FL_TRY_GOTO(append(&out->tokens, &out->n_tokens, &info.bos_token, 1));
    FL_TRY_GOTO(append(&out->tokens, &out->n_tokens, whole, n_whole));
    out->document_tokens = out->n_tokens;
    out->n_scored = n_whole - n_document;
    if (n_document < 1 || out->n_scored < 1)
        err = FL_FAIL(FL_ERR_INTERNAL, "a text of %lld tokens, %lld of them scored", (long long)n_whole,
                      (long long)out->n_scored);
fail:
    free(document);
    free(whole);
    free(text);
    return err;
}

static fl_err make_prompts(asking *a) {
    int32_t n = a->document->n_questions;
    if (n < 1 || n > FL_EVAL_QUESTIONS_MAX)
        return FL_FAIL(FL_ERR_INTERNAL, "a document has %d questions, expected 1 to %d", n,
                       FL_EVAL_QUESTIONS_MAX);
    a->prompts = calloc((size_t)n, sizeof *a->prompts);
    a->out->rows = calloc((size_t)n, sizeof *a->out->rows);
    if (!a->prompts || !a->out->rows) return FL_FAIL(FL_ERR_NOMEM, "%d questions", n);
    a->out->n_rows = n;
    for (int32_t i = 0; i < n; i++) {
        const fl_eval_question *q = &a->document->questions[i];
        FL_TRY((q->running_text ? make_running : make_prompt)(a->plan, a->document, q, &a->prompts[i]));
        a->prompts[i].first_row = a->n_rows;
        a->n_rows += a->prompts[i].n_scored;
        a->out->rows[i] = (fl_eval_row){.task = q->task,
                                        .depth = q->depth,
                                        .segment_distance = q->segment_distance,
                                        .n_scored = (int32_t)a->prompts[i].n_scored};
    }
    return FL_ERR_OK;
}

static fl_err open_rows(const asking *a, scored *out) {
    out->logits = calloc((size_t)a->n_rows, (size_t)a->n_vocab * sizeof *out->logits);
    out->log_sums = calloc((size_t)a->n_rows, sizeof *out->log_sums);
    return out->logits && out->log_sums
               ? FL_ERR_OK
               : FL_FAIL(FL_ERR_NOMEM, "logits of %lld answer tokens", (long long)a->n_rows);
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

static void on_logits(void *context, int64_t index, const float *logits, int32_t n_vocab) {
    sink *s = context;
    if (index < 0 || index >= s->n_scored || n_vocab != s->n_vocab) return;
    memcpy(s->rows->logits + (s->first_row + index) * n_vocab, logits, (size_t)n_vocab * sizeof *logits);
    s->n_seen++;
}

static void tell(const asking *a, double fraction, int32_t side) {
    char note[96];
    if (!a->plan->progress) return;
    snprintf(note, sizeof note, "%s %lld tokens, document %d, side %d of %d", a->out->task,
             (long long)a->out->length_tokens, a->out->index + 1, side + 1, a->plan->n_sides);
    a->plan->progress(a->plan->progress_context,
                      a->total > 0 ? (a->done + fraction * a->weight) / a->total : 0, note);
}

/* Text of an answer, NUL behind; owned. */
typedef struct answer {
    char *text;
    size_t n_bytes;
} answer;

static fl_err take_text(const fl_event *event, answer *out) {
    char *text = realloc(out->text, out->n_bytes + event->text_bytes + 1);
    if (!text) return FL_FAIL(FL_ERR_NOMEM, "answer of %zu bytes", out->n_bytes + event->text_bytes);
    if (event->text_bytes > 0) memcpy(text + out->n_bytes, event->text, event->text_bytes);
    out->text = text;
    out->n_bytes += event->text_bytes;
    text[out->n_bytes] = '\0';
    return FL_ERR_OK;
}

/* Submits, waits, adds to the side's costs. out NULL = the text does not matter. */
static fl_err follow(const asking *a, int32_t side, const fl_request_params *params, answer *out,
                     double *ttft_s) {
    fl_request *request = NULL;
    fl_event event = {0};
    fl_err err = FL_ERR_OK;
    FL_TRY(fl_submit(a->session, params, &request));
    do {
        FL_TRY_GOTO(fl_poll(request, 0.2, &event));
        if (out && (event.type == FL_EVENT_TOKEN || event.type == FL_EVENT_DONE))
            FL_TRY_GOTO(take_text(&event, out));
        tell(a, event.cached_tokens > 0 ? 1 : event.done_fraction, side);
    } while (event.type != FL_EVENT_DONE);
    if (event.finish == FL_FINISH_ERROR) err = FL_FAIL(event.err, "%s", event.err_detail);
    fl_eval_cost *cost = &a->out->costs[side];
    cost->computed_tokens += event.prompt_tokens - event.cached_tokens;
    cost->cached_tokens += event.cached_tokens;
    cost->n_reads += event.cached_tokens < params->document_tokens / 2;
    *ttft_s = event.ttft_s;
fail:
    fl_request_close(request);
    return err;
}

/* ---- one question ------------------------------------------------------------------------------------------------ */

static double log_sum(const float *logits, int32_t n) {
    double most = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) most = logits[i] > most ? (double)logits[i] : most;
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

static int32_t likeliest(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* KL of one row's distributions, exactly 0 when they are the same bits. */
static double divergence(const asking *a, int64_t row) {
    const float *base = a->base.logits + row * a->n_vocab, *other = a->other.logits + row * a->n_vocab;
    double shift_base = a->base.log_sums[row], shift_other = a->other.log_sums[row], sum = 0;
    for (int32_t i = 0; i < a->n_vocab; i++) {
        double log_p = (double)base[i] - shift_base;
        sum += exp(log_p) * (log_p - ((double)other[i] - shift_other));
    }
    return sum;
}

static fl_err judge_rows(asking *a, int32_t side, int32_t question, fl_eval_outcome *out) {
    const prompt *p = &a->prompts[question];
    scored *rows = side == 0 ? &a->base : &a->other;
    out->exact = true;
    for (int64_t i = 0; i < p->n_scored; i++) {
        int64_t row = p->first_row + i;
        const float *logits = rows->logits + row * a->n_vocab;
        int32_t token = p->tokens[p->n_tokens - p->n_scored + i];
        rows->log_sums[row] = log_sum(logits, a->n_vocab);
        out->exact = out->exact && likeliest(logits, a->n_vocab) == token;
        out->nll += (rows->log_sums[row] - (double)logits[token]) / (double)p->n_scored;
        if (side > 0) out->kl += divergence(a, row) / (double)p->n_scored;
    }
    if (!isfinite(out->nll) || !isfinite(out->kl))
        return FL_FAIL(FL_ERR_NUMERIC, "side %d: the answer's log-probability is not finite", side + 1);
    return FL_ERR_OK;
}

static fl_err score_reference(asking *a, int32_t side, int32_t question, fl_eval_outcome *out) {
    const prompt *p = &a->prompts[question];
    sink s = {.rows = side == 0 ? &a->base : &a->other,
              .first_row = p->first_row,
              .n_scored = p->n_scored,
              .n_vocab = a->n_vocab};
    fl_request_params params;
    double ttft_s;
    fl_request_params_default(&params);
    params.tokens = p->tokens;
    params.n_tokens = p->n_tokens;
    params.document_tokens = p->document_tokens;
    params.max_tokens = 1;
    params.score_tokens = p->n_scored;
    params.on_logits = on_logits;
    params.on_logits_context = &s;
    FL_TRY(follow(a, side, &params, NULL, &ttft_s));
    if (s.n_seen != p->n_scored)
        return FL_FAIL(FL_ERR_INTERNAL, "%lld of %lld answer tokens were scored", (long long)s.n_seen,
                       (long long)p->n_scored);
    if (question == 0) a->out->costs[side].prefill_s = ttft_s;
    return judge_rows(a, side, question, out);
}

static fl_err score_answer(const asking *a, int32_t side, int32_t question, fl_eval_outcome *out) {
    const prompt *p = &a->prompts[question];
    const fl_eval_question *q = &a->document->questions[question];
    answer got = {0};
    fl_request_params params;
    double ttft_s;
    if (q->running_text) return FL_ERR_OK; /* nothing to be right */
    if (out->exact) {
        out->score = fl_eval_score(q, q->reference, strlen(q->reference));
        return FL_ERR_OK;
    }
    fl_request_params_default(&params);
    params.tokens = p->tokens;
    params.n_tokens = p->n_tokens - p->n_scored;
    params.document_tokens = p->document_tokens;
    params.max_tokens = q->max_tokens;
    fl_err err = follow(a, side, &params, &got, &ttft_s);
    if (err == FL_ERR_OK) out->score = fl_eval_score(q, got.text, got.n_bytes);
    free(got.text);
    return err;
}

static fl_err ask_side(asking *a, int32_t side) {
    fl_err err = FL_ERR_OK;
    FL_TRY(fl_session_open(a->plan->engines[side], &a->session));
    for (int32_t i = 0; i < a->document->n_questions; i++) {
        fl_eval_outcome *out = &a->out->rows[i].sides[side];
        FL_TRY_GOTO(score_reference(a, side, i, out));
        FL_TRY_GOTO(score_answer(a, side, i, out));
    }
    a->done += a->weight;
fail:
    fl_session_close(a->session); /* no request of it is left */
    a->session = NULL;
    return err;
}

static void close_asking(asking *a) {
    for (int32_t i = 0; a->prompts && i < a->document->n_questions; i++) free(a->prompts[i].tokens);
    free(a->prompts);
    free(a->base.logits);
    free(a->base.log_sums);
    free(a->other.logits);
    free(a->other.log_sums);
}

static fl_err ask_document(asking *a) {
    fl_engine_info info;
    fl_err err = FL_ERR_OK;
    fl_engine_get_info(a->plan->engines[0], &info);
    a->n_vocab = info.n_vocab;
    if (a->plan->end_token < 0 || a->plan->end_token >= a->n_vocab)
        return FL_FAIL(FL_ERR_INVALID, "end_token: expected 0..%d, found %d", a->n_vocab - 1,
                       a->plan->end_token);
    FL_TRY_GOTO(make_prompts(a));
    FL_TRY_GOTO(open_rows(a, &a->base));
    if (a->plan->n_sides > 1) FL_TRY_GOTO(open_rows(a, &a->other));
    for (int32_t side = 0; side < a->plan->n_sides; side++) FL_TRY_GOTO(ask_side(a, side));
fail:
    close_asking(a);
    if (err == FL_ERR_OK) return FL_ERR_OK;
    free(a->out->rows);
    a->out->rows = NULL;
    a->out->n_rows = 0;
    return err;
}

fl_err fl_paired_ask(const fl_paired_plan *plan, const fl_eval_document *document, fl_eval_result *out) {
    asking a = {.plan = plan, .document = document, .out = out, .total = plan->n_sides, .weight = 1};
    return ask_document(&a);
}

/* ---- all documents ---------------------------------------------------------------------------------------------- */

static fl_err count_tokens(void *context, const char *text, size_t text_bytes, int64_t *n_tokens) {
    int32_t *tokens = NULL;
    FL_TRY(fl_tokenize(context, text, text_bytes, false, &tokens, n_tokens));
    free(tokens);
    return FL_ERR_OK;
}

static fl_err run_document(const fl_paired_plan *plan, double done, double total, fl_eval_result *out) {
    const fl_eval_spec spec = {.task = out->task,
                               .length_tokens = out->length_tokens,
                               .segment_tokens = (int32_t)(out->length_tokens / plan->n_segments),
                               .seed = plan->seed,
                               .index = out->index,
                               .difficulty = plan->difficulty,
                               .haystack = plan->haystack,
                               .haystack_bytes = plan->haystack_bytes,
                               .count = count_tokens,
                               .count_context = plan->engines[0]};
    fl_eval_document document;
    FL_TRY(fl_eval_document_make(&spec, &document));
    asking a = {.plan = plan,
                .document = &document,
                .out = out,
                .done = done,
                .total = total,
                .weight = (double)out->length_tokens};
    fl_err err = ask_document(&a);
    fl_eval_document_close(&document);
    if (err == FL_ERR_OK && plan->resume) err = fl_eval_resume_add(plan->resume, out, plan->n_sides);
    return err;
}

fl_err fl_paired_run(const fl_paired_plan *plan, fl_eval_results *results) {
    double done = 0, total = 0;
    if (plan->n_sides != results->n_sides || plan->n_segments < 1)
        return FL_FAIL(FL_ERR_INVALID, "expected %d sides and at least one segment, found %d and %d",
                       results->n_sides, plan->n_sides, plan->n_segments);
    for (int32_t i = 0; i < results->n; i++)
        if (!results->items[i].rows) total += (double)results->items[i].length_tokens * plan->n_sides;
    for (int32_t i = 0; i < results->n; i++) {
        fl_eval_result *r = &results->items[i];
        if (r->rows) continue;
        FL_TRY(run_document(plan, done, total, r));
        done += (double)r->length_tokens * plan->n_sides;
    }
    return FL_ERR_OK;
}
