/* What a compiled schema is made of. For the schema_*.c files only.
 *
 * A value of the answer is a choice between nodes; a node is one kind of value with its limits. Frames of a state
 * name nodes; frame 0 is the root, which is no node. */
#ifndef FL_TEXT_SCHEMA_IMPL_H
#define FL_TEXT_SCHEMA_IMPL_H

#include "text/schema.h"
#include "text/schema_dfa.h"

enum {
    FL_SCHEMA_NODES_MAX = 8192,
    FL_SCHEMA_CHOICES_MAX = 8192,
    FL_SCHEMA_LINKS_MAX = 65536,
    FL_SCHEMA_PROPERTIES_MAX = 32768,
    FL_SCHEMA_WORDS_MAX = 65535,
    FL_SCHEMA_WORD_BYTES_MAX = 16384,
    FL_SCHEMA_TEXT_MAX = 4 << 20, /* of words */
    FL_SCHEMA_DFAS_MAX = 256,
    FL_SCHEMA_BOUNDS_MAX = 1024,
    FL_SCHEMA_KEY_BYTES = 32,
    FL_SCHEMA_EXACT_DIGITS = 15, /* numbers of so many digits differ as doubles, too */
    FL_SCHEMA_DIGITS_MAX = 18,   /* of a number's integer part, and of its fraction */
};

#define FL_SCHEMA_NONE UINT32_MAX

typedef enum fl_schema_kind {
    FL_SCHEMA_OBJECT,
    FL_SCHEMA_KEY, /* a name being written in an object */
    FL_SCHEMA_ARRAY,
    FL_SCHEMA_STRING,
    FL_SCHEMA_NUMBER,
    FL_SCHEMA_WORDS, /* one of some JSON texts */
} fl_schema_kind;

typedef struct fl_schema_node {
    uint8_t kind;
    uint8_t
        height; /* frames that its shortest value opens, itself included; > FL_SCHEMA_DEPTH_MAX: it has none */
    uint32_t words;  /* OBJECT: names as written; WORDS */
    uint32_t first;  /* OBJECT: of properties. ARRAY: alike, of the first places */
    uint32_t n;      /* how many of those */
    uint32_t rest;   /* OBJECT, ARRAY: choice of the others; FL_SCHEMA_NONE: there are none */
    uint32_t min;    /* ARRAY: items. STRING: code points */
    uint32_t max;    /* alike; FL_SCHEMA_NONE: any number */
    uint32_t detail; /* OBJECT: its KEY. KEY: its OBJECT. STRING: DFA, NUMBER: bounds; FL_SCHEMA_NONE */
} fl_schema_node;

typedef struct fl_schema_choice {
    uint32_t first, n; /* of links: nodes */
    uint8_t height;    /* of the lowest */
} fl_schema_choice;

typedef struct fl_schema_property {
    uint32_t choice;
    bool required;
} fl_schema_property;

/* Sorted byte strings. Where one is in a set: (first of those that begin so, bytes so far). */
typedef struct fl_schema_word {
    uint32_t offset; /* in text */
    uint16_t n_bytes;
    uint16_t index; /* of a property */
} fl_schema_word;

typedef struct fl_schema_words {
    uint32_t first, n;
} fl_schema_words;

/* A decimal number >= 0: digits before and behind the point, no zeros in front. */
typedef struct fl_schema_decimal {
    uint8_t n_whole, n_fraction;
    char whole[FL_SCHEMA_DIGITS_MAX];
    char fraction[FL_SCHEMA_DIGITS_MAX];
} fl_schema_decimal;

/* Bounds of the numbers of one sign, by magnitude. How digits so far stand to a bound is 0 less, 1 equal, 2 more; bit
 * 3 * (to the lower) + (to the upper) of live_* says whether some number within the bounds goes on so. */
typedef struct fl_schema_side {
    bool lower_strict, upper_strict, unbounded; /* unbounded: no upper */
    fl_schema_decimal lower, upper;
    uint16_t live_whole[FL_SCHEMA_DIGITS_MAX + 1]; /* by digits so far, >= 1 */
    /* by digits before and behind the point, of integers before it only */
    uint16_t live_fraction[FL_SCHEMA_DIGITS_MAX + 1][FL_SCHEMA_EXACT_DIGITS + 1];
} fl_schema_side;

typedef struct fl_schema_bounds {
    bool integer;
    fl_schema_side side[2]; /* positive and zero, negative */
} fl_schema_bounds;

struct fl_schema {
    uint32_t root;                 /* choice */
    char key[FL_SCHEMA_KEY_BYTES]; /* equal for equal texts */
    fl_schema_node *nodes;
    fl_schema_choice *choices;
    uint16_t *links; /* nodes of choices */
    fl_schema_property *properties;
    fl_schema_words *word_sets;
    fl_schema_word *words;
    char *text; /* of words */
    fl_schema_dfa *dfas;
    fl_schema_bounds *bounds;
    uint32_t n_nodes, n_choices, n_links, n_properties, n_word_sets, n_words, n_text, n_dfas, n_bounds;
};

/* What becomes of a value when a byte comes. */
typedef enum fl_schema_move {
    FL_SCHEMA_REFUSED, /* the byte is no part of it */
    FL_SCHEMA_GOES_ON,
    FL_SCHEMA_ENDED, /* the byte was its last */
} fl_schema_move;

/* schema_state.c: whether a reading is inside a string of any text, between code points; how many more there may
 * be. */
bool fl_schema_in_text(const fl_schema *s, const fl_schema_state *state, uint32_t *room);

/* schema_words.c. Position UINT32_MAX: no word begins so. 0: nothing came yet. */
uint32_t fl_schema_words_step(const fl_schema *s, uint32_t set, uint32_t position, uint8_t byte);
bool fl_schema_words_ends(const fl_schema *s, uint32_t set, uint32_t position, uint32_t *word);
bool fl_schema_words_goes_on(const fl_schema *s, uint32_t set, uint32_t position);
/* The words that begin with what came: [*first, *end) of s->words. */
void fl_schema_words_range(const fl_schema *s, uint32_t set, uint32_t position, uint32_t *first,
                           uint32_t *end);

/* A new set; words are copied, then sorted by fl_schema_words_end. */
fl_err fl_schema_words_begin(fl_schema *s, uint32_t *set);
fl_err fl_schema_words_add(fl_schema *s, const char *bytes, size_t n_bytes, uint32_t index);
void fl_schema_words_end(fl_schema *s, uint32_t set);

/* schema_string.c: text between quotes. `at` and `count` are the frame's. */
fl_schema_move fl_schema_string_step(const fl_schema *s, const fl_schema_node *node, fl_schema_frame *f,
                                     uint8_t byte);
/* A name beside the declared ones, written as it must be. `at` 0: between code points. */
fl_schema_move fl_schema_name_step(uint16_t *at, uint8_t byte);

/* schema_number.c */
bool fl_schema_number_begin(const fl_schema *s, const fl_schema_node *node, uint8_t byte, fl_schema_frame *f);
fl_schema_move fl_schema_number_step(const fl_schema *s, const fl_schema_node *node, fl_schema_frame *f,
                                     uint8_t byte);
bool fl_schema_number_may_end(const fl_schema *s, const fl_schema_node *node, const fl_schema_frame *f);
/* Fills live_* of a side whose bounds are set. */
void fl_schema_side_finish(fl_schema_side *side, bool integer);

#endif
