/* The AVX-512 backend: needs AVX512-BF16 (Zen 4, Cooper Lake, Sapphire Rapids and later). */
#include "backend/backend.h"
#include "backend/op_tables.h"

const fl_op_table fl_op_table_avx512 = {
    .weight_pack = fl_weight_pack_cpu,
    .embed = fl_embed_cpu,
    .rmsnorm = fl_rmsnorm_avx512,
    .matmul = fl_matmul_avx512,
    .matmul_head = fl_matmul_head_avx512,
    .rope = fl_rope_avx512,
    .kv_write = fl_kv_write_cpu,
    .kv_read = fl_kv_read_avx512,
    .block_mean = fl_block_mean_cpu,
    .block_score = fl_block_score_avx512,
    .block_select = fl_block_select_cpu,
    .attn_prefill = fl_attn_prefill_avx512,
    .attn_absorbed = fl_attn_absorbed_avx512,
    .attn_merge = fl_attn_merge_cpu,
    .moe_route = fl_moe_route_avx512,
    .moe_permute = fl_moe_permute_cpu,
    .moe_combine = fl_moe_combine_avx512,
    .sample = fl_sample_ref,
};
