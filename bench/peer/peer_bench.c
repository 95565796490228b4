/* Drives llama.cpp through its C interface for the comparison in bench/peer.
 *
 *   peer_bench time   MODEL.gguf prefill|decode TOKENS UBATCH on|off F16|BF16 RUNS THREADS WAIT_S
 *   peer_bench logits MODEL.gguf IDS.i32 OUT.bin on|off
 *
 * `time` prints one JSON line a run: prefill feeds TOKENS tokens to an empty cache and asks for the last
 * logits; decode fills the cache with TOKENS tokens untimed, then times DECODE_TOKENS steps of one token from
 * that depth. Token ids are pseudo-random and the same in every run. `logits` writes what check.py compares
 * with the golden files: last_logits f32 [n_vocab], then top1_ids i32 [n], then top1_logprobs f32 [n]. */
#define _GNU_SOURCE
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "llama.h"

enum { DECODE_TOKENS = 48, WARM_TOKENS = 64, CHECK_UBATCH = 512, QUIET_LOOK_NS = 300000000 };

static const double QUIET_CORES = 0.1;

struct options {
    bool decode;
    int32_t tokens;
    uint32_t ubatch;
    bool flash;
    enum ggml_type kv;
    int runs;
    int32_t threads;
    int32_t wait_s;
};

struct stamp {
    double wall_s, cpu_s, machine_s; /* machine_s: CPU time of all processes, 10 ms steps */
};

static double clock_s(clockid_t id) {
    struct timespec t = {0};
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Busy time of all cores since boot, stolen time included; 0 where /proc/stat cannot be read. */
static double machine_busy_s(void) {
    unsigned long long user = 0, nice = 0, sys = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
    FILE *f = fopen("/proc/stat", "r");
    int n = 0;
    if (f) {
        n = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &sys, &idle, &wait, &irq,
                   &soft, &steal);
        fclose(f);
    }
    return n == 8 ? (double)(user + nice + sys + irq + soft + steal) / (double)sysconf(_SC_CLK_TCK) : 0;
}

static struct stamp now(void) {
    return (struct stamp){clock_s(CLOCK_MONOTONIC), clock_s(CLOCK_PROCESS_CPUTIME_ID), machine_busy_s()};
}

static struct stamp since(struct stamp begin) {
    struct stamp end = now();
    return (struct stamp){end.wall_s - begin.wall_s, end.cpu_s - begin.cpu_s,
                          end.machine_s - begin.machine_s};
}

static double other_cores(struct stamp took) {
    double other_s = took.machine_s - took.cpu_s;
    return other_s > 0 && took.wall_s > 0 ? other_s / took.wall_s : 0;
}

static void wait_quiet(int32_t wait_s) {
    struct stamp first = now();
    for (;;) {
        struct stamp begin = now();
        nanosleep(&(struct timespec){.tv_nsec = QUIET_LOOK_NS}, NULL);
        if (other_cores(since(begin)) < QUIET_CORES || since(first).wall_s >= (double)wait_s) return;
    }
}

/* llama.cpp's progress lines would bury the results; its warnings and errors stay. */
static void log_warnings(enum ggml_log_level level, const char *text, void *unused) {
    (void)unused;
    if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static struct llama_context *open_context(struct llama_model *model, const struct options *o,
                                          bool every_logit) {
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = (uint32_t)o->tokens + DECODE_TOKENS + WARM_TOKENS;
    p.n_batch = o->ubatch;
    p.n_ubatch = o->ubatch;
    p.n_outputs_max = every_logit ? 0 : 1;
    p.n_threads = o->threads;
    p.n_threads_batch = o->threads;
    p.flash_attn_type = o->flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.type_k = o->kv;
    p.type_v = o->kv;
    return llama_init_from_model(model, p);
}

/* Appends n tokens to the cache, o->ubatch at a time; only the very last one asks for logits. */
static bool feed(struct llama_context *ctx, const struct options *o, llama_token *ids, int32_t n) {
    for (int32_t at = 0; at < n; at += (int32_t)o->ubatch) {
        int32_t span = n - at < (int32_t)o->ubatch ? n - at : (int32_t)o->ubatch;
        if (llama_decode(ctx, llama_batch_get_one(ids + at, span)) != 0) return false;
    }
    llama_synchronize(ctx);
    return true;
}

static llama_token *random_ids(int32_t n, int32_t n_vocab) {
    llama_token *ids = malloc((size_t)n * sizeof *ids);
    uint64_t state = 0x9E3779B97F4A7C15u;
    for (int32_t i = 0; ids && i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (llama_token)((state >> 33) % (uint64_t)n_vocab);
    }
    return ids;
}

static void print_run(const struct options *o, struct stamp took) {
    int32_t timed = o->decode ? DECODE_TOKENS : o->tokens;
    double load[3] = {0};
    (void)getloadavg(load, 3);
    printf("{\"engine\":\"llama.cpp\",\"version\":\"%s\",\"mode\":\"%s\",\"tokens\":%d,\"ubatch\":%u,"
           "\"flash\":%s,"
           "\"kv\":\"%s\",\"threads\":%d,\"wall_s\":%.4f,\"cpu_s\":%.4f,\"tokens_per_s\":%.2f,"
           "\"tokens_per_s_by_cpu_time\":%.2f,\"other_cores\":%.2f,\"load\":%.2f}\n",
           llama_version(), o->decode ? "decode" : "prefill", o->tokens, o->ubatch,
           o->flash ? "true" : "false", ggml_type_name(o->kv), o->threads, took.wall_s, took.cpu_s,
           timed / took.wall_s, timed * o->threads / took.cpu_s, other_cores(took), load[0]);
    fflush(stdout);
}

static bool time_once(struct llama_context *ctx, const struct options *o, llama_token *ids) {
    llama_memory_t memory = llama_get_memory(ctx);
    struct stamp begin;
    wait_quiet(o->wait_s);
    if (o->decode) {
        /* The cache already holds the depth; drop what an earlier run appended. */
        if (!llama_memory_seq_rm(memory, 0, o->tokens, -1)) return false;
        begin = now();
        for (int32_t i = 0; i < DECODE_TOKENS; i++)
            if (!feed(ctx, o, ids + i, 1)) return false;
    } else {
        llama_memory_clear(memory, true);
        begin = now();
        if (!feed(ctx, o, ids, o->tokens)) return false;
    }
    print_run(o, since(begin));
    return true;
}

static int cmd_time(struct llama_model *model, const struct options *o) {
    struct llama_context *ctx = open_context(model, o, false);
    llama_token *ids =
        random_ids(o->tokens + WARM_TOKENS, llama_vocab_n_tokens(llama_model_get_vocab(model)));
    bool good = ctx && ids && feed(ctx, o, ids, o->decode ? o->tokens : WARM_TOKENS);
    for (int run = 0; good && run < o->runs; run++) good = time_once(ctx, o, ids);
    free(ids);
    if (ctx) llama_free(ctx);
    if (!good) fprintf(stderr, "peer_bench: llama.cpp refused the run\n");
    return good ? 0 : 1;
}

static llama_token *read_ids(const char *path, int32_t *n) {
    FILE *f = fopen(path, "rb");
    llama_token *ids = NULL;
    long n_bytes = 0;
    if (f && fseek(f, 0, SEEK_END) == 0 && (n_bytes = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0)
        ids = malloc((size_t)n_bytes);
    *n = (int32_t)(n_bytes / (long)sizeof *ids);
    if (ids && fread(ids, sizeof *ids, (size_t)*n, f) != (size_t)*n) {
        free(ids);
        ids = NULL;
    }
    if (f) fclose(f);
    return ids;
}

static void top1_of(const float *logits, int32_t n_vocab, int32_t *id, float *logprob) {
    double sum = 0;
    *id = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[*id]) *id = i;
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - (double)logits[*id]);
    *logprob = (float)-log(sum);
}

struct check {
    int32_t n, n_vocab;
    llama_token *ids;
    float *last_logits; /* [n_vocab] */
    int32_t *top1;      /* [n] */
    float *logprobs;    /* [n] */
};

static bool run_check(struct llama_context *ctx, struct check *c) {
    struct llama_batch batch = llama_batch_init(CHECK_UBATCH, 0, 1);
    bool good = true;
    for (int32_t at = 0; good && at < c->n; at += batch.n_tokens) {
        batch.n_tokens = c->n - at < CHECK_UBATCH ? c->n - at : CHECK_UBATCH;
        for (int32_t i = 0; i < batch.n_tokens; i++) {
            batch.token[i] = c->ids[at + i];
            batch.pos[i] = at + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        good = llama_decode(ctx, batch) == 0;
        for (int32_t i = 0; good && i < batch.n_tokens; i++) {
            const float *logits = llama_get_logits_ith(ctx, i);
            top1_of(logits, c->n_vocab, &c->top1[at + i], &c->logprobs[at + i]);
            memcpy(c->last_logits, logits, (size_t)c->n_vocab * sizeof *logits);
        }
    }
    llama_batch_free(batch);
    return good;
}

static bool write_check(const char *path, const struct check *c) {
    FILE *f = fopen(path, "wb");
    size_t n = (size_t)c->n, n_vocab = (size_t)c->n_vocab;
    bool good = f && fwrite(c->last_logits, sizeof(float), n_vocab, f) == n_vocab &&
                fwrite(c->top1, sizeof(int32_t), n, f) == n && fwrite(c->logprobs, sizeof(float), n, f) == n;
    if (f && fclose(f) != 0) good = false;
    return good;
}

static int cmd_logits(struct llama_model *model, char **argv) {
    struct check c = {.n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model))};
    struct options o = {.ubatch = CHECK_UBATCH, .kv = GGML_TYPE_F16, .threads = 1};
    struct llama_context *ctx = NULL;
    c.ids = read_ids(argv[0], &c.n);
    o.tokens = c.n;
    o.flash = strcmp(argv[2], "on") == 0;
    c.last_logits = calloc((size_t)c.n_vocab, sizeof *c.last_logits);
    c.top1 = calloc((size_t)c.n + 1, sizeof *c.top1);
    c.logprobs = calloc((size_t)c.n + 1, sizeof *c.logprobs);
    bool good = c.ids && c.last_logits && c.top1 && c.logprobs &&
                (ctx = open_context(model, &o, true)) != NULL && run_check(ctx, &c) &&
                write_check(argv[1], &c);
    if (ctx) llama_free(ctx);
    free(c.ids);
    free(c.last_logits);
    free(c.top1);
    free(c.logprobs);
    if (!good) fprintf(stderr, "peer_bench: %s: no logits\n", argv[0]);
    return good ? 0 : 1;
}

static bool parse_options(char **argv, struct options *o) {
    *o = (struct options){
        .decode = strcmp(argv[0], "decode") == 0,
        .tokens = (int32_t)strtol(argv[1], NULL, 10),
        .ubatch = (uint32_t)strtoul(argv[2], NULL, 10),
        .flash = strcmp(argv[3], "on") == 0,
        .kv = strcmp(argv[4], "BF16") == 0 ? GGML_TYPE_BF16 : GGML_TYPE_F16,
        .runs = (int)strtol(argv[5], NULL, 10),
        .threads = (int32_t)strtol(argv[6], NULL, 10),
        .wait_s = (int32_t)strtol(argv[7], NULL, 10),
    };
    return o->tokens >= DECODE_TOKENS && o->ubatch > 0 && o->runs > 0 && o->threads > 0;
}

int main(int argc, char **argv) {
    struct options o = {0};
    bool timing = argc == 11 && strcmp(argv[1], "time") == 0 && parse_options(argv + 3, &o);
    if (!timing && !(argc == 6 && strcmp(argv[1], "logits") == 0)) {
        fprintf(stderr, "usage: peer_bench time MODEL.gguf prefill|decode TOKENS UBATCH on|off F16|BF16 RUNS "
                        "THREADS WAIT_S\n"
                        "       peer_bench logits MODEL.gguf IDS.i32 OUT.bin on|off\n");
        return 64;
    }
    llama_log_set(log_warnings, NULL);
    llama_backend_init();
    struct llama_model_params p = llama_model_default_params();
    struct llama_model *model = llama_model_load_from_file(argv[2], p);
    if (!model) return 65;
    int rc = timing ? cmd_time(model, &o) : cmd_logits(model, argv + 3);
    llama_model_free(model);
    llama_backend_free();
    return rc;
}
