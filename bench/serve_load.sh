#!/bin/sh
# What the server has to hold under load: serve_load.sh BUILD [PART...], parts, with their quiet minutes at full scale:
#   capacity 6.5, mixed 22                  half of the seconds of prefill in long prompts; mixed needs capacity's result
#   capacity-tokens 6.5, mixed-tokens 22    half of the prompt tokens in long prompts; the same
#   equal 1, overload 4, streams 1, stalled 4, disconnects 5
# All, without one named. A part may use the result of an earlier call. Node.js 20 or later. Results: BUILD/bench/serve/PART.json;
# bench/results/serve-DATE-MACHINE.jsonl and .md take them up, beside what they have of other parts.
# DURATION=600 is the seconds of each of mixed's two runs, SERVE_LOAD_SEED=1 the seed.
# SERVE_LOAD_SCALE=0.02 (default 1) scales durations, counts and the long prompts: to try it, not to cite it.
set -eu
build=$(cd "${1:?usage: serve_load.sh BUILD [PART...]}" && pwd)
shift
node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' 2>/dev/null ||
    { echo "serve_load: Node.js 20 or later is needed (found $(node --version 2>/dev/null || echo none))" >&2; exit 2; }
ulimit -n "$(ulimit -Hn)"
exec node "$(dirname "$0")/serve_load.mjs" "$build" "$@"
