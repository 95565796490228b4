#!/bin/sh
# Everything that needs a GPU, in one call: gpu.sh BUILD OUT [PART...]. Prints a short table; logs and results go to
# OUT, and what is kept of them to bench/results. Parts, in order; without names all of them:
#   check      opcheck on every CUDA backend, all cases
#   golden     logits of spark-66m against transformers', on every backend
#   engine     tests of the engine and of the server's worker with the GPU under them; one makes it lose its device
#   sanitize   compute-sanitizer over opcheck: memcheck and synccheck on all ops, racecheck where no bulk copies are
#   repeat     opcheck --repeat: ops run again and again beside disturbing kernels, all bits compared
#   graph      one step op by op and as a CUDA graph, bit by bit, by shape and KV format; decode both ways
#   kernels    single ops beside their peers (script/gpu_kernels.sh)
#   prefill    spark-66m at 32K and 512K tokens by policy
#   quality    spark-66m at 128K and 512K tokens by policy (script/gpu_quality.sh)
#   ladder     Moonlight's size, synthetic, at 512K tokens, stage by stage (script/gpu_ladder.sh)
set -u
build=${1:?usage: gpu.sh BUILD OUT [PART...]}
out=${2:?usage: gpu.sh BUILD OUT [PART...]}
shift 2
[ $# -gt 0 ] || set -- check golden engine sanitize repeat graph kernels prefill quality ladder
cd "$(dirname "$0")/.." || exit 2
mkdir -p "$out" || exit 1
program=$build/firstlight
model=build/models/spark-66m
backends=$("$program" version --json | grep -o '"cuda[a-z0-9-]*"' | tr -d '"' | sort -u)
[ -n "$backends" ] || { echo "gpu.sh: $program finds no GPU it can use: see '$program version'" >&2; exit 1; }
ops=$(sed -n 's/^X(\(.*\))$/\1/p' src/op/oplist.inc)
# Ops whose kernels copy through ordinary loads only: racecheck does not follow the bulk copy engine. Nor is sample
# here, of whose clusters of blocks the tool needs seconds a row, or ends with an internal error.
plain_ops="embed rmsnorm rope kv_write kv_read block_mean block_select attn_merge moe_route moe_permute
moe_combine"
w8a8_ops="matmul block_score" # that w8a8 computes otherwise

# Tests that ask what `auto` is, or every backend, and need nothing of a CPU's.
engine_tests="test_engine test_engine_score test_engine_tokens test_policies test_constrained test_disk_tier test_models
test_load test_forward test_worker_link"

# each COMMAND-PREFIX NAME OPS OPTIONS...: opcheck an op at a time, all at once; a line for each that fails, and a sum
each() {
    prefix=$1 name=$2 these=$3
    shift 3
    for op in $these; do
        (
            # shellcheck disable=SC2086 # the prefix is a command and its options
            timeout 300 $prefix "$program" opcheck --only "$op" "$@" >"$out/$name.$op.part" 2>&1
            echo "exit status $?" >>"$out/$name.$op.part"
        ) &
    done
    wait
    good=0 all=0
    for op in $these; do
        all=$((all + 1))
        if grep -q '^exit status 0$' "$out/$name.$op.part"; then good=$((good + 1))
        else echo "  $name $op: $(grep -m 1 -E 'FAIL|ERROR|Error|Invalid|exit' "$out/$name.$op.part")"; fi
        { echo "== $op"; cat "$out/$name.$op.part"; } >>"$out/$name.log"
        rm -f "$out/$name.$op.part"
    done
    echo "$name: $good of $all ops good"
}

part_check() { for b in $backends; do each "" "opcheck-$b" "$ops" --backend "$b"; done; }

part_golden() {
    timeout 300 "$build/test_golden" >"$out/golden.log" 2>&1
    echo "golden: exit status $?"
    grep -E 'in all|FAILED|ERROR' "$out/golden.log"
}

part_engine() {
    good=0 all=0
    for test in $engine_tests; do
        all=$((all + 1))
        if timeout 200 "$build/$test" >"$out/$test.log" 2>&1; then good=$((good + 1))
        else echo "  $test: $(grep -m 1 -E 'ERROR' "$out/$test.log")"; fi
    done
    echo "engine: $good of $all test programs passed"
}

part_sanitize() {
    clean="--error-exitcode 9"
    each "compute-sanitizer --tool memcheck $clean" memcheck "$ops" --quick --backend cuda-deterministic
    each "compute-sanitizer --tool memcheck $clean" memcheck-w8a8 "$w8a8_ops" --quick --backend cuda-w8a8-deterministic
    each "compute-sanitizer --tool synccheck $clean" synccheck "$ops" --quick --backend cuda-deterministic
    each "compute-sanitizer --tool racecheck $clean" racecheck "$plain_ops" --quick --backend cuda-deterministic
}

part_repeat() {
    each "" repeat "$ops" --quick --backend cuda-deterministic --repeat 40
    each "" repeat-w8a8 "$w8a8_ops" --quick --backend cuda-w8a8-deterministic --repeat 40
}

part_graph() {
    good=0 all=0
    for shape in 1:100 1:5000 3:8000 17:2100 64:1500 41@8000 192+20 1984+41 512+20@1024 192+20/16:2000 1984+41/5:3000 \
        41@8000/8:9000 blocks/1152+41 blocks/1152+41@1280/7:5000 window-anchors/1984+41@2048/33:5000; do
        policy=full
        case $shape in [a-z]*) policy=${shape%%/*} shape=${shape#*/} ;; esac
        for kv in bf16 fp8 int4; do
            all=$((all + 1))
            echo "== $policy $shape $kv" >>"$out/graph.log"
            if timeout 100 "$program" bench graph $model --backend cuda --policy $policy --shape "$shape" \
                --kv-cache-dtype $kv --runs 50 >>"$out/graph.log" 2>&1; then good=$((good + 1))
            else echo "  graph $policy $shape $kv: $(tail -1 "$out/graph.log")"; fi
        done
    done
    echo "graph: $good of $all shapes give the same bits"
    for source in $model "--synthetic moonlight-16b-a3b"; do
        for how in "" --enforce-eager; do
            # shellcheck disable=SC2086 # options are words
            timeout 200 "$program" bench decode $source --backend cuda --depth 8k --tokens 256 $how \
                >>"$out/decode.log" 2>&1
            echo "decode $source $how: $(grep -h 'decode behind' "$out/decode.log" | tail -1)"
        done
    done
}

part_kernels() { script/gpu_kernels.sh "$build" "$out"; }

part_prefill() {
    for tokens in 32k 524160; do
        extend=
        [ $tokens = 32k ] || extend="--rope yarn --rope-factor 4"
        # shellcheck disable=SC2086 # options are words
        timeout 200 "$program" bench prefill $model --backend cuda --tokens $tokens --runs 3 $extend \
            --also window-anchors --also blocks >"$out/prefill-$tokens.txt" 2>&1
        echo "prefill $tokens: exit status $?"
        grep -E 'prefill of|times as fast' "$out/prefill-$tokens.txt"
    done
}

part_quality() { script/gpu_quality.sh "$build" "$out/quality"; }

part_ladder() { script/gpu_ladder.sh "$build" "$out/ladder"; }

for part in "$@"; do
    begin_s=$(date +%s)
    "part_$part" || echo "$part: failed"
    echo "-- $part: $(($(date +%s) - begin_s)) s"
done
