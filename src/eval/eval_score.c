/* Scores of answers. ASCII case only: keys and values of the evaluation are ASCII. */
#include <stdbool.h>
#include <string.h>

#include "eval/eval_document.h"

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool contains(const char *text, size_t n, const char *what) {
    size_t n_what = strlen(what);
    for (size_t i = 0; i + n_what <= n; i++) {
        size_t k = 0;
        while (k < n_what && lower(text[i + k]) == lower(what[k])) k++;
        if (k == n_what) return true;
    }
    return false;
}

/* Equal but for blanks around. */
static bool equals(const char *text, size_t n, const char *what) {
    size_t n_what = strlen(what);
    while (n > 0 && is_space(text[n - 1])) n--;
    while (n > 0 && is_space(*text)) text++, n--;
    while (n_what > 0 && is_space(what[n_what - 1])) n_what--;
    while (n_what > 0 && is_space(*what)) what++, n_what--;
    return n == n_what && memcmp(text, what, n) == 0;
}

double fl_eval_score(const fl_eval_question *question, const char *answer, size_t answer_bytes) {
    if (answer_bytes == 0) return 0;
    if (question->scoring == FL_EVAL_EXACT) return equals(answer, answer_bytes, question->reference) ? 1 : 0;
    int32_t found = 0;
    for (int32_t i = 0; i < question->n_values; i++)
        found += contains(answer, answer_bytes, question->values[i]);
    if (question->scoring == FL_EVAL_FIND_PART) return found > 0 ? 1 : 0;
    return question->n_values > 0 ? (double)found / (double)question->n_values : 0;
}
