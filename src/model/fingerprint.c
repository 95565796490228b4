/* Files are hashed whole, one task a file, on all CPUs: with SHA instructions that is about as fast as they can be
 * read, and a shorter check would miss a flipped weight. */
#include "model/fingerprint.h"

#include "base/file.h"
#include "base/pool.h"
#include "model/shard_set.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const side_files[] = {
    "config.json",         "generation_config.json",       "tokenizer.json",  "tokenizer_config.json",
    "chat_template.jinja", "model.safetensors.index.json", "calibration.json"};

enum { N_SIDE_FILES = sizeof side_files / sizeof side_files[0], ERROR_BYTES = 512 };

/* One file's hashing, run by any worker. */
typedef struct task {
    fl_fingerprint_file *file;
    fl_err err;
    char detail[ERROR_BYTES]; /* error texts are per thread: the worker's is carried home here */
} task;

typedef struct run {
    const char *dir;
    task *tasks;
    _Atomic int64_t done_bytes;
    int64_t total_bytes;
    fl_progress_fn *progress;
    void *context;
} run;

typedef struct piece_context {
    run *run;
    bool reports; /* only the opening thread calls progress */
} piece_context;

static void piece_done(void *context, int64_t piece_bytes) {
    piece_context *p = context;
    int64_t done = atomic_fetch_add(&p->run->done_bytes, piece_bytes) + piece_bytes;
    if (p->reports && p->run->progress) p->run->progress(p->run->context, done, p->run->total_bytes);
}

static void hash_file(void *context, int32_t index, int32_t worker) {
    run *r = context;
    task *t = &r->tasks[index];
    piece_context piece = {.run = r, .reports = worker == 0};
    t->err = fl_sha256_file(r->dir, t->file->name, piece_done, &piece, t->file->hex, &t->file->n_bytes);
    if (t->err != FL_ERR_OK) snprintf(t->detail, sizeof t->detail, "%s", fl_err_detail());
}

static int compare_files(const void *left, const void *right) {
    return strcmp(((const fl_fingerprint_file *)left)->name, ((const fl_fingerprint_file *)right)->name);
}

static fl_err add_file(fl_fingerprint *f, const char *name) {
    char *copy = strdup(name);
    if (!copy) return FL_FAIL(FL_ERR_NOMEM, "name of %s", name);
    f->files[f->n_files++] = (fl_fingerprint_file){.name = copy};
    return FL_ERR_OK;
}

static fl_err list_files(const char *dir, const fl_shard_set *set, fl_fingerprint *out) {
    out->files = calloc((size_t)set->n_shards + N_SIDE_FILES, sizeof *out->files);
    if (!out->files) return FL_FAIL(FL_ERR_NOMEM, "table of %d files", set->n_shards + N_SIDE_FILES);
    for (int32_t i = 0; i < set->n_shards; i++) FL_TRY(add_file(out, set->shards[i].name));
    for (int32_t i = 0; i < N_SIDE_FILES; i++)
        if (fl_file_exists(dir, side_files[i])) FL_TRY(add_file(out, side_files[i]));
    qsort(out->files, (size_t)out->n_files, sizeof *out->files, compare_files);
    return FL_ERR_OK;
}

/* Bytes to hash, for progress alone. */
static int64_t sum_bytes(const char *dir, const fl_fingerprint *f) {
    int64_t total = 0;
    for (int32_t i = 0; i < f->n_files; i++) {
        char *path = NULL;
        struct stat st;
        if (fl_file_path(dir, f->files[i].name, &path) != FL_ERR_OK) continue;
        if (stat(path, &st) == 0) total += st.st_size;
        free(path);
    }
    return total;
}

static fl_err hash_files(run *r, fl_fingerprint *f) {
    fl_pool *pool = NULL;
    r->total_bytes = sum_bytes(r->dir, f);
    for (int32_t i = 0; i < f->n_files; i++) r->tasks[i].file = &f->files[i];
    FL_TRY(fl_pool_open(0, &pool));
    fl_pool_run(pool, f->n_files, hash_file, r);
    fl_pool_close(pool);
    for (int32_t i = 0; i < f->n_files; i++)
        if (r->tasks[i].err != FL_ERR_OK) return FL_FAIL(r->tasks[i].err, "%s", r->tasks[i].detail);
    if (r->progress) r->progress(r->context, atomic_load(&r->done_bytes), r->total_bytes);
    return FL_ERR_OK;
}

/* SHA-256 over one line "NAME BYTES DIGEST" a file. */
static fl_err combine(fl_fingerprint *f) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *lines = open_memstream(&text, &n_bytes);
    if (!lines) return FL_FAIL(FL_ERR_NOMEM, "text of a fingerprint");
    for (int32_t i = 0; i < f->n_files; i++)
        fprintf(lines, "%s %lld %s\n", f->files[i].name, (long long)f->files[i].n_bytes, f->files[i].hex);
    fl_err err = fclose(lines) == 0 ? fl_sha256_of(text, n_bytes, f->hex)
                                    : FL_FAIL(FL_ERR_NOMEM, "text of a fingerprint");
    free(text);
    return err;
}

fl_err fl_fingerprint_compute(const char *dir, fl_progress_fn *progress, void *context, fl_fingerprint *out) {
    fl_shard_set set = {0};
    run r = {.dir = dir, .progress = progress, .context = context};
    fl_err err;
    *out = (fl_fingerprint){0};
    FL_TRY_GOTO(fl_shard_set_list(dir, &set));
    FL_TRY_GOTO(list_files(dir, &set, out));
    r.tasks = calloc((size_t)out->n_files, sizeof *r.tasks);
    if (!r.tasks) {
        err = FL_FAIL(FL_ERR_NOMEM, "%d files to hash", out->n_files);
        goto fail;
    }
    FL_TRY_GOTO(hash_files(&r, out));
    FL_TRY_GOTO(combine(out));
fail:
    if (err != FL_ERR_OK) fl_fingerprint_close(out);
    free(r.tasks);
    fl_shard_set_close(&set);
    return err;
}

void fl_fingerprint_close(fl_fingerprint *fingerprint) {
    for (int32_t i = 0; i < fingerprint->n_files; i++) free(fingerprint->files[i].name);
    free(fingerprint->files);
    *fingerprint = (fl_fingerprint){0};
}
