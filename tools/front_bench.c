/* What the front costs, without a model: front_bench STUB_WORKER STREAMS TOKENS [RATE [HALF_OPEN [STALLED]]]
 * serves STREAMS streams of TOKENS tokens at RATE (20) a second each from a worker that only counts, and shows
 * lost and reordered tokens, how late one arrives at the client after the worker wrote it, and CPU time a
 * token of the front's process. HALF_OPEN connections never end their head, STALLED streams are never read. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/serve.h"

enum { LATE_MAX = 1 << 22, BUFFER = 1 << 16, TICKS = 100 };
static const double LONG_S = 600;

typedef struct stream {
    int fd;
    long next;       /* the token that is due */
    char held[1024]; /* the beginning of an event whose end has not come yet */
    size_t n_held;
    bool done;
} stream;

static float *late_s; /* [n_late] */
static long n_late, n_wrong, n_done, n_tokens;

static void serve(const char *stub, const char *rate, int requests, int fds[2]) {
    const char *const command[] = {stub, "--rate", rate, NULL};
    fl_serve_options o;
    fl_serve *server = NULL;
    char byte;
    fl_serve_options_default(&o);
    o.http.port = 0;
    o.http.head_s = o.http.body_s = LONG_S;
    o.http.connections_max = 1 << 16;
    o.link.settings.model_path = "build/models/spark-66m";
    o.link.command = command;
    o.requests_max = requests;
    o.log_fd = -1;
    signal(SIGPIPE, SIG_IGN);
    if (fl_serve_open(&o, &server) != FL_ERR_OK) {
        fprintf(stderr, "front_bench: %s\n", fl_err_detail());
        _exit(1);
    }
    int32_t port = fl_serve_port(server);
    if (write(fds[1], &port, sizeof port) != sizeof port) _exit(1);
    if (read(fds[0], &byte, 1) < 0) _exit(1);
    fl_serve_close(server);
    _exit(0);
}

static int connect_to(int32_t port, int receive_bytes) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) {
        perror("front_bench: connect");
        exit(1);
    }
    return fd;
}

static int ask(int32_t port, long tokens, int receive_bytes) {
    char body[160], text[512];
    int n = snprintf(
        body, sizeof body,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":%ld,\"stream\":true}", tokens);
    n = snprintf(text, sizeof text,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: %d\r\n\r\n%s",
                 n, body);
    int fd = connect_to(port, receive_bytes);
    if (write(fd, text, (size_t)n) != n) exit(1);
    return fd;
}

static void wait_ready(int32_t port) {
    static const char get[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char text[256] = "";
    while (strncmp(text, "HTTP/1.1 200", 12) != 0) {
        int fd = connect_to(port, 0);
        ssize_t n = write(fd, get, sizeof get - 1);
        n = n > 0 ? read(fd, text, sizeof text - 1) : 0;
        text[n > 0 ? n : 0] = '\0';
        close(fd);
        usleep(10000);
    }
}

/* Of a process, from /proc. */
static double cpu_s(pid_t pid) {
    char path[64], text[1024] = "";
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    char *at = strrchr(text, ')'); /* the name before it may hold blanks */
    for (int field = 2; at && field < 15; field++) {
        at = strchr(at + 1, ' ');
        if (at && field == 13) user = strtoul(at + 1, NULL, 10);
        if (at && field == 14) system = strtoul(at + 1, NULL, 10);
    }
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* One event of the stream, NUL-terminated. A token's content is "ID:MICROSECONDS ". */
static void take_event(stream *s, const char *event, double now_s) {
    static const char key[] = "\"delta\":{\"content\":\"";
    if (strncmp(event, "data: [DONE]", 12) == 0 && !s->done) {
        s->done = true;
        n_done++;
    }
    const char *at = strstr(event, key);
    if (!at) return;
    char *end = NULL;
    long id = strtol(at + sizeof key - 1, &end, 10);
    n_wrong += id != s->next++;
    n_tokens++;
    if (*end == ':' && n_late < LATE_MAX) late_s[n_late++] = (float)(now_s - strtod(end + 1, NULL) * 1e-6);
}

static void take(stream *s, char *text, double now_s) {
    for (char *end; (end = strstr(text, "\n\n")); text = end + 2) {
        *end = '\0';
        char *event = strstr(text, "data: ");
        if (event) take_event(s, event, now_s);
    }
    s->n_held = strlen(text);
    if (s->n_held >= sizeof s->held) s->n_held = 0;
    memcpy(s->held, text, s->n_held);
}

static void read_stream(stream *s) {
    static char text[BUFFER + 2048];
    memcpy(text, s->held, s->n_held);
    ssize_t n = recv(s->fd, text + s->n_held, BUFFER, MSG_DONTWAIT);
    double now_s = fl_now_s();
    if (n <= 0) {
        if (n == 0 && !s->done) n_done++;
        s->done = s->done || n == 0;
        return;
    }
    text[s->n_held + (size_t)n] = '\0';
    take(s, text, now_s);
}

static void read_all(stream *streams, long n) {
    struct epoll_event events[256];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    double until_s = fl_now_s() + LONG_S;
    for (long i = 0; i < n; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &streams[i]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, streams[i].fd, &event);
    }
    while (n_done < n && fl_now_s() < until_s) {
        int got = epoll_wait(epoll, events, 256, TICKS);
        for (int i = 0; i < got; i++) {
            stream *s = events[i].data.ptr;
            read_stream(s);
            if (s->done) epoll_ctl(epoll, EPOLL_CTL_DEL, s->fd, NULL);
        }
    }
    close(epoll);
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double late_ms(double share) {
    return n_late > 0 ? 1e3 * (double)late_s[(long)(share * (double)(n_late - 1))] : 0;
}

static long number(int argc, char **argv, int i, long fallback) {
    return i < argc ? strtol(argv[i], NULL, 10) : fallback;
}

/* What is asked of the front; `rate` is of every stream, those that stall included. */
typedef struct load {
    long n, tokens, rate, half_open, stalled;
} load;

static void run(int32_t port, pid_t front, const load *l) {
    long n = l->n, tokens = l->tokens, half_open = l->half_open, stalled = l->stalled;
    stream *streams = calloc((size_t)n, sizeof *streams);
    late_s = calloc(LATE_MAX, sizeof *late_s);
    if (!streams || !late_s) exit(1);
    for (long i = 0; i < half_open; i++)
        if (write(connect_to(port, 0), "GET /health HT", 14) != 14) exit(1);
    for (long i = 0; i < stalled; i++) (void)ask(port, 1 << 20, 4096);
    double begin_s = fl_now_s(), cpu = cpu_s(front);
    for (long i = 0; i < n; i++) streams[i].fd = ask(port, tokens, 0);
    read_all(streams, n);
    double end_s = fl_now_s();
    cpu = cpu_s(front) - cpu;
    double n_made = (double)n_tokens + (double)(stalled * l->rate) * (end_s - begin_s);
    qsort(late_s, (size_t)n_late, sizeof *late_s, ascending);
    printf("streams %ld tokens %ld of %ld wrong %ld seconds %.1f half_open %ld stalled %ld\n", n, n_tokens,
           n * tokens, n_wrong, end_s - begin_s, half_open, stalled);
    printf("late ms: median %.2f p99 %.2f p99.9 %.2f most %.2f; front CPU %.2f us a token\n", late_ms(0.5),
           late_ms(0.99), late_ms(0.999), late_ms(1), n_made > 0 ? 1e6 * cpu / n_made : 0);
    free(streams);
    free(late_s);
}

int main(int argc, char **argv) {
    int to_child[2], to_parent[2];
    int32_t port = 0;
    struct rlimit files;
    if (argc < 4) {
        fprintf(stderr, "front_bench STUB_WORKER STREAMS TOKENS [RATE [HALF_OPEN [STALLED]]]\n");
        return 2;
    }
    long n = number(argc, argv, 2, 0), half_open = number(argc, argv, 5, 0),
         stalled = number(argc, argv, 6, 0);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (pipe(to_child) != 0 || pipe(to_parent) != 0) return 1;
    pid_t front = fork();
    if (front == 0) {
        close(to_child[1]);
        serve(argv[1], argc > 4 ? argv[4] : "20", (int)(n + stalled + 64),
              (int[]){to_child[0], to_parent[1]});
    }
    close(to_child[0]);
    close(to_parent[1]);
    if (read(to_parent[0], &port, sizeof port) != sizeof port) return 1;
    wait_ready(port);
    run(port, front, &(load){n, number(argc, argv, 3, 0), number(argc, argv, 4, 20), half_open, stalled});
    close(to_child[1]);
    waitpid(front, NULL, 0);
    return n_tokens == n * number(argc, argv, 3, 0) && n_wrong == 0 ? 0 : 1;
}
