/* The program itself, `firstlight serve` with the bundled model: from its start to a clean end. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "server/http_client.h"

typedef struct program {
    pid_t pid;
    int log; /* reads its standard error */
    int32_t port;
} program;

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* Starts it and waits for the port in its log. */
static program start(const char *notify, const char *const *more) {
    const char *argv[24] = {
        "firstlight", "serve", "build/models/spark-66m", "--port", "0", "--max-model-len", "16k",
        "--threads",  "1",     "--log-format",           "json"};
    int n = 11, ends[2];
    char text[8192] = "";
    size_t got = 0;
    while (more && *more) argv[n++] = *more++;
    assert_int_equal(pipe(ends), 0);
    program p = {.pid = fork(), .log = ends[0]};
    if (p.pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        if (notify) setenv("NOTIFY_SOCKET", notify, 1);
        execv(FL_CLI, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(ends[1]);
    while (!strstr(text, "\"port\":")) {
        ssize_t more_bytes = read(p.log, text + got, sizeof text - got - 1);
        if (more_bytes <= 0) fail_msg("it ended: %s", text);
        got += (size_t)more_bytes;
        text[got] = '\0';
    }
    p.port = (int32_t)strtol(strstr(text, "\"port\":") + 7, NULL, 10);
    return p;
}

static void wait_ready(const program *p) {
    double until_s = fl_now_s() + 60;
    for (int status = 0; status != 200; nap()) {
        reply r = http_get(p->port, "/health");
        status = r.status;
        reply_free(&r);
        if (fl_now_s() > until_s) fail_msg("not ready after 60 s");
    }
}

/* Its exit code, or 128 + signal. `log` gets the rest of its log, owned by the caller. */
static int finish(program *p, char **log) {
    enum { ROOM = 1 << 20 };
    int status = 0;
    *log = calloc(1, ROOM);
    assert_non_null(*log);
    for (size_t n = 0;;) {
        ssize_t got = read(p->log, *log + n, ROOM - n - 1);
        if (got <= 0) break;
        n += (size_t)got;
    }
    close(p->log);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A chat whose prompt is some 5,000 tokens, streamed. */
static int ask_long(int32_t port, int max_tokens) {
    enum { WORDS = 1500, ROOM = 1 << 16 };
    char *body = malloc(ROOM), head[256];
    assert_non_null(body);
    size_t n = (size_t)snprintf(body, ROOM,
                                "{\"stream\":true,\"max_tokens\":%d,\"ignore_eos\":true,\"messages\":[{"
                                "\"role\":\"user\",\"content\":\"",
                                max_tokens);
    for (int i = 0; i < WORDS; i++) n += (size_t)snprintf(body + n, ROOM - n, "word %d ", i);
    n += (size_t)snprintf(body + n, ROOM - n, "\"}]}");
    int fd = http_connect(port);
    int head_n =
        snprintf(head, sizeof head,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 n);
    http_send(fd, head, (size_t)head_n);
    http_send(fd, body, n);
    free(body);
    return fd;
}

/* Pages that requests hold are given back within a step of their client's leaving. */
static void leaving_gives_pages_back(const program *p) {
    double until_s = fl_now_s() + 60;
    int fd = ask_long(p->port, 2000);
    while (http_metric(p->port, "firstlight:kv_cache_usage_perc") <= 0)
        if (fl_now_s() > until_s) fail_msg("it holds no pages");
    close(fd);
    until_s = fl_now_s() + 60;
    while (http_metric(p->port, "firstlight:kv_cache_usage_perc") > 0)
        if (fl_now_s() > until_s) fail_msg("pages are still held");
}

static json_t *chat(const program *p, const char *more) {
    char body[512];
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Say "
             "something.\"}],\"max_tokens\":8,\"temperature\":0%s}",
             more);
    reply r = http_post(p->port, "/v1/chat/completions", body);
    if (r.status != 200) fail_msg("%s", r.text);
    json_t *root = json_loadb(r.body, r.body_n, 0, NULL);
    assert_non_null(root);
    reply_free(&r);
    return root;
}

/* The greedy answer streamed is the whole one, piece by piece. */
static void streams_say_what_whole_answers_say(const program *p) {
    char joined[1024] = "";
    json_t *root = chat(p, "");
    const char *whole = json_string_value(json_object_get(
        json_object_get(json_array_get(json_object_get(root, "choices"), 0), "message"), "content"));
    assert_non_null(whole);
    reply r = http_post(p->port, "/v1/chat/completions",
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"Say something.\"}],\"max_tokens\":8,"
                        "\"temperature\":0,\"stream\":true}");
    for (char *at = r.body; (at = strstr(at, "data: {")); at++) {
        json_t *chunk = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(chunk);
        const char *piece = json_string_value(json_object_get(
            json_object_get(json_array_get(json_object_get(chunk, "choices"), 0), "delta"), "content"));
        if (piece) strncat(joined, piece, sizeof joined - strlen(joined) - 1);
        json_decref(chunk);
    }
    assert_string_equal(joined, whole);
    reply_free(&r);
    json_decref(root);
}

static int open_notify(char *path) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(path, sizeof name.sun_path, "/tmp/firstlight-notify-%d", (int)getpid());
    memcpy(name.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof name), 0);
    return fd;
}

static void assert_notified(int fd, const char *wanted) {
    char text[256] = "";
    struct timeval limit = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    if (n <= 0 || !strstr(text, wanted)) fail_msg("expected %s, found '%s'", wanted, text);
}

static void serves_and_ends_cleanly(void **state) {
    char path[128], *log = NULL;
    (void)state;
    int notify = open_notify(path);
    program p = start(path, NULL);
    wait_ready(&p);
    assert_notified(notify, "READY=1");
    streams_say_what_whole_answers_say(&p);
    leaving_gives_pages_back(&p);
    reply r = http_post(p.port, "/v1/chat/completions",
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"secret-word\"}],"
                        "\"max_tokens\":2}");
    reply_free(&r);
    r = http_post(p.port, "/v1/chat/completions",
                  "{\"messages\":[{\"role\":\"secret-word\",\"content\":\"x\"}]}");
    assert_int_equal(r.status, 400);
    reply_free(&r);
    /* A stream that runs when the signal comes still ends as it should. */
    int fd = ask_long(p.port, 10);
    char *text = http_read_until(fd, ": prefill", 60);
    free(text);
    kill(p.pid, SIGTERM);
    assert_notified(notify, "STOPPING=1");
    text = http_read_until(fd, "data: [DONE]", 60);
    if (!strstr(text, "data: [DONE]")) fail_msg("the stream broke: %.300s", text);
    free(text);
    close(fd);
    assert_int_equal(finish(&p, &log), 0);
    assert_non_null(strstr(log, "\"event\":\"request\""));
    assert_non_null(strstr(log, "\"event\":\"stopped\""));
    assert_null(strstr(log, "secret-word")); /* texts are not logged */
    free(log);
    close(notify);
    unlink(path);
}

static void the_engine_is_as_the_options_say(void **state) {
    (void)state;
    static const char *const more[] = {"--policy",
                                       "window-anchors:window=1k,stride=256",
                                       "--kv-cache-dtype",
                                       "int4",
                                       "--rope",
                                       "yarn",
                                       "--rope-factor",
                                       "2",
                                       NULL};
    char *log = NULL;
    program p = start(NULL, more);
    wait_ready(&p);
    kill(p.pid, SIGTERM);
    assert_int_equal(finish(&p, &log), 0);
    assert_non_null(strstr(log, "\"kv_dtype\":\"int4\""));
    assert_non_null(strstr(log, "\"policy\":\"window-anchors:window=1024,stride=256"));
    free(log);
}

static void a_second_signal_ends_at_once(void **state) {
    char path[128], *log = NULL;
    (void)state;
    int notify = open_notify(path);
    program p = start(path, NULL);
    wait_ready(&p);
    assert_notified(notify, "READY=1");
    int fd = ask_long(p.port, 10000);
    char *text = http_read_until(fd, ": prefill", 60);
    free(text);
    kill(p.pid, SIGTERM);
    assert_notified(notify, "STOPPING=1");
    kill(p.pid, SIGTERM);
    text = http_read_until(fd, "data: [DONE]", 60);
    if (strstr(text, "\"finish_reason\":\"length\"")) fail_msg("it waited for the answer's end");
    free(text);
    assert_int_equal(finish(&p, &log), 0);
    free(log);
    close(fd);
    close(notify);
    unlink(path);
}

static int code_of(const char *const *arguments) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        execv(FL_CLI, (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void what_cannot_be_served_ends_with_its_code(void **state) {
    (void)state;
    assert_int_equal(code_of((const char *[]){"firstlight", "serve", NULL}), 2);
    assert_int_equal(code_of((const char *[]){"firstlight", "serve", "/nonexistent", "--port", "0", NULL}),
                     65);
    assert_int_equal(code_of((const char *[]){"firstlight", "serve", "build/models/spark-66m", "--host",
                                              "no.such.host.invalid", "--port", "0", NULL}),
                     1);
    assert_int_equal(code_of((const char *[]){"firstlight", "serve", "build/models/spark-66m", "--port", "0",
                                              "--max-model-len", "16m", NULL}),
                     2); /* the worker says that the context is too long, and that is the end */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(serves_and_ends_cleanly),
        cmocka_unit_test(the_engine_is_as_the_options_say),
        cmocka_unit_test(a_second_signal_ends_at_once),
        cmocka_unit_test(what_cannot_be_served_ends_with_its_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
