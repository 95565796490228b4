/* Answers a question about a file: ask MODEL_DIR FILE QUESTION. The whole public API in one use. */
#include <firstlight/firstlight.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what) {
    fprintf(stderr, "ask: %s: %s\n", what, fl_err_detail());
    return 1;
}

static int answer(fl_engine *engine, const char *prompt, size_t question_bytes) {
    const fl_message message = {.role = "user", .content = prompt, .content_bytes = strlen(prompt)};
    fl_session *session = NULL;
    fl_request *request = NULL;
    fl_request_params params;
    fl_event event;
    fl_chat_prompt chat;
    fl_request_params_default(&params);
    if (fl_chat_tokenize(engine, &message, 1, question_bytes, &chat)) return fail("prompt");
    params.tokens = chat.tokens;
    params.n_tokens = chat.n_tokens;
    params.document_tokens = chat.document_tokens;
    params.max_tokens = 64;
    if (fl_session_open(engine, &session) || fl_submit(session, &params, &request)) return fail("request");
    free(chat.tokens); /* submit copied them */
    do {
        if (fl_poll(request, 1.0, &event)) return fail("poll");
        if (event.text_bytes > 0) fwrite(event.text, 1, event.text_bytes, stdout);
    } while (event.type != FL_EVENT_DONE);
    printf("\n[%lld prompt tokens, first token after %.2f s]\n", (long long)event.prompt_tokens,
           event.ttft_s);
    fl_request_close(request);
    fl_session_close(session);
    return event.finish == FL_FINISH_ERROR;
}

int main(int argc, char **argv) {
    static char text[1 << 20];
    fl_settings settings;
    fl_engine *engine = NULL;
    FILE *file = argc == 4 ? fopen(argv[2], "rb") : NULL;
    if (!file) return fprintf(stderr, "usage: ask MODEL_DIR FILE QUESTION\n"), 2;
    size_t n = fread(text, 1, sizeof text - strlen(argv[3]) - 3, file);
    fclose(file);
    snprintf(text + n, sizeof text - n, "\n\n%s", argv[3]);
    fl_settings_default(&settings);
    settings.model_path = argv[1];
    settings.ctx_tokens = 32768;
    if (fl_engine_open(&settings, &engine)) return fail(argv[1]);
    int code = answer(engine, text, strlen(argv[3]));
    fl_engine_close(engine);
    return code;
}
