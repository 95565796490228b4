/* matmul on CUDA for the shapes that the bulk copy engine cannot take: odd k or strides, unaligned rows. Grid: one warp
 * for each row and 8 features of y, 8 warps a block. A warp's lanes go through k side by side and are summed by
 * shuffles at the end: an order that depends on k alone. Bound by memory traffic, far from its limit; models have no
 * such shapes. */
#include "op/cuda/rope.cuh"
#include "op/matmul/matmul_cuda.cuh"

enum { WARPS = 8, TILE_FEATURES = 8, BLOCKS_MAX = 1 << 16 };

/* The group that row r of x belongs to, or -1 if it is of a group outside this call. */
FL_DEVICE int32_t group_of(const fl_product *p, int32_t r) {
    if (r < fl_product_group_row(p, 0) || r >= fl_product_group_row(p, p->n_groups)) return -1;
    int32_t low = 0, high = p->n_groups - 1; /* the first group that ends behind r */
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (fl_product_group_row(p, middle + 1) > r) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* x W[feature]^T, in every lane. */
FL_DEVICE float dot(const fl_product *p, const fl_bf16 *x, const fl_bf16 *w, int32_t lane) {
    float sum = 0;
    for (int32_t j = lane; j < p->k; j += 32) sum = fmaf(__bfloat162float(x[j]), __bfloat162float(w[j]), sum);
    return fl_warp_sum(sum);
}

/* Feature i of row r, whose product is `value`, after rope. w: the group's. */
FL_DEVICE float rotated(const fl_product *p, const fl_bf16 *x, const fl_bf16 *w, int32_t r, int32_t i,
                        float value) {
    const fl_matmul_rope *rope = &p->rope;
    int32_t turned = i % (rope->nope_dim + rope->rope_dim) - rope->nope_dim, odd = turned & 1;
    if (turned >= 0) {
        float other = dot(p, x, w + (int64_t)(odd ? i - 1 : i + 1) * p->k, threadIdx.x % 32);
        const float *at = rope->table + (int64_t)r * rope->rope_dim + turned - odd;
        value = odd ? fl_rope_odd(other, value, at[0], at[1]) : fl_rope_even(value, other, at[0], at[1]);
    }
    return __fmul_rn(value, rope->scale);
}

static __global__ void __launch_bounds__(WARPS * 32) product_plain_kernel(const fl_product p) {
    int32_t lane = threadIdx.x % 32, width = fl_product_width(&p);
    int64_t tiles_n = fl_tasks_of(width, TILE_FEATURES);
    int64_t tiles = tiles_n * p.rows * (p.group_rows ? 1 : p.n_groups);
    if (p.group_rows && blockIdx.x == 0)
        for (int32_t g = threadIdx.x; g <= p.n_groups; g += WARPS * 32) fl_product_check_group(&p, g);
    for (int64_t tile = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; tile < tiles;
         tile += (int64_t)gridDim.x * WARPS) {
        int32_t begin = (int32_t)(tile % tiles_n) * TILE_FEATURES;
        int32_t r = (int32_t)(tile / tiles_n % p.rows);
        int32_t batch = p.group_rows ? 0 : (int32_t)(tile / tiles_n / p.rows);
        int32_t group = p.group_rows ? group_of(&p, r) : batch;
        if (group < 0) continue;
        const fl_bf16 *x = p.x + batch * p.x_group_stride + r * p.x_stride;
        const fl_bf16 *w = p.w + group * p.w_group_stride;
        int64_t y = batch * p.y_group_stride + r * p.y_stride;
        for (int32_t i = begin; i < min(begin + TILE_FEATURES, width); i++) {
            float value = dot(&p, x, w + (int64_t)i * p.k, lane);
            if (p.out == FL_MATMUL_SWIGLU)
                value = fl_swiglu(value, dot(&p, x, w + (int64_t)(width + i) * p.k, lane));
            if (p.out == FL_MATMUL_ROPE) value = rotated(&p, x, w, r, i, value);
            if (lane != 0) continue;
            if (p.out == FL_MATMUL_F32) ((float *)p.y)[y + i] = value;
            else ((fl_bf16 *)p.y)[y + i] = __float2bfloat16(value);
        }
    }
}

fl_err fl_product_plain(fl_cuda *cuda, const fl_product *p) {
    int64_t tiles = fl_tasks_of(fl_product_width(p), TILE_FEATURES) * p->rows;
    int64_t blocks = fl_tasks_of(p->group_rows ? tiles : tiles * p->n_groups, WARPS);
    if (blocks > BLOCKS_MAX) blocks = BLOCKS_MAX;
    product_plain_kernel<<<(unsigned)blocks, WARPS * 32, 0, cuda->stream>>>(*p);
    return FL_CUDA_LAUNCHED("matmul, the plain kernel");
}
