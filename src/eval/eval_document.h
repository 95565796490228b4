/* Documents of the evaluation with their questions, made by the program: any length, seeded, the same bytes on every
 * machine. One document serves several questions, since its prefill is what costs.
 *
 * A prompt is one user turn: document text, then the question's text (which begins with its own separator). The answer
 * may have a forced beginning. What follows it is scored two ways: `reference` token by token (teacher forced), and the
 * greedy answer by `scoring`. */
#ifndef FL_EVAL_EVAL_DOCUMENT_H
#define FL_EVAL_EVAL_DOCUMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Share of the answer that is right, 0..1. */
typedef enum fl_eval_scoring {
    FL_EVAL_EXACT,    /* the whole answer equals the reference */
    FL_EVAL_FIND_ALL, /* share of the values that occur in the answer, case ignored (RULER's string_match_all) */
    FL_EVAL_FIND_PART, /* 1 if any value occurs (RULER's string_match_part) */
} fl_eval_scoring;

typedef struct fl_eval_question {
    const char *task;  /* static: one of fl_eval_task_names() */
    char *text;        /* follows the document in the same turn; begins with the separator */
    char *answer_head; /* forced beginning of the answer, "" = none */
    char *reference;   /* what a right answer says after answer_head */
    char **values;     /* [n_values] for FL_EVAL_FIND_* */
    int32_t n_values;
    fl_eval_scoring scoring;
    bool running_text;  /* no question: the document goes on with `reference`, without a chat template */
    int32_t max_tokens; /* of the greedy answer */
    double depth;       /* where the (first) fact lies in the document, by tokens, 0..1; -1 = everywhere */
    int32_t
        segment_distance; /* segments between the farthest two facts, or fact and end; 0 = same segment. Segment
                                 i holds tokens [i, i + 1) * segment_tokens of the document */
} fl_eval_question;

typedef struct fl_eval_document {
    char *text; /* [text_bytes], NUL behind */
    size_t text_bytes;
    fl_eval_question *questions; /* [n_questions] */
    int32_t n_questions;
} fl_eval_document;

/* Counts tokens of a text: the engine's tokenizer, or a test's. */
typedef fl_err fl_eval_count_fn(void *context, const char *text, size_t text_bytes, int64_t *n_tokens);

typedef struct fl_eval_spec {
    const char *task; /* a task or a family (fl_eval_task_names, fl_eval_family_names) */
    int64_t
        length_tokens; /* of document, question, answer (max_tokens) and 16 for the chat template: at most this, short
                          of it by < 2%, or by less than an item where the text is a list of items */
    int32_t segment_tokens; /* what "segment" means for the cross-segment tasks and for segment_distance */
    uint64_t seed;          /* and */
    int32_t index; /* the how-manieth document of this task and length: other texts, needles and depths */
    double
        difficulty; /* 0..1, 0.5 is the task's own definition; more = more distractors, hops, closer keys */
    const char
        *haystack; /* [haystack_bytes] running text to hide things in; used from a drawn offset, cyclically */
    size_t haystack_bytes;
    fl_eval_count_fn *count;
    void *count_context;
} fl_eval_spec;

/* The same bytes from the same spec on every machine (as long as `count` counts the same). Tokenises the text two to
 * four times. FL_ERR_INVALID: no such task, or too short a length for it (detail names the least). On success the
 * caller closes *out. */
fl_err fl_eval_document_make(const fl_eval_spec *spec, fl_eval_document *out);
void fl_eval_document_close(fl_eval_document *document);

/* The task without questions: it has an NLL but no score, so it never counts in a loss of points. */
#define FL_EVAL_TASK_TEXT "text"

/* NULL-terminated. A family is what one document serves:
 *   spark       niah_single niah_multikey xref chain copy_begin: the phrasings spark-66m was trained on
 *   ruler_*     RULER's eleven tasks that can be generated, a family each
 *   json_kv     a family of its own
 *   segments    x_chain x_join x_overwrite x_ordinal x_edge: facts apart by segments, or beside a segment's edge;
 *               needs segment_tokens from 512 to half the length
 *   repository  repo_xref repo_chain repo_constant: facts in different files of a made-up repository
 * spec.task may be a task or a family; given one task of a family, the document is the family's, with the questions of
 * that task only. fl_eval_family_of says which family a task (or family) belongs to, NULL = none. */
const char *const *fl_eval_task_names(void);
const char *const *fl_eval_family_names(void);
const char *fl_eval_family_of(const char *task);

/* Score of an answer (without answer_head), 0..1. Blanks around an exact answer do not count. */
double fl_eval_score(const fl_eval_question *question, const char *answer, size_t answer_bytes);

#endif
