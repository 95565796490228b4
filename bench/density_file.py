#!/usr/bin/env python3
"""Keeps of a report of `firstlight bench prefill MODEL --policy blocks --json` (standard input) what --density-from reads,
with where it comes from.

usage: density_file.py MACHINE COMMAND <report >bench/density/MODEL-LENGTH.json
"""
import datetime
import json
import sys


def main():
    machine, command = sys.argv[1:3]
    report = json.load(sys.stdin)
    rows = [json.dumps([round(share, 5) for share in row]) for row in report["density_by_head"]]
    head = {"date": datetime.date.today().isoformat(), "machine": machine, "command": command,
            "backend": report["backend"], "policy": report["policy"], "length": report["tokens"],
            "layers": report["layers"], "heads": report["heads"], "density": round(report["block_density"], 5)}
    lines = [" %s: %s" % (json.dumps(key), json.dumps(value)) for key, value in head.items()]
    lines.append(' "density_by_head": [\n  %s]' % ",\n  ".join(rows))
    print("{\n" + ",\n".join(lines) + "\n}")


main()
