/* The AVX2 backend: f32 activations, bf16 weights in panels of 16 features, widened in registers. */
#include "backend/op_tables.h"

const fl_op_table fl_op_table_avx2 = {
    .weight_pack = fl_weight_pack_cpu,
    .embed = fl_embed_cpu,
    .rmsnorm = fl_rmsnorm_avx2,
    .matmul = fl_matmul_avx2,
    .matmul_head = fl_matmul_head_avx2,
    .rope = fl_rope_avx2,
    .kv_write = fl_kv_write_cpu,
    .kv_read = fl_kv_read_cpu,
    .block_mean = fl_block_mean_cpu,
    .block_score = fl_block_score_avx2,
    .block_select = fl_block_select_cpu,
    .attn_prefill = fl_attn_prefill_avx2,
    .attn_absorbed = fl_attn_absorbed_avx2,
    .attn_merge = fl_attn_merge_cpu,
    .moe_route = fl_moe_route_avx2,
    .moe_permute = fl_moe_permute_cpu,
    .moe_combine = fl_moe_combine_avx2,
    .sample = fl_sample_ref,
};
