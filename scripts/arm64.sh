#!/usr/bin/env bash
# Builds the library for ARM64 with Debian's cross compiler, and runs suites under qemu-user. The last line is
# "N passed, N failed, N skipped" over every single test, the one before it the time.
#
#   scripts/arm64.sh             the suites below, and the comparison of bytes with x86-64
#   scripts/arm64.sh SUITE...    these suites
#
# The compiler, qemu and apt-get come from this system, which needs no packages of another architecture: libraries for
# ARM64 are fetched into a folder (rewind_sysroot). An emulated program takes 10 to 30 times as long as a native one,
# so suites are those of kernels, bits, threads, errors and files; planning is the same code on every processor.
#
# Exits with status 77, and says why, where the tools are missing and cannot be installed.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

build=$REWIND_BUILD-arm64
sysroot=$REWIND_BUILD-arm64-sysroot
limit=${REWIND_TEST_LIMIT:-900}

# The oldest processor, which has NEON alone; and one with SVE, for which oneDNN has code.
oldest=cortex-a72
newest=max

# Suites for the oldest processor, slow ones first: kernels; bits; threads; errors; files.
suites=(identity gradcheck residual conv attention matmul_exact_integers moe float8 batchnorm ssd_scan reduce draws
    faults verify_single_op record_failure_atomicity
    golden pointwise pool losses slice_pad transposes indexes booleans moe_routing quantized stochastic
    conversions edge_values optimizers adamw_and_clipping updates scaler
    conformance_bytes conformance_determinism conformance_replay conformance_failures_and_effects philox
    float_modes caller_modes mode_by_fenv digest
    team team_portable workers work_stealing threads_per_op cross_thread_reads
    errors contracts counts leaves operands param_gradient_reads rollback effects custom_grad guarded aligned
    safetensors hostile resume_files resume_failures)
# And those for the other one, which computes convolutions by oneDNN.
other_suites=(golden conv)

# Tests that count as skipped: qemu 7 ends a process that starts a thread after fork(), if its parent had several; some
# take too long under it: starts of threads that fail, and parts of a table of which others run.
left_out='*fork*|workers/*openmp*|float_modes/workers_forget*'
left_out+='|workers/@(that_cannot_be_started_change|steps_start|are_started)*'
left_out+='|identity/float32_@(without_regions|two_deep|three_deep)|identity/budgets_in_@(float*)'

# rewind_sysroot FOLDER: fetches the libraries for ARM64, and unpacks them there. apt-get has its own state in it, so
# that the system's stays what it is.
rewind_sysroot() {
    local dir=$1 apt=$1.apt codename deb
    [ -d "$dir" ] && return 0
    rm -rf "$apt" "$dir.part"
    mkdir -p "$apt"/{lists/partial,archives/partial} "$dir.part"
    : >"$apt/status"
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $codename main" \
        >"$apt/sources.list"
    cat >"$apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Acquire::Languages "none";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
CONF
    APT_CONFIG=$apt/apt.conf apt-get update -qq &&
        APT_CONFIG=$apt/apt.conf apt-get install -qq -y --download-only --no-install-recommends libc6-dev \
            libstdc++-12-dev libdnnl-dev libsleef-dev libxxhash-dev libcjson-dev librandom123-dev >/dev/null || return
    for deb in "$apt"/archives/*.deb; do dpkg-deb -x "$deb" "$dir.part" || return; done
    mv "$dir.part" "$dir" && rm -rf "$apt"
}

# run CPU NAME: runs a suite under qemu, prints what came of it, and leaves its counts in a file. One that crashes,
# hangs or runs no test counts as a failure.
run() {
    local out=$results/$1.$2 began=$SECONDS status ok bad skips
    REWIND_GRADCHECK_DIRECTIONS=1 timeout -k 5 "$limit" qemu-aarch64 -cpu "$1" -L "$sysroot" "$build/tests/$2" \
        --filter "!($left_out)" >"$out" 2>"$out.err" </dev/null
    status=$?
    skips=$(grep -c '^ok .*# SKIP' "$out")
    ok=$(($(grep -c '^ok ' "$out") - skips))
    bad=$(grep -c '^not ok ' "$out")
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] || [ $((ok + bad + skips)) -eq 0 ]; then bad=$((bad + 1)); fi
    echo "$ok $bad $skips" >"$out.counts"
    if [ "$bad" -eq 0 ]; then
        echo "ok      $2 on $1 ($ok tests$([ "$skips" -eq 0 ] || echo ", $skips skipped"), $((SECONDS - began)) s)"
    else
        echo "FAILED  $2 on $1 ($bad of $((ok + bad)) tests, exit status $status)"
        { grep '^not ok' "$out"; cat "$out.err"; } | sed 's/^/    /' | head -60
    fi
}

# compare CPU: whether the bytes that all processors share are those of the record, which x86-64 has, too
compare() {
    local out=$results/$1.bytes
    if qemu-aarch64 -cpu "$1" -L "$sysroot" "$build/tests/platform_bytes" >"$out" 2>"$out.err" &&
        diff "$out" "$rewind_root/tests/whole/platform_bytes.txt" >>"$out.err"; then
        echo "1 0 0" >"$out.counts"
        echo "ok      bytes as on x86-64, on $1 ($(wc -l <"$out") digests)"
    else
        echo "0 1 0" >"$out.counts"
        echo "FAILED  bytes as on x86-64, on $1"
        sed 's/^/    /' "$out.err" | head -60
    fi
}

# queue FUNCTION CPU [NAME...]: calls it for each of these, or once, as many at a time as there are cores
queue() {
    local function=$1 cpu=$2 name
    shift 2
    for name in "${@:-}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
        "$function" "$cpu" $name &
    done
}

main() {
    local programs=() name
    passed=0 failed=0 skipped=0
    rewind_install g++-aarch64-linux-gnu qemu-user >/dev/null 2>&1 || true
    for name in aarch64-linux-gnu-g++ qemu-aarch64 apt-get dpkg-deb; do
        command -v "$name" >/dev/null || { echo "no $name"; exit 77; }
    done
    rewind_sysroot "$sysroot" || { echo "the packages for ARM64 cannot be fetched"; exit 77; }
    results=$(mktemp -d)
    trap 'rm -rf "$results"' EXIT
    printf "[constants]\nsysroot = '%s'\n" "$sysroot" >"$sysroot/sysroot.ini"
    rewind_configure "$build" --cross-file "$rewind_root/scripts/cross/aarch64.ini" \
        --cross-file "$sysroot/sysroot.ini" -Dtsan_suites=true -Dcuda=disabled -Dptx=disabled -Dcudasim=disabled \
        -Dbench=disabled -Dexamples=disabled || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
    [ $# -eq 0 ] || { suites=("$@") other_suites=(); }
    for name in "${suites[@]}" platform_bytes; do programs+=("tests/$name"); done
    rewind_ninja "$build" "${programs[@]}" || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
    local built=$SECONDS ok bad skips
    queue run "$oldest" "${suites[@]}"
    [ ${#other_suites[@]} -eq 0 ] || queue run "$newest" "${other_suites[@]}"
    queue compare "$oldest"
    queue compare "$newest"
    wait
    while read -r ok bad skips; do
        passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skips))
    done < <(cat "$results"/*.counts)
    failed=$((failed + ${#suites[@]} + ${#other_suites[@]} + 2 - $(ls "$results"/*.counts | wc -l)))
    echo "the build took $built s, the suites $((SECONDS - built)) s"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

main "$@"
