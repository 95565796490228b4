/* From a schema's text to choices between nodes. */
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "text/schema_build.h"

static const char ANY_OBJECT[] = "{\"type\":\"object\"}";

fl_err fl_schema_work(fl_schema_build *b, int64_t n) {
    b->work += n;
    if (b->work > FL_SCHEMA_WORK_MAX) return FL_FAIL(FL_ERR_LIMIT, "json_schema: too complex");
    return FL_ERR_OK;
}

fl_err fl_schema_list_add(fl_schema_build *b, fl_schema_list *list, const json_t *schema, uint64_t *needs) {
    uint32_t i = 0;
    if (!schema || json_is_true(schema)) return FL_ERR_OK;
    if (json_is_false(schema)) {
        list->impossible = true;
        return FL_ERR_OK;
    }
    while (i < list->n && list->items[i].schema != schema) i++;
    if (i == FL_SCHEMA_LIST_MAX)
        return FL_SCHEMA_FAIL(b, FL_ERR_LIMIT, schema, NULL, "more than %d schemas meet here",
                              FL_SCHEMA_LIST_MAX);
    if (i == list->n) list->items[list->n++] = (fl_schema_item){.schema = schema};
    if (needs) *needs |= (uint64_t)1 << i;
    return FL_ERR_OK;
}

static uint32_t hash_list(const fl_schema_list *list) {
    uint64_t h = list->impossible;
    for (uint32_t i = 0; i < list->n; i++)
        h = (h ^ ((uint64_t)(uintptr_t)list->items[i].schema + list->items[i].chosen)) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

static bool is_same(const fl_schema_build *b, uint32_t choice, const fl_schema_list *list) {
    const fl_schema_pending *p = &b->pending[choice];
    const fl_schema_item *items = b->items + p->first_item;
    if (p->n_items != list->n || p->impossible != list->impossible) return false;
    for (uint32_t i = 0; i < list->n; i++)
        if (items[i].schema != list->items[i].schema || items[i].chosen != list->items[i].chosen)
            return false;
    return true;
}

fl_err fl_schema_list_choice(fl_schema_build *b, const fl_schema_list *list, uint32_t *choice) {
    fl_schema *s = b->out;
    uint32_t hash = hash_list(list), slot = hash % FL_SCHEMA_SLOTS;
    for (; b->slots[slot] != FL_SCHEMA_NONE; slot = (slot + 1) % FL_SCHEMA_SLOTS) {
        *choice = b->slots[slot];
        if (b->hashes[*choice] == hash && is_same(b, *choice, list)) return FL_ERR_OK;
    }
    FL_TRY(fl_schema_work(b, list->n));
    if (s->n_choices == FL_SCHEMA_CHOICES_MAX || b->n_items + list->n > FL_SCHEMA_ITEMS_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: more than %d different values", FL_SCHEMA_CHOICES_MAX);
    b->pending[s->n_choices] =
        (fl_schema_pending){.first_item = b->n_items, .n_items = list->n, .impossible = list->impossible};
    memcpy(b->items + b->n_items, list->items, list->n * sizeof *list->items);
    b->n_items += list->n;
    b->hashes[s->n_choices] = hash;
    b->slots[slot] = *choice = s->n_choices++;
    return FL_ERR_OK;
}

fl_err fl_schema_add_node(fl_schema_build *b, const fl_schema_node *node, uint32_t *index) {
    if (b->out->n_nodes == FL_SCHEMA_NODES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: more than %d kinds of values", FL_SCHEMA_NODES_MAX);
    *index = b->out->n_nodes++;
    b->out->nodes[*index] = *node;
    return FL_ERR_OK;
}

fl_err fl_schema_link(fl_schema_build *b, uint32_t link) {
    if (b->out->n_links == FL_SCHEMA_LINKS_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: too many alternatives");
    b->out->links[b->out->n_links++] = (uint16_t)link;
    return FL_ERR_OK;
}

/* Adds what item i refers to. */
static fl_err expand_item(fl_schema_build *b, fl_schema_list *list, uint32_t i) {
    const json_t *schema = list->items[i].schema, *all = json_object_get(schema, "allOf"), *target = NULL;
    const json_t *reference = json_object_get(schema, "$ref");
    uint64_t needs = 0;
    FL_TRY(fl_schema_check_keywords(b, schema));
    if (reference) {
        FL_TRY(fl_schema_resolve(b, schema, json_string_value(reference), &target));
        FL_TRY(fl_schema_list_add(b, list, target, &needs));
    }
    for (size_t k = 0; k < json_array_size(all); k++)
        FL_TRY(fl_schema_list_add(b, list, json_array_get(all, k), &needs));
    list->items[i].needs |= needs;
    return FL_ERR_OK;
}

/* A schema that holds if it holds: *stuck, since no value makes it hold first, if that is by a choice between
 * others; a $ref or allOf to itself is refused. */
static fl_err find_circle(fl_schema_build *b, const fl_schema_list *list, bool *stuck) {
    uint64_t needs[FL_SCHEMA_LIST_MAX], circle = 0;
    *stuck = false;
    for (uint32_t i = 0; i < list->n; i++) needs[i] = list->items[i].needs;
    for (uint32_t k = 0; k < list->n; k++)
        for (uint32_t i = 0; i < list->n; i++)
            if (needs[i] >> k & 1) needs[i] |= needs[k];
    for (uint32_t i = 0; i < list->n; i++) {
        circle |= needs[i] & (uint64_t)1 << i;
        *stuck |= list->items[i].chosen && (needs[i] >> i & 1);
    }
    if (circle == 0 || *stuck) return FL_ERR_OK;
    return FL_SCHEMA_FAIL(b, FL_ERR_INVALID, list->items[__builtin_ctzll(circle)].schema, NULL,
                          "leads back to itself");
}

/* An anyOf or oneOf that is open. */
typedef struct group {
    uint32_t owner; /* item */
    const json_t *members;
    size_t at;
} group;

static uint32_t find_groups(const fl_schema_list *list, group *groups) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const json_t *any = json_object_get(list->items[i].schema, "anyOf");
        const json_t *one = json_object_get(list->items[i].schema, "oneOf");
        if (list->items[i].chosen) continue;
        if (any) groups[n++] = (group){.owner = i, .members = any};
        if (one) groups[n++] = (group){.owner = i, .members = one};
    }
    return n;
}

static fl_err add_part(fl_schema_build *b, fl_schema_pending *p, uint32_t choice) {
    if (b->n_parts == FL_SCHEMA_LINKS_MAX) return FL_FAIL(FL_ERR_LIMIT, "json_schema: too many alternatives");
    b->parts[b->n_parts++] = choice;
    p->n_parts++;
    return FL_ERR_OK;
}

/* Takes out schemas that only refer to others of the list: lists stay short, and those that say the same are
 * equal. */
static fl_err settle(fl_schema_build *b, fl_schema_list *list) {
    for (uint32_t i = list->n; i-- > 0;) {
        const fl_schema_item gone = list->items[i];
        FL_TRY(fl_schema_work(b, 1 + list->n));
        if (!gone.chosen || fl_schema_says_more(gone.schema)) continue;
        uint64_t below = ((uint64_t)1 << i) - 1;
        memmove(list->items + i, list->items + i + 1, (--list->n - i) * sizeof *list->items);
        for (uint32_t k = 0; k < list->n; k++) {
            uint64_t needs = list->items[k].needs;
            if (needs >> i & 1) needs |= gone.needs;
            list->items[k].needs = (needs & below) | (needs >> 1 & ~below);
        }
    }
    return FL_ERR_OK;
}

/* One member of each group: the list with those added. */
static fl_err choose(fl_schema_build *b, uint32_t choice, const fl_schema_list *list, const group *groups,
                     uint32_t n) {
    fl_schema_list longer = *list;
    uint32_t part;
    bool stuck;
    for (uint32_t i = 0; i < list->n; i++) longer.items[i].chosen = true;
    for (uint32_t g = 0; g < n; g++) {
        uint64_t needs = 0;
        FL_TRY(fl_schema_list_add(b, &longer, json_array_get(groups[g].members, groups[g].at), &needs));
        longer.items[groups[g].owner].needs |= needs;
    }
    FL_TRY(find_circle(b, &longer, &stuck));
    if (longer.impossible || stuck) return FL_ERR_OK;
    FL_TRY(settle(b, &longer));
    FL_TRY(fl_schema_list_choice(b, &longer, &part));
    return add_part(b, &b->pending[choice], part);
}

/* All combinations of the groups' members. */
static fl_err choose_all(fl_schema_build *b, uint32_t choice, const fl_schema_list *list, group *groups,
                         uint32_t n) {
    uint64_t combinations = 1;
    for (uint32_t g = 0; g < n; g++) {
        combinations *= json_array_size(groups[g].members);
        if (combinations > FL_SCHEMA_BRANCHES_MAX)
            return FL_SCHEMA_FAIL(b, FL_ERR_LIMIT, list->items[groups[g].owner].schema, NULL,
                                  "more than %d alternatives", FL_SCHEMA_BRANCHES_MAX);
    }
    b->pending[choice].first_part = b->n_parts;
    for (uint64_t c = 0; c < combinations; c++) {
        uint64_t rest = c;
        for (uint32_t g = n; g-- > 0;) {
            size_t members = json_array_size(groups[g].members);
            groups[g].at = rest % members;
            rest /= members;
        }
        FL_TRY(choose(b, choice, list, groups, n));
    }
    return FL_ERR_OK;
}

static fl_err make_choice(fl_schema_build *b, uint32_t choice) {
    const fl_schema_pending *p = &b->pending[choice];
    fl_schema_list list = {.n = p->n_items, .impossible = p->impossible};
    group groups[2 * FL_SCHEMA_LIST_MAX];
    bool stuck;
    memcpy(list.items, b->items + p->first_item, p->n_items * sizeof *list.items);
    for (uint32_t i = 0; i < list.n; i++)
        if (!list.items[i].chosen) FL_TRY(expand_item(b, &list, i));
    FL_TRY(find_circle(b, &list, &stuck));
    b->out->choices[choice].first = b->out->n_links;
    if (list.impossible || stuck) return FL_ERR_OK;
    uint32_t n = find_groups(&list, groups);
    if (n > 0) return choose_all(b, choice, &list, groups, n);
    FL_TRY(fl_schema_make_nodes(b, &list));
    b->out->choices[choice].n = b->out->n_links - b->out->choices[choice].first;
    return FL_ERR_OK;
}

static fl_err make_all(fl_schema_build *b) {
    fl_schema_list list = {0};
    if (!json_is_object(b->root) && !json_is_boolean(b->root))
        return FL_FAIL(FL_ERR_INVALID, "json_schema: expected an object, true or false");
    FL_TRY(fl_schema_find_references(b));
    FL_TRY(fl_schema_list_add(b, &list, b->root, NULL));
    FL_TRY(fl_schema_list_choice(b, &list, &b->out->root));
    for (uint32_t i = 0; i < b->out->n_choices; i++) FL_TRY(make_choice(b, i));
    FL_TRY(fl_schema_link_choices(b));
    fl_schema_measure(b->out);
    if (b->out->choices[b->out->root].height > FL_SCHEMA_DEPTH_MAX)
        return FL_FAIL(FL_ERR_INVALID, "json_schema: no value can be valid under it");
    return FL_ERR_OK;
}

/* Room for the largest schema: pages that stay untouched cost nothing, and what is not used is given back. */
static fl_err reserve(fl_schema_build *b) {
    fl_schema *s = b->out;
    s->nodes = calloc(FL_SCHEMA_NODES_MAX, sizeof *s->nodes);
    s->choices = calloc(FL_SCHEMA_CHOICES_MAX, sizeof *s->choices);
    s->links = malloc(FL_SCHEMA_LINKS_MAX * sizeof *s->links);
    s->properties = malloc(FL_SCHEMA_PROPERTIES_MAX * sizeof *s->properties);
    s->word_sets = calloc(FL_SCHEMA_NODES_MAX, sizeof *s->word_sets);
    s->words = malloc(FL_SCHEMA_WORDS_MAX * sizeof *s->words);
    s->text = malloc(FL_SCHEMA_TEXT_MAX);
    s->dfas = calloc(FL_SCHEMA_DFAS_MAX, sizeof *s->dfas);
    s->bounds = malloc(FL_SCHEMA_BOUNDS_MAX * sizeof *s->bounds);
    b->items = malloc(FL_SCHEMA_ITEMS_MAX * sizeof *b->items);
    b->pending = malloc(FL_SCHEMA_CHOICES_MAX * sizeof *b->pending);
    b->parts = malloc(FL_SCHEMA_LINKS_MAX * sizeof *b->parts);
    b->slots = malloc(FL_SCHEMA_SLOTS * sizeof *b->slots);
    b->hashes = malloc(FL_SCHEMA_CHOICES_MAX * sizeof *b->hashes);
    b->references = malloc(FL_SCHEMA_REFERENCES_MAX * sizeof *b->references);
    b->marks = calloc(FL_SCHEMA_NODES_MAX + FL_SCHEMA_CHOICES_MAX, sizeof *b->marks);
    bool out =
        s->nodes && s->choices && s->links && s->properties && s->word_sets && s->words && s->text && s->dfas;
    if (!out || !s->bounds || !b->items || !b->pending || !b->parts || !b->slots || !b->hashes ||
        !b->references || !b->marks)
        return FL_FAIL(FL_ERR_NOMEM, "json_schema");
    memset(b->slots, 0xff, FL_SCHEMA_SLOTS * sizeof *b->slots);
    return FL_ERR_OK;
}

/* Gives back what is beyond n items. */
static void *shrunk(void *array, uint32_t n, size_t item_bytes) {
    void *smaller = realloc(array, (n > 0 ? n : 1) * item_bytes);
    return smaller ? smaller : array;
}

static void shrink(fl_schema *s) {
    s->nodes = shrunk(s->nodes, s->n_nodes, sizeof *s->nodes);
    s->choices = shrunk(s->choices, s->n_choices, sizeof *s->choices);
    s->links = shrunk(s->links, s->n_links, sizeof *s->links);
    s->properties = shrunk(s->properties, s->n_properties, sizeof *s->properties);
    s->word_sets = shrunk(s->word_sets, s->n_word_sets, sizeof *s->word_sets);
    s->words = shrunk(s->words, s->n_words, sizeof *s->words);
    s->text = shrunk(s->text, s->n_text, 1);
    s->dfas = shrunk(s->dfas, s->n_dfas, sizeof *s->dfas);
    s->bounds = shrunk(s->bounds, s->n_bounds, sizeof *s->bounds);
}

static fl_err compile(fl_schema_build *b, const char *text, size_t n_bytes) {
    json_error_t error;
    char hex[FL_SHA256_HEX_BYTES];
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!root)
        return FL_FAIL(FL_ERR_INVALID, "json_schema: not JSON, at byte %d: %s", error.position, error.text);
    b->root = root;
    fl_err err = reserve(b);
    if (err == FL_ERR_OK) err = fl_sha256_of(text, n_bytes, hex);
    if (err == FL_ERR_OK) err = make_all(b);
    if (err == FL_ERR_OK) {
        memcpy(b->out->key, hex, sizeof b->out->key);
        shrink(b->out);
    }
    json_decref(root);
    return err;
}

fl_err fl_schema_compile(const char *text, fl_schema **out) {
    fl_schema_build b = {.pattern_work = FL_PATTERN_WORK_MAX};
    const char *schema = text[0] ? text : ANY_OBJECT;
    size_t n_bytes = strnlen(schema, FL_SCHEMA_BYTES_MAX + 1);
    *out = NULL;
    if (n_bytes > FL_SCHEMA_BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: more than %d bytes", FL_SCHEMA_BYTES_MAX);
    b.out = calloc(1, sizeof *b.out);
    if (!b.out) return FL_FAIL(FL_ERR_NOMEM, "json_schema");
    fl_err err = compile(&b, schema, n_bytes);
    if (err != FL_ERR_OK) fl_schema_close(b.out);
    else *out = b.out;
    free(b.items);
    free(b.pending);
    free(b.parts);
    free(b.slots);
    free(b.hashes);
    free(b.references);
    free(b.marks);
    return err;
}

fl_err fl_schema_check(const char *text) {
    fl_schema *schema;
    FL_TRY(fl_schema_compile(text, &schema));
    fl_schema_close(schema);
    return FL_ERR_OK;
}

void fl_schema_close(fl_schema *s) {
    if (!s) return;
    for (uint32_t i = 0; i < s->n_dfas; i++) fl_schema_dfa_free(&s->dfas[i]);
    free(s->nodes);
    free(s->choices);
    free(s->links);
    free(s->properties);
    free(s->word_sets);
    free(s->words);
    free(s->text);
    free(s->dfas);
    free(s->bounds);
    free(s);
}
