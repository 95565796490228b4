/* The table of options is consistent, and parsing takes what it says and refuses the rest by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/cli.h"

static const fl_verb *verb_named(const char *name) {
    for (const fl_verb *v = fl_verbs; v->name; v++)
        if (strcmp(v->name, name) == 0) return v;
    fail_msg("no verb %s", name);
    return NULL;
}

static fl_err parse(const char *verb, fl_options *out, int argc, const char *const *arguments) {
    char *argv[16];
    for (int i = 0; i < argc; i++) argv[i] = (char *)(uintptr_t)arguments[i]; /* never written to */
    return fl_options_parse(verb_named(verb), argc, argv, out);
}

#define PARSE(verb, out, ...)                                                                                \
    parse(verb, out, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),                          \
          (const char *[]){__VA_ARGS__})

#define REFUSED(verb, text, ...)                                                                             \
    do {                                                                                                     \
        fl_options refused_;                                                                                 \
        assert_int_equal(PARSE(verb, &refused_, __VA_ARGS__), FL_ERR_INVALID);                               \
        if (!strstr(fl_err_detail(), text)) fail_msg("'%s' does not say '%s'", fl_err_detail(), text);       \
    } while (0)

static void every_row_of_the_table_holds_together(void **state) {
    (void)state;
    for (const fl_option *o = fl_option_table; o->name; o++) {
        assert_non_null(o->key);
        assert_non_null(o->help);
        assert_true(o->verbs != 0 && (o->verbs & ~(uint32_t)FL_VERB_ALL) == 0);
        assert_true(strlen(o->help) > 5 && o->help[strlen(o->help) - 1] != '.');
        assert_true(o->offset < sizeof(fl_options));
        assert_int_equal(o->type == FL_OPTION_CHOICE, o->choices != NULL);
        if (o->type == FL_OPTION_SIZE || o->type == FL_OPTION_REAL) assert_true(o->min < o->max);
        if (o->environment) {
            if (strcmp(o->environment, "NOTIFY_SOCKET") != 0) /* systemd's own */
                assert_memory_equal(o->environment, "FL_", 3);
            assert_null(strchr(o->environment, '-'));
        }
        for (const fl_option *p = o + 1; p->name; p++) {
            assert_false(strcmp(p->name, o->name) == 0 && (p->verbs & o->verbs) != 0);
            assert_false(p->letter && p->letter == o->letter && (p->verbs & o->verbs) != 0);
            assert_false(p->environment && o->environment && strcmp(p->environment, o->environment) == 0);
            /* One member for one name, which may mean something else to another verb. */
            assert_true(p->offset != o->offset);
        }
    }
}

static void verbs_are_different_and_complete(void **state) {
    uint32_t all = 0;
    (void)state;
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        assert_int_equal(all & v->bit, 0);
        all |= v->bit;
        assert_non_null(v->run);
        assert_true(v->operands_min <= v->operands_max);
        assert_memory_equal(v->example, v->name, strlen(v->name));
    }
    assert_int_equal(all & ~(uint32_t)FL_VERB_ALL, 0);
}

static void sizes_have_suffixes_of_1024(void **state) {
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},        {"4096", 4096},           {"4k", 4096}, {"512K", 512 * 1024},
                {"2m", 2 << 20}, {"3g", (int64_t)3 << 30}, {"-1", -1}};
    static const char *const bad[] = {
        "",  "k", "4kb", "4.5k", " 4", "4 ", "0x10", "+4", "99999999999999999999", "9223372036854775807k",
        "--"};
    int64_t value;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(fl_size_parse(good[i].text, "size", &value), FL_ERR_OK);
        assert_int_equal(value, good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(fl_size_parse(bad[i], "size", &value), FL_ERR_INVALID);
        assert_non_null(strstr(fl_err_detail(), "size: expected a number such as 4096, 4k or 512k"));
    }
}

static void defaults_are_those_of_the_table(void **state) {
    fl_options o;
    (void)state;
    assert_int_equal(PARSE("run", &o, "model"), FL_ERR_OK);
    assert_int_equal(o.max_tokens, 256);
    assert_true(o.temperature == 0 && o.top_p == 1 && o.repetition_penalty == 1);
    assert_string_equal(o.backend, "auto");
    assert_string_equal(o.policy, "full");
    assert_int_equal(o.files.n, 0);
    assert_false(o.json || o.quiet || o.progress);
    assert_string_equal(o.operands.items[0], "model");
    fl_options_close(&o);
    assert_null(o.operands.items);
}

static void every_spelling_is_read(void **state) {
    fl_options o;
    (void)state;
    assert_int_equal(
        PARSE("run", &o, "-f", "a", "m", "--file=b", "-fc", "--file", "-", "--ctx", "4k", "-q", "--", "-why"),
        FL_ERR_OK);
    assert_int_equal(o.files.n, 4);
    assert_string_equal(o.files.items[0], "a");
    assert_string_equal(o.files.items[1], "b");
    assert_string_equal(o.files.items[2], "c");
    assert_string_equal(o.files.items[3], "-");
    assert_int_equal(o.ctx, 4096);
    assert_true(o.quiet);
    assert_int_equal(o.operands.n, 2);
    assert_string_equal(o.operands.items[1], "-why");
    fl_options_close(&o);
    assert_int_equal(PARSE("bench decode", &o, "m", "--tokens", "8"), FL_ERR_OK);
    assert_int_equal(o.new_tokens, 8);
    fl_options_close(&o);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    REFUSED("run", "did you mean --max-tokens?", "m", "--max-token", "3");
    REFUSED("run", "run has no option --frobnicate", "m", "--frobnicate");
    REFUSED("run", "--write is not an option of run", "m", "--write");
    REFUSED("run", "run has no option -z", "m", "-z");
    REFUSED("run", "--temperature: expected 0 to 100, found 101", "m", "--temperature", "101");
    REFUSED("run", "--temperature: expected a number such as 0.7, found 'nan'", "m", "--temperature", "nan");
    REFUSED("run", "--max-tokens: expected 1 to 16777216, found 0", "m", "--max-tokens=0");
    REFUSED("run", "--seed: expected 0 or more, found -1", "m", "--seed", "-1");
    REFUSED("run", "--kv-cache-dtype: this build has auto|bf16|f32|fp8|int4, found 'int8'", "m",
            "--kv-cache-dtype", "int8");
    REFUSED("run", "found ''", "m", "--kv-cache-dtype", "");
    REFUSED("run", "--ctx: expected a value (N) behind it", "m", "--ctx");
    REFUSED("run", "--json takes no value", "m", "--json=1");
    REFUSED("run", "expected: firstlight run MODEL [QUESTION]", "--json");
    REFUSED("run", "'c' is one too many", "a", "b", "c");
}

static void verbs_are_found_or_suggested(void **state) {
    static char name[] = "firstlight", run[] = "run", bench[] = "bench", decode[] = "decode",
                inspct[] = "inspct", launch[] = "launch";
    char *argv[] = {name, run, NULL};
    const fl_verb *verb = NULL;
    int n_words = 0;
    (void)state;
    assert_int_equal(fl_verb_find(2, argv, &verb, &n_words), FL_ERR_OK);
    assert_string_equal(verb->name, "run");
    assert_int_equal(n_words, 1);
    assert_int_equal(fl_verb_find(3, (char *[]){name, bench, decode}, &verb, &n_words), FL_ERR_OK);
    assert_string_equal(verb->name, "bench decode");
    assert_int_equal(n_words, 2);
    assert_int_equal(fl_verb_find(2, (char *[]){name, inspct}, &verb, &n_words), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "did you mean inspect?"));
    assert_int_equal(fl_verb_find(2, (char *[]){name, launch}, &verb, &n_words), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "expected one of: run, chat, "));
    assert_int_equal(fl_verb_find(1, argv, &verb, &n_words), FL_ERR_INVALID);
    assert_int_equal(fl_verb_find(2, (char *[]){name, bench}, &verb, &n_words), FL_ERR_INVALID);
    assert_non_null(strstr(fl_err_detail(), "'bench' and one of: prefill, decode, "));
    assert_null(strstr(fl_err_detail(), "there is no verb"));
}

static const fl_option *option_of_serve(const char *name) {
    for (const fl_option *o = fl_option_table; o->name; o++)
        if ((o->verbs & FL_VERB_SERVE) && strcmp(o->name, name) == 0) return o;
    return NULL;
}

static void serve_knows_other_servers_spellings(void **state) {
    fl_options o;
    (void)state;
    for (const fl_option_alias *a = fl_serve_aliases; a->spelling; a++) {
        if (!option_of_serve(a->name)) fail_msg("%s is for %s, which is no option", a->spelling, a->name);
        if (option_of_serve(a->spelling)) fail_msg("%s is an option itself", a->spelling);
    }
    for (const fl_option_verdict *v = fl_serve_verdicts; v->spelling; v++) {
        assert_non_null(v->why);
        if (option_of_serve(v->spelling)) fail_msg("%s is an option itself", v->spelling);
    }
    assert_int_equal(PARSE("serve", &o, "m", "--context-length", "8k", "--max-running-requests=3",
                           "--enable-metrics", "--served-model-name", "a", "--served-model-name", "b"),
                     FL_ERR_OK);
    assert_int_equal(o.serve_ctx, 8192);
    assert_int_equal(o.seqs_max, 3);
    assert_int_equal(o.names.n, 2);
    assert_int_equal(o.operands.n, 1);
    fl_options_close(&o);
    REFUSED("serve", "--kv-tokens", "m", "--gpu-memory-utilization", "0.9");
    REFUSED("serve", "never run", "m", "--trust-remote-code");
    REFUSED("run", "no option --context-length", "m", "--context-length", "8k");
}

static void the_environment_is_between_default_and_command_line(void **state) {
    fl_options o;
    (void)state;
    setenv("FL_CTX", "8k", 1);
    setenv("FL_QUIET", "1", 1);
    setenv("FL_TEMPERATURE", "", 1);
    assert_int_equal(PARSE("run", &o, "m"), FL_ERR_OK);
    assert_int_equal(o.ctx, 8192);
    assert_true(o.quiet && o.temperature == 0);
    fl_options_close(&o);
    assert_int_equal(PARSE("run", &o, "m", "--ctx", "1k"), FL_ERR_OK);
    assert_int_equal(o.ctx, 1024);
    fl_options_close(&o);
    setenv("FL_CTX", "lots", 1);
    REFUSED("run", "FL_CTX: expected a number", "m");
    assert_int_equal(PARSE("version", &o, "--json"), FL_ERR_OK); /* no business of this verb */
    fl_options_close(&o);
    unsetenv("FL_CTX");
    setenv("FL_QUIET", "yes", 1);
    REFUSED("run", "FL_QUIET: expected 0 or 1, found 'yes'", "m");
    unsetenv("FL_QUIET");
    unsetenv("FL_TEMPERATURE");
}

/* Everything the text must name, from the table: every option and verb appears in every form of help. */
static char *written(void (*write_help)(FILE *file)) {
    char *text = NULL;
    size_t n_bytes;
    FILE *file = open_memstream(&text, &n_bytes);
    assert_non_null(file);
    write_help(file);
    fclose(file);
    return text;
}

static void write_bash(FILE *file) {
    fl_help_completion(file, "bash");
}

static void write_zsh(FILE *file) {
    fl_help_completion(file, "zsh");
}

static void write_fish(FILE *file) {
    fl_help_completion(file, "fish");
}

static void write_benches(FILE *file) {
    assert_true(fl_help_group(file, "bench"));
    assert_false(fl_help_group(file, "run"));
}

static void write_verbs(FILE *file) {
    for (const fl_verb *v = fl_verbs; v->name; v++) fl_help_verb(file, v);
}

/* Line by line: one of the lines has every x of "bench x". */
static bool is_line_of_benches(const char *line) {
    for (const fl_verb *v = fl_verbs; v->name; v++) {
        const char *second = strchr(v->name, ' ');
        if (second && !strstr(line, second + 1)) return false;
    }
    return true;
}

static void completions_know_every_second_word(void **state) {
    static void (*const kinds[])(FILE *) = {write_bash, write_zsh, write_fish};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *text = written(kinds[i]), *rest = NULL;
        bool found = false;
        for (char *line = strtok_r(text, "\n", &rest); line && !found; line = strtok_r(NULL, "\n", &rest))
            found = is_line_of_benches(line);
        if (!found) fail_msg("completion %zu does not know every bench", i);
        free(text);
    }
}

/* "serve" is a verb and stands behind "bench": neither gets the other's options. */
static void fish_tells_serve_from_bench_serve(void **state) {
    (void)state;
    char *text = written(write_fish);
    assert_non_null(strstr(text, "'not __fish_seen_subcommand_from bench; and "
                                 "__fish_seen_subcommand_from serve' -l port"));
    assert_non_null(strstr(text, "'__fish_seen_subcommand_from bench; and "
                                 "__fish_seen_subcommand_from serve' -l url"));
    free(text);
}

static void write_failures(FILE *file) {
    FILE *kept = stderr;
    stderr = file;
    (void)fl_cli_fail("serve", FL_FAIL(FL_ERR_NOMEM, "no memory"));
    stderr = kept;
}

static void advice_names_options_that_the_verb_has(void **state) {
    (void)state;
    char *text = written(write_failures);
    assert_non_null(strstr(text, "--max-model-len"));
    assert_null(strstr(text, "--ctx"));
    free(text);
}

static void help_of_bench_has_all_its_verbs(void **state) {
    (void)state;
    char *text = written(write_benches);
    for (const fl_verb *v = fl_verbs; v->name; v++)
        if (strncmp(v->name, "bench ", 6) == 0) assert_non_null(strstr(text, v->example));
    free(text);
}

static void help_of_every_kind_names_every_option(void **state) {
    static void (*const kinds[])(FILE *) = {write_verbs, fl_help_man, write_bash, write_zsh, write_fish};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *text = written(kinds[i]);
        for (const fl_option *o = fl_option_table; o->name; o++) {
            char spelling[64] = "";
            const char *dashes = i == 1   ? "\\-\\-"
                                 : i == 4 ? "-l "
                                          : "--"; /* roff escapes them, fish has none */
            for (const char *c = o->name; *c; c++)
                strncat(spelling, i == 1 && *c == '-' ? "\\-" : (char[]){*c, '\0'},
                        sizeof spelling - strlen(spelling) - 1);
            char wanted[80];
            snprintf(wanted, sizeof wanted, "%s%s", dashes, spelling);
            if (!strstr(text, wanted)) fail_msg("help %zu lacks %s", i, wanted);
        }
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_table_holds_together),
        cmocka_unit_test(verbs_are_different_and_complete),
        cmocka_unit_test(sizes_have_suffixes_of_1024),
        cmocka_unit_test(defaults_are_those_of_the_table),
        cmocka_unit_test(every_spelling_is_read),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(verbs_are_found_or_suggested),
        cmocka_unit_test(serve_knows_other_servers_spellings),
        cmocka_unit_test(the_environment_is_between_default_and_command_line),
        cmocka_unit_test(completions_know_every_second_word),
        cmocka_unit_test(fish_tells_serve_from_bench_serve),
        cmocka_unit_test(advice_names_options_that_the_verb_has),
        cmocka_unit_test(help_of_bench_has_all_its_verbs),
        cmocka_unit_test(help_of_every_kind_names_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
