#!/bin/sh
# make eval: what each policy, tail and KV format costs in quality on spark-66m, for docs/QUALITY.md. Results go to
# bench/results as JSON and tables, heat maps to BUILD/eval. Every document's results are kept in BUILD/eval too, so
# that a run that was stopped goes on, and a larger run uses a smaller one's.
# usage: eval_quality.sh BUILD [short|long|tiny] [NAME=DOCUMENTS...]
#   short: about 15 quiet minutes on 2 cores; long: some hours; tiny: one document each, to see that it runs.
#   NAME is one of the runs below: spark4k, ruler4k, other4k, kv4k, spark32k, spark128k, rope128k, rope256k, rope512k;
#   0 leaves it out.
set -eu
build=${1:?usage: eval_quality.sh BUILD [short|long|tiny] [NAME=DOCUMENTS...]}
shift
size=short
case "${1:-}" in short | long | tiny) size=$1; shift ;; esac
root=$(cd "$(dirname "$0")/.." && pwd)
model=$build/models/spark-66m
work=$build/eval
mkdir -p "$work"
rm -f "$work"/*.json

# Documents a task family for each run.
case $size in
tiny) spark4k=1 ruler4k=1 other4k=1 kv4k=0 spark32k=1 spark128k=0 rope128k=0 rope256k=0 rope512k=0 ;;
short) spark4k=8 ruler4k=2 other4k=2 kv4k=0 spark32k=2 spark128k=0 rope128k=0 rope256k=0 rope512k=0 ;;
long) spark4k=60 ruler4k=12 other4k=24 kv4k=100 spark32k=24 spark128k=4 rope128k=3 rope256k=3 rope512k=2 ;;
esac
for argument in "$@"; do
    case "$argument" in
    spark4k=[0-9]* | ruler4k=[0-9]* | other4k=[0-9]* | kv4k=[0-9]* | spark32k=[0-9]* | \
        spark128k=[0-9]* | rope128k=[0-9]* | rope256k=[0-9]* | rope512k=[0-9]*)
        name=${argument%%=*} value=${argument#*=}
        case "$value" in *[!0-9]*) echo "eval_quality.sh: $argument: expected a number" >&2; exit 2 ;; esac
        eval "$name=$value" ;;
    *) echo "eval_quality.sh: unknown '$argument'" >&2; exit 2 ;;
    esac
done

# quality NAME DOCUMENTS LENGTH TASKS DIFFICULTY VARIANT...
quality() {
    name=$1 documents=$2 length=$3 tasks=$4 difficulty=$5
    shift 5
    [ "$documents" -gt 0 ] || return 0
    echo "$name: $documents documents for each of $tasks" >&2
    for variant in "$@"; do set -- "$@" --variant "$variant"; shift; done
    "$build/firstlight" eval "$model" --tasks "$tasks" --lengths "$length" --n "$documents" --seed 1 \
        --compare "$baseline" \
        --difficulty "$difficulty" "$@" --json --resume "$work/$name.jsonl" --heat-map "$work/$name.svg" \
        >"$work/$name.json.part"
    mv "$work/$name.json.part" "$work/$name.json"
}

all() { # NAME DOCUMENTS TASKS DIFFICULTY: the whole matrix at 4K
    quality "$1" "$2" 4k "$3" "$4" window-anchors "window-anchors tail=sparse" blocks segments:4 random-blocks \
        kv=fp8 kv=int4 kv=int4-naive kv=int2-naive
}

# Positions beyond the trained 131,072: the methods at their least cost, a narrow pattern with the dense tail.
rope() { # NAME DOCUMENTS LENGTH
    narrow="policy=window-anchors:window=4k,stride=2k"
    baseline="$narrow rope=yarn rope-factor=4"
    quality "$1" "$2" "$3" spark,text 0.5 "$narrow rope=two-path rope-factor=4" "$narrow rope=ntk rope-factor=4" \
        "$narrow force-positions=1"
    baseline=full
}

baseline=full
# spark's own phrasings at their hardest, since it answers the easier ones always; RULER's as RULER defines them.
started=$(date +%s)
all spark4k "$spark4k" spark,text 1
all ruler4k "$ruler4k" 'ruler_*' 0.5
all other4k "$other4k" segments,json_kv,repository 0.5
quality kv4k "$kv4k" 4k spark 1 kv=int4 kv=int4-naive
quality spark32k "$spark32k" 32k spark,text 1 window-anchors "window-anchors tail=sparse" blocks \
    random-blocks
quality spark128k "$spark128k" 128k spark,text 1 window-anchors "window-anchors tail=sparse" blocks
rope rope128k "$rope128k" 128k
rope rope256k "$rope256k" 256k
rope rope512k "$rope512k" 512k

machine=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
name=quality-$(date +%Y-%m-%d)-$(printf %s "$machine" | tr -cs 'A-Za-z0-9' '-' | sed 's/-*$//')
python3 "$root/script/eval_table.py" "$work" "$root/bench/results/$name" "$(git -C "$root" rev-parse --short HEAD)" \
    "$machine, $(nproc) CPUs" "eval_quality.sh $size, $((($(date +%s) - started + 59) / 60)) minutes"
cat "$root/bench/results/$name.md"
