#!/usr/bin/env python3
"""Joins what bench/speed.sh measured: OUT.json with everything, OUT.md with the table.

usage: speed_table.py WORK_DIR OUT_WITHOUT_SUFFIX COMMIT
"""
import datetime
import glob
import json
import os
import sys


def load(path):
    with open(path) as f:
        return json.load(f)


def own_rows(work):
    """{(mode, tokens): [measurement, ...]}, one before llama.cpp and one after."""
    rows = {}
    for path in sorted(glob.glob(work + "/*.json"), key=lambda p: ("after" in p, p)):
        result = load(path)
        if "depth" in result:
            rows.setdefault(("decode", result["depth"]), []).append(result)
        else:
            for row in result.get("rows", [result]):
                rows.setdefault(("prefill", row["tokens"]), []).append(row)
    return rows


def peer_rows(work):
    with open(work + "/peer.jsonl") as f:
        return [json.loads(line) for line in f if line.strip()]


def machine():
    model = next(line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    return "%s, %d CPUs" % (model, os.cpu_count())


def roof_text(mode, row):
    if mode == "decode":
        best = row["roof_bytes_per_s"] / row["bytes"]
        return "%.0f tokens/s (%.1f GB/s of memory)" % (best, row["roof_bytes_per_s"] / 1e9)
    best = row["roof_flops_per_s"] / row["flops"] * row["tokens"]
    return "%.0f tokens/s (%.0f GFLOP/s)" % (best, row["roof_flops_per_s"] / 1e9)


def main():
    work, out, commit = sys.argv[1:4]
    own, peer = own_rows(work), peer_rows(work)
    targets = {("prefill", 2048): 2, ("prefill", 8192): 3, ("prefill", 32768): 5, ("decode", 2048): 1.5,
               ("decode", 8192): 4}
    lines = ["# Speed beside llama.cpp, %s" % datetime.date.today().isoformat(), "",
             "%s; commit %s; command `make bench`; spark-66m in BF16, 2 threads; tokens/s." % (machine(), commit),
             "firstlight: full attention, median before / after llama.cpp's runs. llama.cpp: its best setting.",
             "The roof is what this CPU did in the same run, over this row's FLOPs or bytes.", "",
             "| row | firstlight | llama.cpp (best of its settings) | ratio | wanted | roof |", "|---|---|---|---|---|---|"]
    for key in sorted(own, key=lambda k: (k[0] != "prefill", k[1])):
        mode, tokens = key
        speeds = [r["tokens_per_s"] for r in own[key]]
        mean = sum(speeds) / len(speeds)
        best = [p for p in peer if p["mode"] == mode and p["tokens"] == tokens and p.get("best")]
        text, ratio = "not run", ""
        if best:
            p = best[0]
            text = "%.0f (flash %s, %s, ubatch %d; other processes took %.2f cores)" % (
                p["tokens_per_s"], "on" if p["flash"] else "off", p["kv"], p["ubatch"], p["other_cores"])
            ratio = "%.2f" % (mean / p["tokens_per_s"])
        roof = max(own[key], key=lambda r: r["roof_flops_per_s"])
        lines.append("| %s %d | %s | %s | %s | %g | %s |" % (
            mode, tokens, " / ".join("%.0f" % s for s in speeds), text, ratio, targets.get(key, 0), roof_text(mode, roof)))
    with open(out + ".md", "w") as f:
        f.write("\n".join(lines) + "\n")
    with open(out + ".json", "w") as f:
        json.dump({"date": datetime.datetime.now().isoformat(timespec="seconds"), "machine": machine(), "commit": commit,
                   "firstlight": [{"mode": k[0], "tokens": k[1], "runs": v} for k, v in own.items()], "peer": peer}, f, indent=1)


if __name__ == "__main__":
    main()
