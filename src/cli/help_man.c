/* The man page, as roff, from the tables of verbs and options. */
#include <string.h>

#include "cli/cli.h"

/* Plain text for roff: no character is a command. */
static void put(FILE *file, const char *text) {
    for (bool line_start = true; *text; text++) {
        if (line_start && (*text == '.' || *text == '\'')) fputs("\\&", file);
        if (*text == '\\') fputs("\\e", file);
        else if (*text == '-') fputs("\\-", file);
        else fputc(*text, file);
        line_start = *text == '\n';
    }
}

static void put_line(FILE *file, const char *macro, const char *text) {
    fprintf(file, "%s%s", macro, *macro ? " " : "");
    put(file, text);
    fputc('\n', file);
}

static void put_option(FILE *file, const fl_option *o) {
    char spelling[160];
    fl_help_spelling(o, spelling, sizeof spelling);
    fprintf(file, ".TP\n");
    put_line(file, ".B", spelling);
    put(file, o->help);
    fputs(".\n", file);
    if (o->fallback) {
        fputs("Default ", file);
        put(file, o->fallback);
        fputs(".\n", file);
    }
    if ((o->type == FL_OPTION_SIZE || o->type == FL_OPTION_REAL) && o->max < 9e18)
        fprintf(file, "From %.12g to %.12g.\n", o->min, o->max);
    if (o->environment) fprintf(file, "Environment: %s.\n", o->environment);
    fputs("Verbs: ", file);
    const char *separator = "";
    for (const fl_verb *v = fl_verbs; v->name; v++)
        if (o->verbs & v->bit) {
            fprintf(file, "%s%s", separator, v->name);
            separator = ", ";
        }
    fputs(".\n", file);
}

static void put_exit_codes(FILE *file) {
    static const struct {
        const char *code, *meaning;
    } codes[] = {
        {"0", "Done."},
        {"1", "Failed at run time."},
        {"2", "The command line was wrong."},
        {"65", "The checkpoint or the data is broken."},
        {"69", "This machine lacks what was asked for."},
        {"70", "An internal error."},
        {"75", "Busy; trying later helps."},
        {"78",
         "The checkpoint does not match its lock, a calibration or kept results were made for something "
         "else, or the folder of --kv-disk is in use."},
        {"130", "Ended by Ctrl-C."}};
    fputs(".SH EXIT STATUS\n", file);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        fprintf(file, ".TP\n.B %s\n%s\n", codes[i].code, codes[i].meaning);
}

void fl_help_man(FILE *file) {
    fprintf(file, ".TH FIRSTLIGHT 1 \"\" \"firstlight %s\" \"User Commands\"\n", fl_version());
    fputs(".SH NAME\nfirstlight \\- answers about long texts, from checkpoints of DeepSeek\\-V3's "
          "architecture\n"
          ".SH SYNOPSIS\n.B firstlight\n.I VERB\n[operands] [options]\n.SH DESCRIPTION\n",
          file);
    put_line(
        file, "",
        "Reads a checkpoint folder as it comes from Hugging Face, long documents or a repository, and "
        "answers "
        "questions about them. Results go to standard output, progress and timeline to standard error. Sizes "
        "are written 4096, 4k or 512k, with k = 1024.");
    fputs(".SH VERBS\n", file);
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        char usage[96];
        snprintf(usage, sizeof usage, "%s %s", v->name, v->operands);
        fputs(".TP\n", file);
        put_line(file, ".B", usage);
        put(file, v->about);
        fputs("\n.RS\n.PP\n.EX\nfirstlight ", file);
        put(file, v->example);
        fputs("\n.EE\n.RE\n", file);
    }
    fputs(".SH OPTIONS\n", file);
    for (const fl_option *o = fl_option_table; o->name; o++) put_option(file, o);
    fputs(".SH ENVIRONMENT\nThe variables named at the options; the command line wins over them. Nothing "
          "else is read.\n",
          file);
    put_exit_codes(file);
}
