/* run: reads files, answers one question, shows where the time went. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/answer_report.h"
#include "cli/meters_report.h"
#include "cli/prompt.h"

typedef struct running {
    const fl_options *options;
    fl_progress progress;
    fl_documents documents;
    fl_prompt prompt;
    fl_engine *engine;
    fl_session *session;
    fl_chat_prompt chat;
    fl_answer_times times;
    fl_answer answer;
} running;

static fl_err tokenise(running *r) {
    const fl_message message = {
        .role = "user", .content = r->prompt.text, .content_bytes = r->prompt.n_bytes};
    r->times.tokenise_begin_s = fl_now_s();
    FL_TRY(fl_chat_tokenize(r->engine, &message, 1, r->prompt.question_bytes, &r->chat));
    r->times.tokenise_end_s = fl_now_s();
    return FL_ERR_OK;
}

static fl_err answer(running *r) {
    const fl_options *o = r->options;
    const char *question = o->operands.n > 1 ? o->operands.items[1] : "";
    if (o->files.n == 0 && !*question)
        return FL_FAIL(FL_ERR_INVALID, "expected a question, or a text with -f FILE, or both");
    FL_TRY(fl_documents_read(&o->files, &r->documents));
    FL_TRY(fl_prompt_make(&r->documents, question, &r->prompt));
    r->times.load_begin_s = fl_now_s();
    FL_TRY(fl_ask_open(o, fl_prompt_ctx(o, &r->prompt), &r->progress, &r->engine));
    r->times.load_end_s = fl_now_s();
    FL_TRY(tokenise(r));
    FL_TRY(fl_session_open(r->engine, &r->session));
    fl_request_params params;
    fl_ask_params(o, &params);
    params.tokens = r->chat.tokens;
    params.n_tokens = r->chat.n_tokens;
    params.document_tokens = r->chat.document_tokens;
    const fl_ask ask = {
        .session = r->session, .params = &params, .progress = &r->progress, .stream = !o->json};
    r->times.submit_s = fl_now_s();
    return fl_ask_run(&ask, &r->answer);
}

static fl_err report(running *r) {
    const fl_options *o = r->options;
    fl_answer_report about = {
        .answer = &r->answer, .times = &r->times, .documents = &r->documents, .memory = fl_memory_now()};
    fl_engine_get_info(r->engine, &about.info);
    fl_engine_get_meters(r->engine, &about.meters);
    if (!o->json) {
        putchar('\n');
        FL_TRY(fl_cli_flush());
    }
    if (!o->quiet && !o->json) fl_answer_print(stderr, &about);
    FL_TRY(fl_cli_write_trace(o, r->engine));
    return o->json ? fl_cli_print_json(fl_answer_json(&about, o->operands.items[0])) : FL_ERR_OK;
}

static void close_all(running *r) {
    fl_answer_close(&r->answer);
    free(r->chat.tokens);
    fl_session_close(r->session);
    fl_engine_close(r->engine);
    fl_prompt_close(&r->prompt);
    fl_documents_close(&r->documents);
    free(r);
}

int fl_cmd_run(const fl_options *options) {
    running *r = calloc(1, sizeof *r);
    if (!r) return fl_cli_fail("run", FL_FAIL(FL_ERR_NOMEM, "run"));
    r->options = options;
    fl_progress_init(&r->progress, options);
    fl_err err = answer(r);
    if (err == FL_ERR_OK) err = report(r);
    int code = err != FL_ERR_OK                          ? fl_cli_fail("run", err)
               : r->answer.finish == FL_FINISH_CANCELLED ? FL_EXIT_INTERRUPTED
                                                         : 0;
    close_all(r);
    return code;
}
