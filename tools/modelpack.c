/* modelpack: keeps a checkpoint folder in the repository and brings it back.
 *
 *   modelpack pack   CHECKPOINT PACKED    *.safetensors become *.safetensors.flpack, all other files are
 * copied, SHA256SUMS lists every file of the checkpoint (sha256sum -c reads it) modelpack unpack PACKED
 * CHECKPOINT    the files of SHA256SUMS again; a file whose SHA-256 differs is refused
 *
 * Exit: 0 done; 1 failed; 2 usage; 65 a broken or foreign pack. */
#include <dirent.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/flpack.h"

enum { NAME_MAX_BYTES = 128, PATH_MAX_BYTES = 4096, SHA_HEX = 64, LEVEL = 22 };

#define SUMS_NAME   "SHA256SUMS"
#define PACK_SUFFIX ".flpack"

typedef struct bytes {
    uint8_t *data;
    size_t n;
} bytes;

static fl_err path_join(char path[PATH_MAX_BYTES], const char *folder, const char *name, const char *suffix) {
    int n = snprintf(path, PATH_MAX_BYTES, "%s/%s%s", folder, name, suffix);
    if (n < 0 || n >= PATH_MAX_BYTES)
        return FL_FAIL(FL_ERR_LIMIT, "path too long: %s/%s%s", folder, name, suffix);
    return FL_ERR_OK;
}

static fl_err file_read(const char *path, bytes *out) {
    fl_err err = FL_ERR_OK;
    uint8_t *data = NULL;
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) {
        err = FL_FAIL(FL_ERR_IO, "%s: %s", path, strerror(errno));
        goto fail;
    }
    size_t n = (size_t)st.st_size;
    data = malloc(n + 1);
    if (!data) {
        err = FL_FAIL(FL_ERR_NOMEM, "%s: %zu bytes", path, n);
        goto fail;
    }
    if (fread(data, 1, n, f) != n) {
        err = FL_FAIL(FL_ERR_IO, "%s: could not read %zu bytes", path, n);
        goto fail;
    }
    data[n] = '\0';
    *out = (bytes){data, n};
    data = NULL;
fail:
    free(data);
    if (f) fclose(f);
    return err;
}

/* Writes beside the target and renames, so that a half-written file never carries its name. */
static fl_err file_write(const char *path, const void *data, size_t n) {
    char temporary[PATH_MAX_BYTES + 8];
    snprintf(temporary, sizeof temporary, "%s.part", path);
    FILE *f = fopen(temporary, "wb");
    if (!f) return FL_FAIL(FL_ERR_IO, "%s: %s", temporary, strerror(errno));
    bool ok = fwrite(data, 1, n, f) == n;
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(temporary, path) != 0) {
        fl_err err = FL_FAIL(FL_ERR_IO, "%s: %s", path, strerror(errno));
        unlink(temporary);
        return err;
    }
    return FL_ERR_OK;
}

static fl_err sha256_hex(const bytes *b, char hex[SHA_HEX + 1]) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    if (EVP_Digest(b->data, b->n, digest, NULL, EVP_sha256(), NULL) != 1)
        return FL_FAIL(FL_ERR_INTERNAL, "SHA-256 is not available");
    for (size_t i = 0; i < SHA_HEX / 2; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return FL_ERR_OK;
}

static bool is_packed(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".safetensors") == 0;
}

/* Packs or copies one file and appends its line to the list of sums. */
static fl_err pack_one(const char *from, const char *to, const char *name, FILE *sums) {
    char path[PATH_MAX_BYTES], hex[SHA_HEX + 1];
    bytes file = {0}, pack = {0};
    fl_err err = FL_ERR_OK;
    FL_TRY_GOTO(path_join(path, from, name, ""));
    FL_TRY_GOTO(file_read(path, &file));
    FL_TRY_GOTO(sha256_hex(&file, hex));
    bool packed = is_packed(name);
    if (packed) FL_TRY_GOTO(fl_pack_encode(file.data, file.n, LEVEL, &pack.data, &pack.n));
    const bytes *kept = packed ? &pack : &file;
    FL_TRY_GOTO(path_join(path, to, name, packed ? PACK_SUFFIX : ""));
    FL_TRY_GOTO(file_write(path, kept->data, kept->n));
    printf("%s: %zu -> %zu bytes\n", name, file.n, kept->n);
    fprintf(sums, "%s  %s\n", hex, name);
fail:
    free(file.data);
    free(pack.data);
    return err;
}

static int visible_file(const struct dirent *entry) {
    return entry->d_name[0] != '.' && strcmp(entry->d_name, SUMS_NAME) != 0;
}

static fl_err pack_folder(const char *from, const char *to) {
    char path[PATH_MAX_BYTES], *text = NULL;
    size_t text_bytes = 0;
    struct dirent **entries = NULL;
    fl_err err = FL_ERR_OK;
    FILE *sums = open_memstream(&text, &text_bytes);
    int n = scandir(from, &entries, visible_file, alphasort);
    if (!sums || n <= 0) {
        err = FL_FAIL(FL_ERR_IO, "%s: no files to pack", from);
        goto fail;
    }
    for (int i = 0; i < n; i++) FL_TRY_GOTO(pack_one(from, to, entries[i]->d_name, sums));
    fflush(sums);
    FL_TRY_GOTO(path_join(path, to, SUMS_NAME, ""));
    err = file_write(path, text, text_bytes);
fail:
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    if (sums) fclose(sums);
    free(text);
    return err;
}

/* Brings back one file and compares it with its sum before it gets its name. */
static fl_err unpack_one(const char *from, const char *to, const char *name, const char *expected) {
    char path[PATH_MAX_BYTES], hex[SHA_HEX + 1];
    bytes kept = {0}, file = {0};
    fl_err err = FL_ERR_OK;
    bool packed = is_packed(name);
    FL_TRY_GOTO(path_join(path, from, name, packed ? PACK_SUFFIX : ""));
    FL_TRY_GOTO(file_read(path, &kept));
    if (packed) {
        err = fl_pack_decode(kept.data, kept.n, &file.data, &file.n);
        if (err != FL_ERR_OK) {
            err = FL_FAIL(err, "%s: %s", path, fl_err_detail());
            goto fail;
        }
    }
    const bytes *unpacked = packed ? &file : &kept;
    FL_TRY_GOTO(sha256_hex(unpacked, hex));
    if (strcmp(hex, expected) != 0) {
        err = FL_FAIL(FL_ERR_DATA, "%s: SHA-256 expected %s, found %s", path, expected, hex);
        goto fail;
    }
    FL_TRY_GOTO(path_join(path, to, name, ""));
    err = file_write(path, unpacked->data, unpacked->n);
fail:
    free(kept.data);
    free(file.data);
    return err;
}

/* Takes "HEX  NAME" apart. Names are plain file names: a pack must not write outside its folder. */
static fl_err sums_line(char *line, const char **hex, const char **name) {
    size_t n = strlen(line);
    bool ok = n > SHA_HEX + 2 && n <= SHA_HEX + 2 + NAME_MAX_BYTES &&
              strspn(line, "0123456789abcdef") == SHA_HEX && line[SHA_HEX] == ' ' &&
              line[SHA_HEX + 1] == ' ' && line[SHA_HEX + 2] != '.' && !strchr(line, '/');
    if (!ok) return FL_FAIL(FL_ERR_DATA, SUMS_NAME ": bad line \"%.80s\"", line);
    line[SHA_HEX] = '\0';
    *hex = line;
    *name = line + SHA_HEX + 2;
    return FL_ERR_OK;
}

static fl_err unpack_folder(const char *from, const char *to) {
    char path[PATH_MAX_BYTES], *rest = NULL;
    const char *hex = NULL, *name = NULL;
    bytes sums = {0};
    int n_files = 0;
    fl_err err = FL_ERR_OK;
    FL_TRY(path_join(path, from, SUMS_NAME, ""));
    FL_TRY(file_read(path, &sums));
    for (char *line = strtok_r((char *)sums.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        FL_TRY_GOTO(sums_line(line, &hex, &name));
        FL_TRY_GOTO(unpack_one(from, to, name, hex));
        n_files++;
    }
    if (n_files == 0) err = FL_FAIL(FL_ERR_DATA, "%s: no file is listed", path);
fail:
    free(sums.data);
    return err;
}

/* mkdir -p for the target folder. */
static fl_err folder_make(const char *folder) {
    char path[PATH_MAX_BYTES];
    int n = snprintf(path, sizeof path, "%s", folder);
    if (n <= 0 || n >= PATH_MAX_BYTES) return FL_FAIL(FL_ERR_LIMIT, "path too long or empty: %s", folder);
    for (char *at = path + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        char kept = *at;
        *at = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return FL_FAIL(FL_ERR_IO, "%s: %s", path, strerror(errno));
        *at = kept;
        if (kept == '\0') return FL_ERR_OK;
    }
}

int main(int argc, char **argv) {
    bool pack = argc == 4 && strcmp(argv[1], "pack") == 0;
    if (!pack && !(argc == 4 && strcmp(argv[1], "unpack") == 0)) {
        fprintf(stderr, "usage: modelpack pack CHECKPOINT PACKED | modelpack unpack PACKED CHECKPOINT\n");
        return 2;
    }
    fl_err err = folder_make(argv[3]);
    if (err == FL_ERR_OK) err = pack ? pack_folder(argv[2], argv[3]) : unpack_folder(argv[2], argv[3]);
    if (err != FL_ERR_OK) fprintf(stderr, "modelpack: %s\n", fl_err_detail());
    return fl_err_exit_code(err);
}
