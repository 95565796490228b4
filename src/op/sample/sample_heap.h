/* Tokens best first, taken off a heap: of a vocabulary mostly a few are asked for. */
#ifndef FL_OP_SAMPLE_HEAP_H
#define FL_OP_SAMPLE_HEAP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fl_sample_candidate {
    float logit;
    int32_t id;
} fl_sample_candidate;

/* Larger logit first, ties to the smaller id. */
static inline bool fl_sample_before(const fl_sample_candidate *a, const fl_sample_candidate *b) {
    return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static inline void fl_sample_sift_down(fl_sample_candidate *heap, int32_t n, int32_t i) {
    for (;;) {
        int32_t best = i;
        for (int32_t child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
            if (fl_sample_before(&heap[child], &heap[best])) best = child;
        if (best == i) return;
        fl_sample_candidate swap = heap[i];
        heap[i] = heap[best];
        heap[best] = swap;
        i = best;
    }
}

static inline void fl_sample_make_heap(fl_sample_candidate *heap, int32_t n) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) fl_sample_sift_down(heap, n, i);
}

/* Of *n > 0 the first, which goes behind those that are left. */
static inline fl_sample_candidate fl_sample_pop(fl_sample_candidate *heap, int32_t *n) {
    fl_sample_candidate best = heap[0];
    heap[0] = heap[--*n];
    heap[*n] = best;
    fl_sample_sift_down(heap, *n, 0);
    return best;
}

#endif
