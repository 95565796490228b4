/* The random numbers of block_select's control: a stream for each seed, tile and head, so that lists repeat whatever
 * the chunking, backend and threads. */
#ifndef FL_OP_BLOCK_SELECT_RANDOM_H
#define FL_OP_BLOCK_SELECT_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define FL_BLOCK_SELECT_FN static __host__ __device__ inline
#else
#define FL_BLOCK_SELECT_FN static inline
#endif

FL_BLOCK_SELECT_FN uint64_t fl_block_select_mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

/* `tile` counts tiles of rows from position 0. */
FL_BLOCK_SELECT_FN uint64_t fl_block_select_stream(uint64_t seed, int32_t tile, int32_t head) {
    return fl_block_select_mix(fl_block_select_mix(seed) + ((uint64_t)tile << 32) + (uint64_t)head);
}

/* Whether the next one of `left` candidates is among the `needed` ones: true with probability needed / left. */
FL_BLOCK_SELECT_FN bool fl_block_select_draw(uint64_t *stream, int32_t needed, int32_t left) {
    uint64_t number = fl_block_select_mix(*stream += 0x9e3779b97f4a7c15u) >> 32;
    return (number * (uint64_t)left) >> 32 < (uint64_t)needed;
}

#endif
