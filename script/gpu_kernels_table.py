#!/usr/bin/env python3
"""Joins what script/gpu_kernels.sh measured: kernels-DATE-DEVICE.json with everything, .md with tables.

usage: gpu_kernels_table.py PARTS OUT
"""
import datetime
import glob
import json
import math
import os
import re
import sys


def read(path, default=""):
    if not os.path.exists(path):
        return default
    with open(path) as f:
        return f.read().strip()


def medians(rows, of):
    """For each case and value of `of` the row with the median time of those that were measured in several rounds."""
    found = {}
    for row in rows:
        found.setdefault((row.get("case"), row.get(of)), []).append(row)
    return [sorted(times, key=lambda r: r.get("time_s", math.inf))[(len(times) - 1) // 2] for times in found.values()]


def own_rows(parts):
    """[row with its backend, ...] and {part: what it said on standard error}. Of rounds, the median one's."""
    rows, errors = [], {}
    for path in sorted(glob.glob(parts + "/*.json")):
        try:
            result = json.loads(read(path))
        except ValueError:
            continue
        for row in result["rows"]:
            rows.append(dict(row, backend=result["backend"], roof_bytes_per_s=result["roof_bytes_per_s"]))
    for path in sorted(glob.glob(parts + "/*.err")):
        errors[os.path.basename(path)[:-4]] = read(path)[-400:]
    rows = medians(rows, "backend")
    order = {}
    for row in sorted(rows, key=lambda r: r["backend"] != "cuda"):
        order.setdefault(row["case"], len(order))
    rows.sort(key=lambda r: (order[r["case"]], r["backend"]))
    return rows, errors


def peer_rows(parts):
    rows = []
    for path in sorted(glob.glob(parts + "/peers*.jsonl")):
        for line in read(path).splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                pass  # a line that the time limit cut
    return medians(rows, "peer")


def seconds(value):
    return "%.0f us" % (value * 1e6) if value < 1e-3 else "%.2f ms" % (value * 1e3)


def tera(rate):
    return "%.0f" % (rate / 1e12) if rate >= 10e12 else "%.1f" % (rate / 1e12)


class Results:
    def __init__(self, rows, peers):
        self.rows, self.peers = rows, peers

    def row(self, case, backend="cuda"):
        """The case on that backend; where it did not run there, on the first one that ran it."""
        found = [r for r in self.rows if r["case"] == case and "time_s" in r]
        exact = [r for r in found if r["backend"] == backend]
        return (exact or found or [None])[0]

    def peers_of(self, case):
        case = case.replace("-codes-fp8", "-fp8")  # the peers' activations are always given
        return [p for p in self.peers if p.get("case") == case and "time_s" in p]

    def rate(self, case):
        row = self.row(case)
        return row["flops_per_s"] if row else None

    def copy_bytes_per_s(self):
        row = next((r for r in self.rows if "time_s" in r), None)
        return row["roof_bytes_per_s"] if row else None


def ratio(a, b):
    return a / b if a is not None and b else None


def best_peer(results, case, word):
    rates = [p["flops"] / p["time_s"] for p in results.peers_of(case) if word in p["peer"]]
    return max(rates) if rates else None


def chosen_share(results, attention, score, backend):
    """Means, scores and selection over the attention that they serve."""
    parts = [results.row(c, backend) for c in ("blocks-mean", score, "blocks-select")]
    whole = results.row(attention)
    return sum(p["time_s"] for p in parts) / whole["time_s"] if whole and all(parts) else None


def absorbed_share(results, case):
    row = results.row(case)
    return row["bytes_per_s"] / results.copy_bytes_per_s() if row else None


def wanted(results):
    """[(what, measured or None, bound, unit, whether it is a floor)]"""
    window = results.rate("prefill-window-16k-16h")
    out = [("attention, 16K window, 128 heads of 192/128, bf16", results.rate("prefill-window-16k-128h"), 450e12,
            "TFLOP/s", True)]
    for case in ("prefill-blocks-2%-16h", "prefill-blocks-4%-16h", "prefill-blocks128-4%-16h"):
        out.append((case + " over prefill-window-16k-16h", ratio(results.rate(case), window), 0.85, "x", True))
    for case in ("prefill-blocks-2%-16h", "prefill-blocks-4%-16h"):
        for kind, score, backend in (("bf16", "blocks-score", "cuda"), ("fp8", "blocks-score-fp8", "cuda-w8a8")):
            out.append(("mean + score (%s) + select over %s" % (kind, case),
                        chosen_share(results, case, score, backend), 0.25, "x", False))
    for case in ("experts-v3-up-fp8", "experts-v3-up-codes-fp8", "experts-v3-down-fp8", "experts-v3-down-codes-fp8"):
        out.append((case, results.rate(case), 900e12, "TFLOP/s", True))
    for case in ("dense-8k", "dense-v3-q_b", "dense-v3-o", "dense-moonlight-kv_a", "dense-small-1k"):
        alone = best_peer(results, case + "-fp8", "block scales")  # which is given codes, too
        out.append((case + "-codes-fp8 over cuBLASLt alone", ratio(results.rate(case + "-codes-fp8"), alone), 0.97, "x",
                    True))
    case = "absorbed-512k-16h-int4"  # rows of 128 heads are bound by products: their share of that roof is in the cases
    out.append((case + ", bytes read over the copy's rate", absorbed_share(results, case), 0.6, "x", True))
    return out


def wanted_lines(results):
    lines = ["| what | measured | wanted | |", "|---|---|---|---|"]
    for what, value, bound, unit, is_floor in wanted(results):
        scale = 1e12 if unit == "TFLOP/s" else 1
        digits = "%.0f %s" if scale > 1 else "%.2f %s"
        sign = ">=" if is_floor else "<="
        if value is None:
            shown, verdict = "", "not measured"
        else:
            shown = digits % (value / scale, unit)
            verdict = "met" if (value >= bound if is_floor else value <= bound) else "not met"
        lines.append("| %s | %s | %s %s | %s |" % (what, shown, sign, digits % (bound / scale, unit), verdict))
    return lines


def peer_text(row, peers):
    texts = []
    for p in peers:
        if p["flops"] > 0:
            rate = p["flops"] / p["time_s"]
            texts.append("%s %s TFLOP/s (ours %.2fx)" % (p["peer"], tera(rate), row["flops_per_s"] / rate))
        elif p["bytes"] > 0:
            texts.append("%s %.0f GB/s" % (p["peer"], p["bytes"] / p["time_s"] / 1e9))
    return "; ".join(texts)


def case_lines(results):
    lines = ["| case | shape | backend | time | TFLOP/s | GB/s | of roof | floor | peers, same run |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in results.rows:
        if "time_s" not in row:
            lines.append("| %s | did not run: %s | %s | | | | | | |" % (row["case"], row["refusal"], row["backend"]))
            continue
        lines.append("| %s | %s | %s | %s | %s | %.0f | %.0f%% | %s | %s |" % (
            row["case"], row["shape"], row["backend"], seconds(row["time_s"]), tera(row["flops_per_s"]),
            row["bytes_per_s"] / 1e9, 100 * row["roof_fraction"], seconds(row["floor_s"]),
            peer_text(row, results.peers_of(row["case"]))))
    return lines


def other_peer_lines(results):
    """Peers of cases that are not ours, and those that failed."""
    ours = {r["case"] for r in results.rows}
    lines = []
    for p in results.peers:
        if "error" in p:
            lines.append("* %s, %s: did not run: %s" % (p["case"], p["peer"], p["error"]))
        elif "case" in p and p["case"] not in ours:
            rate = ("%s TFLOP/s" % tera(p["flops"] / p["time_s"]) if p["flops"] > 0
                    else "%.0f GB/s" % (p["bytes"] / p["time_s"] / 1e9))
            lines.append("* %s, %s: %s (%s)" % (p["case"], p["peer"], rate, p["shape"]))
    return lines


def main():
    parts, out = sys.argv[1:3]
    rows, errors = own_rows(parts)
    peers = peer_rows(parts)
    versions = peers.pop(0) if peers and "torch" in peers[0] else {}
    results = Results(rows, peers)
    device = re.sub(r" *\(UUID:.*?\)", "", read(parts + "/device"))
    date = datetime.datetime.now().isoformat(timespec="seconds")
    roofs = [r["roof_flops_per_s"] for r in rows if "time_s" in r and not r["case"].endswith("-fp8")] or [0]
    lines = ["# Kernels beside their peers, %s" % date[:10], "",
             "%s; driver, clocks, power: %s; commit %s; command `script/gpu_kernels.sh BUILD OUT`." %
             (device.replace("\n", "; "), (read(parts + "/driver").splitlines() or ["unknown"])[-1],
              read(parts + "/commit")),
             "Random data, medians of 5 runs of at least 20 ms, of fp8's dense products the median of 3 rounds. "
             "TFLOP/s count unmasked pairs only; GB/s every operand once.",
             "The roof is measured in the same run: cuBLASLt's 8192^3 bf16 product (%s to %s TFLOP/s; twice that for "
             "fp8) and a copy (%.0f GB/s); the floor is the longer of both. Peers: %s." %
             (tera(min(roofs)), tera(max(roofs)), (results.copy_bytes_per_s() or 0) / 1e9,
              ", ".join("%s %s" % item for item in versions.items()) or "none ran"), "", "## Wanted", ""]
    lines += wanted_lines(results) + ["", "## Cases", ""] + case_lines(results)
    others = other_peer_lines(results)
    if others:
        lines += ["", "## Other peers", ""] + others
    if errors:
        lines += ["", "## Parts that said something", ""] + [
            "* %s: %s" % (name, " ".join(text.split())) for name, text in errors.items()]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", device.split("\n")[0].split(":")[-1]).strip("-") or "unknown"
    name = "%s/kernels-%s-%s" % (out, date[:10], slug)
    with open(name + ".md", "w") as f:
        f.write("\n".join(lines) + "\n")
    with open(name + ".json", "w") as f:
        json.dump({"date": date, "device": device, "driver": read(parts + "/driver"), "commit": read(parts + "/commit"),
                   "commands": read(parts + "/commands").splitlines(), "versions": versions, "rows": rows,
                   "peers": peers, "errors": errors}, f, indent=1)
    print(name + ".md")


if __name__ == "__main__":
    main()
