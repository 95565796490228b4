/* Answers that are JSON of a given shape: a JSON schema becomes an automaton over bytes, with a stack for what is
 * open.
 *
 * What a schema may say (JSON Schema 2020-12 and draft 7, where they agree):
 *   type (one or several), enum, const, properties, required, additionalProperties, items, prefixItems, minItems,
 *   maxItems, minLength, maxLength, pattern, minimum, maximum, exclusiveMinimum, exclusiveMaximum, anyOf, oneOf (as
 *   anyOf), allOf, $ref to "#" or a JSON pointer "#/..." (in the nearest schema around it that has an $id, else in
 *   the whole), true and false as schemas.
 * Keywords that only describe (title, description, default, format, ...) and unknown ones say nothing. Those that
 * restrict in another way (not, if, patternProperties, ...) are refused by name.
 *
 * What an answer looks like:
 *   Properties come in the order in which the schema declares them, then those of `required` that it does not
 *   declare, then others where they may be. Only others' names may come twice.
 *   Whitespace: none, one space, or (not behind a colon) a line break and an indent of at most 4 spaces or a tab a
 *   level; none outside, none before a comma or colon. So blanks come to an end.
 *   Strings are UTF-8 with any escape; no U+0000 and no half of a surrogate pair. Names, enum and const values and
 *   strings with a pattern escape only what must be: \" \\ \b \f \n \r \t, \u and upper-case digits for other control
 *   characters.
 *   Numbers: up to 18 digits before the point, 18 behind it, 2 in the exponent; where there is a bound 15 in all
 *   and no exponent, so that comparing them as doubles, as validators do, changes nothing.
 *   Integers: up to 18 digits, no -0. These fit into what JSON parsers hold.
 *   At most FL_SCHEMA_DEPTH_MAX values are open at once.
 * Whatever is accepted is valid under the schema, and every state can reach an end. */
#ifndef FL_TEXT_SCHEMA_H
#define FL_TEXT_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Limits. A schema beyond them is refused with FL_ERR_LIMIT. */
enum {
    FL_SCHEMA_BYTES_MAX = 256 << 10,
    FL_SCHEMA_DEPTH_MAX = 48,     /* frames: open arrays, objects and one value in them */
    FL_SCHEMA_BRANCHES_MAX = 256, /* alternatives of one value */
    FL_SCHEMA_THREADS_MAX =
        64, /* readings of the answer so far that are followed; those beyond are given up */
    FL_SCHEMA_FRAMES_MAX = 512, /* of all of them together */
};

typedef struct fl_schema fl_schema; /* compiled; immutable */

/* Compiles the text of a schema; "" = any JSON object. Time and memory are bounded whatever the text. On success the
 * caller owns *out. FL_ERR_INVALID: not a schema, or nothing can be valid under it; FL_ERR_UNSUPPORTED: a keyword
 * that is not implemented; FL_ERR_LIMIT: too large. The detail names keyword and JSON pointer. */
fl_err fl_schema_compile(const char *text, fl_schema **out);

/* Whether it compiles. */
fl_err fl_schema_check(const char *text);

/* Accepts NULL. */
void fl_schema_close(fl_schema *schema);

/* Where a reading is in one open value. */
typedef struct fl_schema_frame {
    uint16_t node; /* of the schema */
    uint16_t at;   /* in it */
    uint32_t count;
} fl_schema_frame;

/* What may follow an answer so far: plain data, equal (fl_schema_state_bytes of it) if the same may follow. The
 * readings' frames lie one behind the other, outermost first. */
typedef struct fl_schema_state {
    uint16_t n_threads; /* 0: the answer cannot become valid */
    uint16_t n_frames;
    uint8_t depth[FL_SCHEMA_THREADS_MAX];
    fl_schema_frame frames[FL_SCHEMA_FRAMES_MAX];
} fl_schema_state;

/* Before the first byte. */
void fl_schema_start(const fl_schema *schema, fl_schema_state *out);

/* The state after one more byte; `in` and `out` differ. False: no valid answer goes on so, and out has no threads. */
bool fl_schema_step(const fl_schema *schema, const fl_schema_state *in, uint8_t byte, fl_schema_state *out);

/* Moves the state on by n bytes. False: no valid answer goes on so, and the state is undefined. */
bool fl_schema_feed(const fl_schema *schema, fl_schema_state *state, const char *bytes, size_t n_bytes);

/* Whether what came so far is a whole valid answer. */
bool fl_schema_is_complete(const fl_schema *schema, const fl_schema_state *state);

/* Whether it is one that has its last byte: all but numbers, which end where something else begins. */
bool fl_schema_is_final(const fl_schema *schema, const fl_schema_state *state);

#endif
