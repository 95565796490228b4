#include "server/notify.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

bool fl_notify(const char *socket_path, const char *state) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (!socket_path || !*socket_path) return false;
    size_t n = strlen(socket_path);
    if ((socket_path[0] != '/' && socket_path[0] != '@') || n >= sizeof to.sun_path) return false;
    memcpy(to.sun_path, socket_path, n);
    if (to.sun_path[0] == '@') to.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    size_t to_bytes = offsetof(struct sockaddr_un, sun_path) + n;
    const void *address = &to;
    ssize_t sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL, address, (socklen_t)to_bytes);
    close(fd);
    return sent == (ssize_t)strlen(state);
}
