#include "text/schema_mask.h"

#include <stdlib.h>
#include <string.h>

#include "text/schema_impl.h"
#include "text/token_trie.h"
#include "text/utf8.h"

enum {
    SCHEMAS_MAX = 256, /* remembered at once */
    SLOTS = 4 * FL_SCHEMA_STATES_MAX,
    ENDS_MAX = 64,
    MASKS_MAX = 4096,
    UNKNOWN = UINT16_MAX,
    DEAD = UINT16_MAX - 1,
    NO_MASK = -1,
};

/* A remembered state: its used bytes in data. */
typedef struct known_state {
    uint32_t hash, offset, n_bytes;
    uint16_t schema;
    int16_t mask;
} known_state;

/* A mask's slot; slots are a ring from the one used last to the one to be used next. */
typedef struct mask_slot {
    int32_t newer, older;
    uint16_t owner; /* state, UNKNOWN: none */
} mask_slot;

struct fl_schema_masks {
    const fl_tokenizer *tokenizer;
    int32_t n_vocab, n_words, n_ends, ends[ENDS_MAX];
    fl_token_trie all, odd; /* odd: tokens that are not just text in a string */
    uint64_t *plain;        /* [n_words] the others */
    uint16_t *plain_points; /* [n_vocab] their code points, 0: not one of them */
    uint32_t plain_longest;
    char (*schemas)[FL_SCHEMA_KEY_BYTES]; /* [SCHEMAS_MAX] */
    known_state *states;                  /* [FL_SCHEMA_STATES_MAX] */
    uint16_t (*next)[256];                /* [FL_SCHEMA_STATES_MAX] */
    uint16_t *slots;                      /* [SLOTS] hash -> state */
    uint8_t *data;                        /* [FL_SCHEMA_STATES_BYTES] */
    uint32_t n_schemas, n_states, n_data;
    uint64_t *masks; /* [n_masks][n_words] */
    mask_slot *ring; /* [n_masks] */
    int32_t n_masks, newest;
    fl_schema_state from, to; /* scratch */
};

/* --- the vocabulary ------------------------------------------------------------------------------------------- */

/* Code points of a token that is text of a JSON string as it stands; 0: it is not. */
static uint32_t plain_points(const uint8_t *bytes, size_t n) {
    uint32_t points = 0, code;
    for (size_t i = 0; i < n; points++) {
        int length = fl_utf8_decode(bytes + i, n - i, &code);
        if (length <= 0 || code < 0x20 || code == '"' || code == '\\') return 0;
        i += (size_t)length;
    }
    return points;
}

static uint32_t list_tokens(fl_schema_masks *m, fl_token_entry *entries, bool odd_only) {
    uint32_t n = 0;
    int32_t n_tokens = fl_tokenizer_n_vocab(m->tokenizer);
    for (int32_t id = 0; id < n_tokens && id < m->n_vocab; id++) {
        size_t n_bytes;
        const uint8_t *bytes = (const uint8_t *)fl_tokenizer_token_bytes(m->tokenizer, id, &n_bytes);
        if (!bytes || n_bytes == 0 || fl_tokenizer_is_added(m->tokenizer, id)) continue;
        uint32_t points = plain_points(bytes, n_bytes);
        if (points > 0) {
            m->plain[id / 64] |= (uint64_t)1 << (id % 64);
            m->plain_points[id] = (uint16_t)points;
            if (points > m->plain_longest) m->plain_longest = points;
        }
        if (points == 0 || !odd_only) entries[n++] = (fl_token_entry){bytes, (uint32_t)n_bytes, id};
    }
    return n;
}

static fl_err read_vocabulary(fl_schema_masks *m) {
    fl_token_entry *entries = malloc((size_t)m->n_vocab * sizeof *entries);
    if (!entries) return FL_FAIL(FL_ERR_NOMEM, "masks of %d tokens", m->n_vocab);
    fl_err err = fl_token_trie_make(entries, list_tokens(m, entries, false), &m->all);
    if (err == FL_ERR_OK) err = fl_token_trie_make(entries, list_tokens(m, entries, true), &m->odd);
    free(entries);
    return err;
}

/* --- what is remembered --------------------------------------------------------------------------------------- */

static void forget(fl_schema_masks *m) {
    m->n_schemas = m->n_states = m->n_data = 0;
    memset(m->slots, 0xff, SLOTS * sizeof *m->slots);
    for (int32_t i = 0; i < m->n_masks; i++)
        m->ring[i] = (mask_slot){(i + m->n_masks - 1) % m->n_masks, (i + 1) % m->n_masks, UNKNOWN};
    m->newest = 0;
}

static fl_err reserve(fl_schema_masks *m) {
    int64_t n_masks = FL_SCHEMA_MASKS_BYTES / ((int64_t)m->n_words * 8);
    m->n_masks = (int32_t)(n_masks < 2 ? 2 : n_masks > MASKS_MAX ? MASKS_MAX : n_masks);
    m->plain = calloc((size_t)m->n_words, sizeof *m->plain);
    m->plain_points = calloc((size_t)m->n_vocab, sizeof *m->plain_points);
    m->schemas = malloc(SCHEMAS_MAX * sizeof *m->schemas);
    m->states = malloc(FL_SCHEMA_STATES_MAX * sizeof *m->states);
    m->next = malloc(FL_SCHEMA_STATES_MAX * sizeof *m->next);
    m->slots = malloc(SLOTS * sizeof *m->slots);
    m->data = malloc(FL_SCHEMA_STATES_BYTES);
    m->masks = malloc((size_t)m->n_masks * (size_t)m->n_words * sizeof *m->masks);
    m->ring = malloc((size_t)m->n_masks * sizeof *m->ring);
    bool states = m->schemas && m->states && m->next && m->slots && m->data;
    if (!states || !m->plain || !m->plain_points || !m->masks || !m->ring)
        return FL_FAIL(FL_ERR_NOMEM, "masks of %d tokens", m->n_vocab);
    forget(m);
    return FL_ERR_OK;
}

fl_err fl_schema_masks_open(const fl_schema_vocabulary *v, fl_schema_masks **out) {
    *out = NULL;
    if (v->n_vocab < 1 || v->n_ends < 0 || v->n_ends > ENDS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "masks: expected tokens and at most %d end tokens, found %d and %d",
                       ENDS_MAX, v->n_vocab, v->n_ends);
    fl_schema_masks *m = calloc(1, sizeof *m);
    if (!m) return FL_FAIL(FL_ERR_NOMEM, "masks");
    m->tokenizer = v->tokenizer;
    m->n_vocab = v->n_vocab;
    m->n_words = (v->n_vocab + 63) / 64;
    for (int32_t i = 0; i < v->n_ends; i++)
        if (v->ends[i] >= 0 && v->ends[i] < v->n_vocab) m->ends[m->n_ends++] = v->ends[i];
    fl_err err = reserve(m);
    if (err == FL_ERR_OK) err = read_vocabulary(m);
    if (err != FL_ERR_OK) fl_schema_masks_close(m);
    else *out = m;
    return err;
}

void fl_schema_masks_close(fl_schema_masks *m) {
    if (!m) return;
    fl_token_trie_free(&m->all);
    fl_token_trie_free(&m->odd);
    free(m->plain);
    free(m->plain_points);
    free(m->schemas);
    free(m->states);
    free(m->next);
    free(m->slots);
    free(m->data);
    free(m->masks);
    free(m->ring);
    free(m);
}

/* The schema's number; false: there are too many. */
static bool find_schema(fl_schema_masks *m, const fl_schema *schema, uint16_t *out) {
    uint32_t i = 0;
    while (i < m->n_schemas && memcmp(m->schemas[i], schema->key, sizeof schema->key) != 0) i++;
    if (i == SCHEMAS_MAX) return false;
    if (i == m->n_schemas) memcpy(m->schemas[m->n_schemas++], schema->key, sizeof schema->key);
    *out = (uint16_t)i;
    return true;
}

/* A state as bytes: sizes, depths, frames in use. */
static uint32_t pack(const fl_schema_state *state, uint8_t *out) {
    uint32_t n = sizeof state->n_threads + sizeof state->n_frames;
    memcpy(out, state, n);
    memcpy(out + n, state->depth, state->n_threads);
    n += state->n_threads;
    memcpy(out + n, state->frames, state->n_frames * sizeof *state->frames);
    return n + state->n_frames * (uint32_t)sizeof *state->frames;
}

static void unpack(const uint8_t *bytes, fl_schema_state *out) {
    uint32_t n = sizeof out->n_threads + sizeof out->n_frames;
    memcpy(out, bytes, n);
    memcpy(out->depth, bytes + n, out->n_threads);
    memcpy(out->frames, bytes + n + out->n_threads, out->n_frames * sizeof *out->frames);
}

static uint32_t hash_bytes(const uint8_t *bytes, uint32_t n, uint16_t schema) {
    uint64_t h = schema, word = 0;
    for (uint32_t i = 0; i < n; i += 8) {
        memcpy(&word, bytes + i, n - i < 8 ? n - i : 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

/* The state's number, new ones included; false: there is no room. */
static bool find_state(fl_schema_masks *m, uint16_t schema, const fl_schema_state *state, uint16_t *out) {
    if (m->n_data + sizeof *state > FL_SCHEMA_STATES_BYTES || m->n_states == FL_SCHEMA_STATES_MAX)
        return false;
    uint8_t *bytes = m->data + m->n_data;
    uint32_t n = pack(state, bytes), hash = hash_bytes(bytes, n, schema), slot = hash % SLOTS;
    for (; m->slots[slot] != UNKNOWN; slot = (slot + 1) % SLOTS) {
        const known_state *k = &m->states[m->slots[slot]];
        *out = m->slots[slot];
        if (k->hash == hash && k->schema == schema && k->n_bytes == n &&
            memcmp(m->data + k->offset, bytes, n) == 0)
            return true;
    }
    *out = m->slots[slot] = (uint16_t)m->n_states++;
    m->states[*out] = (known_state){hash, m->n_data, n, schema, NO_MASK};
    memset(m->next[*out], 0xff, sizeof m->next[*out]);
    m->n_data += n;
    return true;
}

/* --- walking -------------------------------------------------------------------------------------------------- */

/* The step from a remembered state, which is remembered too. */
static bool find_step(fl_schema_masks *m, const fl_schema *schema, uint16_t from, uint8_t byte) {
    uint16_t to = DEAD;
    unpack(m->data + m->states[from].offset, &m->from);
    if (fl_schema_step(schema, &m->from, byte, &m->to) && !find_state(m, m->states[from].schema, &m->to, &to))
        return false;
    m->next[from][byte] = to;
    return true;
}

static bool walk(fl_schema_masks *m, const fl_schema *schema, uint16_t start, const fl_token_trie *trie,
                 uint64_t *mask) {
    uint16_t path[FL_TOKEN_BYTES_MAX + 1];
    path[0] = start;
    for (uint32_t i = 0; i < trie->n;) {
        const fl_token_node *node = &trie->nodes[i];
        uint16_t from = path[node->depth - 1], to = m->next[from][node->byte];
        if (to == UNKNOWN) {
            if (!find_step(m, schema, from, node->byte)) return false;
            to = m->next[from][node->byte];
        }
        if (to == DEAD) {
            i = node->end;
            continue;
        }
        path[node->depth] = to;
        if (node->token >= 0) mask[node->token / 64] |= (uint64_t)1 << (node->token % 64);
        i++;
    }
    return true;
}

/* All tokens of at most `room` code points that are text of a string. */
static void add_short(const fl_schema_masks *m, uint32_t room, uint64_t *mask) {
    for (int32_t id = 0; id < m->n_vocab; id++)
        mask[id / 64] |= (uint64_t)(m->plain_points[id] - 1u < room) << (id % 64);
}

static void add_ends(const fl_schema_masks *m, const fl_schema *schema, const fl_schema_state *state,
                     uint64_t *mask) {
    if (!fl_schema_is_complete(schema, state)) return;
    for (int32_t i = 0; i < m->n_ends; i++) mask[m->ends[i] / 64] |= (uint64_t)1 << (m->ends[i] % 64);
}

static bool fill(fl_schema_masks *m, const fl_schema *schema, const fl_schema_state *state, uint16_t number,
                 uint64_t *mask) {
    uint32_t room;
    bool text = fl_schema_in_text(schema, state, &room), any = room >= m->plain_longest;
    memset(mask, 0, (size_t)m->n_words * sizeof *mask);
    if (text && any) memcpy(mask, m->plain, (size_t)m->n_words * sizeof *mask);
    else if (text && state->n_threads == 1) add_short(m, room, mask);
    else text = false;
    if (!walk(m, schema, number, text ? &m->odd : &m->all, mask)) return false;
    add_ends(m, schema, state, mask);
    return true;
}

/* Without remembering anything: when one walk has more states than there is room for. */
static void fill_slowly(fl_schema_masks *m, const fl_schema *schema, const fl_schema_state *state,
                        uint64_t *mask) {
    memset(mask, 0, (size_t)m->n_words * sizeof *mask);
    for (int32_t id = 0; id < fl_tokenizer_n_vocab(m->tokenizer) && id < m->n_vocab; id++) {
        size_t n;
        const char *bytes = fl_tokenizer_token_bytes(m->tokenizer, id, &n);
        if (!bytes || n == 0 || fl_tokenizer_is_added(m->tokenizer, id)) continue;
        m->from = *state;
        if (fl_schema_feed(schema, &m->from, bytes, n)) mask[id / 64] |= (uint64_t)1 << (id % 64);
    }
    add_ends(m, schema, state, mask);
}

/* Makes a slot the newest of the ring. */
static void touch(fl_schema_masks *m, int32_t slot) {
    mask_slot *ring = m->ring, *s = &ring[slot];
    if (slot == m->newest) return;
    ring[s->newer].older = s->older;
    ring[s->older].newer = s->newer;
    int32_t oldest = ring[m->newest].newer;
    s->newer = oldest;
    s->older = m->newest;
    ring[oldest].older = ring[m->newest].newer = slot;
    m->newest = slot;
}

static uint64_t *mask_of(fl_schema_masks *m, int32_t slot) {
    return m->masks + (int64_t)slot * m->n_words;
}

static bool get(fl_schema_masks *m, const fl_schema *schema, const fl_schema_state *state, int32_t *slot) {
    uint16_t number, key;
    if (!find_schema(m, schema, &key) || !find_state(m, key, state, &number)) return false;
    *slot = m->states[number].mask;
    if (*slot != NO_MASK) return true;
    *slot = m->ring[m->newest].newer; /* the oldest */
    if (m->ring[*slot].owner != UNKNOWN) m->states[m->ring[*slot].owner].mask = NO_MASK;
    m->ring[*slot].owner = UNKNOWN;
    if (!fill(m, schema, state, number, mask_of(m, *slot))) return false;
    m->ring[*slot].owner = number;
    m->states[number].mask = (int16_t)*slot;
    return true;
}

const uint64_t *fl_schema_masks_get(fl_schema_masks *m, const fl_schema *schema,
                                    const fl_schema_state *state) {
    int32_t slot = 0;
    bool got = get(m, schema, state, &slot);
    if (!got) {
        forget(m);
        got = get(m, schema, state, &slot);
    }
    if (!got) {
        forget(m);
        slot = 0;
        fill_slowly(m, schema, state, mask_of(m, slot));
    }
    touch(m, slot);
    return mask_of(m, slot);
}
