#!/bin/sh
# clang-tidy over every C source of the build, two at a time; clang 14 cannot read the headers of CUDA 13.
# A source whose last run was clean is skipped until it, any
# header or .clang-tidy is newer than that run.
set -u
build=${1:?usage: check_tidy.sh BUILD}
[ -f "$build/compile_commands.json" ] || { echo "no $build/compile_commands.json"; exit 1; }
stamps=$build/tidy
mkdir -p "$stamps"
newest=$(find .clang-tidy include src test tools -name '*.h' -o -name '*.inc' -o -name .clang-tidy |
    xargs ls -t | head -1)
grep -o '"file": "[^"]*\.c"' "$build/compile_commands.json" | cut -d'"' -f4 | sort -u | while read -r source; do
    stamp=$stamps/$(echo "${source#"$PWD"/}" | tr / _).ok
    if [ -f "$stamp" ] && [ "$stamp" -nt "$source" ] && [ "$stamp" -nt "$newest" ]; then continue; fi
    printf '%s\n%s\n' "$source" "$stamp"
done | xargs -r -n 2 -P "$(nproc)" sh -c '
    if out=$(clang-tidy-14 -p "$0" --quiet --warnings-as-errors="*" "$1" 2>&1); then
        : >"$2"
    else
        echo "$out" | grep -E ": (warning|error): " || echo "$1: $out"
        exit 1
    fi' "$build"
