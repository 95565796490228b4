#include "server/allowed_host.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { NAME_BYTES_MAX = 256 };

bool fl_host_is_loopback(const char *host) {
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 || strncmp(host, "127.", 4) == 0;
}

/* Without the port, and without the brackets of an IPv6 address. */
static bool cut_name(const char *host, char name[NAME_BYTES_MAX], bool *bracketed) {
    *bracketed = host[0] == '[';
    if (*bracketed) host++;
    size_t n = strcspn(host, *bracketed ? "]" : ":");
    if (n == 0 || n >= NAME_BYTES_MAX) return false;
    snprintf(name, NAME_BYTES_MAX, "%.*s", (int)n, host);
    return true;
}

bool fl_host_is_allowed(const char *host, const char *const *names, int n_names) {
    char name[NAME_BYTES_MAX];
    struct in6_addr address;
    bool bracketed;
    if (!host) return true; /* no browser sends such a request */
    if (!cut_name(host, name, &bracketed)) return false;
    if (inet_pton(bracketed ? AF_INET6 : AF_INET, name, &address) == 1) return true;
    if (strcasecmp(name, "localhost") == 0) return true;
    for (int i = 0; i < n_names; i++)
        if (strcasecmp(name, names[i]) == 0) return true;
    return false;
}
