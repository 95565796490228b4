#!/bin/sh
# Installs the Debian packages that are missing: setup.sh GROUP..., groups build, check, san and e2e. As root through
# apt, otherwise it prints the one line to run and fails. Does nothing, quickly, when all are there.
set -eu

packages_of() {
    case "$1" in
    build) echo gcc libc6-dev cmake ninja-build pkg-config libdnnl-dev libjansson-dev libssl-dev libcmocka-dev \
        libzstd-dev libxxhash-dev libmicrohttpd-dev ;;
    check) echo clang-14 clang-tidy-14 clang-format-14 git ;;
    san) echo clang-14 libclang-rt-14-dev llvm-14 ;;
    e2e) echo curl chromium ;;
    *) echo "setup.sh: no group '$1'" >&2; exit 2 ;;
    esac
}

wanted=
for group in "$@"; do wanted="$wanted $(packages_of "$group")"; done

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "setup: not a Debian system; needed are the equivalents of:$wanted" >&2
    exit 0
fi

missing=
for package in $wanted; do
    case " $missing " in *" $package "*) continue ;; esac
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "setup: these packages are missing; run this, then try again:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y$missing" >&2
    exit 1
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # the list is words
apt-get install -y -qq --no-install-recommends $missing </dev/null
