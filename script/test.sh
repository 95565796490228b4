#!/bin/sh
# Runs all tests of a build folder: test.sh BUILD [ctest options]. Prints what fails and ends with 'N passed, N failed',
# counting cmocka's cases; a test program that is no cmocka program counts as one. A program that crashes fails all
# cases it did not get to.
set -u
build=${1:?usage: test.sh BUILD [ctest options]}
shift
out=$build/test.out
log=$build/Testing/Temporary/LastTest.log
ctest --test-dir "$build" -j "$(nproc)" --output-on-failure "$@" </dev/null | tee "$out"
[ -f "$log" ] || { echo "test.sh: no $log" >&2; echo "0 passed, 1 failed"; exit 1; }
awk '
    function close_program() {
        if (name == "") return
        if (name in verdict && verdict[name] == "Skipped") {
            n_skipped++
        } else {
            n_ok += cases > 0 ? ok : !(name in verdict)
            n_skipped += skipped
            if (name in verdict) n_failed += cases > ok + skipped ? cases - ok - skipped : 1
        }
        name = ""
        cases = ok = skipped = 0
    }
    # ctest itself: a line a test, *** and a word unless it passed.
    FILENAME != log_name {
        if ($0 ~ /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: .*\*\*\*/) {
            word = $0
            sub(/.*\*\*\*/, "", word)
            sub(/[^A-Za-z].*/, "", word)
            match($0, /#[0-9]+: [^ ]+/)
            split(substr($0, RSTART, RLENGTH), part, " ")
            verdict[part[2]] = word
        }
        next
    }
    # Its log: what every program printed.
    /^[0-9]+\/[0-9]+ Testing: /        { close_program(); name = $3 }
    /^\[==========\] Running [0-9]+ /  { cases += $3 }
    /^\[       OK \] /                 { ok++ }
    /^\[  SKIPPED \] [^0-9]/           { skipped++ }
    END {
        close_program()
        if (n_ok + n_failed == 0) n_failed = 1
        printf "%d passed, %d failed", n_ok, n_failed
        if (n_skipped > 0) printf ", %d skipped", n_skipped
        printf "\n"
        exit n_failed > 0
    }' log_name="$log" "$out" "$log"
