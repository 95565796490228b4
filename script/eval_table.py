#!/usr/bin/env python3
"""Joins what script/eval_quality.sh measured: OUT.json with every run's report, OUT.md with tables.

usage: eval_table.py WORK_DIR OUT_WITHOUT_SUFFIX COMMIT MACHINE COMMAND
"""
import datetime
import glob
import json
import os
import sys


def estimate(row, what, digits):
    value = row["loss_points" if what == "loss" else "nll_diff"]
    return "%.*f [%.*f, %.*f]" % (digits, value, digits, row[what + "_low"], digits, row[what + "_high"])


def verdict(row):
    if not row["worse"]:
        return ""
    return "worse, p = %.1g" % min(row["loss_p"], row["nll_p"], row["by_task"].get("text", row)["nll_p"])


def text_cells(row):
    text = row["by_task"].get("text")
    return "%s | %.5f" % (estimate(text, "nll", 5), text["kl"]) if text else " | "


def variants_table(run):
    base = run["baseline"]
    lines = ["| variant | answers | full | here | loss, points [95%] | lost / won | NLL more, nats a token [95%] | KL "
             "| running text: NLL more [95%] | KL | reading x | blocks | |", "|" + "---|" * 13]
    for v in run["variants"]:
        density = "%.1f%%" % (100 * v["block_density"]) if 0 < v["block_density"] < 1 else ""
        lines.append("| %s | %d | %.1f | %.1f | %s | %d / %d | %s | %.5f | %s | %.2f | %s | %s |" % (
            v["spec"], v["questions"], v["score_full"], v["score"], estimate(v, "loss", 2), v["lost"], v["won"],
            estimate(v, "nll", 5), v["kl"], text_cells(v), v["prefill_s"] / base["prefill_s"], density, verdict(v)))
    return lines


def tasks_table(run):
    """Loss by task, a column a variant; * = worse, () = does not count."""
    names = [name for name in run["variants"][0]["by_task"] if name != "text"]
    lines = ["| loss by task | answers | full | %s |" % " | ".join(v["spec"] for v in run["variants"]),
             "|---|---|---|%s" % ("---|" * len(run["variants"]))]
    for name in names:
        rows = [v["by_task"][name] for v in run["variants"]]
        cells = ["%.1f%s" % (r["loss_points"], "\\*" if r["worse"] else "") for r in rows]
        if not rows[0]["counts"]:
            cells = ["(%s)" % c for c in cells]
        lines.append("| %s | %d | %.1f | %s |" % (name, rows[0]["questions"], rows[0]["score_full"], " | ".join(cells)))
    return lines


def distance_table(run):
    """Loss by segments between the facts, over the tasks that count, one length a run."""
    length = next(iter(run["variants"][0]["by_length"]))
    tables = [v["by_length"][length]["by_segment_distance"] for v in run["variants"]]
    lines = ["| loss by segments between | answers | %s |" % " | ".join(v["spec"] for v in run["variants"]),
             "|---|---|%s" % ("---|" * len(run["variants"]))]
    for name in tables[0]:
        cells = ["%.1f%s" % (t[name]["loss_points"], "\\*" if t[name]["worse"] else "") for t in tables]
        lines.append("| %s | %d | %s |" % (name, tables[0][name]["questions"], " | ".join(cells)))
    return lines


def main():
    work, out, commit, machine, command = sys.argv[1:6]
    runs = {os.path.basename(p)[:-5]: json.load(open(p)) for p in sorted(glob.glob(work + "/*.json"))}
    today = datetime.date.today().isoformat()
    lines = ["# Quality beside full attention, %s" % today, "",
             "spark-66m; %s; commit %s; command `%s`." % (machine, commit, command),
             "The same questions on both sides; 95% intervals from a bootstrap over documents; worse (\\*): p < 0.01 that "
             "chance alone",
             "made score or NLL this bad. A task counts where full attention scores at least 60; the others are in "
             "brackets.",
             "\"reading x\": time to read the documents, full attention = 1, on a machine that did other things too."]
    for name, run in runs.items():
        n = run["baseline"]["document_reads"]
        lines += ["", "## %s: %d documents, full attention read them in %.1f s each" % (
            name, n, run["baseline"]["prefill_s"] / n), ""]
        lines += variants_table(run) + [""] + tasks_table(run) + [""] + distance_table(run)
    with open(out + ".md", "w") as f:
        f.write("\n".join(lines) + "\n")
    with open(out + ".json", "w") as f:
        json.dump({"date": today, "machine": machine, "commit": commit, "command": command, "runs": runs}, f,
                  separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
