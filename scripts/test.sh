#!/usr/bin/env bash
# Runs every test. The last line is "N passed, N failed, N skipped" over every single test.
#
#   scripts/test.sh            all suites, headers, install, examples; the suites again under ASan and UBSan; the
#                              fuzzers, each for a minute (REWIND_FUZZ_SECONDS)
#   scripts/test.sh --quick    the suites, and what is read in the sources: columns, includes; on the simulated device
#                              without those that take it longest, within five minutes on two idle cores once built
#   scripts/test.sh --tsan     all suites, and two contexts in two threads, under ThreadSanitizer as well
#   scripts/test.sh --valgrind all suites and that program under Valgrind as well
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

quick= tsan= valgrind=
for arg in "$@"; do
    case $arg in
    --quick) quick=1 ;;
    --tsan) tsan=1 ;;
    --valgrind) valgrind=1 ;;
    *) echo "usage: scripts/test.sh [--quick] [--tsan] [--valgrind]" >&2; exit 2 ;;
    esac
done

passed=0 failed=0 skipped=0

# verdict NAME STATUS: counts a test whose output is in the log
verdict() {
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok      $1"
    else
        failed=$((failed + 1))
        echo "FAILED  $1"
        sed 's/^/    /' "$log" | tail -60
    fi
}

# fail NAME WHY: counts a test that could not even begin
fail() {
    failed=$((failed + 1))
    echo "FAILED  $1: $2"
}

# skip NAME WHY
skip() {
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

# check NAME COMMAND...: a program that is one test
check() {
    local name=$1
    shift
    "$@" >"$log" 2>&1
    verdict "$name" $?
}

# optional NAME COMMAND...: the same, unless it ends with status 77: its last line says why it cannot run here
optional() {
    local name=$1 status
    shift
    "$@" >"$log" 2>&1
    status=$?
    if [ "$status" -eq 77 ]; then skip "$name" "$(tail -1 "$log")"; else verdict "$name" "$status"; fi
}

# suite NAME COMMAND...: a Criterion program; counts its tests. One that dies or runs none counts as a failure, and so
# does a report of a sanitizer or of Valgrind. They write to files: of a test's own process Criterion passes on neither
# the exit status nor the output.
suite() {
    local name=$1
    shift
    rm -f "$log".report.*
    "$@" --tap >"$log" 2>"$log.err" </dev/null
    local status=$? ok bad left_out
    left_out=$(grep -c '^ok .*# SKIP' "$log")
    ok=$(($(grep -c '^ok ' "$log") - left_out))
    bad=$(grep -c '^not ok ' "$log")
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] || [ $((ok + bad + left_out)) -eq 0 ]; then bad=$((bad + 1)); fi
    if cat "$log".report.* 2>/dev/null | grep -q .; then
        bad=$((bad + 1))
        cat "$log".report.* >>"$log.err"
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + left_out))
    if [ "$bad" -eq 0 ]; then
        echo "ok      $name ($ok tests$([ "$left_out" -eq 0 ] || echo ", $left_out skipped"))"
    else
        echo "FAILED  $name ($bad of $((ok + bad)) tests, exit status $status)"
        grep -v '^ok ' "$log" | sed 's/^/    /' | head -80
        sed 's/^/    /' "$log.err" | head -80
    fi
}

# planted NAME FILTER WORDS COMMAND...: the report on a mistake made on purpose must hold each of the words
planted() {
    local name=$1 filter=$2 words=$3 word missing=
    shift 3
    rm -f "$log".report.*
    "$@" --filter "$filter" --tap >"$log" 2>&1 </dev/null
    for word in $words; do cat "$log".report.* 2>/dev/null | grep -q "$word" || missing="$missing $word"; done
    rm -f "$log".report.*
    check "$name" test -z "$missing"
    [ -z "$missing" ] || echo "    not reported:$missing"
}

# suites LABEL DIR [WRAPPER...]: every suite of a build; none at all is a failure, not a success
suites() {
    local label=$1 dir=$2 t
    shift 2
    if ! [ -s "$dir/tests/suites.txt" ]; then
        fail "${label}suites" "$dir has none (Criterion is missing, or -Dfaults=false)"
        return
    fi
    while read -r t; do suite "$label$t" "$@" "$dir/tests/$t"; done <"$dir/tests/suites.txt"
}

# simulator LABEL DIR: whether this build has the suites of the simulated CUDA device. None is a failure as well, unless
# the build was told to do without.
simulator() {
    [ -s "$2/tests/sim_suites.txt" ] && return
    if grep -q '"name": "cudasim", "value": "disabled"' "$2/meson-info/intro-buildoptions.json"; then
        skip "$1suites on the simulated device" "-Dcudasim=disabled"
    else
        fail "$1suites on the simulated device" "$2 has none (a C++ compiler is missing)"
    fi
    return 1
}

# simulated LABEL DIR PARTS WITHOUT [ARGUMENT...]: suites on the simulated device, those of every four that PARTS names;
# arguments are for sim_fuzz. Kernels run by fibers: fewer random programs. Queued work waits until somebody waits for
# it: what is on a wrong stream, or read too early, shows.
simulated() {
    local label=$1 dir=$2 parts=$3 without=$4 t i=0 arguments
    shift 4
    while read -r t; do
        [[ " $without " == *" $t "* ]] && continue
        [[ "$parts" == *$((i++ % 4))* ]] || continue
        arguments=()
        [ "$t" = sim_fuzz ] && arguments=("$@")
        REWIND_TEST_DEVICE=cuda CUDASIM_LAZY=1 REWIND_FUZZ_PROGRAMS=${REWIND_SIM_FUZZ_PROGRAMS:-25} REWIND_FUZZ_MAX=12 \
            suite "$label$t" "$dir/tests/$t" "${arguments[@]}"
    done <"$dir/tests/sim_suites.txt"
}

# Once more where the host faults when it touches device memory.
strict_graph() {
    grep -qx sim_graph "$1/tests/sim_suites.txt" || return
    REWIND_TEST_DEVICE=cuda CUDASIM_STRICT=1 CUDASIM_LAZY=1 CUDASIM_SEED=2 \
        suite "sim_graph, strict" "$1/tests/sim_graph"
}

# beside FUNCTION FUNCTION: both at a time, as many tests of the simulator leave a core idle; each has a log and counts
# of its own, and what it prints follows at the end. One that dies counts as a failure.
beside() {
    local f ok bad left_out
    for f in "$@"; do
        (
            log=$log.$f passed=0 failed=0 skipped=0
            "$f" >"$log.out"
            echo "$passed $failed $skipped" >"$log.counts"
        ) &
    done
    wait
    for f in "$@"; do
        cat "$log.$f.out"
        read -r ok bad left_out <"$log.$f.counts" || ok=0 bad=1 left_out=0
        passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + left_out))
    done
}

# The same kernels thousands of times.
long_ones="sim_alloc_failure sim_conformance_memory sim_gradcheck sim_identity sim_models sim_residual"

simulated_0() {
    simulated "" "$REWIND_BUILD" "0 2" "${quick:+$long_ones}"
    [ -n "$quick" ] || compiled "$REWIND_BUILD"
}
simulated_1() {
    simulated "" "$REWIND_BUILD" "1 3" "${quick:+$long_ones}"
    strict_graph "$REWIND_BUILD"
}

# compiled DIR: the PTX of attention's kernels, run by the simulator. In accuracy ex2.approx errs by as much as the ISA
# allows, and sums of tensor cores are cut off.
compiled() {
    if ! [ -s "$1/tests/ptx/ptx_suites.txt" ]; then
        skip "PTX of attention's kernels" "$(cat "$1/tests/ptx/ptx_missing.txt")"
        return
    fi
    export REWIND_TEST_DEVICE=cuda
    suite "ptx_isa" "$1/tests/ptx/ptx_isa"
    suite "ptx_attention" "$1/tests/ptx/ptx_attention"
    rm -f "$log.ptx"
    CUDASIM_PTX=replace CUDASIM_PTX_ROUGH=1 CUDASIM_TENSOR=truncate CUDASIM_PTX_LOG=$log.ptx \
        suite "ptx_accuracy" "$1/tests/ptx/ptx_accuracy" --filter 'ops_device/attention*'
    # What the filter leaves out is not skipped: the simulated suite runs it
    skipped=$((skipped - $(grep -c '^ok .*# SKIP test was skipped' "$log")))
    check "ptx_accuracy ran attention's PTX" test "$(grep -c '^ran .*_kernelI' "$log.ptx")" -ge 40
}

# Reports of the sanitizers go beside the log. No suppressions: one for Criterion or libgomp hides every leak of ours in
# whatever they call.
report_to_log() {
    export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:log_path=$log.report
    export ASAN_OPTIONS=detect_leaks=1:log_path=$log.report
}

# Left out is what repeats for long what the others run, the same kernels thousands of times, and the shrinker, which
# is the tests' own: it is sanitized on the CPU.
sanitized() {
    report_to_log
    simulated "asan " "$REWIND_BUILD-asan" "$1" \
        "sim_identity sim_conformance_memory sim_gradcheck sim_reduce sim_models" \
        --filter 'fuzz/!(*shrinks*|*shrunk*)'
}

# Beside the suites of the CPU, which take as long as half of the others.
sanitized_0() { sanitized "0 1 2"; }

sanitized_1() {
    report_to_log
    REWIND_FUZZ_PROGRAMS=${REWIND_FUZZ_PROGRAMS:-60} suites "asan " "$REWIND_BUILD-asan"
    sanitized 3
}

# One beside the other; what they need is built first.
fuzzers() {
    local target
    "$rewind_root/scripts/fuzz.sh" 0 >"$log" 2>&1
    case $? in
    0) beside fuzz_policy fuzz_weights fuzz_api ;;
    77) for target in policy weights api; do skip "fuzz $target" "$(tail -1 "$log")"; done ;;
    *) verdict "fuzzers" 1 ;;
    esac
}

fuzz_policy() { check "fuzz policy" "$rewind_root/scripts/fuzz.sh" "${REWIND_FUZZ_SECONDS:-60}" policy; }
fuzz_weights() { check "fuzz weights" "$rewind_root/scripts/fuzz.sh" "${REWIND_FUZZ_SECONDS:-60}" weights; }
fuzz_api() { check "fuzz api" "$rewind_root/scripts/fuzz.sh" "${REWIND_FUZZ_SECONDS:-60}" api; }

# A line of code has 120 columns. Ends with status 77 where there is no Git to name the files.
columns() (
    cd "$rewind_root" || exit
    git ls-files --error-unmatch scripts/test.sh >/dev/null 2>&1 || { echo "not a Git checkout"; exit 77; }
    long=$(git ls-files -z '*.c' '*.h' '*.cu' '*.cuh' '*.cc' '*.sh' '*.py' '*.build' |
        LC_ALL=C.UTF-8 xargs -0 grep -nE '^.{121}')
    echo "$long"
    [ -z "$long" ]
)

main() {
    rewind_install && rewind_build "$REWIND_BUILD" || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
    log=$(mktemp)
    trap 'rm -f "$log" "$log".*' EXIT
    optional "no line over 120 columns" columns
    check "folders point one way" "$rewind_root/tests/tools/include_graph.py" "$REWIND_BUILD"
    check "each mutation has its place" "$rewind_root/tests/mutation/campaign.py" check
    suites "" "$REWIND_BUILD"
    simulator "" "$REWIND_BUILD" && beside simulated_0 simulated_1
    check "two contexts in two threads" "$REWIND_BUILD/tests/two_contexts"
    if [ -z "$quick" ]; then
        check "headers: each alone, C11 and C++17" "$rewind_root/tests/tools/headers.sh"
        rewind_disassembler
        optional "machine code of the CUDA kernels" python3 "$rewind_root/tests/tools/machine_code.py" "$REWIND_BUILD"
        check "install: programs outside the tree" "$rewind_root/tests/tools/install.sh" "$REWIND_BUILD"
        check "recompute_sweep: what it writes and answers" "$rewind_root/tests/tools/sweep.py" "$REWIND_BUILD"
        check "examples: there are some" test -s "$REWIND_BUILD/examples/examples.txt"
        local e
        while read -r e; do
            check "example $e" "$REWIND_BUILD/examples/$e" --quick
        done <"$REWIND_BUILD/examples/examples.txt"
        check "train_gpt: a run that goes on" "$rewind_root/tests/tools/train_gpt.sh" "$REWIND_BUILD"
        rewind_build "$REWIND_BUILD-asan" -Db_sanitize=address,undefined -Dbuildtype=debugoptimized -Db_lundef=false \
            -Dc_args=-g1 -Dcpp_args=-g1 -Dcpu_isa=v3 -Dcuda=disabled -Dptx=disabled -Dbench=false -Dexamples=false ||
            fail "sanitizers" "the build failed"
        report_to_log
        planted "asan sees planted leaks" 'planted/leak*' "leak_of_the_calling_thread leak_of_an_openmp_thread" \
            "$REWIND_BUILD-asan/tests/planted"
        simulator "asan " "$REWIND_BUILD-asan"
        beside sanitized_0 sanitized_1
        fuzzers
    fi
    if [ -n "$tsan" ]; then
        rewind_build "$REWIND_BUILD-tsan" -Db_sanitize=thread -Dbuildtype=debugoptimized -Db_lundef=false \
            -Dbench=false -Dexamples=false -Dcpu_isa=v3 -Dcuda=disabled -Dcudasim=disabled -Dtsan_suites=true
        check "tsan two contexts" env TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 \
            OMP_NUM_THREADS=1 "$REWIND_BUILD-tsan/tests/two_contexts"
        # One OpenMP thread: GCC's libgomp is not instrumented, and its barriers would be reported as races
        TSAN_OPTIONS=ignore_noninstrumented_modules=1:log_path=$log.report OMP_THREAD_LIMIT=1 REWIND_FUZZ_PROGRAMS=40 \
            suites "tsan " "$REWIND_BUILD-tsan"
    fi
    if [ -n "$valgrind" ]; then
        check "valgrind two contexts" env REWIND_ISA=v3 OMP_NUM_THREADS=1 valgrind -q --error-exitcode=1 \
            --leak-check=full --errors-for-leak-kinds=definite "$REWIND_BUILD/tests/two_contexts"
        export REWIND_ISA=v3 # Valgrind knows no AVX-512
        local memcheck="valgrind -q --trace-children=yes --log-file=$log.report.%p"
        planted "valgrind sees a planted read past the end" 'planted/read*' "read_past_the_end" $memcheck \
            "$REWIND_BUILD/tests/planted"
        REWIND_FUZZ_PROGRAMS=20 suites "valgrind " "$REWIND_BUILD" $memcheck
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

main
