#!/bin/sh
# Do the op checks notice faults? mutate_ops.sh [-n EACH] [-s SEED] [-o REPORT] [OP...]
# Makes EACH (3) seeded one-token faults (tools/mutate.c says which) in every file of every op that computes results,
# builds each with AddressSanitizer + UBSan, as `make san` does, and runs `firstlight opcheck --quick --only OP`. A
# failure, a crash or a minute of processor time without an end is "caught". A fault that does not compile is replaced
# by another. Fails when less than 95% are caught; faults that change no result (script/mutate_equivalent.txt) do not
# count. Works in a copy, build-mutate/.
set -eu
cd "$(dirname "$0")/.."
each=3 seed=1 report=build-mutate/report.md
while getopts n:s:o: option; do
    case $option in
    n) each=$OPTARG ;;
    s) seed=$OPTARG ;;
    o) report=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- $(sed -n 's/^X(\(.*\))$/\1/p' src/op/oplist.inc)

work=build-mutate
rm -rf $work
mkdir -p $work/tree $work/source
git ls-files --cached --others --exclude-standard -- CMakeLists.txt cmake include share src tools test script example |
    grep -v '^test/golden\|/corpus/' | tar -cf - -T - | tar -xf - -C $work/source
cp -r $work/source/. $work/tree
cmake -G Ninja -S $work/tree -B $work/build -DCMAKE_C_COMPILER=clang-14 -DFL_SANITIZE=address,undefined \
    -DFL_UNPACK_MODEL=OFF >/dev/null
cmake --build $work/build --target firstlight_cli mutate >$work/build.log
firstlight=$work/build/firstlight

# The fault numbers 0..$1-1 in an order that seed and file name $2 decide.
shuffled() {
    awk -v n="$1" -v seed=$(($(echo "$seed $2" | cksum | cut -d' ' -f1) % 1000000)) 'BEGIN {
        srand(seed)
        for (i = 0; i < n; i++) order[i] = i
        for (i = n - 1; i > 0; i--) {
            j = int(rand() * (i + 1))
            kept = order[i]; order[i] = order[j]; order[j] = kept
        }
        for (i = 0; i < n; i++) print order[i]
    }'
}

try_faults() { # OP FILE: a line "OP FILE LINE CHANGE VERDICT TEXT", parted by tabs, for every fault
    made=0
    for fault in $(shuffled "$($work/build/mutate "$work/source/$2")" "$2"); do
        [ "$made" -lt "$each" ] || break
        $work/build/mutate "$work/source/$2" "$fault" >"$work/tree/$2" 2>$work/what
        if cmake --build $work/build --target firstlight_cli >$work/build.log 2>&1; then
            made=$((made + 1))
            status=0
            (ulimit -t 60 && exec timeout 300 $firstlight opcheck --quick --only "$1") >$work/run.log 2>&1 </dev/null ||
                status=$?
            verdict=SURVIVED
            [ $status = 0 ] || verdict="caught, exit $status"
            line=$(cut -f1 $work/what)
            printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$(cat $work/what)" "$verdict" \
                "$(sed -n "${line}s/^ *//p" "$work/source/$2")"
        fi
    done
    cp "$work/source/$2" "$work/tree/$2"
}

: >$work/results
for op in "$@"; do
    if ! $firstlight opcheck --quick --only "$op" >$work/run.log 2>&1; then
        cat $work/run.log
        echo "mutate_ops.sh: opcheck of $op fails without a fault" >&2
        exit 1
    fi
    for file in $(ls src/op/"$op"/*.c | grep -v "/$op\.c$\|_check\.c$"); do
        try_faults "$op" "$file" | tee -a $work/results
    done
    cmake --build $work/build --target firstlight_cli >$work/build.log
done

awk -F '\t' -v how="-n $each -s $seed" -v day="$(date -u +%Y-%m-%d)" \
    -v machine="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" -f script/mutate_report.awk \
    script/mutate_equivalent.txt $work/results >"$report" || { cat "$report"; exit 1; }
cat "$report"
