/* API keys. Which key was wrong, and in which byte, cannot be told from how long the check takes: what is compared is
 * digests under a secret of this process, all of them every time. */
#ifndef FL_SERVER_AUTH_H
#define FL_SERVER_AUTH_H

#include "base/err.h"

#include <stdbool.h>

typedef struct fl_auth fl_auth;

enum { FL_AUTH_KEYS_MAX = 1024, FL_AUTH_KEY_BYTES_MAX = 512 };

/* Keys of `keys` [n_keys] (borrowed for the call) and of `file` (NULL = none), one a line; empty lines and those that
 * begin with # are skipped. No key at all: everyone may. FL_ERR_INVALID: a key is empty, too long or has blanks.
 * FL_ERR_DATA: the file cannot be read, or has no key. On success the caller owns *out. */
fl_err fl_auth_open(const char *const *keys, int n_keys, const char *file, fl_auth **out);

/* Whether a key is asked for at all. */
bool fl_auth_needed(const fl_auth *auth);

/* `authorization`: a header's value, "Bearer KEY", or NULL. Any thread. */
bool fl_auth_check(const fl_auth *auth, const char *authorization);

void fl_auth_close(fl_auth *auth);

#endif
