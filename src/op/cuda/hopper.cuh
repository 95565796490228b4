/* What Hopper kernels are made of: memory barriers, bulk tensor copies (TMA), warpgroup matrix products (wgmma). One
 * wrapper an instruction, as the PTX manual describes it; no policy. For sm_90a only. */
#ifndef FL_OP_CUDA_HOPPER_CUH
#define FL_OP_CUDA_HOPPER_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <stdint.h>

#define FL_DEVICE static __device__ __forceinline__

FL_DEVICE uint32_t fl_shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* ---- mbarrier -------------------------------------------------------------------------------------------------- */

FL_DEVICE void fl_barrier_init(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(fl_shared_address(barrier)), "r"(arrivals));
}

/* After the inits, before another thread or the copy engine uses the barriers. */
FL_DEVICE void fl_barrier_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* One arrival that also announces `bytes` of bulk copies. */
FL_DEVICE void fl_barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(fl_shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

FL_DEVICE void fl_barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(fl_shared_address(barrier)) : "memory");
}

/* Waits for the phase of this parity to end: 0 for the first use of a barrier, then 1, 0, .. */
FL_DEVICE void fl_barrier_wait(uint64_t *barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra end;\n"
                 "bra again;\n"
                 "end:\n"
                 "}" ::"r"(fl_shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* The same by a whole warp, which goes on as one. The compiler knows that it does: behind fl_barrier_wait it may give
 * up uniform registers, in loops around too. */
FL_DEVICE void fl_barrier_wait_together(uint64_t *barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{\n"
                     ".reg .pred done;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, done;\n"
                     "}"
                     : "=r"(done)
                     : "r"(fl_shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (!__all_sync(~0u, done));
}

/* The n-th use of a ring of stages: which one, and the parity of its barriers then. */
template <int STAGES> struct fl_ring_place {
    int32_t stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage < STAGES) return;
        stage = 0;
        parity ^= 1;
    }
};

/* ---- named barriers: of some warps of a block ------------------------------------------------------------------ */

/* Waits until `threads` threads, in whole warps, have come by this or by arriving; 0 is __syncthreads'. */
FL_DEVICE void fl_named_barrier_wait(int32_t barrier, int32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

FL_DEVICE void fl_named_barrier_arrive(int32_t barrier, int32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* ---- bulk tensor copies ---------------------------------------------------------------------------------------- */

/* Shared memory written by ordinary stores becomes visible to wgmma and to the copy engine. By each writing thread,
 * before the barrier that the reader waits for. */
FL_DEVICE void fl_async_proxy_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

FL_DEVICE void fl_tma_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* `bytes` side by side: a multiple of 16, both addresses 16-byte aligned. */
FL_DEVICE void fl_bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            fl_shared_address(shared)),
        "l"(global), "r"(bytes), "r"(fl_shared_address(barrier))
        : "memory");
}

/* Into L2 alone; `bytes` and the address are multiples of 16. */
FL_DEVICE void fl_bulk_prefetch(const void *global, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

/* A box at element coordinates (x, y[, z[, u]]), x the contiguous one, into `shared` (128-byte aligned, 1,024 with
 * the 128-byte swizzle); its bytes count on `barrier`. Outside the tensor: zeros, counted too. x in bytes is a multiple
 * of 16: "illegal instruction" else. */
FL_DEVICE void fl_tma_load_2d(void *shared, const CUtensorMap *map, uint64_t *barrier, int32_t x, int32_t y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(fl_shared_address(shared)),
        "l"(map), "r"(fl_shared_address(barrier)), "r"(x), "r"(y)
        : "memory");
}

FL_DEVICE void fl_tma_load_3d(void *shared, const CUtensorMap *map, uint64_t *barrier, int32_t x, int32_t y,
                              int32_t z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
        "%5}], [%2];" ::"r"(fl_shared_address(shared)),
        "l"(map), "r"(fl_shared_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

FL_DEVICE void fl_tma_load_4d(void *shared, const CUtensorMap *map, uint64_t *barrier, int32_t x, int32_t y,
                              int32_t z, int32_t u) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
        "%5, %6}], [%2];" ::"r"(fl_shared_address(shared)),
        "l"(map), "r"(fl_shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(u)
        : "memory");
}

/* As fl_tma_load_3d, into L2 alone. */
FL_DEVICE void fl_tma_prefetch_3d(const CUtensorMap *map, int32_t x, int32_t y, int32_t z) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map), "r"(x), "r"(y),
                 "r"(z)
                 : "memory");
}

/* ---- clusters: blocks on neighbouring multiprocessors --------------------------------------------------------- */

FL_DEVICE uint32_t fl_cluster_rank(void) {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The two halves of fl_cluster_sync. */
FL_DEVICE void fl_cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

FL_DEVICE void fl_cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* All threads of all blocks of the cluster; those that have left count as there. */
FL_DEVICE void fl_cluster_sync(void) {
    fl_cluster_arrive();
    fl_cluster_wait();
}

/* The same place in the shared memory of block `rank`, which must have begun: behind a barrier of the cluster. */
template <class T> FL_DEVICE T *fl_cluster_at(T *shared, int32_t rank) {
    T *there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
    return there;
}

/* Arrives at the same barrier of the block `rank`, which may be this one: this warp has read what lay in shared
 * memory. It orders no writes for the other block to see: with `.release.cluster` it would, and become a memory fence
 * that the warp waits for. */
FL_DEVICE void fl_barrier_arrive_at(uint64_t *barrier, uint32_t rank) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(fl_shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}

/* One arrival of a warp that has read what the barrier guards, in each of the BLOCKS blocks that bring some of it (1:
 * this one). */
template <int BLOCKS = 1> FL_DEVICE void fl_barrier_release(uint64_t *barrier) {
    int32_t lane = threadIdx.x % 32;
    if constexpr (BLOCKS == 1) {
        if (lane == 0) fl_barrier_arrive(barrier);
    } else {
        if (lane < BLOCKS) fl_barrier_arrive_at(barrier, lane);
    }
}

/* The same where lanes may still be reading. */
template <int BLOCKS = 1> FL_DEVICE void fl_barrier_release_together(uint64_t *barrier) {
    __syncwarp();
    fl_barrier_release<BLOCKS>(barrier);
}

/* Writes `value` at the same place of the shared memory of block `rank`; its 4 bytes count on that block's barrier,
 * whose waiters see it. */
FL_DEVICE void fl_store_at(float *shared, float value, uint64_t *barrier, uint32_t rank) {
    asm volatile("{\n"
                 ".reg .b32 to, there;\n"
                 "mapa.shared::cluster.u32 to, %0, %3;\n"
                 "mapa.shared::cluster.u32 there, %2, %3;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [to], %1, [there];\n"
                 "}" ::"r"(fl_shared_address(shared)),
                 "f"(value), "r"(fl_shared_address(barrier)), "r"(rank)
                 : "memory");
}

/* As fl_tma_load_3d, into the same place of every block of the cluster whose bit is set in `ranks`; each one's own
 * barrier counts. */
FL_DEVICE void fl_tma_load_3d_to(uint16_t ranks, void *shared, const CUtensorMap *map, uint64_t *barrier,
                                 int32_t x, int32_t y, int32_t z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(fl_shared_address(shared)),
        "l"(map), "r"(fl_shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(ranks)
        : "memory");
}

/* `bytes` side by side to the same place of the shared memory of block `rank`, whose barrier counts them; multiples of
 * 16, and an fl_async_proxy_fence behind the stores that made them. */
FL_DEVICE void fl_bulk_store_at(const void *shared, uint32_t bytes, uint64_t *barrier, uint32_t rank) {
    asm volatile(
        "{\n"
        ".reg .b32 to, there;\n"
        "mapa.shared::cluster.u32 to, %0, %3;\n"
        "mapa.shared::cluster.u32 there, %2, %3;\n"
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [there];\n"
        "}" ::"r"(fl_shared_address(shared)),
        "r"(bytes), "r"(fl_shared_address(barrier)), "r"(rank)
        : "memory");
}

/* ---- a kernel behind another, launched as its programmatic dependent -------------------------------------------- */

/* What the kernel before has written is there from here on. No wait in a kernel that was launched plainly. */
FL_DEVICE void fl_grid_wait(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* When all blocks have come by this, or ended, blocks of the next kernel may begin where there is room. */
FL_DEVICE void fl_grid_begin_next(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* ---- one thread of a warp --------------------------------------------------------------------------------------- */

/* True in one lane of a whole warp, always the same. Only here does the compiler see that bulk copies come from one
 * thread: behind a comparison of threadIdx it wraps each in a loop over lanes that waits until the engine has it. */
FL_DEVICE bool fl_elect_one(void) {
    uint32_t elected;
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, one;\n"
                 "}"
                 : "=r"(elected));
    return elected != 0;
}

/* ---- registers ------------------------------------------------------------------------------------------------- */

/* A warpgroup gives registers back, or takes more. Each role one branch of a single if/else; the kernel has
 * __launch_bounds__(threads, 1). */
template <int REGISTERS> FL_DEVICE void fl_registers_release(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> FL_DEVICE void fl_registers_claim(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* ---- wgmma ----------------------------------------------------------------------------------------------------- */

/* Descriptor of an operand in shared memory with the 128-byte swizzle that TMA wrote, 1,024-byte aligned.
 *   K-major: rows of 128 bytes along k, 8-row groups 1,024 bytes apart. Next 32 bytes of k: + 2.
 *   MN-major (bf16 only): k rows of 64 elements of n, one behind the other; n beyond 64 in further boxes, `box_bytes`
 *   apart. Next 16 rows of k: + 128 (2,048 bytes). */
FL_DEVICE uint64_t fl_wgmma_k_major(const void *shared) {
    uint64_t address = (fl_shared_address(shared) & 0x3ffffu) >> 4;
    return address | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

FL_DEVICE uint64_t fl_wgmma_mn_major(const void *shared, uint32_t box_bytes) {
    uint64_t address = (fl_shared_address(shared) & 0x3ffffu) >> 4;
    return address | (uint64_t)(box_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Before the first product after registers or shared memory were touched. */
FL_DEVICE void fl_wgmma_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

FL_DEVICE void fl_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most GROUPS committed groups are under way. */
template <int GROUPS> FL_DEVICE void fl_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

/* The compiler may not move uses of these registers across this point. */
template <int N> FL_DEVICE void fl_wgmma_pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Operand lists of 8, 32, 64, 96, 128 accumulators. */
#define FL_D8(d, i)                                                                                          \
    "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]),  \
        "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define FL_D32(d, i)  FL_D8(d, i), FL_D8(d, (i) + 8), FL_D8(d, (i) + 16), FL_D8(d, (i) + 24)
#define FL_D64(d, i)  FL_D32(d, i), FL_D32(d, (i) + 32)
#define FL_D96(d, i)  FL_D64(d, i), FL_D32(d, (i) + 64)
#define FL_D128(d, i) FL_D64(d, i), FL_D64(d, (i) + 64)
#define FL_D32_TEXT                                                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                 \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FL_D64_TEXT                                                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                 \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FL_D96_TEXT                                                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                 \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                       \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                       \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FL_D128_TEXT                                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                 \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                       \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                       \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                       \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "           \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* D[64][N] (+)= A[64][K] B[N][K]^T of a warpgroup. In the accumulators, for thread t of the group: d[4 j + 2 i + c] is
 * row 16 (t / 32) + 8 i + (t % 32) / 4, column 8 j + 2 (t % 4) + c. `add` 0: the old D counts as zero. */
/* bf16, K = 16, both operands K-major in shared memory. */
FL_DEVICE void fl_wgmma_bf16(float (&d)[32], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FL_D32_TEXT
                 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : FL_D32(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

/* The same with A in registers, as below. */
FL_DEVICE void fl_wgmma_bf16(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FL_D32_TEXT
                 "}, {%32, %33, %34, %35}, "
                 "%36, p, 1, 1, 0;\n}"
                 : FL_D32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

FL_DEVICE void fl_wgmma_bf16(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FL_D64_TEXT
                 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : FL_D64(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

FL_DEVICE void fl_wgmma_bf16(float (&d)[96], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" FL_D96_TEXT
                 "}, %96, %97, p, 1, 1, 0, 0;\n}"
                 : FL_D96(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

FL_DEVICE void fl_wgmma_bf16(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FL_D128_TEXT
                 "}, %128, %129, p, 1, 1, 0, 0;\n}"
                 : FL_D128(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

/* bf16, K = 16, A in registers (a[0]: row t % 32 / 4, columns 2 (t % 4) and + 1, low half first; a[1]: 8 rows down;
 * a[2]: 8 columns on; a[3]: both), B MN-major. */
FL_DEVICE void fl_wgmma_bf16_mn(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FL_D32_TEXT
                 "}, {%32, %33, %34, %35}, "
                 "%36, p, 1, 1, 1;\n}"
                 : FL_D32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

FL_DEVICE void fl_wgmma_bf16_mn(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FL_D64_TEXT
                 "}, {%64, %65, %66, %67}, "
                 "%68, p, 1, 1, 1;\n}"
                 : FL_D64(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

FL_DEVICE void fl_wgmma_bf16_mn(float (&d)[128], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FL_D128_TEXT
                 "}, {%128, %129, %130, %131}, "
                 "%132, p, 1, 1, 1;\n}"
                 : FL_D128(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* The same with A K-major in shared memory. */
FL_DEVICE void fl_wgmma_bf16_mn(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FL_D128_TEXT
                 "}, %128, %129, p, 1, 1, 0, 1;\n}"
                 : FL_D128(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

/* e4m3, K = 32, both operands K-major in shared memory. */
FL_DEVICE void fl_wgmma_e4m3(float (&d)[32], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" FL_D32_TEXT
                 "}, %32, %33, p, 1, 1;\n}"
                 : FL_D32(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

FL_DEVICE void fl_wgmma_e4m3(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" FL_D64_TEXT
                 "}, %64, %65, p, 1, 1;\n}"
                 : FL_D64(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

FL_DEVICE void fl_wgmma_e4m3(float (&d)[96], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {" FL_D96_TEXT
                 "}, %96, %97, p, 1, 1;\n}"
                 : FL_D96(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

#endif
