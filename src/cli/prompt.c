#include "cli/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "engine/rope_config.h"
#include "text/tokenizer.h"

/* What a chat template puts around one message, and some. */
static const int64_t template_tokens = 512;

fl_err fl_prompt_make(const fl_documents *documents, const char *question, fl_prompt *out) {
    size_t n_text = documents->n_bytes, n_question = strlen(question);
    while (n_text > 0 && (documents->text[n_text - 1] == '\n' || documents->text[n_text - 1] == '\r'))
        n_text--;
    size_t n_gap = n_text > 0 && n_question > 0 ? 2 : 0;
    *out = (fl_prompt){.n_bytes = n_text + n_gap + n_question};
    out->text = malloc(out->n_bytes + 1);
    if (!out->text) return FL_FAIL(FL_ERR_NOMEM, "prompt of %zu bytes", out->n_bytes);
    if (n_text > 0) memcpy(out->text, documents->text, n_text);
    memcpy(out->text + n_text, "\n\n", n_gap);
    memcpy(out->text + n_text + n_gap, question, n_question + 1);
    if (n_gap > 0) out->question_bytes = n_question;
    return FL_ERR_OK;
}

void fl_prompt_close(fl_prompt *prompt) {
    free(prompt->text);
    *prompt = (fl_prompt){0};
}

/* Tokens of the text alone; at most one a byte where the tokenizer cannot tell. */
static int64_t count_tokens(const char *model_dir, const fl_prompt *prompt) {
    fl_tokenizer *tokenizer = NULL;
    int32_t *ids = NULL;
    int64_t n = (int64_t)prompt->n_bytes;
    if (fl_tokenizer_open(model_dir, &tokenizer) == FL_ERR_OK &&
        fl_tokenizer_encode(tokenizer, prompt->text, prompt->n_bytes, NULL, 0, &ids, &n) != FL_ERR_OK)
        n = (int64_t)prompt->n_bytes;
    free(ids);
    fl_tokenizer_close(tokenizer);
    return n;
}

int64_t fl_prompt_ctx(const fl_options *options, const fl_prompt *prompt) {
    fl_config config;
    fl_rope_extension extension;
    const char *model_dir = options->operands.items[0];
    if (fl_config_read(model_dir, &config) != FL_ERR_OK ||
        fl_rope_extension_parse(options->rope, options->rope_factor, &extension) != FL_ERR_OK)
        return 0;
    int64_t most = fl_rope_positions(&config, &extension);
    int64_t need = count_tokens(model_dir, prompt) + options->max_tokens + template_tokens;
    return need < most || options->force_positions ? need : most;
}
