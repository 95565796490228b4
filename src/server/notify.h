/* Tells systemd how a service of Type=notify is: one datagram to the socket it names. */
#ifndef FL_SERVER_NOTIFY_H
#define FL_SERVER_NOTIFY_H

#include <stdbool.h>

/* Sends `state`, such as "READY=1", to `socket_path`: the value of NOTIFY_SOCKET, an absolute path or, behind an @, an
 * abstract name; NULL or "": nobody listens, nothing happens. false: it was not sent. */
bool fl_notify(const char *socket_path, const char *state);

#endif
