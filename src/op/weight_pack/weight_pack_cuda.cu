/* weight_pack, CUDA: the source is host memory, mapped from a file, the weight is the device's. Rows of the packed
 * matrix are made on the host by the backend's threads, a half of the stage at a time, while the other half is sent.
 * It runs at load and reads disks: the one op that does. */
#include "backend/cuda/cuda_backend.h"

extern "C" {
#include "base/half.h"
#include "op/weight_pack/weight_pack_source.h"
}

enum { CHUNK = 512, FEATURES = 32 /* of the packed matrix, a task */ };

typedef struct job {
    fl_pack_source source;
    int32_t first, n, k; /* features in the stage, counted in the part; their length */
    uint16_t *stage;     /* [n][k] */
} job;

/* Source rows as features. */
static void pack_rows(const job *j, int32_t first, int32_t end) {
    float chunk[CHUNK];
    for (int32_t i = first; i < end; i++) {
        uint16_t *to = j->stage + (int64_t)(i - j->first) * j->k;
        for (int32_t at = 0; at < j->k; at += CHUNK) {
            int32_t n = j->k - at < CHUNK ? j->k - at : CHUNK;
            fl_pack_source_read(&j->source, i, at, n, chunk);
            for (int32_t c = 0; c < n; c++) to[at + c] = fl_bf16_of_f32(chunk[c]);
        }
    }
}

/* Source columns as features: a few of a source row are one element each of as many features. */
static void pack_columns(const job *j, int32_t first, int32_t end) {
    float chunk[FEATURES];
    for (int32_t row = 0; row < j->k; row++) {
        fl_pack_source_read(&j->source, row, first, end - first, chunk);
        uint16_t *to = j->stage + (int64_t)(first - j->first) * j->k + row;
        for (int32_t c = 0; c < end - first; c++, to += j->k) *to = fl_bf16_of_f32(chunk[c]);
    }
}

static void pack_features(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = (const job *)context;
    int32_t first = j->first + task * FEATURES;
    int32_t end = j->n - task * FEATURES < FEATURES ? j->first + j->n : first + FEATURES;
    if (j->source.a->transpose) pack_columns(j, first, end);
    else pack_rows(j, first, end);
}

extern "C" fl_err fl_weight_pack_cuda(fl_backend *be, const fl_weight_pack_args *a) {
    FL_TRY(fl_weight_pack_validate(a));
    fl_cuda *cuda = fl_cuda_of(be);
    job j = {};
    j.source = fl_pack_source_of(a);
    j.k = a->w->k;
    int64_t row_bytes = (int64_t)j.k * (int64_t)sizeof(uint16_t);
    int32_t n = a->transpose ? a->cols : a->rows, most = (int32_t)(FL_CUDA_STAGE_BYTES / row_bytes);
    if (most < 1)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "weight_pack: k is %d, at most %d", j.k,
                       FL_CUDA_STAGE_BYTES / (int32_t)sizeof(uint16_t));
    for (j.first = 0; j.first < n; j.first += j.n) {
        j.n = n - j.first < most ? n - j.first : most;
        uint8_t *to = (uint8_t *)a->w->data + ((int64_t)a->n_offset + j.first) * row_bytes, *half;
        FL_TRY(fl_cuda_stage_take(cuda, &half));
        j.stage = (uint16_t *)half;
        fl_pool_run(be->pool, (j.n + FEATURES - 1) / FEATURES, pack_features, &j);
        FL_TRY(fl_cuda_stage_send(cuda, to, j.n * row_bytes));
    }
    return FL_ERR_OK;
}
