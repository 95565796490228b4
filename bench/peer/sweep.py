#!/usr/bin/env python3
"""Times llama.cpp over its settings and writes JSON lines; the fastest setting of each row has "best": true.

usage: sweep.py PEER_BENCH MODEL.gguf OUT.json [--threads 2] [--runs 3] [--wait 0] [--quick]

Rows: prefill of 2048, 8192 and 32768 tokens, decode from depth 2048 and 8192. Settings: flash-attention off and on,
ubatch 512 to 4096 (prefill), cache type F16 (llama.cpp's default) and BF16. Each line is the median of its runs with
the smallest and largest beside it, wall clock and CPU time. 32768 tokens take minutes, so only the two settings that
were best at 8192 are run there, once each; --quick leaves them out.

other_cores is what other processes took during the runs: above 0.1 the wall clock is not llama.cpp's own. --wait lets
each run wait that many seconds for a quiet machine; runs that stayed quiet then count alone if there are any. With
--threads 1 tokens_per_s_by_cpu_time holds on a busy machine too (with more threads waiting ones spin, which counts).
"""
import argparse
import json
import statistics
import subprocess
import sys

UBATCHES = (512, 1024, 2048, 4096)
SHORT, MIDDLE, LONG = 2048, 8192, 32768
# Flash-attention over a BF16 cache prefills 3.5 times slower than over F16 (measured at 2048 tokens): left out there.
PREFILL_SETTINGS = ((False, "F16"), (True, "F16"), (False, "BF16"))
QUIET_CORES = 0.1
SETTING = ("engine", "version", "mode", "tokens", "ubatch", "flash", "kv", "threads")


def measure(args, mode, tokens, ubatch, flash, kv, runs):
    command = [args.peer_bench, "time", args.model, mode, str(tokens), str(ubatch), "on" if flash else "off", kv,
               str(runs), str(args.threads), str(args.wait)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    rows = [r for r in rows if r["other_cores"] <= QUIET_CORES] or rows
    speeds = [r["tokens_per_s"] for r in rows]
    out = {k: rows[0][k] for k in SETTING}
    out["runs"] = len(rows)
    out["tokens_per_s"] = statistics.median(speeds)
    out["tokens_per_s_min"], out["tokens_per_s_max"] = min(speeds), max(speeds)
    out["tokens_per_s_by_cpu_time"] = statistics.median(r["tokens_per_s_by_cpu_time"] for r in rows)
    out["other_cores"] = max(r["other_cores"] for r in rows)
    out["load"] = max(r["load"] for r in rows)
    print(json.dumps(out), file=sys.stderr, flush=True)
    return out


def prefill_rows(args, tokens):
    return [measure(args, "prefill", tokens, ubatch, flash, kv, args.runs)
            for flash, kv in PREFILL_SETTINGS for ubatch in UBATCHES if ubatch <= tokens]


def long_rows(args, middle):
    best_two = sorted(middle, key=lambda r: -r["tokens_per_s"])[:2]
    return [measure(args, "prefill", LONG, r["ubatch"], r["flash"], r["kv"].upper(), 1) for r in best_two]


def decode_rows(args, tokens):
    return [measure(args, "decode", tokens, UBATCHES[0], flash, kv, args.runs + 2)
            for flash, kv in PREFILL_SETTINGS + ((True, "BF16"),)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("peer_bench")
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--wait", type=int, default=0)
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    short, middle = prefill_rows(args, SHORT), prefill_rows(args, MIDDLE)
    groups = [short, middle, decode_rows(args, SHORT), decode_rows(args, MIDDLE)]
    if not args.quick:
        groups.insert(2, long_rows(args, middle))
    with open(args.out, "w") as f:
        for group in groups:
            best = max(group, key=lambda r: r["tokens_per_s"])
            for row in group:
                f.write(json.dumps(dict(row, best=row is best)) + "\n")


if __name__ == "__main__":
    main()
