/* The DeepSeek-V3 tokenizer against ids that Hugging Face's library gave for the mixed text: per chunk their number and
 * a hash. Where npm is reachable `make compare-tokenizer` compares token by token and says where they differ. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/mixed_text.h"
#include "text/tokenizer.h"
#include "tools/tokenpack.h"

typedef struct golden {
    uint32_t n_ids, text_hash;
    uint64_t ids_hash;
} golden;

static fl_tokenizer *tokenizer;

/* Reads and unpacks with `decode`. */
static char *read_packed(const char *name, fl_err (*decode)(const char *, size_t, char **, size_t *),
                         size_t *n_bytes) {
    char *packed, *bytes;
    size_t packed_bytes;
    assert_int_equal(fl_file_read("test/data", name, (size_t)1 << 24, &packed, &packed_bytes), FL_ERR_OK);
    assert_int_equal(decode(packed, packed_bytes, &bytes, n_bytes), FL_ERR_OK);
    free(packed);
    return bytes;
}

static int open_tokenizer(void **state) {
    (void)state;
    size_t n_bytes;
    char *json = read_packed("deepseek-v3.tokenpack", fl_tokenpack_decode, &n_bytes);
    fl_err err = fl_tokenizer_open_memory(json, n_bytes, &tokenizer);
    free(json);
    if (err != FL_ERR_OK) print_error("%s\n", fl_err_detail());
    return err == FL_ERR_OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    fl_tokenizer_close(tokenizer);
    return 0;
}

static void ids_of_the_mixed_text_are_the_reference(void **state) {
    (void)state;
    size_t document_bytes, golden_bytes, n_different = 0, n_tokens = 0;
    char *document = read_packed("mixed_text.zst", fl_frame_decode, &document_bytes), *rows;
    assert_int_equal(
        fl_file_read("test/golden", "tokenizer_deepseek_v3.bin", (size_t)1 << 24, &rows, &golden_bytes),
        FL_ERR_OK);
    mixed_text *m = mixed_text_open(tokenizer, document, document_bytes);
    assert_non_null(m);
    assert_int_equal(golden_bytes, mixed_text_count(m) * sizeof(golden));
    for (size_t i = 0; i < mixed_text_count(m); i++) {
        golden want;
        memcpy(&want, rows + i * sizeof want, sizeof want);
        size_t n_bytes;
        const char *text = mixed_text_chunk(m, i, &n_bytes);
        const fl_text_span all = {0, n_bytes};
        int32_t *ids;
        int64_t n_ids;
        assert_int_equal((uint32_t)mixed_hash(text, n_bytes), want.text_hash);
        assert_int_equal(fl_tokenizer_encode(tokenizer, text, n_bytes, &all, 1, &ids, &n_ids), FL_ERR_OK);
        if (n_ids != want.n_ids || mixed_hash(ids, (size_t)n_ids * sizeof *ids) != want.ids_hash) {
            print_error("%s: other ids than the reference's %u\n", mixed_text_name(m, i), want.n_ids);
            n_different++;
        }
        n_tokens += (size_t)n_ids;
        free(ids);
    }
    assert_int_equal(n_different, 0);
    assert_true(n_tokens > 1000000);
    mixed_text_close(m);
    free(document);
    free(rows);
}

static void ids_above_the_last_token_mean_nothing(void **state) {
    (void)state;
    size_t n;
    assert_int_equal(fl_tokenizer_n_vocab(tokenizer), 128815);
    for (int32_t id = 128815; id < 129280; id++) assert_null(fl_tokenizer_token_bytes(tokenizer, id, &n));
}

static void added_tokens_are_control_tokens_only_where_marked(void **state) {
    (void)state;
    int32_t id;
    assert_int_equal(fl_tokenizer_find(tokenizer, "<\uff5cUser\uff5c>", &id), FL_ERR_OK);
    assert_int_equal(id, 128803);
    assert_false(fl_tokenizer_is_control(tokenizer, id));
    assert_int_equal(fl_tokenizer_find(tokenizer, "<|EOT|>", &id), FL_ERR_OK);
    assert_int_equal(id, 128805);
    assert_true(fl_tokenizer_is_control(tokenizer, id));
    /* Added, hidden or not: none of them comes out of text that nobody vouches for. */
    static const char TEXT[] = "<\uff5cUser\uff5c>x<|EOT|><\uff5cend\u2581of\u2581sentence\uff5c>";
    int32_t *ids;
    int64_t n_ids;
    assert_int_equal(fl_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), NULL, 0, &ids, &n_ids), FL_ERR_OK);
    for (int64_t i = 0; i < n_ids; i++) assert_true(ids[i] > 2 && ids[i] < 128000);
    free(ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_the_mixed_text_are_the_reference),
        cmocka_unit_test(ids_above_the_last_token_mean_nothing),
        cmocka_unit_test(added_tokens_are_control_tokens_only_where_marked),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
