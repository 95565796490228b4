/* attn_prefill on CUDA: the head shapes of the models on tensor cores (attn_prefill_wgmma.cuh), any other on CUDA cores
 * (attn_prefill_plain.cu), by the shape alone, so that all calls over one running state go the same way. */
#include "op/attn_prefill/attn_prefill_wgmma.cuh"

static fl_prefill_part part_of(const fl_attn_prefill_args *a) {
    fl_prefill_part part = {};
    part.keys.pos = a->pos;
    part.keys.rows = a->rows;
    part.keys.key_pos = a->key_pos;
    part.keys.key_step = a->key_step < 1 ? 1 : a->key_step;
    part.keys.n_keys = a->n_keys;
    part.keys.view = a->view;
    part.means = a->means;
    part.key_bias = a->key_bias;
    return part;
}

static fl_prefill_call call_of(const fl_attn_prefill_args *a) {
    fl_prefill_call c = {};
    c.part[0] = part_of(a);
    c.n_parts = 1;
    c.rows = a->rows;
    c.n_heads = a->n_heads;
    if (a->list) {
        c.ids = a->list->ids;
        c.n_ids = a->list->n;
        c.capacity = a->list->capacity;
    }
    c.first = a->first;
    c.last = a->last;
    c.state = a->state;
    c.out = (fl_bf16 *)a->out;
    c.codes = a->out_codes;
    c.lse = a->lse;
    return c;
}

/* Keys that a tile of rows sees at most, whatever a list says. */
static int64_t keys_of(const fl_prefill_call *c, int32_t tile, int32_t tile_rows) {
    const fl_prefill_part *part = &c->part[0];
    fl_attn_walk walk =
        part->means ? fl_attn_walk_means(&part->keys, tile, false)
                    : fl_attn_walk_rows(&part->keys, (int64_t)tile * tile_rows, tile_rows, c->ids != NULL);
    int64_t keys = 0;
    for (int i = 0; i < 2; i++) keys += fl_attn_larger(walk.some.end[i] - walk.some.first[i], 0);
    return keys;
}

/* All tiles of rows where the state starts or ends; else none of those before the first and behind the last that see
 * a key: of a long document most. */
static void choose_tiles(fl_prefill_call *c, int32_t tile_rows) {
    int32_t first = 0, end = (int32_t)fl_tasks_of(c->rows, tile_rows);
    bool all = c->first || c->last || c->n_parts > 1;
    while (!all && first < end && keys_of(c, first, tile_rows) == 0) first++;
    while (!all && first < end && keys_of(c, end - 1, tile_rows) == 0) end--;
    c->first_tile = first;
    c->row_tiles = end - first;
}

/* Of tasks alike no more blocks than finish together: what the others leave of L2 and of power goes to these. Else
 * one for every multiprocessor: tasks that grow with their rows even out. */
static uint32_t blocks_of(const fl_cuda *cuda, const fl_prefill_call *c, int32_t tile_rows) {
    int64_t n = c->n_tasks, most = cuda->n_multiprocessors;
    bool alike =
        2 * keys_of(c, c->first_tile, tile_rows) > keys_of(c, c->first_tile + c->row_tiles - 1, tile_rows);
    if (n < most) return (uint32_t)n;
    return (uint32_t)(alike ? fl_tasks_of(n, fl_tasks_of(n, most)) : most);
}

/* [lines][heads][width]; boxes of 64 columns of one head. */
static fl_err map_heads(const void *base, int64_t width, int64_t heads, int64_t lines, int32_t box,
                        CUtensorMap *out) {
    fl_tma_shape s = {};
    s.base = base;
    s.dtype = FL_DTYPE_BF16;
    s.rank = 3;
    s.size[0] = width, s.size[1] = heads, s.size[2] = lines;
    s.stride[1] = width, s.stride[2] = width * heads;
    s.box[0] = CHUNK_COLUMNS, s.box[1] = 1, s.box[2] = box;
    s.swizzle = true;
    return fl_tma_map(&s, out);
}

static fl_err map_lines(const void *base, int64_t width, int64_t lines, int32_t box, CUtensorMap *out) {
    fl_tma_shape s = {};
    s.base = base;
    s.dtype = FL_DTYPE_BF16;
    s.rank = 2;
    s.size[0] = width, s.size[1] = lines;
    s.stride[1] = width;
    s.box[0] = CHUNK_COLUMNS, s.box[1] = box;
    s.swizzle = true;
    return fl_tma_map(&s, out);
}

template <int NOPE, int ROPE, int V>
static fl_err map_part(const fl_attn_prefill_args *a, prefill_part_maps *maps) {
    FL_TRY(map_heads(a->kv, NOPE + V, a->n_heads, a->n_keys, FL_ATTN_HALF_KEYS, &maps->kv));
    return map_lines(a->k_pe, ROPE, a->n_keys, FL_ATTN_HALF_KEYS, &maps->k_pe);
}

static fl_err choose_tasks(const fl_attn_prefill_args *a, fl_prefill_call *c, int32_t tile_rows) {
    choose_tiles(c, tile_rows);
    if ((int64_t)c->row_tiles * c->n_heads > INT32_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_prefill: %d rows of %d heads are too many for one launch",
                       a->rows, a->n_heads);
    c->n_tasks = (uint32_t)(c->row_tiles * c->n_heads);
    return FL_ERR_OK;
}

template <int NOPE, int ROPE, int V, bool LISTS>
static fl_err launch(fl_cuda *cuda, const fl_attn_prefill_args *a, fl_prefill_call *c) {
    using shared_tiles = prefill_shared<NOPE, ROPE, V, LISTS>;
    static_assert(NOPE % CHUNK_COLUMNS == 0 && V % CHUNK_COLUMNS == 0 && ROPE % 16 == 0 &&
                  ROPE <= CHUNK_COLUMNS);
    if ((uintptr_t)a->state % 16 != 0 || (uintptr_t)a->out % 16 != 0)
        return FL_FAIL(FL_ERR_INVALID, "attn_prefill: state and out must be 16-byte aligned");
    FL_TRY(choose_tasks(a, c, shared_tiles::ROWS));
    if (c->n_tasks == 0) return FL_ERR_OK; /* no row sees a key: not a bit changes */
    const int bytes = sizeof(shared_tiles) + 1024;
    auto kernel = prefill_wgmma_kernel<NOPE, ROPE, V, LISTS>;
    prefill_maps maps = {};
    FL_TRY(map_heads(a->q, NOPE + ROPE, a->n_heads, a->rows, shared_tiles::ROWS, &maps.q));
    FL_TRY((map_part<NOPE, ROPE, V>(a, &maps.part[0])));
    if (c->n_parts > 1) FL_TRY((map_part<NOPE, ROPE, V>(a->then, &maps.part[1])));
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    uint32_t blocks = blocks_of(cuda, c, shared_tiles::ROWS);
    kernel<<<blocks, shared_tiles::THREADS, bytes, cuda->stream>>>(maps, *c);
    return FL_CUDA_LAUNCHED("attn_prefill");
}

/* Whether steps may carry bits or a bias. */
static bool has_lists(const fl_prefill_call *c) {
    return c->ids || c->part[0].means || c->part[0].key_bias || c->n_parts > 1;
}

typedef enum head_shape { SHAPE_OTHER, SHAPE_192_128, SHAPE_96_64 } head_shape;

static head_shape shape_of(const fl_attn_prefill_args *a) {
    if (a->nope_dim == 128 && a->rope_dim == 64 && a->v_dim == 128) return SHAPE_192_128;
    if (a->nope_dim == 64 && a->rope_dim == 32 && a->v_dim == 64) return SHAPE_96_64;
    return SHAPE_OTHER;
}

static fl_err run_call(fl_cuda *cuda, const fl_attn_prefill_args *a, fl_prefill_call *c) {
    switch (shape_of(a)) {
    case SHAPE_192_128:
        return has_lists(c) ? launch<128, 64, 128, true>(cuda, a, c)
                            : launch<128, 64, 128, false>(cuda, a, c);
    case SHAPE_96_64:
        return has_lists(c) ? launch<64, 32, 64, true>(cuda, a, c) : launch<64, 32, 64, false>(cuda, a, c);
    case SHAPE_OTHER: break;
    }
    return fl_prefill_plain(cuda, a, c);
}

/* Listed keys and means in one launch, so that the running state between them stays in registers. */
static bool goes_in_one(const fl_attn_prefill_args *a) {
    const fl_attn_prefill_args *b = a->then;
    return b && shape_of(a) != SHAPE_OTHER && b->means && b->q == a->q && b->list == a->list &&
           b->out == a->out;
}

extern "C" fl_err fl_attn_prefill_cuda(fl_backend *be, const fl_attn_prefill_args *a) {
    FL_TRY(fl_attn_prefill_validate(a));
    if (!be->w8a8) FL_TRY(fl_codes_refuse(be, "attn_prefill", &a->out_codes));
    if (!be->w8a8 && a->then) FL_TRY(fl_codes_refuse(be, "attn_prefill", &a->then->out_codes));
    fl_cuda *cuda = fl_cuda_of(be);
    fl_prefill_call c = call_of(a);
    if (goes_in_one(a)) {
        c.part[1] = part_of(a->then);
        c.n_parts = 2;
        c.last = a->then->last;
        c.codes = a->then->out_codes;
        c.lse = a->then->lse;
        return run_call(cuda, a, &c);
    }
    FL_TRY(run_call(cuda, a, &c));
    if (!a->then) return FL_ERR_OK;
    c = call_of(a->then);
    return run_call(cuda, a->then, &c);
}
