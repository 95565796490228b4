/* Which keys the rows of an attn_prefill call see, by arithmetic: what the fast versions and the cost share. The
 * definition is fl_attn_prefill_sees; these are its closed forms. Keys are counted from the call's first. */
#ifndef FL_OP_ATTN_PREFILL_SPANS_H
#define FL_OP_ATTN_PREFILL_SPANS_H

#include "base/pool.h"
#include "op/attn_prefill/attn_prefill.h"
#include "op/span.h"

enum {
    FL_ATTN_SPANS = 2, /* of a row: its own, the sinks */
    FL_ATTN_KEY_TILES =
        FL_ATTN_SPLIT_TOKENS / FL_ATTN_TILE_TOKENS, /* of a call, at most: bits of a uint64_t */
    FL_ATTN_PLAN_ROWS = 64 /* arrays of the plan are padded to a multiple, for whole vectors */
};

/* The keys that a row sees but for the list: disjoint spans, the second one only where there is a first one, and
 * never touching it. Empty ones are 0..0. */
typedef struct fl_attn_spans {
    fl_span of[FL_ATTN_SPANS];
} fl_attn_spans;

fl_attn_spans fl_attn_prefill_spans(const fl_attn_prefill_args *a, int32_t r);

/* What the fast versions look up, made once a call in the scratch. A row tile is `tile_rows` rows at most and lies in
 * one tile of the list. */
typedef struct fl_attn_plan {
    const fl_attn_prefill_args *a;
    int32_t tile_rows, row_tiles, key_tiles;
    int32_t *first[FL_ATTN_SPANS], *end[FL_ATTN_SPANS]; /* [rows, padded]: the spans of every row */
    uint64_t *some, *whole; /* [row_tiles]: tiles of keys of which a row sees a key, all rows see all keys */
    uint64_t *packed; /* [n_heads]: tiles of keys that some row tile visits, and the first one if `first` */
} fl_attn_plan;

/* What one row tile and head visits: `some` and `whole` as above; bit i of keys[t] = key i of tile t is not hidden
 * by the list. */
typedef struct fl_attn_visit {
    uint64_t some, whole, keys[FL_ATTN_KEY_TILES];
} fl_attn_visit;

/* Bytes of a plan, a multiple of 64, for any tile_rows of 16 or more. */
int64_t fl_attn_plan_bytes(int32_t rows, int32_t n_heads);

/* Makes the plan in `memory` (fl_attn_plan_bytes, 64-byte aligned) on the pool. */
void fl_attn_plan_make(fl_pool *pool, const fl_attn_prefill_args *a, int32_t tile_rows, void *memory,
                       fl_attn_plan *plan);

fl_span fl_attn_plan_rows(const fl_attn_plan *plan, int32_t row_tile);
void fl_attn_plan_visit(const fl_attn_plan *plan, int32_t row_tile, int32_t head, fl_attn_visit *out);

#endif
