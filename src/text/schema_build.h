/* Compiling a schema. For the schema_*.c files only.
 *
 * What is compiled is a list of schemas that must all hold: allOf and $ref add to it, anyOf makes a choice between
 * longer lists, and what is left is simple: each kind of value becomes a node. Lists that have been seen have a
 * choice already, so recursive schemas end. There is no recursion: choices wait in order of their numbers. */
#ifndef FL_TEXT_SCHEMA_BUILD_H
#define FL_TEXT_SCHEMA_BUILD_H

#include <jansson.h>

#include "text/schema_impl.h"

enum {
    FL_SCHEMA_LIST_MAX = 64,       /* schemas that must hold together */
    FL_SCHEMA_ITEMS_MAX = 1 << 17, /* of all lists */
    FL_SCHEMA_SLOTS = 4 * FL_SCHEMA_CHOICES_MAX,
    FL_SCHEMA_WORK_MAX = 4 << 20, /* keywords looked at */
    FL_SCHEMA_DFA_STATES_MAX = 16384,
    FL_SCHEMA_REFERENCES_MAX = 16384,
};

/* One schema of a list. */
typedef struct fl_schema_item {
    const json_t *schema; /* an object */
    uint64_t needs; /* bit i: item i of the list is its $ref, of its allOf, or what was chosen of its anyOf */
    bool chosen;    /* the list has all that it needs */
} fl_schema_item;

typedef struct fl_schema_list {
    fl_schema_item items[FL_SCHEMA_LIST_MAX];
    uint32_t n;
    bool impossible; /* false is in it */
} fl_schema_list;

/* A choice being made. */
typedef struct fl_schema_pending {
    uint32_t first_item, n_items;
    bool impossible;
    uint32_t first_part, n_parts; /* of parts: choices it is between, beside its own nodes */
} fl_schema_pending;

/* A schema with a $ref, inside of one with an $id. */
typedef struct fl_schema_reference {
    const json_t *schema, *resource;
} fl_schema_reference;

typedef struct fl_schema_build {
    fl_schema *out;
    const json_t *root;
    fl_schema_item *items;      /* [FL_SCHEMA_ITEMS_MAX] */
    fl_schema_pending *pending; /* [FL_SCHEMA_CHOICES_MAX] */
    uint32_t *parts;            /* [FL_SCHEMA_LINKS_MAX] */
    uint32_t *slots;            /* [FL_SCHEMA_SLOTS] hash of a list -> choice, FL_SCHEMA_NONE: empty */
    uint32_t *hashes;           /* [FL_SCHEMA_CHOICES_MAX] */
    uint32_t *marks;            /* [FL_SCHEMA_NODES_MAX + FL_SCHEMA_CHOICES_MAX] who saw it last */
    fl_schema_pattern patterns[FL_SCHEMA_DFAS_MAX]; /* of the tables that there are */
    fl_schema_reference *references;                /* [FL_SCHEMA_REFERENCES_MAX] sorted */
    uint32_t n_items, n_parts, n_dfa_states, n_references;
    int64_t work;
    int64_t pattern_work; /* left for patterns */
} fl_schema_build;

/* FL_FAIL with the JSON pointer of `at` (found in the root) and `keyword` below it. */
#define FL_SCHEMA_FAIL(build, code, at, keyword, ...)                                                        \
    fl_err_same((code), fl_schema_fail((build), (code), (at), (keyword), __VA_ARGS__))
fl_err fl_schema_fail(fl_schema_build *b, fl_err code, const json_t *at, const char *keyword,
                      const char *format, ...) FL_PRINTF(5, 6);

/* schema_place.c: what "#..." refers to: a place in the root, or in the nearest schema around with an $id. Call
 * fl_schema_find_references first. */
fl_err fl_schema_find_references(fl_schema_build *b);
fl_err fl_schema_resolve(fl_schema_build *b, const json_t *schema, const char *reference, const json_t **out);

/* schema_link.c, once all choices are made: choices between choices become choices between nodes; heights. */
fl_err fl_schema_link_choices(fl_schema_build *b);
void fl_schema_measure(fl_schema *s);

/* schema_keywords.c: whether the schema, an object or a boolean, has only keywords that are known, of the right
 * types. */
fl_err fl_schema_check_keywords(fl_schema_build *b, const json_t *schema);
/* Whether it has keywords that restrict, beside $ref, allOf, anyOf and oneOf. */
bool fl_schema_says_more(const json_t *schema);
/* The number of a keyword that holds a count, `otherwise` where it is not there. */
uint32_t fl_schema_count_of(const json_t *schema, const char *name, uint32_t otherwise);

/* schema_compile.c: the choice of a list, made later if it is new. */
fl_err fl_schema_list_choice(fl_schema_build *b, const fl_schema_list *list, uint32_t *choice);
/* Adds a schema, an object or a boolean, unless it is there; *needs gets its bit. NULL: nothing to add. */
fl_err fl_schema_list_add(fl_schema_build *b, fl_schema_list *list, const json_t *schema, uint64_t *needs);
fl_err fl_schema_add_node(fl_schema_build *b, const fl_schema_node *node, uint32_t *index);
/* Counts `n` steps of work. */
fl_err fl_schema_work(fl_schema_build *b, int64_t n);

/* schema_nodes.c: the nodes of a list without choices, as links from n_links on. */
fl_err fl_schema_make_nodes(fl_schema_build *b, const fl_schema_list *list);
/* Links a node to the choice being made. */
fl_err fl_schema_link(fl_schema_build *b, uint32_t node);

/* schema_scalars.c: nodes of strings, numbers, fixed values; of types, a set of 1 << FL_SCHEMA_TYPE_*. */
typedef enum fl_schema_type {
    FL_SCHEMA_TYPE_NULL,
    FL_SCHEMA_TYPE_BOOLEAN,
    FL_SCHEMA_TYPE_INTEGER,
    FL_SCHEMA_TYPE_FRACTION, /* a number that is no integer */
    FL_SCHEMA_TYPE_STRING,
    FL_SCHEMA_TYPE_ARRAY,
    FL_SCHEMA_TYPE_OBJECT,
    FL_SCHEMA_TYPES,
} fl_schema_type;
uint32_t fl_schema_type_of(const json_t *value);
fl_err fl_schema_make_string(fl_schema_build *b, const fl_schema_list *list);
fl_err fl_schema_make_number(fl_schema_build *b, const fl_schema_list *list, bool integer);
fl_err fl_schema_make_fixed(fl_schema_build *b, const fl_schema_list *list, uint32_t types);

#endif
