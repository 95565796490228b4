/* What the CUDA kernels of attn_absorbed for latents of 512 and k_pe of 64 dimensions share: sizes, how a thread finds
 * its rows of q, maps of pages for the bulk copy engine. */
#ifndef FL_OP_ATTN_ABSORBED_WIDE_CUH
#define FL_OP_ATTN_ABSORBED_WIDE_CUH

#include "op/attn_absorbed/attn_absorbed_cuda.cuh"

enum {
    WIDE_LATENT = 512,
    WIDE_ROPE = 64,
    WIDE_KEY = WIDE_LATENT + WIDE_ROPE,
    ROW = 128,  /* bytes of a key in one copied box */
    CHUNK = 32, /* keys that are copied together */
    CHUNKS = PAGE / CHUNK,
    BOX_BYTES = CHUNK * ROW,
    SPAN_PAGES = SPAN_MAX * UNIT_PAGES
};

/* Of the thread's rows of q in 16 lanes, 8 apart, row i. */
FL_DEVICE int32_t q_lane(int32_t i) {
    return threadIdx.x % 32 / 4 + 8 * i;
}

/* Where it lies, NULL if the lane is not there. */
FL_DEVICE const uint16_t *q_row(const params &p, const task &t, int32_t i) {
    int32_t lane = q_lane(i);
    return lane < t.n_lanes ? p.q + (t.first_line + lane) * WIDE_KEY : NULL;
}

/* An operand of a row of 32, of one for each lane. */
FL_DEVICE void take_operand(const uint4 *operands, int32_t lane, uint32_t (&a)[4]) {
    uint4 operand = operands[lane];
    a[0] = operand.x;
    a[1] = operand.y;
    a[2] = operand.z;
    a[3] = operand.w;
}

/* Keys of pages as 16-bit elements of `bytes` a key, in boxes of 128 bytes and `keys` keys. */
static fl_err map_boxes(const uint8_t *base, const params *p, int32_t bytes, int32_t keys, CUtensorMap *out) {
    enum { PAGES_MAX = 1 << 24 }; /* more than any memory has; only pages of the tables are read */
    fl_tma_shape s;
    memset(&s, 0, sizeof s);
    s.base = base;
    s.dtype = FL_DTYPE_BF16;
    s.rank = 3;
    s.size[0] = bytes / 2, s.size[1] = PAGE, s.size[2] = PAGES_MAX;
    s.stride[1] = bytes / 2, s.stride[2] = p->kv.page_stride_bytes / 2;
    s.box[0] = ROW / 2, s.box[1] = keys, s.box[2] = 1;
    s.swizzle = true;
    return fl_tma_map(&s, out);
}

static fl_err map_keys(const uint8_t *base, const params *p, int32_t bytes, CUtensorMap *out) {
    return map_boxes(base, p, bytes, CHUNK, out);
}

#endif
