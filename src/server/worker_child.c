#include "server/worker_child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/worker_link.h"

/* Between fork and exec in a program with threads: only calls that are safe in a signal handler. */
static void become_worker(int socket, const char *path, char *const *argv, pid_t parent) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0); /* it died before the line above */
    int input = open("/dev/null", O_RDONLY);
    if (socket != FL_WORKER_FD) dup2(socket, FL_WORKER_FD);
    else fcntl(socket, F_SETFD, 0);
    if (input >= 0 && input != STDIN_FILENO) dup2(input, STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    close_range(FL_WORKER_FD + 1, ~0U, 0);
    execv(path, argv);
    _exit(FL_WORKER_EXIT_NO_EXEC);
}

fl_err fl_worker_child_start(char *const *command, fl_worker_child *out) {
    static char name[] = "firstlight", argument[] = FL_WORKER_ARGUMENT;
    char *const own[] = {name, argument, NULL};
    int ends[2];
    pid_t parent = getpid();
    *out = (fl_worker_child){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return FL_FAIL(FL_ERR_IO, "cannot make the worker's socket: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        become_worker(ends[1], command ? command[0] : "/proc/self/exe", command ? command : own, parent);
    int code = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return FL_FAIL(FL_ERR_NOMEM, "cannot start the worker process: %s", strerror(code));
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *out = (fl_worker_child){.pid = pid, .fd = ends[0]};
    return FL_ERR_OK;
}

/* The child's wait status, or -1 while it lives. */
static int look(pid_t pid) {
    int status = 0;
    pid_t got = waitpid(pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) return -1;
    return got == pid ? status : 0; /* reaped by someone else: nothing more is known */
}

static void tell(int status, char *words, size_t n, bool *lost) {
    if (WIFSIGNALED(status)) {
        snprintf(words, n, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        return;
    }
    int code = WEXITSTATUS(status);
    const char *meaning = code == FL_WORKER_EXIT_LOST       ? " (its device is lost)"
                          : code == FL_WORKER_EXIT_PROTOCOL ? " (it was sent what it does not understand)"
                          : code == FL_WORKER_EXIT_NO_EXEC  ? " (its program could not be started)"
                                                            : "";
    *lost = code == FL_WORKER_EXIT_LOST;
    snprintf(words, n, "exit code %d%s", code, meaning);
}

void fl_worker_child_end(fl_worker_child *child, double grace_s, char *words, size_t n, bool *lost) {
    const struct timespec nap = {.tv_nsec = 2000000};
    double end_s = fl_now_s() + grace_s;
    bool killed = false;
    int status = -1;
    *lost = false;
    words[0] = '\0';
    if (child->fd >= 0) close(child->fd);
    while (child->pid > 0 && (status = look(child->pid)) == -1) {
        if (!killed && fl_now_s() >= end_s) killed = kill(child->pid, SIGKILL) == 0;
        nanosleep(&nap, NULL);
    }
    if (child->pid > 0) tell(status, words, n, lost);
    *child = (fl_worker_child){.fd = -1};
}
