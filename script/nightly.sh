#!/bin/sh
# What takes too long for every change: a long soak, all tests under both compilers, the full sanitizer runs, ten
# minutes of each fuzz target.
set -u
cd "$(dirname "$0")/.." || exit 2
. script/gates.sh

clang_build() {
    cmake -G Ninja -B build-clang -DCMAKE_C_COMPILER=clang-14 -DFL_UNPACK_MODEL=OFF >/dev/null &&
        cmake --build build-clang
}

gate "make test" make test
gate "make check" make check
gate "100,000 merged batches" env FL_TEST_MERGES=100000 build/test_soak
gate "build with clang" clang_build
gate "tests of the clang build" script/test.sh build-clang
gate "make san" make san
gate "make fuzz" make fuzz SECONDS=600
gates_end
