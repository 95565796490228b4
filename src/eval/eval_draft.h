/* A document of the evaluation while it is being made.
 *
 * A family's build function fills a fresh draft: text, places of the facts, questions. fl_eval_document_make calls it a
 * few times with other sizes until the token count fits. Functions without a result remember that memory ran out
 * (`failed`), and the caller of build looks once. */
#ifndef FL_EVAL_EVAL_DRAFT_H
#define FL_EVAL_EVAL_DRAFT_H

#include <stdbool.h>

#include "eval/eval_document.h"
#include "eval/eval_random.h"

enum {
    FL_EVAL_FACTS_MAX = 256,
    FL_EVAL_QUESTIONS_MAX = 64,
    FL_EVAL_VALUES_MAX = 16,
    FL_EVAL_NAME_BYTES = 64,      /* a key, name or value with its NUL */
    FL_EVAL_SENTENCE_BYTES = 320, /* an inserted sentence or a question's part */
    FL_EVAL_SEGMENT_TOKENS_MIN = 512,
    FL_EVAL_TEMPLATE_TOKENS = 16, /* room for the chat template */
    FL_EVAL_SPARE_TOKENS = 4,     /* the parts of a prompt may tokenise differently put together */
};

/* Growing text. Zeroed = empty. */
typedef struct fl_eval_text {
    char *bytes; /* NUL behind n, NULL while empty */
    size_t n, capacity;
    bool failed; /* out of memory: further additions do nothing */
} fl_eval_text;

void fl_eval_text_add(fl_eval_text *t, const char *bytes, size_t n);
void fl_eval_text_put(fl_eval_text *t, const char *string);
void fl_eval_text_print(fl_eval_text *t, const char *format, ...) FL_PRINTF(2, 3);
void fl_eval_text_free(fl_eval_text *t);

typedef struct fl_eval_draft {
    const fl_eval_spec *spec;
    fl_eval_random random;
    size_t size_bytes;                     /* in: how long the text is to be, about */
    int32_t variant;                       /* in: the family's */
    fl_eval_text text;                     /* out: the document */
    bool failed;                           /* out of memory while asking */
    size_t fact_byte[FL_EVAL_FACTS_MAX];   /* where each fact begins in `text` */
    int64_t fact_token[FL_EVAL_FACTS_MAX]; /* set when the size fits */
    int32_t n_facts;
    fl_eval_question questions[FL_EVAL_QUESTIONS_MAX]; /* owned; depth and distance are filled in later */
    int32_t fact_first[FL_EVAL_QUESTIONS_MAX], fact_count[FL_EVAL_QUESTIONS_MAX];
    int32_t n_questions;
    uint64_t used[2048]; /* hashes of the names drawn so far */
    int32_t n_used;
} fl_eval_draft;

/* One way to make documents. */
typedef struct fl_eval_family {
    const char *name;
    int64_t tokens_min; /* shorter documents are refused */
    bool items;         /* the text is a list of items: short of the length by up to one item */
    int32_t variant;    /* which of several tasks that build makes */
    fl_err (*build)(fl_eval_draft *d);
    bool (*holds)(
        const fl_eval_draft *d); /* NULL, or whether the facts came to lie as they should: asked when depths
                                              and distances are known; if not, another document is made */
} fl_eval_family;

extern const fl_eval_family fl_eval_family_niah[8]; /* RULER's needles, in eval_document.c's order */
extern const fl_eval_family fl_eval_family_vt, fl_eval_family_cwe, fl_eval_family_fwe;
extern const fl_eval_family fl_eval_family_text; /* no question at all */
extern const fl_eval_family fl_eval_family_spark, fl_eval_family_json, fl_eval_family_segments,
    fl_eval_family_repository;

/* A question to add; strings are copied. */
typedef struct fl_eval_ask {
    const char *task, *text, *head, *reference;
    const char *const *values; /* [n_values]; NULL: exact */
    int32_t n_values;
    int32_t max_tokens;             /* 0 = the reference's length and a little more */
    int32_t fact_first, fact_count; /* what the answer needs: consecutive facts; 0 = no place */
} fl_eval_ask;

void fl_eval_draft_ask(fl_eval_draft *d, const fl_eval_ask *ask);

/* Reserves the numbers of n facts and returns the first. Their places are set by whoever writes them. */
int32_t fl_eval_draft_facts(fl_eval_draft *d, int32_t n);

/* Says that a fact begins at the text's present end. */
void fl_eval_draft_mark(fl_eval_draft *d, int32_t fact);

void fl_eval_question_free(fl_eval_question *q);

/* Frees what the draft holds. */
void fl_eval_draft_free(fl_eval_draft *d);

/* Whether this name is new; remembers it. */
bool fl_eval_draft_new(fl_eval_draft *d, const char *name);

/* ---- names: NAME[FL_EVAL_NAME_BYTES] is filled --------------------------------------------------------------- */

/* adjective-noun, new in this draft. */
void fl_eval_name_key(fl_eval_draft *d, char *name);
/* 3..5 capitals, new in this draft. */
void fl_eval_name_variable(fl_eval_draft *d, char *name, int32_t letters);
/* n digits, the first not 0. */
void fl_eval_name_number(fl_eval_draft *d, char *name, int32_t digits);
/* 36 characters, version 4. */
void fl_eval_name_uuid(fl_eval_draft *d, char *name);
/* A letter, a dash and a number, new in this draft. */
void fl_eval_name_code(fl_eval_draft *d, char *name);

/* RULER's filler: five short sentences, no line end. */
extern const char fl_eval_noise[];

/* ---- running text and what is hidden in it ------------------------------------------------------------------- */

/* A slice of the haystack from a drawn line start on, about n_bytes long (cyclic), cut before a full stop. */
void fl_eval_body_take(fl_eval_draft *d, size_t n_bytes, fl_eval_text *body);

/* A sentence inserted into running text, or (text "") a place in it that is a fact itself. */
typedef struct fl_eval_needle {
    char text[FL_EVAL_SENTENCE_BYTES];
    size_t at_byte;   /* of the body, where it is wanted */
    int64_t at_token; /* of the finished document, for fl_eval_needles_place */
    int32_t side;     /* -1: there or before, 1: there or behind, 0: whichever is nearer */
    int32_t fact;     /* -1 = a distractor */
} fl_eval_needle;

typedef struct fl_eval_needles {
    fl_eval_needle *items; /* [capacity], zeroed = none */
    int32_t n, capacity;
    bool failed;
} fl_eval_needles;

/* One more needle, text empty; NULL when out of memory. */
fl_eval_needle *fl_eval_needle_add(fl_eval_needles *needles, int32_t fact);
void fl_eval_needles_free(fl_eval_needles *needles);

/* Spreads needles [first, n) evenly over the body, in random order: each has its own share of the length. */
void fl_eval_needles_spread(fl_eval_draft *d, fl_eval_needles *needles, int32_t first, size_t body_bytes);

/* Sets at_byte from at_token: tokens of the body are counted in small pieces, and room is left for the needles that
 * come before. */
fl_err fl_eval_needles_place(const fl_eval_draft *d, fl_eval_needles *needles, const fl_eval_text *body);

/* Adds the body to the draft's text with every needle at the line start or sentence end next to where it is wanted (on
 * a given side of it: at any punctuation), and marks the facts. Sorts the needles. */
void fl_eval_weave(fl_eval_draft *d, const fl_eval_text *body, fl_eval_needles *needles);

/* The sentence of the body (between two sentence ends, on one line, 40..200 ASCII bytes, 10 words or more, no quotes)
 * at or behind *at whose beginning of 4..6 words occurs once. FALSE: none. On success *at is its first byte. */
typedef struct fl_eval_sentence {
    char text[FL_EVAL_SENTENCE_BYTES], beginning[FL_EVAL_SENTENCE_BYTES];
} fl_eval_sentence;
bool fl_eval_sentence_find(fl_eval_draft *d, const fl_eval_text *body, size_t *at, fl_eval_sentence *out);

/* ---- needles in the phrasings spark-66m was trained on, used by several families --------------------------------- */

typedef struct fl_eval_xref {
    char first[FL_EVAL_SENTENCE_BYTES], second[FL_EVAL_SENTENCE_BYTES];
    char question[FL_EVAL_SENTENCE_BYTES], answer[4 * FL_EVAL_SENTENCE_BYTES];
} fl_eval_xref;

enum { FL_EVAL_XREF_KINDS = 6, FL_EVAL_CHAIN_MAX = 8 };

/* A two-hop cross reference of one of the six kinds. */
void fl_eval_xref_make(fl_eval_draft *d, int32_t kind, fl_eval_xref *out);

/* A chain of n variables: link[0] gives the number, link[i] the variable before. */
typedef struct fl_eval_chain {
    char link[FL_EVAL_CHAIN_MAX][FL_EVAL_SENTENCE_BYTES];
    char question[FL_EVAL_SENTENCE_BYTES], answer[4 * FL_EVAL_SENTENCE_BYTES];
} fl_eval_chain;
void fl_eval_chain_make(fl_eval_draft *d, int32_t n, fl_eval_chain *out);

/* "One of the special magic numbers for KEY is: VALUE." with question and answer. */
typedef struct fl_eval_magic {
    char needle[FL_EVAL_SENTENCE_BYTES], question[FL_EVAL_SENTENCE_BYTES], answer[FL_EVAL_SENTENCE_BYTES];
} fl_eval_magic;
void fl_eval_magic_make(const char *key, const char *value, fl_eval_magic *out);

#endif
