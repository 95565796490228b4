/* Documents and their answers. The engine is asked as the evaluation asks a side. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate/calibrate_private.h"
#include "eval/paired.h"

/* Every fourth document is made of look-alike keys, where choosing the wrong block shows. */
static const char *const families[] = {"spark", "spark", "spark", "ruler_niah_multikey_2"};
enum { N_FAMILIES = sizeof families / sizeof *families, TASKS_MAX = 64, TEXT_TOKENS = 256 };

#define COUNTS_FROM 0.6 /* share of a task's questions that full attention answers */

/* ---- documents -------------------------------------------------------------------------------------------------- */

static fl_err count_tokens(void *context, const char *text, size_t text_bytes, int64_t *n_tokens) {
    int32_t *tokens = NULL;
    FL_TRY(fl_tokenize(context, text, text_bytes, false, &tokens, n_tokens));
    free(tokens);
    return FL_ERR_OK;
}

fl_err fl_calibrate_set_open(fl_calibrating *c, int64_t length_tokens, int32_t n, fl_calibrate_set *out) {
    const fl_calibrate_plan *plan = c->plan;
    *out = (fl_calibrate_set){.length_tokens = length_tokens};
    out->documents = calloc((size_t)n, sizeof *out->documents);
    if (!out->documents) return FL_FAIL(FL_ERR_NOMEM, "%d documents", n);
    for (int32_t i = 0; i < n; i++) {
        const fl_calibrate_text *text = &plan->texts[i % plan->n_texts];
        const fl_eval_spec spec = {.task = families[i % N_FAMILIES],
                                   .length_tokens = length_tokens,
                                   .segment_tokens = (int32_t)length_tokens,
                                   .seed = plan->seed,
                                   .index = i,
                                   .difficulty = 0.5,
                                   .haystack = text->text,
                                   .haystack_bytes = text->n_bytes,
                                   .count = count_tokens,
                                   .count_context = c->e};
        FL_TRY(fl_eval_document_make(&spec, &out->documents[i]));
        out->n++;
        out->n_questions += out->documents[i].n_questions;
    }
    out->n_counted = out->n_questions;
    out->counts = malloc((size_t)out->n_questions * sizeof(bool));
    if (!out->counts) return FL_FAIL(FL_ERR_NOMEM, "%d questions", out->n_questions);
    for (int32_t i = 0; i < out->n_questions; i++) out->counts[i] = true;
    return FL_ERR_OK;
}

void fl_calibrate_set_close(fl_calibrate_set *set) {
    for (int32_t i = 0; i < set->n; i++) fl_eval_document_close(&set->documents[i]);
    free(set->documents);
    free(set->counts);
    *set = (fl_calibrate_set){0};
}

/* ---- the engine's heads ----------------------------------------------------------------------------------------- */

void fl_calibrate_heads_use(fl_calibrating *c, int32_t block, int32_t alpha, const bool *dense) {
    fl_attend_config *a = &c->e->attending;
    size_t n = fl_calibrate_heads(c);
    const double *bias = alpha >= 0 && c->use_bias ? c->out->mass[block].bias + (size_t)alpha * n : NULL;
    a->attend.block_tokens = fl_calibrate_block_tokens(block);
    for (size_t i = 0; i < n; i++) {
        a->log2_alpha[i] = (float)-(1 + (alpha > 0 ? alpha : 0));
        a->mean_bias[i] = (float)(6 + block + (bias ? bias[i] : 0));
    }
    a->attend.dense = dense;
    memset(a->listed, 0, n * sizeof *a->listed);
    memset(a->visible, 0, (size_t)c->out->layers * sizeof *a->visible);
    fl_engine_forget(c->e);
}

/* ---- progress ------------------------------------------------------------------------------------------------- */

void fl_calibrate_tell(const fl_calibrating *c, double fraction) {
    if (!c->plan->progress) return;
    double done = c->done + fraction * c->phase_weight;
    c->plan->progress(c->plan->progress_context, done < c->total ? done / c->total : 1, c->phase);
}

static void on_progress(void *context, double fraction, const char *note) {
    (void)note;
    fl_calibrate_tell(context, fraction);
}

/* ---- reading alone ---------------------------------------------------------------------------------------------- */

static fl_err follow(fl_calibrating *c, fl_session *session, const fl_request_params *params) {
    fl_request *request = NULL;
    fl_event event = {0};
    fl_err err = FL_ERR_OK;
    FL_TRY(fl_submit(session, params, &request));
    do {
        FL_TRY_GOTO(fl_poll(request, 0.2, &event));
        fl_calibrate_tell(c, event.done_fraction);
    } while (event.type != FL_EVENT_DONE);
    if (event.finish == FL_FINISH_ERROR) err = FL_FAIL(event.err, "%s", event.err_detail);
fail:
    fl_request_close(request);
    return err;
}

static fl_err make_chat(const fl_calibrating *c, const fl_eval_document *d, fl_chat_prompt *out) {
    const char *question = d->questions[0].text;
    size_t question_bytes = strlen(question), bytes = d->text_bytes + question_bytes;
    char *text = malloc(bytes + 1);
    if (!text) return FL_FAIL(FL_ERR_NOMEM, "prompt of %zu bytes", bytes);
    snprintf(text, bytes + 1, "%s%s", d->text, question);
    const fl_message message = {.role = "user", .content = text, .content_bytes = bytes};
    fl_err err = fl_chat_tokenize(c->e, &message, 1, question_bytes, out);
    free(text);
    return err;
}

fl_err fl_calibrate_read(fl_calibrating *c, const fl_eval_document *document, fl_session **out) {
    fl_chat_prompt chat = {0};
    fl_request_params params;
    fl_session *session = NULL;
    fl_err err;
    FL_TRY(make_chat(c, document, &chat));
    fl_request_params_default(&params);
    params.tokens = chat.tokens;
    params.n_tokens = chat.n_tokens;
    params.document_tokens = chat.document_tokens;
    params.max_tokens = 1;
    FL_TRY_GOTO(fl_session_open(c->e, &session));
    FL_TRY_GOTO(follow(c, session, &params));
    free(chat.tokens);
    *out = session;
    return FL_ERR_OK;
fail:
    free(chat.tokens);
    fl_session_close(session);
    return err;
}

/* ---- running text ----------------------------------------------------------------------------------------------- */

typedef struct text_score {
    const int32_t *tokens; /* those scored */
    double nll;            /* sum */
    int64_t n;
} text_score;

static void on_text(void *context, int64_t index, const float *logits, int32_t n_vocab) {
    text_score *t = context;
    double most = (double)logits[0], sum = 0;
    for (int32_t i = 1; i < n_vocab; i++) most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - most);
    t->nll += most + log(sum) - (double)logits[t->tokens[index]];
    t->n++;
}

/* Nats a token of a document's end. Its rows are document rows: they attend what the lists say. */
static fl_err score_text(fl_calibrating *c, const fl_eval_document *document, double *nll) {
    fl_chat_prompt chat = {0};
    fl_request_params params;
    fl_session *session = NULL;
    fl_err err;
    FL_TRY(make_chat(c, document, &chat));
    int64_t n = chat.document_tokens - chat.document_tokens % FL_ATTN_LIST_ROWS;
    text_score score = {0};
    fl_request_params_default(&params);
    params.tokens = chat.tokens;
    params.n_tokens = params.document_tokens = n;
    params.max_tokens = 1;
    params.score_tokens = n / 2 < TEXT_TOKENS ? n / 2 : TEXT_TOKENS;
    params.on_logits = on_text;
    params.on_logits_context = &score;
    score.tokens = chat.tokens + n - params.score_tokens;
    FL_TRY_GOTO(fl_session_open(c->e, &session));
    FL_TRY_GOTO(follow(c, session, &params));
    *nll = score.nll / (double)score.n;
    if (!isfinite(*nll)) err = FL_FAIL(FL_ERR_NUMERIC, "%lld tokens of text were scored", (long long)score.n);
fail:
    free(chat.tokens);
    fl_session_close(session);
    return err;
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* One document; the caller frees out->rows. The questions share the pages that scoring the text made. */
static fl_err ask_document(fl_calibrating *c, const fl_calibrate_set *set, int32_t index, double *text_nll,
                           fl_eval_result *out) {
    const fl_paired_plan plan = {.engines = &c->e,
                                 .n_sides = 1,
                                 .end_token = c->e->config->eos_ids[0],
                                 .n_segments = 1,
                                 .progress = on_progress,
                                 .progress_context = c};
    *out = (fl_eval_result){.task = families[index % N_FAMILIES], .length_tokens = set->length_tokens};
    c->phase_weight = (double)set->length_tokens;
    FL_TRY(score_text(c, &set->documents[index], text_nll));
    FL_TRY(fl_paired_ask(&plan, &set->documents[index], out));
    c->done += c->phase_weight;
    fl_calibrate_tell(c, 0);
    return FL_ERR_OK;
}

fl_err fl_calibrate_ask(fl_calibrating *c, const fl_calibrate_set *set, fl_calibrate_answers *out) {
    int32_t question = 0;
    *out = (fl_calibrate_answers){0};
    for (int32_t i = 0; i < set->n; i++) {
        fl_eval_result result;
        double text_nll;
        FL_TRY(ask_document(c, set, i, &text_nll, &result));
        out->text_nll += text_nll / set->n;
        for (int32_t k = 0; k < result.n_rows; k++, question++) {
            if (!set->counts[question]) continue;
            out->nll += result.rows[k].sides[0].nll / set->n_counted;
            out->score += result.rows[k].sides[0].score / set->n_counted;
        }
        free(result.rows);
    }
    return FL_ERR_OK;
}

/* ---- what counts ------------------------------------------------------------------------------------------------ */

typedef struct task_score {
    const char *task;
    double right, asked;
} task_score;

static task_score *score_of(task_score *tasks, const char *name) {
    for (int i = 0; i < TASKS_MAX; i++) {
        if (!tasks[i].task) tasks[i].task = name;
        if (strcmp(tasks[i].task, name) == 0) return &tasks[i];
    }
    return &tasks[TASKS_MAX - 1];
}

/* If nothing counts by the rule everything does: there is no better meter then. */
static void choose_counted(fl_calibrate_set *set, const fl_calibrate_answers *each) {
    task_score tasks[TASKS_MAX] = {0};
    int32_t question = 0;
    for (int32_t i = 0; i < set->n; i++)
        for (int32_t k = 0; k < set->documents[i].n_questions; k++, question++) {
            task_score *t = score_of(tasks, set->documents[i].questions[k].task);
            t->right += each[question].score;
            t->asked++;
        }
    question = set->n_counted = 0;
    for (int32_t i = 0; i < set->n; i++)
        for (int32_t k = 0; k < set->documents[i].n_questions; k++, question++) {
            const task_score *t = score_of(tasks, set->documents[i].questions[k].task);
            set->counts[question] = t->right >= COUNTS_FROM * t->asked;
            set->n_counted += set->counts[question];
        }
    for (int32_t i = 0; set->n_counted == 0 && i < set->n_questions; i++) set->counts[i] = true;
    if (set->n_counted == 0) set->n_counted = set->n_questions;
    for (int32_t i = 0; i < set->n_questions; i++) {
        if (!set->counts[i]) continue;
        set->full.nll += each[i].nll / set->n_counted;
        set->full.score += each[i].score / set->n_counted;
    }
}

fl_err fl_calibrate_ask_full(fl_calibrating *c, fl_calibrate_set *set) {
    fl_calibrate_answers *each = calloc((size_t)set->n_questions, sizeof *each);
    fl_err err = FL_ERR_OK;
    int32_t question = 0;
    if (!each) return FL_FAIL(FL_ERR_NOMEM, "%d questions", set->n_questions);
    set->full = (fl_calibrate_answers){0};
    for (int32_t i = 0; i < set->n; i++) {
        fl_eval_result result;
        double text_nll;
        FL_TRY_GOTO(ask_document(c, set, i, &text_nll, &result));
        set->full.text_nll += text_nll / set->n;
        for (int32_t k = 0; k < result.n_rows; k++)
            each[question++] = (fl_calibrate_answers){.nll = result.rows[k].sides[0].nll,
                                                      .score = result.rows[k].sides[0].score};
        free(result.rows);
    }
    choose_counted(set, each);
fail:
    free(each);
    return err;
}
