/* The task "text": plain running text, no question. Its last tokens are scored as document rows, under the document's
 * own policy: what a pattern costs where no dense tail makes up for it. Only the NLL counts; no answer is right. */
#include <string.h>

#include "eval/eval_draft.h"

/* About a thousand tokens, and never more than a quarter of the text. */
enum { SCORED_BYTES = 3500, SCORED_SHARE = 4 };

static fl_err build_text(fl_eval_draft *d) {
    fl_eval_text body = {0};
    fl_eval_body_take(d, d->size_bytes, &body);
    if (body.failed || body.n == 0) {
        fl_eval_text_free(&body);
        d->failed = true;
        return FL_ERR_OK;
    }
    size_t scored = body.n / SCORED_SHARE < SCORED_BYTES ? body.n / SCORED_SHARE : SCORED_BYTES;
    size_t cut = body.n - scored;
    while (cut < body.n && body.bytes[cut] != ' ') cut++; /* tokens begin with their space */
    fl_eval_text_add(&d->text, body.bytes, cut);
    const fl_eval_ask ask = {.task = FL_EVAL_TASK_TEXT, .text = "", .reference = body.bytes + cut};
    fl_eval_draft_ask(d, &ask);
    if (d->n_questions > 0) d->questions[d->n_questions - 1].running_text = true;
    fl_eval_text_free(&body);
    return FL_ERR_OK;
}

const fl_eval_family fl_eval_family_text = {
    .name = FL_EVAL_TASK_TEXT, .tokens_min = 512, .build = build_text};
