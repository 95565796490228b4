/* RULER's eight needle tasks (arXiv 2404.06654; the published configuration): prompt, needle and question word for
 * word, our own running text for its essays, our own words for its keys.
 *
 * Difficulty 0.5 is RULER. Single: 16 (d - 0.5) other keys above it. Multi-key 1: 1 + 6 d keys. Multi-key 2 and 3:
 * below it a share 2 d of the lines are needles, above it a share d - 0.5 of the other keys begin like the one asked
 * for. Multi-value and multi-query: 2 + 4 d. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval_draft.h"
#include "eval/eval_words.h"

typedef enum hay_kind { HAY_NOISE, HAY_ESSAY, HAY_NEEDLES } hay_kind;

static const struct niah_task {
    const char *name;
    hay_kind hay;
    bool key_is_uuid, value_is_uuid;
    int32_t n_keys, n_values, n_queries;
} NIAH[8] = {
    {"ruler_niah_single_1", HAY_NOISE, false, false, 1, 1, 1},
    {"ruler_niah_single_2", HAY_ESSAY, false, false, 1, 1, 1},
    {"ruler_niah_single_3", HAY_ESSAY, false, true, 1, 1, 1},
    {"ruler_niah_multikey_1", HAY_ESSAY, false, false, 4, 1, 1},
    {"ruler_niah_multikey_2", HAY_NEEDLES, false, false, 1, 1, 1},
    {"ruler_niah_multikey_3", HAY_NEEDLES, true, true, 1, 1, 1},
    {"ruler_niah_multivalue", HAY_ESSAY, false, false, 1, 4, 1},
    {"ruler_niah_multiquery", HAY_ESSAY, false, false, 4, 1, 4},
};

enum { N_TOKENS_ANSWER = 128, KEYS_MAX = 9, NEEDLES_MAX = 16 };

const char fl_eval_noise[] =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

typedef struct niah_build {
    fl_eval_draft *d;
    const struct niah_task *task;
    int32_t n_keys, n_values, n_queries, n_needles;
    char key[KEYS_MAX][FL_EVAL_NAME_BYTES];
    char value[NEEDLES_MAX][FL_EVAL_NAME_BYTES]; /* [n_keys][n_values] */
    char needle[NEEDLES_MAX][FL_EVAL_SENTENCE_BYTES];
    int32_t fact[NEEDLES_MAX]; /* -1 = of a key that is not asked for */
    int32_t order[NEEDLES_MAX];
} niah_build;

static void draw_value(niah_build *b, char *value) {
    do
        if (b->task->value_is_uuid) fl_eval_name_uuid(b->d, value);
        else fl_eval_name_number(b->d, value, 7);
    while (!fl_eval_draft_new(b->d, value));
}

static void print_needle(const niah_build *b, char *needle, const char *key, const char *value) {
    char text[FL_EVAL_SENTENCE_BYTES];
    snprintf(text, sizeof text, "One of the special magic %s for %s is: %s.",
             b->task->value_is_uuid ? "uuids" : "numbers", key, value);
    memcpy(needle, text, sizeof text);
}

static void draw_needles(niah_build *b) {
    fl_eval_draft *d = b->d;
    b->n_needles = b->n_keys * b->n_values;
    int32_t n_facts = b->n_queries * b->n_values, first = fl_eval_draft_facts(d, n_facts);
    fl_eval_random_order(&d->random, b->order, b->n_needles);
    for (int32_t k = 0; k < b->n_keys; k++) {
        if (b->task->key_is_uuid) fl_eval_name_uuid(d, b->key[k]);
        else fl_eval_name_key(d, b->key[k]);
        for (int32_t v = 0; v < b->n_values; v++) {
            int32_t i = k * b->n_values + v;
            draw_value(b, b->value[i]);
            print_needle(b, b->needle[i], b->key[k], b->value[i]);
            b->fact[i] = i < n_facts ? first + i : -1; /* the first keys are the ones asked for */
        }
    }
    /* One key's values are asked for in one breath: number them as they will stand in the text. */
    if (b->n_keys == 1)
        for (int32_t i = 0; i < b->n_needles; i++) b->order[i] = i;
}

static void put_needle(niah_build *b, int32_t place) {
    int32_t i = b->order[place];
    fl_eval_draft_mark(b->d, b->fact[i]);
    fl_eval_text_put(&b->d->text, b->needle[i]);
}

static int ascending(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* All blanks one space, cut between words. */
static void flatten(fl_eval_text *body) {
    size_t n = 0;
    for (size_t i = 0; i < body->n; i++) {
        char c = body->bytes[i];
        if (!is_blank(c)) body->bytes[n++] = c;
        else if (n > 0 && body->bytes[n - 1] != ' ') body->bytes[n++] = ' ';
    }
    while (n > 0 && body->bytes[n - 1] != ' ') n--;
    while (n > 0 && body->bytes[n - 1] == ' ') n--;
    body->n = n;
    body->bytes[n] = '\0';
}

/* Whether a sentence begins at p: a stop, maybe a closing quote, a space, and no lower-case letter. */
static bool sentence_begins(const char *s, size_t p) {
    if (p == 0) return true;
    if (s[p - 1] != ' ' || (s[p] >= 'a' && s[p] <= 'z')) return false;
    size_t e = p - 1;
    while (e > 0 && ((unsigned char)s[e - 1] >= 0x80 || s[e - 1] == '"' || s[e - 1] == ')')) e--;
    return e > 0 && (s[e - 1] == '.' || s[e - 1] == '!' || s[e - 1] == '?');
}

/* Needles between the sentences of running text, at depths drawn from 40 even ones. */
static void put_essay(niah_build *b) {
    enum { DEPTHS = 40 };
    fl_eval_draft *d = b->d;
    fl_eval_text body = {0};
    int32_t depth[DEPTHS];
    size_t place[NEEDLES_MAX], n_sentences = 0, sentence = 0, done = 0;
    fl_eval_body_take(d, d->size_bytes, &body);
    if (body.failed) {
        d->failed = true;
        return;
    }
    flatten(&body);
    for (size_t p = 0; p < body.n; p++) n_sentences += sentence_begins(body.bytes, p);
    fl_eval_random_order(&d->random, depth, DEPTHS);
    for (int32_t i = 0; i < b->n_needles; i++) {
        int32_t percent = (200 * depth[i] + DEPTHS - 1) / (2 * (DEPTHS - 1)); /* rounded */
        place[i] = n_sentences * (size_t)percent / 100;
    }
    qsort(place, (size_t)b->n_needles, sizeof *place, ascending);
    int32_t next = 0;
    for (size_t p = 0; p < body.n && next < b->n_needles; p++) {
        if (!sentence_begins(body.bytes, p)) continue;
        for (; next < b->n_needles && place[next] == sentence; next++) {
            fl_eval_text_add(&d->text, body.bytes + done, p - done);
            done = p;
            put_needle(b, next);
            fl_eval_text_put(&d->text, " ");
        }
        sentence++;
    }
    fl_eval_text_add(&d->text, body.bytes + done, body.n - done);
    for (; next < b->n_needles; next++) {
        fl_eval_text_put(&d->text, " ");
        put_needle(b, next);
    }
    fl_eval_text_free(&body);
}

/* Lines of distractors, all with keys of their own. Word keys: every adjective-noun pair once, in the order of a
 * stride that meets them all. */
typedef struct line_source {
    int64_t n_pairs, stride, at;
    int64_t asked; /* the pair asked for */
    int64_t near;  /* near keys so far: same adjective, next nouns */
    double needle_share, near_share;
} line_source;

static void source_init(niah_build *b, line_source *s) {
    fl_eval_random *r = &b->d->random;
    double difficulty = b->d->spec->difficulty;
    *s = (line_source){.n_pairs = (int64_t)fl_eval_n_adjectives * fl_eval_n_nouns};
    s->needle_share = difficulty < 0.5 ? 2 * difficulty : 1;
    s->near_share = difficulty > 0.5 ? difficulty - 0.5 : 0;
    s->stride = fl_eval_random_stride(r, s->n_pairs);
    s->asked = s->at = fl_eval_random_below(r, s->n_pairs);
}

static void print_pair(char *key, int64_t pair) {
    snprintf(key, FL_EVAL_NAME_BYTES, "%s-%s", fl_eval_adjectives[pair / fl_eval_n_nouns],
             fl_eval_nouns[pair % fl_eval_n_nouns]);
}

static void put_distractor(niah_build *b, line_source *s) {
    char key[FL_EVAL_NAME_BYTES], value[FL_EVAL_NAME_BYTES], needle[FL_EVAL_SENTENCE_BYTES];
    fl_eval_draft *d = b->d;
    if (fl_eval_random_unit(&d->random) >= s->needle_share) {
        fl_eval_text_put(&d->text, fl_eval_noise);
        return;
    }
    bool is_near = fl_eval_random_unit(&d->random) < s->near_share;
    if (b->task->key_is_uuid) {
        fl_eval_name_uuid(d, key);
        if (is_near) memcpy(key, b->key[0], 13); /* two groups of the key's five */
    } else if (is_near && s->near < fl_eval_n_nouns - 1) {
        int64_t noun = (s->asked + ++s->near) % fl_eval_n_nouns;
        print_pair(key, s->asked / fl_eval_n_nouns * fl_eval_n_nouns + noun);
    } else {
        do s->at = (s->at + s->stride) % s->n_pairs;
        while (s->at / fl_eval_n_nouns == s->asked / fl_eval_n_nouns);
        print_pair(key, s->at);
    }
    if (b->task->value_is_uuid) fl_eval_name_uuid(d, value);
    else fl_eval_name_number(d, value, 7);
    print_needle(b, needle, key, value);
    fl_eval_text_put(&d->text, needle);
}

/* Lines of noise or of distractors with the needles among them. */
static fl_err put_lines(niah_build *b) {
    fl_eval_draft *d = b->d;
    bool noise = b->task->hay == HAY_NOISE;
    size_t line_bytes = noise ? sizeof fl_eval_noise : b->task->key_is_uuid ? 112 : 62; /* about */
    size_t n_lines = d->size_bytes / line_bytes + 1, place[NEEDLES_MAX];
    line_source source;
    source_init(b, &source);
    if ((int64_t)n_lines > source.n_pairs - 2 * fl_eval_n_nouns && !noise && !b->task->key_is_uuid)
        return FL_FAIL(FL_ERR_INVALID, "evaluation task %s: %zu keys, there are %lld", b->task->name, n_lines,
                       (long long)source.n_pairs);
    if (!noise && !b->task->key_is_uuid) {
        print_pair(b->key[0], source.asked);
        print_needle(b, b->needle[0], b->key[0], b->value[0]);
    }
    for (int32_t i = 0; i < b->n_needles; i++)
        place[i] = (size_t)fl_eval_random_below(&d->random, (int64_t)n_lines);
    qsort(place, (size_t)b->n_needles, sizeof *place, ascending);
    int32_t next = 0;
    for (size_t line = 0; line < n_lines; line++) {
        for (; next < b->n_needles && place[next] == line; next++) {
            put_needle(b, next);
            fl_eval_text_put(&d->text, "\n");
        }
        if (noise) fl_eval_text_put(&d->text, fl_eval_noise);
        else put_distractor(b, &source);
        if (line + 1 < n_lines) fl_eval_text_put(&d->text, "\n");
    }
    return FL_ERR_OK;
}

static void ask(niah_build *b) {
    fl_eval_text keys = {0}, text = {0}, head = {0}, reference = {0};
    const char *values[NEEDLES_MAX];
    const char *type = b->task->value_is_uuid ? "uuid" : "number";
    int32_t n = b->n_queries * b->n_values;
    for (int32_t i = 0; i < n; i++) values[i] = b->value[i];
    for (int32_t i = 0; i < b->n_queries; i++)
        fl_eval_text_print(&keys, "%s%s", i == 0 ? "" : i + 1 < b->n_queries ? ", " : ", and ", b->key[i]);
    for (int32_t i = 0; i < n; i++)
        fl_eval_text_print(&reference, "%s%s", i == 0 ? " " : i + 1 < n ? ", " : ", and ", values[i]);
    fl_eval_text_put(&reference, ".");
    if (keys.failed) {
        b->d->failed = true;
    } else {
        fl_eval_text_print(&text, "\nWhat %s the special magic %s%s for %s mentioned in the provided text?",
                           n == 1 ? "is" : "are all", type, n == 1 ? "" : "s", keys.bytes);
        fl_eval_text_print(&head, "The special magic %s%s for %s mentioned in the provided text %s", type,
                           n == 1 ? "" : "s", keys.bytes, n == 1 ? "is" : "are");
    }
    if (text.failed || head.failed || reference.failed) b->d->failed = true;
    if (!b->d->failed)
        fl_eval_draft_ask(b->d, &(fl_eval_ask){.task = b->task->name,
                                               .text = text.bytes,
                                               .head = head.bytes,
                                               .reference = reference.bytes,
                                               .values = values,
                                               .n_values = n,
                                               .max_tokens = N_TOKENS_ANSWER,
                                               .fact_count = n});
    fl_eval_text_free(&keys);
    fl_eval_text_free(&text);
    fl_eval_text_free(&head);
    fl_eval_text_free(&reference);
}

static fl_err build(fl_eval_draft *d) {
    const struct niah_task *task = &NIAH[d->variant];
    double difficulty = d->spec->difficulty;
    niah_build b = {.d = d,
                    .task = task,
                    .n_keys = task->n_keys,
                    .n_values = task->n_values,
                    .n_queries = task->n_queries};
    if (task->hay != HAY_NEEDLES && task->n_keys * task->n_values == 1 && difficulty > 0.5)
        b.n_keys += (int32_t)((difficulty - 0.5) * 16);
    if (task->n_values > 1) b.n_values = 2 + (int32_t)(4 * difficulty);
    if (task->n_queries > 1) b.n_keys = b.n_queries = 2 + (int32_t)(4 * difficulty);
    else if (task->n_keys > 1) b.n_keys = 1 + (int32_t)(6 * difficulty);
    draw_needles(&b);
    const char *type = task->value_is_uuid ? "uuid" : "number";
    bool one = b.n_queries * b.n_values == 1;
    fl_eval_text_print(
        &d->text,
        "%s special magic %s%s %s hidden within the following text. Make sure to memorize it. I will "
        "quiz you about the %s%s afterwards.\n",
        one ? "A" : "Some", type, one ? "" : "s", one ? "is" : "are", type, one ? "" : "s");
    if (task->hay == HAY_ESSAY) put_essay(&b);
    else FL_TRY(put_lines(&b));
    ask(&b);
    return FL_ERR_OK;
}

#define FAMILY(index, task_name, is_items)                                                                   \
    { .name = (task_name), .tokens_min = 512, .items = (is_items), .variant = (index), .build = build }
const fl_eval_family fl_eval_family_niah[8] = {
    FAMILY(0, "ruler_niah_single_1", true),    FAMILY(1, "ruler_niah_single_2", false),
    FAMILY(2, "ruler_niah_single_3", false),   FAMILY(3, "ruler_niah_multikey_1", false),
    FAMILY(4, "ruler_niah_multikey_2", true),  FAMILY(5, "ruler_niah_multikey_3", true),
    FAMILY(6, "ruler_niah_multivalue", false), FAMILY(7, "ruler_niah_multiquery", false),
};
