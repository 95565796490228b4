#include "op/attn_prefill/attn_prefill.h"

#include "op/attn_prefill/attn_prefill_spans.h"
#include "op/validate.h"

/* Fast backends pad rows and dimensions to whole tiles and vectors. */
enum { ROW_TILE = 64, DIM_TILE = 64 };

static int64_t round_up(int64_t value, int64_t step) {
    return (value + step - 1) / step * step;
}

static int32_t step_of(const fl_attn_prefill_args *a) {
    return a->key_step < 1 ? 1 : a->key_step;
}

int64_t fl_attn_prefill_state_bytes(int32_t rows, int32_t n_heads, int32_t v_dim) {
    /* o of every row and head, and one vector more for m and l */
    int64_t floats_a_row = round_up(v_dim, DIM_TILE) + DIM_TILE;
    return round_up(rows, ROW_TILE) * n_heads * floats_a_row * (int64_t)sizeof(float);
}

static int64_t call_scratch_bytes(const fl_attn_prefill_args *a) {
    int64_t k_dim = round_up((int64_t)a->nope_dim + a->rope_dim, DIM_TILE),
            v_dim = round_up(a->v_dim, DIM_TILE);
    return round_up(a->n_keys, FL_ATTN_TILE_TOKENS) * a->n_heads * (k_dim + v_dim) * (int64_t)sizeof(float) +
           fl_attn_plan_bytes(a->rows, a->n_heads);
}

int64_t fl_attn_prefill_scratch_bytes(const fl_attn_prefill_args *a) {
    int64_t bytes = call_scratch_bytes(a), then_bytes = a->then ? call_scratch_bytes(a->then) : 0;
    return bytes > then_bytes ? bytes : then_bytes;
}

/* ---- which keys ---- */

static bool lists_block(const uint16_t *ids, int32_t n, int32_t block) {
    int32_t low = 0, high = n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (ids[middle] < block) low = middle + 1;
        else high = middle;
    }
    return low < n && ids[low] == block;
}

bool fl_attn_prefill_sees(const fl_attn_prefill_args *a, int32_t r, int32_t h, int32_t i) {
    int32_t p = a->pos + r, t = a->key_pos + i * step_of(a), tile = r / FL_ATTN_LIST_ROWS;
    if (!a->list) return fl_attn_view_sees(&a->view, p, t);
    int64_t at = (int64_t)tile * a->n_heads + h;
    int32_t n = a->list->n[at];
    bool dense = n < 0;
    bool listed = !dense && lists_block(a->list->ids + at * a->list->capacity, n, t / FL_KV_PAGE_TOKENS);
    if (!a->means) return fl_attn_view_sees(&a->view, p, t) && (dense || listed);
    bool before_tile = (int64_t)t + step_of(a) <= (int64_t)a->pos + tile * FL_ATTN_LIST_ROWS;
    return before_tile && !dense && !listed;
}

/* ---- limits ---- */

static fl_err validate_keys(const char *op, const fl_attn_prefill_args *a) {
    FL_TRY(fl_need_range(op, "n_keys", a->n_keys, 1, FL_ATTN_LIST_TOKENS_MAX));
    FL_TRY(fl_need_range(op, "key_step", a->key_step, 0, INT32_MAX / a->n_keys));
    FL_TRY(fl_need_range(op, "key_pos", a->key_pos, 0, INT32_MAX - a->n_keys * step_of(a)));
    if (step_of(a) == 1) FL_TRY(fl_need_multiple(op, "key_pos", a->key_pos, FL_ATTN_TILE_TOKENS));
    /* Where the exponents start is the same for every chunk only if the key is. */
    if (a->first) FL_TRY(fl_need_range(op, "key_pos of the first call", a->key_pos, 0, 0));
    return FL_ERR_OK;
}

static fl_err validate_list(const char *op, const fl_attn_prefill_args *a) {
    if (!a->list) {
        if (a->means) return FL_FAIL(FL_ERR_INVALID, "%s: means without a list of blocks", op);
        return FL_ERR_OK;
    }
    FL_TRY(fl_need_multiple(op, "pos with a list", a->pos, FL_ATTN_LIST_ROWS));
    FL_TRY(fl_need_range(op, "list.capacity", a->list->capacity, 1, UINT16_MAX + 1));
    if (!(a->list->planned_blocks >= 0))
        return FL_FAIL(FL_ERR_INVALID, "%s: list.planned_blocks is %g, must not be negative", op,
                       a->list->planned_blocks);
    if (!a->means) return FL_ERR_OK;
    FL_TRY(fl_need_range(op, "key_step of means", a->key_step, 1, INT32_MAX));
    FL_TRY(fl_need_multiple(op, "key_step of means", a->key_step, FL_KV_PAGE_TOKENS));
    return fl_need_multiple(op, "key_pos of means", a->key_pos, a->key_step);
}

/* A head's outputs are one group of codes. */
static fl_err validate_codes(const char *op, const fl_attn_prefill_args *a) {
    if (!a->out_codes.codes) return FL_ERR_OK;
    FL_TRY(fl_need_range(op, "v_dim of codes", a->v_dim, FL_SCALE_BLOCK, FL_SCALE_BLOCK));
    return fl_codes_validate(op, &a->out_codes, a->rows, a->n_heads * a->v_dim);
}

static fl_err validate_call(const char *op, const fl_attn_prefill_args *a) {
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "pos", a->pos, 0, INT32_MAX - a->rows));
    FL_TRY(fl_need_range(op, "n_heads", a->n_heads, 1, FL_OP_HEADS_MAX));
    FL_TRY(fl_need_range(op, "nope_dim", a->nope_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "rope_dim", a->rope_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "v_dim", a->v_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(validate_keys(op, a));
    FL_TRY(fl_attn_view_validate(op, &a->view));
    FL_TRY(validate_codes(op, a));
    return validate_list(op, a);
}

static fl_err validate_then(const char *op, const fl_attn_prefill_args *a) {
    const fl_attn_prefill_args *b = a->then;
    bool same_heads = b->n_heads == a->n_heads && b->nope_dim == a->nope_dim && b->rope_dim == a->rope_dim &&
                      b->v_dim == a->v_dim;
    if (b->rows != a->rows || b->pos != a->pos || !same_heads || b->state != a->state)
        return FL_FAIL(FL_ERR_INVALID, "%s: `then` is over other rows, heads or state", op);
    if (a->last || b->first || b->then)
        return FL_FAIL(FL_ERR_INVALID, "%s: `then` must be the next call and the last at once", op);
    return validate_call(op, b);
}

fl_err fl_attn_prefill_validate(const fl_attn_prefill_args *a) {
    const char *op = "attn_prefill";
    FL_TRY(validate_call(op, a));
    return a->then ? validate_then(op, a) : FL_ERR_OK;
}

fl_err fl_attn_prefill_need_split(const fl_attn_prefill_args *a) {
    return fl_need_range("attn_prefill", "n_keys", a->n_keys, 1, FL_ATTN_SPLIT_TOKENS);
}

/* ---- cost ---- */

enum { COST_ROWS = 128 };

static double keys_in(fl_attn_spans spans) {
    double keys = 0;
    for (int32_t i = 0; i < FL_ATTN_SPANS; i++) keys += spans.of[i].end - spans.of[i].first;
    return keys;
}

/* Keys of the call that row r attends. Without the blocks themselves, the planned number of them is taken to be spread
 * evenly over all that the row sees, in this call and in others. */
static double seen_keys(const fl_attn_prefill_args *a, int32_t r) {
    double here = keys_in(fl_attn_prefill_spans(a, r));
    if (!a->list || here <= 0) return here;
    fl_attn_prefill_args whole = *a;
    whole.key_pos = 0;
    whole.n_keys = INT32_MAX;
    if (!a->means) whole.key_step = 1;
    double visible = keys_in(fl_attn_prefill_spans(&whole, r)) * step_of(&whole);
    double share = a->list->planned_blocks * FL_KV_PAGE_TOKENS / visible;
    if (share > 1) share = 1;
    return here * (a->means ? 1 - share : share);
}

/* Rows see every key up to their own. */
static bool is_causal_alone(const fl_attn_prefill_args *a) {
    const fl_attn_view *v = &a->view;
    return !a->list && step_of(a) == 1 && v->window == 0 && !v->far && v->distance_first == 0 &&
           v->distance_end == 0;
}

/* The pairs of such a call: row r sees pos + r + 1 - key_pos keys, at least 0 and at most n_keys. */
static double causal_pairs(const fl_attn_prefill_args *a) {
    int64_t seen = (int64_t)a->pos + 1 - a->key_pos, rows = a->rows, keys = a->n_keys;
    int64_t none = seen < 1 ? 1 - seen : 0,
            all = keys - seen > 0 ? keys - seen : 0; /* first rows that see any, all */
    if (none > rows) none = rows;
    if (all > rows) all = rows;
    double some = (double)(all - none), first = (double)(seen + none);
    return some * first + some * (some - 1) / 2 + (double)(rows - all) * (double)keys;
}

/* Pairs of row and key that attend. Of many rows one stands for an odd number around it: exact where keys grow evenly,
 * close at a window's edge. A step is counted before it runs, and so in no more time than this for each call. */
static double call_pairs(const fl_attn_prefill_args *a) {
    int32_t each = (a->rows / COST_ROWS) | 1;
    double pairs = 0;
    if (is_causal_alone(a)) return causal_pairs(a);
    for (int32_t r = 0; r < a->rows; r += each) {
        int32_t n = a->rows - r < each ? a->rows - r : each;
        pairs += n * seen_keys(a, r + n / 2);
    }
    return pairs;
}

static fl_cost call_cost(const fl_attn_prefill_args *a, bool reads_state, bool writes_state) {
    double pairs = call_pairs(a), rows = a->rows, heads = a->n_heads;
    double nope = a->nope_dim, rope = a->rope_dim, v = a->v_dim;
    double key_bytes = (heads * (nope + v) + rope) * FL_COST_ACT_BYTES;
    double out_bytes = a->out_codes.codes ? fl_codes_row_bytes(v) : v * FL_COST_ACT_BYTES;
    double row_bytes = (nope + rope) * FL_COST_ACT_BYTES + (a->last ? out_bytes : 0);
    double state_passes = (reads_state ? 1 : 0) + (writes_state ? 1 : 0);
    return (fl_cost){.flops = 2 * pairs * heads * (nope + rope + v),
                     .bytes = a->n_keys * key_bytes +
                              rows * heads * (row_bytes + state_passes * (v + 2) * sizeof(float))};
}

fl_cost fl_attn_prefill_cost(const fl_attn_prefill_args *a) {
    fl_cost cost = call_cost(a, !a->first, !a->last && !a->then);
    if (a->then) fl_cost_add(&cost, call_cost(a->then, false, !a->then->last));
    return cost;
}
