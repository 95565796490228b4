/* The family "spark": one document of running text with everything hidden in it, asked about in the phrasings that
 * spark-66m was trained on. Each answer quotes what it rests on and is right as a whole or not at all.
 *
 * Difficulty d: 8 d needles with keys like those asked for and 6 d references that nobody asks for, chains of up to
 * 2 + 4 d variables (4 is what the model was trained on); above 0.5 up to a fifth of the text are such distractors. */
#include <stdio.h>
#include <string.h>

#include "eval/eval_draft.h"
#include "eval/eval_words.h"

typedef struct spark_build {
    fl_eval_draft *d;
    fl_eval_text body;
    fl_eval_needles needles;
    int32_t share; /* questions of each kind are divided by this: short documents hold fewer */
} spark_build;

static void hide(spark_build *b, int32_t fact, const char *text) {
    fl_eval_needle *needle = fl_eval_needle_add(&b->needles, fact);
    if (needle) snprintf(needle->text, sizeof needle->text, "%s", text);
}

/* The document ends before a full stop; the question's text supplies it. */
static void ask(spark_build *b, fl_eval_ask a) {
    char text[FL_EVAL_SENTENCE_BYTES + 8];
    snprintf(text, sizeof text, ".\n\n%s", a.text);
    a.text = text;
    fl_eval_draft_ask(b->d, &a);
}

static void add_magic(spark_build *b, const char *task, const char *key, bool asked) {
    char value[FL_EVAL_NAME_BYTES];
    fl_eval_magic magic;
    fl_eval_name_number(b->d, value, 7);
    fl_eval_magic_make(key, value, &magic);
    int32_t fact = asked ? fl_eval_draft_facts(b->d, 1) : -1;
    hide(b, fact, magic.needle);
    if (asked)
        ask(b, (fl_eval_ask){.task = task,
                             .text = magic.question,
                             .reference = magic.answer,
                             .fact_first = fact,
                             .fact_count = 1});
}

/* How many more distractors a hard document holds: above difficulty 0.5 up to a tenth of its length. */
static int32_t crowd(const spark_build *b, int32_t tokens_each) {
    double difficulty = b->d->spec->difficulty, tokens = (double)b->d->spec->length_tokens;
    return difficulty > 0.5 ? (int32_t)((difficulty - 0.5) * 0.2 * tokens / tokens_each) : 0;
}

/* Keys that share no word with another, then keys from a grid of adjectives by nouns that is just large enough. */
static void add_needles(spark_build *b) {
    enum { SINGLE = 2, MULTI = 6, GRID_MIN = 4, GRID_MAX = 15, TOKENS = 26 };
    fl_eval_draft *d = b->d;
    char key[FL_EVAL_NAME_BYTES];
    int32_t first = b->needles.n, order[GRID_MAX * GRID_MAX];
    for (int32_t i = 0; i < SINGLE; i++) {
        fl_eval_name_key(d, key);
        add_magic(b, "niah_single", key, true);
    }
    fl_eval_needles_spread(d, &b->needles, first, b->body.n);
    first = b->needles.n;
    int64_t adjective = fl_eval_random_below(&d->random, fl_eval_n_adjectives);
    int64_t noun = fl_eval_random_below(&d->random, fl_eval_n_nouns);
    int32_t n_asked = MULTI / b->share, grid = GRID_MIN;
    int32_t n = n_asked + (int32_t)(d->spec->difficulty * 8) / b->share + crowd(b, TOKENS);
    if (n > GRID_MAX * GRID_MAX) n = GRID_MAX * GRID_MAX;
    while (grid * grid < n) grid++;
    fl_eval_random_order(&d->random, order, grid * grid);
    for (int32_t i = 0; i < n; i++) {
        /* 41 and 59 apart: not neighbours in the alphabet */
        snprintf(key, sizeof key, "%s-%s",
                 fl_eval_adjectives[(adjective + 41 * (order[i] / grid)) % fl_eval_n_adjectives],
                 fl_eval_nouns[(noun + 59 * (order[i] % grid)) % fl_eval_n_nouns]);
        fl_eval_draft_new(d, key);
        add_magic(b, "niah_multikey", key, i < n_asked);
        if (i + 1 == n_asked) {
            fl_eval_needles_spread(d, &b->needles, first, b->body.n);
            first = b->needles.n;
        }
    }
    fl_eval_needles_spread(d, &b->needles, first, b->body.n);
}

static void add_xrefs(spark_build *b) {
    fl_eval_draft *d = b->d;
    enum { TOKENS = 44, OTHERS_MAX = 100 };
    int32_t order[FL_EVAL_XREF_KINDS], n_asked = FL_EVAL_XREF_KINDS / b->share;
    int32_t n_others = (int32_t)(d->spec->difficulty * 6) / b->share + crowd(b, TOKENS), first = b->needles.n;
    int32_t n = n_asked + (n_others < OTHERS_MAX ? n_others : OTHERS_MAX);
    fl_eval_xref x;
    fl_eval_random_order(&d->random, order, FL_EVAL_XREF_KINDS);
    for (int32_t i = 0; i < n; i++) {
        fl_eval_xref_make(d, order[i % FL_EVAL_XREF_KINDS], &x);
        int32_t fact = i < n_asked ? fl_eval_draft_facts(d, 2) : -1;
        hide(b, fact, x.first);
        hide(b, fact < 0 ? -1 : fact + 1, x.second);
        if (i < n_asked)
            ask(b, (fl_eval_ask){.task = "xref",
                                 .text = x.question,
                                 .reference = x.answer,
                                 .fact_first = fact,
                                 .fact_count = 2});
        if (i + 1 == n_asked) {
            fl_eval_needles_spread(d, &b->needles, first, b->body.n);
            first = b->needles.n;
        }
    }
    fl_eval_needles_spread(d, &b->needles, first, b->body.n);
}

static void add_chains(spark_build *b) {
    enum { CHAINS = 4 };
    fl_eval_draft *d = b->d;
    int32_t first = b->needles.n;
    for (int32_t i = 0; i < CHAINS / b->share; i++) {
        fl_eval_chain chain;
        int32_t n = 2 + (int32_t)fl_eval_random_below(&d->random, 1 + (int64_t)(4 * d->spec->difficulty));
        fl_eval_chain_make(d, n, &chain);
        int32_t fact = fl_eval_draft_facts(d, n);
        for (int32_t k = 0; k < n; k++) hide(b, fact + k, chain.link[k]);
        ask(b, (fl_eval_ask){.task = "chain",
                             .text = chain.question,
                             .reference = chain.answer,
                             .fact_first = fact,
                             .fact_count = n});
    }
    fl_eval_needles_spread(d, &b->needles, first, b->body.n);
}

/* Sentences of the running text itself, each from its own part of it. */
static void add_copies(spark_build *b) {
    enum { COPIES = 5 };
    fl_eval_draft *d = b->d;
    size_t behind = 0;
    int32_t n = COPIES / b->share;
    for (int32_t i = 0; i < n; i++) {
        fl_eval_sentence sentence;
        char question[FL_EVAL_SENTENCE_BYTES];
        size_t at =
            (size_t)(((double)i + 0.5 * fl_eval_random_unit(&d->random)) / (double)n * (double)b->body.n);
        if (at < behind) at = behind;
        if (!fl_eval_sentence_find(d, &b->body, &at, &sentence)) {
            at = behind; /* none from there to the end */
            if (!fl_eval_sentence_find(d, &b->body, &at, &sentence)) break;
        }
        behind = at + strlen(sentence.text);
        snprintf(question, sizeof question, "Repeat the sentence that begins with: %.200s",
                 sentence.beginning);
        int32_t fact = fl_eval_draft_facts(d, 1);
        fl_eval_needle *place = fl_eval_needle_add(&b->needles, fact);
        if (place) place->at_byte = at;
        ask(b, (fl_eval_ask){.task = "copy_begin",
                             .text = question,
                             .reference = sentence.text,
                             .fact_first = fact,
                             .fact_count = 1});
    }
}

static fl_err build(fl_eval_draft *d) {
    enum { FULL_TOKENS = 3072 };
    spark_build b = {.d = d, .share = d->spec->length_tokens < FULL_TOKENS ? 2 : 1};
    fl_eval_body_take(d, d->size_bytes, &b.body);
    if (!b.body.failed) {
        add_needles(&b);
        add_xrefs(&b);
        add_chains(&b);
        add_copies(&b);
    }
    fl_eval_weave(d, &b.body, &b.needles);
    fl_eval_needles_free(&b.needles);
    fl_eval_text_free(&b.body);
    return FL_ERR_OK;
}

const fl_eval_family fl_eval_family_spark = {.name = "spark", .tokens_min = 1536, .build = build};
