/* Which keys a tile of rows visits, and in what order: how the CUDA kernel walks over the keys of a call. Plain C,
 * so that a test without a GPU can hold it against fl_attn_prefill_sees. Keys are counted from the call's first.
 *
 * A step of the walk is two halves of 64 keys. Without a list they are keys 128 i .. 128 i + 127, whatever the
 * rows, so that a row's sums group its keys alike beside any neighbours. With a list they are the next two listed
 * blocks, which is the same grouping if all are listed. Where a list does not fit whole halves (means, strides)
 * the walk is as without one, over a bitmap of the listed blocks. */
#ifndef FL_OP_ATTN_PREFILL_TILES_H
#define FL_OP_ATTN_PREFILL_TILES_H

#include "op/op_types.h"

#ifdef __CUDACC__
#define FL_ANYWHERE static __host__ __device__ inline
#else
#define FL_ANYWHERE static inline
#endif

enum { FL_ATTN_TILE_KEYS = 128, FL_ATTN_HALF_KEYS = 64, FL_ATTN_TILE_ROWS = FL_ATTN_LIST_ROWS };

/* Where the rows and the keys of a call lie. */
typedef struct fl_attn_keys {
    int32_t pos, rows;
    int32_t key_pos, key_step, n_keys; /* key_step is 1 or more */
    fl_attn_view view;
} fl_attn_keys;

/* Two ranges of keys, which may overlap; first >= end is an empty one. */
typedef struct fl_attn_ranges {
    int32_t first[2], end[2];
} fl_attn_ranges;

FL_ANYWHERE int64_t fl_attn_larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

FL_ANYWHERE int64_t fl_attn_smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The first key at `position` or behind it; n_keys if there is none. */
FL_ANYWHERE int32_t fl_attn_key_from(const fl_attn_keys *k, int64_t position) {
    int64_t distance = position - k->key_pos;
    if (distance <= 0) return 0;
    if (k->key_step > 1) distance = (distance + k->key_step - 1) / k->key_step;
    return (int32_t)fl_attn_smaller(distance, k->n_keys);
}

/* What the row at position p sees by the view: the sinks, and all from a start on to p; or what lies between (far).
 * No bound ever falls from one row to the next: the tile's ranges below rest on it. */
FL_ANYWHERE fl_attn_ranges fl_attn_row_ranges(const fl_attn_keys *k, int64_t p) {
    const fl_attn_view *v = &k->view;
    int64_t near_from = v->window == 0 ? 0 : fl_attn_larger(0, p - v->window + 1);
    if (v->segment > 0) near_from = fl_attn_smaller(near_from, p / v->segment * v->segment);
    int64_t earliest = v->distance_end > 0 ? p - v->distance_end + 1 : 0, end = p - v->distance_first + 1;
    int64_t sinks_end = v->far ? 0 : v->sinks, own_from = v->far ? v->sinks : near_from;
    int64_t own_end = v->far ? near_from : p + 1;
    fl_attn_ranges r;
    r.first[0] = fl_attn_key_from(k, earliest);
    r.end[0] = fl_attn_key_from(k, fl_attn_smaller(sinks_end, end));
    r.first[1] = fl_attn_key_from(k, fl_attn_larger(own_from, earliest));
    r.end[1] = fl_attn_key_from(k, fl_attn_smaller(own_end, end));
    return r;
}

/* Keys before this one are means of blocks that lie wholly before a row tile at tile_pos. */
FL_ANYWHERE int32_t fl_attn_means_end(const fl_attn_keys *k, int64_t tile_pos) {
    int64_t blocks = fl_attn_larger(0, tile_pos - k->key_pos) / k->key_step;
    return (int32_t)fl_attn_smaller(blocks, k->n_keys);
}

/* ---- the walk -------------------------------------------------------------------------------------------------- */

typedef enum fl_attn_walk_kind {
    FL_ATTN_WALK_ALL,    /* every tile in the ranges */
    FL_ATTN_WALK_LISTED, /* listed blocks in the ranges, two and two */
    FL_ATTN_WALK_MARKED  /* every tile in the ranges; the bitmap says which of its keys */
} fl_attn_walk_kind;

typedef struct fl_attn_walk {
    fl_attn_walk_kind kind;
    fl_attn_ranges some, whole; /* keys that some row sees (and a few more at most), that every row sees */
    int32_t key;                /* ALL, MARKED: of the next step, a multiple of FL_ATTN_TILE_KEYS */
    const uint16_t *ids;        /* LISTED: the list, its length, the next entry */
    int32_t n_ids, at;
    int32_t first_block; /* LISTED: block of key 0 */
} fl_attn_walk;

typedef struct fl_attn_step {
    int32_t key[2]; /* of the halves; n_keys: no second one */
    bool masked;    /* by the rows' ranges; else every row sees all 128 keys, but for the bitmap */
} fl_attn_step;

/* The first multiple of `unit` from `key` on, itself one, where [it, it + unit) has keys of r; INT32_MAX: none. */
FL_ANYWHERE int32_t fl_attn_next_touched(const fl_attn_ranges *r, int32_t key, int32_t unit) {
    int32_t next = INT32_MAX;
    for (int32_t i = 0; i < 2; i++) {
        int32_t from = r->first[i] / unit * unit;
        if (from < key) from = key;
        if (r->first[i] < r->end[i] && from < r->end[i] && from < next) next = from;
    }
    return next;
}

FL_ANYWHERE bool fl_attn_covered(const fl_attn_ranges *r, int32_t key, int32_t n) {
    return (r->first[0] <= key && r->end[0] - n >= key) || (r->first[1] <= key && r->end[1] - n >= key);
}

/* First entry of ids[n], ascending, that is not below `block`. */
FL_ANYWHERE int32_t fl_attn_list_find(const uint16_t *ids, int32_t n, int32_t block) {
    int32_t low = 0, high = block > 0 ? n : 0; /* of a call from position 0 on nothing is read */
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (ids[middle] < block) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Of `rows` rows from `row` on over keys seen by the view; no list, or a dense head. A list's tile is a whole one even
 * where the rows end early: what it visits must not depend on that. */
FL_ANYWHERE fl_attn_walk fl_attn_walk_rows(const fl_attn_keys *k, int64_t row, int32_t rows, bool has_list) {
    int64_t p0 = (int64_t)k->pos + row, p1 = p0 + rows - 1;
    if (!has_list) p1 = fl_attn_smaller(p1, (int64_t)k->pos + k->rows - 1);
    fl_attn_ranges low = fl_attn_row_ranges(k, p0), high = fl_attn_row_ranges(k, p1);
    fl_attn_walk w = {.kind = FL_ATTN_WALK_ALL};
    for (int32_t i = 0; i < 2; i++) {
        w.some.first[i] = low.first[i];
        w.some.end[i] = high.end[i];
        w.whole.first[i] = high.first[i];
        w.whole.end[i] = low.end[i];
    }
    return w;
}

/* The same of row tile `tile`. */
FL_ANYWHERE fl_attn_walk fl_attn_walk_all(const fl_attn_keys *k, int32_t tile, bool has_list) {
    return fl_attn_walk_rows(k, (int64_t)tile * FL_ATTN_TILE_ROWS, FL_ATTN_TILE_ROWS, has_list);
}

/* Of listed blocks ids[n]; n >= 0. */
FL_ANYWHERE fl_attn_walk fl_attn_walk_listed(const fl_attn_keys *k, int32_t tile, const uint16_t *ids,
                                             int32_t n) {
    fl_attn_walk w = fl_attn_walk_all(k, tile, true);
    if (k->key_step > 1) {
        w.kind = FL_ATTN_WALK_MARKED;
        return w;
    }
    w.kind = FL_ATTN_WALK_LISTED;
    w.ids = ids;
    w.n_ids = n;
    w.first_block = k->key_pos / FL_ATTN_HALF_KEYS;
    w.at = fl_attn_list_find(ids, n, w.first_block);
    return w;
}

/* Of means; a dense head has none. */
FL_ANYWHERE fl_attn_walk fl_attn_walk_means(const fl_attn_keys *k, int32_t tile, bool dense) {
    fl_attn_walk w = {.kind = FL_ATTN_WALK_MARKED};
    int32_t end = fl_attn_means_end(k, (int64_t)k->pos + (int64_t)tile * FL_ATTN_TILE_ROWS);
    if (!dense) w.some.end[1] = w.whole.end[1] = end;
    return w;
}

/* The next listed block that rows may see, as its first key; INT32_MAX: none. */
FL_ANYWHERE int32_t fl_attn_walk_block(fl_attn_walk *w) {
    while (w->at < w->n_ids) {
        int64_t key = ((int64_t)w->ids[w->at] - w->first_block) * FL_ATTN_HALF_KEYS;
        int32_t next =
            key > INT32_MAX / 2 ? INT32_MAX : fl_attn_next_touched(&w->some, (int32_t)key, FL_ATTN_HALF_KEYS);
        if (next == INT32_MAX) w->at = w->n_ids;
        else if (next > key)
            w->at += fl_attn_list_find(w->ids + w->at, w->n_ids - w->at,
                                       w->first_block + next / FL_ATTN_HALF_KEYS);
        else {
            w->at++;
            return next;
        }
    }
    return INT32_MAX;
}

FL_ANYWHERE bool fl_attn_walk_next(fl_attn_walk *w, int32_t n_keys, fl_attn_step *out) {
    if (w->kind != FL_ATTN_WALK_LISTED) {
        int32_t key = fl_attn_next_touched(&w->some, w->key, FL_ATTN_TILE_KEYS);
        if (key == INT32_MAX) return false;
        w->key = key + FL_ATTN_TILE_KEYS;
        out->key[0] = key;
        out->key[1] = key + FL_ATTN_HALF_KEYS;
        out->masked = !fl_attn_covered(&w->whole, key, FL_ATTN_TILE_KEYS);
        return true;
    }
    int32_t key = fl_attn_walk_block(w);
    if (key == INT32_MAX) return false;
    int32_t second = fl_attn_walk_block(w);
    out->key[0] = key;
    out->key[1] = second == INT32_MAX ? n_keys : second;
    out->masked = !fl_attn_covered(&w->whole, key, FL_ATTN_HALF_KEYS) ||
                  !fl_attn_covered(&w->whole, second, FL_ATTN_HALF_KEYS);
    return true;
}

/* ---- the bitmap of MARKED -------------------------------------------------------------------------------------- */

enum { FL_ATTN_LIST_BLOCKS_MAX = 65536 }; /* ids have 16 bits */

/* Whether key i counts; bit b % 32 of listed[b / 32]: block b is listed. Of a walk with ranges both hold. */
FL_ANYWHERE bool fl_attn_marked(const fl_attn_keys *k, bool means, int32_t means_end, const uint32_t *listed,
                                int32_t i) {
    if (i >= (means ? means_end : k->n_keys)) return false;
    int32_t block = (int32_t)(((int64_t)k->key_pos + (int64_t)i * k->key_step) / FL_KV_PAGE_TOKENS);
    bool is_listed = block < FL_ATTN_LIST_BLOCKS_MAX && (listed[block / 32] >> (block % 32) & 1);
    return is_listed != means;
}

#endif
