/* The program from outside, on the bundled model: output, JSON, exit codes, Ctrl-C. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/command.h"
#include "support/folder.h"
#include <jansson.h>

#define MODEL "build/models/spark-66m"

/* What a run of the program gave. */
typedef struct result {
    int code; /* exit code, or 128 + signal */
    char *out, *err;
} result;

static char *path_in(const char *name) {
    static char paths[16][256];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static pid_t start(const char *const *arguments, const char *input) {
    char *argv[24] = {NULL};
    int n = 0;
    argv[n++] = (char[]){FL_CLI};
    for (; arguments[n - 1]; n++) argv[n] = (char *)(uintptr_t)arguments[n - 1];
    text_write("input", input);
    text_write("out", "");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    const int in = open(path_in("input"), O_RDONLY), flags = O_WRONLY | O_CREAT | O_TRUNC;
    const int out = open(path_in("out"), flags, 0600), err = open(path_in("err"), flags, 0600);
    if (dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2) execv(FL_CLI, argv);
    _exit(127);
}

static result finish(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return (result){.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
                    .out = text_read("out"),
                    .err = text_read("err")};
}

#define RUN_WITH(input, ...) finish(start((const char *[]){__VA_ARGS__, NULL}, input))
#define RUN(...)             RUN_WITH("", __VA_ARGS__)

static void drop(result r) {
    free(r.out);
    free(r.err);
}

static void expect_code(const result *r, int code) {
    if (r->code != code) fail_msg("exit code %d, expected %d; standard error: %s", r->code, code, r->err);
}

static void expect_in(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("expected '%s' in: %s", part, text);
}

/* Standard output is exactly one JSON object. */
static json_t *json_of(const result *r) {
    json_error_t error;
    json_t *object = json_loads(r->out, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) fail_msg("no JSON object: %s in: %s", error.text, r->out);
    return object;
}

static const char question[] =
    "What is the special magic number for hidden-lantern mentioned in the provided text?";

/* The demo document as far as the answer and a little on. */
static void write_document(const char *name) {
    char *text = NULL;
    size_t n_bytes;
    assert_int_equal(fl_file_read("share/demo", "document.txt", 1 << 20, &text, &n_bytes), FL_ERR_OK);
    assert_true(n_bytes > 4500);
    text[4500] = '\0';
    text_write(name, text);
    free(text);
}

static void a_question_about_a_file_is_answered(void **state) {
    (void)state;
    write_document("doc.txt");
    result r = RUN("run", MODEL, "-f", path_in("doc.txt"), "--trace", path_in("trace.json"), question);
    expect_code(&r, 0);
    assert_string_equal(
        r.out, "The special magic number for hidden-lantern mentioned in the provided text is 4718293.\n");
    expect_in(r.err, "first token");
    expect_in(r.err, "tokens/s");
    expect_in(r.err, "memory");
    drop(r);
    json_t *trace = json_load_file(path_in("trace.json"), 0, NULL);
    assert_true(json_array_size(json_object_get(trace, "traceEvents")) >= 5);
    json_decref(trace);
}

static void run_gives_json(void **state) {
    (void)state;
    result r = RUN_WITH("Some text.", "run", MODEL, "-f", "-", "--json", "--max-tokens", "3", "What is it?");
    expect_code(&r, 0);
    assert_string_equal(r.err, "");
    json_t *o = json_of(&r);
    assert_true(json_is_string(json_object_get(o, "text")));
    double prompt = number_of(o, "prompt_tokens");
    assert_true(prompt > 5 && number_of(o, "computed_tokens") + number_of(o, "cached_tokens") == prompt);
    assert_true(number_of(o, "ttft_s") > 0 && number_of(o, "decode_tokens_per_s") >= 0);
    assert_true(number_of(o, "peak_bytes") > number_of(o, "weights_bytes"));
    const json_t *timeline = json_object_get(o, "timeline");
    assert_true(json_array_size(timeline) >= 4);
    size_t i;
    json_t *mark;
    double tokens = 0;
    json_array_foreach(timeline, i, mark) {
        assert_true(number_of(mark, "end_s") >= number_of(mark, "start_s"));
        if (strncmp(json_string_value(json_object_get(mark, "name")), "prefill", 7) == 0)
            tokens += number_of(mark, "tokens");
    }
    assert_true(tokens == prompt);
    json_decref(o);
    drop(r);
}

static void what_does_not_fit_is_refused_with_the_numbers(void **state) {
    (void)state;
    write_document("doc.txt");
    result r = RUN("run", MODEL, "-f", path_in("doc.txt"), "--ctx", "256", question);
    expect_code(&r, 1);
    expect_in(r.err, "the context holds 256");
    expect_in(r.err, "a larger --ctx");
    assert_string_equal(r.out, "");
    drop(r);
}

static void a_repository_is_read(void **state) {
    (void)state;
    mkdir(path_in("repo"), 0700);
    text_write("repo/.gitignore", "hidden.txt\n");
    text_write("repo/hidden.txt", "One of the special magic numbers for hidden-lantern is: 1111111.\n");
    write_document("repo/shown.txt");
    result r = RUN("run", MODEL, "-f", path_in("repo"), "-q", question);
    expect_code(&r, 0);
    expect_in(r.out, "4718293");
    assert_string_equal(r.err, "");
    drop(r);
}

static void chat_keeps_what_it_has_read(void **state) {
    (void)state;
    result r = RUN_WITH("What is a hash table?\n\n  \nAnd a tree?\n/quit\nnever read\n", "chat", MODEL,
                        "--ctx", "1k", "--max-tokens", "4");
    expect_code(&r, 0);
    const char *first = strstr(r.err, "[0 tokens cached"),
               *second = first ? strstr(first + 16, "tokens cached") : NULL;
    assert_non_null(second);
    assert_null(strstr(second + 1, "tokens cached"));
    assert_null(strstr(second - 5, "[0 tokens cached"));
    drop(r);
}

static void tokenize_goes_both_ways(void **state) {
    (void)state;
    result r = RUN("tokenize", MODEL, "Hello, world");
    expect_code(&r, 0);
    assert_string_equal(r.out, "44 888 83 16 2356\n");
    drop(r);
    r = RUN_WITH("Hello, world", "tokenize", MODEL, "--json");
    json_t *o = json_of(&r);
    assert_int_equal(json_array_size(json_object_get(o, "ids")), 5);
    json_decref(o);
    drop(r);
    r = RUN_WITH("[44, 888, 83, 16, 2356]", "tokenize", MODEL, "--decode");
    assert_string_equal(r.out, "Hello, world\n");
    drop(r);
    r = RUN("tokenize", MODEL, "--decode", "44", "x");
    expect_code(&r, 2);
    expect_in(r.err, "found 'x'");
    drop(r);
    r = RUN("tokenize", MODEL, "<｜User｜>", "--special");
    assert_string_equal(r.out, "3\n");
    drop(r);
    r = RUN("tokenize", MODEL, "<｜User｜>");
    assert_string_not_equal(r.out, "3\n");
    drop(r);
}

static void inspect_and_its_sums(void **state) {
    (void)state;
    result r = RUN("inspect", MODEL, "--json", "--memory", "--ctx", "4k");
    expect_code(&r, 0);
    json_t *o = json_of(&r);
    assert_string_equal(json_string_value(json_object_get(o, "model_type")), "deepseek_v3");
    assert_int_equal(strlen(json_string_value(json_object_get(o, "fingerprint"))), 64);
    assert_true(number_of(o, "parameters") > number_of(o, "active_parameters"));
    assert_true(number_of(o, "tensors") == 849 && json_object_size(json_object_get(o, "dtypes")) == 3);
    double parts = number_of(o, "weights_bytes") + number_of(o, "kv_bytes") + number_of(o, "scratch_bytes") +
                   number_of(o, "logits_bytes") + number_of(o, "draw_bytes") +
                   number_of(o, "recordings_bytes");
    assert_true(number_of(o, "peak_bytes") == parts && number_of(o, "kv_bytes") == 4096 * 2560);
    json_decref(o);
    drop(r);
    r = RUN("inspect", MODEL, "--memory", "--ctx", "1m");
    expect_code(&r, 2);
    drop(r);
}

static void verify_writes_and_checks_the_lock(void **state) {
    static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "model.safetensors.index.json"};
    char from[256], to[256];
    (void)state;
    mkdir(path_in("model"), 0700);
    for (size_t i = 0; i < 11; i++) {
        char name[64];
        if (i < 5) snprintf(name, sizeof name, "%s", files[i]);
        else snprintf(name, sizeof name, "model-0000%zu-of-00006.safetensors", i - 4);
        snprintf(from, sizeof from, "%s/%s", MODEL, name);
        snprintf(to, sizeof to, "%s/%s", path_in("model"), name);
        char *resolved = realpath(from, NULL);
        assert_int_equal(symlink(resolved, to), 0);
        free(resolved);
    }
    result r = RUN("verify", path_in("model"));
    expect_code(&r, 78);
    expect_in(r.err, "--write");
    drop(r);
    r = RUN("verify", path_in("model"), "--write");
    expect_code(&r, 0);
    drop(r);
    r = RUN("verify", path_in("model"), "--json");
    expect_code(&r, 0);
    json_t *o = json_of(&r);
    assert_true(json_is_true(json_object_get(o, "ok")));
    json_decref(o);
    drop(r);
    assert_int_equal(unlink(path_in("model/generation_config.json")), 0);
    text_write("model/generation_config.json", "{\"eos_token_id\": 1, \"_from_model_config\": true}");
    r = RUN("verify", path_in("model"), "--json");
    expect_code(&r, 78);
    o = json_of(&r);
    assert_true(json_is_false(json_object_get(o, "ok")));
    const json_t *mismatch = json_array_get(json_object_get(o, "mismatches"), 0);
    assert_string_equal(json_string_value(json_object_get(mismatch, "field")), "generation_config.json");
    json_decref(o);
    drop(r);
    snprintf(to, sizeof to, "%s/model-00003-of-00006.safetensors", path_in("model"));
    assert_int_equal(unlink(to), 0);
    r = RUN("verify", path_in("model"));
    expect_code(&r, 65);
    expect_in(r.err, "model-00003-of-00006.safetensors");
    drop(r);
}

static void wrong_command_lines_exit_with_2(void **state) {
    (void)state;
    result r = RUN("run", MODEL, "--ctxt", "4k", "x");
    expect_code(&r, 2);
    expect_in(r.err, "did you mean --ctx?");
    drop(r);
    r = RUN("run", MODEL);
    expect_code(&r, 2);
    expect_in(r.err, "expected a question");
    drop(r);
    r = RUN("ponder", MODEL);
    expect_code(&r, 2);
    expect_in(r.err, "expected one of: run, chat");
    drop(r);
    r = RUN("run", path_in("nowhere"), "x");
    expect_code(&r, 65);
    expect_in(r.err, "config.json");
    drop(r);
    r = RUN("help", "run");
    expect_code(&r, 0);
    expect_in(r.out, "--max-tokens");
    drop(r);
    r = RUN("version", "--json");
    expect_code(&r, 0);
    json_t *o = json_of(&r);
    assert_true(json_array_size(json_object_get(o, "backends")) >= 1);
    json_decref(o);
    drop(r);
}

/* Files that a verb writes at its end are refused before its work, which here would fail by another name. */
static void files_that_cannot_be_written_are_told_first(void **state) {
    (void)state;
    const struct {
        const char *verb[2], *option;
    } cases[] = {{{"run", NULL}, "--trace"},        {{"bench", "prefill"}, "--trace"},
                 {{"bench", "prefill"}, "--rates"}, {{"bench", "frontier"}, "--csv"},
                 {{"bench", "ladder"}, "--svg"},    {{"eval", NULL}, "--heat-map"},
                 {{"plan", NULL}, "--html"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *arguments[8] = {cases[i].verb[0]};
        int n = 1;
        if (cases[i].verb[1]) arguments[n++] = cases[i].verb[1];
        arguments[n++] = path_in("no-model");
        arguments[n++] = cases[i].option;
        arguments[n] = path_in("no-folder/file");
        result r = finish(start(arguments, ""));
        expect_code(&r, 1);
        expect_in(r.err, cases[i].option);
        expect_in(r.err, "cannot write");
        drop(r);
        if (i == 2) continue; /* rates are read where the file is there */
        arguments[n] = folder;
        r = finish(start(arguments, ""));
        expect_code(&r, 1);
        expect_in(r.err, "Is a directory");
        drop(r);
    }
}

static void errors_name_their_cause_and_what_to_do(void **state) {
    (void)state;
    result r = RUN("bench", "serve", "--url", "http://127.0.0.1:1");
    expect_code(&r, 1);
    expect_in(r.err, "--url http://127.0.0.1:1: ");
    expect_in(r.err, "`firstlight serve MODEL`");
    drop(r);
    text_write("bytes", "\xff\xfe");
    r = RUN("run", MODEL, "-f", path_in("bytes"), "What is it?");
    expect_code(&r, 65);
    expect_in(r.err, "bytes is no text");
    expect_in(r.err, "if the file is one of a checkpoint"); /* it is none: not as if it were */
    drop(r);
    r = RUN_WITH("A text.\nA question?\n", "chat", MODEL, "-f", "-"); /* all of it would be the text */
    expect_code(&r, 2);
    expect_in(r.err, "questions come from standard input");
    drop(r);
    r = RUN("bench", "--help");
    expect_code(&r, 0);
    expect_in(r.out, "firstlight bench ladder");
    drop(r);
}

static void benchmarks_give_json(void **state) {
    (void)state;
    result r = RUN("bench", "prefill", MODEL, "--tokens", "64,128", "--runs", "1", "--json");
    expect_code(&r, 0);
    json_t *o = json_of(&r);
    assert_int_equal(json_array_size(json_object_get(o, "rows")), 2);
    assert_true(number_of(o, "ttft_s") > 0 && number_of(o, "flops") > 1e9 &&
                number_of(o, "roof_flops_per_s") > 0);
    assert_true(number_of(o, "achieved_fraction") > 0 && json_array_size(json_object_get(o, "ops")) >= 8);
    json_decref(o);
    drop(r);
    r = RUN("bench", "decode", MODEL, "--depth", "64", "--tokens", "4", "--runs", "1", "--json");
    expect_code(&r, 0);
    o = json_of(&r);
    assert_true(number_of(o, "tokens_per_s") > 0 && number_of(o, "roof_bytes_per_s") > 0);
    json_decref(o);
    drop(r);
}

/* At the sizes of a CPU: every case runs, or the backend refuses it by name. */
static void kernels_are_timed(void **state) {
    (void)state;
    result r = RUN("bench", "kernels", "--backend", "reference-w8a8", "--threads", "2", "--json");
    expect_code(&r, 0);
    json_t *o = json_of(&r), *row;
    size_t i;
    assert_true(json_array_size(json_object_get(o, "rows")) >= 30);
    json_array_foreach(json_object_get(o, "rows"), i, row) {
        assert_true(number_of(row, "time_s") > 0 && number_of(row, "bytes") > 0);
        assert_true(number_of(row, "roof_fraction") > 0 && number_of(row, "floor_s") > 0);
    }
    json_decref(o);
    drop(r);
    r = RUN("bench", "kernels", "--backend", "reference", "--only", "moe_route,blocks-select");
    expect_code(&r, 0);
    assert_true(strstr(r.out, "moe_route-v3") && strstr(r.out, "blocks-select"));
    assert_null(strstr(r.out, "rmsnorm"));
    drop(r);
    r = RUN("bench", "kernels", "--backend", "reference", "--only", "nothing-like-it");
    expect_code(&r, 2);
    assert_non_null(strstr(r.err, "nothing-like-it"));
    drop(r);
}

static void a_synthetic_model_is_timed(void **state) {
    (void)state;
    result r = RUN("bench", "prefill", "--synthetic", "spark-66m:2", "--tokens", "512", "--runs", "1",
                   "--policy", "blocks", "--density", "25%", "--skew", "1.5", "--json");
    expect_code(&r, 0);
    json_t *o = json_of(&r);
    assert_true(number_of(o, "ttft_s") > 0 && number_of(o, "flops") > 1e9 && number_of(o, "peak_bytes") > 0);
    assert_true(number_of(o, "layers") == 2 && number_of(o, "roof_bytes_per_s") > 0);
    assert_true(number_of(o, "routed_skew") > 1.2 && number_of(o, "routed_skew") < 4);
    assert_true(number_of(o, "skew_simulated") > 1.4 && number_of(o, "skew_simulated") < 1.6);
    expect_in(json_string_value(json_object_get(o, "quality")), "not measured");
    assert_true(json_is_string(json_object_get(o, "arithmetic")));
    json_decref(o);
    drop(r);
    r = RUN("bench", "prefill", "--synthetic", "spark-66m:9");
    expect_code(&r, 2);
    expect_in(r.err, "expected 1 to 8 layers, found '9'");
    drop(r);
    r = RUN("bench", "prefill", "--tokens", "64");
    expect_code(&r, 2);
    expect_in(r.err, "--synthetic SHAPE");
    drop(r);
}

/* Waits until the answer has begun, presses Ctrl-C, and expects what was there to stay. */
static void ctrl_c_ends_within_a_step(void **state) {
    (void)state;
    const char *arguments[] = {"run",  MODEL,           "Hi", "--max-tokens",         "100000", "--ctx",
                               "128k", "--temperature", "1",  "--repetition-penalty", "1.5",    NULL};
    pid_t pid = start(arguments, "");
    const struct timespec tick = {.tv_nsec = 20000000};
    struct stat status = {0};
    for (int i = 0; i < 3000 && (stat(path_in("out"), &status) != 0 || status.st_size < 20); i++)
        nanosleep(&tick, NULL);
    assert_true(status.st_size >= 20);
    assert_int_equal(kill(pid, SIGINT), 0);
    result r = finish(pid);
    expect_code(&r, 130);
    assert_true(strlen(r.out) >= 20);
    expect_in(r.err, "stopped by Ctrl-C");
    drop(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_about_a_file_is_answered),
        cmocka_unit_test(run_gives_json),
        cmocka_unit_test(what_does_not_fit_is_refused_with_the_numbers),
        cmocka_unit_test(a_repository_is_read),
        cmocka_unit_test(chat_keeps_what_it_has_read),
        cmocka_unit_test(tokenize_goes_both_ways),
        cmocka_unit_test(inspect_and_its_sums),
        cmocka_unit_test(verify_writes_and_checks_the_lock),
        cmocka_unit_test(wrong_command_lines_exit_with_2),
        cmocka_unit_test(files_that_cannot_be_written_are_told_first),
        cmocka_unit_test(errors_name_their_cause_and_what_to_do),
        cmocka_unit_test(benchmarks_give_json),
        cmocka_unit_test(kernels_are_timed),
        cmocka_unit_test(a_synthetic_model_is_timed),
        cmocka_unit_test(ctrl_c_ends_within_a_step),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
