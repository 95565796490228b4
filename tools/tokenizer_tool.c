/* tokenizer_tool: what developers need around the tokenizer; script/compare_tokenizer.sh shows the order of its verbs.
 *
 *   pack JSON PACK             tokenizer.json to test/data/NAME.tokenpack
 *   unpack PACK JSON           and back
 *   frame FILE FRAME           one zstd frame of a file (test/data/mixed_text.zst)
 *   mixed JSON FRAME TEXTS     the chunks of test/text/mixed_text.h
 *   chunks FILE TEXTS          a text file in chunks
 *   compare JSON TEXTS IDS     encodes TEXTS, everything trusted, and compares with IDS; fails at a difference
 *   golden TEXTS IDS GOLDEN    what the tests keep of IDS
 *   bench JSON FILE...         megabytes a second of this thread's CPU time, best of 5
 *   masks JSON SCHEMA...       what compiling a schema and its token masks cost, in walks that take random tokens
 *
 * TEXTS: { u32 n_bytes, bytes }...  IDS: { u32 n_ids, i32 ids[] }...  GOLDEN: { u32 n_ids, u32 hash of the text, u64
 * hash of the ids }..., all little endian. Exit: 0 done; 1 failed; 2 usage; 65 bad data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "test/text/mixed_text.h"
#include "text/schema_mask.h"
#include "text/tokenizer.h"
#include "tools/tokenpack.h"

enum { LEVEL = 22, CHUNK_BYTES = 4096, SHOWN = 10 };

static const size_t FILE_BYTES_MAX = (size_t)1 << 31;

typedef struct bytes {
    char *data;
    size_t n, at;
} bytes;

static const char *folder_of(const char *path) {
    return path[0] == '/' ? "/" : ".";
}

static fl_err file_read(const char *path, bytes *out) {
    out->at = 0;
    return fl_file_read(folder_of(path), path, FILE_BYTES_MAX, &out->data, &out->n);
}

static fl_err file_write(const char *path, const char *data, size_t n) {
    return fl_file_write(folder_of(path), path, data, n);
}

/* Takes n bytes off the front; NULL at the end. */
static const char *take(bytes *b, size_t n) {
    if (b->n - b->at < n) return NULL;
    b->at += n;
    return b->data + b->at - n;
}

/* Takes a u32 count and count items of item_bytes. */
static const char *take_counted(bytes *b, size_t item_bytes, uint32_t *count) {
    const char *head = take(b, sizeof *count);
    if (!head) return NULL;
    memcpy(count, head, sizeof *count);
    return take(b, *count * item_bytes);
}

/* Appends to a growing file in memory. */
static fl_err put(bytes *b, const void *data, size_t n) {
    if (b->n - b->at < n) {
        size_t room = 2 * b->n + n;
        char *grown = realloc(b->data, room);
        if (!grown) return FL_FAIL(FL_ERR_NOMEM, "%zu bytes", room);
        b->data = grown;
        b->n = room;
    }
    memcpy(b->data + b->at, data, n);
    b->at += n;
    return FL_ERR_OK;
}

static fl_err put_counted(bytes *b, const char *data, size_t n) {
    uint32_t count = (uint32_t)n;
    FL_TRY(put(b, &count, sizeof count));
    return put(b, data, n);
}

static fl_err tokenizer_read(const char *path, fl_tokenizer **out) {
    bytes json;
    FL_TRY(file_read(path, &json));
    fl_err err = fl_tokenizer_open_memory(json.data, json.n, out);
    free(json.data);
    return err;
}

typedef fl_err convert_fn(const char *in, size_t in_bytes, int level, char **out, size_t *out_bytes);

static fl_err unpack(const char *in, size_t in_bytes, int level, char **out, size_t *out_bytes) {
    (void)level;
    return fl_tokenpack_decode(in, in_bytes, out, out_bytes);
}

static fl_err convert(convert_fn *fn, char **paths) {
    bytes in;
    char *out;
    size_t out_bytes;
    FL_TRY(file_read(paths[0], &in));
    fl_err err = fn(in.data, in.n, LEVEL, &out, &out_bytes);
    if (err == FL_ERR_OK) err = file_write(paths[1], out, out_bytes);
    if (err == FL_ERR_OK)
        fprintf(stderr, "%s: %zu bytes, %s: %zu bytes\n", paths[0], in.n, paths[1], out_bytes);
    free(in.data);
    free(out);
    return err;
}

static fl_err cmd_pack(int n, char **paths) {
    (void)n;
    return convert(fl_tokenpack_encode, paths);
}

static fl_err cmd_unpack(int n, char **paths) {
    (void)n;
    return convert(unpack, paths);
}

static fl_err cmd_frame(int n, char **paths) {
    (void)n;
    return convert(fl_frame_encode, paths);
}

static fl_err cmd_mixed(int n_paths, char **paths) {
    (void)n_paths;
    fl_err err = FL_ERR_OK;
    fl_tokenizer *t = NULL;
    bytes frame = {0}, document = {0}, texts = {0};
    mixed_text *m = NULL;
    FL_TRY_GOTO(tokenizer_read(paths[0], &t));
    FL_TRY_GOTO(file_read(paths[1], &frame));
    FL_TRY_GOTO(fl_frame_decode(frame.data, frame.n, &document.data, &document.n));
    m = mixed_text_open(t, document.data, document.n);
    for (size_t i = 0; m && i < mixed_text_count(m); i++) {
        size_t n;
        const char *chunk = mixed_text_chunk(m, i, &n);
        FL_TRY_GOTO(put_counted(&texts, chunk, n));
    }
    FL_TRY_GOTO(file_write(paths[2], texts.data, texts.at));
fail:
    mixed_text_close(m);
    fl_tokenizer_close(t);
    free(frame.data);
    free(document.data);
    free(texts.data);
    return err;
}

static fl_err cmd_chunks(int n_paths, char **paths) {
    (void)n_paths;
    bytes file, texts = {0};
    FL_TRY(file_read(paths[0], &file));
    fl_err err = FL_ERR_OK;
    for (size_t begin = 0; begin < file.n && err == FL_ERR_OK;) {
        size_t end = begin + CHUNK_BYTES < file.n ? begin + CHUNK_BYTES : file.n;
        while (end < file.n && ((unsigned char)file.data[end] & 0xc0) == 0x80) end++;
        err = put_counted(&texts, file.data + begin, end - begin);
        begin = end;
    }
    if (err == FL_ERR_OK) err = file_write(paths[1], texts.data, texts.at);
    free(file.data);
    free(texts.data);
    return err;
}

/* Compares one chunk; says where it differs. */
static fl_err compare_chunk(const fl_tokenizer *t, bytes *texts, bytes *want, size_t *n_same) {
    uint32_t n_text = 0, n_want = 0;
    const char *text = take_counted(texts, 1, &n_text), *ids_want = take_counted(want, 4, &n_want);
    if (!text || !ids_want) return FL_FAIL(FL_ERR_DATA, "TEXTS and IDS do not belong together");
    const fl_text_span all = {0, n_text};
    int32_t *ids;
    int64_t n_ids;
    FL_TRY(fl_tokenizer_encode(t, text, n_text, &all, 1, &ids, &n_ids));
    size_t i = 0, at = 0, n;
    int32_t expected = -1;
    for (; i < (size_t)n_ids && i < n_want; i++) {
        memcpy(&expected, ids_want + 4 * i, sizeof expected);
        if (ids[i] != expected) break;
        fl_tokenizer_token_bytes(t, ids[i], &n);
        at += n;
    }
    bool same = i == (size_t)n_ids && i == n_want;
    if (same) *n_same += i;
    if (!same) {
        size_t from = at > 20 ? at - 20 : 0;
        printf("token %zu, byte %zu: got %d, expected %d, near \"%.*s\"\n", i, at,
               i < (size_t)n_ids ? ids[i] : -1, i < n_want ? expected : -1,
               (int)(n_text - from < 60 ? n_text - from : 60), text + from);
    }
    free(ids);
    return same ? FL_ERR_OK : FL_ERR_INVALID;
}

static fl_err cmd_compare(int n_paths, char **paths) {
    (void)n_paths;
    fl_err err = FL_ERR_OK;
    fl_tokenizer *t = NULL;
    bytes texts = {0}, want = {0};
    size_t n_same = 0, n_chunks = 0, n_different = 0;
    FL_TRY_GOTO(tokenizer_read(paths[0], &t));
    FL_TRY_GOTO(file_read(paths[1], &texts));
    FL_TRY_GOTO(file_read(paths[2], &want));
    for (; texts.at < texts.n && n_different < SHOWN; n_chunks++) {
        err = compare_chunk(t, &texts, &want, &n_same);
        if (err == FL_ERR_INVALID) {
            n_different++;
            printf("  in chunk %zu\n", n_chunks);
            err = FL_ERR_OK;
        }
        FL_TRY_GOTO(err);
    }
    printf("%zu chunks, %zu bytes, %zu tokens equal, %zu chunks differ\n", n_chunks, texts.at, n_same,
           n_different);
    if (n_different > 0) err = FL_FAIL(FL_ERR_NUMERIC, "the ids differ");
fail:
    fl_tokenizer_close(t);
    free(texts.data);
    free(want.data);
    return err;
}

static fl_err cmd_golden(int n_paths, char **paths) {
    (void)n_paths;
    fl_err err = FL_ERR_OK;
    bytes texts = {0}, ids = {0}, golden = {0};
    FL_TRY_GOTO(file_read(paths[0], &texts));
    FL_TRY_GOTO(file_read(paths[1], &ids));
    while (texts.at < texts.n) {
        uint32_t n_text = 0, n_ids = 0;
        const char *text = take_counted(&texts, 1, &n_text), *list = take_counted(&ids, 4, &n_ids);
        if (!text || !list) {
            err = FL_FAIL(FL_ERR_DATA, "TEXTS and IDS do not belong together");
            goto fail;
        }
        uint32_t text_hash = (uint32_t)mixed_hash(text, n_text);
        uint64_t ids_hash = mixed_hash(list, (size_t)4 * n_ids);
        FL_TRY_GOTO(put(&golden, &n_ids, sizeof n_ids));
        FL_TRY_GOTO(put(&golden, &text_hash, sizeof text_hash));
        FL_TRY_GOTO(put(&golden, &ids_hash, sizeof ids_hash));
    }
    FL_TRY_GOTO(file_write(paths[2], golden.data, golden.at));
fail:
    free(texts.data);
    free(ids.data);
    free(golden.data);
    return err;
}

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static fl_err bench_file(const fl_tokenizer *t, const char *path) {
    bytes file;
    FL_TRY(file_read(path, &file));
    double best_s = 1e9;
    int64_t n_ids = 0;
    for (int run = 0; run < 5; run++) {
        int32_t *ids;
        double begin_s = cpu_s();
        FL_TRY(fl_tokenizer_encode(t, file.data, file.n, NULL, 0, &ids, &n_ids));
        double s = cpu_s() - begin_s;
        if (s < best_s) best_s = s;
        free(ids);
    }
    printf("%-40s %10zu bytes %9lld tokens %8.4f s %7.1f MB/s\n", path, file.n, (long long)n_ids, best_s,
           (double)file.n / best_s / 1e6);
    free(file.data);
    return FL_ERR_OK;
}

static fl_err cmd_bench(int n_paths, char **paths) {
    fl_tokenizer *t;
    double begin_s = cpu_s();
    FL_TRY(tokenizer_read(paths[0], &t));
    printf("open %.3f s\n", cpu_s() - begin_s);
    fl_err err = FL_ERR_OK;
    for (int i = 1; i < n_paths && err == FL_ERR_OK; i++) err = bench_file(t, paths[i]);
    fl_tokenizer_close(t);
    return err;
}

enum { MASKS = 4000 };

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Any token of a mask, -1 if it has none. */
static int32_t any_token(const uint64_t *mask, int32_t n_vocab, uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    int32_t begin = (int32_t)((*random >> 33) % (uint64_t)n_vocab);
    for (int32_t i = 0; i < n_vocab; i++) {
        int32_t id = (begin + i) % n_vocab;
        if (mask[id / 64] >> (id % 64) & 1) return id;
    }
    return -1;
}

/* Masks of one answer after the other. */
static void walk_masks(const fl_tokenizer *t, fl_schema_masks *masks, const fl_schema *schema,
                       double *took_s) {
    fl_schema_state state;
    uint64_t random = 1;
    fl_schema_start(schema, &state);
    for (int i = 0; i < MASKS; i++) {
        double begin_s = cpu_s();
        const uint64_t *mask = fl_schema_masks_get(masks, schema, &state);
        took_s[i] = cpu_s() - begin_s;
        int32_t id = any_token(mask, fl_tokenizer_n_vocab(t), &random);
        size_t n = 0;
        const char *token = fl_tokenizer_token_bytes(t, id, &n);
        if (id >= 0) fl_schema_feed(schema, &state, token, n);
        if (id < 0 || fl_schema_is_final(schema, &state)) fl_schema_start(schema, &state);
    }
}

static fl_err bench_masks(const fl_tokenizer *t, fl_schema_masks *masks, const char *path) {
    static double took_s[MASKS];
    fl_schema *schema = NULL;
    char *text;
    size_t n_bytes;
    double sum_s = 0;
    FL_TRY(fl_file_read(folder_of(path), path, FL_SCHEMA_BYTES_MAX, &text, &n_bytes)); /* ends with a NUL */
    double begin_s = cpu_s();
    fl_err err = fl_schema_compile(text, &schema);
    double compile_s = cpu_s() - begin_s;
    free(text);
    FL_TRY(err);
    walk_masks(t, masks, schema, took_s);
    for (int i = 0; i < MASKS; i++) sum_s += took_s[i];
    double first_ms = took_s[0] * 1e3;
    qsort(took_s, MASKS, sizeof *took_s, by_size);
    printf("%-32s compile %7.3f ms; mask us: first %7.1f, mean %6.1f, median %6.1f, p99 %7.1f, most %7.1f\n",
           path, compile_s * 1e3, first_ms * 1e3, sum_s / MASKS * 1e6, took_s[MASKS / 2] * 1e6,
           took_s[MASKS * 99 / 100] * 1e6, took_s[MASKS - 1] * 1e6);
    fl_schema_close(schema);
    return FL_ERR_OK;
}

static fl_err cmd_masks(int n_paths, char **paths) {
    fl_tokenizer *t;
    fl_schema_masks *masks = NULL;
    FL_TRY(tokenizer_read(paths[0], &t));
    const fl_schema_vocabulary v = {.tokenizer = t, .n_vocab = fl_tokenizer_n_vocab(t)};
    double begin_s = cpu_s();
    fl_err err = fl_schema_masks_open(&v, &masks);
    printf("%d tokens: open %.3f s\n", v.n_vocab, cpu_s() - begin_s);
    for (int i = 1; i < n_paths && err == FL_ERR_OK; i++) err = bench_masks(t, masks, paths[i]);
    fl_schema_masks_close(masks);
    fl_tokenizer_close(t);
    return err;
}

typedef struct command {
    const char *name;
    int n_paths; /* at least for the last */
    fl_err (*run)(int n_paths, char **paths);
} command;

int main(int argc, char **argv) {
    static const command COMMANDS[] = {
        {"pack", 2, cmd_pack},     {"unpack", 2, cmd_unpack}, {"frame", 2, cmd_frame},
        {"mixed", 3, cmd_mixed},   {"chunks", 2, cmd_chunks}, {"compare", 3, cmd_compare},
        {"golden", 3, cmd_golden}, {"bench", 2, cmd_bench},   {"masks", 2, cmd_masks},
    };
    for (size_t i = 0; argc > 1 && i < sizeof COMMANDS / sizeof *COMMANDS; i++) {
        if (strcmp(argv[1], COMMANDS[i].name) != 0) continue;
        if (argc - 2 < COMMANDS[i].n_paths) break;
        fl_err err = COMMANDS[i].run(argc - 2, argv + 2);
        if (err != FL_ERR_OK) fprintf(stderr, "tokenizer_tool: %s\n", fl_err_detail());
        return fl_err_exit_code(err);
    }
    fprintf(stderr, "usage: tokenizer_tool VERB FILE...; see the head of tools/tokenizer_tool.c\n");
    return 2;
}
