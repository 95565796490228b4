/* The plan and the guard, for random models, settings and mixes of requests: what a step's arena takes never
 * exceeds what was planned, and the worst mix comes close to it; a step that the guard let through fits
 * whatever was reserved. Steps run as the engine builds them, over all layers, on a backend that computes
 * nothing: what a step takes depends on the sizes of its tensors alone, routing and lists having the room of
 * their worst case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/attend_config.h"
#include "plan/guard.h"

enum { STEPS = 4 };

/* ---- random cases ---- */

static uint64_t random_state;

static uint32_t draw(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static int32_t between(int32_t low, int32_t high) {
    return low + (int32_t)draw((uint32_t)(high - low + 1));
}

/* As likely small as large. */
static int32_t scaled(int32_t low, int32_t high) {
    int32_t octaves = 0;
    while (low << (octaves + 1) <= high) octaves++;
    int32_t base = low << draw((uint32_t)octaves + 1);
    return between(base, base * 2 - 1 < high ? base * 2 - 1 : high);
}

typedef struct setup {
    uint64_t seed;
    const char *backend;
    fl_config config;
    fl_settings settings;
    char policy[96];
    fl_attend_config attending;
    fl_kv_shape kv;
    fl_backend *be;
    fl_weights *weights;
    fl_dry_run *dry;
    fl_kv_layer *layers;
    int32_t ctx, span, requests_max, tile;
    fl_memory_plan plan;
} setup;

static void draw_config(setup *s, bool codes) {
    int32_t unit = codes ? 128 : 64, head = strstr(s->backend, "avx512") ? 64 : 16;
    s->config = (fl_config){.model_type_name = "deepseek_v3",
                            .hidden = unit * between(1, 6),
                            .layers = between(1, 4),
                            .heads = between(1, 8),
                            .q_lora_rank = draw(2) ? unit * between(1, 3) : 0,
                            .kv_lora_rank = 64 * between(1, 6),
                            .qk_nope_head_dim = codes ? 128 : head * between(1, 4),
                            .qk_rope_head_dim = 16 * between(1, 4),
                            .v_head_dim = codes ? 128 : head * between(1, 4),
                            .intermediate = unit * between(1, 12),
                            .moe_intermediate = unit * between(1, 4),
                            .n_routed_experts = draw(4) ? between(4, 24) : 0,
                            .n_shared_experts = between(0, 2),
                            .experts_per_token = between(1, 4),
                            .first_k_dense_replace = between(0, 2),
                            .moe_layer_freq = between(1, 2),
                            .n_group = 1,
                            .topk_group = 1,
                            .scoring = FL_SCORING_SIGMOID,
                            .topk_method = FL_TOPK_NOAUX_TC,
                            .norm_topk_prob = true,
                            .routed_scaling_factor = 2.5,
                            .rms_norm_eps = 1e-6,
                            .rope_theta = 10000,
                            .max_position_embeddings = 4096,
                            .bos_id = -1,
                            .vocab_size = 256 * between(1, 64)};
    if (codes) s->config.quantisation = (fl_quantisation){FL_QUANTISATION_FP8, 128, 128};
}

static bool is_built(const char *backend) {
    for (const char *const *name = fl_backend_names(); *name; name++)
        if (strcmp(*name, backend) == 0) return true;
    return false;
}

static void draw_settings(setup *s) {
    static const char *const policies[] = {"full",       "window", "window-anchors",
                                           "segments:3", "blocks", "blocks:block=128"};
    static const char *const backends[] = {"count:reference", "count:avx2",           "count:avx512",
                                           "count:cuda",      "count:reference-w8a8", "count:cuda-w8a8"};
    s->backend = backends[draw(6)];
    if (strcmp(s->backend, "count:avx512") == 0 && !is_built("avx512")) s->backend = "count:avx2";
    draw_config(s, strstr(s->backend, "w8a8") != NULL);
    snprintf(s->policy, sizeof s->policy, "%s", policies[draw(6)]);
    bool blocks = strncmp(s->policy, "blocks", 6) == 0, device = strstr(s->backend, "cuda") != NULL;
    s->ctx = scaled(512, 1 << 18);
    s->tile = blocks ? FL_ATTN_LIST_ROWS : FL_KV_PAGE_TOKENS;
    s->span = fl_memory_plan_span(s->ctx, scaled(1, device ? 512 : 128) * s->tile);
    s->requests_max = scaled(1, 128);
    fl_settings_default(&s->settings);
    s->settings.synthetic = "none";
    s->settings.policy = s->policy;
    s->settings.tail = !blocks && draw(3) == 0 ? "sparse" : "dense";
    s->settings.rope = draw(3) == 0 ? "two-path" : "model";
    if (strcmp(s->settings.rope, "two-path") == 0) s->settings.rope_factor = between(2, 8);
}

static void must(const setup *s, fl_err err) {
    if (err == FL_ERR_OK) return;
    fail_msg("seed %llu: %s, %s, ctx %d, span %d, requests %d: %s", (unsigned long long)s->seed, s->backend,
             s->policy, s->ctx, s->span, s->requests_max, fl_err_detail());
}

static void setup_open(uint64_t seed, setup *s) {
    static const fl_kv_format formats[] = {FL_KV_BF16, FL_KV_FP8, FL_KV_INT4};
    *s = (setup){.seed = seed};
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    draw_settings(s);
    must(s, fl_backend_open(s->backend, 1, &s->be));
    must(s, fl_attend_config_open(&s->config, &s->settings, s->ctx, &s->attending));
    s->kv = fl_kv_shape_of_config(&s->config, formats[draw(3)]);
    fl_attend_config_shape(&s->attending, &s->kv);
    must(s, fl_weights_shape(s->be, &s->config, &s->weights));
    must(s, fl_dry_run_open(&s->config, s->be, &s->kv, &s->attending.attend, &s->dry));
    s->layers = calloc((size_t)s->config.layers, sizeof *s->layers);
    for (int32_t i = 0; i < s->config.layers; i++) s->layers[i] = fl_kv_shape_layer(&s->kv, i);
    const fl_memory_sizes sizes = {.ctx_tokens = s->ctx,
                                   .kv_tokens = s->ctx,
                                   .span_tokens = s->span,
                                   .requests_max = s->requests_max,
                                   .kv = s->kv};
    must(s, fl_memory_plan_make(s->dry, &s->config, &sizes, &s->plan));
    fl_backend_count_costs(s->be, false);
}

static void setup_close(setup *s) {
    free(s->layers);
    fl_dry_run_close(s->dry);
    fl_weights_close(s->weights);
    fl_attend_config_close(&s->attending);
    fl_backend_close(s->be);
}

static fl_guard *open_guard(const setup *s, int64_t level_bytes) {
    fl_guard *guard = NULL;
    const fl_guard_options options = {.config = &s->config,
                                      .like = s->be,
                                      .kv = &s->kv,
                                      .attend = &s->attending.attend,
                                      .level_bytes = level_bytes,
                                      .ctx_tokens = s->ctx,
                                      .requests_max = s->requests_max,
                                      .tile_rows = s->tile};
    must(s, fl_guard_open(&options, &guard));
    return guard;
}

/* ---- steps ---- */

/* A step of some requests: a piece of one prompt, the position of each that decodes. */
typedef struct mix {
    fl_dry_rows rows;
    int32_t decode_pos[FL_DECODE_ROWS_MAX];
} mix;

/* Runs it through all layers in an arena of so many bytes; what it took. */
static int64_t run(const setup *s, const mix *m, int64_t arena_bytes) {
    static uint8_t memory[64] __attribute__((aligned(64))); /* addresses behind it are made, never used */
    static const float table[2];
    fl_kv_rows seqs[2 + FL_DECODE_ROWS_MAX];
    int32_t logit_rows[FL_LOGIT_ROWS_MAX] = {0}, n = 0, row = 0;
    const fl_dry_rows *r = &m->rows;
    if (r->document_rows > 0) seqs[n++] = (fl_kv_rows){.n_rows = r->document_rows, .pos = r->document_pos};
    row = r->document_rows;
    if (r->tail_rows > 0) seqs[n++] = (fl_kv_rows){.row = row, .n_rows = r->tail_rows, .pos = r->tail_pos};
    row += r->tail_rows;
    for (int32_t i = 0; i < r->decode_rows; i++)
        seqs[n++] = (fl_kv_rows){.row = row++, .n_rows = 1, .pos = m->decode_pos[i]};
    fl_attend attend = s->attending.attend;
    attend.listed = attend.visible = attend.overflow = NULL;
    const fl_step step = {
        .rows = row,
        .seqs = seqs,
        .n_seqs = n,
        .n_document = r->document_rows > 0,
        .kv = s->layers,
        .rope_table = table,
        .far_q_table = attend.near_tokens > 0 ? table : NULL,
        .far_k_table = attend.near_tokens > 0 ? table : NULL,
        .attend = &attend,
        .means = {.memory = attend.blocks ? memory : NULL, .n_max = fl_dry_run_kept_blocks(s->dry, s->ctx)},
        .softmax_scale = 1,
        .logit_rows = logit_rows,
        .n_logit_rows = r->n_logits};
    fl_arena arena;
    fl_arena_init(&arena, memory, arena_bytes);
    must(s, fl_forward(s->weights, &step, &arena));
    assert_int_equal(arena.used_bytes, 0);
    return arena.peak_bytes;
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t whole_tiles(const setup *s, int32_t rows) {
    return rows - rows % s->tile;
}

/* Somewhere in a random prompt, cut as a scheduler may cut it, with random others beside it. */
static mix draw_mix(const setup *s) {
    mix m = {0};
    fl_dry_rows *r = &m.rows;
    int32_t prompt = scaled(1, s->ctx - 1), document = whole_tiles(s, between(0, prompt));
    int32_t pos = document > 0 ? whole_tiles(s, between(0, document)) : between(0, prompt - 1);
    r->decode_rows = between(0, least(s->requests_max - 1, FL_DECODE_ROWS_MAX));
    for (int32_t i = 0; i < r->decode_rows; i++) {
        m.decode_pos[i] = draw(3) ? scaled(1, s->ctx - 1) : s->ctx - 1;
        if (m.decode_pos[i] > r->decode_pos) r->decode_pos = m.decode_pos[i];
    }
    r->document_pos = pos;
    if (pos < document) {
        r->document_rows = least(document - pos, s->span);
        if (draw(2)) r->document_rows = whole_tiles(s, between(s->tile, r->document_rows));
    }
    r->tail_pos = pos + r->document_rows;
    if (r->tail_pos >= document && r->tail_pos < prompt)
        r->tail_rows = between(1, least(prompt - r->tail_pos, FL_TAIL_ROWS_MAX - r->decode_rows));
    bool last = r->tail_pos + r->tail_rows == prompt;
    int32_t scored = 0;
    if (draw(4) == 0) { /* those of the tail, or of a piece of a document by itself */
        scored = least(FL_SCORED_ROWS_MAX, r->tail_rows - last);
        if (r->document_rows > 0 && r->document_rows <= FL_SCORED_ROWS_MAX && r->tail_rows == 0)
            scored = r->document_rows - last;
    }
    r->n_logits = r->decode_rows + last + (scored > 0 ? scored : 0);
    return m;
}

typedef enum worst {
    LONGEST_DOCUMENT, /* and what is left of the context as tail */
    LONGEST_TAIL,     /* behind it, of the longest prompt */
    WHOLE_TAIL,       /* of a prompt that is a little shorter: a document comes in tiles */
    TAIL_ALONE,
    SCORED_DOCUMENT,
    ANSWERS_ALONE,
    N_WORST
} worst;

/* At the context's end, everybody else decoding there, all logits. */
static mix worst_mix(const setup *s, worst kind) {
    mix m = {0};
    fl_dry_rows *r = &m.rows;
    int32_t prompt = s->ctx - 1, document = whole_tiles(s, prompt), beside = kind == ANSWERS_ALONE ? 0 : 1;
    r->decode_rows = least(s->requests_max - beside, FL_DECODE_ROWS_MAX);
    r->decode_pos = s->ctx - 1;
    for (int32_t i = 0; i < r->decode_rows; i++) m.decode_pos[i] = s->ctx - 1;
    int32_t tail = FL_TAIL_ROWS_MAX - r->decode_rows;
    while (kind == LONGEST_TAIL && prompt - document + s->tile <= tail) document -= s->tile;
    if (kind == WHOLE_TAIL) document = whole_tiles(s, prompt - tail);
    if (kind == TAIL_ALONE) document = prompt - tail;
    r->tail_rows = kind <= TAIL_ALONE ? least(tail, prompt - document) : 0;
    r->tail_pos = document;
    r->document_rows = kind == TAIL_ALONE || kind == ANSWERS_ALONE ? 0 : least(s->span, document);
    if (kind == SCORED_DOCUMENT) r->document_rows = least(r->document_rows, FL_SCORED_ROWS_MAX);
    r->document_pos = document - r->document_rows;
    r->n_logits = r->decode_rows + beside;
    if (r->tail_rows > 0) r->n_logits += least(FL_SCORED_ROWS_MAX, r->tail_rows - 1);
    if (kind == SCORED_DOCUMENT) r->n_logits = r->decode_rows + r->document_rows;
    return m;
}

/* ---- properties ---- */

static void check_guard(const setup *s, fl_guard *planned, const mix *m) {
    int64_t need;
    fl_dry_rows rows = m->rows;
    bool fits = false;
    must(s, fl_guard_need(planned, &rows, &need));
    int64_t taken = run(s, m, s->plan.scratch_bytes); /* fails when it is more than planned */
    if (need < taken)
        fail_msg("seed %llu: a step takes %lld bytes, the guard saw %lld", (unsigned long long)s->seed,
                 (long long)taken, (long long)need);
    must(s, fl_guard_cut(planned, &rows, &fits));
    assert_true(fits);
    assert_int_equal(rows.document_rows,
                     m->rows.document_rows); /* nothing is cut where the plan is reserved */
    assert_int_equal(rows.tail_rows, m->rows.tail_rows);
}

/* With less reserved than the plan: what is let through fits, and what is cut is a step all the same. */
static void check_cut(const setup *s, fl_guard *tight, int64_t level_bytes, const mix *m) {
    mix cut = *m;
    bool fits = false;
    must(s, fl_guard_cut(tight, &cut.rows, &fits));
    assert_true(cut.rows.document_rows <= m->rows.document_rows && cut.rows.tail_rows <= m->rows.tail_rows);
    assert_int_equal(cut.rows.decode_rows, m->rows.decode_rows);
    assert_int_equal(cut.rows.document_rows % s->tile, 0);
    if (cut.rows.document_rows < m->rows.document_rows) assert_int_equal(cut.rows.tail_rows, 0);
    if (m->rows.document_rows > 0) assert_true(cut.rows.document_rows >= s->tile);
    else if (m->rows.tail_rows > 0) assert_true(cut.rows.tail_rows >= 1);
    if (fits && cut.rows.document_rows + cut.rows.tail_rows + cut.rows.decode_rows > 0)
        assert_true(run(s, &cut, level_bytes) <= level_bytes);
}

static int64_t level_of_answers(const setup *s, fl_guard *planned) {
    int32_t n = least(s->requests_max, FL_DECODE_ROWS_MAX);
    int64_t bytes;
    must(s, fl_guard_need(planned, &(fl_dry_rows){.decode_rows = n, .decode_pos = s->ctx - 1, .n_logits = n},
                          &bytes));
    return bytes;
}

/* What the worst mix takes, as a share of the plan. */
static double check_one(uint64_t seed) {
    setup s;
    setup_open(seed, &s);
    fl_guard *planned = open_guard(&s, s.plan.scratch_bytes);
    int64_t least_bytes = level_of_answers(&s, planned), plan_bytes = s.plan.scratch_bytes, most = 0;
    assert_true(least_bytes <= plan_bytes);
    int64_t level = least_bytes + (plan_bytes - least_bytes) / 1000 * between(0, 1000);
    fl_guard *tight = open_guard(&s, level);
    for (int32_t i = 0; i < STEPS; i++) {
        mix m = draw_mix(&s);
        if (m.rows.document_rows + m.rows.tail_rows + m.rows.decode_rows == 0) continue;
        check_guard(&s, planned, &m);
        check_cut(&s, tight, level, &m);
    }
    for (int i = 0; i < N_WORST; i++) {
        mix m = worst_mix(&s, (worst)i);
        check_guard(&s, planned, &m);
        int64_t taken = run(&s, &m, plan_bytes);
        most = taken > most ? taken : most;
    }
    double share = (double)most / (double)plan_bytes;
    if (share < 0.9)
        fail_msg("seed %llu: %s, %s, rope %s, ctx %d, span %d, requests %d: the worst step takes %.1f%% of "
                 "the plan",
                 (unsigned long long)seed, s.backend, s.policy, s.settings.rope, s.ctx, s.span,
                 s.requests_max, 100 * share);
    fl_guard_close(tight);
    fl_guard_close(planned);
    setup_close(&s);
    return share;
}

static void no_step_takes_more_than_planned(void **state) {
    (void)state;
    const char *cases = getenv("FL_TEST_CASES"), *first = getenv("FL_TEST_SEED");
    uint64_t n = cases ? strtoull(cases, NULL, 10) : 10000, seed = first ? strtoull(first, NULL, 10) : 1;
    double lowest = 1;
    for (uint64_t i = 0; i < n; i++) {
        double share = check_one(seed + i);
        lowest = share < lowest ? share : lowest;
    }
    print_message(
        "%llu models, settings and mixes: none over plan; the worst mix takes %.1f%% of it or more\n",
        (unsigned long long)n, 100 * lowest);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_step_takes_more_than_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
