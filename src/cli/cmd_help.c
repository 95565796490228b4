#include "cli/cli.h"

#include <string.h>

/* fl_verb_find wants the words as in argv of main. */
static int help_about(const fl_options *o) {
    char *words[3] = {NULL, NULL, NULL};
    const fl_verb *verb = NULL;
    int n_words = 0, code = 0;
    fl_err err = FL_ERR_OK;
    for (int32_t i = 0; i < o->operands.n && err == FL_ERR_OK; i++)
        if (!(words[i + 1] = strdup(o->operands.items[i]))) err = FL_FAIL(FL_ERR_NOMEM, "help");
    if (err == FL_ERR_OK) err = fl_verb_find(o->operands.n + 1, words, &verb, &n_words);
    if (err == FL_ERR_OK && n_words != o->operands.n)
        err = FL_FAIL(FL_ERR_INVALID, "there is no verb '%s %s'", words[1], words[2]);
    if (err == FL_ERR_OK) fl_help_verb(stdout, verb);
    else code = fl_cli_fail(NULL, err);
    free(words[1]);
    free(words[2]);
    return code;
}

int fl_cmd_help(const fl_options *o) {
    if (o->man) fl_help_man(stdout);
    else if (o->completion) fl_help_completion(stdout, o->completion);
    else if (o->operands.n == 0) fl_help_overview(stdout);
    else if (o->operands.n != 1 || !fl_help_group(stdout, o->operands.items[0])) return help_about(o);
    return 0;
}
