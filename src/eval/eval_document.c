#include "eval/eval_document.h"

#include <stdlib.h>
#include <string.h>

#include "eval/eval_draft.h"

#define TASK_LIST(X)                                                                                         \
    X(FL_EVAL_TASK_TEXT, fl_eval_family_text)                                                                \
    X("niah_single", fl_eval_family_spark)                                                                   \
    X("niah_multikey", fl_eval_family_spark)                                                                 \
    X("xref", fl_eval_family_spark)                                                                          \
    X("chain", fl_eval_family_spark)                                                                         \
    X("copy_begin", fl_eval_family_spark)                                                                    \
    X("ruler_niah_single_1", fl_eval_family_niah[0])                                                         \
    X("ruler_niah_single_2", fl_eval_family_niah[1])                                                         \
    X("ruler_niah_single_3", fl_eval_family_niah[2])                                                         \
    X("ruler_niah_multikey_1", fl_eval_family_niah[3])                                                       \
    X("ruler_niah_multikey_2", fl_eval_family_niah[4])                                                       \
    X("ruler_niah_multikey_3", fl_eval_family_niah[5])                                                       \
    X("ruler_niah_multivalue", fl_eval_family_niah[6])                                                       \
    X("ruler_niah_multiquery", fl_eval_family_niah[7])                                                       \
    X("ruler_vt", fl_eval_family_vt)                                                                         \
    X("ruler_cwe", fl_eval_family_cwe)                                                                       \
    X("ruler_fwe", fl_eval_family_fwe)                                                                       \
    X("json_kv", fl_eval_family_json)                                                                        \
    X("x_chain", fl_eval_family_segments)                                                                    \
    X("x_join", fl_eval_family_segments)                                                                     \
    X("x_overwrite", fl_eval_family_segments)                                                                \
    X("x_ordinal", fl_eval_family_segments)                                                                  \
    X("x_edge", fl_eval_family_segments)                                                                     \
    X("repo_xref", fl_eval_family_repository)                                                                \
    X("repo_chain", fl_eval_family_repository)                                                               \
    X("repo_constant", fl_eval_family_repository)

#define TASK_ENTRY(name, family) {(name), &(family)},
#define TASK_NAME(name, family)  name,

static const struct task {
    const char *name;
    const fl_eval_family *family;
} TASKS[] = {TASK_LIST(TASK_ENTRY)};
enum { N_TASKS = sizeof TASKS / sizeof *TASKS };

const char *const *fl_eval_task_names(void) {
    static const char *const names[] = {TASK_LIST(TASK_NAME) NULL};
    return names;
}

const char *const *fl_eval_family_names(void) {
    static const char *const names[] = {
        FL_EVAL_TASK_TEXT,
        "spark",
        "ruler_niah_single_1",
        "ruler_niah_single_2",
        "ruler_niah_single_3",
        "ruler_niah_multikey_1",
        "ruler_niah_multikey_2",
        "ruler_niah_multikey_3",
        "ruler_niah_multivalue",
        "ruler_niah_multiquery",
        "ruler_vt",
        "ruler_cwe",
        "ruler_fwe",
        "json_kv",
        "segments",
        "repository",
        NULL,
    };
    return names;
}

/* The family of a task, or the family of this name; NULL. */
static const fl_eval_family *find_family(const char *name) {
    for (int32_t i = 0; i < N_TASKS; i++)
        if (strcmp(name, TASKS[i].name) == 0 || strcmp(name, TASKS[i].family->name) == 0)
            return TASKS[i].family;
    return NULL;
}

const char *fl_eval_family_of(const char *task) {
    const fl_eval_family *family = find_family(task);
    return family ? family->name : NULL;
}

static int by_byte(const void *a, const void *b) {
    const size_t *x = *(const size_t *const *)a, *y = *(const size_t *const *)b;
    return *x < *y ? -1 : *x > *y;
}

/* Token positions of the facts, counted piece by piece. The pieces have a few tokens more than the whole, n_tokens,
 * which is made up for evenly. */
static fl_err locate(fl_eval_draft *d, int64_t n_tokens) {
    const size_t *order[FL_EVAL_FACTS_MAX];
    size_t at = 0;
    int64_t n = 0, total = 0;
    for (int32_t i = 0; i < d->n_facts; i++) order[i] = &d->fact_byte[i];
    qsort(order, (size_t)d->n_facts, sizeof *order, by_byte);
    for (int32_t i = 0; i <= d->n_facts; i++) {
        size_t end = i < d->n_facts ? *order[i] : d->text.n;
        if (end > at) {
            FL_TRY(d->spec->count(d->spec->count_context, d->text.bytes + at, end - at, &n));
            total += n;
            at = end;
        }
        if (i < d->n_facts) d->fact_token[order[i] - d->fact_byte] = total;
    }
    for (int32_t i = 0; i < d->n_facts && total > 0; i++)
        d->fact_token[i] = (int64_t)((double)d->fact_token[i] * (double)n_tokens / (double)total + 0.5);
    return FL_ERR_OK;
}

/* Tokens of the longest question with its answer; fills in how long answers may get. */
static fl_err measure_questions(fl_eval_draft *d, int64_t *n_tokens) {
    enum { ANSWER_SPARE_TOKENS = 8 };
    *n_tokens = 0;
    for (int32_t i = 0; i < d->n_questions; i++) {
        fl_eval_question *q = &d->questions[i];
        int64_t text = 0, head = 0, reference = 0;
        FL_TRY(d->spec->count(d->spec->count_context, q->text, strlen(q->text), &text));
        FL_TRY(d->spec->count(d->spec->count_context, q->answer_head, strlen(q->answer_head), &head));
        FL_TRY(d->spec->count(d->spec->count_context, q->reference, strlen(q->reference), &reference));
        if (q->max_tokens == 0) q->max_tokens = (int32_t)reference + ANSWER_SPARE_TOKENS;
        int64_t answer = reference > q->max_tokens ? reference : q->max_tokens;
        if (text + head + answer > *n_tokens) *n_tokens = text + head + answer;
    }
    return FL_ERR_OK;
}

/* Depth and distance of every question. */
static fl_err place_questions(fl_eval_draft *d) {
    int64_t segment = d->spec->segment_tokens, n_tokens = 0;
    FL_TRY(d->spec->count(d->spec->count_context, d->text.bytes, d->text.n, &n_tokens));
    FL_TRY(locate(d, n_tokens));
    for (int32_t i = 0; i < d->n_questions; i++) {
        fl_eval_question *q = &d->questions[i];
        if (d->fact_count[i] == 0) continue;
        const int64_t *token = d->fact_token + d->fact_first[i];
        int64_t first = token[0], last = d->fact_count[i] == 1 ? n_tokens : token[0];
        for (int32_t k = 1; k < d->fact_count[i]; k++) {
            if (token[k] < first) first = token[k];
            if (token[k] > last) last = token[k];
        }
        q->depth = n_tokens > 0 ? (double)first / (double)n_tokens : 0;
        q->segment_distance = segment > 0 ? (int32_t)(last / segment - first / segment) : 0;
    }
    return FL_ERR_OK;
}

/* Builds one draft of `size_bytes`. *n_tokens is what the longest prompt with its answer takes. */
static fl_err build(const fl_eval_family *family, fl_eval_draft *d, uint64_t stream, int64_t *n_tokens) {
    int64_t document = 0, question = 0;
    const fl_eval_spec *spec = d->spec;
    size_t size_bytes = d->size_bytes;
    fl_eval_draft_free(d);
    *d = (fl_eval_draft){.spec = spec, .size_bytes = size_bytes, .variant = family->variant};
    fl_eval_random_init(&d->random, stream);
    FL_TRY(family->build(d));
    if (d->failed || d->text.failed)
        return FL_FAIL(FL_ERR_NOMEM, "a document of %zu bytes for the task %s", size_bytes, spec->task);
    FL_TRY(spec->count(spec->count_context, d->text.bytes, d->text.n, &document));
    FL_TRY(measure_questions(d, &question));
    *n_tokens = document + question + FL_EVAL_TEMPLATE_TOKENS + FL_EVAL_SPARE_TOKENS;
    return FL_ERR_OK;
}

/* The seed of a try: every field of the spec that names a document goes in. */
static uint64_t stream_of(const fl_eval_family *family, const fl_eval_spec *spec, int32_t attempt) {
    uint64_t h = fl_eval_mix(spec->seed);
    for (const char *p = family->name; *p; p++) h = fl_eval_mix(h ^ (unsigned char)*p);
    h = fl_eval_mix(h ^ (uint64_t)spec->length_tokens);
    h = fl_eval_mix(h ^ (uint64_t)(uint32_t)spec->index);
    return fl_eval_mix(h ^ (uint64_t)(uint32_t)attempt);
}

/* Looks for a size at which the draft fits: the next one from the tokens found, in the end held between the last that
 * fitted and the last that did not. *fits: within 2%, or (lists of items) nothing between is left. */
static fl_err fit(const fl_eval_family *family, fl_eval_draft *d, uint64_t stream, bool *fits) {
    enum { BUILDS_MAX = 16 };
    const int64_t length = d->spec->length_tokens, least = length - length / 50 + 1;
    const double target = 0.5 * (double)(least + length);
    double size = 3.4 * (double)length, low = 0, high = 0;
    int64_t n_tokens = 0;
    *fits = false;
    for (int i = 0; i < BUILDS_MAX; i++) {
        d->size_bytes = (size_t)size;
        FL_TRY(build(family, d, stream, &n_tokens));
        *fits = n_tokens <= length && n_tokens >= least;
        if (*fits) return FL_ERR_OK;
        if (n_tokens <= length) low = size;
        else high = size;
        if (high > 0 && high - low < 4) break;
        double next = size + (target - (double)n_tokens) * (double)d->text.n / (double)n_tokens;
        bool inside = next > low && (high == 0 || next < high);
        if (next <= 0 || (!inside && i >= BUILDS_MAX / 2)) next = high > 0 ? 0.5 * (low + high) : 2 * size;
        size = next;
    }
    if (!family->items || low == 0) return FL_ERR_OK;
    d->size_bytes = (size_t)low;
    FL_TRY(build(family, d, stream, &n_tokens));
    *fits = true;
    return FL_ERR_OK;
}

static fl_err check_spec(const fl_eval_spec *spec, const fl_eval_family *family) {
    enum { LENGTH_MAX = 4 << 20, HAYSTACK_BYTES_MIN = 4096 };
    if (!family)
        return FL_FAIL(FL_ERR_INVALID, "evaluation task \"%s\": there is no such task or family", spec->task);
    if (!spec->haystack || spec->haystack_bytes < HAYSTACK_BYTES_MIN || !spec->count)
        return FL_FAIL(FL_ERR_INVALID, "evaluation: %zu bytes of running text, at least %d are needed",
                       spec->haystack_bytes, HAYSTACK_BYTES_MIN);
    if (!(spec->difficulty >= 0 && spec->difficulty <= 1))
        return FL_FAIL(FL_ERR_INVALID, "evaluation: difficulty %g, expected 0..1", spec->difficulty);
    if (spec->index < 0 || spec->segment_tokens < 0)
        return FL_FAIL(FL_ERR_INVALID, "evaluation: index %d and segment_tokens %d, expected 0 or more",
                       (int)spec->index, (int)spec->segment_tokens);
    if (spec->length_tokens < family->tokens_min || spec->length_tokens > LENGTH_MAX)
        return FL_FAIL(FL_ERR_INVALID, "evaluation task %s: length %lld, expected %lld..%d tokens",
                       spec->task, (long long)spec->length_tokens, (long long)family->tokens_min, LENGTH_MAX);
    if (family == &fl_eval_family_segments && (spec->segment_tokens < FL_EVAL_SEGMENT_TOKENS_MIN ||
                                               spec->length_tokens < 2 * (int64_t)spec->segment_tokens))
        return FL_FAIL(FL_ERR_INVALID,
                       "evaluation task %s: segments of %d tokens, expected %d to half the length, %lld",
                       spec->task, (int)spec->segment_tokens, FL_EVAL_SEGMENT_TOKENS_MIN,
                       (long long)spec->length_tokens / 2);
    return FL_ERR_OK;
}

/* Moves text and questions (all, or those of one task) to *out. */
static fl_err hand_over(fl_eval_draft *d, fl_eval_document *out) {
    bool all = strcmp(fl_eval_family_of(d->spec->task), d->spec->task) == 0;
    out->questions = calloc((size_t)d->n_questions + 1, sizeof *out->questions);
    if (!out->questions) return FL_FAIL(FL_ERR_NOMEM, "%d questions", (int)d->n_questions);
    for (int32_t i = 0; i < d->n_questions; i++) {
        if (!all && strcmp(d->questions[i].task, d->spec->task) != 0) continue;
        out->questions[out->n_questions++] = d->questions[i];
        d->questions[i] = (fl_eval_question){0};
    }
    out->text = d->text.bytes;
    out->text_bytes = d->text.n;
    d->text = (fl_eval_text){0};
    return FL_ERR_OK;
}

fl_err fl_eval_document_make(const fl_eval_spec *spec, fl_eval_document *out) {
    enum { ATTEMPTS = 32 };
    fl_err err = FL_ERR_OK;
    bool fits = false;
    *out = (fl_eval_document){0};
    const fl_eval_family *family = find_family(spec->task);
    FL_TRY(check_spec(spec, family));
    fl_eval_draft *d = calloc(1, sizeof *d);
    if (!d) return FL_FAIL(FL_ERR_NOMEM, "a draft of %zu bytes", sizeof *d);
    d->spec = spec;
    for (int32_t attempt = 0; attempt < ATTEMPTS && !fits; attempt++) {
        FL_TRY_GOTO(fit(family, d, stream_of(family, spec, attempt), &fits));
        if (fits) FL_TRY_GOTO(place_questions(d));
        if (fits && family->holds) fits = family->holds(d);
    }
    if (!fits) {
        err = FL_FAIL(FL_ERR_INVALID,
                      "evaluation task %s: nothing of %lld tokens could be made; choose a greater length",
                      spec->task, (long long)spec->length_tokens);
        goto fail;
    }
    err = hand_over(d, out);
fail:
    fl_eval_draft_free(d);
    free(d);
    return err;
}

void fl_eval_document_close(fl_eval_document *document) {
    for (int32_t i = 0; i < document->n_questions; i++) fl_eval_question_free(&document->questions[i]);
    free(document->questions);
    free(document->text);
    *document = (fl_eval_document){0};
}
