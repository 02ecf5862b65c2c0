#!/usr/bin/env bash
# Sets everything up on a fresh Debian, then runs bench/recompute_sweep; arguments go to it (--help lists them). The
# program is that of build/ where there is one; else it is built in build-sweep/, for this machine alone.
set -eu
# The program's usage, without building it first.
usage() {
    sed -n '/^static const char usage/,/;$/{/^ *"/{s/^ *"//;s/";*$//;s/\\n$//;s/\\n/\n/g;s/\\"/"/g;p}}' \
        "$(dirname "${BASH_SOURCE[0]}")/../bench/sweep/options.c"
}
for arg in "$@"; do
    [ "$arg" = --help ] && { usage; exit 0; }
done
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
if ! [ -f "$REWIND_BUILD/build.ninja" ]; then
    REWIND_BUILD=$rewind_root/build-sweep
    mapfile -t own < <(rewind_own_build)
    rewind_install && rewind_configure "$REWIND_BUILD" "${own[@]}"
fi
rewind_setup bench/recompute_sweep
exec "$REWIND_BUILD/bench/recompute_sweep" "$@"
