/* RULER's variable tracking, common words and frequent words (arXiv 2404.06654; the published configuration), prompts
 * word for word.
 *
 * Difficulty 0.5 is RULER. Variable tracking: 2 + 4 d hops, above 0.5 up to 4 further chains. Common words: the common
 * ones 40 - 20 d times, the others 3 times (below 4K tokens, as in RULER, a fifth and once). Frequent words: the
 * exponent of the frequencies is 2.5 - d, in quarters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval_draft.h"
#include "eval/eval_words.h"

/* ---- variable tracking ---------------------------------------------------------------------------------------- */

enum { VARIABLES_MAX = 8, CHAINS_MAX = 5, STATEMENTS_MAX = VARIABLES_MAX * CHAINS_MAX };

static const char TRACK[] =
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
static const char TRACK_ASK[] =
    "\nQuestion: Find all variables that are assigned the value %s in the text above.";
static const char TRACK_ANSWER[] =
    "Answer: According to the chain(s) of variable assignment in the text above, %d "
    "variables are assigned the value %s, they are:";

typedef struct tracking {
    int32_t n_chains, n_variables; /* of a chain */
    int32_t letters;
    char name[CHAINS_MAX][VARIABLES_MAX][FL_EVAL_NAME_BYTES];
    char number[CHAINS_MAX][FL_EVAL_NAME_BYTES];
} tracking;

static int ascending(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

/* Lines of noise with the statements of all chains among them, each chain in its order. first_fact: of the first
 * chain's statements, -1 = none. */
static void put_tracking(fl_eval_draft *d, tracking *t, size_t n_lines, int32_t first_fact) {
    int32_t next[CHAINS_MAX] = {0}, n = t->n_chains * t->n_variables, done = 0;
    size_t place[STATEMENTS_MAX];
    for (int32_t c = 0; c < t->n_chains; c++) {
        do fl_eval_name_number(d, t->number[c], 5);
        while (!fl_eval_draft_new(d, t->number[c]));
        for (int32_t v = 0; v < t->n_variables; v++) fl_eval_name_variable(d, t->name[c][v], t->letters);
    }
    for (int32_t i = 0; i < n; i++) place[i] = (size_t)fl_eval_random_below(&d->random, (int64_t)n_lines);
    qsort(place, (size_t)n, sizeof *place, ascending);
    for (size_t line = 0; line < n_lines; line++) {
        for (; done < n && place[done] == line; done++) {
            int32_t c; /* whose statement comes next: any chain that has one left */
            do c = (int32_t)fl_eval_random_below(&d->random, t->n_chains);
            while (next[c] == t->n_variables);
            int32_t v = next[c]++;
            if (c == 0 && first_fact >= 0) fl_eval_draft_mark(d, first_fact + v);
            if (v == 0) fl_eval_text_print(&d->text, "VAR %s = %s\n", t->name[c][0], t->number[c]);
            else fl_eval_text_print(&d->text, "VAR %s = VAR %s\n", t->name[c][v], t->name[c][v - 1]);
        }
        fl_eval_text_put(&d->text, fl_eval_noise);
        if (line + 1 < n_lines) fl_eval_text_put(&d->text, "\n");
    }
}

static void print_names(fl_eval_text *text, tracking *t) {
    for (int32_t v = 0; v < t->n_variables; v++) fl_eval_text_print(text, " %s", t->name[0][v]);
}

static fl_err build_vt(fl_eval_draft *d) {
    enum { EXAMPLE_LINES = 15, EXAMPLE_LETTERS = 3, LETTERS = 5, ANSWER_TOKENS = 30, TOKENS_A_NAME = 4 };
    double difficulty = d->spec->difficulty;
    int32_t hops = 2 + (int32_t)(4 * difficulty);
    tracking example = {.n_chains = 1, .n_variables = hops + 1, .letters = EXAMPLE_LETTERS};
    tracking real = {.n_chains = difficulty > 0.5 ? 1 + (int32_t)(8 * (difficulty - 0.5)) : 1,
                     .n_variables = hops + 1,
                     .letters = LETTERS};
    fl_eval_text ask = {0}, head = {0}, reference = {0};
    const char *values[VARIABLES_MAX];
    fl_eval_text_put(&d->text, TRACK);
    put_tracking(d, &example, EXAMPLE_LINES, -1);
    fl_eval_text_print(&d->text, TRACK_ASK, example.number[0]);
    fl_eval_text_put(&d->text, " ");
    fl_eval_text_print(&d->text, TRACK_ANSWER, (int)hops + 1, example.number[0]);
    print_names(&d->text, &example);
    fl_eval_text_print(&d->text, "\n%s", TRACK);
    int32_t fact = fl_eval_draft_facts(d, real.n_variables);
    size_t head_bytes = d->text.n;
    put_tracking(d, &real, d->size_bytes > head_bytes ? (d->size_bytes - head_bytes) / 94 + 1 : 1, fact);
    fl_eval_text_print(&ask, TRACK_ASK, real.number[0]);
    fl_eval_text_print(&head, TRACK_ANSWER, (int)real.n_variables, real.number[0]);
    print_names(&reference, &real);
    for (int32_t v = 0; v < real.n_variables; v++) values[v] = real.name[0][v];
    if (ask.failed || head.failed || reference.failed) d->failed = true;
    else
        fl_eval_draft_ask(d, &(fl_eval_ask){.task = "ruler_vt",
                                            .text = ask.bytes,
                                            .head = head.bytes,
                                            .reference = reference.bytes,
                                            .values = values,
                                            .n_values = real.n_variables,
                                            .max_tokens = ANSWER_TOKENS,
                                            .fact_first = fact,
                                            .fact_count = real.n_variables});
    fl_eval_text_free(&ask);
    fl_eval_text_free(&head);
    fl_eval_text_free(&reference);
    return FL_ERR_OK;
}

const fl_eval_family fl_eval_family_vt = {
    .name = "ruler_vt", .tokens_min = 1024, .items = true, .build = build_vt};

/* ---- common words ---------------------------------------------------------------------------------------------- */

enum { N_COMMON = 10 };

static const char COMMON[] =
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n";
static const char COMMON_ASK[] = "\nQuestion: What are the 10 most common words in the above list?";
static const char COMMON_ANSWER[] = "Answer: The top 10 words that appear most often in the list are:";

/* Word i of all that can be made, i < number_of_words(): the plain ones, then adjective and noun as one word. */
static int64_t number_of_words(void) {
    return fl_eval_n_adjectives + fl_eval_n_nouns + (int64_t)fl_eval_n_adjectives * fl_eval_n_nouns;
}

static void put_word(fl_eval_text *text, int64_t i) {
    if (i < fl_eval_n_adjectives) {
        fl_eval_text_put(text, fl_eval_adjectives[i]);
        return;
    }
    i -= fl_eval_n_adjectives;
    if (i < fl_eval_n_nouns) {
        fl_eval_text_put(text, fl_eval_nouns[i]);
        return;
    }
    i -= fl_eval_n_nouns;
    fl_eval_text_put(text, fl_eval_adjectives[i / fl_eval_n_nouns]);
    fl_eval_text_put(text, fl_eval_nouns[i % fl_eval_n_nouns]);
}

typedef struct word_list {
    int64_t n_words;           /* different ones; the first N_COMMON are the common ones */
    int64_t n_common, n_other; /* times each occurs */
    int64_t common[N_COMMON];
} word_list;

/* The list in random order, each word with its number. */
static void put_list(fl_eval_draft *d, word_list *w) {
    int64_t n = N_COMMON * w->n_common + (w->n_words - N_COMMON) * w->n_other;
    int64_t n_plain = fl_eval_n_adjectives + fl_eval_n_nouns;
    int64_t n_pool = w->n_words <= n_plain ? n_plain : number_of_words();
    int32_t *order = malloc((size_t)n * sizeof *order);
    int64_t *word = malloc((size_t)w->n_words * sizeof *word);
    if (!order || !word) {
        d->failed = true;
        free(order);
        free(word);
        return;
    }
    int64_t stride = fl_eval_random_stride(&d->random, n_pool);
    int64_t at = fl_eval_random_below(&d->random, n_pool);
    for (int64_t i = 0; i < w->n_words; i++) word[i] = (at + i * stride) % n_pool;
    for (int64_t i = w->n_words - 1; i > 0; i--) {
        int64_t j = fl_eval_random_below(&d->random, i + 1), other = word[i];
        word[i] = word[j];
        word[j] = other;
    }
    fl_eval_random_order(&d->random, order, (int32_t)n);
    for (int64_t i = 0; i < n; i++) {
        int64_t k = order[i] < N_COMMON * w->n_common
                        ? order[i] / w->n_common
                        : N_COMMON + (order[i] - N_COMMON * w->n_common) / w->n_other;
        fl_eval_text_print(&d->text, "%s%lld. ", i == 0 ? "" : " ", (long long)i + 1);
        put_word(&d->text, word[k]);
    }
    memcpy(w->common, word, sizeof w->common);
    free(order);
    free(word);
}

static void print_common(fl_eval_text *text, const word_list *w) {
    for (int i = 0; i < N_COMMON; i++) {
        fl_eval_text_print(text, " %d. ", i + 1);
        put_word(text, w->common[i]);
    }
}

static fl_err build_cwe(fl_eval_draft *d) {
    enum { SHORT_TOKENS = 4096, ANSWER_TOKENS = 120, BYTES_A_WORD = 14 };
    bool is_short = d->spec->length_tokens < SHORT_TOKENS;
    int64_t times = (int64_t)(40 - 20 * d->spec->difficulty);
    word_list example = {
        .n_words = is_short ? 20 : 40, .n_common = is_short ? 3 : 10, .n_other = is_short ? 1 : 3};
    word_list real = {.n_common = is_short ? times / 5 : times, .n_other = is_short ? 1 : 3};
    fl_eval_text reference = {0}, value[N_COMMON] = {{0}};
    const char *values[N_COMMON];
    fl_eval_text_put(&d->text, COMMON);
    put_list(d, &example);
    fl_eval_text_print(&d->text, "%s %s", COMMON_ASK, COMMON_ANSWER);
    print_common(&d->text, &example);
    fl_eval_text_print(&d->text, "\n%s", COMMON);
    int64_t n_entries = d->size_bytes > d->text.n ? (int64_t)(d->size_bytes - d->text.n) / BYTES_A_WORD : 0;
    int64_t n_others = (n_entries - N_COMMON * real.n_common) / real.n_other;
    real.n_words = N_COMMON + (n_others > 1 ? n_others : 1);
    if (real.n_words > number_of_words())
        return FL_FAIL(FL_ERR_INVALID, "evaluation task %s: %lld words, there are %lld", d->spec->task,
                       (long long)real.n_words, (long long)number_of_words());
    put_list(d, &real);
    print_common(&reference, &real);
    bool failed = reference.failed;
    for (int i = 0; i < N_COMMON; i++) {
        put_word(&value[i], real.common[i]);
        values[i] = value[i].bytes;
        failed = failed || value[i].failed;
    }
    if (failed) d->failed = true;
    else
        fl_eval_draft_ask(d, &(fl_eval_ask){.task = "ruler_cwe",
                                            .text = COMMON_ASK,
                                            .head = COMMON_ANSWER,
                                            .reference = reference.bytes,
                                            .values = values,
                                            .n_values = N_COMMON,
                                            .max_tokens = ANSWER_TOKENS});
    for (int i = 0; i < N_COMMON; i++) fl_eval_text_free(&value[i]);
    fl_eval_text_free(&reference);
    return FL_ERR_OK;
}

const fl_eval_family fl_eval_family_cwe = {
    .name = "ruler_cwe", .tokens_min = 1024, .items = true, .build = build_cwe};

/* ---- frequent words -------------------------------------------------------------------------------------------- */

enum { CODE_LETTERS = 6, N_FREQUENT = 3 };

/* k^-(quarters / 4) from square roots, which IEEE 754 rounds the same everywhere. */
static double inverse_power(double k, int32_t quarters) {
    double root = sqrt(sqrt(k)), power = 1;
    for (int32_t i = 0; i < quarters; i++) power *= root;
    return 1 / power;
}

/* Riemann's zeta(quarters / 4) to about 1e-8: a sum and the integral of its rest. */
static double zeta(int32_t quarters) {
    enum { TERMS = 20000 };
    double sum = 0, exponent = 0.25 * quarters;
    for (int32_t k = TERMS; k >= 1; k--) sum += inverse_power(k, quarters);
    return sum + inverse_power(TERMS + 0.5, quarters - 4) / (exponent - 1);
}

static fl_err build_fwe(fl_eval_draft *d) {
    enum { ANSWER_TOKENS = 50, TOKENS_A_CODE = 50, FACTOR_QUARTERS = 10 };
    int32_t quarters = FACTOR_QUARTERS - (int32_t)(4 * d->spec->difficulty),
            n_codes = (int32_t)(d->spec->length_tokens / TOKENS_A_CODE);
    double n_words = (double)d->size_bytes / (CODE_LETTERS + 1), sum = zeta(quarters);
    int32_t n = 0, capacity = (int32_t)n_words + n_codes;
    char(*code)[CODE_LETTERS + 1] = calloc((size_t)n_codes, sizeof *code);
    int32_t *which = malloc((size_t)capacity * sizeof *which),
            *order = malloc((size_t)capacity * sizeof *order);
    if (!code || !which || !order) d->failed = true;
    for (int32_t k = 0; k < n_codes && !d->failed; k++) {
        for (int32_t i = 0; i < CODE_LETTERS; i++)
            code[k][i] = (char)('a' + fl_eval_random_below(&d->random, 26));
        if (k > 0 && k <= N_FREQUENT + 1 && !fl_eval_draft_new(d, code[k])) k--; /* those that count differ */
        else
            for (int32_t times = (int32_t)(n_words * inverse_power(k + 1, quarters) / sum);
                 times > 0 && n < capacity; times--)
                which[n++] = k;
    }
    if (!d->failed) {
        fl_eval_random_order(&d->random, order, n);
        fl_eval_text_put(
            &d->text,
            "Read the following coded text and track the frequency of each coded word. Find the three most "
            "frequently appeared coded words. ");
        for (int32_t i = 0; i < n; i++) {
            int32_t k = which[order[i]];
            fl_eval_text_put(&d->text, i == 0 ? "" : " ");
            fl_eval_text_put(&d->text, k == 0 ? "..." : code[k]);
        }
        char reference[4 * (CODE_LETTERS + 4)];
        snprintf(reference, sizeof reference, " %s, %s, and %s.", code[1], code[2], code[3]);
        fl_eval_draft_ask(d, &(fl_eval_ask){.task = "ruler_fwe",
                                            .text = "\nQuestion: Do not provide any explanation. Please "
                                                    "ignore the dots '....'. What are the three most "
                                                    "frequently appeared words in the above coded text?",
                                            .head = "Answer: According to the coded text above, the three "
                                                    "most frequently appeared words are:",
                                            .reference = reference,
                                            .values = (const char *const[]){code[1], code[2], code[3]},
                                            .n_values = N_FREQUENT,
                                            .max_tokens = ANSWER_TOKENS});
    }
    free(code);
    free(which);
    free(order);
    return FL_ERR_OK;
}

const fl_eval_family fl_eval_family_fwe = {
    .name = "ruler_fwe", .tokens_min = 1024, .items = true, .build = build_fwe};
