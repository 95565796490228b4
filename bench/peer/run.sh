#!/bin/sh
# Times llama.cpp on a checkpoint folder; see README.md beside this file.
# usage: bench/peer/run.sh MODEL_DIR OUT.json [sweep.py options]
set -eu
[ $# -ge 2 ] || { echo "usage: bench/peer/run.sh MODEL_DIR OUT.json [--threads N] [--runs N] [--wait S] [--quick]" >&2; exit 64; }
model=$1 out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
driver=$("$here/setup.sh")
gguf=$(dirname "$driver")/model-bf16.gguf
python3 "$here/to_gguf.py" "$model" "$gguf" >&2
# The same model must be timed: refuse to time one that disagrees with the golden values.
if [ -f "$root/test/golden/chat.safetensors" ]; then
    python3 "$here/check.py" "$driver" "$gguf" "$root/test/golden" chat code >&2
else
    echo "run.sh: no golden values in test/golden: the converted model is not checked" >&2
fi
python3 "$here/sweep.py" "$driver" "$gguf" "$out" "$@"
