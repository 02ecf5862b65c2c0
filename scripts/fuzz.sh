#!/usr/bin/env bash
# Runs the fuzzers of tests/fuzz, each for that many seconds, concurrently: policies, weight files and the public API,
# under AddressSanitizer and UndefinedBehaviorSanitizer. Each starts with the inputs of tests/fuzz/corpus and with those
# that earlier runs found in the build folder. An input that causes a failure is kept there and named; the exit status
# is then not 0. Exits with status 77 if no Clang with libFuzzer is available.
#
#   scripts/fuzz.sh SECONDS [TARGET...]                 0: only builds them
#   REWIND_FUZZ_RUNS=N scripts/fuzz.sh 36000 policy     at most so many inputs
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

fuzz_build=$REWIND_BUILD-fuzz
fuzz_targets=(policy weights api)

# A Clang from version 16 on with libFuzzer: older ones do not support _Float16 in kernels.
find_clang() {
    local version
    for version in 19 18 17 16; do
        command -v "clang-$version" >/dev/null || continue
        echo 'int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { return 0; }' |
            "clang-$version" -x c - -fsanitize=fuzzer,address -o /dev/null 2>/dev/null &&
            echo "clang-$version" && return
    done
    return 1
}

# fuzz TARGET SECONDS: prints the last output, and each input that caused a failure
fuzz() {
    local target=$1 seconds=$2 found=$fuzz_build/found/$1 status
    mkdir -p "$found/corpus"
    (cd "$found" && ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
        REWIND_THREADS=1 "$fuzz_build/tests/fuzz_$target" -max_total_time="$seconds" -runs="${REWIND_FUZZ_RUNS:--1}" \
        -max_len=512 -len_control=0 -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 corpus \
        "$rewind_root/tests/fuzz/corpus/$target") >"$found/log" 2>&1
    status=$?
    grep -aE '^(==|SUMMARY|stat::number_of|.*Test unit written|    #.*/(tests/fuzz|runtime|ops)/)' "$found/log" |
        tail -20 | sed "s/^/$target: /"
    return $status
}

main() {
    local seconds=$1 clang options target pids=() failed=0
    shift
    [ $# -eq 0 ] || fuzz_targets=("$@")
    rewind_packages+=(clang-16 libclang-rt-16-dev)
    find_clang >/dev/null || rewind_install || true
    clang=$(find_clang) || { echo "no Clang from 16 on with libFuzzer"; exit 77; }
    # Clang does not define GCC's macro for AddressSanitizer: without it allocations would be guarded twice. NULL + 0,
    # which would be reported for every empty array, is allowed in C2y, and no compiler miscompiles it.
    options="-fsanitize=fuzzer-no-link -fno-sanitize-recover=undefined -fno-sanitize=pointer-overflow"
    options+=" -fsanitize-coverage-ignorelist=$rewind_root/tests/fuzz/kernels.ignore"
    CC=$clang rewind_configure "$fuzz_build" -Dfuzzers=true -Db_sanitize=address,undefined -Db_lundef=false \
        -Dbuildtype=debug -Doptimization=1 "${rewind_own_isa[@]}" -Dcuda=disabled -Dcudasim=disabled -Dptx=disabled \
        -Dbench=disabled -Dexamples=disabled "-Dc_args=$options -D__SANITIZE_ADDRESS__ -g1" || exit 1
    rewind_ninja "$fuzz_build" "${fuzz_targets[@]/#/tests/fuzz_}" || exit 1
    [ "$seconds" -gt 0 ] || exit 0
    for target in "${fuzz_targets[@]}"; do
        fuzz "$target" "$seconds" &
        pids+=($!)
    done
    for target in "${pids[@]}"; do wait "$target" || failed=1; done
    exit $failed
}

case ${1:-} in
'' | *[!0-9]*) echo "usage: scripts/fuzz.sh SECONDS [policy] [weights] [api]" >&2; exit 2 ;;
esac
main "$@"
