#!/usr/bin/env python3
"""What others make of the cases of `firstlight bench kernels`, on the same GPU: JSON lines, one for each peer and case.

usage: peers_gpu.py [ONLY]     cases with ONLY in their name
Needs torch with CUDA. A line is {"case", "peer", "shape", "time_s", "flops", "bytes"}, or "error" in place of the
numbers: a peer that cannot do a shape is reported, not left out. FLOPs count unmasked pairs only, as ours do.
"""
import json
import math
import signal
import statistics
import sys

import torch
import torch.nn.functional as F

DEVICE = "cuda"
BF16 = torch.bfloat16
F32 = torch.float32
RUN_S, RUNS, PEER_LIMIT_S = 0.02, 5, 45
WARM_PRODUCTS = 15


class TooLong(Exception):
    pass


def on_alarm(*_):
    raise TooLong("took longer than %d s" % PEER_LIMIT_S)


def elapsed_s(run, launches):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(launches):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e-3


def time_s(run):
    """Median of RUNS, each of launches back to back that take at least RUN_S together, as `bench kernels` does."""
    for _ in range(2):
        once = elapsed_s(run, 1)
    launches = max(1, math.ceil(1.2 * RUN_S / max(once, 1e-6)))
    return statistics.median(elapsed_s(run, launches) / launches for _ in range(RUNS))


def report(case, peer, shape, make, flops=0.0, moved=0.0):
    """make() gives the function to time. What it raises becomes the line's error."""
    if len(sys.argv) > 1 and sys.argv[1] not in case:
        return
    line = {"case": case, "peer": peer, "shape": shape}
    signal.alarm(PEER_LIMIT_S)
    try:
        with torch.no_grad():
            line.update(time_s=time_s(make()), flops=flops, bytes=moved)
    except Exception as error:  # the library's own words: which shapes it refuses differs by version
        line["error"] = " ".join(str(error).split())[:300] or type(error).__name__
    finally:
        signal.alarm(0)
        torch.cuda.empty_cache()
    print(json.dumps(line), flush=True)


def warm_up():
    """As many products as measure the roof before our first case: what ran before decides 3 to 5% of a product."""
    x = normal(8192, 8192)
    elapsed_s(lambda: torch.mm(x, x), WARM_PRODUCTS)


def normal(*shape, deviation=1.0, dtype=BF16):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32 if dtype != BF16 else BF16).mul_(deviation).to(dtype)


# ---- copies ----

def copies():
    n = 2 << 30

    def make():
        source = torch.randint(0, 255, (n,), dtype=torch.uint8, device=DEVICE)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    report("copy", "torch copy_", "2 GiB, read and written", make, moved=2.0 * n)


# ---- products ----

def e4m3(*shape):
    return normal(*shape, deviation=100, dtype=torch.float8_e4m3fn)


def scales_of_rows(rows, k):
    """One a row and 128 inputs, those of a block side by side."""
    return torch.rand(k // 128, rows, device=DEVICE).add_(0.5).mul_(1e-2).t()


def scales_of_weight(n, k):
    """One for 128 x 128; rows of a multiple of 4, as cuBLASLt reads them. As [k / 128][n / 128]."""
    blocks = k // 128
    return torch.rand(-(-n // 128), -(-blocks // 4) * 4, device=DEVICE).add_(0.5).mul_(1e-4)[:, :blocks].t()


def scaled_product(rows, n, k, out=BF16):
    x, w = e4m3(rows, k), e4m3(n, k)
    sx, sw = scales_of_rows(rows, k), scales_of_weight(n, k)
    return lambda: torch._scaled_mm(x, w.t(), scale_a=sx, scale_b=sw, out_dtype=out, use_fast_accum=False)


def tensor_scaled_product(rows, n, k, out=BF16):
    x, w, one = e4m3(rows, k), e4m3(n, k), torch.ones((), device=DEVICE)
    return lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=out, use_fast_accum=False)


def bf16_product(rows, n, k, out=BF16):
    x, w = normal(rows, k), normal(n, k, deviation=k ** -0.5)
    y = torch.empty(rows, n, device=DEVICE, dtype=BF16)
    if out != BF16:
        return lambda: torch.mm(x, w.t(), out_dtype=out)
    return lambda: torch.mm(x, w.t(), out=y)


def one_by_one(product, groups, rows, n, k):
    """A product for each group, one behind the other."""
    runs = [product(rows, n, k) for _ in range(groups)]

    def run():
        for one in runs:
            one()

    return run


def grouped_product(groups, rows, n, k):
    x, w = normal(groups * rows, k), normal(groups, n, k, deviation=k ** -0.5)
    ends = torch.arange(1, groups + 1, device=DEVICE, dtype=torch.int32) * rows
    return lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)


def product_bytes(groups, rows, n, k, w_bytes, y_bytes=2.0):
    return groups * (float(n) * k * w_bytes + rows * (k * w_bytes + n * y_bytes))


def products():
    warm_up()
    for name, rows, n, k, out in (("dense-8k", 8192, 8192, 8192, BF16), ("dense-v3-q_b", 4096, 24576, 1536, BF16),
                                  ("dense-v3-o", 4096, 7168, 16384, BF16),
                                  ("dense-moonlight-kv_a", 65536, 576, 2048, F32),
                                  ("dense-moonlight-down", 65536, 2048, 2816, BF16),
                                  ("dense-small-1k", 1024, 3072, 2048, BF16)):
        shape, flops = "%d rows, n %d k %d" % (rows, n, k), 2.0 * rows * n * k
        for case, peer, make, width in ((name, "torch mm (cuBLAS)", bf16_product, 2),
                                        (name + "-fp8", "cuBLASLt alone, block scales", scaled_product, 1),
                                        (name + "-fp8", "cuBLASLt alone, one scale a tensor", tensor_scaled_product,
                                         1)):
            report(case, peer, shape, lambda a=(rows, n, k, out), make=make: make(*a), flops,
                   product_bytes(1, rows, n, k, width, out.itemsize))


def experts():
    for name, groups, rows, n, k in (("experts-v3-up", 8, 4096, 4096, 7168), ("experts-v3-down", 8, 4096, 7168, 2048),
                                     ("experts-moonlight-up", 64, 1536, 2816, 2048),
                                     ("experts-moonlight-down", 64, 1536, 2048, 1408)):
        shape, flops = "%d experts of %d rows, n %d k %d" % (groups, rows, n, k), 2.0 * groups * rows * n * k
        report(name, "torch _grouped_mm", shape, lambda g=groups, r=rows, n=n, k=k: grouped_product(g, r, n, k), flops,
               product_bytes(groups, rows, n, k, 2))
        report(name, "torch mm, one by one", shape,
               lambda g=groups, r=rows, n=n, k=k: one_by_one(bf16_product, g, r, n, k), flops,
               product_bytes(groups, rows, n, k, 2))
        report(name + "-fp8", "cuBLASLt alone, block scales, one by one", shape,
               lambda g=groups, r=rows, n=n, k=k: one_by_one(scaled_product, g, r, n, k), flops,
               product_bytes(groups, rows, n, k, 1))


# ---- attention ----

def heads_of(n_heads, rows, keys, qk, v):
    """q, k, v as [1][heads][tokens][dim]; scores have a deviation of about 2 as exponents of 2, as ours."""
    q = normal(1, n_heads, rows, qk, deviation=2 / math.log2(math.e))
    return q, normal(1, n_heads, keys, qk), normal(1, n_heads, keys, v)


def causal_flops(n_heads, rows, qk, v):
    return 2.0 * n_heads * rows * (rows + 1) / 2 * (qk + v)


def sdpa(backend, n_heads, rows, qk, v, pad):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    q, k, values = heads_of(n_heads, rows, rows, qk, v)
    if pad:
        values = F.pad(values, (0, qk - v))
    scale = qk ** -0.5

    def run():
        with sdpa_kernel([getattr(SDPBackend, backend)]):
            F.scaled_dot_product_attention(q, k, values, is_causal=True, scale=scale)

    return run


def causal(case, n_heads, rows, qk, v):
    kinds = (("cuDNN SDPA", "CUDNN_ATTENTION", False), ("cuDNN SDPA, v padded to k's width", "CUDNN_ATTENTION", True),
             ("torch flash SDPA, v padded to k's width", "FLASH_ATTENTION", True),
             ("torch efficient SDPA", "EFFICIENT_ATTENTION", False))
    for peer, backend, pad in kinds:
        report(case, peer, "%d rows at 0, %d heads of %d/%d, causal" % (rows, n_heads, qk, v),
               lambda backend=backend, pad=pad: sdpa(backend, n_heads, rows, qk, v, pad),
               causal_flops(n_heads, rows, qk, v))


def flex(n_heads, rows, pos, window, qk, v):
    """Rows at pos .. pos + rows - 1 behind pos + rows keys, each sees the last `window` up to itself."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    q, k, values = heads_of(n_heads, rows, pos + rows, qk, v)

    def seen(b, h, i, j):
        distance = i + pos - j
        return (distance >= 0) & (distance < window)

    mask = create_block_mask(seen, None, None, rows, pos + rows, device=DEVICE)
    attend = torch.compile(flex_attention, dynamic=False)
    scale = qk ** -0.5
    return lambda: attend(q, k, values, block_mask=mask, scale=scale)


def windows():
    for case, n_heads in (("prefill-window-16k-128h", 128), ("prefill-window-16k-16h", 16)):
        rows = pos = window = 16384
        report(case, "flex_attention, compiled", "%d rows at %d, %d heads of 192/128, window %d" %
               (rows, pos, n_heads, window), lambda n=n_heads: flex(n, rows, pos, window, 192, 128),
               2.0 * n_heads * rows * window * (192 + 128))


def main():
    signal.signal(signal.SIGALRM, on_alarm)
    torch.manual_seed(0)
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                      "device": torch.cuda.get_device_name()}), flush=True)
    copies()
    products()
    experts()
    causal("prefill-causal-32k-128h", 128, 32768, 192, 128)
    causal("prefill-causal-16k-128h", 128, 16384, 192, 128)
    causal("prefill-causal-32k-spark", 8, 32768, 96, 64)
    windows()


if __name__ == "__main__":
    main()
