#!/bin/sh
# The first token of a 512K-token prompt at Moonlight's size (random weights) on one GPU, stage by stage: from full
# attention in bf16 to everything on. Loss is not measured here: the column says where it is.
# usage: gpu_ladder.sh BUILD OUT [TOKENS]
set -u
build=${1:?usage: gpu_ladder.sh BUILD OUT [TOKENS]}
out=${2:?usage: gpu_ladder.sh BUILD OUT [TOKENS]}
tokens=${3:-524288}
mkdir -p "$out"
rm -f "$out"/row-*.json

# row NUMBER STAGE SHAPE BACKEND KV POLICY [OPTIONS...]
row() {
    number=$1 stage=$2 shape=$3 backend=$4 kv=$5 policy=$6
    shift 6
    if timeout 200 "$build/firstlight" bench prefill --synthetic "$shape" --backend "$backend" --tokens "$tokens" \
        --span 512k --kv-cache-dtype "$kv" --policy "$policy" --runs 1 --json "$@" \
        >"$out/row-$number.part" 2>"$out/row-$number.err"; then
        printf '{"stage": "%s", "report": %s}\n' "$stage" "$(cat "$out/row-$number.part")" >"$out/row-$number.json"
        rm -f "$out/row-$number.part" "$out/row-$number.err"
    else
        echo "row $number ($stage) failed: $(tail -n 1 "$out/row-$number.err")" >&2
    fi
}

window=window-anchors:window=16k,stride=4k
blocks=blocks:block=128,window=512,sinks=128
spark=$(dirname "$0")/../bench/density/spark-66m-128k.json
row 01 "full attention, bf16 weights and KV" moonlight-16b-a3b cuda bf16 full
row 02 "blocks, 8%" moonlight-16b-a3b cuda bf16 $blocks --density-from "$spark" --density 8%
row 03 "FP8 weights (W8A8)" moonlight-16b-a3b-fp8 cuda-w8a8 bf16 $blocks --density-from "$spark" --density 8%
row 04 "int4 KV" moonlight-16b-a3b-fp8 cuda-w8a8 int4 $blocks --density-from "$spark" --density 8%
row 05 "blocks, 4%" moonlight-16b-a3b-fp8 cuda-w8a8 int4 $blocks --density-from "$spark" --density 4%
row 06 "blocks, 2%" moonlight-16b-a3b-fp8 cuda-w8a8 int4 $blocks --density-from "$spark" --density 2%
row 07 "blocks, 1%" moonlight-16b-a3b-fp8 cuda-w8a8 int4 $blocks --density-from "$spark" --density 1%
row 08 "window of 16K and 128 anchors in place of blocks" moonlight-16b-a3b-fp8 cuda-w8a8 int4 $window
row 09 "blocks, 2%, all layers and heads alike" moonlight-16b-a3b-fp8 cuda-w8a8 int4 $blocks --density 2%
python3 "$(dirname "$0")/gpu_ladder_table.py" "$out" "$(nvidia-smi -L | head -n 1 | sed 's/ (UUID.*//')" \
    "$(git rev-parse --short HEAD 2>/dev/null || echo "no checkout")"
