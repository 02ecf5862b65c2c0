#!/usr/bin/env bash
# Plants mistakes in the library, one at a time, and says which of them the test suites notice (tests/mutation): before
# a release, on two cores within the hour. Ends with an error when fewer than 95 % are noticed. A name, or the beginning
# of one, tries these alone.
#
#   scripts/mutation.sh                      all of them, on all cores (REWIND_MUTATION_JOBS: how many at a time)
#   scripts/mutation.sh record/leaves ops/   those of a file, those of a folder
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

mutation_build=$REWIND_BUILD-mutation

rewind_install || exit
python3 "$rewind_root/tests/mutation/campaign.py" make "$mutation_build" || exit
if ! [ -f "$mutation_build/build/build.ninja" ]; then
    echo "Configuring $mutation_build/build"
    # Assertions are on, as where CI runs the suites under the sanitizers, and a CUDA kernel ends the process where it
    # reads or writes off its alignment, as a GPU would. One set of kernels of the CPU is enough, and that for AVX-512
    # for the suites that run what is compiled for a matrix unit, which needs it.
    aligned='-fsanitize=alignment -fsanitize-undefined-trap-on-error'
    meson setup "$mutation_build/build" "$mutation_build/tree" -Dbuildtype=debugoptimized -Db_ndebug=false \
        -Dc_args="-include $mutation_build/tree/mutant.h -g0 -w" \
        -Dcpp_args="-include $mutation_build/tree/mutant.h -g0 -w $aligned" "${rewind_own_isa[@]}" -Dcpu_isa=v3,v4 \
        -Dcuda=disabled -Dptx=disabled -Dbench=false -Dexamples=false >"$mutation_build/log" 2>&1 ||
        { cat "$mutation_build/log"; exit 1; }
fi
mapfile -t targets < <(python3 "$rewind_root/tests/mutation/campaign.py" targets)
rewind_ninja "$mutation_build/build" "${targets[@]}" || exit
exec python3 "$rewind_root/tests/mutation/campaign.py" run "$mutation_build/build" "$@"
