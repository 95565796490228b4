/* Words of which keys, names and values are made: lower-case ASCII letters, each once. */
#ifndef FL_EVAL_EVAL_WORDS_H
#define FL_EVAL_EVAL_WORDS_H

#include <stdint.h>

extern const char *const fl_eval_adjectives[];
extern const int32_t fl_eval_n_adjectives;
extern const char *const fl_eval_nouns[];
extern const int32_t fl_eval_n_nouns;
extern const char *const fl_eval_surnames[]; /* capitalised */
extern const int32_t fl_eval_n_surnames;

#endif
