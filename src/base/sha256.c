/* OpenSSL does the work (it uses the CPU's SHA instructions). Files are read, not mapped: a file that shrinks while it
 * is hashed gives a wrong digest instead of a fault. */
#include "base/sha256.h"

#include "base/file.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20, DIGEST_BYTES = 32 };

void fl_hex_text(const unsigned char *bytes, size_t n, char *hex) {
    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    hex[2 * n] = '\0';
}

fl_err fl_sha256_of(const void *bytes, size_t n_bytes, char hex[FL_SHA256_HEX_BYTES]) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    if (EVP_Digest(bytes, n_bytes, digest, NULL, EVP_sha256(), NULL) != 1)
        return FL_FAIL(FL_ERR_INTERNAL, "SHA-256 is not available in the OpenSSL library");
    fl_hex_text(digest, DIGEST_BYTES, hex);
    return FL_ERR_OK;
}

typedef struct hashing {
    const char *name;
    int fd;
    EVP_MD_CTX *md;
    unsigned char *piece; /* [PIECE_BYTES] */
    int64_t n_bytes;
} hashing;

static fl_err hash_pieces(hashing *h, fl_sha256_piece_fn *piece, void *context) {
    if (EVP_DigestInit_ex(h->md, EVP_sha256(), NULL) != 1)
        return FL_FAIL(FL_ERR_INTERNAL, "SHA-256 is not available in the OpenSSL library");
    for (;;) {
        ssize_t got = read(h->fd, h->piece, PIECE_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return FL_FAIL(FL_ERR_IO, "%s: cannot read: %s", h->name, strerror(errno));
        if (got == 0) return FL_ERR_OK;
        if (EVP_DigestUpdate(h->md, h->piece, (size_t)got) != 1)
            return FL_FAIL(FL_ERR_INTERNAL, "%s: SHA-256 failed", h->name);
        h->n_bytes += got;
        if (piece) piece(context, got);
    }
}

fl_err fl_sha256_file(const char *dir, const char *name, fl_sha256_piece_fn *piece, void *context,
                      char hex[FL_SHA256_HEX_BYTES], int64_t *n_bytes) {
    hashing h = {.name = name, .fd = -1};
    unsigned char digest[EVP_MAX_MD_SIZE];
    fl_err err;
    FL_TRY(fl_file_open(dir, name, &h.fd, NULL));
    h.md = EVP_MD_CTX_new();
    h.piece = malloc(PIECE_BYTES);
    if (!h.md || !h.piece) {
        err = FL_FAIL(FL_ERR_NOMEM, "%s: %d bytes to hash it", name, PIECE_BYTES);
        goto fail;
    }
    FL_TRY_GOTO(hash_pieces(&h, piece, context));
    if (EVP_DigestFinal_ex(h.md, digest, NULL) != 1) {
        err = FL_FAIL(FL_ERR_INTERNAL, "%s: SHA-256 failed", name);
        goto fail;
    }
    fl_hex_text(digest, DIGEST_BYTES, hex);
    *n_bytes = h.n_bytes;
    err = FL_ERR_OK;
fail:
    EVP_MD_CTX_free(h.md);
    free(h.piece);
    close(h.fd);
    return err;
}
