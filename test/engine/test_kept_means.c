/* Means of blocks that a prompt's steps keep (model/kept_means.h), watched through the op table: every block is read
 * once, what is kept has the bits of means made at once, and nothing of another request or of a step that failed is
 * used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "support/asking.h"
#include "support/golden.h"

enum { CTX = 4096, SPAN = 512, BLOCK = 128, DOCUMENT = 1792 };

static struct watch {
    const fl_op_table *real;
    fl_op_table table;
    int64_t n_blocks;    /* read by block_mean since watching began */
    int32_t first_block; /* of the first call; -1 = none yet */
    int32_t calls_to_go; /* until one fails; -1 = none does */
} watch;

static fl_err watched_mean(fl_backend *be, const fl_block_mean_args *a) {
    if (watch.calls_to_go >= 0 && watch.calls_to_go-- == 0)
        return FL_FAIL(FL_ERR_INTERNAL, "a mean that the test lets fail");
    if (watch.first_block < 0) watch.first_block = a->block;
    watch.n_blocks += a->n_blocks;
    return watch.real->block_mean(be, a);
}

static void watch_again(int32_t calls_to_go) {
    watch.n_blocks = 0;
    watch.first_block = -1;
    watch.calls_to_go = calls_to_go;
}

static fl_engine *open_engine(int32_t span, const char *rope) {
    fl_settings s;
    fl_engine *e = NULL;
    fl_settings_default(&s);
    s.model_path = "build/models/spark-66m";
    s.ctx_tokens = CTX;
    s.kv_tokens = 2 * CTX;
    s.span_tokens = span;
    s.policy = "blocks:block=128,window=128,alpha=0.3";
    s.rope = rope;
    if (rope) s.rope_factor = 4;
    if (fl_engine_open(&s, &e) != FL_ERR_OK) fail_msg("open: %s", fl_err_detail());
    watch.real = e->be->op;
    watch.table = *e->be->op;
    watch.table.block_mean = watched_mean;
    e->be->op = &watch.table; /* the worker has nothing to do yet */
    watch_again(-1);
    return e;
}

/* The session stays open: its pages hold the prompt. */
static answer ask_in(fl_engine *e, const golden *g, fl_session **session) {
    assert_int_equal(fl_session_open(e, session), FL_ERR_OK);
    return finish(submit(*session, g->ids, g->n, DOCUMENT));
}

/* Of one layer and plane, made at once from the session's pages. */
static void assert_kept(const fl_engine *e, const fl_session *s, int32_t layer, int32_t plane) {
    const fl_kv_layer *kv = &e->kv[layer];
    const int64_t act = (int64_t)fl_dtype_bytes(e->be->act_dtype);
    const fl_mean_shape shape = {kv->latent_dim, kv->rope_dim, kv->planes > 1 ? kv->planes : 1, act};
    int32_t n = e->means.n_known;
    int64_t latent_bytes = n * kv->latent_dim * act, k_pe_bytes = n * kv->rope_dim * act;
    fl_block_mean_args args = {.kv = *kv, .pages = s->pages, .block_tokens = BLOCK, .n_blocks = n};
    const uint8_t *kept = e->means.memory + layer * fl_kept_means_bytes(&shape, e->means.n_max);
    args.kv.plane = plane;
    args.latent = aligned_alloc(64, (size_t)fl_align_up(latent_bytes, 64));
    args.k_pe = aligned_alloc(64, (size_t)fl_align_up(k_pe_bytes, 64));
    assert_true(args.latent && args.k_pe);
    assert_int_equal(watch.real->block_mean(e->be, &args), FL_ERR_OK);
    assert_memory_equal(kept, args.latent, (size_t)latent_bytes);
    kept += fl_kept_latent_bytes(&shape, e->means.n_max) + plane * fl_kept_k_pe_bytes(&shape, e->means.n_max);
    assert_memory_equal(kept, args.k_pe, (size_t)k_pe_bytes);
    free(args.latent);
    free(args.k_pe);
}

static void each_block_is_read_once(void **state) {
    (void)state;
    golden g;
    golden_read("doc2k", &g);
    const char *const ropes[] = {NULL, "two-path"};
    for (int32_t planes = 1; planes <= 2; planes++) {
        fl_engine *e = open_engine(SPAN, ropes[planes - 1]);
        fl_session *s = NULL;
        assert_int_equal(ask_in(e, &g, &s).finish, FL_FINISH_LENGTH);
        assert_int_equal(e->means.n_known, DOCUMENT / BLOCK);
        assert_int_equal(watch.n_blocks, e->config->layers * planes * (DOCUMENT / BLOCK));
        for (int32_t i = 0; i < e->config->layers; i++)
            for (int32_t p = 0; p < planes; p++) assert_kept(e, s, i, p);
        fl_session_close(s);
        fl_engine_close(e);
    }
    golden_free(&g);
}

static answer ask_alone(const golden *g) {
    fl_engine *e = open_engine(4096, NULL);
    fl_session *s = NULL;
    answer a = ask_in(e, g, &s);
    fl_session_close(s);
    fl_engine_close(e);
    return a;
}

static void spoil(const fl_engine *e) {
    const uint8_t *end = (const uint8_t *)e->kv_memory + e->kv_bytes;
    memset(e->means.memory, 0xff, (size_t)(end - e->means.memory));
}

/* A document that begins as the one before: its first pages come from the prefix cache, their means from nowhere. */
static void a_request_begins_with_none(void **state) {
    (void)state;
    golden g;
    fl_session *s = NULL;
    golden_read("doc2k", &g);
    g.ids[1100] ^= 1;
    answer expected = ask_alone(&g);
    fl_engine *e = open_engine(SPAN, NULL);
    g.ids[1100] ^= 1;
    ask_in(e, &g, &s);
    fl_session_close(s);
    g.ids[1100] ^= 1;
    spoil(e);
    watch_again(-1);
    answer found = ask_in(e, &g, &s);
    assert_int_equal(found.cached, 1024);
    assert_int_equal(watch.first_block, 0);
    assert_same(&expected, &found);
    assert_kept(e, s, 0, 0);
    fl_session_close(s);
    /* All of its own pages are found, and none of the other's tile: that one read other blocks. */
    found = ask_in(e, &g, &s);
    assert_int_equal(found.cached, DOCUMENT);
    assert_same(&expected, &found);
    fl_session_close(s);
    fl_engine_close(e);
    golden_free(&g);
}

/* Half of the layers of a second step have written theirs when it ends. */
static void a_failed_step_leaves_none(void **state) {
    (void)state;
    golden g;
    fl_session *s = NULL;
    golden_read("doc2k", &g);
    answer expected = ask_alone(&g);
    fl_engine *e = open_engine(SPAN, NULL);
    watch_again(e->config->layers + e->config->layers / 2);
    assert_int_equal(ask_in(e, &g, &s).finish, FL_FINISH_ERROR);
    assert_int_equal(e->means_of, 0);
    fl_session_close(s);
    spoil(e);
    watch_again(-1);
    answer found = ask_in(e, &g, &s);
    assert_int_equal(watch.first_block, 0);
    assert_same(&expected, &found);
    fl_session_close(s);
    fl_engine_close(e);
    golden_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_block_is_read_once),
        cmocka_unit_test(a_request_begins_with_none),
        cmocka_unit_test(a_failed_step_leaves_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
