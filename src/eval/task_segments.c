/* "segments": what an attention pattern that cuts the document into segments can break. Facts that belong together lie
 * in different segments, or right beside a segment's edge; all places are by token.
 *
 * x_chain: a chain of variables over 1..4 segment boundaries, one link a segment. x_join: a two-hop reference, the hops
 * one segment apart or more. x_overwrite: one key gets values in several segments, the last one is asked for.
 * x_ordinal: the same note number several times, asked for one of them by its order. x_edge: a needle that ends just
 * before a segment's edge, one that begins just behind it (at the next punctuation: mostly within 64 tokens), or a
 * two-hop reference across it.
 *
 * Difficulty d: 4 d chains and references that nobody asks for, 2 + 2 d values of an overwritten key. */
#include <stdio.h>
#include <string.h>

#include "eval/eval_draft.h"

/* A needle takes 20 to 30 tokens; places are known to a few. */
enum { BEFORE_TOKENS = 40, BEHIND_TOKENS = 12, END_TOKENS = 160 };

typedef struct segment_build {
    fl_eval_draft *d;
    fl_eval_text body;
    fl_eval_needles needles;
    int64_t segment;    /* tokens */
    int64_t n_tokens;   /* of the document, about */
    int32_t n_segments; /* the last may be shorter, but not below a quarter */
} segment_build;

static void hide(segment_build *b, int32_t fact, const char *text, int64_t at_token) {
    fl_eval_needle *needle = fl_eval_needle_add(&b->needles, fact);
    if (!needle) return;
    snprintf(needle->text, sizeof needle->text, "%s", text);
    needle->at_token = at_token;
}

/* Before (side -1) or behind (side 1) the edge. */
static void hide_beside(segment_build *b, int32_t fact, const char *text, int64_t edge, int32_t side) {
    hide(b, fact, text, side < 0 ? edge - BEFORE_TOKENS : edge + BEHIND_TOKENS);
    if (!b->needles.failed) b->needles.items[b->needles.n - 1].side = side;
}

/* A place inside a segment, a quarter of it away from its edges: the next sentence break is in it too. */
static int64_t draw_place(segment_build *b, int64_t segment) {
    int64_t begin = segment * b->segment, end = begin + b->segment;
    if (end > b->n_tokens) end = b->n_tokens;
    int64_t margin = (end - begin) / 4;
    return fl_eval_random_range(&b->d->random, begin + margin, end - margin);
}

static void ask(segment_build *b, fl_eval_ask a) {
    char text[FL_EVAL_SENTENCE_BYTES + 8];
    snprintf(text, sizeof text, ".\n\n%s", a.text);
    a.text = text;
    fl_eval_draft_ask(b->d, &a);
}

static void add_chain(segment_build *b, int32_t crossings, bool asked) {
    fl_eval_draft *d = b->d;
    fl_eval_chain chain;
    fl_eval_chain_make(d, crossings + 1, &chain);
    int32_t fact = asked ? fl_eval_draft_facts(d, crossings + 1) : -1;
    int64_t segment = fl_eval_random_below(&d->random, b->n_segments - crossings);
    for (int32_t i = 0; i <= crossings; i++)
        hide(b, asked ? fact + i : -1, chain.link[i], draw_place(b, segment + i));
    if (asked)
        ask(b, (fl_eval_ask){.task = "x_chain",
                             .text = chain.question,
                             .reference = chain.answer,
                             .fact_first = fact,
                             .fact_count = crossings + 1});
}

static void add_chains(segment_build *b) {
    enum { CROSSINGS_MAX = 4 };
    int32_t most = b->n_segments - 1 < CROSSINGS_MAX ? b->n_segments - 1 : CROSSINGS_MAX;
    for (int32_t crossings = 1; crossings <= most; crossings++) add_chain(b, crossings, true);
    for (int32_t i = 0; i < (int32_t)(4 * b->d->spec->difficulty); i++) add_chain(b, 1, false);
}

/* Joins at distances from 1 to n_segments - 1, either hop first. */
static void add_joins(segment_build *b) {
    enum { JOINS = 4 };
    fl_eval_draft *d = b->d;
    int32_t kind[FL_EVAL_XREF_KINDS], n = JOINS + (int32_t)(4 * d->spec->difficulty);
    fl_eval_random_order(&d->random, kind, FL_EVAL_XREF_KINDS);
    for (int32_t i = 0; i < n; i++) {
        fl_eval_xref x;
        fl_eval_xref_make(d, kind[i % FL_EVAL_XREF_KINDS], &x);
        int64_t apart = 1 + (i % JOINS) * (b->n_segments - 2) / (JOINS - 1);
        int64_t left = fl_eval_random_below(&d->random, b->n_segments - apart);
        bool back = fl_eval_random_below(&d->random, 2) == 1;
        int32_t fact = i < JOINS ? fl_eval_draft_facts(d, 2) : -1;
        hide(b, fact, x.first, draw_place(b, back ? left + apart : left));
        hide(b, fact < 0 ? -1 : fact + 1, x.second, draw_place(b, back ? left : left + apart));
        if (fact >= 0)
            ask(b, (fl_eval_ask){.task = "x_join",
                                 .text = x.question,
                                 .reference = x.answer,
                                 .fact_first = fact,
                                 .fact_count = 2});
    }
}

/* Places in n different segments if there are so many, else in segments in order; ascending, far enough apart that
 * the sentences cannot change places. */
static void draw_places(segment_build *b, int64_t *place, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int64_t begin = i * b->n_tokens / n, end = (i + 1) * b->n_tokens / n, margin = (end - begin) / 4;
        place[i] = fl_eval_random_range(&b->d->random, begin + margin, end - margin);
    }
}

/* Keys say the order, since spark-66m knows no question about time: "first K", "second K", "latest K". */
static void add_overwrites(segment_build *b) {
    enum { KEYS = 2, VALUES_MAX = 4 };
    static const char *const order[VALUES_MAX - 1] = {"first", "second", "third"};
    fl_eval_draft *d = b->d;
    int32_t n = 2 + (int32_t)(2 * d->spec->difficulty);
    for (int32_t k = 0; k < KEYS; k++) {
        char key[FL_EVAL_NAME_BYTES], value[FL_EVAL_NAME_BYTES], ordered[2 * FL_EVAL_NAME_BYTES];
        int64_t place[VALUES_MAX];
        fl_eval_magic magic;
        int32_t fact = fl_eval_draft_facts(d, n);
        fl_eval_name_key(d, key);
        draw_places(b, place, n);
        for (int32_t i = 0; i < n; i++) {
            do fl_eval_name_number(d, value, 7);
            while (!fl_eval_draft_new(d, value));
            snprintf(ordered, sizeof ordered, "%s %s", i + 1 < n ? order[i] : "latest", key);
            fl_eval_magic_make(ordered, value, &magic);
            hide(b, fact + i, magic.needle, place[i]);
        }
        ask(b, (fl_eval_ask){.task = "x_overwrite",
                             .text = magic.question,
                             .reference = magic.answer,
                             .fact_first = fact,
                             .fact_count = n});
    }
}

static void add_ordinals(segment_build *b) {
    enum { NOTES = 3, NUMBERS = 2 };
    static const char *const order[NOTES] = {"first", "second", "third"};
    fl_eval_draft *d = b->d;
    size_t at = 0;
    for (int32_t k = 0; k < NUMBERS; k++) {
        char number[FL_EVAL_NAME_BYTES], question[FL_EVAL_SENTENCE_BYTES];
        fl_eval_sentence sentence[NOTES]; /* of the running text */
        int64_t place[NOTES];
        for (int32_t i = 0; i < NOTES; i++) {
            if (!fl_eval_sentence_find(d, &b->body, &at, &sentence[i])) return;
            at += strlen(sentence[i].text);
        }
        do fl_eval_name_number(d, number, 4);
        while (!fl_eval_draft_new(d, number));
        draw_places(b, place, NOTES);
        int32_t fact = fl_eval_draft_facts(d, NOTES),
                asked = (int32_t)fl_eval_random_below(&d->random, NOTES);
        for (int32_t i = 0; i < NOTES; i++) {
            char text[FL_EVAL_SENTENCE_BYTES];
            snprintf(text, sizeof text, "Note %.16s: %.280s", number, sentence[i].text);
            hide(b, fact + i, text, place[i]);
            if (i != asked) continue;
            snprintf(question, sizeof question, "Repeat the %s note %.16s exactly.", order[i], number);
            ask(b, (fl_eval_ask){.task = "x_ordinal",
                                 .text = question,
                                 .reference = text,
                                 .fact_first = fact,
                                 .fact_count = NOTES});
        }
    }
}

/* A needle before, a needle behind, a reference across: in turn over the edges, all three where there are few. */
static void add_edge(segment_build *b, int64_t edge, int32_t kind) {
    fl_eval_draft *d = b->d;
    char key[FL_EVAL_NAME_BYTES], value[FL_EVAL_NAME_BYTES];
    int32_t fact = fl_eval_draft_facts(d, kind == 2 ? 2 : 1);
    if (kind == 2) {
        fl_eval_xref x;
        fl_eval_xref_make(d, (int32_t)fl_eval_random_below(&d->random, FL_EVAL_XREF_KINDS), &x);
        hide_beside(b, fact, x.first, edge, -1);
        hide_beside(b, fact + 1, x.second, edge, 1);
        ask(b, (fl_eval_ask){.task = "x_edge",
                             .text = x.question,
                             .reference = x.answer,
                             .fact_first = fact,
                             .fact_count = 2});
        return;
    }
    fl_eval_magic magic;
    fl_eval_name_key(d, key);
    fl_eval_name_number(d, value, 7);
    fl_eval_magic_make(key, value, &magic);
    hide_beside(b, fact, magic.needle, edge, kind == 0 ? -1 : 1);
    ask(b, (fl_eval_ask){.task = "x_edge",
                         .text = magic.question,
                         .reference = magic.answer,
                         .fact_first = fact,
                         .fact_count = 1});
}

static void add_edges(segment_build *b) {
    enum { EDGES_MAX = 9, KINDS = 3 };
    int32_t n = b->n_segments - 1, n_used = n < EDGES_MAX ? n : EDGES_MAX;
    int32_t turn = (int32_t)fl_eval_random_below(&b->d->random, KINDS);
    for (int32_t i = 0; i < n_used; i++) {
        int64_t edge = (1 + (int64_t)i * n / n_used) * b->segment;
        for (int32_t kind = 0; kind < KINDS; kind++)
            if (n_used < KINDS || kind == (i + turn) % KINDS) add_edge(b, edge, kind);
    }
}

static fl_err build(fl_eval_draft *d) {
    segment_build b = {.d = d, .segment = d->spec->segment_tokens};
    fl_err err = FL_ERR_OK;
    int64_t last;
    fl_eval_body_take(d, d->size_bytes, &b.body);
    if (b.body.failed) {
        d->failed = true;
        goto fail;
    }
    b.n_tokens = d->spec->length_tokens - END_TOKENS; /* as it will be when the size fits */
    last = b.n_tokens % b.segment;
    b.n_segments = (int32_t)(b.n_tokens / b.segment) + (last >= b.segment / 4);
    if (b.n_segments < 2) b.n_segments = 2;
    add_chains(&b);
    add_joins(&b);
    add_overwrites(&b);
    add_ordinals(&b);
    add_edges(&b);
    if (!b.needles.failed) FL_TRY_GOTO(fl_eval_needles_place(d, &b.needles, &b.body));
    fl_eval_weave(d, &b.body, &b.needles);
fail:
    fl_eval_needles_free(&b.needles);
    fl_eval_text_free(&b.body);
    return err;
}

/* Sentence ends may be far apart, so that a fact slides over an edge. */
static bool holds(const fl_eval_draft *d) {
    enum { BESIDE_TOKENS_MAX = 96 };
    int64_t segment = d->spec->segment_tokens;
    for (int32_t i = 0; i < d->n_questions; i++) {
        const fl_eval_question *q = &d->questions[i];
        if (strcmp(q->task, "x_chain") == 0 && q->segment_distance != d->fact_count[i] - 1) return false;
        bool apart =
            strcmp(q->task, "x_join") == 0 || (strcmp(q->task, "x_edge") == 0 && d->fact_count[i] == 2);
        if (apart && q->segment_distance < 1) return false;
        int64_t behind = d->fact_token[d->fact_first[i]] % segment; /* an edge */
        if (strcmp(q->task, "x_edge") == 0 && behind > BESIDE_TOKENS_MAX &&
            behind < segment - BESIDE_TOKENS_MAX)
            return false;
    }
    return true;
}

const fl_eval_family fl_eval_family_segments = {
    .name = "segments", .tokens_min = 2048, .build = build, .holds = holds};
