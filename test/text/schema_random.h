/* Random schemas and values for tests of the schema automaton; the same for the same seed. */
#ifndef TEST_SCHEMA_RANDOM_H
#define TEST_SCHEMA_RANDOM_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct dice {
    uint64_t state;
} dice;

/* 0..n-1. */
uint32_t roll(dice *d, uint32_t n);

/* A schema with definitions that may refer to each other. Declared names come in one order everywhere. */
json_t *schema_random(dice *d);

/* Changes one random place of a value: a new reference, or NULL if there is no such change. */
json_t *value_mutated(dice *d, const json_t *value);

/* Whether the automaton's answers may look like the value written down: names in the order of schema_random, no
 * number with an exponent or more than 15 digits, no fraction that is a whole number, not too deep. */
bool value_is_canonical(const json_t *value, int depth);

#endif
