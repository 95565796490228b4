/* Matrix products of single warps (mma.sync) and what feeds them: ldmatrix and copies that do not pass registers. For
 * kernels of few rows, where a warpgroup's 64 would be mostly padding. One wrapper an instruction. */
#ifndef FL_OP_CUDA_MMA_CUH
#define FL_OP_CUDA_MMA_CUH

#include <cuda_fp16.h>

#include "op/cuda/hopper.cuh"

/* D[16][8] += A[16][16] B[16][8], bf16 with f32 sums. With g = lane / 4 and t = lane % 4:
 *   d[2 i + c]: row g + 8 i, column 2 t + c
 *   a[0]: row g, columns 2 t and 2 t + 1, low half first; a[1]: 8 rows down; a[2]: 8 columns on; a[3]: both
 *   b0: rows 2 t and 2 t + 1, column g; b1: 8 rows down */
FL_DEVICE void fl_mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same of f16. */
FL_DEVICE void fl_mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* D = A B. */
FL_DEVICE void fl_mma_f16_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/* Two values as f16, `low` in the low half. */
FL_DEVICE uint32_t fl_pack_f16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

FL_DEVICE float fl_low_of_f16x2(uint32_t packed) {
    return __half2float(__ushort_as_half((uint16_t)packed));
}

FL_DEVICE float fl_high_of_f16x2(uint32_t packed) {
    return __half2float(__ushort_as_half((uint16_t)(packed >> 16)));
}

FL_DEVICE uint32_t fl_multiply_f16x2(uint32_t x, uint32_t y) {
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
    return product;
}

/* Four 8x8 matrices of 16 bits; lane i gives the address of row i % 8 of matrix i / 8, 16-byte aligned. r[j]: of matrix
 * j, row lane / 4, columns 2 (lane % 4) and + 1; transposed: rows 2 (lane % 4) and + 1, column lane / 4. */
FL_DEVICE void fl_load_matrices(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(fl_shared_address(row))
                 : "memory");
}

FL_DEVICE void fl_load_matrices_transposed(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(fl_shared_address(row))
                 : "memory");
}

/* 16 bytes to shared memory, both addresses aligned, past L1; zeros, and nothing is read, if not `there`. */
FL_DEVICE void fl_copy_async(void *shared, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(fl_shared_address(shared)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* This thread's copies are done; the others' are after a barrier that follows. */
FL_DEVICE void fl_copy_async_wait(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif
