#!/bin/sh
# make bench: firstlight and llama.cpp on the same model, machine and run; results in bench/results as JSON and a table.
# firstlight is timed before and after llama.cpp, so a machine that changed meanwhile shows. About 25 minutes on 2 cores.
# usage: bench/speed.sh BUILD [--runs N] [--wait S]   (how llama.cpp is run: see bench/peer/sweep.py)
set -eu
build=${1:?usage: speed.sh BUILD [--runs N] [--wait S]}
shift
root=$(cd "$(dirname "$0")/.." && pwd)
model=$build/models/spark-66m
work=$build/bench
mkdir -p "$work"
name=speed-$(date +%Y-%m-%d)-$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1 | tr -cs 'A-Za-z0-9' '-' | sed 's/-*$//')

firstlight() { # PASS
    "$build/firstlight" bench prefill "$model" --tokens 2048,8192 --runs 3 --json -q >"$work/prefill-$1.json"
    for depth in 2048 8192; do
        "$build/firstlight" bench decode "$model" --depth $depth --tokens 128 --runs 3 --json -q >"$work/decode-$depth-$1.json"
    done
    "$build/firstlight" bench prefill "$model" --tokens 32768 --runs 1 --json -q >"$work/long-$1.json"
}

rm -f "$work"/*.json
firstlight before
"$root/bench/peer/run.sh" "$model" "$work/peer.jsonl" "$@"
firstlight after
python3 "$root/bench/speed_table.py" "$work" "$root/bench/results/$name" "$(git -C "$root" rev-parse --short HEAD)"
cat "$root/bench/results/$name.md"
