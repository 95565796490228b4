#!/bin/sh
# Downloads and builds llama.cpp under build/peer (about 5 minutes on 2 cores). Prints the path of the driver.
# usage: bench/peer/setup.sh [PEER_DIR]     default: build/peer in the repository
# Needs npm (only to fetch the package), git, cmake, ninja, gcc and g++.
set -eu

package=node-llama-cpp@3.22.1   # carries llama.cpp v0.5.0 as a git bundle
here=$(cd "$(dirname "$0")" && pwd)
peer=${1:-$here/../../build/peer}
mkdir -p "$peer"
peer=$(cd "$peer" && pwd)
src=$peer/llama.cpp
out=$peer/llama-build

for tool in npm git cmake ninja cc c++; do
    command -v "$tool" >/dev/null || { echo "setup.sh: $tool is missing" >&2; exit 69; }
done

if [ ! -f "$src/include/llama.h" ]; then
    rm -rf "$src" "$peer/package"
    (cd "$peer" && npm pack --silent "$package" >/dev/null && tar xzf node-llama-cpp-*.tgz package/llama/gitRelease.bundle)
    git clone -q "$peer/package/llama/gitRelease.bundle" "$src" 2>"$peer/clone.log"
    rm -rf "$peer/package" "$peer"/node-llama-cpp-*.tgz
fi

# GGML_NATIVE compiles for this very CPU (-march=native), AVX512-BF16 included where it exists. llamafile's
# matrix kernels, llama.cpp's fastest for BF16, are on by its own default.
if [ ! -f "$out/src/libllama.a" ]; then
    cmake -G Ninja -S "$src" -B "$out" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF >"$peer/configure.log" 2>&1
    ninja -C "$out" llama >"$peer/build.log" 2>&1 || { tail -20 "$peer/build.log" >&2; exit 70; }
fi

cc -std=c17 -O2 -Wall -Wextra -I "$src/include" -I "$src/ggml/include" "$here/peer_bench.c" -o "$peer/peer_bench" \
    "$out/src/libllama.a" "$out/ggml/src/libggml.a" "$out/ggml/src/libggml-cpu.a" "$out/ggml/src/libggml-base.a" \
    -lstdc++ -fopenmp -lpthread -ldl -lm
echo "$peer/peer_bench"
