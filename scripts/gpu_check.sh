#!/usr/bin/env bash
# Where a GPU is at hand: builds, runs every test on it, compute-sanitizer over the kernels, the figures and the peers,
# and writes what it finds, with the machine's description, to bench/results/DEVICE/. No network: nothing is installed.
#
#   scripts/gpu_check.sh [PART...]    all without an argument, in this order, however they are given:
#                                     machine build tests convolutions sanitizer identity figures sweep kernels
#                                     peers
#
# Parts can be run singly: figures.txt is made anew from what lies in the folder. A part that fails, is cut off or
# writes nothing shows as figures that were missed. What differs or fails makes the exit status 1, a slow step does not.
#
# REWIND_PYTHON names a Python that has PyTorch, for the peers. REWIND_OUT is a folder to write to instead,
# REWIND_GPU_BUILD one to build in. The other REWIND_GPU_... below are sizes, for a rehearsal where there is no GPU.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# A quarter of an hour, on one H100 and 16 cores: at the end of its seconds a part is cut off, at the end of all of them
# the run. In brackets, what was measured. A build that is there already takes a second.
all_seconds=${REWIND_GPU_SECONDS:-1200}
declare -A seconds=(
    [machine]=5     # [1]
    [build]=$all_seconds # waited for: without it there is nothing to run
    [tests]=400     # [300] a process per test: each waits for its device's context, six suites side by side
    [convolutions]=120 # not run yet: those suites once more, and ResNet-50 twice, by cuDNN
    [sanitizer]=45  # [33]  the six runs side by side
    [identity]=140  # [100] the eight models and types side by side: 128,000 steps of 150 small kernels
    [figures]=90    # [45]  124M: six rows of eleven steps, twice four with another attention and with digests; 1.5B:
                    #       two rows of four steps
    [sweep]=25      # [18]  eight rows of four steps
    [kernels]=15    # [4]
    [peers]=150     # [116] three eager rows and three compiled ones; compiling takes nearly all of it
)
parts=(machine build tests convolutions sanitizer identity figures sweep kernels peers)

chosen=${*:-${parts[*]}}
for part in $chosen; do
    [[ " ${parts[*]} " == *" $part "* ]] || {
        echo "usage: scripts/gpu_check.sh [PART...], of: ${parts[*]}" >&2
        exit 2
    }
done
python=${REWIND_PYTHON:-python3}
build=${REWIND_GPU_BUILD:-$REWIND_BUILD-gpu}
bench=$build/bench
steps=${REWIND_GPU_STEPS:-1000}
batch=${REWIND_GPU_BATCH:-32}
preset=${REWIND_GPU_PRESET:-gpt2-124m}
seq=${REWIND_GPU_SEQ:-1024}
images=${REWIND_GPU_IMAGES:-published}
side=${REWIND_GPU_SIDE:-224}
# GPT-2 XL: 1.5 billion parameters
large=${REWIND_GPU_LARGE:-"--preset gpt2-124m --layers 48 --width 1600 --heads 25 --batch 16"}
tools=${REWIND_GPU_TOOLS:-memcheck racecheck}
passed=0 failed=0 skipped=0 cut_off=0

name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
[ -n "$name" ] || { echo "no GPU: nvidia-smi is missing, does not answer, or lists none" >&2; exit 2; }
out=${REWIND_OUT:-$rewind_root/bench/results/$(tr 'A-Z ' 'a-z-' <<<"$name")}
mkdir -p "$out" || exit 2
# A whole run shows nothing of an earlier one, also when it ends early
[ $# -gt 0 ] || rm -f "$out"/{machine,tests,convolutions,sanitizer,identity,sweep,kernels,figures}.txt \
    "$out"/{sweep,resnet50-own/sweep,resnet50-cudnn/sweep}.{csv,json,html,svg} \
    "$out"/{identity,steps,steps-1.5b,steps-cudnn,steps-digest,kernels,pytorch}.json

PATH=$PATH:/usr/local/cuda/bin # nvcc and compute-sanitizer, where the toolkit is not in the path

# Each part says itself what it runs under
unset REWIND_POLICY REWIND_VERIFY REWIND_EAGER REWIND_TRACE

# limited SECONDS COMMAND...: no longer than that, nor than what is left of the part; exit status 124 when cut off
limited() {
    local most=$1 left=$((part_end - SECONDS))
    shift
    [ "$left" -gt $((all_seconds - SECONDS)) ] && left=$((all_seconds - SECONDS))
    [ "$left" -lt "$most" ] && most=$left
    [ "$most" -ge 1 ] || return 124
    timeout --kill-after=5 "$most" "$@"
}

# figure NAME STATUS UNIT: a yes or no in the form of the other figures
figure() {
    if [ "$2" -eq 0 ]; then echo "$1, 0 $3, at most 0, met"; else echo "$1, exit status $2, at most 0, missed"; fi
}

# The toolkit's major version must be one that the driver knows: found out before the build, not behind it.
driver_is_too_old() {
    local knows needs
    knows=$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -1)
    needs=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p' | head -1)
    [[ $knows =~ ^[0-9]+$ && $needs =~ ^[0-9]+$ ]] && [ "$knows" -lt "$needs" ] || return 1
    echo "The driver knows CUDA $knows, the toolkit is CUDA $needs: a newer driver or an older toolkit is needed" >&2
}

machine() {
    {
        echo "date: $(date -u +%Y-%m-%dT%H:%MZ)"
        echo "commit: $(git -C "$rewind_root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit --format=csv
        nvcc --version | tail -2
        grep -m1 'model name' /proc/cpuinfo
        echo "$(nproc) cores"
    } >"$out/machine.txt" 2>&1
    cat "$out/machine.txt"
    driver_is_too_old && exit 1
    return 0
}

# For this device alone; without the simulator, as this is the real thing. -Dcuda=enabled: what is missing is an error.
build() {
    local arch
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
    [[ $arch =~ ^[0-9]+$ ]] || arch=80
    rewind_build "$build" -Dcuda=enabled -Dcudasim=disabled -Dexamples=false "-Dgpu_arch=$arch" && return
    echo "The build failed. Needed are the CUDA Toolkit with cuDNN (docs/cuda.md), and as Debian calls them:" \
        "${rewind_packages[*]}" >&2
    exit 1
}

# suite SECONDS NAME: one of them on the GPU; its exit status goes to NAME.status.
suite() {
    local status
    REWIND_FUZZ_PROGRAMS=${REWIND_FUZZ_PROGRAMS:-15} REWIND_TEST_DEVICE=cuda REWIND_TEST_LARGE=1 \
        limited "$1" "$build/tests/$2" --tap --jobs "${3:-2}" >"$out/$2.log" 2>&1 </dev/null
    echo $? >"$out/$2.status"
}

# verdict NAME FILE: counts what suite() has left of it, and says it in FILE as well
verdict() {
    local ok bad left_out status
    status=$(cat "$out/$1.status")
    left_out=$(grep -c '^ok .*# SKIP' "$out/$1.log")
    ok=$(($(grep -c '^ok ' "$out/$1.log") - left_out)) bad=$(grep -c '^not ok ' "$out/$1.log")
    if [ "$status" -eq 124 ]; then cut_off=$((cut_off + 1)); # time ran out: no verdict, and none is counted
    elif [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] || [ $((ok + bad + left_out)) -eq 0 ]; then bad=$((bad + 1)); fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + left_out))
    echo "$1: $ok passed, $bad failed, $left_out skipped, exit status $status" | tee -a "$out/$2"
    if [ "$bad" -gt 0 ]; then grep -v '^ok ' "$out/$1.log" | tail -25 | tee -a "$out/$2"; fi
    rm -f "$out/$1.log" "$out/$1.status"
}

# Several at a time: a process per test waits for its device's context, not for the device. The one that compares how
# much of the device everybody uses runs by itself.
tests() {
    local t
    : >"$out/tests.txt"
    passed=0 failed=0 skipped=0 cut_off=0
    suite 60 conformance_memory 1
    while read -r t; do
        while [ "$(jobs -rp | wc -l)" -ge "${REWIND_GPU_JOBS:-6}" ]; do wait -n; done
        suite 350 "$t" &
    done < <(grep -x -e mistakes -e fuzz "$build/tests/gpu_suites.txt" # the longest first
             grep -v -x -e mistakes -e fuzz -e conformance_memory "$build/tests/gpu_suites.txt")
    wait
    while read -r t; do verdict "$t" tests.txt; done <"$build/tests/gpu_suites.txt"
    [ $((passed + failed)) -gt 0 ] || failed=1 # no suites: Criterion is missing
    echo "tests on the GPU: $passed passed, $failed failed, $skipped skipped, $cut_off suites cut off" |
        tee -a "$out/tests.txt"
}

# By cuDNN, which the other parts do not ask for: the suites that have convolutions, and the steps of a network beside
# those by our own tiles. recompute_sweep holds every row to the bytes of the first.
convolutions() {
    local t by status
    : >"$out/convolutions.txt"
    for t in accuracy conv conv_engines joined_conv golden gradcheck offsets; do REWIND_CONV=cudnn suite 100 $t & done
    wait
    for t in accuracy conv conv_engines joined_conv golden gradcheck offsets; do verdict $t convolutions.txt; done
    for by in own cudnn; do
        mkdir -p "$out/resnet50-$by"
        REWIND_CONV=$by limited 40 "$bench/recompute_sweep" --device cuda --model resnet50 --preset "$images" \
            --dtype bf16 --batch 32 --seq "$side" --steps 3 --policy "none full" --out "$out/resnet50-$by" |
            sed "s/^/convolutions by $by: /" | tee -a "$out/convolutions.txt"
        status=${PIPESTATUS[0]}
        [ "$status" -eq 0 ] || { failed=$((failed + 1)); echo "ResNet-50, $by: exit status $status"; }
    done
}

# Heads of 64 in bfloat16 take the tensor cores' attention, float32 and odd sizes the portable one, llama the other ops.
sanitized() {
    limited 40 compute-sanitizer --tool "$1" --error-exitcode 9 "$bench/train_step" --device cuda --layers 1 \
        --batch 1 --seq 65 --steps 2 --dropout 0.1 "${@:2}" full
}

# The kernels of a step at small sizes, through a plain program: the sanitizer does not follow Criterion's processes.
sanitizer() {
    local tool i status
    local runs=("--dtype bf16 --width 128 --heads 2" "--dtype f32 --width 48 --heads 3"
                "--model llama --dtype f16 --width 64 --heads 2")
    declare -A pids
    : >"$out/sanitizer.txt"
    for tool in $tools; do
        for i in "${!runs[@]}"; do
            # shellcheck disable=SC2086 # the words of a run are its arguments
            sanitized "$tool" ${runs[i]} >"$out/$tool$i.log" 2>&1 &
            pids[$tool$i]=$!
        done
    done
    for tool in $tools; do
        for i in "${!runs[@]}"; do
            wait "${pids[$tool$i]}"
            status=$?
            [ $status -eq 0 ] || failed=$((failed + 1))
            figure "compute-sanitizer $tool, ${runs[i]}" $status errors | tee -a "$out/sanitizer.txt"
            [ $status -eq 0 ] || grep -v '^{' "$out/$tool$i.log" | tail -20 | tee -a "$out/sanitizer.txt"
            rm -f "$out/$tool$i.log"
        done
    done
}

# Recompute on and off, recorded and as a graph: losses and gradients of every step, parameters and generator at the
# end. Masks are in there: one that differs changes its step's gradients. Nothing is timed, so all run side by side.
identity() {
    local model dtype status
    declare -A pids
    : >"$out/identity.json"
    : >"$out/identity.txt"
    for model in gpt llama; do
        for dtype in f32 bf16 f16 f64; do
            limited 140 "$bench/train_step" --device cuda --model $model --preset tiny --layers 2 --dtype $dtype \
                --batch 2 --seq 32 --dropout 0.1 --steps "$steps" none full selective:core_attn selective:mlp \
                uniform:2 block:1 ops:linear,attention names:save=qkv,attn_out >"$out/identity-$model-$dtype.log" 2>&1 &
            pids[$model-$dtype]=$!
        done
    done
    for model in gpt llama; do
        for dtype in f32 bf16 f16 f64; do
            wait "${pids[$model-$dtype]}"
            status=$?
            grep '^{' "$out/identity-$model-$dtype.log" >>"$out/identity.json"
            figure "gradients, losses, masks over $steps steps, recompute on and off, graph on and off, $model $dtype" \
                $status bytes | tee -a "$out/identity.txt"
            [ $status -eq 0 ] || { failed=$((failed + 1)); grep -v '^{' "$out/identity-$model-$dtype.log" | tail -5; }
            rm -f "$out/identity-$model-$dtype.log"
        done
    done
}

# full_size SECONDS FILE ARGUMENT...: steps at full size. The last one's gradients are enough: identity has them all.
full_size() {
    limited "$1" "$bench/train_step" --device cuda --preset "$preset" --dtype bf16 --batch "$batch" --seq "$seq" \
        --steps 10 --compare 10 "${@:3}" >"$out/$2" || echo "figures, $2: exit status $?"
}

figures() {
    full_size 45 steps.json --ceiling none full selective:core_attn
    REWIND_SDPA=cudnn full_size 15 steps-cudnn.json none full
    REWIND_VERIFY=digest full_size 15 steps-digest.json full
    # shellcheck disable=SC2086 # words
    limited 50 "$bench/train_step" --device cuda $large --dtype bf16 --seq "$seq" --steps 3 --compare 3 --ceiling \
        selective:core_attn >"$out/steps-1.5b.json" ||
        echo "figures, 1.5B: exit status $?"
}

sweep() {
    limited 30 "$bench/recompute_sweep" --device cuda --preset "$preset" --dtype bf16 --batch "$batch" --seq "$seq" \
        --steps 3 --out "$out" | tee "$out/sweep.txt"
    local status=${PIPESTATUS[0]}
    [ "$status" -eq 0 ] || { failed=$((failed + 1)); echo "sweep: exit status $status"; }
}

# Every op of a step by the device's clock, beside what it must read and write and what a copy reaches in the same run.
kernels() {
    rm -f "$out/trace.json"
    REWIND_TRACE=$out/trace.json limited 20 "$bench/train_step" --device cuda --preset "$preset" --dtype bf16 \
        --batch "$batch" --seq "$seq" --steps 4 --compare 4 --dropout 0.1 --ceiling full >"$out/kernels.json" ||
        echo "kernels: exit status $?"
    "$python" "$rewind_root/scripts/trace_table.py" "$out/trace.json" --limits "$out/kernels.json" >"$out/kernels.txt"
    cat "$out/kernels.txt"
    rm -f "$out/trace.json"
}

peers() {
    # shellcheck disable=SC2086 # words
    limited 150 "$python" "$rewind_root/bench/peers/pytorch_gpu.py" --preset "$preset" --batch "$batch" --seq "$seq" \
        --steps 10 ${REWIND_GPU_PEERS:-} none full selective:core_attn budget:0.5 >"$out/pytorch.json" ||
        echo "peers: exit status $?"
}

SECONDS=0
for part in "${parts[@]}"; do
    [[ " $chosen " == *" $part "* ]] || continue
    began=$SECONDS
    part_end=$((SECONDS + seconds[$part]))
    echo "== $part"
    $part
    echo "-- $part: $((SECONDS - began)) s"
done
"$python" "$rewind_root/scripts/gpu_figures.py" "$out" >"$out/figures.txt" || failed=$((failed + 1))
echo "== figures.txt"
cat "$out/figures.txt"
echo "all: $SECONDS s"
[ $((failed + cut_off)) -eq 0 ]
