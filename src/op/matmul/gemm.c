/* oneDNN is called single-threaded from our own pinned workers: its OpenMP runtime spins and collapses on shared
 * machines. Scratch is handed in by us (user mode), because its own is not safe for one primitive on several threads.
 */
#include "op/matmul/gemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

/* libgomp's, which oneDNN uses; declared here because clang has no omp.h for it. Sets the calling thread's count. */
void omp_set_num_threads(int n);

enum { N_TILES = 7, SETS_MAX = 512 }; /* tiles of 1, 2, 4, .. 64 rows */

typedef struct tile_memory {
    dnnl_memory_t x, w, y, scratch;
    void *scratch_bytes;
} tile_memory;

struct fl_gemm_set {
    const fl_gemm *gemm;
    fl_gemm_shape shape;
    dnnl_primitive_t primitive[N_TILES];
    tile_memory *memory; /* [n_workers][N_TILES] */
};

struct fl_gemm {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* [n_workers] */
    float *stages;          /* [n_workers][FL_GEMM_STAGE_FLOATS] */
    int32_t n_workers;
    int32_t n_sets;
    fl_gemm_set *sets[SETS_MAX];
};

static fl_err onednn(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return FL_ERR_OK;
    fl_err code = status == dnnl_out_of_memory ? FL_ERR_NOMEM : FL_ERR_INTERNAL;
    return FL_FAIL(code, "oneDNN %s failed with status %d", what, (int)status);
}

fl_err fl_gemm_open(int32_t n_workers, fl_gemm **out) {
    fl_gemm *gemm = calloc(1, sizeof *gemm);
    if (!gemm) return FL_FAIL(FL_ERR_NOMEM, "GEMM state");
    fl_err err;
    gemm->n_workers = n_workers;
    gemm->streams = calloc((size_t)n_workers, sizeof(dnnl_stream_t));
    gemm->stages = aligned_alloc(64, (size_t)n_workers * FL_GEMM_STAGE_FLOATS * sizeof(float));
    if (!gemm->streams || !gemm->stages) {
        err = FL_FAIL(FL_ERR_NOMEM, "GEMM state for %d workers", n_workers);
        goto fail;
    }
    FL_TRY_GOTO(onednn(dnnl_engine_create(&gemm->engine, dnnl_cpu, 0), "engine"));
    for (int32_t i = 0; i < n_workers; i++)
        FL_TRY_GOTO(
            onednn(dnnl_stream_create(&gemm->streams[i], gemm->engine, dnnl_stream_default_flags), "stream"));
    *out = gemm;
    return FL_ERR_OK;
fail:
    fl_gemm_close(gemm);
    return err;
}

static void set_close(fl_gemm_set *set) {
    for (int32_t t = 0; t < N_TILES; t++)
        if (set->primitive[t]) dnnl_primitive_destroy(set->primitive[t]);
    for (int32_t i = 0; set->memory && i < set->gemm->n_workers * N_TILES; i++) {
        tile_memory *m = &set->memory[i];
        if (m->x) dnnl_memory_destroy(m->x);
        if (m->w) dnnl_memory_destroy(m->w);
        if (m->y) dnnl_memory_destroy(m->y);
        if (m->scratch) dnnl_memory_destroy(m->scratch);
        free(m->scratch_bytes);
    }
    free(set->memory);
    free(set);
}

void fl_gemm_close(fl_gemm *gemm) {
    if (!gemm) return;
    for (int32_t i = 0; i < gemm->n_sets; i++) set_close(gemm->sets[i]);
    for (int32_t i = 0; gemm->streams && i < gemm->n_workers; i++)
        if (gemm->streams[i]) dnnl_stream_destroy(gemm->streams[i]);
    if (gemm->engine) dnnl_engine_destroy(gemm->engine);
    free(gemm->streams);
    free(gemm->stages);
    free(gemm);
}

static fl_err make_memories(fl_gemm_set *set, int32_t tile, const_dnnl_primitive_desc_t desc) {
    dnnl_engine_t engine = set->gemm->engine;
    const dnnl_memory_desc_t *x = dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0);
    const dnnl_memory_desc_t *w = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *y = dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    for (int32_t i = 0; i < set->gemm->n_workers; i++) {
        tile_memory *m = &set->memory[i * N_TILES + tile];
        FL_TRY(onednn(dnnl_memory_create(&m->x, x, engine, DNNL_MEMORY_NONE), "x memory"));
        FL_TRY(onednn(dnnl_memory_create(&m->w, w, engine, DNNL_MEMORY_NONE), "weight memory"));
        FL_TRY(onednn(dnnl_memory_create(&m->y, y, engine, DNNL_MEMORY_NONE), "y memory"));
        size_t bytes = (dnnl_memory_desc_get_size(scratch) + 127) / 64 * 64;
        m->scratch_bytes = aligned_alloc(64, bytes);
        if (!m->scratch_bytes) return FL_FAIL(FL_ERR_NOMEM, "GEMM scratch, %zu bytes", bytes);
        FL_TRY(onednn(dnnl_memory_create(&m->scratch, scratch, engine, m->scratch_bytes), "scratch memory"));
    }
    return FL_ERR_OK;
}

static fl_err make_tile(fl_gemm_set *set, int32_t tile) {
    const fl_gemm_shape *s = &set->shape;
    dnnl_dim_t rows = (dnnl_dim_t)1 << tile;
    dnnl_dims_t x_dims = {rows, s->k}, w_dims = {s->k, s->n}, y_dims = {rows, s->n};
    dnnl_memory_desc_t x, w, y;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    const char *kernel = "";
    fl_err err;
    FL_TRY(onednn(dnnl_memory_desc_init_by_tag(&x, 2, x_dims, dnnl_bf16, dnnl_ab), "x layout"));
    FL_TRY(onednn(dnnl_memory_desc_init_by_tag(&w, 2, w_dims, dnnl_bf16, dnnl_BA16a64b2a), "weight layout"));
    FL_TRY(onednn(dnnl_memory_desc_init_by_tag(&y, 2, y_dims, s->y_bf16 ? dnnl_bf16 : dnnl_f32, dnnl_ab),
                  "y layout"));
    FL_TRY(onednn(dnnl_matmul_desc_init(&matmul, &x, &w, NULL, &y), "matmul"));
    FL_TRY(onednn(dnnl_primitive_attr_create(&attr), "attributes"));
    FL_TRY_GOTO(
        onednn(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratch mode"));
    FL_TRY_GOTO(
        onednn(dnnl_primitive_desc_create(&desc, &matmul, attr, set->gemm->engine, NULL), "matmul choice"));
    FL_TRY_GOTO(onednn(dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &kernel), "kernel name"));
    if (strncmp(kernel, "brg", 3) != 0) { /* its fallback is 1000 times slower and sums in another order */
        err = FL_FAIL(FL_ERR_UNSUPPORTED, "oneDNN has no fast bf16 GEMM for n %d, k %d here, only %s", s->n,
                      s->k, kernel);
        goto fail;
    }
    FL_TRY_GOTO(onednn(dnnl_primitive_create(&set->primitive[tile], desc), "matmul kernel"));
    err = make_memories(set, tile, desc);
fail:
    if (desc) dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attr);
    return err;
}

static bool same_shape(const fl_gemm_shape *a, const fl_gemm_shape *b) {
    return a->n == b->n && a->k == b->k && a->y_bf16 == b->y_bf16;
}

fl_err fl_gemm_get(fl_gemm *gemm, const fl_gemm_shape *shape, const fl_gemm_set **out) {
    for (int32_t i = 0; i < gemm->n_sets; i++) {
        if (!same_shape(&gemm->sets[i]->shape, shape)) continue;
        *out = gemm->sets[i];
        return FL_ERR_OK;
    }
    if (gemm->n_sets == SETS_MAX) return FL_FAIL(FL_ERR_LIMIT, "more than %d GEMM shapes", SETS_MAX);
    omp_set_num_threads(1); /* of this thread; the JIT asks OpenMP how far to cut the work */
    fl_gemm_set *set = calloc(1, sizeof *set);
    if (!set) return FL_FAIL(FL_ERR_NOMEM, "GEMM shape");
    set->gemm = gemm;
    set->shape = *shape;
    set->memory = calloc((size_t)gemm->n_workers * N_TILES, sizeof *set->memory);
    fl_err err = set->memory ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "GEMM shape");
    for (int32_t t = 0; t < N_TILES && err == FL_ERR_OK; t++) err = make_tile(set, t);
    if (err != FL_ERR_OK) {
        set_close(set);
        return err;
    }
    gemm->sets[gemm->n_sets++] = set;
    *out = set;
    return FL_ERR_OK;
}

static void run_tile(const fl_gemm_set *set, int32_t worker, int32_t tile, const uint8_t *x, const void *w,
                     void *y) {
    const tile_memory *m = &set->memory[worker * N_TILES + tile];
    /* oneDNN's handles are not const, but a matmul only reads x and w */
    union {
        const void *in;
        void *out;
    } px = {x}, pw = {w};
    dnnl_memory_set_data_handle(m->x, px.out);
    dnnl_memory_set_data_handle(m->w, pw.out);
    dnnl_memory_set_data_handle(m->y, y);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, m->x},
                                    {DNNL_ARG_WEIGHTS, m->w},
                                    {DNNL_ARG_DST, m->y},
                                    {DNNL_ARG_SCRATCHPAD, m->scratch}};
    dnnl_primitive_execute(set->primitive[tile], set->gemm->streams[worker], 4, args);
}

void fl_gemm_run(const fl_gemm_set *set, int32_t worker, int32_t rows, const void *x, const void *w,
                 void *y) {
    const fl_gemm_shape *s = &set->shape;
    const uint8_t *x_row = x;
    uint8_t *y_row = y;
    omp_set_num_threads(1);
    for (int32_t tile = N_TILES - 1; tile >= 0; tile--) {
        for (int32_t tile_rows = 1 << tile; rows >= tile_rows; rows -= tile_rows) {
            run_tile(set, worker, tile, x_row, w, y_row);
            x_row += (size_t)tile_rows * (size_t)s->k * 2;
            y_row += (size_t)tile_rows * (size_t)s->n * (s->y_bf16 ? 2 : 4);
        }
    }
}

float *fl_gemm_stage(const fl_gemm *gemm, int32_t worker) {
    return gemm->stages + (size_t)worker * FL_GEMM_STAGE_FLOATS;
}
