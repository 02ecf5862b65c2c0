#!/usr/bin/env bash
# Builds the library without oneDNN, in build-without-onednn/, and runs the suites that depend on the CPU's kernels:
# once with the kernels that this processor selects, and those of products again with each older set. The last line is
# "N passed, N failed, N skipped".
#
#   scripts/without_onednn.sh [SUITE...]     only these
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

dir=$REWIND_BUILD-without-onednn
of_products='conv|expert_matmul_exact_integers|golden|matmul_exact_integers|moe|row_independence'

fail() { echo "0 passed, 1 failed, 0 skipped"; exit 1; }

# again ISA: the named suites of products, by older kernels
again() {
    local name
    for name in "${older[@]}"; do
        REWIND_ISA=$1 "$dir/tests/$name" --tap </dev/null >"$dir/isa.log" 2>&1 ||
            { echo "FAILED  $name, REWIND_ISA=$1"; grep -v '^ok ' "$dir/isa.log"; return 1; }
    done
}

rewind_install && rewind_configure "$dir" -Donednn=disabled -Dcuda=disabled -Dptx=disabled -Dcudasim=disabled \
    -Dbench=disabled -Dexamples=disabled || fail
if [ $# -eq 0 ]; then
    readarray -t all < <(rewind_cpu_suites "$dir" by_threads identity models_vs_pytorch)
    set -- "${all[@]}"
fi
rewind_ninja "$dir" "${@/#/tests/}" || fail
readarray -t older < <(printf '%s\n' "$@" | grep -Ex "$of_products")
again base && again v3 || fail
rewind_run_suites "$dir" "$@"
