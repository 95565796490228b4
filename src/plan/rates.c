#include "plan/rates.h"

#include <math.h>
#include <stdio.h>

#include "op/attn_prefill/attn_prefill_spans.h"

const char *fl_rate_name(fl_rate_kind kind) {
    static const char *const names[FL_N_RATES] = {
#define X(op) [FL_RATE_##op] = #op,
#include "op/oplist.inc"
#undef X
#define X(name, op) [FL_RATE_##name] = #name,
        FL_RATE_KINDS(X)
#undef X
            [FL_RATE_step] = "step",
        [FL_RATE_issue] = "issue",
        [FL_RATE_request] = "request",
    };
    return names[kind];
}

fl_cost fl_op_cost(fl_op_id op, const void *args) {
    switch (op) {
#define X(name)                                                                                              \
    case FL_OP_##name:                                                                                       \
        return fl_##name##_cost(args);
#include "op/oplist.inc"
#undef X
    case FL_N_OPS: break;
    }
    return (fl_cost){0};
}

/* ---- kinds ---- */

static fl_rate_kind of_attention(const fl_attn_prefill_args *a) {
    if (a->means) return FL_RATE_attn_means;
    if (a->list) return FL_RATE_attn_listed;
    if (a->key_step > 1) return FL_RATE_attn_anchors;
    bool all = a->view.window == 0 && a->view.distance_first == 0 && a->view.distance_end == 0;
    return all ? FL_RATE_attn_prefill : FL_RATE_attn_window;
}

static fl_rate_kind of_product(const fl_matmul_args *a) {
    bool codes = a->w[0].scale != NULL;
    if (a->n_groups > 1) return codes ? FL_RATE_experts_fp8 : FL_RATE_matmul_experts;
    return codes ? FL_RATE_matmul_fp8 : FL_RATE_matmul;
}

/* Of an op on stored KV: its own number, one more for fp8, one more for the 4-bit formats. */
static fl_rate_kind by_format(fl_kv_format format, fl_rate_kind plain, fl_rate_kind fp8, fl_rate_kind int4) {
    if (format == FL_KV_F32 || format == FL_KV_BF16) return plain;
    return format == FL_KV_FP8 ? fp8 : int4;
}

fl_rate_kind fl_rate_kind_of(fl_op_id op, const void *args) {
    switch (op) {
    case FL_OP_matmul: return of_product(args);
    case FL_OP_attn_prefill: return of_attention(args);
    case FL_OP_kv_read:
        return by_format(((const fl_kv_read_args *)args)->kv.format, FL_RATE_kv_read, FL_RATE_kv_read_fp8,
                         FL_RATE_kv_read_int4);
    case FL_OP_kv_write:
        return by_format(((const fl_kv_write_args *)args)->kv.format, FL_RATE_kv_write, FL_RATE_kv_write_fp8,
                         FL_RATE_kv_write_int4);
    case FL_OP_block_mean:
        return by_format(((const fl_block_mean_args *)args)->kv.format, FL_RATE_block_mean,
                         FL_RATE_block_mean_fp8, FL_RATE_block_mean_int4);
    case FL_OP_attn_absorbed:
        return by_format(((const fl_attn_absorbed_args *)args)->kv.format, FL_RATE_attn_absorbed,
                         FL_RATE_absorbed_fp8, FL_RATE_absorbed_int4);
    default: return (fl_rate_kind)op; /* kinds begin with the ops, in their order */
    }
}

/* ---- tiles ---- */

enum { TILE = FL_ATTN_TILE_TOKENS };

/* Keys of the tiles that hold both spans, seen by a row tile's first and last row. */
static double tile_keys(fl_span a, fl_span b) {
    bool none_a = a.first >= a.end, none_b = b.first >= b.end;
    if (none_a && none_b) return 0;
    int32_t first = none_a ? b.first : none_b || a.first < b.first ? a.first : b.first;
    int32_t end = a.end > b.end ? a.end : b.end;
    int32_t tiles = (end + TILE - 1) / TILE - first / TILE;
    return (double)tiles * TILE;
}

static double tile_pairs(const fl_attn_prefill_args *a) {
    double pairs = 0;
    for (int32_t r = 0; r < a->rows; r += TILE) {
        int32_t last = r + TILE < a->rows ? r + TILE - 1 : a->rows - 1;
        const fl_attn_spans begin = fl_attn_prefill_spans(a, r), end = fl_attn_prefill_spans(a, last);
        for (int32_t i = 0; i < FL_ATTN_SPANS; i++) pairs += TILE * tile_keys(begin.of[i], end.of[i]);
    }
    return pairs;
}

fl_cost fl_rate_cost(fl_op_id op, const void *args) {
    fl_cost cost = fl_op_cost(op, args);
    const fl_attn_prefill_args *a = args;
    if (op == FL_OP_attn_prefill && !a->list) /* lists are of whole tiles */
        cost.flops = 2 * tile_pairs(a) * a->n_heads * (a->nope_dim + a->rope_dim + (double)a->v_dim);
    return cost;
}

/* ---- times ---- */

void fl_rates_of_roofs(const fl_roofs *r, fl_rates *out) {
    double fp8_flops_per_s = r->fp8_flops_per_s > 0 ? r->fp8_flops_per_s : r->flops_per_s;
    *out = (fl_rates){0};
    for (int32_t i = 0; i < FL_RATE_step; i++)
        out->of[i] = (fl_rate){.call_s = r->call_s,
                               .flop_s = 1 / r->flops_per_s,
                               .fp8_flop_s = 1 / fp8_flops_per_s,
                               .byte_s = 1 / r->bytes_per_s};
    snprintf(out->source, sizeof out->source, "%s", r->source ? r->source : "roofs");
}

double fl_rates_time(const fl_rates *rates, fl_rate_kind kind, const fl_cost *cost) {
    return fl_rates_times(rates, kind, 1, cost);
}

static double fill_at(const fl_rate *r, double call_s) {
    if (!(r->fill_s > 0)) return 1;
    double at = call_s > r->fill_s ? 2 * log2(call_s / r->fill_s) : 0;
    if (at >= FL_RATE_FILLS - 1) return r->fill[FL_RATE_FILLS - 1];
    int32_t i = (int32_t)at;
    return r->fill[i] + (r->fill[i + 1] - r->fill[i]) * (at - i);
}

double fl_rates_times(const fl_rates *rates, fl_rate_kind kind, double calls, const fl_cost *cost) {
    const fl_rate *r = &rates->of[kind];
    double compute_s = (cost->flops - cost->fp8_flops) * r->flop_s + cost->fp8_flops * r->fp8_flop_s;
    double memory_s = cost->bytes * r->byte_s;
    if (!rates->measured) return calls * r->call_s + (compute_s > memory_s ? compute_s : memory_s);
    double sum_s = calls * r->call_s + compute_s + memory_s;
    return sum_s * fill_at(r, sum_s / calls);
}
