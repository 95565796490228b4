#!/bin/sh
# Sanitizers: san.sh [quick]. The tests, the quick op checks among them, and one pass over every fuzz corpus under
# AddressSanitizer + UBSan; the tests of pool and queues under ThreadSanitizer. `quick` leaves out the tests that
# CMakeLists.txt labels slow.
set -u
cd "$(dirname "$0")/.." || exit 2
. script/gates.sh
quick=${1:-}

sanitized_build() { # FOLDER SANITIZERS TARGET...
    folder=$1 sanitizers=$2
    shift 2
    cmake -G Ninja -B "$folder" -DCMAKE_C_COMPILER=clang-14 -DFL_SANITIZE="$sanitizers" -DFL_UNPACK_MODEL=OFF \
        >/dev/null &&
        cmake --build "$folder" --target "$@"
}

address() {
    export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1
    export UBSAN_OPTIONS=print_stacktrace=1
    gate "build with address and undefined" sanitized_build build-san address,undefined all
    if [ "$quick" = quick ]; then
        gate "tests" script/test.sh build-san -LE slow
    else
        gate "tests" script/test.sh build-san
    fi
    for target in build-san/fuzz_*; do
        [ -x "$target" ] || continue
        name=$(basename "$target")
        gate "corpus of $name" "$target" -runs=0 "test/fuzz/corpus/${name#fuzz_}"
    done
}

threads() {
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
    gate "build with thread" sanitized_build build-tsan thread thread_tests
    gate "thread tests" script/test.sh build-tsan -L threads
}

address
threads
gates_end
