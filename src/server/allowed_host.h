/* Which Host a request may name. A page of another site can have its own name point to 127.0.0.1 and then talk
 * to a server there as if it were its own (DNS rebinding); an address cannot be pointed elsewhere. Where no
 * key protects a server on loopback, only addresses, localhost and names that were allowed are served. */
#ifndef FL_SERVER_ALLOWED_HOST_H
#define FL_SERVER_ALLOWED_HOST_H

#include <stdbool.h>

/* Whether an address or name to listen on means this machine only. */
bool fl_host_is_loopback(const char *host);

/* `host`: a Host field's value, NULL = none (HTTP/1.0). `names` [n_names] are allowed besides. */
bool fl_host_is_allowed(const char *host, const char *const *names, int n_names);

#endif
