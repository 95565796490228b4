#!/bin/sh
# Real clients from npm, curl and a browser (Chromium) against a real server with the bundled model:
# e2e.sh BUILD. Needs Node.js 20 or later with npm, and curl; packages come from the npm registry as package-lock.json
# pins them. Ends with a line 'N passed, N failed'.
set -eu
build=$(cd "${1:?usage: e2e.sh BUILD}" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root/test/e2e"
node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' 2>/dev/null ||
    { echo "e2e: Node.js 20 or later is needed (found $(node --version 2>/dev/null || echo none))" >&2; exit 2; }
work=$build/e2e
mkdir -p "$work"
cp package.json package-lock.json ./*.mjs "$work"
cd "$work"
npm ci --no-audit --no-fund --silent
status=0
FL_BUILD=$build FL_ROOT=$root node --test --test-reporter=spec ./*.test.mjs >e2e.log 2>&1 || status=$?
grep -E '^ *(✔|✖)|Error' e2e.log || true
passed=$(sed -n 's/^ℹ pass //p' e2e.log) failed=$(sed -n 's/^ℹ fail //p' e2e.log)
[ "$status" = 0 ] || tail -60 e2e.log >&2
echo "${passed:-0} passed, ${failed:-1} failed"
exit "$status"
