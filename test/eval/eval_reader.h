/* A reader of the evaluation's documents that knows only their text: it finds what a question asks for and compares it
 * with what the question says is right. Any disagreement fails the running cmocka test. */
#ifndef TEST_EVAL_READER_H
#define TEST_EVAL_READER_H

#include "eval/eval_document.h"

typedef struct eval_reading {
    size_t first,
        last; /* byte of the first and the last fact in the text; last = its end where there is one fact only */
    int n_facts; /* 0 = the answer has no place */
} eval_reading;

eval_reading eval_read(const fl_eval_document *document, const fl_eval_question *question);

#endif
