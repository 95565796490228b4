#include "op/attn_prefill/attn_prefill_spans.h"

enum { TILE = FL_ATTN_TILE_TOKENS, PAGE = FL_KV_PAGE_TOKENS };

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int32_t step_of(const fl_attn_prefill_args *a) {
    return a->key_step < 1 ? 1 : a->key_step;
}

/* Positions [first, end), those at least distance_first and less than distance_end before p. */
typedef struct positions {
    int64_t first, end;
} positions;

static positions within_distance(const fl_attn_view *v, int64_t p, positions s) {
    s.end = smaller(s.end, p - v->distance_first + 1);
    if (v->distance_end > 0) s.first = larger(s.first, p - v->distance_end + 1);
    return s;
}

/* The keys of the call that lie at those positions. */
static fl_span keys_at(const fl_attn_prefill_args *a, positions s) {
    int64_t step = step_of(a), first = larger(0, s.first - a->key_pos + step - 1) / step;
    int64_t end = smaller(a->n_keys, larger(0, s.end - a->key_pos + step - 1) / step);
    return first < end ? (fl_span){(int32_t)first, (int32_t)end} : (fl_span){0, 0};
}

static bool is_empty(fl_span s) {
    return s.first >= s.end;
}

/* The near keys of row p are the sinks and everything from `near_from` to p; the far keys are what lies between. */
static fl_attn_spans spans_of_view(const fl_attn_prefill_args *a, int64_t p) {
    const fl_attn_view *v = &a->view;
    int64_t near_from = v->window == 0 ? 0 : larger(0, p - v->window + 1);
    if (v->segment > 0) near_from = smaller(near_from, p / v->segment * v->segment);
    positions sinks = {0, v->sinks}, near = {near_from, p + 1};
    positions far = {v->sinks, near_from};
    if (v->far) return (fl_attn_spans){{keys_at(a, within_distance(v, p, far)), {0, 0}}};
    fl_span own = keys_at(a, within_distance(v, p, near)), early = keys_at(a, within_distance(v, p, sinks));
    if (is_empty(own)) return (fl_attn_spans){{early, {0, 0}}};
    if (!is_empty(early) && early.end >= own.first) return (fl_attn_spans){{{early.first, own.end}, {0, 0}}};
    return (fl_attn_spans){{own, early}};
}

fl_attn_spans fl_attn_prefill_spans(const fl_attn_prefill_args *a, int32_t r) {
    if (!a->means) return spans_of_view(a, (int64_t)a->pos + r);
    int64_t tile_pos = (int64_t)a->pos + r / FL_ATTN_LIST_ROWS * FL_ATTN_LIST_ROWS;
    int64_t whole_blocks = larger(0, tile_pos - a->key_pos) / step_of(a);
    return (fl_attn_spans){{{0, (int32_t)smaller(whole_blocks, a->n_keys)}, {0, 0}}};
}

/* ---- the plan ---- */

/* Tiles of the list do not end inside a row tile: each is cut into the fewest parts, at multiples of LANES rows. */
enum { LANES = 8 };

static int32_t parts_of_list_tile(const fl_attn_plan *plan) {
    return fl_span_tasks(FL_ATTN_LIST_ROWS, plan->tile_rows);
}

fl_span fl_attn_plan_rows(const fl_attn_plan *plan, int32_t row_tile) {
    int32_t rows = plan->a->rows;
    if (!plan->a->list) return fl_span_of_task(row_tile, plan->tile_rows, rows);
    int32_t parts = parts_of_list_tile(plan), part = row_tile % parts, groups = FL_ATTN_LIST_ROWS / LANES;
    int32_t tile = row_tile / parts * FL_ATTN_LIST_ROWS;
    int32_t first = tile + groups * part / parts * LANES, end = tile + groups * (part + 1) / parts * LANES;
    return (fl_span){(int32_t)smaller(first, rows), (int32_t)smaller(end, rows)};
}

static int64_t round_up(int64_t value, int64_t step) {
    return (value + step - 1) / step * step;
}

/* Row tiles have LANES rows or more, but for the last ones. */
static int64_t row_tiles_max(int32_t rows) {
    return round_up(rows, FL_ATTN_LIST_ROWS) / LANES;
}

int64_t fl_attn_plan_bytes(int32_t rows, int32_t n_heads) {
    int64_t ends = 2 * FL_ATTN_SPANS * round_up(rows, FL_ATTN_PLAN_ROWS) * (int64_t)sizeof(int32_t);
    int64_t words = 2 * row_tiles_max(rows) + n_heads;
    return round_up(ends + words * (int64_t)sizeof(uint64_t), 64);
}

/* Bits [first, end) of a word; first <= 63. */
static uint64_t bits(int32_t first, int32_t end) {
    if (first >= end) return 0;
    uint64_t below = end >= 64 ? UINT64_MAX : (UINT64_C(1) << end) - 1;
    return below >> first << first;
}

static uint64_t tiles_touched(fl_span s) {
    return is_empty(s) ? 0 : bits(s.first / TILE, (s.end + TILE - 1) / TILE);
}

static uint64_t tiles_covered(fl_span s) {
    return is_empty(s) ? 0 : bits((s.first + TILE - 1) / TILE, s.end / TILE);
}

static void plan_row_tile(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_attn_plan *plan = context;
    fl_span rows = fl_attn_plan_rows(plan, task);
    uint64_t some = 0, whole = is_empty(rows) ? 0 : UINT64_MAX;
    for (int32_t r = rows.first; r < rows.end; r++) {
        fl_attn_spans spans = fl_attn_prefill_spans(plan->a, r);
        for (int32_t i = 0; i < FL_ATTN_SPANS; i++) {
            plan->first[i][r] = spans.of[i].first;
            plan->end[i][r] = spans.of[i].end;
        }
        some |= tiles_touched(spans.of[0]) | tiles_touched(spans.of[1]);
        whole &= tiles_covered(spans.of[0]) | tiles_covered(spans.of[1]);
    }
    plan->some[task] = some;
    plan->whole[task] = whole;
}

/* First entry of ids[n] that is not below `id`. */
static int32_t lower_bound(const uint16_t *ids, int32_t n, int64_t id) {
    int32_t low = 0, high = n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (ids[middle] < id) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Sets or clears the bits of the keys that lie in listed blocks. */
static void mark_listed(const fl_attn_prefill_args *a, const uint16_t *ids, int32_t n, bool value,
                        uint64_t keys[FL_ATTN_KEY_TILES]) {
    int64_t end = a->key_pos + (int64_t)a->n_keys * step_of(a);
    for (int32_t e = lower_bound(ids, n, a->key_pos / PAGE); e < n && (int64_t)ids[e] * PAGE < end; e++) {
        int64_t pos = (int64_t)ids[e] * PAGE;
        fl_span span = keys_at(a, (positions){pos, pos + PAGE});
        while (!is_empty(span)) {
            int32_t tile = span.first / TILE;
            uint64_t some = bits(span.first % TILE, span.end - tile * TILE);
            keys[tile] = value ? keys[tile] | some : keys[tile] & ~some;
            span.first = (tile + 1) * TILE;
        }
    }
}

void fl_attn_plan_visit(const fl_attn_plan *plan, int32_t row_tile, int32_t head, fl_attn_visit *out) {
    const fl_attn_list *list = plan->a->list;
    out->some = plan->some[row_tile];
    out->whole = plan->whole[row_tile];
    bool keys_hide = list && !plan->a->means;
    for (int32_t t = 0; t < FL_ATTN_KEY_TILES; t++) out->keys[t] = keys_hide ? 0 : UINT64_MAX;
    if (!list || out->some == 0) return;
    int64_t at = (int64_t)(row_tile / parts_of_list_tile(plan)) * plan->a->n_heads + head;
    if (list->n[at] < 0) { /* a dense head: every key, no mean */
        if (keys_hide)
            for (int32_t t = 0; t < FL_ATTN_KEY_TILES; t++) out->keys[t] = UINT64_MAX;
        else out->some = 0;
        return;
    }
    mark_listed(plan->a, list->ids + at * list->capacity, list->n[at], keys_hide, out->keys);
    for (int32_t t = 0; t < plan->key_tiles; t++) {
        if (out->keys[t] == 0) out->some &= ~(UINT64_C(1) << t);
        if (out->keys[t] != UINT64_MAX) out->whole &= ~(UINT64_C(1) << t);
    }
}

static void plan_head(void *context, int32_t head, int32_t worker) {
    (void)worker;
    const fl_attn_plan *plan = context;
    uint64_t packed = plan->a->first ? 1 : 0;
    for (int32_t i = 0; i < plan->row_tiles; i++) {
        fl_attn_visit visit;
        fl_attn_plan_visit(plan, i, head, &visit);
        packed |= visit.some;
    }
    plan->packed[head] = packed;
}

void fl_attn_plan_make(fl_pool *pool, const fl_attn_prefill_args *a, int32_t tile_rows, void *memory,
                       fl_attn_plan *plan) {
    *plan = (fl_attn_plan){.a = a, .tile_rows = tile_rows};
    int64_t padded = round_up(a->rows, FL_ATTN_PLAN_ROWS);
    plan->key_tiles = fl_span_tasks(a->n_keys, TILE);
    plan->row_tiles = fl_span_tasks(a->rows, tile_rows);
    if (a->list) plan->row_tiles = fl_span_tasks(a->rows, FL_ATTN_LIST_ROWS) * parts_of_list_tile(plan);
    plan->some = memory;
    plan->whole = plan->some + plan->row_tiles;
    plan->packed = plan->whole + plan->row_tiles;
    int32_t *ends = (int32_t *)(void *)(plan->packed + a->n_heads);
    for (int32_t i = 0; i < FL_ATTN_SPANS; i++) {
        plan->first[i] = ends + 2 * i * padded;
        plan->end[i] = plan->first[i] + padded;
        for (int64_t r = a->rows; r < padded; r++) plan->first[i][r] = plan->end[i][r] = 0;
    }
    fl_pool_run(pool, plan->row_tiles, plan_row_tile, plan);
    fl_pool_run(pool, a->n_heads, plan_head, plan);
}
