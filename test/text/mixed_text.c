/* Each kind of chunk has its own writer; a chunk depends on nothing but its index. */
#include "text/mixed_text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COMMON_CHUNKS = 5 * 64,  /* 1024 code points each */
    SPARSE_CHUNKS = 12 * 16, /* 4096 code points each */
    RANDOM_CHUNKS = 256,
    VOCAB_CHUNKS = 512,
    RANDOM_CODE_POINTS = 2000,
    VOCAB_TOKENS = 400,
    DOCUMENT_BYTES = 3000,
    ROOM = 1 << 20, /* more than any chunk */
};

struct mixed_text {
    const fl_tokenizer *tokenizer;
    const char *document;
    size_t document_bytes, n_document_chunks;
    size_t n;
    char name[64];
    char text[ROOM];
};

/* Ranges of code points, last included. */
static const uint32_t RANGES[][2] = {
    {'a', 'z'},         {'A', 'Z'},         {'0', '9'},         {'!', '/'},         {'[', '`'},
    {' ', ' '},         {'\t', '\r'},       {'\n', '\n'},       {0, 0x1f},          {0x7f, 0xa0},
    {0xa1, 0x17f},      {0x300, 0x36f},     {0x370, 0x52f},     {0x590, 0x6ff},     {0x900, 0xe7f},
    {0x1680, 0x1680},   {0x180b, 0x180e},   {0x2000, 0x206f},   {0x20a0, 0x20cf},   {0x20d0, 0x20f0},
    {0x2150, 0x218f},   {0x2460, 0x27bf},   {0x2e80, 0x303f},   {0x3040, 0x30ff},   {0x3100, 0x33ff},
    {0x4e00, 0x9fff},   {0xac00, 0xd7a3},   {0xe000, 0xf8ff},   {0xfe00, 0xfe0f},   {0xfeff, 0xffef},
    {0x10000, 0x1ffff}, {0x1d400, 0x1d7ff}, {0x1f300, 0x1faff}, {0x20000, 0x323af}, {0xe0000, 0xe01ef},
};
enum { N_RANGES = sizeof RANGES / sizeof *RANGES };

static uint64_t next_random(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t x = *state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint32_t below(uint64_t *state, uint32_t limit) {
    return (uint32_t)(next_random(state) >> 32) % limit;
}

static void put_text(mixed_text *m, const char *text, size_t n) {
    if (n > sizeof m->text - m->n) n = sizeof m->text - m->n;
    memcpy(m->text + m->n, text, n);
    m->n += n;
}

static void put_string(mixed_text *m, const char *text) {
    put_text(m, text, strlen(text));
}

static void put_code_point(mixed_text *m, uint32_t c) {
    char bytes[4];
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n == 1) {
        bytes[0] = (char)c;
    } else {
        for (int i = n - 1; i > 0; i--, c >>= 6) bytes[i] = (char)(0x80 | (c & 0x3f));
        bytes[0] = (char)((0xf00u >> n & 0xff) | c);
    }
    put_text(m, bytes, (size_t)n);
}

static bool is_surrogate(uint32_t c) {
    return c >= 0xd800 && c < 0xe000;
}

/* Inside a word, alone between blanks, doubled between digits, behind a newline, beside ideographs, before a sign. */
static void write_common(mixed_text *m, size_t index) {
    static const char CONTEXTS[] = "a@b @ 1@@2\n@\u4e2d@!@x  "; /* @ is the code point */
    uint32_t plane = index / 64 == 4 ? 14 : (uint32_t)(index / 64),
             first = plane << 16 | (uint32_t)(index % 64) << 10;
    for (uint32_t c = first; c < first + 1024; c++) {
        if (is_surrogate(c)) continue;
        for (size_t i = 0; CONTEXTS[i] != '\0'; i++) {
            if (CONTEXTS[i] == '@') put_code_point(m, c);
            else put_text(m, CONTEXTS + i, 1);
        }
    }
}

static void write_sparse(mixed_text *m, size_t index) {
    static const uint32_t PLANES[] = {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16};
    uint32_t first = PLANES[index / 16] << 16 | (uint32_t)(index % 16) << 12;
    for (uint32_t c = first; c < first + 4096; c++) {
        put_string(m, c % 2 ? "a" : " ");
        put_code_point(m, c);
    }
}

static void write_random(mixed_text *m, size_t index) {
    uint64_t random = 0x1000 + index;
    uint32_t palette[8];
    for (int i = 0; i < 8; i++) palette[i] = below(&random, N_RANGES);
    for (uint32_t n = 0; n < RANDOM_CODE_POINTS;) {
        const uint32_t *range = RANGES[palette[below(&random, 8)]];
        uint32_t length = 1 + below(&random, below(&random, 16) == 0 ? 80 : 5);
        for (; length > 0; length--, n++) {
            uint32_t c = range[0] + below(&random, range[1] - range[0] + 1);
            put_code_point(m, is_surrogate(c) ? ' ' : c);
        }
    }
}

static void write_vocab(mixed_text *m, size_t index) {
    uint64_t random = 0x2000 + index;
    const fl_tokenizer *t = m->tokenizer;
    char out[FL_DETOK_OUT_BYTES];
    size_t n;
    fl_detok d;
    fl_detok_init(&d, true);
    uint32_t n_vocab = (uint32_t)fl_tokenizer_n_vocab(t), n_ids = n_vocab;
    /* The lowest ids are the frequent tokens; some chunks prefer them. */
    if (index % 4 == 1) n_ids = 4096;
    for (int i = 0; i < VOCAB_TOKENS; i++) {
        uint32_t id = below(&random, n_ids);
        if (index % 2 == 1 && below(&random, 16) == 0) {
            /* An added token, whole or cut short before another. */
            static const int32_t ADDED[] = {0,      1,      2,      128000, 128010, 128100,
                                            128800, 128803, 128804, 128805, 128814};
            size_t n_bytes;
            const char *bytes = fl_tokenizer_token_bytes(t, ADDED[below(&random, 11)], &n_bytes);
            fl_detok_finish(&d, out, &n);
            put_text(m, out, n);
            if (bytes && below(&random, 4) == 0) n_bytes = n_bytes > 8 ? 4 : n_bytes; /* "<" and one bar */
            if (bytes) put_text(m, bytes, n_bytes);
        }
        fl_detok_push(t, &d, (int32_t)id, out, &n);
        put_text(m, out, n);
    }
    fl_detok_finish(&d, out, &n);
    put_text(m, out, n);
}

/* Where the document's chunk begins: at a code point. */
static size_t document_begin(const mixed_text *m, size_t index) {
    size_t at = index * DOCUMENT_BYTES;
    if (at > m->document_bytes) at = m->document_bytes;
    while (at < m->document_bytes && ((uint8_t)m->document[at] & 0xc0) == 0x80) at++;
    return at;
}

static void write_document(mixed_text *m, size_t index) {
    size_t begin = document_begin(m, index);
    put_text(m, m->document + begin, document_begin(m, index + 1) - begin);
}

typedef struct kind {
    const char *name;
    void (*write)(mixed_text *m, size_t index);
    size_t count; /* 0: as many as the document has */
} kind;

static const kind KINDS[] = {
    {"every code point of 1024 in six contexts", write_common, COMMON_CHUNKS},
    {"every code point of 4096", write_sparse, SPARSE_CHUNKS},
    {"random Unicode", write_random, RANDOM_CHUNKS},
    {"random tokens", write_vocab, VOCAB_CHUNKS},
    {"documents", write_document, 0},
};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

mixed_text *mixed_text_open(const fl_tokenizer *t, const char *document, size_t document_bytes) {
    mixed_text *m = malloc(sizeof *m);
    if (!m) return NULL;
    m->tokenizer = t;
    m->document = document;
    m->document_bytes = document_bytes;
    m->n_document_chunks = (document_bytes + DOCUMENT_BYTES - 1) / DOCUMENT_BYTES;
    return m;
}

void mixed_text_close(mixed_text *m) {
    free(m);
}

static size_t kind_count(const mixed_text *m, int k) {
    return KINDS[k].count > 0 ? KINDS[k].count : m->n_document_chunks;
}

size_t mixed_text_count(const mixed_text *m) {
    size_t count = 0;
    for (int k = 0; k < N_KINDS; k++) count += kind_count(m, k);
    return count;
}

static const kind *kind_of(const mixed_text *m, size_t *index) {
    int k = 0;
    while (k + 1 < N_KINDS && *index >= kind_count(m, k)) *index -= kind_count(m, k++);
    return &KINDS[k];
}

const char *mixed_text_chunk(mixed_text *m, size_t index, size_t *n_bytes) {
    const kind *k = kind_of(m, &index);
    m->n = 0;
    k->write(m, index);
    *n_bytes = m->n;
    return m->text;
}

const char *mixed_text_name(mixed_text *m, size_t index) {
    const kind *k = kind_of(m, &index);
    snprintf(m->name, sizeof m->name, "%s, chunk %zu", k->name, index);
    return m->name;
}

uint64_t mixed_hash(const void *bytes, size_t n_bytes) {
    const uint8_t *p = bytes;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n_bytes; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}
