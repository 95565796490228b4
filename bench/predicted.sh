#!/bin/sh
# Predicted against measured: rates of this machine first, then prompts of 2K to 64K tokens under three policies, each
# with the first token that the cost model expected and the memory that was planned. JSON and a table in bench/results;
# exit 1 where a time is off by more than 15% or memory went above the plan. About 8 minutes on 2 quiet cores.
# usage: bench/predicted.sh BUILD [--synthetic SHAPE --density 10%] [more options of bench prefill, which win]
set -eu
build=${1:?usage: predicted.sh BUILD [OPTIONS of bench prefill]}
shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=$build/bench
mkdir -p "$work"
case " $* " in *" --synthetic "*) model= ;; *) model=$build/models/spark-66m ;; esac
machine=$(nvidia-smi -L 2>/dev/null | head -n 1 | sed 's/ (UUID.*//; s/^GPU 0: //' || true)
[ -n "$machine" ] || machine=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
name=predicted-$(date +%Y-%m-%d)-$(echo "$machine" | tr -cs 'A-Za-z0-9' '-' | sed 's/-*$//')
# shellcheck disable=SC2086 # no model: no argument
"$build/firstlight" bench prefill $model --tokens 2k,8k,32k,64k --also window-anchors --also blocks --runs 3 --predict \
    --json -q "$@" >"$work/predicted.json"
python3 "$root/bench/predicted_table.py" "$work/predicted.json" "$root/bench/results/$name" "$machine" \
    "$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo "no checkout")" "$*"
