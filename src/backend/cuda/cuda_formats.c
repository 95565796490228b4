#include "backend/cuda/cuda_open.h"

/* The largest call of attn_prefill: the running state then rarely leaves the chip. */
enum { SPLIT_TOKENS = 1 << 20 };

/* Of a CUDA graph's kernels and their parameters, at most, as measured:
 * bench/results/recordings-2026-11-30-NVIDIA-H200.md. */
enum { RECORDING_OP_BYTES = 4608 };

void fl_cuda_formats(fl_backend *be) {
    be->act_dtype = FL_DTYPE_BF16;
    be->layout = (fl_weight_layout){.dtype = FL_DTYPE_BF16, .n_block = 1, .k_pair = 1, .k_align = 1};
    be->split_tokens = SPLIT_TOKENS;
    be->recording_op_bytes = RECORDING_OP_BYTES;
    be->matmul_rope = true;
    be->device = true;
}
