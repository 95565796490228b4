#!/bin/sh
# Fuzzes every parser of foreign bytes: fuzz.sh SECONDS [NAME...], one target a CPU. Targets are
# test/fuzz/fuzz_NAME.c, seeds lie in test/fuzz/corpus/NAME/; what is found grows in build-san/corpus/NAME/, a crash is
# kept in build-san/crash/NAME-*.
set -u
cd "$(dirname "$0")/.." || exit 2
. script/gates.sh
seconds=${1:?usage: fuzz.sh SECONDS [NAME...]}
shift
[ $# -gt 0 ] || set -- $(ls test/fuzz/fuzz_*.c | sed 's|.*/fuzz_\(.*\)\.c|\1|')

build() {
    cmake -G Ninja -B build-san -DCMAKE_C_COMPILER=clang-14 -DFL_SANITIZE=address,undefined -DFL_UNPACK_MODEL=OFF \
        >/dev/null && cmake --build build-san --target fuzz_targets
}

fuzz() {
    mkdir -p "build-san/corpus/$1" build-san/crash
    "build-san/fuzz_$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="build-san/crash/$1-" "build-san/corpus/$1" "test/fuzz/corpus/$1"
}

fuzz_all() {
    n_running=0
    for name in "$@"; do
        { fuzz "$name" >"build-san/fuzz-$name.log" 2>&1; echo "fuzz status $?" >>"build-san/fuzz-$name.log"; } &
        n_running=$((n_running + 1))
        [ $((n_running % $(nproc))) != 0 ] || wait
    done
    wait
}

# What it ran when it is well, all it said when not.
report() {
    if grep -q '^fuzz status 0$' "build-san/fuzz-$1.log"; then grep '^stat::' "build-san/fuzz-$1.log"
    else
        cat "build-san/fuzz-$1.log"
        return 1
    fi
}

gate "build" build
fuzz_all "$@"
for name in "$@"; do gate "fuzz $name, $seconds s" report "$name"; done
gates_end
