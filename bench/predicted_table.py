#!/usr/bin/env python3
"""Writes OUT.json and OUT.md of what `bench prefill --predict --json` found, and prints the table. Exit 1: a prediction is
off by more than 15%, or memory went above the plan.

usage: predicted_table.py PREDICTED_JSON OUT_WITHOUT_SUFFIX MACHINE COMMIT OPTIONS
"""
import datetime
import json
import sys

MOST_OFF = 0.15
MIB = 1024 * 1024


def main():
    path, out, machine, commit, options = sys.argv[1:6]
    with open(path) as f:
        result = json.load(f)
    lines = ["| tokens | attention | blocks listed | predicted | measured | off | planned | used |",
             "|---|---|---|---|---|---|---|---|"]
    bad = []
    for row in sorted(result["rows"], key=lambda r: r["tokens"]):
        off = row["predicted_s"] / row["ttft_s"] - 1
        policy = row["policy"].split(":")[0]
        density = f"{100 * row['block_density']:.1f}%" if row["block_density"] < 1 else ""
        lines.append(f"| {row['tokens']:,} | {policy} | {density} | {row['predicted_s']:.3f} s | {row['ttft_s']:.3f} s | "
                     f"{100 * off:+.1f}% | {row['plan_bytes'] / MIB:,.0f} MiB | {row['used_bytes'] / MIB:,.0f} MiB |")
        if abs(off) > MOST_OFF or row["used_bytes"] > row["plan_bytes"]:
            bad.append(f"{row['tokens']} tokens, {policy}")
    head = f"{machine}, {result['backend']}, {result['threads']} threads, median of {result['runs']} runs, {commit}"
    date = datetime.date.today().isoformat()
    with open(out + ".json", "w") as f:
        json.dump({"date": date, "machine": machine, "commit": commit, "options": options, "result": result}, f, indent=1)
        f.write("\n")
    with open(out + ".md", "w") as f:
        f.write(f"# Predicted against measured, {date}\n\n{head}\n\n" + "\n".join(lines) + "\n")
    print(head + "\n" + "\n".join(lines))
    for what in bad:
        print(f"not within {100 * MOST_OFF:.0f}%, or above the plan: {what}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
