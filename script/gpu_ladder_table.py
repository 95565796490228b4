#!/usr/bin/env python3
"""Joins the rows of script/gpu_ladder.sh: OUT/ladder-DATE.json with every report, .md with the table, which it prints.

usage: gpu_ladder_table.py OUT MACHINE COMMIT
"""
import datetime
import glob
import json
import os
import sys


def op_times(report):
    return {op["op"]: op["time_s"] for op in report["ops"]}


def density_cell(report):
    """Mean share of blocks, and the range by layer and head where they differ."""
    if report.get("block_density", 1) >= 1:
        return ""
    mean, listed = 100 * report["block_density"], report["density_listed"]
    if listed["most"] <= 1.01 * listed["least"]:
        return "%.1f%%" % mean
    return "%.1f%% (%.1f to %.1f)" % (mean, 100 * listed["least"], 100 * listed["most"])


def table(rows):
    first = rows[0]["report"]["ttft_s"]
    before = None
    lines = ["| stage | first token after | step | in all | attention | lists | matrix products | all else | blocks listed "
             "| TFLOP/s | arithmetic | peak memory | quality |", "|" + "---|" * 13]
    for row in rows:
        report, ops = row["report"], op_times(row["report"])
        ttft = report["ttft_s"]
        lists = sum(ops.get(name, 0) for name in ("block_mean", "block_score", "block_select"))
        attention, products = ops.get("attn_prefill", 0), ops.get("matmul", 0)
        lines.append("| %s | %.2f s | %s | %.1fx | %.2f s | %.2f s | %.2f s | %.2f s | %s | %.0f | %s | %.1f GiB | %s |" % (
            row["stage"], ttft, "%.2fx" % (before / ttft) if before else "", first / ttft, attention, lists, products,
            ttft - attention - lists - products, density_cell(report),
            report["flops"] / ttft / 1e12, report.get("arithmetic", ""), report["peak_bytes"] / 2**30,
            "full attention in bf16" if report["policy"] == "full" and report["arithmetic"] == "bf16"
            else "spark-66m's at the same density"))
        before = ttft
    return lines


def main():
    out, machine, commit = sys.argv[1:4]
    rows = [json.load(open(name)) for name in sorted(glob.glob(os.path.join(out, "row-*.json")))]
    if not rows:
        sys.exit("gpu_ladder_table.py: no row was measured")
    first = rows[0]["report"]
    date = datetime.date.today().isoformat()
    lines = ["# A prompt of %s tokens at Moonlight's size, %s" % (format(first["tokens"], ","), date), "",
             "%s; commit %s; command `script/gpu_ladder.sh BUILD OUT`; random weights, one run a row, whole model on one "
             "GPU, ops waited for one by one. Roof measured in each run: %.0f TFLOP/s bf16." % (
                 machine, commit, first["roof_flops_per_s"] / 1e12), ""] + table(rows)
    base = os.path.join(out, "ladder-%s-%s" % (date, machine.split(":")[-1].strip().replace(" ", "-")))
    with open(base + ".md", "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(base + ".json", "w") as file:
        json.dump({"date": date, "machine": machine, "commit": commit, "rows": rows}, file, indent=1)
    print("\n".join(lines))


main()
