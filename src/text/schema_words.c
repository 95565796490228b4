/* Sets of byte strings, read byte by byte: a position is the first word that begins so and how many bytes came. */
#include <string.h>

#include "text/schema_impl.h"

enum { POSITION_BITS = 16 };

static const char *word_bytes(const fl_schema *s, uint32_t word) {
    return s->text + s->words[word].offset;
}

/* How word i of the set stands to the first `depth` bytes of word `like` and, behind them, `byte` (-1: none). */
static int compare(const fl_schema *s, uint32_t i, uint32_t like, uint32_t depth, int byte) {
    uint32_t n = s->words[i].n_bytes, common = n < depth ? n : depth;
    int order = memcmp(word_bytes(s, i), word_bytes(s, like), common);
    if (order != 0) return order;
    if (n < depth) return -1;
    if (byte < 0) return 0;
    if (n == depth) return -1;
    return (uint8_t)word_bytes(s, i)[depth] - byte;
}

/* The first word of [low, high) that does not stand before; with `after` the first that stands behind. */
static uint32_t find(const fl_schema *s, uint32_t low, uint32_t high, uint32_t depth, int byte, bool after) {
    uint32_t like = low;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare(s, middle, like, depth, byte);
        if (order < 0 || (after && order == 0)) low = middle + 1;
        else high = middle;
    }
    return low;
}

uint32_t fl_schema_words_step(const fl_schema *s, uint32_t set, uint32_t position, uint8_t byte) {
    const fl_schema_words *w = &s->word_sets[set];
    uint32_t depth = position & ((1u << POSITION_BITS) - 1), first = w->first + (position >> POSITION_BITS);
    if (position == UINT32_MAX || w->n == 0) return UINT32_MAX;
    uint32_t found = find(s, first, w->first + w->n, depth, byte, false);
    if (found == w->first + w->n || compare(s, found, first, depth, byte) != 0) return UINT32_MAX;
    return (found - w->first) << POSITION_BITS | (depth + 1);
}

bool fl_schema_words_ends(const fl_schema *s, uint32_t set, uint32_t position, uint32_t *word) {
    if (position == UINT32_MAX || s->word_sets[set].n == 0) return false;
    *word = s->word_sets[set].first + (position >> POSITION_BITS);
    return s->words[*word].n_bytes == (position & ((1u << POSITION_BITS) - 1));
}

void fl_schema_words_range(const fl_schema *s, uint32_t set, uint32_t position, uint32_t *first,
                           uint32_t *end) {
    const fl_schema_words *w = &s->word_sets[set];
    *first = *end = w->first;
    if (position == UINT32_MAX || w->n == 0) return;
    *first += position >> POSITION_BITS;
    *end = find(s, *first, w->first + w->n, position & ((1u << POSITION_BITS) - 1), -1, true);
}

bool fl_schema_words_goes_on(const fl_schema *s, uint32_t set, uint32_t position) {
    uint32_t first, end, word;
    fl_schema_words_range(s, set, position, &first, &end);
    return end - first > (fl_schema_words_ends(s, set, position, &word) ? 1 : 0);
}

/* --- making a set --------------------------------------------------------------------------------------------- */

fl_err fl_schema_words_begin(fl_schema *s, uint32_t *set) {
    if (s->n_word_sets == FL_SCHEMA_NODES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: too many sets of values");
    *set = s->n_word_sets++;
    s->word_sets[*set] = (fl_schema_words){.first = s->n_words};
    return FL_ERR_OK;
}

fl_err fl_schema_words_add(fl_schema *s, const char *bytes, size_t n_bytes, uint32_t index) {
    if (n_bytes > FL_SCHEMA_WORD_BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: a name or value of %zu bytes, at most %d", n_bytes,
                       FL_SCHEMA_WORD_BYTES_MAX);
    if (s->n_words == FL_SCHEMA_WORDS_MAX || s->n_text + n_bytes > FL_SCHEMA_TEXT_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: too many names and values");
    memcpy(s->text + s->n_text, bytes, n_bytes);
    s->words[s->n_words++] =
        (fl_schema_word){.offset = s->n_text, .n_bytes = (uint16_t)n_bytes, .index = (uint16_t)index};
    s->n_text += (uint32_t)n_bytes;
    return FL_ERR_OK;
}

static int order(const fl_schema *s, const fl_schema_word *a, const fl_schema_word *b) {
    size_t common = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    int by_bytes = memcmp(s->text + a->offset, s->text + b->offset, common);
    return by_bytes != 0 ? by_bytes : (int)a->n_bytes - (int)b->n_bytes;
}

static void sift(const fl_schema *s, fl_schema_word *heap, uint32_t n, uint32_t i) {
    for (;;) {
        uint32_t last = i, child = 2 * i + 1;
        if (child < n && order(s, &heap[child], &heap[last]) > 0) last = child;
        if (child + 1 < n && order(s, &heap[child + 1], &heap[last]) > 0) last = child + 1;
        if (last == i) return;
        const fl_schema_word swap = heap[i];
        heap[i] = heap[last];
        heap[last] = swap;
        i = last;
    }
}

void fl_schema_words_end(fl_schema *s, uint32_t set) {
    fl_schema_words *w = &s->word_sets[set];
    fl_schema_word *words = s->words + w->first;
    uint32_t n = s->n_words - w->first, kept = 0;
    for (uint32_t i = n / 2; i-- > 0;) sift(s, words, n, i);
    for (uint32_t i = n; i-- > 1;) {
        const fl_schema_word swap = words[0];
        words[0] = words[i];
        words[i] = swap;
        sift(s, words, i, 0);
    }
    for (uint32_t i = 0; i < n; i++)
        if (kept == 0 || order(s, &words[kept - 1], &words[i]) != 0) words[kept++] = words[i];
    w->n = kept;
    s->n_words = w->first + kept;
}
