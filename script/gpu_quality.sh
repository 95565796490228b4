#!/bin/sh
# What policies, KV formats and position methods cost at lengths a CPU takes too long for: spark-66m on a GPU, in pairs.
# usage: gpu_quality.sh BUILD OUT [tasks=LIST] [NAME=DOCUMENTS...], NAME one of the runs below; 0 leaves it out. A run
# that is stopped goes on from OUT/NAME.jsonl.
set -u
build=${1:?usage: gpu_quality.sh BUILD OUT [tasks=LIST] [NAME=DOCUMENTS...]}
out=${2:?usage: gpu_quality.sh BUILD OUT [tasks=LIST] [NAME=DOCUMENTS...]}
shift 2
mkdir -p "$out"
spark32k=10 spark128k=10 spark512k=10 fp8_128k=10 fp8_512k=10 rope128k=2 rope256k=2 rope512k=2 tasks=spark,text
for argument in "$@"; do
    case "$argument" in
    spark32k=[0-9]* | spark128k=[0-9]* | spark512k=[0-9]* | fp8_128k=[0-9]* | fp8_512k=[0-9]* | \
        rope128k=[0-9]* | rope256k=[0-9]* | rope512k=[0-9]*)
        value=${argument#*=}
        case "$value" in *[!0-9]*) echo "gpu_quality.sh: $argument: expected a number" >&2; exit 2 ;; esac
        eval "${argument%%=*}=$value" ;;
    tasks=*) tasks=${argument#*=} ;;
    *) echo "gpu_quality.sh: unknown '$argument'" >&2; exit 2 ;;
    esac
done

# quality NAME DOCUMENTS LENGTH DIFFICULTY BASELINE VARIANT...
quality() {
    name=$1 documents=$2 length=$3 difficulty=$4 baseline=$5
    shift 5
    [ "$documents" -gt 0 ] || return 0
    for variant in "$@"; do set -- "$@" --variant "$variant"; shift; done
    "$build/firstlight" eval build/models/spark-66m --backend cuda --tasks "$tasks" --lengths "$length" \
        --n "$documents" --seed 1 --difficulty "$difficulty" --compare "$baseline" "$@" --json \
        --resume "$out/$name.jsonl" --heat-map "$out/$name.svg" >"$out/$name.json.part" &&
        mv "$out/$name.json.part" "$out/$name.json"
}

yarn="rope=yarn rope-factor=4"
quality spark32k "$spark32k" 32k 1 full window-anchors blocks kv=int4
quality spark128k "$spark128k" 128k 1 full window-anchors "window-anchors tail=sparse" blocks kv=int4
quality spark512k "$spark512k" 512k 0.5 "$yarn" "policy=window-anchors $yarn" "policy=blocks $yarn"
fp8=backend=cuda-w8a8
quality fp8_128k "$fp8_128k" 128k 1 full "$fp8" "$fp8 kv=int4" "$fp8 kv=int4 policy=blocks" \
    "$fp8 kv=int4 policy=window-anchors"
quality fp8_512k "$fp8_512k" 512k 0.5 "$yarn" "$fp8 $yarn" "$fp8 kv=int4 policy=blocks $yarn" \
    "$fp8 kv=int4 policy=window-anchors $yarn"
for length in 128k 256k 512k; do
    eval "documents=\$rope$length"
    quality "rope$length" "$documents" "$length" 0.5 "$yarn" "rope=two-path rope-factor=4" "rope=ntk rope-factor=4" \
        "force-positions=1"
done
table=$out/quality-gpu-$(date +%Y-%m-%d)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo "no checkout")
python3 "$(dirname "$0")/eval_table.py" "$out" "$table" "$commit" "$(nvidia-smi -L | head -n 1 | sed 's/ (UUID.*//')" \
    "gpu_quality.sh $*" && cat "$table.md"
