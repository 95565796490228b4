#!/bin/sh
# Kernels of the CUDA backends beside their peers, on this machine's GPU, in one run of about a minute and a half: OUT
# gets kernels-DATE-DEVICE.json with everything measured and .md with the table; what is kept goes to bench/results.
# usage: gpu_kernels.sh BUILD OUT
# A part that fails leaves its rows out and is named in the table. Peers need python3 with torch.
set -u
build=${1:?usage: gpu_kernels.sh BUILD OUT}
out=${2:?usage: gpu_kernels.sh BUILD OUT}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$out/parts
mkdir -p "$work" || exit 1
rm -f "$work"/*

# part NAME LIMIT_S COMMAND...: standard output to parts/NAME, errors to parts/NAME.err if there are any
part() {
    part_name=$1
    limit_s=$2
    shift 2
    echo "$part_name: $*" >>"$work/commands"
    begin_s=$(date +%s)
    timeout "$limit_s" "$@" >"$work/$part_name" 2>"$work/$part_name.err" ||
        echo "exit status $?" >>"$work/$part_name.err"
    [ -s "$work/$part_name.err" ] || rm -f "$work/$part_name.err"
    echo "$part_name: $(($(date +%s) - begin_s)) s"
}

part cuda.json 120 "$build/firstlight" bench kernels --backend cuda --json
# Other backends on the GPU differ in their matrix products, in scores of blocks, and some order codes.
differing=dense,experts,moe_permute,blocks-mean,blocks-score,blocks-select
for backend in $("$build/firstlight" version --json | grep -o '"cuda-[a-z0-9-]*"' | tr -d '"' | sort -u); do
    part "$backend.json" 90 "$build/firstlight" bench kernels --backend "$backend" --only $differing --json
done
# What ran before decides some percent of a product at the power limit: three rounds of fp8's, ours and the peers' in
# turn. The first of ours is above, the last of the peers' the whole run.
for round in 2 3; do
    part peers-$round.jsonl 60 python3 "$root/bench/peers_gpu.py" dense
    part cuda-w8a8-$round.json 60 "$build/firstlight" bench kernels --backend cuda-w8a8 --only dense --json
done
part peers.jsonl 150 python3 "$root/bench/peers_gpu.py"
nvidia-smi -L >"$work/device" 2>/dev/null || echo "no GPU was found" >"$work/device"
nvidia-smi --query-gpu=driver_version,clocks.sm,clocks.max.sm,power.limit --format=csv >"$work/driver" 2>/dev/null ||
    : >"$work/driver"
git -C "$root" rev-parse --short HEAD >"$work/commit" 2>/dev/null || echo "not in a checkout" >"$work/commit"
python3 "$root/script/gpu_kernels_table.py" "$work" "$out"
