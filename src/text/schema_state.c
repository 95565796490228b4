/* The automaton: frames of what is open, moved on by one byte. A reading may become several where a value may be of
 * several kinds; equal ones become one. */
#include <string.h>

#include "text/schema_impl.h"

/* Where an object or array is (frame.at's low bits); above them the whitespace that came last. */
enum {
    OPENED,
    NAMED,       /* object: behind a name */
    VALUE,       /* object: behind its colon; array: in a value */
    VALUE_ENDED, /* behind a value */
    NEXT,        /* behind a comma */
    PLACE = 7,   /* mask */
    SPACE_SHIFT = 3,
    SPACE_ONE = 1,    /* one space came: no more */
    SPACE_LINE = 2,   /* a line break, then so many spaces more */
    SPACE_TABS = 512, /* a line break and so many tabs */
    INDENT = 4,       /* spaces a level, at most; or one tab */
};

enum { ROOT_OPEN, ROOT_DONE }; /* of frame 0 */

#define NAME_IS_OTHER UINT32_MAX /* KEY's count: no declared name begins so; otherwise a position in words */

typedef struct reading {
    const fl_schema *s;
    fl_schema_state *out;
    int32_t depth;
    fl_schema_frame frames[FL_SCHEMA_DEPTH_MAX + 1];
} reading;

static const fl_schema_node *node_of(const fl_schema *s, const fl_schema_frame *f) {
    return &s->nodes[f->node];
}

/* Adds the reading to the state, if it is new and there is room: what is left out is a reading that nobody
 * follows. */
static void keep(reading *r) {
    fl_schema_state *out = r->out;
    size_t bytes = (size_t)r->depth * sizeof *r->frames;
    const fl_schema_frame *f = out->frames;
    for (int32_t i = 0; i < out->n_threads; f += out->depth[i++])
        if (out->depth[i] == r->depth && memcmp(f, r->frames, bytes) == 0) return;
    if (out->n_threads == FL_SCHEMA_THREADS_MAX || out->n_frames + r->depth > FL_SCHEMA_FRAMES_MAX) return;
    memcpy(out->frames + out->n_frames, r->frames, bytes);
    out->depth[out->n_threads++] = (uint8_t)r->depth;
    out->n_frames = (uint16_t)(out->n_frames + r->depth);
}

static uint32_t count_top(const fl_schema_node *array) {
    if (array->max != FL_SCHEMA_NONE) return array->max;
    return array->min > array->n ? array->min : array->n;
}

/* The value on top is complete: what holds it goes on. */
static void end_value(reading *r) {
    fl_schema_frame *f = &r->frames[--r->depth - 1];
    if (r->depth == 1) {
        f->at = ROOT_DONE;
        return;
    }
    const fl_schema_node *node = node_of(r->s, f);
    uint32_t top = node->kind == FL_SCHEMA_OBJECT ? node->n : count_top(node);
    f->at = VALUE_ENDED;
    if (f->count < top) f->count++;
}

static bool fits(const reading *r, uint32_t choice) {
    return choice != FL_SCHEMA_NONE && r->depth + r->s->choices[choice].height <= FL_SCHEMA_DEPTH_MAX + 1;
}

/* The byte as the first of a value of this node; the reading is as it was when this returns. */
static void begin_node(reading *r, uint32_t index, uint8_t byte) {
    const fl_schema *s = r->s;
    const fl_schema_node *node = &s->nodes[index];
    fl_schema_frame held = r->frames[r->depth - 1], *f = &r->frames[r->depth];
    bool begins = false, ends = false;
    uint32_t word;
    if (r->depth + node->height > FL_SCHEMA_DEPTH_MAX + 1) return;
    *f = (fl_schema_frame){.node = (uint16_t)index};
    switch ((fl_schema_kind)node->kind) {
    case FL_SCHEMA_OBJECT: begins = byte == '{'; break;
    case FL_SCHEMA_ARRAY: begins = byte == '['; break;
    case FL_SCHEMA_STRING: begins = byte == '"'; break;
    case FL_SCHEMA_NUMBER: begins = fl_schema_number_begin(s, node, byte, f); break;
    case FL_SCHEMA_WORDS:
        f->count = fl_schema_words_step(s, node->words, 0, byte);
        begins = f->count != UINT32_MAX;
        ends = fl_schema_words_ends(s, node->words, f->count, &word) &&
               !fl_schema_words_goes_on(s, node->words, f->count);
        break;
    case FL_SCHEMA_KEY: break;
    }
    if (!begins) return;
    r->depth++;
    if (ends) end_value(r);
    keep(r);
    r->depth += ends;
    r->depth--;
    r->frames[r->depth - 1] = held;
}

static void begin_value(reading *r, uint32_t choice, uint8_t byte) {
    const fl_schema_choice *c = &r->s->choices[choice];
    fl_schema_frame *f = &r->frames[r->depth - 1];
    if (!fits(r, choice)) return;
    if (r->depth > 1) f->at = VALUE; /* what whitespace came no longer matters */
    for (uint32_t i = 0; i < c->n; i++) begin_node(r, r->s->links[c->first + i], byte);
}

/* Whitespace in an object or array: true if the byte is some that may come. No more than printers with an indent
 * make. */
static bool take_space(reading *r, uint8_t byte) {
    fl_schema_frame *f = &r->frames[r->depth - 1];
    int space = f->at >> SPACE_SHIFT, place = f->at & PLACE;
    int level = r->depth - 1 - (place == VALUE_ENDED); /* of what comes next */
    bool more_spaces = byte == ' ' && space >= SPACE_LINE && space < SPACE_LINE + INDENT * level;
    bool more_tabs = byte == '\t' && space > SPACE_TABS && space < SPACE_TABS + level;
    if (space == 0 && byte == ' ') space = SPACE_ONE;
    else if (space == 0 && byte == '\n' && place != VALUE) space = SPACE_LINE;
    else if (more_spaces || more_tabs) space++;
    else if (byte == '\t' && space == SPACE_LINE && level > 0) space = SPACE_TABS + 1;
    else return false;
    f->at = (uint16_t)(place | space << SPACE_SHIFT);
    return true;
}

/* The first property from `next` on that must come; as many as there are if none must. */
static uint32_t first_required(const fl_schema *s, const fl_schema_node *object, uint32_t next) {
    while (next < object->n && !s->properties[object->first + next].required) next++;
    return next;
}

static bool may_name_other(const reading *r, const fl_schema_node *object, uint32_t next) {
    return fits(r, object->rest) && first_required(r->s, object, next) == object->n;
}

/* Whether any name may come. */
static bool may_name_any(const reading *r, const fl_schema_node *object, uint32_t next) {
    uint32_t last = first_required(r->s, object, next);
    if (r->depth > FL_SCHEMA_DEPTH_MAX) return false;
    for (uint32_t i = next; i <= last && i < object->n; i++)
        if (fits(r, r->s->properties[object->first + i].choice)) return true;
    return last == object->n && fits(r, object->rest);
}

static void step_object(reading *r, uint8_t byte) {
    fl_schema_frame *f = &r->frames[r->depth - 1];
    const fl_schema_node *node = node_of(r->s, f);
    int place = f->at & PLACE;
    bool spaced = f->at >> SPACE_SHIFT != 0;
    if (place == VALUE && byte != ' ' && byte != '\n' && byte != '\t') {
        begin_value(r, f->count < node->n ? r->s->properties[node->first + f->count].choice : node->rest,
                    byte);
        return;
    }
    if (place == NAMED) {
        if (byte != ':') return;
        f->at = VALUE;
    } else if (byte == '}' && place != NEXT && place != VALUE) {
        if (first_required(r->s, node, f->count) < node->n) return;
        end_value(r);
    } else if (byte == ',' && place == VALUE_ENDED && !spaced) {
        if (!may_name_any(r, node, f->count)) return;
        f->at = NEXT;
    } else if (byte == '"' && place != VALUE_ENDED) {
        if (!may_name_any(r, node, f->count)) return;
        f->at = place == OPENED ? OPENED : NEXT;
        r->frames[r->depth++] = (fl_schema_frame){.node = (uint16_t)node->detail};
    } else {
        bool waits = place == VALUE_ENDED && first_required(r->s, node, f->count) < node->n;
        if (waits || !take_space(r, byte)) return; /* whitespace here is before a bracket */
    }
    keep(r);
}

/* The choice of the array's next item, FL_SCHEMA_NONE behind the last. */
static uint32_t next_item(const fl_schema *s, const fl_schema_node *array, uint32_t count) {
    if (count >= array->max) return FL_SCHEMA_NONE;
    return count < array->n ? s->properties[array->first + count].choice : array->rest;
}

static void step_array(reading *r, uint8_t byte) {
    fl_schema_frame *f = &r->frames[r->depth - 1];
    const fl_schema_node *node = node_of(r->s, f);
    int place = f->at & PLACE;
    bool spaced = f->at >> SPACE_SHIFT != 0;
    uint32_t item = next_item(r->s, node, f->count);
    if (byte == ']' && place != NEXT) {
        if (f->count < node->min) return;
        end_value(r);
    } else if (byte == ',' && place == VALUE_ENDED && !spaced) {
        if (!fits(r, item)) return;
        f->at = NEXT;
    } else if ((place == VALUE_ENDED && f->count < node->min) || !take_space(r, byte)) {
        if (place != VALUE_ENDED && item != FL_SCHEMA_NONE) begin_value(r, item, byte);
        return;
    }
    keep(r);
}

/* Whether one of the words [first, end) is the name of a property that may come. */
static bool may_name(const reading *r, const fl_schema_node *object, uint32_t first, uint32_t end) {
    uint32_t next = r->frames[r->depth - 1].count, last = first_required(r->s, object, next);
    for (uint32_t w = first; w < end; w++) {
        uint32_t i = r->s->words[w].index;
        if (i >= next && i <= last && fits(r, r->s->properties[object->first + i].choice)) return true;
    }
    return false;
}

/* One byte of a name. Two ways at once: it may become a declared one, and another one where others may come. */
static void step_key(reading *r, uint8_t byte) {
    fl_schema_frame *key = &r->frames[r->depth - 1], *f = key - 1;
    const fl_schema *s = r->s;
    const fl_schema_node *object = node_of(s, f);
    uint32_t word, position = key->count;
    r->depth--; /* heights count from the object */
    if (position != NAME_IS_OTHER) position = fl_schema_words_step(s, object->words, position, byte);
    fl_schema_move move = fl_schema_name_step(&key->at, byte);
    bool declared = fl_schema_words_ends(s, object->words, position, &word);
    bool other = move != FL_SCHEMA_REFUSED && may_name_other(r, object, f->count);
    if (move == FL_SCHEMA_ENDED) {
        if (declared ? !may_name(r, object, word, word + 1) : !other) return;
        f->count = declared ? s->words[word].index : object->n;
        f->at = NAMED;
    } else {
        uint32_t first, end;
        fl_schema_words_range(s, object->words, position, &first, &end);
        if (!other && !may_name(r, object, first, end)) return;
        key->count = position;
        r->depth++;
    }
    keep(r);
}

static bool leaf_may_end(const fl_schema *s, const fl_schema_frame *f) {
    const fl_schema_node *node = node_of(s, f);
    uint32_t word;
    if (node->kind == FL_SCHEMA_NUMBER) return fl_schema_number_may_end(s, node, f);
    return node->kind == FL_SCHEMA_WORDS && fl_schema_words_ends(s, node->words, f->count, &word);
}

static fl_schema_move step_words(const fl_schema *s, const fl_schema_node *node, fl_schema_frame *f,
                                 uint8_t byte) {
    uint32_t word, position = fl_schema_words_step(s, node->words, f->count, byte);
    if (position == UINT32_MAX) return FL_SCHEMA_REFUSED;
    f->count = position;
    bool ends = fl_schema_words_ends(s, node->words, position, &word);
    return ends && !fl_schema_words_goes_on(s, node->words, position) ? FL_SCHEMA_ENDED : FL_SCHEMA_GOES_ON;
}

static void step_leaf(reading *r, uint8_t byte) {
    fl_schema_frame *f = &r->frames[r->depth - 1];
    const fl_schema_node *node = node_of(r->s, f);
    fl_schema_move move = node->kind == FL_SCHEMA_STRING   ? fl_schema_string_step(r->s, node, f, byte)
                          : node->kind == FL_SCHEMA_NUMBER ? fl_schema_number_step(r->s, node, f, byte)
                                                           : step_words(r->s, node, f, byte);
    if (move == FL_SCHEMA_REFUSED) return;
    if (move == FL_SCHEMA_ENDED) end_value(r);
    keep(r);
}

static void step_reading(reading *r, uint8_t byte) {
    fl_schema_frame *f = &r->frames[r->depth - 1];
    if (r->depth > 1 && leaf_may_end(r->s, f)) {
        fl_schema_frame next = *f;
        const fl_schema_node *node = node_of(r->s, f);
        bool goes_on = node->kind == FL_SCHEMA_NUMBER
                           ? fl_schema_number_step(r->s, node, &next, byte) != FL_SCHEMA_REFUSED
                           : fl_schema_words_step(r->s, node->words, f->count, byte) != UINT32_MAX;
        if (!goes_on) {
            end_value(r); /* what ends only as something else begins */
            f = &r->frames[r->depth - 1];
        }
    }
    if (r->depth == 1) {
        if (f->at == ROOT_OPEN) begin_value(r, r->s->root, byte);
        return;
    }
    switch ((fl_schema_kind)node_of(r->s, f)->kind) {
    case FL_SCHEMA_OBJECT: step_object(r, byte); break;
    case FL_SCHEMA_ARRAY: step_array(r, byte); break;
    case FL_SCHEMA_KEY: step_key(r, byte); break;
    case FL_SCHEMA_STRING:
    case FL_SCHEMA_NUMBER:
    case FL_SCHEMA_WORDS: step_leaf(r, byte); break;
    }
}

void fl_schema_start(const fl_schema *s, fl_schema_state *out) {
    (void)s;
    out->n_threads = out->n_frames = 1;
    out->depth[0] = 1;
    out->frames[0] = (fl_schema_frame){.at = ROOT_OPEN};
}

bool fl_schema_step(const fl_schema *s, const fl_schema_state *in, uint8_t byte, fl_schema_state *out) {
    const fl_schema_frame *f = in->frames;
    reading r = {.s = s, .out = out};
    out->n_threads = out->n_frames = 0;
    for (int32_t i = 0; i < in->n_threads; f += in->depth[i++]) {
        r.depth = in->depth[i];
        memcpy(r.frames, f, (size_t)r.depth * sizeof *f);
        step_reading(&r, byte);
    }
    return out->n_threads > 0;
}

static bool is_done(const fl_schema_state *state, int32_t thread, const fl_schema_frame *f) {
    return state->depth[thread] == 1 && f->at == ROOT_DONE;
}

bool fl_schema_is_complete(const fl_schema *s, const fl_schema_state *state) {
    const fl_schema_frame *f = state->frames;
    for (int32_t i = 0; i < state->n_threads; f += state->depth[i++])
        if (is_done(state, i, f) || (state->depth[i] == 2 && leaf_may_end(s, f + 1))) return true;
    return false;
}

bool fl_schema_is_final(const fl_schema *s, const fl_schema_state *state) {
    (void)s;
    const fl_schema_frame *f = state->frames;
    for (int32_t i = 0; i < state->n_threads; f += state->depth[i++])
        if (!is_done(state, i, f)) return false;
    return state->n_threads > 0;
}

bool fl_schema_feed(const fl_schema *s, fl_schema_state *state, const char *bytes, size_t n_bytes) {
    fl_schema_state other, *at = state, *next = &other;
    for (size_t i = 0; i < n_bytes; i++) {
        if (!fl_schema_step(s, at, (uint8_t)bytes[i], next)) return false;
        fl_schema_state *swap = at;
        at = next;
        next = swap;
    }
    if (at != state) *state = other;
    return true;
}

bool fl_schema_in_text(const fl_schema *s, const fl_schema_state *state, uint32_t *room) {
    const fl_schema_frame *f = state->frames;
    bool found = false;
    *room = 0;
    for (int32_t i = 0; i < state->n_threads; f += state->depth[i++]) {
        const fl_schema_frame *top = f + state->depth[i] - 1;
        if (state->depth[i] == 1 || top->at != 0) continue;
        const fl_schema_node *node = node_of(s, top);
        bool name = node->kind == FL_SCHEMA_KEY && top->count == NAME_IS_OTHER;
        bool text = node->kind == FL_SCHEMA_STRING && node->detail == FL_SCHEMA_NONE;
        uint32_t more = text && node->max != FL_SCHEMA_NONE ? node->max - top->count : UINT32_MAX;
        if (!name && !text) continue;
        found = true;
        if (more > *room) *room = more;
    }
    return found;
}
