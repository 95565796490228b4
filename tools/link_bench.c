/* What a token costs between worker and front, without a client: link_bench STREAMS TOKENS COMMAND... runs the worker
 * COMMAND (stub_worker with its options, or `firstlight --worker-of-serve` on the model named by FL_BENCH_MODEL), has
 * STREAMS requests of TOKENS tokens each running at once, and shows lost and reordered tokens, CPU time a token of the
 * link (this process) and of the worker's threads, and how late a token arrives when its text says when it was sent. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/worker_link.h"

enum { LATE_MAX = 1 << 22, STREAMS_MAX = 16384 };

typedef struct stream {
    int32_t next; /* the token that is due */
    bool done;
} stream;

static float *late_s; /* [n_late] */
static int32_t n_late, n_tokens, n_wrong;
static int32_t n_done;

static void on_event(void *context, const fl_event *e, const fl_mark *marks, int32_t n_marks) {
    stream *s = context;
    (void)marks;
    (void)n_marks;
    if (e->type == FL_EVENT_DONE) {
        s->done = true;
        __atomic_add_fetch(&n_done, 1, __ATOMIC_RELEASE);
    }
    if (e->type != FL_EVENT_TOKEN) return;
    const char *stamp = strchr(e->text, ':');
    n_wrong += e->answer_tokens != ++s->next;
    n_tokens++;
    if (stamp && n_late < LATE_MAX) late_s[n_late++] = (float)(fl_now_s() - strtod(stamp + 1, NULL) * 1e-6);
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double seconds(const struct timeval *t) {
    return (double)t->tv_sec + 1e-6 * (double)t->tv_usec;
}

static double own_cpu_s(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return seconds(&r.ru_utime) + seconds(&r.ru_stime);
}

/* Of one of another process's threads, by its id. */
static double thread_cpu_s(const char *task, const char *id, char *name, size_t n_name) {
    char path[512];
    char text[64] = "0";
    snprintf(path, sizeof path, "%s/%s/schedstat", task, id);
    FILE *f = fopen(path, "r");
    if (f && !fgets(text, sizeof text, f)) text[0] = '\0';
    if (f) fclose(f);
    snprintf(path, sizeof path, "%s/%s/comm", task, id);
    f = fopen(path, "r");
    name[0] = '\0';
    if (f && fgets(name, (int)n_name, f)) name[strcspn(name, "\n")] = '\0';
    if (f) fclose(f);
    return strtod(text, NULL) * 1e-9;
}

/* The first thread (the reader), and all that are called fl-pump. */
static double worker_cpu_s(int32_t pid) {
    char task[64], name[64], first[16];
    double sum = 0;
    snprintf(task, sizeof task, "/proc/%d/task", pid);
    snprintf(first, sizeof first, "%d", pid);
    DIR *dir = opendir(task);
    for (struct dirent *d; dir && (d = readdir(dir));) {
        if (d->d_name[0] == '.') continue;
        double cpu_s = thread_cpu_s(task, d->d_name, name, sizeof name);
        if (strcmp(name, "fl-pump") == 0 || strcmp(d->d_name, first) == 0) sum += cpu_s;
    }
    if (dir) closedir(dir);
    return sum;
}

static fl_worker_link *open_link(char **command) {
    fl_link_options o;
    fl_link_status s = {0};
    fl_worker_link *link = NULL;
    const struct timespec nap = {.tv_nsec = 10000000};
    fl_link_options_default(&o);
    o.command = (const char *const *)command;
    o.settings.model_path = getenv("FL_BENCH_MODEL");
    o.settings.requests_max = 4096;
    o.settings.kv_tokens = 1 << 18;
    o.requests_max = 16384;
    if (fl_worker_link_open(&o, &link) != FL_ERR_OK) return NULL;
    while (s.state != FL_LINK_READY && s.state != FL_LINK_FAILED) {
        fl_worker_link_status(link, &s);
        nanosleep(&nap, NULL);
    }
    if (s.state == FL_LINK_READY) return link;
    fprintf(stderr, "link_bench: %s\n", s.error);
    fl_worker_link_close(link);
    return NULL;
}

static void report(int32_t n_streams, int64_t due, double wall_s, double front_s, double worker_s) {
    qsort(late_s, (size_t)n_late, sizeof *late_s, ascending);
    printf("%d streams, %d of %lld tokens in %.1f s (%.0f/s), %d out of order\n", n_streams, n_tokens,
           (long long)due, wall_s, n_tokens / wall_s, n_wrong);
    printf("CPU a token: link %.2f us, worker's reader and pump %.2f us\n", front_s / n_tokens * 1e6,
           worker_s / n_tokens * 1e6);
    if (n_late > 0)
        printf("sent to received: p50 %.3f ms, p99 %.3f ms, most %.3f ms\n", late_s[n_late / 2] * 1e3,
               late_s[(int64_t)n_late * 99 / 100] * 1e3, late_s[n_late - 1] * 1e3);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: link_bench STREAMS TOKENS COMMAND...\n");
        return 2;
    }
    const int32_t prompt[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    int32_t n = (int32_t)strtol(argv[1], NULL, 10);
    int64_t tokens = strtol(argv[2], NULL, 10);
    static stream streams[STREAMS_MAX];
    if (n < 1 || n > STREAMS_MAX) return 2;
    late_s = malloc(LATE_MAX * sizeof *late_s);
    fl_worker_link *link = late_s ? open_link(argv + 3) : NULL;
    if (!link) return 1;
    fl_link_status s;
    fl_request_params p;
    fl_worker_link_status(link, &s);
    double begin_s = fl_now_s(), front_s = own_cpu_s(), worker_s = worker_cpu_s(s.worker_pid);
    fl_request_params_default(&p);
    p.tokens = prompt;
    p.n_tokens = 16;
    p.max_tokens = tokens;
    p.ignore_eos = true;
    const struct timespec nap = {.tv_nsec = 100000}; /* spreads the streams over the time of a token or two */
    for (int32_t i = 0; i < n; i++) {
        uint64_t id;
        if (fl_worker_link_submit(link, &p, on_event, &streams[i], &id) != FL_ERR_OK) {
            fprintf(stderr, "link_bench: %s\n", fl_err_detail());
            return 1;
        }
        nanosleep(&nap, NULL);
    }
    while (__atomic_load_n(&n_done, __ATOMIC_ACQUIRE) < n) usleep(100000);
    report(n, n * tokens, fl_now_s() - begin_s, own_cpu_s() - front_s, worker_cpu_s(s.worker_pid) - worker_s);
    fl_worker_link_close(link);
    free(late_s);
    return n_tokens != n * tokens || n_wrong > 0;
}
