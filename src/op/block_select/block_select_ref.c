#include "op/block_select/block_select.h"

#include <math.h>

#include "op/block_select/block_select_random.h"
#include "op/ref.h"

/* The blocks of one tile and head. */
typedef struct choice {
    const fl_block_select_args *a;
    const float *score;
    int32_t pos; /* of the tile's first row */
    int32_t n;   /* blocks that begin at or before the tile's last row */
    bool forced[FL_ATTN_LIST_TOKENS_MAX / FL_KV_PAGE_TOKENS]; /* [n] */
    bool listed[FL_ATTN_LIST_TOKENS_MAX / FL_KV_PAGE_TOKENS]; /* [n] */
} choice;

static int32_t ids_a_block(const choice *c) {
    return c->a->block_tokens / FL_KV_PAGE_TOKENS;
}

/* Ids of block j that begin at or before the tile's last row. */
static int32_t ids_of(const choice *c, int32_t j) {
    int32_t left = (c->pos + FL_ATTN_LIST_ROWS) / FL_KV_PAGE_TOKENS - j * ids_a_block(c);
    return left < ids_a_block(c) ? left : ids_a_block(c);
}

static int64_t count_ids(const choice *c) {
    int64_t n = 0;
    for (int32_t j = 0; j < c->n; j++) n += c->listed[j] ? ids_of(c, j) : 0;
    return n;
}

static void list_blocks(choice *c, double log2_alpha) {
    double top = -INFINITY;
    for (int32_t j = 0; j < c->n; j++) {
        int64_t first = (int64_t)j * c->a->block_tokens, last = first + c->a->block_tokens - 1;
        bool before = last < c->pos;
        c->forced[j] = first < c->a->sink_tokens || c->pos - last < c->a->window_tokens || !before;
        if (before) top = fmax(top, (double)c->score[j]);
    }
    for (int32_t j = 0; j < c->n; j++)
        c->listed[j] = c->forced[j] || isinf(log2_alpha) || (double)c->score[j] >= top + log2_alpha;
}

/* With `density`: no more than this share of the blocks that are not forced, and those whatever they score. */
static void list_share(choice *c, double share) {
    int32_t left = (int32_t)ceil(fmin(fmax(share, 0), 1) * c->n);
    for (int32_t j = 0; j < c->n; j++) c->listed[j] = c->forced[j];
    for (; left > 0; left--) {
        int32_t best = -1;
        for (int32_t j = 0; j < c->n; j++)
            if (!c->listed[j] && (best < 0 || c->score[j] > c->score[best])) best = j;
        if (best < 0) return;
        c->listed[best] = true;
    }
}

/* Takes the worst block off the list that is not forced, the highest of equals. */
static int32_t drop_worst(choice *c) {
    int32_t worst = -1;
    for (int32_t j = 0; j < c->n; j++)
        if (c->listed[j] && !c->forced[j] && (worst < 0 || c->score[j] <= c->score[worst])) worst = j;
    c->listed[worst] = false;
    return ids_of(c, worst);
}

/* Lists as many of the blocks that are not forced as now, but others. */
static void shuffle(choice *c, int32_t head) {
    int32_t left = 0, needed = 0;
    for (int32_t j = 0; j < c->n; j++)
        if (!c->forced[j]) left++, needed += c->listed[j];
    uint64_t stream = fl_block_select_stream(c->a->random_seed, c->pos / FL_ATTN_LIST_ROWS, head);
    for (int32_t j = 0; j < c->n; j++)
        if (!c->forced[j]) {
            c->listed[j] = fl_block_select_draw(&stream, needed, left--);
            needed -= c->listed[j];
        }
}

/* Returns the ids left out. */
static int64_t select_blocks(choice *c, int32_t head, uint16_t *ids, int32_t *n) {
    int64_t left_out = 0;
    list_blocks(c, (double)c->a->log2_alpha[head]);
    if (c->a->density) list_share(c, (double)c->a->density[head]);
    while (count_ids(c) > c->a->list.capacity) left_out += drop_worst(c);
    if (c->a->random_seed != 0) shuffle(c, head);
    *n = 0;
    for (int32_t j = 0; j < c->n; j++)
        for (int32_t i = 0; c->listed[j] && i < ids_of(c, j); i++)
            ids[(*n)++] = (uint16_t)(j * ids_a_block(c) + i);
    return left_out;
}

fl_err fl_block_select_ref(fl_backend *be, const fl_block_select_args *a) {
    (void)be;
    FL_TRY(fl_block_select_validate(a));
    choice c = {.a = a};
    for (int32_t i = 0; i < a->rows / FL_ATTN_LIST_ROWS * a->n_heads; i++) {
        int32_t head = i % a->n_heads;
        c.pos = a->pos + i / a->n_heads * FL_ATTN_LIST_ROWS;
        c.n = (c.pos + FL_ATTN_LIST_ROWS - 1) / a->block_tokens + 1;
        c.score = a->score + (int64_t)i * a->n_blocks;
        if (a->dense && a->dense[head]) {
            a->list.n[i] = -1;
            continue;
        }
        int64_t left_out =
            select_blocks(&c, head, a->list.ids + (int64_t)i * a->list.capacity, &a->list.n[i]);
        if (a->overflow) *a->overflow += left_out;
    }
    fl_block_select_count(a);
    return FL_ERR_OK;
}
