/* Postfix order -> states with jumps (Thompson's construction) -> sets of states that are reached together -> those
 * from which an end can be reached. With limits on the length a set also counts code points. */
#include "text/schema_dfa.h"

#include <stdlib.h>
#include <string.h>

#include "text/schema_regex.h"

#define NOWHERE UINT32_MAX

enum { SPLIT, BYTES, MATCH, HASH_SLOTS = 4 * FL_PATTERN_DFA_MAX, ITEMS_MAX = 1 << 20 };

typedef struct nfa_state {
    uint8_t kind, low, high; /* BYTES: takes low..high */
    uint32_t out, other;     /* other: SPLIT's second */
} nfa_state;

/* A piece of the NFA: its loose end is the `out` of one state. */
typedef struct fragment {
    uint32_t start, end;
} fragment;

/* A state of the DFA: NFA states that take bytes or match, sorted by when they were found. */
typedef struct dfa_set {
    uint32_t first, n, count; /* of items; code points so far */
} dfa_set;

typedef struct making {
    fl_regex *regex;
    nfa_state *nfa;
    fragment *stack; /* [tokens] */
    uint32_t n_nfa, depth;
    uint32_t min, max;
    uint8_t class_of[256], byte_of[256];
    uint32_t n_classes;
    uint32_t *items; /* [ITEMS_MAX] of all sets */
    uint32_t n_items;
    dfa_set *sets;
    uint32_t n_sets;
    uint32_t *slots; /* [HASH_SLOTS] */
    uint16_t *edges; /* [sets][n_classes] */
    uint32_t *seen;  /* [nfa] number of the set that saw it */
    uint32_t *todo;  /* [nfa] */
    uint32_t round;
    int64_t work;
} making;

/* --- NFA ------------------------------------------------------------------------------------------------------ */

static fl_err add_state(making *m, nfa_state state, uint32_t *out) {
    if (m->n_nfa == FL_PATTERN_NFA_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "the pattern needs more than %d states", FL_PATTERN_NFA_MAX);
    m->nfa[m->n_nfa] = state;
    *out = m->n_nfa++;
    return FL_ERR_OK;
}

static int encode(uint32_t c, uint8_t out[4]) {
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)((0xf00 >> n & 0xff) | c);
    return n;
}

/* Cuts a range's end off where the bytes of its code points stop being a product of ranges. True: it was cut. */
static bool cut(fl_regex_range *r, fl_regex_range *rest) {
    static const uint32_t LAST[] = {0x7f, 0x7ff, 0xffff};
    for (int i = 0; i < 3; i++) {
        if (r->low > LAST[i] || r->high <= LAST[i]) continue;
        *rest = (fl_regex_range){LAST[i] + 1, r->high};
        r->high = LAST[i];
        return true;
    }
    for (int i = 1; i < 4 && r->high > 0x7f; i++) {
        uint32_t mask = (1u << (6 * i)) - 1;
        if ((r->low & ~mask) == (r->high & ~mask)) continue;
        if ((r->low & mask) != 0) {
            *rest = (fl_regex_range){(r->low | mask) + 1, r->high};
            r->high = r->low | mask;
            return true;
        }
        if ((r->high & mask) != mask) {
            *rest = (fl_regex_range){r->high & ~mask, r->high};
            r->high = (r->high & ~mask) - 1;
            return true;
        }
    }
    return false;
}

/* One of the last states that does the same: ways through a set share their ends, and the DFA has fewer states. */
static bool find_alike(const making *m, const nfa_state *state, uint32_t *out) {
    for (uint32_t i = m->n_nfa; i-- > 0 && m->n_nfa - i <= 64;) {
        const nfa_state *s = &m->nfa[i];
        if (s->kind != BYTES || s->low != state->low || s->high != state->high || s->out != state->out)
            continue;
        *out = i;
        return true;
    }
    return false;
}

/* Bytes of a range that `cut` leaves whole, from a state to `end`; *first: the way in. */
static fl_err add_bytes(making *m, fl_regex_range r, uint32_t end, uint32_t *first) {
    uint8_t low[4], high[4];
    int n = encode(r.low, low);
    uint32_t next = end;
    encode(r.high, high);
    for (int i = n - 1; i >= 0; i--) {
        const nfa_state state = {
            .kind = BYTES, .low = low[i], .high = high[i], .out = next, .other = NOWHERE};
        if (!find_alike(m, &state, &next)) FL_TRY(add_state(m, state, &next));
    }
    *first = next;
    return FL_ERR_OK;
}

/* A set of code points: a chain of choices between byte sequences, which all lead to one state. */
static fl_err add_set(making *m, const fl_regex_set *set, fragment *out) {
    fl_regex_range todo[32];
    uint32_t end = NOWHERE, start = NOWHERE, way = NOWHERE;
    FL_TRY(add_state(m, (nfa_state){.kind = SPLIT, .out = NOWHERE, .other = NOWHERE}, &end));
    for (uint32_t i = 0; i < set->n; i++) {
        int n = 0;
        todo[n++] = m->regex->ranges[set->first + i];
        while (n > 0) {
            fl_regex_range r = todo[--n], rest;
            while (cut(&r, &rest)) todo[n++] = rest;
            FL_TRY(add_bytes(m, r, end, &way));
            if (start == NOWHERE) start = way;
            else FL_TRY(add_state(m, (nfa_state){.kind = SPLIT, .out = way, .other = start}, &start));
        }
    }
    /* nothing: a state without a way on */
    if (start == NOWHERE)
        FL_TRY(add_state(m, (nfa_state){.kind = SPLIT, .out = NOWHERE, .other = NOWHERE}, &start));
    *out = (fragment){start, end};
    return FL_ERR_OK;
}

static fl_err add_split(making *m, uint32_t out, uint32_t other, uint32_t *state) {
    return add_state(m, (nfa_state){.kind = SPLIT, .out = out, .other = other}, state);
}

static fl_err add_or(making *m, fragment a, fragment b, fragment *out) {
    FL_TRY(add_split(m, a.start, b.start, &out->start));
    FL_TRY(add_split(m, NOWHERE, NOWHERE, &out->end));
    m->nfa[a.end].out = m->nfa[b.end].out = out->end;
    return FL_ERR_OK;
}

/* x?, x*, x+: a way around x, a way back, or both. */
static fl_err add_repeat(making *m, int op, fragment a, fragment *out) {
    uint32_t gate;
    FL_TRY(add_split(m, NOWHERE, NOWHERE, &out->end));
    FL_TRY(add_split(m, a.start, out->end, &gate));
    m->nfa[a.end].out = op == FL_REGEX_MAYBE ? out->end : gate;
    out->start = op == FL_REGEX_PLUS ? a.start : gate;
    return FL_ERR_OK;
}

static fl_err add_token(making *m, const fl_regex_token *t) {
    fragment out = {0}, *top = m->stack + m->depth - 1;
    switch ((fl_regex_op)t->op) {
    case FL_REGEX_SET:
        FL_TRY(add_set(m, &m->regex->sets[t->set], &out));
        m->stack[m->depth++] = out;
        return FL_ERR_OK;
    case FL_REGEX_EMPTY:
        FL_TRY(add_split(m, NOWHERE, NOWHERE, &out.start));
        out.end = out.start;
        m->stack[m->depth++] = out;
        return FL_ERR_OK;
    case FL_REGEX_JOIN:
        m->nfa[top[-1].end].out = top->start;
        top[-1].end = top->end;
        m->depth--;
        return FL_ERR_OK;
    case FL_REGEX_OR:
        FL_TRY(add_or(m, top[-1], top[0], &out));
        top[-1] = out;
        m->depth--;
        return FL_ERR_OK;
    case FL_REGEX_MAYBE:
    case FL_REGEX_STAR:
    case FL_REGEX_PLUS:
        FL_TRY(add_repeat(m, t->op, *top, &out));
        *top = out;
        return FL_ERR_OK;
    }
    return FL_ERR_OK;
}

static fl_err make_nfa(making *m, uint32_t *start) {
    uint32_t match = NOWHERE;
    for (uint32_t i = 0; i < m->regex->n_tokens; i++) FL_TRY(add_token(m, &m->regex->tokens[i]));
    FL_TRY(add_state(m, (nfa_state){.kind = MATCH, .out = NOWHERE, .other = NOWHERE}, &match));
    m->nfa[m->stack[0].end].out = match;
    *start = m->stack[0].start;
    return FL_ERR_OK;
}

/* --- DFA ------------------------------------------------------------------------------------------------------ */

/* Bytes that no state tells apart are one class. */
static void make_classes(making *m) {
    bool begins[257] = {true};
    begins[0x80] = begins[0xc0] = true; /* where a code point begins */
    for (uint32_t i = 0; i < m->n_nfa; i++) {
        if (m->nfa[i].kind != BYTES) continue;
        begins[m->nfa[i].low] = begins[m->nfa[i].high + 1] = true;
    }
    for (int b = 0; b < 256; b++) {
        if (begins[b]) m->byte_of[m->n_classes++] = (uint8_t)b;
        m->class_of[b] = (uint8_t)(m->n_classes - 1);
    }
}

/* Adds to the set being made what is reached from an NFA state without a byte. */
static fl_err reach(making *m, uint32_t from) {
    uint32_t n = 0;
    m->todo[n++] = from;
    while (n > 0) {
        uint32_t i = m->todo[--n];
        if (i == NOWHERE || m->seen[i] == m->round) continue;
        m->seen[i] = m->round;
        if (--m->work < 0 || m->n_items == ITEMS_MAX)
            return FL_FAIL(FL_ERR_LIMIT, "the pattern is too complex");
        if (m->nfa[i].kind == SPLIT) {
            m->todo[n++] = m->nfa[i].other;
            m->todo[n++] = m->nfa[i].out;
        } else {
            m->items[m->n_items++] = i;
        }
    }
    return FL_ERR_OK;
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t hash_set(const making *m, const dfa_set *set) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ set->count;
    for (uint32_t i = 0; i < set->n; i++) h = (h ^ m->items[set->first + i]) * 0xff51afd7ed558ccdu;
    return (uint32_t)(h >> 32) % HASH_SLOTS;
}

/* The DFA state of the set whose items are the last ones; new ones keep them. */
static fl_err find_set(making *m, uint32_t first, uint32_t count, uint16_t *out) {
    dfa_set set = {first, m->n_items - first, count};
    *out = FL_PATTERN_DEAD;
    if (set.n == 0) return FL_ERR_OK;
    qsort(m->items + first, set.n, sizeof *m->items, by_number);
    uint32_t slot = hash_set(m, &set);
    for (; m->slots[slot] != NOWHERE; slot = (slot + 1) % HASH_SLOTS) {
        const dfa_set *other = &m->sets[m->slots[slot]];
        if (other->n != set.n || other->count != count ||
            memcmp(m->items + other->first, m->items + first, set.n * sizeof *m->items) != 0)
            continue;
        m->n_items = first;
        *out = (uint16_t)m->slots[slot];
        return FL_ERR_OK;
    }
    if (m->n_sets == FL_PATTERN_DFA_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "the pattern needs more than %d states", FL_PATTERN_DFA_MAX);
    m->slots[slot] = m->n_sets;
    *out = (uint16_t)m->n_sets;
    m->sets[m->n_sets++] = set;
    return FL_ERR_OK;
}

static fl_err make_edge(making *m, const dfa_set *set, uint8_t byte, uint16_t *out) {
    bool begins = byte < 0x80 || byte >= 0xc0;
    uint32_t first = m->n_items, top = m->max != NOWHERE ? m->max : m->min, count = set->count;
    *out = FL_PATTERN_DEAD;
    if (begins && count == top && m->max != NOWHERE) return FL_ERR_OK;
    count += begins && count < top;
    m->round++;
    for (uint32_t i = 0; i < set->n; i++) {
        const nfa_state *state = &m->nfa[m->items[set->first + i]];
        m->work--;
        if (state->kind == BYTES && byte >= state->low && byte <= state->high) FL_TRY(reach(m, state->out));
    }
    return find_set(m, first, count, out);
}

static fl_err make_dfa(making *m, uint32_t start) {
    uint16_t first;
    m->round = 1;
    FL_TRY(reach(m, start));
    FL_TRY(find_set(m, 0, 0, &first));
    for (uint32_t i = 0; i < m->n_sets; i++)
        for (uint32_t c = 0; c < m->n_classes; c++) {
            const dfa_set set = m->sets[i];
            FL_TRY(make_edge(m, &set, m->byte_of[c], &m->edges[i * m->n_classes + c]));
        }
    return FL_ERR_OK;
}

static bool accepts(const making *m, uint32_t set) {
    if (m->sets[set].count < m->min) return false;
    for (uint32_t i = 0; i < m->sets[set].n; i++)
        if (m->nfa[m->items[m->sets[set].first + i]].kind == MATCH) return true;
    return false;
}

/* Numbers the states from which an accepting one is reached, in order: new_of[n_sets], NOWHERE for the others. Looks
 * at every edge once, backwards, through lists of the edges into each state. */
static fl_err number_live(making *m, uint32_t *new_of, uint32_t *n_live) {
    uint32_t n_edges = m->n_sets * m->n_classes, n = 0;
    uint32_t *next = malloc(((size_t)n_edges + 2 * (size_t)m->n_sets) * sizeof *next);
    if (!next) return FL_FAIL(FL_ERR_NOMEM, "pattern of %u states", m->n_sets);
    uint32_t *into = next + n_edges, *todo = into + m->n_sets;
    for (uint32_t i = 0; i < m->n_sets; i++) new_of[i] = into[i] = NOWHERE;
    for (uint32_t e = 0; e < n_edges; e++) {
        if (m->edges[e] == FL_PATTERN_DEAD) continue;
        next[e] = into[m->edges[e]];
        into[m->edges[e]] = e;
    }
    for (uint32_t i = 0; i < m->n_sets; i++)
        if (accepts(m, i)) {
            new_of[i] = 0;
            todo[n++] = i;
        }
    while (n > 0) {
        for (uint32_t e = into[todo[--n]]; e != NOWHERE;) {
            uint32_t from = e / m->n_classes;
            e = next[e];
            if (new_of[from] == 0) continue;
            new_of[from] = 0;
            todo[n++] = from;
        }
    }
    *n_live = 0;
    for (uint32_t i = 0; i < m->n_sets; i++)
        if (new_of[i] == 0) new_of[i] = (*n_live)++;
    free(next);
    return FL_ERR_OK;
}

static fl_err write_tables(const making *m, const uint32_t *new_of, uint32_t n_live, fl_schema_dfa *out) {
    if (new_of[0] == NOWHERE) return FL_ERR_OK; /* nothing matches */
    out->next = malloc((size_t)n_live * sizeof *out->next);
    out->accepts = malloc((size_t)n_live * sizeof *out->accepts);
    if (!out->next || !out->accepts) return FL_FAIL(FL_ERR_NOMEM, "pattern of %u states", n_live);
    out->n = n_live;
    for (uint32_t i = 0; i < m->n_sets; i++) {
        if (new_of[i] == NOWHERE) continue;
        out->accepts[new_of[i]] = accepts(m, i);
        for (int b = 0; b < 256; b++) {
            uint16_t to = m->edges[i * m->n_classes + m->class_of[b]];
            bool dead = to == FL_PATTERN_DEAD || new_of[to] == NOWHERE;
            out->next[new_of[i]][b] = dead ? FL_PATTERN_DEAD : (uint16_t)new_of[to];
        }
    }
    return FL_ERR_OK;
}

static void free_making(making *m) {
    free(m->regex);
    free(m->nfa);
    free(m->stack);
    free(m->items);
    free(m->sets);
    free(m->slots);
    free(m->edges);
    free(m->seen);
    free(m->todo);
}

/* Room for everything at once: pages that stay untouched cost nothing. */
static fl_err reserve(making *m) {
    m->regex = malloc(sizeof *m->regex);
    m->nfa = malloc(FL_PATTERN_NFA_MAX * sizeof *m->nfa);
    m->stack = malloc(FL_PATTERN_TOKENS_MAX * sizeof *m->stack);
    m->items = malloc(ITEMS_MAX * sizeof *m->items);
    m->sets = malloc(FL_PATTERN_DFA_MAX * sizeof *m->sets);
    m->slots = malloc(HASH_SLOTS * sizeof *m->slots);
    m->edges = malloc((size_t)FL_PATTERN_DFA_MAX * 256 * sizeof *m->edges);
    m->seen = calloc(FL_PATTERN_NFA_MAX, sizeof *m->seen);
    m->todo = malloc((2 * FL_PATTERN_NFA_MAX + 1) * sizeof *m->todo);
    if (!m->regex || !m->nfa || !m->stack || !m->items || !m->sets || !m->slots || !m->edges || !m->seen ||
        !m->todo)
        return FL_FAIL(FL_ERR_NOMEM, "pattern");
    memset(m->slots, 0xff, HASH_SLOTS * sizeof *m->slots);
    return FL_ERR_OK;
}

static fl_err make(making *m, const fl_schema_pattern *pattern, fl_schema_dfa *out) {
    uint32_t start, n_live = 0, new_of[FL_PATTERN_DFA_MAX];
    FL_TRY(reserve(m));
    FL_TRY(fl_regex_parse(pattern->text, pattern->n_bytes, m->regex));
    FL_TRY(make_nfa(m, &start));
    make_classes(m);
    FL_TRY(make_dfa(m, start));
    if (m->n_sets == 0) return FL_ERR_OK;
    FL_TRY(number_live(m, new_of, &n_live));
    return write_tables(m, new_of, n_live, out);
}

fl_err fl_schema_dfa_make(const fl_schema_pattern *pattern, int64_t *work, fl_schema_dfa *out) {
    making m = {.min = pattern->min, .max = pattern->max, .work = *work};
    *out = (fl_schema_dfa){0};
    fl_err err = pattern->min > pattern->max ? FL_ERR_OK : make(&m, pattern, out);
    if (err != FL_ERR_OK) fl_schema_dfa_free(out);
    free_making(&m);
    *work = m.work;
    return err;
}

void fl_schema_dfa_free(fl_schema_dfa *dfa) {
    free(dfa->next);
    free(dfa->accepts);
    *dfa = (fl_schema_dfa){0};
}
