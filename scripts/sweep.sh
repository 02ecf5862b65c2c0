#!/usr/bin/env bash
# Sets everything up on a fresh Debian, then runs bench/recompute_sweep; arguments go to it (--help lists them).
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
rewind_setup bench/recompute_sweep
exec "$REWIND_BUILD/bench/recompute_sweep" "$@"
