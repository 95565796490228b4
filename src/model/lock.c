/* firstlight.lock.json: {"format": 1, "engine": VERSION, "fingerprint": HEX, "files": {NAME: {"bytes": N, "sha256":
 * HEX}}}. Names in it are only compared with what the folder has; none is ever opened. */
#include "base/file.h"
#include "model/fingerprint.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOCK_FORMAT = 1, LOCK_BYTES_MAX = 16 << 20 };

bool fl_lock_exists(const char *dir) {
    return fl_file_exists(dir, FL_LOCK_NAME);
}

static json_t *lock_of(const fl_fingerprint *f) {
    json_t *files = json_object();
    for (int32_t i = 0; files && i < f->n_files; i++) {
        json_t *file =
            json_pack("{s:I, s:s}", "bytes", (json_int_t)f->files[i].n_bytes, "sha256", f->files[i].hex);
        if (json_object_set_new(files, f->files[i].name, file) == 0) continue;
        json_decref(files);
        files = NULL;
    }
    if (!files) return NULL;
    return json_pack("{s:i, s:s, s:s, s:o}", "format", LOCK_FORMAT, "engine", FL_VERSION, "fingerprint",
                     f->hex, "files", files);
}

fl_err fl_lock_write(const char *dir, fl_progress_fn *progress, void *context) {
    fl_fingerprint fingerprint = {0};
    FL_TRY(fl_fingerprint_compute(dir, progress, context, &fingerprint));
    json_t *lock = lock_of(&fingerprint);
    char *text = lock ? json_dumps(lock, JSON_INDENT(1)) : NULL;
    fl_err err = text ? fl_file_write(dir, FL_LOCK_NAME, text, strlen(text))
                      : FL_FAIL(FL_ERR_NOMEM, "%s: cannot be made", FL_LOCK_NAME);
    free(text);
    json_decref(lock);
    fl_fingerprint_close(&fingerprint);
    return err;
}

/* What to do, where a person may have meant the change. */
#define WRITE_ANEW "; if that is wanted, `firstlight verify MODEL --write` writes a new lock"

static fl_err load_lock(const char *dir, json_t **out) {
    char *text = NULL;
    size_t n_bytes = 0;
    json_error_t why;
    if (!fl_lock_exists(dir))
        return FL_FAIL(FL_ERR_CONFIG, "%s: no such file in '%s'; `firstlight verify MODEL --write` makes it",
                       FL_LOCK_NAME, dir);
    FL_TRY(fl_file_read(dir, FL_LOCK_NAME, LOCK_BYTES_MAX, &text, &n_bytes));
    json_t *lock = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!lock)
        return FL_FAIL(FL_ERR_CONFIG, "%s: not valid JSON, line %d: %s" WRITE_ANEW, FL_LOCK_NAME, why.line,
                       why.text);
    const json_t *format = json_object_get(lock, "format");
    if (json_is_integer(format) && json_integer_value(format) == LOCK_FORMAT && json_object_size(lock) == 4 &&
        json_is_string(json_object_get(lock, "engine")) &&
        json_is_string(json_object_get(lock, "fingerprint")) &&
        json_is_object(json_object_get(lock, "files"))) {
        *out = lock;
        return FL_ERR_OK;
    }
    json_decref(lock);
    return FL_FAIL(FL_ERR_CONFIG,
                   "%s: expected an object with format %d, engine, fingerprint and files" WRITE_ANEW,
                   FL_LOCK_NAME, LOCK_FORMAT);
}

/* Where mismatches go: the first becomes the error, each goes to the caller. */
typedef struct comparison {
    const fl_lock_calls *calls;
    fl_err err;
    int32_t n_mismatches;
} comparison;

static void report(comparison *c, const char *field, const char *expected, const char *found) {
    c->n_mismatches++;
    if (c->calls->mismatch)
        c->calls->mismatch(c->calls->context,
                           &(fl_lock_mismatch){.field = field, .expected = expected, .found = found});
    if (c->err == FL_ERR_OK)
        c->err = FL_FAIL(FL_ERR_CONFIG, "%s: field '%.200s': expected %.200s, found %.200s" WRITE_ANEW,
                         FL_LOCK_NAME, field, expected, found);
}

static void compare_file(comparison *c, const fl_fingerprint_file *file, const json_t *locked) {
    char expected[40], found[40];
    const char *hex = json_string_value(json_object_get(locked, "sha256"));
    const json_t *n_bytes = json_object_get(locked, "bytes");
    if (!locked) {
        report(c, file->name, "no such file", file->hex);
    } else if (!hex || !json_is_integer(n_bytes)) {
        report(c, file->name, "an entry with bytes and sha256", "something else in the lock");
    } else if (json_integer_value(n_bytes) != file->n_bytes) {
        snprintf(expected, sizeof expected, "%lld bytes", (long long)json_integer_value(n_bytes));
        snprintf(found, sizeof found, "%lld bytes", (long long)file->n_bytes);
        report(c, file->name, expected, found);
    } else if (strcmp(hex, file->hex) != 0) {
        report(c, file->name, hex, file->hex);
    }
}

static bool has_file(const fl_fingerprint *f, const char *name) {
    for (int32_t i = 0; i < f->n_files; i++)
        if (strcmp(f->files[i].name, name) == 0) return true;
    return false;
}

static fl_err compare(const json_t *lock, const fl_fingerprint *f, const fl_lock_calls *calls) {
    comparison c = {.calls = calls};
    const char *engine = json_string_value(json_object_get(lock, "engine")), *name;
    const json_t *files = json_object_get(lock, "files");
    json_t *locked;
    if (strcmp(engine, FL_VERSION) != 0) report(&c, "engine", engine, FL_VERSION);
    int32_t before_files = c.n_mismatches;
    for (int32_t i = 0; i < f->n_files; i++)
        compare_file(&c, &f->files[i], json_object_get(files, f->files[i].name));
    json_object_foreach((json_t *)(uintptr_t)files, name, locked) {
        if (has_file(f, name)) continue;
        const char *hex = json_string_value(json_object_get(locked, "sha256"));
        report(&c, name, hex ? hex : "a file", "no such file");
    }
    const char *hex = json_string_value(json_object_get(lock, "fingerprint"));
    /* The same files must give the same fingerprint; when files differ it says nothing new. */
    if (c.n_mismatches == before_files && strcmp(hex, f->hex) != 0) report(&c, "fingerprint", hex, f->hex);
    return c.err;
}

fl_err fl_lock_check(const char *dir, const fl_lock_calls *calls) {
    json_t *lock = NULL;
    fl_fingerprint fingerprint = {0};
    FL_TRY(load_lock(dir, &lock));
    fl_err err = fl_fingerprint_compute(dir, calls->progress, calls->context, &fingerprint);
    if (err == FL_ERR_OK) err = compare(lock, &fingerprint, calls);
    fl_fingerprint_close(&fingerprint);
    json_decref(lock);
    return err;
}
