/* attn_prefill for head shapes that have no kernel on tensor cores: small models and tests. Grid: strides over
 * rows and heads, one warp each; block: 4 warps. A warp takes the row's keys one by one, dimensions spread over
 * its lanes, all in f32. State as the reference's: [row][head] m, l, o[v_dim]. Slow: every key is read once a row. */
#include <math_constants.h>

#include "op/attn_prefill/attn_prefill_cuda.cuh"
#include "op/cuda/codes.cuh"

enum { PLAIN_THREADS = 128, PLAIN_BLOCKS = 4096, LANES = 32, V_PARTS = FL_ATTN_HEAD_DIM_MAX / LANES };

typedef struct plain_shape {
    const fl_bf16 *q, *kv, *k_pe;
    int32_t nope, rope, v;
} plain_shape;

/* The lane's dimensions are lane, lane + 32, .. */
typedef struct plain_sums {
    float m, l, o[V_PARTS];
} plain_sums;

static __device__ float dot_part(const fl_bf16 *a, const fl_bf16 *b, int32_t n, int32_t lane) {
    float sum = 0;
    for (int32_t i = lane; i < n; i += LANES) sum += __bfloat162float(a[i]) * __bfloat162float(b[i]);
    return sum;
}

static __device__ bool list_allows(const fl_prefill_call *c, const uint16_t *ids, int32_t n, int32_t key) {
    if (!c->ids) return true;
    if (n < 0) return !c->part[0].means;
    int32_t block =
        (int32_t)((c->part[0].keys.key_pos + (int64_t)key * c->part[0].keys.key_step) / FL_KV_PAGE_TOKENS);
    int32_t at = fl_attn_list_find(ids, n, block);
    return (at < n && ids[at] == block) != c->part[0].means;
}

static __device__ void add_key(const plain_shape *s, const fl_prefill_call *c, int64_t line, int32_t key,
                               plain_sums *sums) {
    int32_t lane = threadIdx.x % LANES, head = (int32_t)(line % c->n_heads);
    const fl_bf16 *q = s->q + line * (s->nope + s->rope);
    const fl_bf16 *kv = s->kv + ((int64_t)key * c->n_heads + head) * (s->nope + s->v);
    float score = fl_warp_sum(dot_part(q, kv, s->nope, lane) +
                              dot_part(q + s->nope, s->k_pe + (int64_t)key * s->rope, s->rope, lane));
    if (c->part[0].key_bias) score += c->part[0].key_bias[head];
    float m = fmaxf(sums->m, score), scale = fl_exp2(sums->m - m), p = fl_exp2(score - m);
    sums->m = m;
    sums->l = sums->l * scale + p;
#pragma unroll
    for (int i = 0; i < V_PARTS; i++)
        if (i * LANES + lane < s->v)
            sums->o[i] = sums->o[i] * scale + p * __bfloat162float(kv[s->nope + i * LANES + lane]);
}

static __device__ void add_keys(const plain_shape *s, const fl_prefill_call *c, int64_t line,
                                plain_sums *sums) {
    int32_t row = (int32_t)(line / c->n_heads), tile = row / FL_ATTN_TILE_ROWS, n = 0;
    int64_t at = (int64_t)tile * c->n_heads + line % c->n_heads;
    fl_attn_ranges r = fl_attn_row_ranges(&c->part[0].keys, (int64_t)c->part[0].keys.pos + row);
    const uint16_t *ids = c->ids ? c->ids + at * c->capacity : NULL;
    if (c->ids) n = c->n_ids[at];
    if (c->part[0].means) {
        r.first[0] = r.end[0] = r.first[1] = 0;
        r.end[1] = fl_attn_means_end(&c->part[0].keys,
                                     (int64_t)c->part[0].keys.pos + (int64_t)tile * FL_ATTN_TILE_ROWS);
    }
    if (r.first[0] < r.end[0]) r.first[1] = max(r.first[1], r.end[0]);
    for (int i = 0; i < 2; i++)
        for (int32_t key = r.first[i]; key < r.end[i]; key++)
            if (list_allows(c, ids, n, key)) add_key(s, c, line, key, sums);
}

/* Of a head's outputs, one group of codes, by a warp. */
static __device__ void write_codes(const fl_prefill_call *c, int64_t line, const plain_sums *sums) {
    const int parts = FL_SCALE_BLOCK / LANES;
    int64_t row = line / c->n_heads, head = line % c->n_heads;
    float x[parts], most = FL_CODES_LEAST;
#pragma unroll
    for (int i = 0; i < parts; i++) {
        x[i] = __bfloat162float(__float2bfloat16(sums->l > 0 ? sums->o[i] / sums->l : 0));
        most = fmaxf(most, fabsf(x[i]));
    }
    most = fl_warp_max(most);
    float inverse = fl_codes_inverse(most);
#pragma unroll
    for (int i = 0; i < parts; i++)
        c->codes.codes[line * FL_SCALE_BLOCK + i * LANES + threadIdx.x % LANES] =
            (uint8_t)fl_pack_e4m3(__fmul_rn(x[i], inverse), 0);
    if (threadIdx.x % LANES == 0) c->codes.scale[head * c->codes.scale_stride + row] = fl_codes_scale(most);
}

static __device__ void write_row(const plain_shape *s, const fl_prefill_call *c, int64_t line,
                                 const plain_sums *sums) {
    int32_t lane = threadIdx.x % LANES;
    bool saw = sums->l > 0;
    if (c->codes.codes) write_codes(c, line, sums);
#pragma unroll
    for (int i = 0; i < V_PARTS; i++)
        if (!c->codes.codes && i * LANES + lane < s->v)
            c->out[line * s->v + i * LANES + lane] = __float2bfloat16(saw ? sums->o[i] / sums->l : 0);
    if (c->lse && lane == 0) c->lse[line] = saw ? sums->m + log2f(sums->l) : -CUDART_INF_F;
}

static __device__ void attend(const plain_shape *s, const fl_prefill_call *c, int64_t line) {
    int32_t lane = threadIdx.x % LANES;
    float *state = (float *)c->state + line * (s->v + 2);
    plain_sums sums = {};
    sums.m = c->first ? -1e30f : state[0]; /* below every score, and no infinity */
    sums.l = c->first ? 0 : state[1];
#pragma unroll
    for (int i = 0; i < V_PARTS; i++)
        if (!c->first && i * LANES + lane < s->v) sums.o[i] = state[2 + i * LANES + lane];
    add_keys(s, c, line, &sums);
    if (c->last) {
        write_row(s, c, line, &sums);
        return;
    }
    __syncwarp(); /* all lanes have read m and l */
    if (lane == 0) state[0] = sums.m, state[1] = sums.l;
#pragma unroll
    for (int i = 0; i < V_PARTS; i++)
        if (i * LANES + lane < s->v) state[2 + i * LANES + lane] = sums.o[i];
}

static __global__ void __launch_bounds__(PLAIN_THREADS)
    prefill_plain_kernel(const __grid_constant__ plain_shape s, const __grid_constant__ fl_prefill_call c) {
    int64_t lines = (int64_t)c.rows * c.n_heads, step = (int64_t)gridDim.x * (PLAIN_THREADS / LANES);
    int64_t first = ((int64_t)blockIdx.x * PLAIN_THREADS + threadIdx.x) / LANES;
    for (int64_t line = first; line < lines; line += step) attend(&s, &c, line);
}

fl_err fl_prefill_plain(fl_cuda *cuda, const fl_attn_prefill_args *a, const fl_prefill_call *c) {
    plain_shape s = {};
    s.q = (const fl_bf16 *)a->q, s.kv = (const fl_bf16 *)a->kv, s.k_pe = (const fl_bf16 *)a->k_pe;
    s.nope = a->nope_dim, s.rope = a->rope_dim, s.v = a->v_dim;
    int64_t blocks = fl_tasks_of((int64_t)a->rows * a->n_heads, PLAIN_THREADS / LANES);
    if (blocks > PLAIN_BLOCKS) blocks = PLAIN_BLOCKS;
    prefill_plain_kernel<<<(uint32_t)blocks, PLAIN_THREADS, 0, cuda->stream>>>(s, *c);
    return FL_CUDA_LAUNCHED("attn_prefill");
}
