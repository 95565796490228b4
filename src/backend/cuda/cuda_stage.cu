/* Loading: host memory to the device through two halves of pinned memory. While one half is on its way, the pool's
 * threads fill the other: from mapped files, so that reading, copying and sending overlap. Copies out of memory
 * that is not pinned would be made by the driver, by one thread, and the caller would wait for each. */
#include <string.h>

#include "backend/cuda/cuda_backend.h"

enum { PIECE = 1 << 20 }; /* bytes of a task */

static fl_err open_half(fl_cuda *cuda, int32_t half) {
    fl_cuda_stage *s = &cuda->stage;
    if (s->half[half]) return FL_ERR_OK;
    FL_TRY(cuda->base.alloc_host(&cuda->base, FL_CUDA_STAGE_BYTES, (void **)&s->half[half]));
    return fl_cuda_check(cudaEventCreateWithFlags(&s->sent[half], cudaEventDisableTiming), "stage");
}

fl_err fl_cuda_stage_take(fl_cuda *cuda, uint8_t **out) {
    fl_cuda_stage *s = &cuda->stage;
    FL_TRY(open_half(cuda, s->next));
    FL_TRY(
        fl_cuda_check(cudaEventSynchronize(s->sent[s->next]), "loading")); /* at once if nothing was sent */
    *out = s->half[s->next];
    return FL_ERR_OK;
}

fl_err fl_cuda_stage_send(fl_cuda *cuda, void *to, int64_t bytes) {
    fl_cuda_stage *s = &cuda->stage;
    FL_TRY(fl_cuda_check(
        cudaMemcpyAsync(to, s->half[s->next], (size_t)bytes, cudaMemcpyDefault, cuda->stream), "loading"));
    FL_TRY(fl_cuda_check(cudaEventRecord(s->sent[s->next], cuda->stream), "loading"));
    s->next = 1 - s->next;
    return FL_ERR_OK;
}

typedef struct copying {
    uint8_t *to;
    const uint8_t *from;
    int64_t bytes;
} copying;

static void copy_piece(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const copying *c = (const copying *)context;
    int64_t at = (int64_t)task * PIECE, n = c->bytes - at < PIECE ? c->bytes - at : PIECE;
    memcpy(c->to + at, c->from + at, (size_t)n);
}

fl_err fl_cuda_stage_copy(fl_cuda *cuda, void *to, const void *from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += FL_CUDA_STAGE_BYTES) {
        copying c = {NULL, (const uint8_t *)from + at, bytes - at};
        if (c.bytes > FL_CUDA_STAGE_BYTES) c.bytes = FL_CUDA_STAGE_BYTES;
        FL_TRY(fl_cuda_stage_take(cuda, &c.to));
        fl_pool_run(cuda->base.pool, (int32_t)((c.bytes + PIECE - 1) / PIECE), copy_piece, &c);
        FL_TRY(fl_cuda_stage_send(cuda, (uint8_t *)to + at, c.bytes));
    }
    return FL_ERR_OK;
}

void fl_cuda_stage_close(fl_cuda *cuda) {
    fl_cuda_stage *s = &cuda->stage;
    if (s->half[0]) cudaStreamSynchronize(cuda->stream);
    for (int32_t i = 0; i < 2; i++) {
        if (s->sent[i]) cudaEventDestroy(s->sent[i]);
        if (s->half[i]) cuda->base.free_host(&cuda->base, s->half[i], FL_CUDA_STAGE_BYTES);
        s->sent[i] = NULL;
        s->half[i] = NULL;
    }
}
