/* Every attention policy, position method and KV format through the engine: contract 1 (an answer does not depend on
 * how its prompt was cut into steps or on what was cached), and patterns that cover everything give the bits of full
 * attention. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <firstlight/firstlight.h>

#include "support/asking.h"
#include "support/golden.h"

enum { CTX = 4096 };

typedef struct variant {
    const char *policy, *tail, *rope, *kv_dtype;
    double rope_factor;
} variant;

static fl_engine *open_engine(const variant *v, int32_t span, const char *backend) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.deterministic = true; /* of a GPU; CPUs always are */
    s.model_path = "build/models/spark-66m";
    s.backend = backend;
    s.ctx_tokens = CTX;
    s.kv_tokens = 2 * CTX;
    s.span_tokens = span;
    s.policy = v->policy;
    if (v->tail) s.tail = v->tail;
    if (v->rope) s.rope = v->rope;
    if (v->kv_dtype) s.kv_dtype = v->kv_dtype;
    s.rope_factor = v->rope_factor;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open %s: %s", v->policy, fl_err_detail());
    return e;
}

static void expect_same(const variant *v, const answer *a, const answer *b) {
    assert_int_equal(b->finish, FL_FINISH_LENGTH);
    for (int i = 0; i < ANSWER; i++)
        if (a->tokens[i] != b->tokens[i] || !(a->logprobs[i] == b->logprobs[i]))
            fail_msg("%s %s %s: bits differ at %d: %.9g and %.9g", v->policy, v->rope ? v->rope : "",
                     v->kv_dtype ? v->kv_dtype : "", i, (double)a->logprobs[i], (double)b->logprobs[i]);
}

static const variant variants[] = {
    {.policy = "window:window=200"},
    {.policy = "window-anchors:window=150,stride=33"},
    {.policy = "window-anchors:window=150,stride=33", .tail = "sparse"},
    {.policy = "segments:4,window=100,stride=70"},
    {.policy = "blocks:window=128,alpha=0.3"},
    {.policy = "blocks:block=128,window=256,alpha=0.5"},
    {.policy = "random-blocks:window=128,alpha=0.3"},
    {.policy = "full", .rope = "two-path", .rope_factor = 4},
    {.policy = "window-anchors:window=150,stride=33", .rope = "yarn", .rope_factor = 2},
    {.policy = "full", .rope = "ntk", .rope_factor = 2},
};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

static void bits_do_not_depend_on_cutting_or_cache(void **state) {
    (void)state;
    golden g;
    golden_read("doc2k", &g);
    int64_t document = g.n - 90;
    for (int i = 0; i < N_VARIANTS; i++) {
        const variant *v = &variants[i];
        fl_engine *whole = open_engine(v, 4096, "auto"), *cut = open_engine(v, 256, "auto");
        answer miss = ask(whole, g.ids, g.n, document), pieces = ask(cut, g.ids, g.n, document);
        answer hit = ask(cut, g.ids, g.n, document);
        assert_int_equal(miss.cached, 0);
        assert_true(hit.cached > document - 128);
        expect_same(v, &miss, &pieces);
        expect_same(v, &miss, &hit);
        fl_engine_close(whole);
        fl_engine_close(cut);
    }
    golden_free(&g);
}

/* Patterns that leave nothing out. */
static void covering_patterns_are_full_attention(void **state) {
    (void)state;
    static const variant covering[] = {
        {.policy = "window:window=4k"},
        {.policy = "window-anchors:window=4k,stride=100"},
        {.policy = "window-anchors:window=4k,stride=100", .tail = "sparse"},
        {.policy = "segments:1,window=64,stride=64"},
        {.policy = "blocks:window=4k,capacity=64"},
        {.policy = "blocks:window=64,alpha=1e-30,capacity=64"},
    };
    golden g;
    golden_read("doc2k", &g);
    const variant full = {.policy = "full"};
    fl_engine *e = open_engine(&full, 1024, "auto");
    int64_t document = g.n - 90;
    answer expected = ask(e, g.ids, g.n, (document - document % 128));
    fl_engine_close(e);
    for (size_t i = 0; i < sizeof covering / sizeof *covering; i++) {
        e = open_engine(&covering[i], 1024, "auto");
        answer found = ask(e, g.ids, g.n, document - document % 128);
        expect_same(&covering[i], &expected, &found);
        fl_engine_close(e);
    }
    golden_free(&g);
}

static void settings_that_cannot_be_are_refused(void **state) {
    (void)state;
    static const struct {
        variant v;
        int64_t ctx_tokens;
        bool force;
        fl_err err;
        const char *says;
    } cases[] = {
        {{.policy = "dense"}, CTX, false, FL_ERR_INVALID, "'dense'"},
        {{.policy = "full", .tail = "some"}, CTX, false, FL_ERR_INVALID, "tail"},
        {{.policy = "blocks", .tail = "sparse"}, CTX, false, FL_ERR_UNSUPPORTED, "tail"},
        {{.policy = "full", .rope = "alibi"}, CTX, false, FL_ERR_INVALID, "rope"},
        {{.policy = "full", .rope = "yarn"}, CTX, false, FL_ERR_INVALID, "rope_factor"},
        {{.policy = "full", .rope_factor = 2}, CTX, false, FL_ERR_INVALID, "rope_factor"},
        {{.policy = "full"}, 200000, false, FL_ERR_INVALID, "trusted to 131072"},
        {{.policy = "full", .rope = "yarn", .rope_factor = 1.5}, 200000, false, FL_ERR_INVALID, "196608"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_settings s;
        fl_engine *e = NULL;
        fl_settings_default(&s);
        s.deterministic = true; /* of a GPU; CPUs always are */
        s.model_path = "build/models/spark-66m";
        s.ctx_tokens = cases[i].ctx_tokens;
        s.policy = cases[i].v.policy;
        if (cases[i].v.tail) s.tail = cases[i].v.tail;
        if (cases[i].v.rope) s.rope = cases[i].v.rope;
        s.rope_factor = cases[i].v.rope_factor;
        assert_int_equal(fl_engine_open(&s, &e), cases[i].err);
        if (!strstr(fl_err_detail(), cases[i].says)) fail_msg("case %zu: %s", i, fl_err_detail());
    }
}

static void forced_positions_are_warned_of(void **state) {
    (void)state;
    fl_settings s;
    fl_engine *e = NULL;
    fl_engine_info info;
    fl_settings_default(&s);
    s.deterministic = true; /* of a GPU; CPUs always are */
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = 140000;
    s.kv_tokens = 1024;
    s.force_positions = true;
    assert_int_equal(fl_engine_open(&s, &e), FL_ERR_OK);
    fl_engine_get_info(e, &info);
    assert_non_null(info.position_warning);
    assert_non_null(strstr(info.position_warning, "131072"));
    fl_engine_close(e);
    s.force_positions = false;
    s.rope = "yarn";
    s.rope_factor = 4;
    assert_int_equal(fl_engine_open(&s, &e), FL_ERR_OK);
    fl_engine_get_info(e, &info);
    assert_null(info.position_warning);
    fl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_cutting_or_cache),
        cmocka_unit_test(covering_patterns_are_full_attention),
        cmocka_unit_test(settings_that_cannot_be_are_refused),
        cmocka_unit_test(forced_positions_are_warned_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
