/* The feed-forward half of a layer: a dense SwiGLU MLP, or routed experts plus the shared one. */
#include "model/forward.h"

/* Rows at a time: a prompt that goes through a layer whole has eight experts' rows for each of its own. */
enum { ROWS_MAX = 65536 };

static fl_matmul_out swiglu(fl_forms inner) {
    return inner.codes ? FL_MATMUL_SWIGLU_CODES : FL_MATMUL_SWIGLU;
}

/* The output is left in act->delta. */
static fl_err run_mlp(const fl_weights *w, const fl_ffn *ffn, int32_t rows, const fl_activations *act,
                      fl_arena *arena) {
    fl_inputs inner;
    int64_t mark = fl_arena_mark(arena);
    FL_TRY(fl_inputs_take(w, ffn->inner, rows, ffn->down.k, arena, &inner));
    const fl_dense_args up = {.w = &ffn->gate_up,
                              .x = act->normed,
                              .rows = rows,
                              .out = swiglu(ffn->inner),
                              .y = inner.act,
                              .y_codes = inner.codes,
                              .arena = arena};
    const fl_dense_args down = {
        .w = &ffn->down, .x = inner, .rows = rows, .out = FL_MATMUL_ACT, .y = act->delta, .arena = arena};
    FL_TRY(fl_dense_run(w->be, &up));
    FL_TRY(fl_dense_run(w->be, &down));
    fl_arena_reset(arena, mark);
    return FL_ERR_OK;
}

static fl_moe_select select_of(fl_topk_method method) {
    return method == FL_TOPK_GREEDY                 ? FL_MOE_GREEDY
           : method == FL_TOPK_GROUP_LIMITED_GREEDY ? FL_MOE_GROUP_MAX
                                                    : FL_MOE_GROUP_TOP2;
}

/* Where every (row, slot) pair goes, and what it brings back. */
typedef struct routing {
    int32_t pairs;    /* rows * top_k */
    int32_t *ids;     /* [rows][top_k] */
    float *weights;   /* [rows][top_k] */
    int32_t *place;   /* [rows][top_k] */
    int32_t *experts; /* [n_experts + 1] first place of each */
    fl_inputs x;      /* [pairs][hidden], in order of place */
    fl_inputs inner;  /* [pairs][moe_intermediate] */
    void *y;          /* [pairs][hidden] expert outputs, act */
} routing;

static fl_err route(const fl_weights *w, const fl_layer *layer, int32_t rows, const void *x,
                    const routing *r) {
    const fl_config *c = &w->config;
    const fl_moe_route_args args = {.x = x,
                                    .x_stride = c->hidden,
                                    .w = layer->router,
                                    .bias = layer->router_bias,
                                    .rows = rows,
                                    .dim = c->hidden,
                                    .n_experts = c->n_routed_experts,
                                    .top_k = c->experts_per_token,
                                    .n_groups = c->n_group,
                                    .top_groups = c->topk_group,
                                    .score =
                                        c->scoring == FL_SCORING_SIGMOID ? FL_MOE_SIGMOID : FL_MOE_SOFTMAX,
                                    .select = select_of(c->topk_method),
                                    .normalize = c->norm_topk_prob,
                                    .factor = (float)c->routed_scaling_factor,
                                    .ids = r->ids,
                                    .weights = r->weights};
    return w->be->op->moe_route(w->be, &args);
}

/* The rows of each expert side by side. */
static fl_err permute(const fl_weights *w, const fl_layer *layer, int32_t rows, const fl_inputs *x,
                      const routing *r) {
    const fl_config *c = &w->config;
    fl_moe_permute_args args = {.ids = r->ids,
                                .rows = rows,
                                .top_k = c->experts_per_token,
                                .n_experts = c->n_routed_experts,
                                .dim = c->hidden,
                                .x = x->act,
                                .x_stride = c->hidden,
                                .group_rows = r->experts,
                                .place = r->place,
                                .y = r->x.act,
                                .y_codes = r->x.codes};
    if (layer->expert_in.codes) args.x_codes = x->codes;
    return w->be->op->moe_permute(w->be, &args);
}

/* The chosen experts' outputs. */
static fl_err run_experts(const fl_weights *w, const fl_layer *layer, const routing *r, fl_arena *arena) {
    const fl_config *c = &w->config;
    fl_matmul_args args = {.x = r->x.act,
                           .x_stride = c->hidden,
                           .x_codes = r->x.codes,
                           .w = layer->expert_gate_up,
                           .n_groups = c->n_routed_experts,
                           .group_rows = r->experts,
                           .rows = r->pairs,
                           .out = swiglu(layer->expert_inner),
                           .y = r->inner.act,
                           .y_stride = c->moe_intermediate,
                           .y_codes = r->inner.codes};
    FL_TRY(fl_matmul_run(w->be, &args, arena));
    args.x = r->inner.act;
    args.x_stride = c->moe_intermediate;
    args.x_codes = r->inner.codes;
    args.w = layer->expert_down;
    args.out = FL_MATMUL_ACT;
    args.y = r->y;
    args.y_stride = c->hidden;
    return fl_matmul_run(w->be, &args, arena);
}

static fl_err take_routing(const fl_weights *w, const fl_layer *layer, int32_t rows, fl_arena *arena,
                           routing *r) {
    const fl_config *c = &w->config;
    r->pairs = rows * c->experts_per_token;
    FL_TRY(fl_arena_take(arena, r->pairs, sizeof(int32_t), &r->ids));
    FL_TRY(fl_arena_take(arena, r->pairs, sizeof(float), &r->weights));
    FL_TRY(fl_arena_take(arena, r->pairs, sizeof(int32_t), &r->place));
    FL_TRY(fl_arena_take(arena, c->n_routed_experts + 1, sizeof(int32_t), &r->experts));
    FL_TRY(fl_inputs_take(w, layer->expert_in, r->pairs, c->hidden, arena, &r->x));
    FL_TRY(fl_inputs_take(w, layer->expert_inner, r->pairs, c->moe_intermediate, arena, &r->inner));
    return fl_arena_take(arena, (int64_t)r->pairs * c->hidden, (int64_t)fl_dtype_bytes(w->be->act_dtype),
                         &r->y);
}

/* The residual stream takes the experts' outputs, if there are any, and delta's. */
static fl_err combine(const fl_weights *w, int32_t rows, const fl_activations *act, const routing *r,
                      bool delta) {
    const fl_moe_combine_args args = {.y = r->y,
                                      .place = r->place,
                                      .weights = r->weights,
                                      .shared = delta ? act->delta : NULL,
                                      .rows = rows,
                                      .dim = w->config.hidden,
                                      .top_k = r->pairs / rows,
                                      .x = act->x};
    return w->be->op->moe_combine(w->be, &args);
}

static fl_err run_dense(const fl_weights *w, const fl_layer *layer, int32_t rows, const fl_activations *act,
                        fl_arena *arena) {
    const routing none = {0};
    FL_TRY(run_mlp(w, &layer->dense, rows, act, arena));
    return combine(w, rows, act, &none, true);
}

static fl_err run_moe(const fl_weights *w, const fl_layer *layer, int32_t rows, const fl_activations *act,
                      fl_arena *arena) {
    routing r;
    bool shared = layer->shared.down.n > 0;
    FL_TRY(take_routing(w, layer, rows, arena, &r));
    FL_TRY(route(w, layer, rows, act->normed.act, &r));
    FL_TRY(permute(w, layer, rows, &act->normed, &r));
    FL_TRY(run_experts(w, layer, &r, arena));
    if (shared) FL_TRY(run_mlp(w, &layer->shared, rows, act, arena));
    return combine(w, rows, act, &r, shared);
}

fl_err fl_feedforward_run(const fl_weights *w, const fl_layer *layer, int32_t rows, const fl_activations *act,
                          fl_arena *arena) {
    int32_t hidden = w->config.hidden;
    int64_t delta_row_bytes = hidden * (int64_t)fl_dtype_bytes(w->be->act_dtype);
    for (int32_t i = 0; i < rows; i += ROWS_MAX) {
        const fl_activations part = {.x = act->x + (int64_t)i * hidden,
                                     .delta = (uint8_t *)act->delta + i * delta_row_bytes,
                                     .normed = fl_inputs_from(w, &act->normed, i, hidden)};
        int32_t n = rows - i < ROWS_MAX ? rows - i : ROWS_MAX;
        int64_t mark = fl_arena_mark(arena);
        FL_TRY(layer->moe ? run_moe(w, layer, n, &part, arena) : run_dense(w, layer, n, &part, arena));
        fl_arena_reset(arena, mark);
    }
    return FL_ERR_OK;
}
