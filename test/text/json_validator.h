/* A JSON schema validator for tests, written for being plain: it recurses over value and schema, and knows the
 * keywords that firstlight knows, oneOf as anyOf. Patterns are POSIX extended regular expressions, as the tests'
 * are. */
#ifndef TEST_JSON_VALIDATOR_H
#define TEST_JSON_VALIDATOR_H

#include <jansson.h>
#include <stdbool.h>

bool json_is_valid(const json_t *root, const json_t *schema, const json_t *value);

#endif
