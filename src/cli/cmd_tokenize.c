/* tokenize: text to ids, ids to text; needs the tokenizer only, not the weights. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cli/cli.h"
#include "cli/documents.h"
#include "text/tokenizer.h"

/* Operands behind MODEL with blanks between, or files, or standard input, byte for byte. */
static fl_err read_input(const fl_options *o, fl_documents *out) {
    static const char *const standard_input[] = {"-"};
    const char *items[] = {standard_input[0]};
    const fl_text_list input = {.items = items, .n = 1};
    size_t n_bytes = 0;
    *out = (fl_documents){0};
    if (o->operands.n == 1) return fl_documents_read(o->files.n > 0 ? &o->files : &input, out);
    if (o->files.n > 0) return FL_FAIL(FL_ERR_INVALID, "expected a text or -f, not both");
    for (int32_t i = 1; i < o->operands.n; i++) n_bytes += strlen(o->operands.items[i]) + 1;
    out->text = malloc(n_bytes + 1);
    if (!out->text) return FL_FAIL(FL_ERR_NOMEM, "text of %zu bytes", n_bytes);
    for (int32_t i = 1; i < o->operands.n; i++) {
        size_t n = strlen(o->operands.items[i]);
        if (i > 1) out->text[out->n_bytes++] = ' ';
        memcpy(out->text + out->n_bytes, o->operands.items[i], n);
        out->n_bytes += n;
    }
    out->text[out->n_bytes] = '\0';
    return FL_ERR_OK;
}

static fl_err print_ids(const fl_options *o, const int32_t *ids, int64_t n_ids) {
    if (!o->json) {
        for (int64_t i = 0; i < n_ids; i++) printf("%s%" PRId32, i > 0 ? " " : "", ids[i]);
        putchar('\n');
        return fl_cli_flush();
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < n_ids; i++) json_array_append_new(list, json_integer(ids[i]));
    return fl_cli_print_json(json_pack("{s:o}", "ids", list));
}

static fl_err encode(const fl_options *o, const fl_tokenizer *t, const fl_documents *d) {
    const fl_text_span all = {0, d->n_bytes};
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    FL_TRY(fl_tokenizer_encode(t, d->text, d->n_bytes, &all, o->special ? 1 : 0, &ids, &n_ids));
    fl_err err = print_ids(o, ids, n_ids);
    free(ids);
    return err;
}

/* Ids with blanks, commas or brackets between them, so that "ids" of the JSON form can be pasted. */
static fl_err parse_ids(const fl_tokenizer *t, const char *text, int32_t *ids, int64_t *n_ids) {
    static const char between[] = " \t\r\n,[]";
    int32_t n_vocab = fl_tokenizer_n_vocab(t);
    *n_ids = 0;
    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        char *end;
        errno = 0;
        long id = strtol(text, &end, 10);
        if (end == text || (*end && !strchr(between, *end)) || errno != 0 || id < 0 || id >= n_vocab)
            return FL_FAIL(FL_ERR_INVALID, "--decode: expected token ids 0..%d, found '%.*s'", n_vocab - 1,
                           (int)strcspn(text, between), text);
        ids[(*n_ids)++] = (int32_t)id;
        text = end;
    }
    return FL_ERR_OK;
}

static fl_err decode(const fl_options *o, const fl_tokenizer *t, const fl_documents *d) {
    int32_t *ids = malloc((d->n_bytes / 2 + 1) * sizeof *ids); /* an id and a blank are two bytes */
    int64_t n_ids;
    char *text = NULL;
    size_t n_bytes;
    if (!ids) return FL_FAIL(FL_ERR_NOMEM, "ids of %zu bytes", d->n_bytes);
    fl_err err = parse_ids(t, d->text, ids, &n_ids);
    if (err == FL_ERR_OK) err = fl_tokenizer_decode(t, ids, n_ids, o->special, &text, &n_bytes);
    free(ids);
    FL_TRY(err);
    if (o->json) err = fl_cli_print_json(json_pack("{s:s%}", "text", text, n_bytes));
    else {
        fwrite(text, 1, n_bytes, stdout);
        putchar('\n');
        err = fl_cli_flush();
    }
    free(text);
    return err;
}

int fl_cmd_tokenize(const fl_options *o) {
    fl_tokenizer *t = NULL;
    fl_documents input = {0};
    fl_err err = fl_tokenizer_open(o->operands.items[0], &t);
    if (err == FL_ERR_OK) err = read_input(o, &input);
    if (err == FL_ERR_OK) err = o->decode ? decode(o, t, &input) : encode(o, t, &input);
    fl_documents_close(&input);
    fl_tokenizer_close(t);
    return err == FL_ERR_OK ? 0 : fl_cli_fail("tokenize", err);
}
