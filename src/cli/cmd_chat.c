/* chat: one session, turn by turn. Each turn renders the whole conversation again; the session keeps what it has
 * read, so only the new turn is computed. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/cli_answer.h"
#include "cli/format.h"
#include "cli/meters_report.h"
#include "cli/prompt.h"

/* A message up to this many bytes is read as a question: few rows over all that came before. */
enum { QUESTION_BYTES_MAX = 4096 };

typedef struct chat {
    const fl_options *options;
    bool terminal; /* on both ends: prompts are shown */
    fl_progress progress;
    fl_documents documents; /* until the first turn */
    fl_engine *engine;
    fl_session *session;
    fl_message *messages; /* [n], contents owned */
    int32_t n, capacity;
    char *line;
    size_t line_capacity;
    bool warned_of_graphs;
} chat;

/* Takes `content`. */
static fl_err add_message(chat *c, const char *role, char *content, size_t n_bytes) {
    if (content && c->n == c->capacity) {
        int32_t capacity = c->capacity ? 2 * c->capacity : 16;
        fl_message *messages = realloc(c->messages, (size_t)capacity * sizeof *messages);
        if (messages) {
            c->messages = messages;
            c->capacity = capacity;
        }
    }
    if (!content || c->n == c->capacity) {
        free(content);
        return FL_FAIL(FL_ERR_NOMEM, "conversation of %d messages", c->n + 1);
    }
    c->messages[c->n++] = (fl_message){.role = role, .content = content, .content_bytes = n_bytes};
    return FL_ERR_OK;
}

static void on_interrupt(int signal_number) {
    (void)signal_number;
}

/* Reads a line without its end. False: end of input, or Ctrl-C. */
static bool read_line(chat *c, size_t *n_bytes) {
    struct sigaction action = {.sa_handler = on_interrupt},
                     before; /* without SA_RESTART, so that reading ends */
    sigemptyset(&action.sa_mask);
    if (c->terminal) {
        fputs("\n> ", stderr);
        fflush(stderr);
    }
    sigaction(SIGINT, &action, &before);
    errno = 0;
    ssize_t n = getline(&c->line, &c->line_capacity, stdin);
    sigaction(SIGINT, &before, NULL);
    if (n < 0) {
        if (c->terminal) fputc('\n', stderr);
        return false;
    }
    while (n > 0 && (c->line[n - 1] == '\n' || c->line[n - 1] == '\r')) n--;
    c->line[n] = '\0';
    *n_bytes = (size_t)n;
    return true;
}

static fl_err add_question(chat *c, size_t *question_bytes) {
    fl_prompt prompt;
    FL_TRY(fl_prompt_make(&c->documents, c->line, &prompt));
    fl_documents_close(&c->documents);
    *question_bytes = prompt.question_bytes;
    if (c->n > 0 && prompt.n_bytes <= QUESTION_BYTES_MAX) *question_bytes = prompt.n_bytes;
    return add_message(c, "user", prompt.text, prompt.n_bytes);
}

static fl_err answer(chat *c, const int32_t *tokens, int64_t n_tokens, int64_t document_tokens,
                     fl_answer *out) {
    fl_request_params params;
    fl_ask_params(c->options, &params);
    params.tokens = tokens;
    params.n_tokens = n_tokens;
    params.document_tokens = document_tokens;
    const fl_ask ask = {.session = c->session, .params = &params, .progress = &c->progress, .stream = true};
    return fl_ask_run(&ask, out);
}

static void print_turn(chat *c, const fl_answer *a) {
    if (c->options->quiet) return;
    fprintf(stderr, "[%s tokens cached, %s computed", fl_format_count(a->cached_tokens).s,
            fl_format_count(a->prompt_tokens - a->cached_tokens).s);
    if (a->ttft_s > 0) fprintf(stderr, "; first token after %s", fl_format_seconds(a->ttft_s).s);
    if (a->decode_tokens_per_s > 0)
        fprintf(stderr, "; %s tokens, %s/s", fl_format_count(a->answer_tokens).s,
                fl_format_rate(a->decode_tokens_per_s).s);
    fprintf(stderr, "%s]\n",
            a->finish == FL_FINISH_CANCELLED ? "; stopped"
            : a->finish == FL_FINISH_LENGTH  ? "; cut off"
                                             : "");
    fl_engine_info info;
    fl_engine_get_info(c->engine, &info);
    if (info.position_warning) fprintf(stderr, "warning: %s\n", info.position_warning);
    if (info.graph_warning && !c->warned_of_graphs) fprintf(stderr, FL_GRAPH_WARNING, info.graph_warning);
    c->warned_of_graphs = info.graph_warning != NULL;
}

static fl_err take_turn(chat *c) {
    fl_chat_prompt prompt;
    size_t question_bytes;
    FL_TRY(add_question(c, &question_bytes));
    FL_TRY(fl_chat_tokenize(c->engine, c->messages, c->n, question_bytes, &prompt));
    fl_answer a;
    fl_err err = answer(c, prompt.tokens, prompt.n_tokens, prompt.document_tokens, &a);
    free(prompt.tokens);
    FL_TRY(err);
    putchar('\n');
    err = fl_cli_flush();
    print_turn(c, &a);
    if (err == FL_ERR_OK) err = add_message(c, "assistant", strdup(a.text ? a.text : ""), a.n_bytes);
    fl_answer_close(&a);
    return err;
}

/* A pipe's end is the end of the text and of the questions: none would be left. At a terminal Ctrl-D parts the two. */
static fl_err check_input(const fl_text_list *files) {
    for (int32_t i = 0; i < files->n && !isatty(STDIN_FILENO); i++)
        if (strcmp(files->items[i], "-") == 0)
            return FL_FAIL(FL_ERR_INVALID, "-f -: questions come from standard input, which is no terminal; "
                                           "give the text as a file, or one question with `firstlight run`");
    return FL_ERR_OK;
}

static fl_err converse(chat *c) {
    size_t n_bytes;
    FL_TRY(check_input(&c->options->files));
    FL_TRY(fl_documents_read(&c->options->files, &c->documents));
    FL_TRY(fl_ask_open(c->options, 0, &c->progress, &c->engine));
    FL_TRY(fl_session_open(c->engine, &c->session));
    if (c->terminal) fputs("One question a line. /quit or Ctrl-D ends; Ctrl-C stops an answer.\n", stderr);
    while (read_line(c, &n_bytes)) {
        if (strcmp(c->line, "/quit") == 0) break;
        if (strspn(c->line, " \t") == n_bytes) continue;
        FL_TRY(take_turn(c));
    }
    fl_meters meters;
    fl_engine_get_meters(c->engine, &meters);
    if (!c->options->quiet) fl_meters_print(stderr, &meters);
    return fl_cli_write_trace(c->options, c->engine);
}

static void close_all(chat *c) {
    fl_session_close(c->session);
    fl_engine_close(c->engine);
    for (int32_t i = 0; i < c->n; i++) free((char *)(uintptr_t)c->messages[i].content);
    free(c->messages);
    free(c->line);
    fl_documents_close(&c->documents);
}

int fl_cmd_chat(const fl_options *options) {
    chat c = {.options = options, .terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO)};
    fl_progress_init(&c.progress, options);
    fl_err err = converse(&c);
    int code = err == FL_ERR_OK ? 0 : fl_cli_fail("chat", err);
    close_all(&c);
    return code;
}
