#!/usr/bin/env bash
# Plants mistakes in the library, one at a time, and reports which of them the test suites detect (tests/mutation):
# before a release; takes up to an hour on two cores. Exits with an error if fewer than 95 % are detected. A name, or a
# prefix of one, tries only these.
#
#   scripts/mutation.sh                      all of them, on all cores (REWIND_MUTATION_JOBS: how many at a time)
#   scripts/mutation.sh record/leaves ops/   those of a file, those of a folder
#   scripts/mutation.sh --compile            compiles the mutated library and programs, and tries none
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

mutation_build=$REWIND_BUILD-mutation

rewind_install || exit
python3 "$rewind_root/tests/mutation/campaign.py" make "$mutation_build" || exit
if ! [ -f "$mutation_build/build/build.ninja" ]; then
    echo "Configuring $mutation_build/build"
    # Assertions are enabled, as where CI runs the suites under the sanitizers, and a CUDA kernel ends the process on an
    # unaligned access, as a GPU would. One set of CPU kernels suffices, plus that for AVX-512 for the suites of code
    # for a matrix unit, which needs it.
    aligned='-fsanitize=alignment -fsanitize-undefined-trap-on-error'
    meson setup "$mutation_build/build" "$mutation_build/tree" -Dbuildtype=debugoptimized -Db_ndebug=false \
        -Dc_args="-include $mutation_build/tree/mutant.h -g0 -w" \
        -Dcpp_args="-include $mutation_build/tree/mutant.h -g0 -w $aligned" "${rewind_own_isa[@]}" -Dcpu_isa=v3,v4 \
        -Dcuda=disabled -Dptx=disabled -Dbench=enabled -Dexamples=enabled >"$mutation_build/log" 2>&1 ||
        { cat "$mutation_build/log"; exit 1; }
fi
if [ "${1:-}" = --compile ]; then
    rewind_ninja "$mutation_build/build" librewind.a tests/librewind_sim.so examples/train_gpt examples/train_text \
        bench/recompute_sweep
    exit
fi
mapfile -t targets < <(python3 "$rewind_root/tests/mutation/campaign.py" targets "$@")
rewind_ninja "$mutation_build/build" "${targets[@]}" || exit
exec python3 "$rewind_root/tests/mutation/campaign.py" run "$mutation_build/build" "$@"
