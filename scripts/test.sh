#!/usr/bin/env bash
# Runs every test. The last line is "N passed, N failed, N skipped" over every single test.
#
#   scripts/test.sh            all suites, headers, install, examples; again under ASan and UBSan: suites of ops on the
#                              CPU and on the simulated device, others on one of the two, without the slowest ones; the
#                              fuzzers, each for half a minute (REWIND_FUZZ_SECONDS)
#   scripts/test.sh --quick    the suites, and checks of the sources: columns, includes; on the simulated device without
#                              the slowest ones, within five minutes on two idle cores once built
#   scripts/test.sh --full     all of that, metamorphic sessions for ten minutes instead of one
#                              (REWIND_METAMORPHIC_SECONDS), all suites under sanitizers, CUDA kernels for every
#                              architecture and by CUDA 12, suites with oneDNN 3 and without oneDNN, a static build,
#                              more kernels as compiled PTX, and suites once more over everything of which they
#                              otherwise test a sample; the build for ARM64 and its suites under an emulator: two hours
#                              more
#   scripts/test.sh --tsan     all suites, and two contexts in two threads, under ThreadSanitizer as well
#   scripts/test.sh --valgrind all suites and that program under Valgrind as well
#
# A program that hangs counts as a failure: it is ended after REWIND_TEST_LIMIT seconds (900) more than a fuzzer has.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

quick= full= tsan= valgrind=
for arg in "$@"; do
    case $arg in
    --quick) quick=1 ;;
    --full) full=1 ;;
    --tsan) tsan=1 ;;
    --valgrind) valgrind=1 ;;
    *) echo "usage: scripts/test.sh [--quick] [--full] [--tsan] [--valgrind]" >&2; exit 2 ;;
    esac
done

passed=0 failed=0 skipped=0

# later FUNCTION ARGUMENT...: queues a call for together()
later() {
    printf '%q ' "$@" >>"$log.queue"
    echo >>"$log.queue"
}

# phase NAME: says what begins, and when
phase() {
    printf -- '-- %d:%02d min: %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"
}

# worker N: makes calls that no other worker has taken. A call's output is printed when it has ended.
worker() {
    local queue=$log.queue i=0 call
    log=$log.$1 passed=0 failed=0 skipped=0
    while read -r call <&3; do
        mkdir "$queue.taken.$((i++))" 2>/dev/null || continue
        [ $((i % 50)) -ne 0 ] || phase "$i of $(wc -l <"$queue") suites and programs have begun"
        eval "$call" >"$log.out" </dev/null
        cat "$log.out"
    done 3<"$queue"
    echo "$passed $failed $skipped" >"$log.counts"
}

# together: makes the queued calls, as many at a time as there are cores; each worker has its own log and counts. A
# worker that ends early counts as a failure.
together() {
    local n ok bad left_out
    phase "$(wc -l <"$log.queue") suites and programs, $(nproc) at a time"
    for ((n = 0; n < $(nproc); n++)); do worker "$n" & done
    wait
    for ((n = 0; n < $(nproc); n++)); do
        read -r ok bad left_out <"$log.$n.counts" || ok=0 bad=1 left_out=0
        passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + left_out))
    done
    rm -rf "$log".*
}

# verdict NAME STATUS [SECONDS]: counts a test whose output is in the log
verdict() {
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok      $1$([ "${3:-0}" -lt 10 ] || echo " ($3 s)")"
    else
        failed=$((failed + 1))
        echo "FAILED  $1"
        sed 's/^/    /' "$log" | tail -60
    fi
}

# fail NAME WHY: counts a test that could not even start
fail() {
    failed=$((failed + 1))
    echo "FAILED  $1: $2"
}

# skip NAME WHY
skip() {
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

# Seconds for a suite or program; the longest takes three minutes on two cores
limit=$((${REWIND_TEST_LIMIT:-900} + ${REWIND_FUZZ_SECONDS:-30}))
[ -z "$full" ] || limit=$((limit + 2700))

# limited COMMAND...: ends the command, and its child processes, after that time, with status 124. Its errors then show
# what the processes were doing.
limited() {
    local first all
    "$@" &
    first=$!
    until_ended "$first" "$limit" && { wait "$first"; return; }
    all=$(descendants "$first")
    echo "ended after $limit s; its processes (state, what each thread waits for, CPU time):" >&2
    ps -L -o ppid,pid,lwp,stat,wchan:24,time,args -p "$all" >&2
    kill -KILL ${all//,/ }
    wait "$first" 2>/dev/null
    return 124
}

# descendants PROCESS: it and all its descendants, separated by commas. Criterion gives each test a session of its own.
descendants() {
    local all=$1 new=$1
    while new=$(pgrep -d , -P "$new"); do all+=,$new; done
    echo "$all"
}

# until_ended PROCESS SECONDS: fails if the process still exists after that time
until_ended() {
    local until=$((SECONDS + $2))
    while kill -0 "$1" 2>/dev/null; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.1
    done
}

# Tests that a hanging program, and a process that it started in a session of its own, are named and ended.
hangs_are_ended() {
    local status
    limit=1 limited sh -c 'setsid sleep 9876 & sleep 6789' 2>"$log.hang"
    status=$?
    cat "$log.hang"
    [ "$status" -eq 124 ] && grep -q 'sleep 9876' "$log.hang" && grep -q 'sleep 6789$' "$log.hang" &&
        ! pgrep -f 'sleep (9876|6789)$'
}

# Tests that without dpkg the set-up names what is missing, and fails: here nothing is there but what it needs itself.
names_what_is_missing() {
    local bin status
    bin=$(mktemp -d)
    ln -s "$(command -v dirname)" "$(command -v grep)" "$bin"
    PATH=$bin "$BASH" -c '. "$1"; rewind_install' setup "$rewind_root/scripts/setup.sh" >"$log.missing" 2>&1
    status=$?
    rm -r "$bin"
    cat "$log.missing"
    [ "$status" -eq 1 ] && grep -q 'libdnnl-dev$' "$log.missing" &&
        grep -q 'libxxhash-dev (pkg-config: libxxhash)' "$log.missing"
}

# check NAME COMMAND...: a program that is one test
check() {
    local name=$1 began=$SECONDS
    shift
    limited "$@" >"$log" 2>&1
    verdict "$name" $? $((SECONDS - began))
}

# optional NAME COMMAND...: the same, unless it exits with status 77: its last line is the reason that it cannot run
# here
optional() {
    local name=$1 began=$SECONDS status
    shift
    limited "$@" >"$log" 2>&1
    status=$?
    if [ "$status" -eq 77 ]; then skip "$name" "$(tail -1 "$log")"
    else verdict "$name" "$status" $((SECONDS - began)); fi
}

# script NAME COMMAND...: a program whose last line has counts as this one's; one without them is a single test, and
# status 77 as in optional()
script() {
    local name=$1 began=$SECONDS status ok bad left_out counts
    shift
    limited "$@" >"$log" 2>&1
    status=$?
    counts=$(tail -1 "$log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p')
    if [ "$status" -eq 77 ]; then skip "$name" "$(tail -1 "$log")"
    elif [ "$status" -ne 0 ] || [ -z "$counts" ]; then verdict "$name" 1
    else
        read -r ok bad left_out <<<"$counts"
        passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + left_out))
        echo "ok      $name ($ok tests$([ "$left_out" -eq 0 ] || echo ", $left_out skipped"), $((SECONDS - began)) s)"
    fi
}

# suite NAME COMMAND...: a Criterion program; counts its tests. One that crashes or runs no test counts as a failure,
# and so does a report of a sanitizer or of Valgrind. These write to files, because Criterion passes on neither the exit
# status nor the output of a test's process. One that hangs is ended, and its processes' states are printed, because
# everything else would wait for it.
suite() {
    local name=$1 began=$SECONDS
    shift
    rm -f "$log".report.*
    limited "$@" --tap >"$log" 2>"$log.err" </dev/null
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
        echo "ok      $name ($ok tests$([ "$left_out" -eq 0 ] || echo ", $left_out skipped"), $((SECONDS - began)) s)"
    else
        echo "FAILED  $name ($bad of $((ok + bad)) tests, exit status $status)"
        grep -v '^ok ' "$log" | sed 's/^/    /' | head -80
        sed 's/^/    /' "$log.err" | head -80
    fi
}

# planted NAME FILTER WORDS COMMAND...: the report on a planted mistake must contain each of the words
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

# each_suite FILE: the names in it, slow ones first, so that none of them runs alone at the end
each_suite() {
    local first='alloc_failure|every_policy|identity|gradcheck|fuzz|accuracy|conformance_memory|residual'
    first+='|models_bit_identity'
    first="^(sim_)?($first|offsets|conv|budgets|mistakes|accumulate|adjacent_gradients|reduce)\$"
    grep -E "$first" "$1"
    grep -vE "$first" "$1"
}

# suites LABEL DIR FUNCTION [WITHOUT]: queues every suite of a build except these, to be called by that function; none
# at all is a failure, not a success
suites() {
    local label=$1 dir=$2 function=$3 without=" ${4:-} " t
    if ! [ -s "$dir/tests/suites.txt" ]; then
        fail "${label}suites" "$dir has none (Criterion is missing, or -Dfaults=disabled)"
        return
    fi
    for t in $(each_suite "$dir/tests/suites.txt"); do
        [[ $without = *" $t "* ]] || later "$function" "$label$t" "$dir/tests/$t"
    done
}

# simulator LABEL DIR: whether this build has the suites of the simulated CUDA device. None is a failure as well, unless
# the build was configured without them.
simulator() {
    [ -s "$2/tests/sim_suites.txt" ] && return
    if grep -q '"name": "cudasim", "value": "disabled"' "$2/meson-info/intro-buildoptions.json"; then
        skip "$1suites on the simulated device" "-Dcudasim=disabled"
    else
        fail "$1suites on the simulated device" "$2 has none (a C++ compiler is missing)"
    fi
    return 1
}

# Kernels run by fibers: fewer random programs. Queued work is executed only when a call waits for it: work on a wrong
# stream, or results read too early, are detected.
on_simulator=(env REWIND_TEST_DEVICE=cuda CUDASIM_LAZY=1 REWIND_FUZZ_PROGRAMS="${REWIND_SIM_FUZZ_PROGRAMS:-25}"
              REWIND_FUZZ_MAX=12)

# simulated LABEL DIR FUNCTION with|without SUITES [ARGUMENT...]: queues the suites on the simulated device, only these
# or all except these; arguments are for sim_fuzz
simulated() {
    local label=$1 dir=$2 function=$3 how=$4 named=$5 t arguments
    shift 5
    for t in $(each_suite "$dir/tests/sim_suites.txt"); do
        case " $named " in
        *" $t "*) [ "$how" = with ] || continue ;;
        *) [ "$how" = without ] || continue ;;
        esac
        arguments=()
        [ "$t" = sim_fuzz ] && arguments=("$@")
        later "$function" "$label$t" "${on_simulator[@]}" "$dir/tests/$t" "${arguments[@]}"
    done
}

# Once more with host accesses to device memory causing faults.
strict_graph() {
    local t
    for t in $(grep -xE 'sim_step_graph_(launch|fused_updates)' "$1/tests/sim_suites.txt"); do
        later suite "$t, strict" "${on_simulator[@]}" CUDASIM_STRICT=1 CUDASIM_SEED=2 "$1/tests/$t"
    done
}

# part_of_suite NAME FILTER COMMAND...: tests excluded by the filter do not count as skipped, because they run elsewhere
part_of_suite() {
    local name=$1 filter=$2
    shift 2
    suite "$name" "$@" --filter "$filter"
    skipped=$((skipped - $(grep -c '^ok .*# SKIP test was skipped' "$log")))
}

# Once more with the simulated cuDNN: the suites of convolutions, and the convolutions in the suites with tables.
by_cudnn() {
    local t more="sim_gradcheck sim_offsets"
    local by=("${on_simulator[@]}" REWIND_CONV=cudnn REWIND_TEST_OPS=conv REWIND_GOLDEN_FILE=conv.golden)
    [ -z "$quick" ] || more=
    for t in sim_conv sim_virtual_concat_conv sim_golden sim_accuracy $more; do
        grep -qx "$t" "$1/tests/sim_suites.txt" || continue
        case $t in
        *conv | sim_golden) later suite "$t, convolutions by cuDNN" "${by[@]}" "$1/tests/$t" ;;
        *) later part_of_suite "$t, convolutions by cuDNN" '*/products*' "${by[@]}" "$1/tests/$t" ;;
        esac
    done
}

# Suites that run the same kernels thousands of times.
long_ones="sim_alloc_failure sim_conformance_memory sim_gradcheck sim_identity sim_models_bit_identity sim_residual"

# Suites on the simulated device that are sanitized only with --full: they are slow, and repeat what shorter ones, or
# the sanitized suite on the CPU, test.
unsanitized_sim="sim_identity sim_conformance_memory sim_gradcheck sim_reduce sim_models_bit_identity "
unsanitized_sim+="sim_offsets sim_accuracy sim_accumulate sim_adjacent_gradients sim_matmul_exact_integers "
unsanitized_sim+="sim_mistakes sim_every_policy sim_double_backward sim_residual sim_fused_bias_grad_attention "
unsanitized_sim+="sim_explain sim_conv sim_file_failures sim_virtual_concat sim_virtual_concat_conv "
unsanitized_sim+="sim_batchnorm sim_golden sim_step_graph_launch sim_offload sim_offload_files sim_scalar_logging_cost "
unsanitized_sim+="sim_attention_masked_nonfinite sim_large_upstream_gradients"

# Suites on the simulated device that run only with --full, sanitized, and with --quick: the planner, whose answers the
# suites on the CPU test.
planner_sim="sim_budgets sim_total_budget"

# Suites on the CPU that are sanitized only with --full. Kernels: ops/offsets, definitions and aligned run each of them
# at odd sizes and addresses. The planner: remat/choices_beyond_policies, chains, copy_schedule, deferred_execution and
# plan/ run all of it. every_public_function starts 2,760 processes; mistakes, whose calls are similar, 1,088.
unsanitized="accuracy conv huge_extents gradcheck image_models_vs_papers models_bit_identity every_policy "
unsanitized+="matmul_exact_integers identity time_lower_bound budgets by_threads planner_vs_exact_solver "
unsanitized+="cache_miss_cost nesting optimum planner_vs_baselines random_choices total_budget fragmentation "
unsanitized+="every_public_function precision_recipe_bit_identity"

# Excluded even with --full. forks: in a child LeakSanitizer waits for threads of the parent.
never_sanitized="forks"

# left_out_of_sanitizers DIR: the suites of a build that are not sanitized. Without --full also those on the CPU that
# are sanitized on the simulated device: the library is the same but for the kernels, whose suites (tests/ops) run on
# both.
left_out_of_sanitizers() {
    local t
    echo "$never_sanitized"
    [ -z "$full" ] || return 0
    echo "$unsanitized $unsanitized_sim $planner_sim"
    for t in $(sed 's/^sim_//' "$1/tests/sim_suites.txt"); do
        case " $unsanitized_sim $planner_sim " in *" sim_$t "*) continue ;; esac
        [ -e "$rewind_root/tests/ops/$t.c" ] || echo "$t"
    done
}

# compiled DIR: queues the suites that run kernels as compiled PTX: those for which the simulator compiles another
# version
compiled() {
    local accuracy=$1/tests/ptx/ptx_accuracy
    if ! [ -s "$1/tests/ptx/ptx_suites.txt" ]; then
        skip "PTX of the kernels" "$(cat "$1/tests/ptx/ptx_missing.txt")"
        return
    fi
    later suite "ptx_isa" env REWIND_TEST_DEVICE=cuda "$1/tests/ptx/ptx_isa"
    later suite "ptx_attention" env REWIND_TEST_DEVICE=cuda "$1/tests/ptx/ptx_attention"
    # ex2.approx errs by the ISA's maximum, and sums of tensor cores are truncated
    local rough=(env CUDASIM_PTX_ROUGH=1 CUDASIM_TENSOR=truncate)
    later by_ptx "ptx_accuracy, attention" 'ops_device/attention*' '_kernelI' 20 "${rough[@]}" "$accuracy"
    # Attention without tensor cores takes minutes to compile, and the simulator has no version of its own for it
    [ -z "$full" ] || later portable_by_ptx "$1" "${rough[@]}" "${accuracy}_portable"
    later by_ptx "ptx_accuracy, pointwise ops and losses" 'ops_device/@(pointwise|tables)*' \
        'map_packsI.*\(gelu\|silu\|sigmoid\)' 8 "$accuracy"
    later by_ptx "ptx_losses" '*' 'joint_kernelI' 4 "$1/tests/ptx/ptx_losses"
    later check "PTX names the space of each address" spaces_of_ptx "$1"
}

# by_ptx NAME FILTER PATTERN MIN COMMAND...: part of a suite with PTX instead of the simulator's compilation; it runs
# the PTX of at least MIN kernels whose symbols match
by_ptx() {
    local name=$1 filter=$2 pattern=$3 min=$4
    shift 4
    rm -f "$log.ptx"
    part_of_suite "$name" "$filter" env REWIND_TEST_DEVICE=cuda CUDASIM_PTX=replace CUDASIM_PTX_LOG="$log.ptx" "$@"
    check "$name ran the kernels' PTX" test "$(grep "^ran .*$pattern" "$log.ptx" | sort -u | wc -l)" -ge "$min"
}

# portable_by_ptx DIR COMMAND...: builds that program and runs it
portable_by_ptx() {
    local dir=$1 name="ptx_accuracy, attention without tensor cores"
    shift
    if rewind_ninja "$dir" tests/ptx/ptx_accuracy_portable >"$log" 2>&1; then
        by_ptx "$name" 'ops_device/attention*' '_kernelI' 20 "$@"
    else verdict "$name" 1; fi
}

# spaces_of_ptx DIR: no instruction for global memory uses an address of shared memory, in the PTX of any kernel;
# planted ones are detected
spaces_of_ptx() {
    local tool=$rewind_root/tests/ptx/address_spaces.py
    rewind_ninja "$1" ptx_texts && find "$1"/{runtime,tests/ptx} -name '*.ptx' -exec python3 "$tool" {} + || return
    python3 "$tool" "$rewind_root/tests/ptx/planted.ptx" | tee /dev/stderr |
        grep -q '^6 functions in 1 files, 5 accesses'
}

# with_sanitizers FUNCTION ARGUMENT...: reports are written next to the log. There are no suppressions: one for
# Criterion or libgomp would hide every leak of ours below their calls.
with_sanitizers() {
    ASAN_OPTIONS=detect_leaks=1:handle_sigill=1:log_path=$log.report "$@"
}

# Fewer random programs: each of them runs all checks.
sanitized_suite() {
    REWIND_FUZZ_PROGRAMS=${REWIND_FUZZ_PROGRAMS:-40} REWIND_CAMPAIGN_PROGRAMS=${REWIND_CAMPAIGN_PROGRAMS:-3} \
        REWIND_CHOICES=${REWIND_CHOICES:-40} with_sanitizers suite "$@"
}

# build_sanitized DIR: builds what sanitized() runs, with ASan and UBSan. Few optimizations halve the time to compile.
# UBSan's checks trap, and AddressSanitizer reports where: with data for each check a process takes a third longer to
# start.
build_sanitized() {
    local options="-g1 -fsanitize-undefined-trap-on-error"
    rewind_configure "$1" -Db_sanitize=address,undefined -Dbuildtype=debug -Doptimization=1 -Db_lundef=false \
        "-Dc_args=$options" "-Dcpp_args=$options" "${rewind_own_isa[@]}" -Dcuda=disabled -Dptx=disabled \
        -Dbench=disabled -Dexamples=disabled || return
    local left_out t programs=(tests/planted)
    left_out=" $(left_out_of_sanitizers "$1" | tr '\n' ' ') "
    for t in $(cat "$1"/tests/{,sim_}suites.txt); do [[ $left_out = *" $t "* ]] || programs+=("tests/$t"); done
    rewind_ninja "$1" "${programs[@]}"
}

# sanitized DIR: queues the suites of a build with ASan and UBSan. The shrinker, which is part of the tests, runs only
# on the CPU.
sanitized() {
    later with_sanitizers planted "asan sees planted leaks" 'planted/leak*' \
        "leak_of_the_calling_thread leak_of_another_thread" "$1/tests/planted"
    later with_sanitizers planted "asan sees a planted overflow" 'planted/overflow*' "overflow_in_a_kernel" \
        "$1/tests/planted"
    local on_simulator=("${on_simulator[@]}" REWIND_FUZZ_PROGRAMS="${REWIND_SIM_FUZZ_PROGRAMS:-6}") left_out
    left_out=$(left_out_of_sanitizers "$1" | tr '\n' ' ')
    simulator "asan " "$1" && simulated "asan " "$1" sanitized_suite without "$left_out" \
        --filter 'fuzz/!(*shrinks*|*shrunk*)'
    suites "asan " "$1" sanitized_suite "$left_out"
}

# oneDNN is not instrumented, and a child of fork() may start threads.
tsan_suite() {
    TSAN_OPTIONS=ignore_noninstrumented_modules=1:die_after_fork=0:log_path=$log.report REWIND_FUZZ_PROGRAMS=40 \
        suite "$@"
}

# with_memcheck FUNCTION NAME [WORD...] PROGRAM: runs the program under Valgrind, which does not support AVX-512
with_memcheck() {
    REWIND_ISA=v3 REWIND_FUZZ_PROGRAMS=20 "${@:1:$#-1}" \
        valgrind -q --trace-children=yes --log-file="$log.report.%p" "${@: -1}"
}

memcheck_suite() { with_memcheck suite "$@"; }

# Queues the fuzzers, after building their dependencies.
fuzzers() {
    local target
    "$rewind_root/scripts/fuzz.sh" 0 >"$log" 2>&1
    case $? in
    0) for target in policy weights api; do
           later check "fuzz $target" "$rewind_root/scripts/fuzz.sh" "${REWIND_FUZZ_SECONDS:-30}" "$target"
       done ;;
    77) for target in policy weights api; do skip "fuzz $target" "$(tail -1 "$log")"; done ;;
    *) verdict "fuzzers" 1 ;;
    esac
}

# Queues random programs of several steps and tapes, with calls that must not change a byte (docs/tests.md).
metamorphic() {
    local seconds=60
    [ -z "$quick" ] || seconds=10
    [ -z "$full" ] || seconds=600
    later check "metamorphic sessions" env REWIND_METAMORPHIC_SECONDS="${REWIND_METAMORPHIC_SECONDS:-$seconds}" \
        "$REWIND_BUILD/tests/metamorphic"
}

# Queues suites over everything of which they test a sample, or over many more random programs.
full_products() {
    local dir=$REWIND_BUILD/tests
    later suite "every_policy, every number of threads" env REWIND_EVERY_THREADS=1 "$dir/every_policy"
    later suite "optimum, 10000 tapes" env REWIND_OPTIMUM=10000 "$dir/optimum"
    later suite "random_faulty_ops, 200 programs of each kind" env REWIND_CAMPAIGN_PROGRAMS=200 \
        "$dir/random_faulty_ops"
    later suite "random_choices, 3000 programs" env REWIND_CHOICES=3000 "$dir/random_choices"
    later part_of_suite "fuzz, 10000 programs" 'fuzz/random*' env REWIND_FUZZ_PROGRAMS=10000 "$dir/fuzz"
}

# What has the same bytes on every processor (scripts/arm64.sh compares, too)
platform_bytes() {
    "$REWIND_BUILD/tests/platform_bytes" >"$log.bytes" &&
        diff "$log.bytes" "$rewind_root/tests/whole/platform_bytes.txt"
}

# A line of code has at most 120 columns. Exits with status 77 if Git is not available to list the files.
columns() (
    cd "$rewind_root" || exit
    git ls-files --error-unmatch scripts/test.sh >/dev/null 2>&1 || { echo "not a Git checkout"; exit 77; }
    long=$(git ls-files -z '*.c' '*.h' '*.cu' '*.cuh' '*.cc' '*.sh' '*.py' '*.build' |
        LC_ALL=C.UTF-8 xargs -0 grep -nE '^.{121}')
    echo "$long"
    [ -z "$long" ]
)

# The glue of examples/drop_in, between its marks, has at most the 60 lines that docs/drop_in.md states.
glue() (
    lines=$(sed -n '/^\/\* \[glue\]/,/^\/\* \[glue\]/p' "$rewind_root/examples/drop_in/glue.c" | grep -vcE 'glue\]|^$')
    echo "$lines lines"
    [ "$lines" -gt 50 ] && [ "$lines" -le 60 ]
)

# Every use of RW_CUDASIM in the library is in the table of tests/ptx/README.md, which names the suite that executes
# that code.
simulator_texts() (
    cd "$rewind_root" || exit
    diff <(grep -rc RW_CUDASIM ops runtime | grep -v ':0$' | sort) \
        <(sed -n 's/^| `\(\(ops\|runtime\)[^`]*\)` | \([0-9]*\) |.*/\1:\3/p' tests/ptx/README.md | sort)
)

# The ops of tests/op_library, compiled against public headers. Exits with status 77 if the folder was configured before
# by another script, without them.
op_library() {
    [ -x "$REWIND_BUILD/tests/op_library/op_library" ] || { echo "without -Dops_as_library=enabled"; return 77; }
    "$REWIND_BUILD/tests/op_library/op_library"
}

# Queues tests that are not suites: programs outside the tree, the tools' output, examples.
programs() {
    local example
    later check "install: programs outside the tree" "$rewind_root/tests/tools/install.sh" "$REWIND_BUILD"
    later check "programs say what is wrong" "$rewind_root/tests/tools/cli_error_messages.sh" "$REWIND_BUILD"
    later check "train_gpt: a run that goes on" "$rewind_root/tests/tools/train_gpt.sh" "$REWIND_BUILD"
    later check "train_gpt: nothing lost, numbers right" "$rewind_root/tests/tools/trainer.py" "$REWIND_BUILD"
    later check "train_gpt: numbers beside their formulas" "$rewind_root/tests/tools/trainer_numbers.py" "$REWIND_BUILD"
    later check "train_gpt: ended at random moments" "$rewind_root/tests/tools/trainer_kills.py" "$REWIND_BUILD" \
        $([ -z "$full" ] && echo 30 || echo 300)
    later check "benchmarks: what fails is no figure" "$rewind_root/tests/tools/bench_failures.py" "$REWIND_BUILD"
    later check "recompute_sweep: what it writes and answers" "$rewind_root/tests/tools/sweep.py" "$REWIND_BUILD"
    later check "recompute_sweep: numbers beside each other" "$rewind_root/tests/tools/sweep_numbers.py" "$REWIND_BUILD"
    later optional "reference: no warning of Doxygen" python3 "$rewind_root/tests/tools/reference.py" "$REWIND_BUILD"
    later optional "a program linked with -static" "$rewind_root/tests/tools/static.sh" "$REWIND_BUILD"
    later check "headers: each alone, C11 and C++17" "$rewind_root/tests/tools/headers.sh"
    later check "the binary interface is that of its record" "$rewind_root/tests/tools/abi.py" "$REWIND_BUILD"
    [ -z "$full" ] || later optional "CUDA 12 compiles every kernel" "$rewind_root/scripts/cuda12.sh"
    [ -z "$full" ] || later check "mutated sources compile" "$rewind_root/scripts/mutation.sh" --compile
    [ -z "$full" ] || later optional "suites of the CPU with oneDNN 3" "$rewind_root/scripts/onednn3.sh"
    [ -z "$full" ] || later script "suites of the CPU without oneDNN" "$rewind_root/scripts/without_onednn.sh"
    [ -z "$full" ] || later optional "a tarball builds and tests itself" "$rewind_root/tests/tools/dist.sh" \
        "$REWIND_BUILD" full
    [ -z "$full" ] || later optional "a static build" "$rewind_root/tests/tools/static.sh" "$REWIND_BUILD" full
    [ -z "$full" ] || later optional "Debian packages" "$rewind_root/scripts/debian.sh"
    [ -z "$full" ] || later script "ARM64 under an emulator" "$rewind_root/scripts/arm64.sh"
    later optional "machine code of the CUDA kernels" \
        python3 "$rewind_root/tests/tools/machine_code.py" "$REWIND_BUILD"
    later check "examples: there are some" test -s "$REWIND_BUILD/examples/examples.txt"
    while read -r example; do
        later check "example $example" "$REWIND_BUILD/examples/$example" --quick
    done <"$REWIND_BUILD/examples/examples.txt"
}

# Suites not simulated under sanitizers, with --quick only the fast ones.
plainly_simulated() {
    if [ -n "$quick" ]; then simulated "" "$REWIND_BUILD" suite without "$long_ones"
    else simulated "" "$REWIND_BUILD" suite with "$unsanitized_sim"; fi
}

main() {
    phase "the build"
    local options=(-Dops_as_library=enabled ${full:+-Dgpu_arch=80,90})
    rewind_install && { rewind_install doxygen; rewind_build "$REWIND_BUILD" "${options[@]}"; } ||
        { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
    log=$(mktemp)
    trap 'rm -rf "$log" "$log".*' EXIT
    phase "checks of the sources"
    optional "no line over 120 columns" columns
    optional "a source tarball has every file" "$rewind_root/tests/tools/dist.sh" "$REWIND_BUILD"
    check "what hangs is ended" hangs_are_ended
    check "without dpkg, the set-up names what is missing" names_what_is_missing
    check "folders point one way" "$rewind_root/tests/tools/include_graph.py" "$REWIND_BUILD"
    check "every public function begins with a guard" "$rewind_root/tests/tools/public_entry_macros.py"
    check "what the pages name is there" "$rewind_root/tests/tools/doc_names.py"
    check "an op is in the files that the guide lists" "$rewind_root/tests/tools/op_files.py"
    check "the glue of seven kernel pairs has 60 lines" glue
    check "the list of old words finds what is planted" "$rewind_root/tests/tools/words.py" self
    check "no old words in headers and pages, fewer elsewhere" "$rewind_root/tests/tools/words.py"
    check "sentences of headers and pages are short" "$rewind_root/tests/tools/words.py" lengths
    check "the README is short and terms are in the glossary" "$rewind_root/tests/tools/readme_and_glossary.py"
    check "a planted term is found" "$rewind_root/tests/tools/readme_and_glossary.py" self
    check "each text of the simulator is executed as PTX, or is host code" simulator_texts
    check "each mutation has its place" "$rewind_root/tests/mutation/campaign.py" check
    check "two contexts in two threads" "$REWIND_BUILD/tests/two_contexts"
    check "bytes that all processors share" platform_bytes
    optional "ops of four families as a library of their own" op_library
    metamorphic
    [ -z "$full" ] || full_products
    if [ -z "$quick" ]; then
        phase "the build with sanitizers"
        build_sanitized "$REWIND_BUILD-asan" && sanitized "$REWIND_BUILD-asan" || fail "sanitizers" "the build failed"
        phase "the build of the fuzzers"
        fuzzers
        rewind_disassembler
        programs
        compiled "$REWIND_BUILD"
    fi
    simulator "" "$REWIND_BUILD" && plainly_simulated && strict_graph "$REWIND_BUILD" && by_cudnn "$REWIND_BUILD"
    suites "" "$REWIND_BUILD" suite
    together
    if [ -n "$tsan" ]; then
        phase "the build for ThreadSanitizer"
        rewind_build "$REWIND_BUILD-tsan" -Db_sanitize=thread -Dbuildtype=debugoptimized -Db_lundef=false \
            -Dbench=disabled -Dexamples=disabled -Dcpu_isa=v3 -Dcuda=disabled -Dcudasim=disabled -Dtsan_suites=true
        check "tsan two contexts" env TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 \
            "$REWIND_BUILD-tsan/tests/two_contexts"
        suites "tsan " "$REWIND_BUILD-tsan" tsan_suite
        together
    fi
    if [ -n "$valgrind" ]; then
        limit=$((limit * 50))
        check "valgrind two contexts" env REWIND_ISA=v3 valgrind -q --error-exitcode=1 \
            --leak-check=full --errors-for-leak-kinds=definite "$REWIND_BUILD/tests/two_contexts"
        later with_memcheck planted "valgrind sees a planted read past the end" 'planted/read*' "read_past_the_end" \
            "$REWIND_BUILD/tests/planted"
        suites "valgrind " "$REWIND_BUILD" memcheck_suite
        together
    fi
    phase "the end"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

main
