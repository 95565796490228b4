/* Completion scripts for shells, from the tables of verbs and options. */
#include <string.h>

#include "cli/cli.h"

/* The options of a verb, as typed: "--json --file -f". */
static void put_names(FILE *file, const fl_verb *verb) {
    for (const fl_option *o = fl_option_table; o->name; o++) {
        if (!(o->verbs & verb->bit)) continue;
        fprintf(file, " --%s", o->name);
        if (o->letter) fprintf(file, " -%c", o->letter);
    }
}

/* The choices as words: '|' becomes a blank. */
static void put_choices(FILE *file, const char *choices) {
    for (; *choices; choices++) fputc(*choices == '|' ? ' ' : *choices, file);
}

static bool is_path(const fl_option *o) {
    static const char *const kinds[] = {"PATH", "FILE", "FOLDER", "MODEL"};
    for (size_t i = 0; o->value && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(o->value, kinds[i]) == 0) return true;
    return false;
}

/* First words of the verbs, each once ("bench" stands for all of its verbs). */
static void put_first_words(FILE *file) {
    size_t last = 0;
    const char *before = "";
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        size_t n = strcspn(v->name, " ");
        if (n != last || strncmp(before, v->name, n) != 0) fprintf(file, " %.*s", (int)n, v->name);
        before = v->name;
        last = n;
    }
}

/* What may stand behind "bench". */
static void put_second_words(FILE *file) {
    const char *separator = "";
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        const char *second = strchr(v->name, ' ');
        if (!second) continue;
        fprintf(file, "%s%s", separator, second + 1);
        separator = " ";
    }
}

static void put_bash(FILE *file) {
    fputs(
        "# bash completion of firstlight; made by `firstlight help --completion bash`\n"
        "_firstlight() {\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}\n"
        "    COMPREPLY=()\n"
        "    [ \"$verb\" = bench ] && [ \"$COMP_CWORD\" -gt 2 ] && verb=\"bench ${COMP_WORDS[2]}\"\n"
        "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
        "        COMPREPLY=($(compgen -W \"",
        file);
    put_first_words(file);
    fputs("\" -- \"$word\"))\n        return\n    fi\n"
          "    if [ \"$COMP_CWORD\" -eq 2 ] && [ \"${COMP_WORDS[1]}\" = bench ]; then\n"
          "        COMPREPLY=($(compgen -W \"",
          file);
    put_second_words(file);
    fputs("\" -- \"$word\"))\n        return\n    fi\n    case \"$verb $before\" in\n", file);
    for (const fl_option *o = fl_option_table; o->name; o++) {
        if (!o->choices) continue;
        const char *separator = "    ";
        for (const fl_verb *v = fl_verbs; v->name; v++)
            if (o->verbs & v->bit) {
                fprintf(file, "%s\"%s --%s\"", separator, v->name, o->name);
                separator = " | ";
            }
        fputs(") COMPREPLY=($(compgen -W \"", file);
        put_choices(file, o->choices);
        fputs("\" -- \"$word\")); return ;;\n", file);
    }
    fputs("    esac\n    if [[ $word == -* ]]; then\n        case $verb in\n", file);
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        fprintf(file, "        \"%s\") COMPREPLY=($(compgen -W \"", v->name);
        put_names(file, v);
        fputs("\" -- \"$word\")) ;;\n", file);
    }
    fputs("        esac\n        return\n    fi\n"
          "    [ \"$verb\" = help ] && COMPREPLY=($(compgen -W \"",
          file);
    put_first_words(file);
    fputs("\" -- \"$word\")) && return\n    COMPREPLY=($(compgen -f -- \"$word\"))\n}\n"
          "complete -o filenames -F _firstlight firstlight\n",
          file);
}

/* In zsh's _arguments and fish's complete a phrase stands in single quotes; [ ] : would end a zsh phrase. */
static void put_phrase(FILE *file, const char *text) {
    for (; *text; text++)
        if (*text == '\'') fputs("'\\''", file);
        else if (strchr("[]:", *text)) fprintf(file, "\\%c", *text);
        else fputc(*text, file);
}

static void put_zsh_option(FILE *file, const fl_option *o) {
    const char *repeat = o->type == FL_OPTION_LIST ? "*" : "";
    for (int form = 0; form < (o->letter ? 2 : 1); form++) {
        char letter[] = {'-', o->letter, '\0'};
        fprintf(file, "            '%s%s%s[", repeat, form ? letter : "--", form ? "" : o->name);
        put_phrase(file, o->help);
        fputs("]", file);
        if (o->choices) {
            fputs(":name:(", file);
            put_choices(file, o->choices);
            fputs(")", file);
        } else if (is_path(o)) fputs(":path:_files", file);
        else if (o->value) fprintf(file, ":%s: ", "value");
        fputs("' \\\n", file);
    }
}

static void put_zsh(FILE *file) {
    fputs("#compdef firstlight\n# zsh completion of firstlight; made by `firstlight help --completion zsh`\n"
          "_firstlight() {\n    local verb=$words[2]\n"
          "    if (( CURRENT == 2 )); then\n        compadd --",
          file);
    put_first_words(file);
    fputs("\n        return\n    fi\n    if [[ $verb == bench ]]; then\n"
          "        if (( CURRENT == 3 )); then compadd -- ",
          file);
    put_second_words(file);
    fputs("; return; fi\n"
          "        verb=\"bench $words[3]\"\n        shift words; (( CURRENT-- ))\n    fi\n"
          "    shift words; (( CURRENT-- ))\n    case $verb in\n",
          file);
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        fprintf(file, "    \"%s\")\n        _arguments \\\n", v->name);
        for (const fl_option *o = fl_option_table; o->name; o++)
            if (o->verbs & v->bit) put_zsh_option(file, o);
        fputs("            '*:file:_files' ;;\n", file);
    }
    fputs("    esac\n}\n_firstlight \"$@\"\n", file);
}

static void put_fish(FILE *file) {
    fputs("# fish completion of firstlight; made by `firstlight help --completion fish`\n"
          "complete -c firstlight -n __fish_use_subcommand -f -a '",
          file);
    put_first_words(file);
    fputs("'\ncomplete -c firstlight -n '__fish_seen_subcommand_from bench' -f -a '", file);
    put_second_words(file);
    fputs("'\n", file);
    for (const fl_verb *v = fl_verbs; v->name; v++)
        for (const fl_option *o = fl_option_table; o->name; o++) {
            if (!(o->verbs & v->bit)) continue;
            const char *second = strchr(v->name, ' ');
            /* "serve" stands behind "bench", too */
            fprintf(file,
                    "complete -c firstlight -n '%s__fish_seen_subcommand_from bench; and "
                    "__fish_seen_subcommand_from %s' -l %s",
                    second ? "" : "not ", second ? second + 1 : v->name, o->name);
            if (o->letter) fprintf(file, " -s %c", o->letter);
            if (o->choices) {
                fputs(" -x -a '", file);
                put_choices(file, o->choices);
                fputs("'", file);
            } else if (o->value) fputs(is_path(o) ? " -r" : " -x", file);
            fputs(" -d '", file);
            for (const char *c = o->help; *c; c++) fputs(*c == '\'' ? "\\'" : (char[]){*c, '\0'}, file);
            fputs("'\n", file);
        }
}

void fl_help_completion(FILE *file, const char *shell) {
    if (strcmp(shell, "bash") == 0) put_bash(file);
    else if (strcmp(shell, "zsh") == 0) put_zsh(file);
    else put_fish(file);
}
