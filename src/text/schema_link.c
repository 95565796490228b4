/* After all choices are made: choices between choices become choices between nodes, fixed values of one choice one
 * set of words; and how many frames the shortest value of each opens. */
#include <stdlib.h>

#include "text/schema_build.h"

enum { NO_HEIGHT = UINT8_MAX };

typedef struct collecting {
    fl_schema_build *b;
    uint32_t round;
    uint32_t todo[FL_SCHEMA_LINKS_MAX]; /* choices */
    uint16_t nodes[FL_SCHEMA_NODES_MAX];
    uint32_t n_todo, n_nodes, n_fixed;
} collecting;

static void collect_nodes(collecting *c, const fl_schema_choice *choice) {
    const fl_schema *s = c->b->out;
    for (uint32_t i = 0; i < choice->n; i++) {
        uint16_t node = s->links[choice->first + i];
        if (c->b->marks[node] == c->round) continue;
        c->b->marks[node] = c->round;
        c->nodes[c->n_nodes++] = node;
        c->n_fixed += s->nodes[node].kind == FL_SCHEMA_WORDS;
    }
}

/* All nodes that a choice is between, each once. */
static fl_err collect(collecting *c, uint32_t choice) {
    fl_schema_build *b = c->b;
    uint32_t *marks = b->marks + FL_SCHEMA_NODES_MAX;
    c->round++;
    c->n_todo = c->n_nodes = c->n_fixed = 0;
    c->todo[c->n_todo++] = choice;
    marks[choice] = c->round;
    while (c->n_todo > 0) {
        uint32_t at = c->todo[--c->n_todo];
        const fl_schema_pending *p = &b->pending[at];
        FL_TRY(fl_schema_work(b, 1 + p->n_parts + b->out->choices[at].n));
        collect_nodes(c, &b->out->choices[at]);
        for (uint32_t i = p->n_parts; i-- > 0;) {
            uint32_t part = b->parts[p->first_part + i];
            if (marks[part] == c->round) continue;
            marks[part] = c->round;
            c->todo[c->n_todo++] = part;
        }
    }
    return FL_ERR_OK;
}

/* One node with the words of all that are collected. */
static fl_err join_fixed(collecting *c) {
    fl_schema *s = c->b->out;
    uint32_t set, node;
    FL_TRY(fl_schema_words_begin(s, &set));
    for (uint32_t i = 0; i < c->n_nodes; i++) {
        if (s->nodes[c->nodes[i]].kind != FL_SCHEMA_WORDS) continue;
        const fl_schema_words w = s->word_sets[s->nodes[c->nodes[i]].words];
        for (uint32_t k = w.first; k < w.first + w.n; k++)
            FL_TRY(fl_schema_words_add(s, s->text + s->words[k].offset, s->words[k].n_bytes, 0));
    }
    fl_schema_words_end(s, set);
    FL_TRY(fl_schema_add_node(c->b, &(fl_schema_node){.kind = FL_SCHEMA_WORDS, .words = set}, &node));
    return fl_schema_link(c->b, node);
}

/* Writes what was collected as new links. */
static fl_err write_links(collecting *c, fl_schema_choice *out) {
    const fl_schema *s = c->b->out;
    out->first = s->n_links;
    for (uint32_t i = 0; i < c->n_nodes; i++)
        if (c->n_fixed < 2 || s->nodes[c->nodes[i]].kind != FL_SCHEMA_WORDS)
            FL_TRY(fl_schema_link(c->b, c->nodes[i]));
    if (c->n_fixed >= 2) FL_TRY(join_fixed(c));
    out->n = s->n_links - out->first;
    return FL_ERR_OK;
}

static fl_err link_all(collecting *c) {
    fl_schema_build *b = c->b;
    for (uint32_t i = b->out->n_choices; i-- > 0;) { /* the parts of a choice mostly come behind it */
        fl_schema_choice linked = {0};
        if (b->pending[i].n_parts == 0) continue;
        FL_TRY(collect(c, i));
        FL_TRY(write_links(c, &linked));
        if (linked.n > FL_SCHEMA_THREADS_MAX)
            return FL_FAIL(FL_ERR_LIMIT, "json_schema: a value with more than %d kinds of alternatives",
                           FL_SCHEMA_THREADS_MAX);
        b->out->choices[i] = linked;
        b->pending[i].n_parts = 0; /* its links are all there is now */
    }
    return FL_ERR_OK;
}

fl_err fl_schema_link_choices(fl_schema_build *b) {
    collecting *c = calloc(1, sizeof *c);
    if (!c) return FL_FAIL(FL_ERR_NOMEM, "json_schema");
    c->b = b;
    fl_err err = link_all(c);
    free(c);
    return err;
}

static uint8_t above(uint32_t height) {
    return height >= FL_SCHEMA_DEPTH_MAX ? NO_HEIGHT : (uint8_t)(height + 1);
}

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static uint8_t object_height(const fl_schema *s, const fl_schema_node *node) {
    uint32_t height = 0;
    for (uint32_t i = 0; i < node->n; i++) {
        const fl_schema_property *p = &s->properties[node->first + i];
        if (p->required) height = larger(height, larger(1, s->choices[p->choice].height));
    }
    return above(height);
}

static uint8_t array_height(const fl_schema *s, const fl_schema_node *node) {
    uint32_t height = 0;
    if (node->min > node->max || (node->min > node->n && node->rest == FL_SCHEMA_NONE)) return NO_HEIGHT;
    for (uint32_t i = 0; i < node->n && i < node->min; i++)
        height = larger(height, s->choices[s->properties[node->first + i].choice].height);
    if (node->min > node->n) height = larger(height, s->choices[node->rest].height);
    return above(height);
}

static uint8_t node_height(const fl_schema *s, const fl_schema_node *node) {
    if (node->kind == FL_SCHEMA_OBJECT) return object_height(s, node);
    return node->kind == FL_SCHEMA_ARRAY ? array_height(s, node) : 1;
}

/* Heights sink from "none" to what they are, at least one level a round. */
void fl_schema_measure(fl_schema *s) {
    bool changed = true;
    for (uint32_t i = 0; i < s->n_nodes; i++) s->nodes[i].height = NO_HEIGHT;
    for (uint32_t i = 0; i < s->n_choices; i++) s->choices[i].height = NO_HEIGHT;
    while (changed) {
        changed = false;
        for (uint32_t i = 0; i < s->n_nodes; i++) {
            uint8_t height = node_height(s, &s->nodes[i]);
            changed |= height != s->nodes[i].height;
            s->nodes[i].height = height;
        }
        for (uint32_t i = 0; i < s->n_choices; i++) {
            uint8_t height = NO_HEIGHT;
            for (uint32_t k = 0; k < s->choices[i].n; k++) {
                uint8_t node = s->nodes[s->links[s->choices[i].first + k]].height;
                if (node < height) height = node;
            }
            changed |= height != s->choices[i].height;
            s->choices[i].height = height;
        }
    }
}
