/* The engine with quantised KV: bits do not depend on cutting or cache, and every backend runs every format. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <firstlight/firstlight.h>

#include "backend/backend.h"
#include "support/asking.h"
#include "support/golden.h"

static fl_engine *open_format(const char *backend, const char *kv_dtype, int32_t span) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_engine_info info;
    fl_settings_default(&s);
    s.model_path = "build/models/spark-66m";
    s.backend = backend;
    s.kv_dtype = kv_dtype;
    s.ctx_tokens = 2048;
    s.span_tokens = span;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open %s: %s", kv_dtype, fl_err_detail());
    fl_engine_get_info(e, &info);
    assert_string_equal(info.kv_dtype, kv_dtype);
    return e;
}

/* Quantise, then attend: every key is read as stored, so a cached page is as good as one just written. */
static void quantised_kv_keeps_its_bits(void **state) {
    (void)state;
    const char *const formats[] = {"fp8", "int4"};
    const int64_t bytes_a_token[] = {8 * 196, 8 * 144};
    golden g;
    golden_read("doc2k", &g);
    for (int i = 0; i < 2; i++) {
        fl_engine *whole = open_format("auto", formats[i], 2048), *cut = open_format("auto", formats[i], 192);
        fl_engine_info info;
        fl_engine_get_info(whole, &info);
        assert_int_equal(info.kv_bytes, bytes_a_token[i] * info.kv_tokens);
        answer miss = ask(whole, g.ids, 1200, -1), pieces = ask(cut, g.ids, 1200, -1);
        answer hit = ask(cut, g.ids, 1200, -1);
        assert_int_equal(miss.cached, 0);
        assert_int_equal(hit.cached, 1199 / 64 * 64);
        assert_same(&miss, &pieces);
        assert_same(&miss, &hit);
        fl_engine_close(whole);
        fl_engine_close(cut);
    }
    golden_free(&g);
}

/* On every backend, an answer begins as with the finest format. */
static void quantised_kv_runs_on_every_backend(void **state) {
    (void)state;
    const char *const backends[] = {"avx512", "avx2", "reference"};
    const char *const formats[] = {"bf16", "fp8", "int4", "int4-naive"};
    golden g;
    golden_read("chat", &g);
    for (int i = 0; i < 3; i++) {
        answer finest = {0};
        if (fl_backend_available(backends[i]))
            for (int k = 0; k < 4; k++) {
                fl_engine *e = open_format(backends[i], formats[k], 0);
                answer a = ask(e, g.ids, g.n, -1);
                if (k == 0) finest = a;
                assert_int_equal(a.n, ANSWER);
                assert_int_equal(a.tokens[0], finest.tokens[0]);
                print_message("%s %s: log-prob %.4f, by bf16 %.4f\n", backends[i], formats[k],
                              (double)a.logprobs[0], (double)finest.logprobs[0]);
                assert_true(fabs((double)(a.logprobs[0] - finest.logprobs[0])) < 0.5);
                fl_engine_close(e);
            }
    }
    golden_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantised_kv_keeps_its_bits),
        cmocka_unit_test(quantised_kv_runs_on_every_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
