/* Any bytes as text, in and out of trust: the first byte says how many spans, the second where they lie. Tokens put
 * together are the text, whatever is trusted; streaming gives what decoding at once gives. */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

#define ADDED(id, text, normalized)                                                                          \
    "{\"id\":" #id ",\"content\":\"" text "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"      \
    "\"normalized\":" #normalized ",\"special\":true}"

static const char HEAD[] =
    "{\"added_tokens\":[" ADDED(300, "<a>", false) "," ADDED(301, "<a><b>", true) "," ADDED(
        302, "\u20ac", false) "],"
                              "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                              "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},\"behavior\":"
                              "\"Isolated\",\"invert\":false},"
                              "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\u4e00-\u9fa5\u3040-"
                              "\u309f\u30a0-\u30ff]+\"},\"behavior\":"
                              "\"Isolated\",\"invert\":false},"
                              "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[!\\\"#$%&'()*+,\\\\-./"
                              ":;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|"
                              "[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| "
                              "?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|"
                              "\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"
                              "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
                              "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[";
static const char *const MERGES[][2] = {{"t", "h"},  {"th", "e"},  {"e", "e"}, {"ee", "ee"}, {"a", "a"},
                                        {"b", "aa"}, {"aa", "aa"}, {"h", "e"}, {"1", "2"},   {"<", "a"}};
enum { N_MERGES = sizeof MERGES / sizeof *MERGES };

/* Tokens 0 .. 255 are the bytes in the byte alphabet, then come the merges. */
static fl_tokenizer *small_tokenizer(void) {
    static char json[16384];
    int at = snprintf(json, sizeof json, "%s", HEAD), next = 0x100;
    for (int i = 0; i < N_MERGES; i++)
        at += sprintf(json + at, "%s[\"%s\",\"%s\"]", i ? "," : "", MERGES[i][0], MERGES[i][1]);
    at += sprintf(json + at, "],\"vocab\":{");
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        at += sprintf(json + at, "\"\\u%04x\":%d,", (unsigned)(printable ? byte : next++), byte);
    }
    for (int i = 0; i < N_MERGES; i++)
        at += sprintf(json + at, "\"%s%s\":%d%s", MERGES[i][0], MERGES[i][1], 256 + i,
                      i + 1 < N_MERGES ? "," : "}}}");
    fl_tokenizer *t;
    if (fl_tokenizer_open_memory(json, (size_t)at, &t) == FL_ERR_OK) return t;
    fprintf(stderr, "%s\n", fl_err_detail());
    abort();
}

static void check_tokens(const fl_tokenizer *t, const char *text, size_t n, const int32_t *ids,
                         int64_t n_ids) {
    size_t at = 0, length;
    for (int64_t i = 0; i < n_ids; i++) {
        const char *token = fl_tokenizer_token_bytes(t, ids[i], &length);
        if (!token || length > n - at || memcmp(text + at, token, length) != 0) abort();
        at += length;
    }
    if (at != n) abort();
}

static void check_decoding(const fl_tokenizer *t, const int32_t *ids, int64_t n_ids) {
    char *whole, out[FL_DETOK_OUT_BYTES];
    size_t n_whole, at = 0, n;
    if (fl_tokenizer_decode(t, ids, n_ids, true, &whole, &n_whole) != FL_ERR_OK) abort();
    fl_detok d;
    fl_detok_init(&d, true);
    for (int64_t i = 0; i <= n_ids; i++) {
        if (i < n_ids) fl_detok_push(t, &d, ids[i], out, &n);
        else fl_detok_finish(&d, out, &n);
        if (n > n_whole - at || memcmp(whole + at, out, n) != 0) abort();
        if (n > 0 && ((uint8_t)out[0] & 0xc0) == 0x80) abort(); /* begins inside a code point */
        at += n;
    }
    if (at != n_whole) abort();
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static fl_tokenizer *t;
    if (!t) t = small_tokenizer();
    if (n_bytes < 2) return 0;
    const char *text = (const char *)bytes + 2;
    size_t n = n_bytes - 2, n_spans = bytes[0] % 4, step = bytes[1] + 1;
    fl_text_span spans[3];
    for (size_t i = 0; i < n_spans; i++) {
        size_t begin = i * 2 * step, end = begin + step;
        spans[i] = (fl_text_span){begin < n ? begin : n, end < n ? end : n};
    }
    int32_t *ids;
    int64_t n_ids;
    if (fl_tokenizer_encode(t, text, n, spans, n_spans, &ids, &n_ids) != FL_ERR_OK) abort();
    for (int64_t i = 0; i < n_ids && n_spans == 0; i++)
        if (ids[i] >= 300) abort(); /* an added token without trust */
    check_tokens(t, text, n, ids, n_ids);
    check_decoding(t, ids, n_ids);
    free(ids);
    return 0;
}
