/* matmul with block scales: quantising activations that are not given as codes, and runs of weights that are multiplied
 * in one launch.
 *
 * Quantising. Grid: a block for each 64 tasks; a task is 128 inputs of a row. Block: 256 threads, a half warp for four
 * of the tasks. Each thread reads 8 inputs of a task at once, all tasks' before it works on the first, and writes 8
 * codes. Bound by memory: 2 bytes in, 1 out. */
#include "op/cuda/codes.cuh"
#include "op/cuda/rope.cuh"
#include "op/matmul/matmul_fp8.cuh"

enum {
    THREADS = 256,
    LANES = 16, /* of a task */
    INPUTS = FL_SCALE_BLOCK / LANES,
    TASKS_AT_ONCE = THREADS / LANES,
    TASKS_IN_TURN = 4,
};

typedef struct quantising {
    const uint16_t *x; /* bf16 */
    int64_t x_stride;
    fl_codes to;
    uint32_t tasks, blocks;
    bool aligned; /* 16 bytes of x can be read at once */
} quantising;

/* Pairs of inputs. */
FL_DEVICE void read_inputs(const quantising *q, const uint16_t *x, uint32_t (&words)[INPUTS / 2]) {
    if (q->aligned) {
        uint4 all = *(const uint4 *)x;
        words[0] = all.x;
        words[1] = all.y;
        words[2] = all.z;
        words[3] = all.w;
    } else {
#pragma unroll
        for (int i = 0; i < INPUTS / 2; i++) words[i] = x[2 * i] | (uint32_t)x[2 * i + 1] << 16;
    }
}

/* This thread's inputs of a task; the LANES of a task together. */
FL_DEVICE void quantise_inputs(const quantising *q, uint32_t task, const uint32_t (&words)[INPUTS / 2]) {
    int32_t lane = threadIdx.x % LANES;
    float largest = FL_CODES_LEAST;
#pragma unroll
    for (int i = 0; i < INPUTS / 2; i++)
        largest =
            fmaxf(largest, fmaxf(fabsf(fl_low_of_bf16x2(words[i])), fabsf(fl_high_of_bf16x2(words[i]))));
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    if (task >= q->tasks) return;
    float inverse = fl_codes_inverse(largest);
    uint32_t codes[INPUTS / 4];
#pragma unroll
    for (int i = 0; i < INPUTS / 4; i++)
        codes[i] = fl_codes_of_bf16x4(words[2 * i], words[2 * i + 1], inverse);
    *(uint2 *)(q->to.codes + (int64_t)task * FL_SCALE_BLOCK + lane * INPUTS) = make_uint2(codes[0], codes[1]);
    if (lane == 0)
        q->to.scale[task % q->blocks * q->to.scale_stride + task / q->blocks] = fl_codes_scale(largest);
}

static __global__ void __launch_bounds__(THREADS) quantise_kernel(const quantising q) {
    uint32_t first = blockIdx.x * (TASKS_AT_ONCE * TASKS_IN_TURN) + threadIdx.x / LANES;
    uint32_t words[TASKS_IN_TURN][INPUTS / 2] = {};
#pragma unroll
    for (int i = 0; i < TASKS_IN_TURN; i++) {
        uint32_t task = first + i * TASKS_AT_ONCE, input = task % q.blocks * FL_SCALE_BLOCK;
        if (task < q.tasks)
            read_inputs(&q, q.x + task / q.blocks * q.x_stride + input + threadIdx.x % LANES * INPUTS,
                        words[i]);
    }
#pragma unroll
    for (int i = 0; i < TASKS_IN_TURN; i++) quantise_inputs(&q, first + i * TASKS_AT_ONCE, words[i]);
}

static fl_err quantise(fl_cuda *cuda, const fl_matmul_args *a, const fl_codes *to) {
    int32_t blocks = a->w[0].k / FL_SCALE_BLOCK;
    int64_t tasks = (int64_t)a->rows * blocks, grid = fl_tasks_of(tasks, TASKS_AT_ONCE * TASKS_IN_TURN);
    const quantising q = {.x = (const uint16_t *)a->x,
                          .x_stride = a->x_stride,
                          .to = *to,
                          .tasks = (uint32_t)tasks,
                          .blocks = (uint32_t)blocks,
                          .aligned = (uintptr_t)a->x % 16 == 0 && a->x_stride % 8 == 0};
    if (tasks > INT32_MAX) /* 256 GiB of codes */
        return FL_FAIL(FL_ERR_UNSUPPORTED, "matmul: %d rows of %d inputs are too many for one call", a->rows,
                       a->w[0].k);
    quantise_kernel<<<(unsigned)grid, THREADS, 0, cuda->stream>>>(q);
    return FL_CUDA_LAUNCHED("matmul: quantising");
}

static int64_t bytes_between(const void *from, const void *to) {
    return (const uint8_t *)to - (const uint8_t *)from;
}

/* End of the run of groups from `begin` whose weights lie at one distance and whose scales do, and these distances. */
static int32_t run_end(const fl_weight *w, int32_t begin, int32_t n_groups, fl_fp8_product *p) {
    int32_t end = begin + 1;
    p->w_group_stride = (int64_t)w[begin].n * w[begin].k;
    p->w_scale_group_stride = 0;
    if (end == n_groups) return end;
    int64_t codes = bytes_between(w[begin].data, w[end].data);
    int64_t scales = bytes_between(w[begin].scale, w[end].scale);
    if (codes < p->w_group_stride || codes % 16 != 0 || scales % 16 != 0) return end;
    p->w_group_stride = codes;
    p->w_scale_group_stride = scales / (int64_t)sizeof(float);
    while (end < n_groups && end - begin < FL_PRODUCT_GROUPS_MAX &&
           bytes_between(w[end - 1].data, w[end].data) == codes &&
           bytes_between(w[end - 1].scale, w[end].scale) == scales)
        end++;
    return end;
}

/* The products with all weights: a launch for each run of groups, which is one launch for any model's. */
static fl_err multiply(fl_cuda *cuda, const fl_matmul_args *a, const fl_codes *x) {
    for (int32_t begin = 0, end; begin < a->n_groups; begin = end) {
        fl_fp8_product p = {.x = *x,
                            .w = (const uint8_t *)a->w[begin].data,
                            .w_scale = a->w[begin].scale,
                            .y = a->y,
                            .y_stride = a->y_stride,
                            .y_codes = a->y_codes,
                            .rope = a->rope,
                            .group_rows = a->group_rows ? a->group_rows + begin : NULL,
                            .rows = a->rows,
                            .n = a->w[0].n,
                            .k = a->w[0].k,
                            .out = a->out};
        end = run_end(a->w, begin, a->n_groups, &p);
        p.n_groups = end - begin;
        p.all_groups = p.n_groups == a->n_groups;
        FL_TRY(fl_fp8_product_few_takes(cuda, &p) ? fl_fp8_product_few(cuda, &p)
                                                  : fl_fp8_product_wgmma(cuda, &p));
    }
    return FL_ERR_OK;
}

static fl_err need_aligned(const fl_matmul_args *a) {
    for (int32_t i = 0; i < a->n_groups; i++)
        if ((uintptr_t)a->w[i].data % 16 != 0 || (uintptr_t)a->w[i].scale % 16 != 0)
            return FL_FAIL(FL_ERR_INVALID, "matmul: weight %d and its scales must be 16-byte aligned", i);
    if ((uintptr_t)a->x_codes.codes % 16 != 0 || (uintptr_t)a->y_codes.codes % 16 != 0)
        return FL_FAIL(FL_ERR_INVALID, "matmul: codes must be 16-byte aligned");
    if (a->out == FL_MATMUL_ROPE && !fl_rope_pairs(&a->rope))
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "matmul: rope with block scales: nope_dim %d must be even, the table 8-byte aligned",
                       a->rope.nope_dim);
    if (fl_matmul_is_swiglu(a->out) && a->w[0].n % FL_SCALE_BLOCK != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "matmul: SwiGLU's n %d with block scales must be a multiple of %d",
                       a->w[0].n, FL_SCALE_BLOCK);
    return FL_ERR_OK;
}

fl_err fl_matmul_fp8(fl_cuda *cuda, const fl_matmul_args *a) {
    FL_TRY(need_aligned(a));
    bool made;
    const fl_codes x = fl_matmul_codes_of(a, &made);
    if (made) FL_TRY(quantise(cuda, a, &x));
    return multiply(cuda, a, &x);
}
