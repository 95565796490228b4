/* Help from the table of options, for people at a terminal. */
#include <string.h>

#include "cli/cli.h"
#include "cli/format.h"

enum { WIDTH = 96, INDENT = 30 };

void fl_help_spelling(const fl_option *o, char *text, size_t n_bytes) {
    char letter[8] = "", value[80] = "";
    if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
    if (o->choices) snprintf(value, sizeof value, " %s", o->choices);
    else if (o->value) snprintf(value, sizeof value, " %s", o->value);
    snprintf(text, n_bytes, "%s--%s%s", letter, o->name, value);
}

static void print_option(FILE *file, const fl_option *o) {
    char spelling[160], text[400], facts[160] = "";
    fl_help_spelling(o, spelling, sizeof spelling);
    size_t n = 0;
    if (o->fallback && strcmp(o->fallback, "0") != 0)
        n += (size_t)snprintf(facts, sizeof facts, "default %s", o->fallback);
    if (o->environment) snprintf(facts + n, sizeof facts - n, "%s%s", n > 0 ? "; " : "", o->environment);
    snprintf(text, sizeof text, "%s%s%s%s", o->help, *facts ? " [" : "", facts, *facts ? "]" : "");
    fprintf(file, "  %-*s", INDENT - 2, spelling);
    if (strlen(spelling) > INDENT - 4) fprintf(file, "\n%*s", INDENT, "");
    fl_print_wrapped(file, text, INDENT, WIDTH);
}

void fl_help_verb(FILE *file, const fl_verb *verb) {
    fprintf(file, "firstlight %s %s\n\n", verb->name, verb->operands);
    fprintf(file, "  ");
    fl_print_wrapped(file, verb->about, 2, WIDTH);
    fprintf(file, "\noptions\n");
    for (const fl_option *o = fl_option_table; o->name; o++)
        if (o->verbs & verb->bit) print_option(file, o);
    fprintf(file, "\nexample\n  firstlight %s\n", verb->example);
}

bool fl_help_group(FILE *file, const char *first) {
    bool found = false;
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        if (!fl_verb_is_of(v, first)) continue;
        if (found) fputc('\n', file);
        fl_help_verb(file, v);
        found = true;
    }
    return found;
}

void fl_help_overview(FILE *file) {
    fprintf(file, "firstlight: answers about long texts, from checkpoints of DeepSeek-V3's architecture\n\n"
                  "usage: firstlight VERB [operands] [options]\n\n");
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        char usage[80];
        snprintf(usage, sizeof usage, "%s %s", v->name, v->operands);
        fprintf(file, "  %-*s%s\n", INDENT, usage, v->summary);
    }
    fprintf(
        file,
        "\nMODEL is a checkpoint folder as from Hugging Face. `firstlight help VERB` shows the options of a "
        "verb.\n"
        "Results go to standard output, progress to standard error; with --json the result is one JSON "
        "object.\n"
        "example: firstlight run build/models/spark-66m -f report.txt \"What does the report conclude?\"\n");
}
