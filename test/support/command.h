/* Programs run from a test, and what they leave behind. */
#ifndef TEST_COMMAND_H
#define TEST_COMMAND_H

#include <jansson.h>
#include <stddef.h>

/* Runs a shell's command line. Its standard output goes to text [room], NUL behind it, what does not fit is dropped.
 * Returns the exit code; 128 = it was killed. Fails the running test if no shell starts. */
int run_command(const char *command, char *text, size_t room);

/* A field that must be a number; the running test fails otherwise. */
double number_of(const json_t *object, const char *key);

/* Deletes a folder of the test's own with all that is in it. Returns 0 when it is gone. */
int remove_tree(const char *path);

#endif
