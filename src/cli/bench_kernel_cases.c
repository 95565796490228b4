/* Cases of bench kernels: matrix products, and ops that pass over rows once. */
#include <math.h>
#include <stdlib.h>

#include "cli/bench_kernel.h"
#include "op/kv_format.h"

/* ---- matmul ------------------------------------------------------------------------------------------------------ */

/* What is multiplied: bf16; e4m3 with block scales, activations quantised in the op; the same, activations given as
 * codes, and SwiGLU's result handed on as codes, as the engine runs them. */
typedef enum product_kind { PRODUCT_PLAIN, PRODUCT_FP8, PRODUCT_CODES, N_PRODUCT_KINDS } product_kind;

typedef struct product_case {
    const char *names[N_PRODUCT_KINDS];
    int32_t n_groups; /* 0 = dense */
    int32_t rows;     /* of each group */
    int32_t n, k;
    fl_matmul_out out;
} product_case;

#define NAMES(name)                                                                                          \
    { name, name "-fp8", name "-codes-fp8" }

/* Experts as the engine runs them: gate and up with SwiGLU, then down. V3 has 256, of which these are 8. */
static const product_case product_cases[] = {
    {NAMES("dense-8k"), 0, 8192, 8192, 8192, FL_MATMUL_ACT},
    {NAMES("dense-v3-q_b"), 0, 4096, 24576, 1536, FL_MATMUL_ACT},
    {NAMES("dense-v3-o"), 0, 4096, 7168, 16384, FL_MATMUL_ACT},
    {NAMES("dense-moonlight-kv_a"), 0, 65536, 576, 2048, FL_MATMUL_F32},
    {NAMES("dense-moonlight-down"), 0, 65536, 2048, 2816, FL_MATMUL_ACT},
    {NAMES("dense-small-1k"), 0, 1024, 3072, 2048, FL_MATMUL_ACT},
    {NAMES("dense-moonlight-q-1row"), 0, 1, 3072, 2048, FL_MATMUL_ACT},
    {NAMES("experts-v3-up"), 8, 4096, 4096, 7168, FL_MATMUL_SWIGLU},
    {NAMES("experts-v3-down"), 8, 4096, 7168, 2048, FL_MATMUL_ACT},
    {NAMES("experts-moonlight-up"), 64, 1536, 2816, 2048, FL_MATMUL_SWIGLU},
    {NAMES("experts-moonlight-down"), 64, 1536, 2048, 1408, FL_MATMUL_ACT},
    {NAMES("experts-moonlight-up-1row"), 6, 1, 2816, 2048, FL_MATMUL_SWIGLU},
    {NAMES("experts-moonlight-down-1row"), 6, 1, 2048, 1408, FL_MATMUL_ACT},
};

#undef NAMES

static fl_err run_product(fl_backend *be, const void *args) {
    return be->op->matmul(be, args);
}

static product_case small_product(const product_case *c) {
    product_case s = *c;
    s.n_groups = c->n_groups > 0 ? 2 : 0;
    s.rows = 32;
    s.n = s.k = 256;
    return s;
}

/* Weights of all groups, one behind the other, in the backend's layout or as e4m3 with block scales. */
static fl_err take_weights(fl_kernel_bench *b, const product_case *c, bool fp8, fl_weight *w, int32_t n) {
    const double code_deviation = 100; /* the largest of a block is near 448, as scales are chosen */
    fl_dtype dtype = fp8 ? FL_DTYPE_F8_E4M3 : b->be->layout.dtype;
    int64_t bytes = fp8 ? (int64_t)c->n * c->k : fl_backend_weight_bytes(b->be, c->n, c->k);
    int64_t scales = (c->n + FL_SCALE_BLOCK - 1) / FL_SCALE_BLOCK * fl_scale_stride(c->k);
    double deviation = 1 / sqrt(c->k);
    void *data, *scale = NULL;
    bytes = fl_align_up(bytes, 64);
    FL_TRY(fl_kernel_take_random(b, n * bytes / (int64_t)fl_dtype_bytes(dtype), dtype,
                                 fp8 ? code_deviation : deviation, &data));
    if (fp8) FL_TRY(fl_kernel_take_random(b, n * scales, FL_DTYPE_F32, deviation / code_deviation, &scale));
    for (int32_t g = 0; g < n; g++)
        w[g] = (fl_weight){.data = (uint8_t *)data + g * bytes,
                           .n = c->n,
                           .k = c->k,
                           .scale = scale ? (const float *)scale + g * scales : NULL};
    return FL_ERR_OK;
}

static fl_err take_groups(fl_kernel_bench *b, const product_case *c, fl_matmul_args *a) {
    void *ends = NULL;
    if (c->n_groups == 0) return FL_ERR_OK;
    int32_t *host = malloc(((size_t)c->n_groups + 1) * sizeof *host);
    if (!host) return FL_FAIL(FL_ERR_NOMEM, "%d groups", c->n_groups);
    for (int32_t g = 0; g <= c->n_groups; g++) host[g] = g * c->rows;
    fl_err err = fl_kernel_take_copy(b, host, (c->n_groups + 1) * (int64_t)sizeof *host, &ends);
    free(host);
    a->group_rows = ends;
    return err;
}

/* Activations as codes, e4m3 of roughly normal values. */
static fl_err take_codes(fl_kernel_bench *b, int32_t rows, int32_t k, fl_codes *out) {
    const double code_deviation = 100;
    void *memory;
    FL_TRY(fl_kernel_take_random(b, fl_codes_bytes(rows, k), FL_DTYPE_F8_E4M3, code_deviation, &memory));
    *out = fl_codes_at(memory, rows, k);
    int64_t scales = k / FL_SCALE_BLOCK * out->scale_stride;
    FL_TRY(fl_kernel_take_random(b, scales, FL_DTYPE_F32, 1 / code_deviation, &memory));
    out->scale = memory;
    return FL_ERR_OK;
}

static fl_err take_operands(fl_kernel_bench *b, const product_case *c, product_kind kind, fl_matmul_args *a) {
    int32_t width = fl_matmul_width(c->out, c->n);
    int64_t y_bytes =
        c->out == FL_MATMUL_F32 ? (int64_t)sizeof(float) : (int64_t)fl_dtype_bytes(b->be->act_dtype);
    void *x, *y;
    if (kind == PRODUCT_CODES) {
        FL_TRY(take_codes(b, a->rows, c->k, &a->x_codes));
    } else {
        FL_TRY(fl_kernel_take_random(b, (int64_t)a->rows * c->k, b->be->act_dtype, 1, &x));
        a->x = x;
    }
    if (kind == PRODUCT_CODES && c->out == FL_MATMUL_SWIGLU) {
        a->out = FL_MATMUL_SWIGLU_CODES;
        FL_TRY(fl_kernel_take(b, fl_codes_bytes(a->rows, width), &y));
        a->y_codes = fl_codes_at(y, a->rows, width);
    } else {
        FL_TRY(fl_kernel_take(b, a->rows * width * y_bytes, &a->y));
    }
    int64_t scratch_bytes = fl_matmul_scratch_bytes(a);
    return scratch_bytes > 0 ? fl_kernel_take(b, scratch_bytes, &a->scratch) : FL_ERR_OK;
}

static fl_err time_product(fl_kernel_bench *b, const product_case *c, product_kind kind) {
    int32_t groups = c->n_groups > 0 ? c->n_groups : 1, rows = groups * c->rows;
    fl_weight w[64];
    fl_matmul_args a = {.x_stride = c->k,
                        .w = w,
                        .n_groups = groups,
                        .rows = rows,
                        .out = c->out,
                        .y_stride = fl_matmul_width(c->out, c->n)};
    FL_TRY(take_weights(b, c, kind != PRODUCT_PLAIN, w, groups));
    FL_TRY(take_groups(b, c, &a));
    FL_TRY(take_operands(b, c, kind, &a));
    const fl_kernel_case timed = {.name = c->names[kind],
                                  .op = "matmul",
                                  .run = run_product,
                                  .args = &a,
                                  .useful = fl_matmul_cost(&a),
                                  .fp8 = kind != PRODUCT_PLAIN};
    const char *epilogue = fl_matmul_is_swiglu(c->out) ? ", SwiGLU" : "",
               *given = kind == PRODUCT_CODES ? ", codes given" : "";
    if (c->n_groups > 0)
        return fl_kernel_time(b, &timed, "%d experts of %d rows, n %d k %d%s%s", groups, c->rows, c->n, c->k,
                              epilogue, given);
    return fl_kernel_time(b, &timed, "%d rows, n %d k %d%s%s", rows, c->n, c->k, epilogue, given);
}

/* ---- queries: a product and rope ------------------------------------------------------------------------------- */

enum { QUERY_NOPE = 128, QUERY_ROPE = 64, QUERY_DIM = QUERY_NOPE + QUERY_ROPE };

typedef struct queries_case {
    const char *two, *fused; /* as two ops, in the product's epilogue */
    int32_t rows, heads, k;
    bool fp8;
} queries_case;

static const queries_case queries_cases[] = {
    {"queries-moonlight", "queries-moonlight-fused", 65536, 16, 2048, false},
    {"queries-v3", "queries-v3-fused", 16384, 128, 1536, false},
    {"queries-moonlight-fp8", "queries-moonlight-fused-fp8", 65536, 16, 2048, true},
    {"queries-v3-fp8", "queries-v3-fused-fp8", 16384, 128, 1536, true},
};

typedef struct queries_run {
    fl_matmul_args product;
    fl_rope_args rope; /* rows 0: fused */
} queries_run;

static fl_err run_queries(fl_backend *be, const void *args) {
    const queries_run *r = args;
    FL_TRY(be->op->matmul(be, &r->product));
    return r->rope.rows > 0 ? be->op->rope(be, &r->rope) : FL_ERR_OK;
}

static fl_err time_queries(fl_kernel_bench *b, const queries_case *c, bool fused) {
    int32_t rows = b->be->device ? c->rows : 16, heads = b->be->device ? c->heads : 2, n = heads * QUERY_DIM;
    const product_case shape = {.rows = rows, .n = n, .k = b->be->device ? c->k : 256, .out = FL_MATMUL_ROPE};
    fl_weight w;
    void *table, *raw;
    queries_run r = {.product = {.x_stride = shape.k, .w = &w, .n_groups = 1, .rows = rows, .y_stride = n}};
    FL_TRY(take_weights(b, &shape, c->fp8, &w, 1));
    r.product.out = FL_MATMUL_ROPE;
    FL_TRY(take_operands(b, &shape, c->fp8 ? PRODUCT_CODES : PRODUCT_PLAIN, &r.product));
    FL_TRY(fl_kernel_take_random(b, (int64_t)rows * QUERY_ROPE, FL_DTYPE_F32, 1, &table));
    r.product.rope =
        (fl_matmul_rope){.table = table, .nope_dim = QUERY_NOPE, .rope_dim = QUERY_ROPE, .scale = 1};
    const fl_cost useful = fl_matmul_cost(&r.product);
    if (!fused) {
        FL_TRY(fl_kernel_take(b, (int64_t)rows * n * (int64_t)sizeof(float), &raw));
        r.rope = (fl_rope_args){.x = raw, .x_stride = n, .table = table, .rows = rows, .n_heads = heads};
        r.rope.nope_dim = QUERY_NOPE;
        r.rope.rope_dim = QUERY_ROPE;
        r.rope.scale = 1;
        r.rope.y = r.product.y;
        r.rope.y_stride = n;
        r.product.out = FL_MATMUL_F32;
        r.product.y = raw;
    }
    const fl_kernel_case timed = {.name = fused ? c->fused : c->two,
                                  .op = fused ? "matmul" : "matmul, rope",
                                  .run = run_queries,
                                  .args = &r,
                                  .useful = useful,
                                  .fp8 = c->fp8};
    return fl_kernel_time(b, &timed, "%d rows, %d heads of %d+%d, k %d", rows, heads, QUERY_NOPE, QUERY_ROPE,
                          shape.k);
}

static fl_err queries(fl_kernel_bench *b) {
    for (size_t i = 0; i < sizeof queries_cases / sizeof *queries_cases; i++) {
        const queries_case *c = &queries_cases[i];
        if (c->fp8 && !b->be->w8a8) continue;
        if (fl_kernel_begin(b, c->two)) FL_TRY(fl_kernel_end(b, c->two, time_queries(b, c, false)));
        if (b->be->matmul_rope && fl_kernel_begin(b, c->fused))
            FL_TRY(fl_kernel_end(b, c->fused, time_queries(b, c, true)));
    }
    return FL_ERR_OK;
}

fl_err fl_kernel_product_cases(fl_kernel_bench *b) {
    for (size_t i = 0; i < sizeof product_cases / sizeof *product_cases; i++) {
        const product_case small = small_product(&product_cases[i]);
        const product_case *c = b->be->device ? &product_cases[i] : &small;
        for (int32_t kind = 0; kind < (b->be->w8a8 ? N_PRODUCT_KINDS : 1); kind++)
            if (fl_kernel_begin(b, c->names[kind]))
                FL_TRY(fl_kernel_end(b, c->names[kind], time_product(b, c, (product_kind)kind)));
    }
    return queries(b);
}

/* ---- rows, once -------------------------------------------------------------------------------------------------- */

enum { LATENT_DIM = 512, ROPE_DIM = 64, V3_VOCAB = 129280 };

typedef struct cache_case {
    const char *write_name, *read_name;
    fl_kv_format format;
} cache_case;

static const cache_case cache_cases[] = {
    {"kv_write-bf16", "kv_read-bf16", FL_KV_BF16},
    {"kv_write-fp8", "kv_read-fp8", FL_KV_FP8},
    {"kv_write-int4", "kv_read-int4", FL_KV_INT4},
};

static fl_err run_kv_write(fl_backend *be, const void *args) {
    return be->op->kv_write(be, args);
}

static fl_err run_kv_read(fl_backend *be, const void *args) {
    return be->op->kv_read(be, args);
}

/* Writes first, so that what is read was written; both are timed, if wanted. */
static fl_err time_cache(fl_kernel_bench *b, const cache_case *c, bool write, bool read) {
    int32_t tokens = b->be->device ? 262144 : 1024;
    fl_dtype act = b->be->act_dtype;
    const int64_t act_bytes = (int64_t)fl_dtype_bytes(act);
    fl_kv_rows seq = {.n_rows = tokens};
    fl_kv_write_args w = {.latent_stride = LATENT_DIM, .k_pe_stride = ROPE_DIM, .seqs = &seq, .n_seqs = 1};
    void *latent, *k_pe, *table, *pool;
    w.kv = (fl_kv_layer){.latent_dim = LATENT_DIM,
                         .rope_dim = ROPE_DIM,
                         .format = c->format,
                         .group = fl_kv_format_group(c->format, LATENT_DIM)};
    w.kv.page_stride_bytes = fl_kv_piece_bytes(&w.kv);
    FL_TRY(fl_kernel_take(b, tokens / FL_KV_PAGE_TOKENS * w.kv.page_stride_bytes, &pool));
    FL_TRY(fl_kernel_take_pages(b, tokens / FL_KV_PAGE_TOKENS, &seq.pages));
    FL_TRY(fl_kernel_take_random(b, (int64_t)tokens * LATENT_DIM, act, 1, &latent));
    FL_TRY(fl_kernel_take_random(b, (int64_t)tokens * ROPE_DIM, FL_DTYPE_F32, 1, &k_pe));
    FL_TRY(fl_kernel_take_random(b, (int64_t)tokens * ROPE_DIM, FL_DTYPE_F32, 1, &table));
    w.kv.base = pool;
    w.latent = latent;
    w.k_pe = k_pe;
    w.table = table;
    fl_kv_read_args r = {.kv = w.kv, .pages = seq.pages, .n = tokens};
    FL_TRY(fl_kernel_take(b, (int64_t)tokens * LATENT_DIM * act_bytes, &r.latent));
    FL_TRY(fl_kernel_take(b, (int64_t)tokens * ROPE_DIM * act_bytes, &r.k_pe));
    FL_TRY(run_kv_write(b->be, &w));
    const fl_kernel_case writing = {c->write_name, "kv_write", run_kv_write, &w, fl_kv_write_cost(&w), false};
    const fl_kernel_case reading = {c->read_name, "kv_read", run_kv_read, &r, fl_kv_read_cost(&r), false};
    if (write) FL_TRY(fl_kernel_time(b, &writing, "%d tokens of %d+%d", tokens, LATENT_DIM, ROPE_DIM));
    if (read) FL_TRY(fl_kernel_time(b, &reading, "%d tokens of %d+%d", tokens, LATENT_DIM, ROPE_DIM));
    return FL_ERR_OK;
}

static fl_err run_rmsnorm(fl_backend *be, const void *args) {
    return be->op->rmsnorm(be, args);
}

typedef struct norm_case {
    const char *name, *codes_name;
    int32_t rows, dim;
} norm_case;

static const norm_case norm_cases[] = {
    {"rmsnorm-v3", "rmsnorm-v3-codes", 32768, 7168},
    {"rmsnorm-moonlight", "rmsnorm-moonlight-codes", 131072, 2048},
};

/* `codes`: codes alone, as the norms before fp8 products hand on. */
static fl_err time_rmsnorm(fl_kernel_bench *b, const norm_case *c, bool codes) {
    int32_t rows = b->be->device ? c->rows : 64;
    int64_t n = (int64_t)rows * c->dim;
    void *x, *delta, *gamma, *y;
    fl_rmsnorm_args a = {.x_stride = c->dim, .eps = 1e-6f, .rows = rows, .dim = c->dim, .y_stride = c->dim};
    FL_TRY(fl_kernel_take_random(b, n, FL_DTYPE_F32, 1, &x));
    FL_TRY(fl_kernel_take_random(b, n, b->be->act_dtype, 1e-3, &delta)); /* x grows by it in every run */
    FL_TRY(fl_kernel_take_random(b, c->dim, FL_DTYPE_F32, 1, &gamma));
    FL_TRY(fl_kernel_take(b, n * (int64_t)fl_dtype_bytes(b->be->act_dtype), &y));
    a.x = x;
    a.delta = delta;
    a.gamma = gamma;
    if (codes) a.y_codes = fl_codes_at(y, rows, c->dim);
    else a.y = y;
    const fl_kernel_case timed = {
        codes ? c->codes_name : c->name, "rmsnorm", run_rmsnorm, &a, fl_rmsnorm_cost(&a), false};
    return fl_kernel_time(b, &timed, "%d rows of %d, with delta and gamma%s", rows, c->dim,
                          codes ? ", as codes" : "");
}

/* Routing and what it orders, at the sizes of DeepSeek-V3 and of Moonlight, as many rows as a prefill call has. */
typedef struct route_case {
    const char *route_name, *permute_name, *permute_codes_name, *combine_name;
    int32_t rows, dim, n_experts, top_k, n_groups, top_groups;
} route_case;

static const route_case route_cases[] = {
    {"moe_route-v3", "moe_permute-v3", "moe_permute-v3-codes", "moe_combine-v3", 16384, 7168, 256, 8, 8, 4},
    {"moe_route-moonlight", "moe_permute-moonlight", "moe_permute-moonlight-codes", "moe_combine-moonlight",
     65536, 2048, 64, 6, 1, 1},
};

static fl_err run_moe_route(fl_backend *be, const void *args) {
    return be->op->moe_route(be, args);
}

static int32_t route_rows(const fl_kernel_bench *b, const route_case *c) {
    return b->be->device ? c->rows : 16;
}

static fl_err time_moe_route(fl_kernel_bench *b, const route_case *c) {
    int32_t rows = route_rows(b, c);
    void *x, *w, *bias, *ids, *weights;
    fl_moe_route_args a = {.x_stride = c->dim,
                           .rows = rows,
                           .dim = c->dim,
                           .n_experts = c->n_experts,
                           .top_k = c->top_k,
                           .n_groups = c->n_groups,
                           .top_groups = c->top_groups,
                           .score = FL_MOE_SIGMOID,
                           .select = FL_MOE_GROUP_TOP2,
                           .normalize = true,
                           .factor = 2.5f};
    FL_TRY(fl_kernel_take_random(b, (int64_t)rows * c->dim, b->be->act_dtype, 1, &x));
    FL_TRY(fl_kernel_take_random(b, (int64_t)a.n_experts * c->dim, FL_DTYPE_F32, 1 / sqrt(c->dim), &w));
    FL_TRY(fl_kernel_take_random(b, a.n_experts, FL_DTYPE_F32, 0.01, &bias));
    FL_TRY(fl_kernel_take(b, (int64_t)rows * a.top_k * (int64_t)sizeof *a.ids, &ids));
    FL_TRY(fl_kernel_take(b, (int64_t)rows * a.top_k * (int64_t)sizeof *a.weights, &weights));
    a.x = x;
    a.w = w;
    a.bias = bias;
    a.ids = ids;
    a.weights = weights;
    const fl_kernel_case timed = {c->route_name,         "moe_route", run_moe_route, &a,
                                  fl_moe_route_cost(&a), false};
    return fl_kernel_time(b, &timed, "%d rows of %d, %d of %d experts", rows, c->dim, a.top_k, a.n_experts);
}

static fl_err run_moe_permute(fl_backend *be, const void *args) {
    return be->op->moe_permute(be, args);
}

/* Experts that are all as likely, a slot's drawn from its own share of them: no row has one twice. */
static fl_err take_ids(fl_kernel_bench *b, const route_case *c, int32_t rows, void **out) {
    int32_t share = c->n_experts / c->top_k, *ids = malloc((size_t)rows * (size_t)c->top_k * sizeof *ids);
    if (!ids) return FL_FAIL(FL_ERR_NOMEM, "ids of %d rows", rows);
    for (int32_t i = 0; i < rows * c->top_k; i++)
        ids[i] = i % c->top_k * share + (int32_t)(fl_kernel_uniform(b) * share);
    fl_err err = fl_kernel_take_copy(b, ids, (int64_t)rows * c->top_k * (int64_t)sizeof *ids, out);
    free(ids);
    return err;
}

static fl_err time_moe_permute(fl_kernel_bench *b, const char *name, const route_case *c, bool codes) {
    int32_t rows = route_rows(b, c), slots = rows * c->top_k;
    int64_t act_bytes = (int64_t)fl_dtype_bytes(b->be->act_dtype);
    fl_moe_permute_args a = {.rows = rows, .top_k = c->top_k, .n_experts = c->n_experts, .dim = c->dim};
    void *ids, *x, *y, *group_rows, *place;
    FL_TRY(take_ids(b, c, rows, &ids));
    FL_TRY(fl_kernel_take(b, (c->n_experts + 1) * (int64_t)sizeof *a.group_rows, &group_rows));
    FL_TRY(fl_kernel_take(b, slots * (int64_t)sizeof *a.place, &place));
    FL_TRY(
        fl_kernel_take_random(b, (int64_t)rows * c->dim, b->be->act_dtype, 1, &x)); /* more than codes take */
    FL_TRY(fl_kernel_take(b, codes ? fl_codes_bytes(slots, c->dim) : slots * c->dim * act_bytes, &y));
    a.ids = ids;
    a.group_rows = group_rows;
    a.place = place;
    if (codes) {
        a.x_codes = fl_codes_at(x, rows, c->dim);
        a.y_codes = fl_codes_at(y, slots, c->dim);
    } else {
        a.x = x;
        a.x_stride = c->dim;
        a.y = y;
    }
    const fl_kernel_case timed = {name, "moe_permute", run_moe_permute, &a, fl_moe_permute_cost(&a), false};
    return fl_kernel_time(b, &timed, "%d rows of %d, %d of %d experts%s", rows, c->dim, c->top_k,
                          c->n_experts, codes ? ", as codes" : "");
}

static fl_err run_moe_combine(fl_backend *be, const void *args) {
    return be->op->moe_combine(be, args);
}

/* Places as moe_permute makes them of the experts above, with a shared expert. */
static fl_err time_moe_combine(fl_kernel_bench *b, const route_case *c) {
    int32_t rows = route_rows(b, c), slots = rows * c->top_k;
    fl_dtype act = b->be->act_dtype;
    void *ids, *in, *permuted, *group_rows, *place, *y, *shared, *weights, *x;
    FL_TRY(take_ids(b, c, rows, &ids));
    FL_TRY(fl_kernel_take(b, (c->n_experts + 1) * (int64_t)sizeof(int32_t), &group_rows));
    FL_TRY(fl_kernel_take(b, slots * (int64_t)sizeof(int32_t), &place));
    FL_TRY(fl_kernel_take_random(b, rows, act, 1, &in));
    FL_TRY(fl_kernel_take(b, slots * (int64_t)fl_dtype_bytes(act), &permuted));
    const fl_moe_permute_args order = {.ids = ids,
                                       .rows = rows,
                                       .top_k = c->top_k,
                                       .n_experts = c->n_experts,
                                       .dim = 1,
                                       .x = in,
                                       .x_stride = 1,
                                       .group_rows = group_rows,
                                       .place = place,
                                       .y = permuted};
    FL_TRY(b->be->op->moe_permute(b->be, &order));
    FL_TRY(fl_kernel_take_random(b, (int64_t)slots * c->dim, act, 1e-3, &y)); /* x grows by it in every run */
    FL_TRY(fl_kernel_take_random(b, (int64_t)rows * c->dim, act, 1e-3, &shared));
    FL_TRY(fl_kernel_take_random(b, slots, FL_DTYPE_F32, 1, &weights));
    FL_TRY(fl_kernel_take_random(b, (int64_t)rows * c->dim, FL_DTYPE_F32, 1, &x));
    const fl_moe_combine_args a = {.y = y,
                                   .place = place,
                                   .weights = weights,
                                   .shared = shared,
                                   .rows = rows,
                                   .dim = c->dim,
                                   .top_k = c->top_k,
                                   .x = x};
    const fl_kernel_case timed = {c->combine_name,         "moe_combine", run_moe_combine, &a,
                                  fl_moe_combine_cost(&a), false};
    return fl_kernel_time(b, &timed, "%d rows of %d, %d of %d experts, one shared", rows, c->dim, c->top_k,
                          c->n_experts);
}

static fl_err route_case_all(fl_kernel_bench *b, const route_case *c) {
    if (fl_kernel_begin(b, c->route_name)) FL_TRY(fl_kernel_end(b, c->route_name, time_moe_route(b, c)));
    for (int32_t codes = 0; codes < (b->be->w8a8 ? 2 : 1); codes++) {
        const char *name = codes ? c->permute_codes_name : c->permute_name;
        if (fl_kernel_begin(b, name)) FL_TRY(fl_kernel_end(b, name, time_moe_permute(b, name, c, codes)));
    }
    if (fl_kernel_begin(b, c->combine_name))
        FL_TRY(fl_kernel_end(b, c->combine_name, time_moe_combine(b, c)));
    return FL_ERR_OK;
}

typedef struct draw_case {
    const char *name, *what;
    int32_t rows;
    double
        deviation; /* of logits: with 16 some tens of tokens have most of the weight, with 2 tens of thousands */
    float scale, top_p;
    int32_t top_k, n_top;
} draw_case;

/* At temperature 1 but for the greedy ones. */
static const draw_case draw_cases[] = {
    {"sample-greedy-1", "greedy", 1, 16, 0, 1, 0, 0},
    {"sample-greedy-64", "greedy", 64, 16, 0, 1, 0, 0},
    {"sample-top_p-1", "top_p 0.95", 1, 16, 1.44269504f, 0.95f, 0, 0},
    {"sample-top_p-64", "top_p 0.95", 64, 16, 1.44269504f, 0.95f, 0, 0},
    {"sample-flat-1", "top_p 0.95, flat", 1, 2, 1.44269504f, 0.95f, 0, 0},
    {"sample-flat-64", "top_p 0.95, flat", 64, 2, 1.44269504f, 0.95f, 0, 0},
    {"sample-top_k-64", "top_k 50, top_p 0.9, 20 alternatives", 64, 16, 1.44269504f, 0.9f, 50, 20},
};

static fl_err run_sample(fl_backend *be, const void *args) {
    return be->op->sample(be, args);
}

static fl_err time_draw(fl_kernel_bench *b, const draw_case *c) {
    fl_sample_row rows[64];
    void *logits, *out;
    fl_sample_args a = {.logits_stride = V3_VOCAB, .n_rows = c->rows, .n_known = V3_VOCAB, .rows = rows};
    for (int32_t i = 0; i < c->rows; i++)
        rows[i] = (fl_sample_row){.uniform = fl_kernel_uniform(b),
                                  .scale = c->scale,
                                  .top_p = c->top_p,
                                  .min_log2 = -INFINITY,
                                  .top_k = c->top_k,
                                  .repetition = 1,
                                  .allowed_at = -1,
                                  .n_top = c->n_top};
    FL_TRY(fl_kernel_take_random(b, (int64_t)c->rows * V3_VOCAB, FL_DTYPE_F32, c->deviation, &logits));
    FL_TRY(fl_kernel_take(b, c->rows * (int64_t)sizeof(fl_sample), &out));
    FL_TRY(fl_kernel_take(b, fl_sample_scratch_bytes(V3_VOCAB), &a.scratch));
    a.logits = logits;
    a.out = out;
    const fl_kernel_case timed = {c->name, "sample", run_sample, &a, fl_sample_cost(&a), false};
    return fl_kernel_time(b, &timed, "%d rows of %d, %s", c->rows, V3_VOCAB, c->what);
}

fl_err fl_kernel_row_cases(fl_kernel_bench *b) {
    for (size_t i = 0; i < sizeof cache_cases / sizeof *cache_cases; i++) {
        const cache_case *c = &cache_cases[i];
        bool write = fl_kernel_begin(b, c->write_name), read = fl_kernel_begin(b, c->read_name);
        if (write || read)
            FL_TRY(fl_kernel_end(b, write ? c->write_name : c->read_name, time_cache(b, c, write, read)));
    }
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; i++)
        for (int32_t codes = 0; codes < (b->be->w8a8 ? 2 : 1); codes++) {
            const char *name = codes ? norm_cases[i].codes_name : norm_cases[i].name;
            if (fl_kernel_begin(b, name))
                FL_TRY(fl_kernel_end(b, name, time_rmsnorm(b, &norm_cases[i], codes)));
        }
    for (size_t i = 0; i < sizeof route_cases / sizeof *route_cases; i++)
        FL_TRY(route_case_all(b, &route_cases[i]));
    for (size_t i = 0; i < sizeof draw_cases / sizeof *draw_cases; i++) {
        const draw_case *c = &draw_cases[i];
        if (fl_kernel_begin(b, c->name)) FL_TRY(fl_kernel_end(b, c->name, time_draw(b, c)));
    }
    return FL_ERR_OK;
}
