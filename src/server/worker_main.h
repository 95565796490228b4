/* The worker process: opens the engine that the front asks for and serves it over the socket (server/wire.h). Two
 * threads of its own: the reader, which submits and cancels, and the pump, which brings the events of all requests. */
#ifndef FL_SERVER_WORKER_MAIN_H
#define FL_SERVER_WORKER_MAIN_H

/* Serves until the front closes the socket, then closes the engine (which may have pages to store on disk). Returns the
 * process's exit code (worker_child.h; base/err.h's for an error of loading). Ctrl-C and
 * SIGTERM do nothing here: they are the front's, which drains and then closes. */
int fl_worker_process(int socket);

#endif
