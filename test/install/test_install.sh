#!/bin/sh
# The installed tree is whole: test_install.sh BUILD installs it into BUILD/stage, moves it, builds the example against
# it with pkg-config alone, and asks the installed program for its version.
set -eu
build=${1:?usage: test_install.sh BUILD}
rm -rf "$build/stage" "$build/moved"
DESTDIR=$build/stage cmake --install "$build" --prefix /opt/firstlight >/dev/null
mv "$build/stage" "$build/moved"
pc=$(find "$build/moved" -name firstlight.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # flags are words
gcc -std=c17 -Wall -Wextra -Wpedantic -Werror -o "$build/moved/example" example/*.c \
    $(pkg-config --cflags --libs firstlight)
status=0
"$build/moved/example" >/dev/null 2>&1 || status=$?
[ "$status" = 2 ] || { echo "the example without arguments: exit $status, expected 2"; exit 1; }
"$build/moved/opt/firstlight/bin/firstlight" version | grep -q "$(pkg-config --modversion firstlight)"
[ -s "$build/moved/opt/firstlight/share/man/man1/firstlight.1" ]
grep -q "^ExecStart=/opt/firstlight/bin/firstlight " "$build/moved/opt/firstlight/lib/systemd/system/firstlight.service"
rm -rf "$build/moved"
