/* The worker's process as its parent sees it: started with one end of a socket, ended, reaped. */
#ifndef FL_SERVER_WORKER_CHILD_H
#define FL_SERVER_WORKER_CHILD_H

#include <sys/types.h>

#include "base/err.h"

enum { FL_WORKER_FD = 3 }; /* where the child finds its end */

/* Exit codes of a worker that have a meaning of their own. */
enum {
    FL_WORKER_EXIT_LOST = 69,     /* its device takes no more work of it */
    FL_WORKER_EXIT_PROTOCOL = 76, /* it was sent what it does not understand */
    FL_WORKER_EXIT_NO_EXEC = 127, /* the program could not be started */
};

typedef struct fl_worker_child {
    pid_t pid; /* 0 = none */
    int fd;    /* this side's end of the socket, non-blocking; -1 = none */
} fl_worker_child;

/* Starts command[0] (argv `command`, NULL-terminated; NULL = this program with FL_WORKER_ARGUMENT). The child gets the
 * socket, the null device as input, this process's standard error as both outputs, and no other file. It dies with the
 * thread that calls this, so that must be one that lives as long as the child is wanted. */
fl_err fl_worker_child_start(char *const *command, fl_worker_child *out);

/* Closes the socket and waits up to grace_s for the child to end, then kills it; reaps it in any case and writes how it
 * ended ("signal 9 (Killed)", "exit code 1") to words[n]. *lost: it said that its device is lost. */
void fl_worker_child_end(fl_worker_child *child, double grace_s, char *words, size_t n, bool *lost);

#endif
