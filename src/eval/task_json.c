/* "json_kv": one JSON object of random UUIDs that fills the document. Exact recall of 128-bit values by 128-bit keys.
 * Above difficulty 0.5 a share d - 0.5 of the other keys begin like one asked for (one group of five). */
#include <stdio.h>
#include <string.h>

#include "eval/eval_draft.h"

enum { N_ASKED = 8, PAIR_BYTES = 80 };

static fl_err build(fl_eval_draft *d) {
    char key[N_ASKED][FL_EVAL_NAME_BYTES], value[N_ASKED][FL_EVAL_NAME_BYTES];
    size_t n_pairs = d->size_bytes / PAIR_BYTES, place[N_ASKED];
    if (n_pairs < 2 * N_ASKED) n_pairs = 2 * N_ASKED;
    double near_share = d->spec->difficulty > 0.5 ? d->spec->difficulty - 0.5 : 0;
    int32_t first = fl_eval_draft_facts(d, N_ASKED), next = 0;
    for (size_t i = 0; i < N_ASKED; i++) { /* somewhere in its own eighth */
        size_t begin = i * n_pairs / N_ASKED, end = (i + 1) * n_pairs / N_ASKED;
        place[i] = begin + (size_t)fl_eval_random_below(&d->random, (int64_t)(end - begin));
        fl_eval_name_uuid(d, key[i]);
        fl_eval_name_uuid(d, value[i]);
    }
    fl_eval_text_put(&d->text, "The following JSON object gives each key its value.\n\n{");
    for (size_t i = 0; i < n_pairs; i++) {
        char other_key[FL_EVAL_NAME_BYTES], other_value[FL_EVAL_NAME_BYTES];
        bool asked = next < N_ASKED && place[next] == i;
        if (!asked) {
            fl_eval_name_uuid(d, other_key);
            fl_eval_name_uuid(d, other_value);
            if (fl_eval_random_unit(&d->random) < near_share)
                memcpy(other_key, key[fl_eval_random_below(&d->random, N_ASKED)],
                       9); /* the first group and its dash */
        } else {
            fl_eval_draft_mark(d, first + next);
        }
        fl_eval_text_print(&d->text, "\"%s\": \"%s\"%s", asked ? key[next] : other_key,
                           asked ? value[next] : other_value, i + 1 < n_pairs ? ",\n " : "}\n");
        next += asked;
    }
    for (int32_t i = 0; i < N_ASKED; i++) {
        char text[FL_EVAL_SENTENCE_BYTES], head[FL_EVAL_SENTENCE_BYTES], reference[FL_EVAL_SENTENCE_BYTES];
        snprintf(text, sizeof text, "\nWhat is the value of the key \"%.36s\" in the JSON object above?",
                 key[i]);
        snprintf(head, sizeof head, "\"%.36s\": \"", key[i]);
        snprintf(reference, sizeof reference, "%.36s\"", value[i]);
        fl_eval_draft_ask(d, &(fl_eval_ask){.task = "json_kv",
                                            .text = text,
                                            .head = head,
                                            .reference = reference,
                                            .values = (const char *const[]){value[i]},
                                            .n_values = 1,
                                            .fact_first = first + i,
                                            .fact_count = 1});
    }
    return FL_ERR_OK;
}

const fl_eval_family fl_eval_family_json = {
    .name = "json_kv", .tokens_min = 1536, .items = true, .build = build};
