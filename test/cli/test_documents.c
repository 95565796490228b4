/* Files and folders become one text: order, headers, what is left out, and what .gitignore means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/documents.h"
#include "cli/gitignore.h"
#include "cli/prompt.h"
#include "support/folder.h"

static const char *in_root(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_bytes(const char *name, const char *bytes, size_t n_bytes) {
    FILE *file = fopen(in_root(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    fclose(file);
}

static void make_folder(const char *name) {
    assert_int_equal(mkdir(in_root(name), 0700), 0);
}

static fl_err read_one(const char *name, fl_documents *out) {
    const char *items[] = {in_root(name)};
    const fl_text_list list = {.items = items, .n = 1};
    return fl_documents_read(&list, out);
}

static void globs_match_as_git_says(void **state) {
    static const struct {
        const char *pattern, *text;
        bool match;
    } cases[] = {
        {"a", "a", true},
        {"a", "b", false},
        {"", "", true},
        {"*.o", "x.o", true},
        {"*.o", "x.obj", false},
        {"*.o", ".o", true},
        {"a*b*c", "axxbyyc", true},
        {"a*b*c", "axxbyy", false},
        {"a*bc", "abbc", true},
        {"*", "a/b", false},
        {"a/*", "a/b", true},
        {"a/*", "a/b/c", false},
        {"?", "/", false},
        {"a?c", "abc", true},
        {"[a-c]x", "bx", true},
        {"[!a-c]x", "bx", false},
        {"[^a-c]x", "dx", true},
        {"[]]x", "]x", true},
        {"[a", "a", false},
        {"[a-", "a", false},
        {"[/]", "/", false},
        {"\\*", "*", true},
        {"\\*", "x", false},
        {"a\\", "a", false},
        {"**/b", "b", true},
        {"**/b", "x/y/b", true},
        {"**/b", "xb", false},
        {"a/**", "a/b/c", true},
        {"a/**", "a", false},
        {"a/**/b", "a/b", true},
        {"a/**/b", "a/x/y/b", true},
        {"a/**/b", "ab", false},
        {"a**b", "axxb", true},
        {"a**b", "a/b", false},
        {"**/a*/c", "x/ab/c", true},
        {"**/x/**/y", "x/x/z/y", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (fl_glob_match(cases[i].pattern, cases[i].text) != cases[i].match)
            fail_msg("'%s' on '%s': expected %d", cases[i].pattern, cases[i].text, cases[i].match);
}

/* Patterns that take exponential time with naive backtracking end at once. */
static void hostile_globs_end(void **state) {
    char pattern[1025], text[4001];
    (void)state;
    for (int i = 0; i + 2 < 1024; i += 2) memcpy(pattern + i, "*a", 3);
    memset(text, 'a', 4000);
    text[3999] = 'b';
    text[4000] = '\0';
    assert_false(fl_glob_match(pattern, text));
    for (int i = 0; i + 5 < 1024; i += 5) memcpy(pattern + i, "**/a/", 6);
    for (int i = 0; i + 2 < 4000; i += 2) memcpy(text + i, "a/", 3);
    text[3997] = 'b';
    assert_false(fl_glob_match(pattern, text));
}

static void ignore_rules_of_deeper_folders_win(void **state) {
    static const char top[] = "# comment\n\n*.log\n!keep.log\n/build\ndoc/*.txt\nout/\n\\#odd\nblank \\ \r\n";
    static const char deep[] = "!*.log\n*.c\n";
    fl_ignore ignore = {0};
    (void)state;
    assert_int_equal(fl_ignore_add(&ignore, top, sizeof top - 1, 0), FL_ERR_OK);
    int32_t n = ignore.n;
    assert_int_equal(n, 7);
    assert_true(fl_ignore_match(&ignore, "x.log", false));
    assert_true(fl_ignore_match(&ignore, "a/b/x.log", false));
    assert_false(fl_ignore_match(&ignore, "a/keep.log", false));
    assert_true(fl_ignore_match(&ignore, "build", true));
    assert_false(fl_ignore_match(&ignore, "a/build", true));
    assert_true(fl_ignore_match(&ignore, "doc/a.txt", false));
    assert_false(fl_ignore_match(&ignore, "a/doc/a.txt", false));
    assert_true(fl_ignore_match(&ignore, "a/out", true));
    assert_false(fl_ignore_match(&ignore, "a/out", false));
    assert_true(fl_ignore_match(&ignore, "#odd", false));
    assert_int_equal(fl_ignore_add(&ignore, deep, sizeof deep - 1, 2), FL_ERR_OK);
    assert_false(fl_ignore_match(&ignore, "a/x.log", false));
    assert_true(fl_ignore_match(&ignore, "a/x.c", false));
    fl_ignore_cut(&ignore, n);
    assert_true(fl_ignore_match(&ignore, "a/x.log", false));
    fl_ignore_close(&ignore);
}

static void one_file_is_its_text_and_several_have_headers(void **state) {
    fl_documents d;
    (void)state;
    text_write("one.txt", "first line\nlast line\n");
    text_write("two.txt", "no end");
    assert_int_equal(read_one("one.txt", &d), FL_ERR_OK);
    assert_string_equal(d.text, "first line\nlast line\n");
    fl_documents_close(&d);
    char a[600], b[600], wanted[1400];
    snprintf(a, sizeof a, "%s", in_root("two.txt"));
    snprintf(b, sizeof b, "%s", in_root("one.txt"));
    const char *items[] = {a, b};
    const fl_text_list list = {.items = items, .n = 2};
    assert_int_equal(fl_documents_read(&list, &d), FL_ERR_OK);
    snprintf(wanted, sizeof wanted, "==> %s <==\nno end\n\n==> %s <==\nfirst line\nlast line\n", a, b);
    assert_string_equal(d.text, wanted);
    assert_int_equal(d.n_files, 2);
    fl_documents_close(&d);
}

static void a_folder_is_walked_as_a_repository(void **state) {
    fl_documents d;
    (void)state;
    make_folder("repo");
    make_folder("repo/.git");
    make_folder("repo/src");
    make_folder("repo/src/deep");
    make_folder("repo/skipped");
    text_write("repo/.git/config", "secret");
    text_write("repo/.gitignore", "skipped/\n*.tmp\n");
    text_write("repo/b.txt", "B\n");
    text_write("repo/a.txt", "A\n");
    text_write("repo/x.tmp", "temporary");
    text_write("repo/skipped/in.txt", "skipped");
    write_bytes("repo/zero.bin", "a\0b", 3);
    text_write("repo/latin1.txt", "caf\xe9");
    text_write("repo/src/.gitignore", "!y.tmp\ndeep\n");
    text_write("repo/src/y.tmp", "Y\n");
    text_write("repo/src/deep/z.txt", "deep");
    text_write("outside.txt", "outside");
    assert_int_equal(symlink("../outside.txt", in_root("repo/link.txt")), 0);
    assert_int_equal(symlink("..", in_root("repo/up")), 0);
    assert_int_equal(read_one("repo", &d), FL_ERR_OK);
    assert_string_equal(d.text,
                        "==> .gitignore <==\nskipped/\n*.tmp\n\n==> a.txt <==\nA\n\n==> b.txt <==\nB\n\n"
                        "==> src/.gitignore <==\n!y.tmp\ndeep\n\n==> src/y.tmp <==\nY\n");
    assert_int_equal(d.n_files, 5);
    assert_int_equal(d.n_binary, 2);
    assert_int_equal(d.n_ignored, 6); /* .git, skipped, x.tmp, deep, two links */
    fl_documents_close(&d);
}

static void what_is_no_text_is_refused_by_name(void **state) {
    fl_documents d;
    (void)state;
    write_bytes("binary", "x\0y", 3);
    assert_int_equal(read_one("binary", &d), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "binary is no text"));
    assert_int_equal(read_one("missing", &d), FL_ERR_IO);
    assert_non_null(strstr(fl_err_detail(), "missing: No such file"));
    make_folder("empty");
    assert_int_equal(read_one("empty", &d), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "no text files in it"));
}

static void folders_without_end_are_refused(void **state) {
    fl_documents d;
    char path[512] = "deep";
    (void)state;
    make_folder(path);
    for (int i = 0; i < FL_REPOSITORY_DEPTH_MAX; i++) {
        strcat(path, "/d");
        make_folder(path);
    }
    assert_int_equal(read_one("deep", &d), FL_ERR_LIMIT);
    assert_non_null(strstr(fl_err_detail(), "more than 64 deep"));
}

static void the_question_stands_behind_an_empty_line(void **state) {
    char text[] = "Document.\r\n\n";
    const fl_documents d = {.text = text, .n_bytes = sizeof text - 1}, none = {0};
    fl_prompt p;
    (void)state;
    assert_int_equal(fl_prompt_make(&d, "Why?", &p), FL_ERR_OK);
    assert_string_equal(p.text, "Document.\n\nWhy?");
    assert_int_equal(p.n_bytes, 15);
    assert_int_equal(p.question_bytes, 4);
    fl_prompt_close(&p);
    assert_int_equal(fl_prompt_make(&none, "Why?", &p), FL_ERR_OK);
    assert_string_equal(p.text, "Why?");
    assert_int_equal(p.question_bytes, 0);
    fl_prompt_close(&p);
    assert_int_equal(fl_prompt_make(&d, "", &p), FL_ERR_OK);
    assert_string_equal(p.text, "Document.");
    fl_prompt_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(globs_match_as_git_says),
        cmocka_unit_test(hostile_globs_end),
        cmocka_unit_test(ignore_rules_of_deeper_folders_win),
        cmocka_unit_test(one_file_is_its_text_and_several_have_headers),
        cmocka_unit_test(a_folder_is_walked_as_a_repository),
        cmocka_unit_test(what_is_no_text_is_refused_by_name),
        cmocka_unit_test(folders_without_end_are_refused),
        cmocka_unit_test(the_question_stands_behind_an_empty_line),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
