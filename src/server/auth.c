#include "server/auth.h"

#include "base/file.h"
#include "base/sha256.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SECRET_BYTES = 32, FILE_BYTES_MAX = 1 << 20 };

struct fl_auth {
    unsigned char secret[SECRET_BYTES];
    char (*digests)[FL_SHA256_HEX_BYTES]; /* [n] */
    int n;
};

static fl_err digest(const fl_auth *auth, const char *key, size_t n, char out[FL_SHA256_HEX_BYTES]) {
    unsigned char text[SECRET_BYTES + FL_AUTH_KEY_BYTES_MAX];
    memcpy(text, auth->secret, SECRET_BYTES);
    memcpy(text + SECRET_BYTES, key, n);
    fl_err err = fl_sha256_of(text, SECRET_BYTES + n, out);
    OPENSSL_cleanse(text, sizeof text);
    return err;
}

static fl_err add_key(fl_auth *auth, const char *key, size_t n) {
    if (n < 1 || n > FL_AUTH_KEY_BYTES_MAX || strcspn(key, " \t") < n)
        return FL_FAIL(FL_ERR_INVALID, "an API key has 1 to %d bytes without blanks, found %zu bytes",
                       FL_AUTH_KEY_BYTES_MAX, n);
    if (auth->n == FL_AUTH_KEYS_MAX) return FL_FAIL(FL_ERR_LIMIT, "more than %d API keys", FL_AUTH_KEYS_MAX);
    return digest(auth, key, n, auth->digests[auth->n++]);
}

static fl_err add_lines(fl_auth *auth, char *text) {
    char *rest = NULL;
    for (char *line = strtok_r(text, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest))
        if (*line != '#') FL_TRY(add_key(auth, line, strlen(line)));
    return FL_ERR_OK;
}

static fl_err add_file(fl_auth *auth, const char *path) {
    char *text = NULL;
    size_t n_bytes = 0;
    int before = auth->n;
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    if (!dir) return FL_FAIL(FL_ERR_NOMEM, "the key file's name");
    fl_err err = fl_file_read(dir, slash ? slash + 1 : path, FILE_BYTES_MAX, &text, &n_bytes);
    free(dir);
    if (err != FL_ERR_OK) return err;
    err = add_lines(auth, text);
    OPENSSL_cleanse(text, n_bytes);
    free(text);
    if (err == FL_ERR_OK && auth->n == before) err = FL_FAIL(FL_ERR_DATA, "%s: no API key in it", path);
    return err;
}

fl_err fl_auth_open(const char *const *keys, int n_keys, const char *file, fl_auth **out) {
    fl_err err;
    fl_auth *auth = calloc(1, sizeof *auth);
    if (auth) auth->digests = calloc(FL_AUTH_KEYS_MAX, sizeof *auth->digests);
    if (!auth || !auth->digests) {
        fl_auth_close(auth);
        return FL_FAIL(FL_ERR_NOMEM, "API keys");
    }
    if (RAND_bytes(auth->secret, sizeof auth->secret) != 1) {
        err = FL_FAIL(FL_ERR_INTERNAL, "no random bytes");
        goto fail;
    }
    for (int i = 0; i < n_keys; i++) FL_TRY_GOTO(add_key(auth, keys[i], strlen(keys[i])));
    if (file) FL_TRY_GOTO(add_file(auth, file));
    *out = auth;
    return FL_ERR_OK;
fail:
    fl_auth_close(auth);
    return err;
}

bool fl_auth_needed(const fl_auth *auth) {
    return auth->n > 0;
}

bool fl_auth_check(const fl_auth *auth, const char *authorization) {
    static const char scheme[] = "Bearer ";
    char found[FL_SHA256_HEX_BYTES];
    int equal = 0;
    if (auth->n == 0) return true;
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) return false;
    const char *key = authorization + sizeof scheme - 1;
    size_t n = strlen(key);
    if (n > FL_AUTH_KEY_BYTES_MAX || digest(auth, key, n, found) != FL_ERR_OK) return false;
    for (int i = 0; i < auth->n; i++) equal |= CRYPTO_memcmp(found, auth->digests[i], sizeof found) == 0;
    return equal != 0;
}

void fl_auth_close(fl_auth *auth) {
    if (!auth) return;
    free(auth->digests);
    OPENSSL_cleanse(auth->secret, sizeof auth->secret);
    free(auth);
}
