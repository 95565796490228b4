#!/bin/sh
# The mechanical rules of CONTRIBUTING.md: check.sh BUILD [CHECK...]. Every failing check prints FILE:LINE and what is
# wrong; the exit status is 1 when any failed. Without names all checks run.
set -u
build=${1:?usage: check.sh BUILD [CHECK...]}
shift
here=$(dirname "$0")
cd "$here/.." || exit 2
[ $# -gt 0 ] || set -- layers size names text programs format weight tidy

# Tracked and new files, without what .gitignore names. Outside a git checkout: all but build folders.
files() {
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files --cached --others --exclude-standard -- "$@" | sort -u | while read -r f; do
            [ -f "$f" ] && echo "$f"
        done
    else
        find . -path './build*' -prune -o -type f -print | sed 's|^\./||' | sort
    fi
}

# Drops the files that script/check_exempt.txt (CHECK FILE REASON) frees from the check $1.
not_exempt() { awk -v check="$1" 'NR == FNR { if ($1 == check) free[$2] = 1; next } !($0 in free)' \
    script/check_exempt.txt -; }
sources() { files src include tools test example | grep -E '\.(c|h|cu|cuh)$'; }

check_layers() { sources | xargs awk -f script/check_layers.awk; }

check_size() { sources | not_exempt size | xargs awk -f script/check_size.awk; }

check_names() {
    sources | awk -F/ '{
        if ($NF in seen) { printf "%s: the name %s is taken by %s\n", $0, $NF, seen[$NF]; bad = 1 }
        seen[$NF] = $0
    } END { exit bad }'
}

# Trailing blanks, tabs, unfinished work in every file that people edit; columns in sources.
check_text() {
    files | grep -vE '^(models|test/golden|test/data|test/fuzz/corpus|bench)/|^LICENSE' |
        grep -vE '\.(png|svg|txt|json|safetensors|zst)$' | not_exempt text | xargs awk '
        FNR == 1 { n_files++ }
        /[ \t]$/ { printf "%s:%d: blank at the end of the line\n", FILENAME, FNR; bad = 1 }
        /\t/ && FILENAME !~ /(^|\/)Makefile$|\.(tsv|gitmodules)$/ { printf "%s:%d: tab\n", FILENAME, FNR; bad = 1 }
        length($0) > 120 && FILENAME ~ /\.(c|h|cu|cuh|inc|sh|awk)$/ {
            printf "%s:%d: %d columns, at most 120\n", FILENAME, FNR, length($0)
            bad = 1
        }
        /(^|[^A-Za-z])(TO[D]O|FIX[M]E|XX[X])([^A-Za-z]|$)/ {
            printf "%s:%d: unfinished work belongs in an issue\n", FILENAME, FNR
            bad = 1
        }
        END { exit bad || n_files == 0 }'
}

# A file whose first line says what runs it can be run as the documents say.
check_programs() {
    files | grep -E '\.(sh|py|mjs|awk)$' | xargs awk 'FNR == 1 && /^#!/ { print FILENAME }' | {
        bad=0
        while read -r file; do [ -x "$file" ] || { echo "$file: not executable"; bad=1; }; done
        exit $bad
    }
}

check_format() {
    sources | not_exempt format | xargs -n 16 clang-format-14 --dry-run -Werror 2>&1 |
        awk '/: error: / { sub(/: error.*/, ": clang-format -i would change it"); print; bad = 1 } END { exit bad }'
}

# What a clone costs: the packed model and all else, in MiB.
check_weight() {
    files | xargs -d '\n' wc -c | awk '
        $2 == "total" && NF == 2 { next }
        $2 ~ /^models\// { model += $1; next }
        { rest += $1 }
        END {
            printf "tracked: packed model %.2f MiB (limit 60), everything else %.2f MiB (limit 9)\n", model / 2^20,
                rest / 2^20
            exit model > 60 * 2^20 || rest > 9 * 2^20
        }'
}

check_tidy() { script/check_tidy.sh "$build"; }

failed=0
for name in "$@"; do
    if output=$("check_$name"); then
        echo "ok    $name"
        [ "$name" != weight ] || echo "      $output"
    else
        echo "FAIL  $name"
        echo "$output"
        failed=1
    fi
done
exit $failed
