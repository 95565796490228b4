/* Runs files of chat template cases, as chat_oracle.py writes them. */
#ifndef FL_TEST_CHAT_CASES_H
#define FL_TEST_CHAT_CASES_H

#include <stddef.h>

typedef struct chat_cases_result {
    size_t n_cases;
    size_t n_equal;       /* the same text, or both refused */
    size_t n_unsupported; /* Jinja has a text, we say that the construct is not supported */
    size_t n_wrong;       /* anything else; each is printed */
} chat_cases_result;

/* A JSON list of objects: name, text or file (the template), messages, tools, generate, kwargs, bos, expect (the
 * text, or null: Jinja refused) and alphabet. With alphabet true the origin of each byte of the result is known from
 * the byte: ASCII is the template's, U+05xx came with tools or variables, all else is message content; this is checked
 * as well. Fails the running test if the file cannot be read. */
chat_cases_result chat_cases_run(const char *path);

#endif
