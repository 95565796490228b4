/* block_select, portable. A list is made in three passes over its scores: the maximum, how many reach the threshold,
 * the ids. If more reach it than fit, the threshold that lets just enough through is found by bisection over the
 * floats (at most 32 counting passes), so nothing is sorted and no memory is needed. */
#include <math.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "base/half.h"
#include "op/block_select/block_select_random.h"

typedef struct job {
    const fl_block_select_args *a;
    atomic_llong left_out; /* ids */
} job;

/* One tile and head: the blocks it can choose from are first .. end - 1, those before and behind up to id
 * end_id - 1 are forced. */
typedef struct choice {
    const float *score;
    int32_t first, end;
    int32_t end_id;
    int32_t ids_a_block;
    int32_t visible; /* blocks wholly before the tile */
} choice;

/* Which of them: score above `cut`, and `n_equal` of those equal to it from the lowest on. */
typedef struct limit {
    float cut;
    int32_t n_equal;
} limit;

static choice open_choice(const fl_block_select_args *a, int32_t pos, const float *score) {
    choice c = {.score = score, .ids_a_block = a->block_tokens / FL_KV_PAGE_TOKENS};
    c.visible = pos / a->block_tokens;
    c.end_id = (pos + FL_ATTN_LIST_ROWS) / FL_KV_PAGE_TOKENS;
    int64_t sinks = ((int64_t)a->sink_tokens + a->block_tokens - 1) / a->block_tokens;
    c.first = sinks < c.visible ? (int32_t)sinks : c.visible;
    /* Blocks that end before pos + 2 - window_tokens are outside the window. */
    int64_t outside = ((int64_t)pos + 1 - a->window_tokens) / a->block_tokens;
    c.end = outside < c.visible ? (int32_t)outside : c.visible;
    if (c.end < c.first) c.end = c.first;
    return c;
}

/* The float as an integer of the same order, and back. */
static int32_t rank_of(float value) {
    int32_t bits = (int32_t)fl_bits_of_f32(value);
    return bits < 0 ? bits ^ INT32_MAX : bits;
}

static float value_of(int32_t rank) {
    return fl_f32_of_bits((uint32_t)(rank < 0 ? rank ^ INT32_MAX : rank));
}

static int32_t count_from(const choice *c, float cut) {
    int32_t n = 0;
    for (int32_t j = c->first; j < c->end; j++) n += c->score[j] >= cut;
    return n;
}

/* The smallest float that is at least max + log2_alpha. */
static float threshold_of(const choice *c, float log2_alpha) {
    float top = -INFINITY;
    for (int32_t j = 0; j < c->visible; j++) top = c->score[j] > top ? c->score[j] : top;
    if (isinf(log2_alpha)) return -INFINITY;
    double exact = (double)top + (double)log2_alpha;
    float cut = (float)exact;
    return (double)cut < exact ? nextafterf(cut, INFINITY) : cut;
}

/* The limit that lets the `room` best through, of more that are at least `cut`. */
static limit tighten(const choice *c, float cut, int32_t room) {
    if (room == 0) return (limit){INFINITY, 0};
    int32_t low = rank_of(cut), high = rank_of(INFINITY); /* more than room from low on, fewer above high */
    while (low < high) {
        int32_t middle = (int32_t)(((int64_t)low + high + 1) >> 1);
        int32_t n = count_from(c, value_of(middle));
        if (n == room) return (limit){value_of(middle), INT32_MAX};
        if (n > room) low = middle;
        else high = middle - 1;
    }
    limit l = {value_of(low), room};
    for (int32_t j = c->first; j < c->end; j++) l.n_equal -= c->score[j] > l.cut;
    return l;
}

static uint16_t *put_ids(uint16_t *ids, int32_t first, int32_t end) {
    for (int32_t id = first; id < end; id++) *ids++ = (uint16_t)id;
    return ids;
}

static uint16_t *put_block(const choice *c, int32_t block, uint16_t *ids) {
    return put_ids(ids, block * c->ids_a_block, (block + 1) * c->ids_a_block);
}

static uint16_t *put_best(const choice *c, limit l, uint16_t *ids) {
    for (int32_t j = c->first; j < c->end; j++)
        if (c->score[j] > l.cut || (c->score[j] >= l.cut && l.n_equal-- > 0)) ids = put_block(c, j, ids);
    return ids;
}

static uint16_t *put_random(const choice *c, uint64_t stream, int32_t needed, uint16_t *ids) {
    for (int32_t j = c->first; j < c->end; j++)
        if (fl_block_select_draw(&stream, needed, c->end - j)) ids = put_block(c, j, ids), needed--;
    return ids;
}

static void select_blocks(job *j, int32_t tile, int32_t head) {
    const fl_block_select_args *a = j->a;
    int32_t pos = a->pos + tile * FL_ATTN_LIST_ROWS;
    int64_t i = (int64_t)tile * a->n_heads + head;
    uint16_t *ids = a->list.ids + i * a->list.capacity, *at = ids;
    choice c = open_choice(a, pos, a->score + i * a->n_blocks);
    limit l = {a->density ? -INFINITY : threshold_of(&c, a->log2_alpha[head]), INT32_MAX};
    int32_t forced_ids = c.end_id - (c.end - c.first) * c.ids_a_block;
    int32_t room = (a->list.capacity - forced_ids) / c.ids_a_block, passed = count_from(&c, l.cut);
    int32_t wanted = passed;
    int32_t quota = a->density ? fl_block_select_quota(a->density[head], a->block_tokens, pos) : passed;
    if (wanted > quota) wanted = quota;
    if (wanted > room) {
        atomic_fetch_add(&j->left_out, (long long)(wanted - room) * c.ids_a_block);
        wanted = room;
    }
    if (wanted < passed) l = tighten(&c, l.cut, wanted);
    at = put_ids(at, 0, c.first * c.ids_a_block);
    if (a->random_seed == 0) at = put_best(&c, l, at);
    else
        at =
            put_random(&c, fl_block_select_stream(a->random_seed, pos / FL_ATTN_LIST_ROWS, head), wanted, at);
    at = put_ids(at, c.end * c.ids_a_block, c.end_id);
    a->list.n[i] = (int32_t)(at - ids);
}

static void select_tile(void *context, int32_t tile, int32_t worker) {
    (void)worker;
    job *j = context;
    const fl_block_select_args *a = j->a;
    for (int32_t head = 0; head < a->n_heads; head++)
        if (a->dense && a->dense[head]) a->list.n[(int64_t)tile * a->n_heads + head] = -1;
        else select_blocks(j, tile, head);
}

fl_err fl_block_select_cpu(fl_backend *be, const fl_block_select_args *a) {
    FL_TRY(fl_block_select_validate(a));
    job j = {.a = a};
    fl_pool_run(be->pool, a->rows / FL_ATTN_LIST_ROWS, select_tile, &j);
    if (a->overflow) *a->overflow += atomic_load(&j.left_out);
    fl_block_select_count(a);
    return FL_ERR_OK;
}
