# Sourced by the scripts that run several gates: counts what passed and failed, goes on after a failure, and ends with
# 'N passed, N failed'. A command whose last line has that form counts with its numbers, any other as one.
n_passed=0
n_failed=0

# gate NAME COMMAND...
gate() {
    gate_name=$1
    shift
    gate_out=$(mktemp)
    gate_begin=$(date +%s)
    printf '\n== %s\n' "$gate_name"
    { "$@" </dev/null; echo "gate status $?"; } 2>&1 | tee "$gate_out" | grep -v '^gate status '
    gate_status=$(sed -n 's/^gate status //p' "$gate_out" | tail -1)
    gate_sum=$(grep -v '^gate status ' "$gate_out" | tail -1 | grep -E '^[0-9]+ passed, [0-9]+ failed' || true)
    rm -f "$gate_out"
    if [ -n "$gate_sum" ]; then
        # shellcheck disable=SC2086 # split on purpose
        set -- $gate_sum
        n_passed=$((n_passed + $1))
        n_failed=$((n_failed + $3))
        [ "$gate_status" = 0 ] || [ "$3" != 0 ] || n_failed=$((n_failed + 1))
    elif [ "$gate_status" = 0 ]; then
        n_passed=$((n_passed + 1))
    else
        n_failed=$((n_failed + 1))
        echo "FAIL  $gate_name (exit $gate_status)"
    fi
    echo "== $gate_name: $(($(date +%s) - gate_begin)) s"
}

# Prints the sum as the last line; the script's exit status is 1 when anything failed.
gates_end() {
    echo
    echo "$n_passed passed, $n_failed failed"
    [ "$n_failed" = 0 ]
}
