/* A server in this process, before a worker without a model (stub_worker.c). All functions fail the running cmocka test
 * when something goes wrong. */
#ifndef TEST_SERVE_STUB_H
#define TEST_SERVE_STUB_H

#include "server/serve.h"

/* Defaults for tests: any free port, the bundled model's tokenizer, no log. `command` is the stub's argv,
 * NULL-terminated, borrowed until the server is closed. */
void stub_options(fl_serve_options *options, const char *const *command);

/* Opens and waits until the worker is ready. */
fl_serve *stub_serve(const fl_serve_options *options);
void stub_wait_ready(int32_t port);

/* Waits until nothing is being answered by the worker; fails after 10 s. */
void stub_wait_idle(int32_t port);

#endif
