#!/bin/sh
# make compare-tokenizer: compares the tokenizer's ids with Hugging Face's, token by token, over the mixed text of
# test/text/mixed_text.h and any text files given: compare_tokenizer.sh BUILD [FILE...]. Needs node and, the first time,
# the npm registry. With FL_GOLDEN=1 it also writes the golden file that the tests read where npm is not reachable.
set -eu
build=${1:?usage: compare_tokenizer.sh BUILD [FILE...]}
shift
work=$build/compare_tokenizer
tool=$build/tokenizer_tool
npm=$work/npm
deepseek=$work/deepseek-v3.json
bundled=models/spark-66m/tokenizer.json
mkdir -p "$npm"
command -v node >/dev/null 2>&1 || { echo "compare_tokenizer: node is missing" >&2; exit 1; }
[ -d "$npm/node_modules/@anush008/tokenizers" ] ||
    npm install --silent --no-audit --no-fund --prefix "$npm" @anush008/tokenizers@0.6.0

compare() { # JSON TEXTS
    node test/text/compare_hf.mjs "$npm/node_modules" "$1" "$2" "$work/ids"
    "$tool" compare "$1" "$2" "$work/ids"
}

"$tool" unpack test/data/deepseek-v3.tokenpack "$deepseek" 2>/dev/null
"$tool" mixed "$deepseek" test/data/mixed_text.zst "$work/texts"
compare "$deepseek" "$work/texts"
[ -z "${FL_GOLDEN:-}" ] || "$tool" golden "$work/texts" "$work/ids" test/golden/tokenizer_deepseek_v3.bin
compare "$bundled" "$work/texts"
for file in "$@"; do
    "$tool" chunks "$file" "$work/texts"
    compare "$deepseek" "$work/texts"
    compare "$bundled" "$work/texts"
done
