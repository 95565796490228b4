#include "backend/cuda/cuda_open.h"

/* The largest call of attn_prefill: the running state then rarely leaves the chip. */
enum { SPLIT_TOKENS = 1 << 20 };

void fl_cuda_formats(fl_backend *be) {
    be->act_dtype = FL_DTYPE_BF16;
    be->layout = (fl_weight_layout){.dtype = FL_DTYPE_BF16, .n_block = 1, .k_pair = 1, .k_align = 1};
    be->split_tokens = SPLIT_TOKENS;
    be->matmul_rope = true;
    be->device = true;
}
