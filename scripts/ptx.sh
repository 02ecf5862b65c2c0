#!/usr/bin/env bash
# Runs the compiled PTX of all kernels in the suites of the simulated device (tests/ptx/README.md): each launch by the
# simulator's compilation and by the PTX. Prints how many kernels were translated and run, and which were not, with the
# reason; a kernel without approximations whose bytes differ is a failure. Takes about fifteen minutes of CPU time.
#
#   scripts/ptx.sh             the suites of ops and one of whole steps
#   scripts/ptx.sh faults      mistakes in attention's PTX, one at a time: which ones does its suite detect?
#   scripts/ptx.sh SUITE...    these, for example accuracy reduce
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

suites=("$@")
[ $# -gt 0 ] || suites=(accuracy offsets optimizer random products reduce residual extremes digest golden
                         adjacent_gradients split_steps)
rewind_install && rewind_build "$REWIND_BUILD" || exit 1
[ -s "$REWIND_BUILD/tests/ptx/ptx_suites.txt" ] || { cat "$REWIND_BUILD/tests/ptx/ptx_missing.txt"; exit 77; }
if [ "${1:-}" = faults ]; then
    ninja -C "$REWIND_BUILD" tests/ptx/ptx_faulty || exit 1
    exec python3 "$rewind_root/tests/ptx/faults.py" "$REWIND_BUILD/tests/ptx/ptx_faulty" "${@:2}"
fi
ninja -C "$REWIND_BUILD" "${suites[@]/#/tests/ptx/ptx_all_}" || exit 1

log=$(mktemp) failed=0
trap 'rm -f "$log"' EXIT
export REWIND_TEST_DEVICE=cuda CUDASIM_PTX_LOG=$log REWIND_FUZZ_PROGRAMS=15 REWIND_FUZZ_MAX=12
for s in "${suites[@]}"; do
    # With PTX only, the suite's own bounds cover the differences due to approximations
    for how in twin replace; do
        if CUDASIM_PTX=$how "$REWIND_BUILD/tests/ptx/ptx_all_$s" --tap 2>&1 </dev/null | grep -A8 '^not ok'; then
            echo "FAILED  $s ($how)"
            failed=1
        else
            echo "ok      $s ($how)"
        fi
    done
done
python3 "$rewind_root/tests/ptx/comparison_summary.py" "$log" "$REWIND_BUILD"/tests/ptx/*.cc || failed=1
exit $failed
