#!/usr/bin/env bash
# Builds, tests and measures on a GPU, in two commands that fit into one lease of fifteen minutes. Writes the results,
# with the machine's description, to bench/results/DEVICE/. Needs no network: nothing is installed.
#
#   scripts/gpu_check.sh check      at most 480 s: machine build smoke tests convolutions kernels identity
#   scripts/gpu_check.sh measure    at most 200 s, with the build of the first: figures fp8 races peers
#   scripts/gpu_check.sh PART...    any of these parts, and: sweep large
#
# A part is ended after its seconds; a failed build or smoke test ends the run, because nothing after it could pass. A
# part that fails, is ended or writes nothing counts as missed figures. Differences and failures make the exit status 1,
# a slow step does not.
#
# REWIND_PYTHON names a Python with PyTorch, for the peers. REWIND_OUT is another folder for the results,
# REWIND_GPU_BUILD one for the build, REWIND_GPU_OPTIONS more options of meson, such as -Dtoolkit_include=DIR. The other
# REWIND_GPU_... below are sizes, for a rehearsal without a GPU.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# The seconds of each part, for an H100 and 16 cores. In brackets: measured there, for parts that have run.
declare -A seconds=(
    [machine]=5
    [build]=130       # tests and benchmarks for this device only; an existing build takes a second
    [smoke]=30        # compute-sanitizer with two steps of each model, concurrently
    [tests]=200       # a process per test, six suites at a time; those that changed first [300 for all]
    [convolutions]=50 # suites of convolutions by cuDNN, ResNet-50 by our tiles and by cuDNN
    [kernels]=25      # a traced step of each model
    [identity]=40     # [20 for 200 steps of eight policies]
    [figures]=70      # [35] 124M: six rows of eleven steps, another attention, digests
    [fp8]=45          # a Llama of width 4096 with FP8 operands, and in bfloat16
    [races]=45        # racecheck and synccheck, the programs of smoke
    [peers]=40        # PyTorch, eager
    [sweep]=25        # [18] eight rows of four steps
    [large]=50        # 1.5 billion parameters
)
check=(machine build smoke tests convolutions kernels identity)
measure=(figures fp8 races peers)
parts=("${check[@]}" "${measure[@]}" sweep large)

case ${1:-} in
check) chosen=${check[*]} ;;
measure) chosen=${measure[*]} ;;
*) chosen=$* ;;
esac
all_seconds=0
for part in $chosen; do
    [ -n "${seconds[$part]:-}" ] || { chosen=; break; }
    all_seconds=$((all_seconds + seconds[$part]))
done
[ -n "$chosen" ] && [ $# -eq 1 -o "$chosen" = "$*" ] || {
    echo "usage: scripts/gpu_check.sh check | measure | PART...; parts: ${parts[*]}" >&2
    exit 2
}
all_seconds=${REWIND_GPU_SECONDS:-$all_seconds}
python=${REWIND_PYTHON:-python3}
build=${REWIND_GPU_BUILD:-$REWIND_BUILD-gpu}
bench=$build/bench
steps=${REWIND_GPU_STEPS:-200}
batch=${REWIND_GPU_BATCH:-32}
preset=${REWIND_GPU_PRESET:-gpt2-124m}
seq=${REWIND_GPU_SEQ:-1024}
images=${REWIND_GPU_IMAGES:-published}
side=${REWIND_GPU_SIDE:-224}
# GPT-2 XL: 1.5 billion parameters
large=${REWIND_GPU_LARGE:-"--preset gpt2-124m --layers 48 --width 1600 --heads 25 --batch 16"}
fp8_sizes=${REWIND_GPU_FP8:-"--layers 4 --width 4096 --heads 32 --batch 4"}
passed=0 failed=0 skipped=0 cut_off=0

name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
[ -n "$name" ] || { echo "no GPU: nvidia-smi is missing, does not answer, or lists none" >&2; exit 2; }
out=${REWIND_OUT:-$rewind_root/bench/results/$(tr 'A-Z ' 'a-z-' <<<"$name")}
mkdir -p "$out" || exit 2
# A command must not show results of an earlier one, also if it ends early
declare -A files=(
    [machine]=machine.txt [smoke]=smoke.txt [tests]=tests.txt
    [convolutions]="convolutions.txt resnet50-own/sweep.json resnet50-cudnn/sweep.json"
    [kernels]="kernels.txt kernels.json" [identity]="identity.txt identity.json"
    [figures]="steps.json steps-cudnn.json steps-digest.json" [fp8]="fp8.json fp8-cublaslt.txt" [races]=races.txt
    [peers]="pytorch.json pytorch-layers.json" [sweep]="sweep.txt sweep.json" [large]=steps-1.5b.json
)
for part in $chosen; do
    for file in ${files[$part]:-}; do rm -f "$out/$file"; done
done

PATH=$PATH:/usr/local/cuda/bin # nvcc and compute-sanitizer, if the toolkit is not in the path

# Each part sets these variables itself
unset REWIND_POLICY REWIND_VERIFY REWIND_EAGER REWIND_TRACE

# limited SECONDS COMMAND...: limits the command to that time, and to the rest of the part's; exit status 124 when cut
# off
limited() {
    local most=$1 left=$((part_end - SECONDS))
    shift
    [ "$left" -gt $((all_seconds - SECONDS)) ] && left=$((all_seconds - SECONDS))
    [ "$left" -lt "$most" ] && most=$left
    [ "$most" -ge 1 ] || return 124
    timeout --kill-after=5 "$most" "$@"
}

# figure NAME STATUS UNIT: a yes or no in the format of the other figures
figure() {
    if [ "$2" -eq 0 ]; then echo "$1, 0 $3, at most 0, met"; else echo "$1, exit status $2, at most 0, missed"; fi
}

# The driver must support the toolkit's major version: checked before the build.
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
    echo '__global__ void nothing() {}' | nvcc -x cu -c -o "$out/nothing.o" - && rm -f "$out/nothing.o" && return 0
    echo "nvcc compiles no kernel" >&2
    exit 1
}

# For this device only, without the simulator. -Dcuda=enabled: a missing dependency is an error.
build() {
    local arch
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
    [[ $arch =~ ^[0-9]+$ ]] || arch=80
    # shellcheck disable=SC2086 # words
    rewind_configure "$build" -Dcuda=enabled -Dcudasim=disabled -Dptx=disabled -Dexamples=disabled "-Dgpu_arch=$arch" \
        ${REWIND_GPU_OPTIONS:-} && limited "${seconds[build]}" ninja -C "$build" >"$build.log" 2>&1 && return
    tail -40 "$build.log"
    echo "The build failed or took longer than ${seconds[build]} s. Needed are the CUDA Toolkit with cuDNN" \
        "(docs/cuda.md; REWIND_GPU_OPTIONS names its folders), and as Debian calls them: ${rewind_packages[*]}" >&2
    exit 1
}

# suite SECONDS NAME: runs one of them on the GPU; its exit status goes to NAME.status.
suite() {
    local status
    REWIND_FUZZ_PROGRAMS=${REWIND_FUZZ_PROGRAMS:-15} REWIND_TEST_DEVICE=cuda REWIND_TEST_LARGE=1 \
        limited "$1" "$build/tests/$2" --tap --jobs "${3:-2}" >"$out/$2.log" 2>&1 </dev/null
    echo $? >"$out/$2.status"
}

# verdict NAME FILE: counts the results of suite(), and appends them to FILE as well
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

# Suites of kernels that changed after a GPU last ran them, the most important first.
changed="losses fused_bias_grad_norms fused_bias_grad_dropout fused_bias_grad_attention attention fp8_matmul float8
delayed_scaling_bit_identity precision_recipe_bit_identity conv virtual_concat_conv batchnorm moe moe_routing ssd_scan
manual_offload_choices offload offload_files step_graph_launch step_graph_fused_updates
fused_updates optimizer_offload accuracy offsets large"

# The suites, those in `changed` first.
suites_in_order() {
    local t
    for t in $changed; do grep -x "$t" "$build/tests/gpu_suites.txt"; done
    grep -vxF -e conformance_memory "${changed_lines[@]/#/-e}" "$build/tests/gpu_suites.txt"
}

# Several at a time, because a process per test mostly waits for its device context, not for the device. The suite that
# compares the device memory in use by all processes runs alone, at the end. Suites for which no time is left are not
# run, and named.
tests() {
    local t left_out=()
    : >"$out/tests.txt"
    passed=0 failed=0 skipped=0 cut_off=0
    mapfile -t changed_lines < <(xargs -n1 <<<"$changed")
    while read -r t; do
        while [ "$(jobs -rp | wc -l)" -ge "${REWIND_GPU_JOBS:-6}" ]; do wait -n; done
        if [ $((part_end - SECONDS)) -lt 15 ]; then left_out+=("$t"); else suite 150 "$t" & fi
    done < <(suites_in_order)
    wait
    if [ $((part_end - SECONDS)) -lt 15 ]; then left_out+=(conformance_memory); else suite 60 conformance_memory 1; fi
    while read -r t; do
        [ ! -f "$out/$t.status" ] || verdict "$t" tests.txt
    done < <(suites_in_order; echo conformance_memory)
    [ $((passed + failed)) -gt 0 ] || failed=1 # no suites: Criterion is missing
    [ ${#left_out[@]} -eq 0 ] || echo "no time was left for: ${left_out[*]}" | tee -a "$out/tests.txt"
    echo "tests on the GPU: $passed passed, $failed failed, $skipped skipped, $cut_off suites cut off," \
        "${#left_out[@]} not run" | tee -a "$out/tests.txt"
}

# By cuDNN, which the other parts do not use: the suites with convolutions, and the steps of a network compared with
# those by our own tiles. recompute_sweep compares every row with the bytes of the first.
convolutions() {
    local t by status
    local suites="accuracy conv virtual_concat_conv golden gradcheck offsets"
    : >"$out/convolutions.txt"
    for t in $suites; do REWIND_TEST_OPS=conv REWIND_GOLDEN_FILE=conv.golden REWIND_CONV=cudnn suite 30 $t & done
    wait
    for t in $suites; do verdict $t convolutions.txt; done
    for by in own cudnn; do
        mkdir -p "$out/resnet50-$by"
        REWIND_CONV=$by limited 15 "$bench/recompute_sweep" --device cuda --model resnet50 --preset "$images" \
            --dtype bf16 --batch 32 --seq "$side" --steps "$([ $by = own ] && echo 1 || echo 5)" \
            --policy "none full" --out "$out/resnet50-$by" |
            sed "s/^/convolutions by $by: /" | tee -a "$out/convolutions.txt"
        status=${PIPESTATUS[0]}
        [ "$status" -eq 0 ] || { failed=$((failed + 1)); echo "ResNet-50, $by: exit status $status"; }
    done
}

# Programs that execute the kernels of a step at small sizes, because the sanitizer does not follow Criterion's
# processes. Heads of 64 in bfloat16 use the attention for tensor cores, float32 and odd sizes the portable one. A line
# of words each: a name, settings, the program; OUT is a folder.
step="$bench/train_step --device cuda --layers 1 --batch 1 --seq 65 --steps 2 --dropout 0.1"
sweep_step="$bench/recompute_sweep --device cuda --preset tiny --dtype bf16 --batch 1 --seq 64 --steps 2 --policy full"
small_programs=(
    "gpt_bf16 $step --dtype bf16 --width 128 --heads 2 full"
    "gpt_f32 $step --dtype f32 --width 48 --heads 3 full"
    "llama_f16 $step --model llama --dtype f16 --width 64 --heads 2 full"
    "llama_fp8 $step --model llama --dtype bf16 --fp8 --seq 64 --width 128 --heads 2 full"
    "deepseek $sweep_step --model deepseek --out OUT-deepseek"
    "mamba2 $sweep_step --model mamba2 --out OUT-mamba2"
    "resnet50_own REWIND_CONV=own $sweep_step --model resnet50 --out OUT-own"
    "resnet50_cudnn REWIND_CONV=cudnn $sweep_step --model resnet50 --out OUT-cudnn"
)

# sanitized FILE SECONDS TOOL...: each tool over each of the programs, concurrently. Fails if one of them does; one for
# which the time was too short is counted, but does not end the run.
sanitized() {
    local file=$1 most=$2 tool line words log status bad=0
    declare -A pids
    : >"$out/$file"
    for tool in "${@:3}"; do
        for line in "${small_programs[@]}"; do
            read -ra words <<<"${line//OUT/$out/small-$tool}"
            log=$out/$tool-${words[0]}.log
            limited "$most" compute-sanitizer --tool "$tool" --error-exitcode 9 \
                env "${words[@]:1}" >"$log" 2>&1 &
            pids[$tool-${words[0]}]=$!
        done
    done
    for tool in "${@:3}"; do
        for line in "${small_programs[@]}"; do
            read -ra words <<<"$line"
            wait "${pids[$tool-${words[0]}]}"
            status=$?
            figure "compute-sanitizer $tool, ${words[0]}" $status errors | tee -a "$out/$file"
            log=$out/$tool-${words[0]}.log
            [ $status -eq 0 ] || { failed=$((failed + 1)); grep -v '^{' "$log" | tail -20 | tee -a "$out/$file"; }
            [ $status -eq 0 ] || [ $status -eq 124 ] || bad=1
            rm -f "$log"
        done
    done
    rm -rf "$out"/small-*
    return $bad
}

# Before anything else runs: a kernel that breaks the context would make every later part fail without a reason.
smoke() {
    sanitized smoke.txt "${seconds[smoke]}" memcheck && return
    echo "A kernel is wrong: nothing else is run"
    exit 1
}

races() {
    sanitized races.txt "${seconds[races]}" racecheck synccheck
}

# Recompute on and off, recorded and as a graph: losses and gradients of every step, parameters and generator at the
# end. These include masks: a different one changes its step's gradients. Nothing is timed, so all run concurrently.
identity() {
    local model dtype status
    declare -A pids
    : >"$out/identity.json"
    : >"$out/identity.txt"
    for model in gpt llama; do
        for dtype in f32 bf16 f16 f64; do
            limited 40 "$bench/train_step" --device cuda --model $model --preset tiny --layers 2 --dtype $dtype \
                --batch 2 --seq 32 --dropout 0.1 --steps "$steps" none full selective:core_attn selective:mlp \
                uniform:2 block:1 ops:linear,attention names:keep=qkv,attn_out budget:50%+offload \
                full+offload:block >"$out/identity-$model-$dtype.log" 2>&1 &
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

# full_size SECONDS FILE ARGUMENT...: steps at full size. Only the last one's gradients are compared: identity compares
# all of them.
full_size() {
    limited "$1" "$bench/train_step" --device cuda --preset "$preset" --dtype bf16 --batch "$batch" --seq "$seq" \
        --steps 10 --compare 10 "${@:3}" >"$out/$2" || echo "figures, $2: exit status $?"
}

figures() {
    full_size 40 steps.json --ceiling none full selective:core_attn
    REWIND_SDPA=cudnn full_size 15 steps-cudnn.json none full
    REWIND_VERIFY=digest full_size 15 steps-digest.json full
}

large() {
    # shellcheck disable=SC2086 # words
    limited 50 "$bench/train_step" --device cuda $large --dtype bf16 --seq "$seq" --steps 3 --compare 3 --ceiling \
        selective:core_attn >"$out/steps-1.5b.json" ||
        echo "large: exit status $?"
}

# The same model with FP8 operands and in bfloat16. cuBLASLt's own log names the kernels that it ran; the rows give the
# number of products that fell back to bfloat16, and any is a failure.
fp8() {
    local options
    : >"$out/fp8.json"
    for options in "" --fp8; do
        # shellcheck disable=SC2086 # words
        CUBLASLT_LOG_LEVEL=2 CUBLASLT_LOG_FILE=$out/fp8-cublaslt.txt limited 22 "$bench/train_step" --device cuda \
            --model llama $fp8_sizes --dtype bf16 --seq "$seq" --steps 5 --compare 5 $options none >>"$out/fp8.json" ||
            echo "fp8: exit status $?"
    done
    cat "$out/fp8.json"
    if [ -f "$out/fp8-cublaslt.txt" ]; then truncate -s "<2000000" "$out/fp8-cublaslt.txt"; fi
    grep -q '"fp8_products": [1-9]' "$out/fp8.json" && ! grep -q '"decoded_products": [1-9]' "$out/fp8.json" && return
    failed=$((failed + 1))
    echo "fp8: products fell back to bfloat16, or none ran"
}

sweep() {
    limited 30 "$bench/recompute_sweep" --device cuda --preset "$preset" --dtype bf16 --batch "$batch" --seq "$seq" \
        --steps 3 --out "$out" | tee "$out/sweep.txt"
    local status=${PIPESTATUS[0]}
    [ "$status" -eq 0 ] || { failed=$((failed + 1)); echo "sweep: exit status $status"; }
}

# traced NAME SECONDS COMMAND...: appends a table of every op of the command's last context to kernels.txt, by the
# device's clock. The command's output is in kernels.json.
traced() {
    local name=$1 most=$2 trace
    shift 2
    rm -f "$out"/trace.json*
    REWIND_TRACE=$out/trace.json limited "$most" "$@" >"$out/kernels.part" || echo "kernels, $name: exit status $?"
    grep '^{' "$out/kernels.part" >>"$out/kernels.json"
    trace=$(find "$out" -maxdepth 1 -name 'trace.json*' | sort -V | tail -1)
    echo "== $name" >>"$out/kernels.txt"
    if grep -q '"ceiling_tflops"' "$out/kernels.part"; then set -- --limits "$out/kernels.part"; else set --; fi
    "$python" "$rewind_root/scripts/trace_table.py" "${trace:-none}" "$@" >>"$out/kernels.txt"
    rm -f "$out"/trace.json* "$out/kernels.part"
}

# Compared with the bytes that each op must read and write, at the rate of a copy in the same run.
kernels() {
    local gpt="$bench/train_step --device cuda --preset $preset --dtype bf16 --batch $batch --seq $seq --steps 4
               --compare 4 --ceiling" model
    rm -f "$out/kernels.txt" "$out/kernels.json"
    # shellcheck disable=SC2086 # words
    traced "gpt" 8 $gpt full
    # shellcheck disable=SC2086 # words
    traced "gpt, dropout 0.1" 8 $gpt --dropout 0.1 full
    for model in deepseek mamba2; do
        traced "$model" 5 "$bench/recompute_sweep" --device cuda --model $model --dtype bf16 --batch 8 --seq 512 \
            --steps 2 --policy none --out "$out/traced"
    done
    REWIND_CONV=cudnn traced resnet50 5 "$bench/recompute_sweep" --device cuda --model resnet50 --preset "$images" \
        --dtype bf16 --batch 32 --seq "$side" --steps 2 --policy none --out "$out/traced"
    rm -rf "$out/traced"
    cat "$out/kernels.txt"
}

# Without compiling, which alone would take longer than the time of this command.
peers() {
    if ! "$python" -c 'import torch' 2>/dev/null; then
        echo "peers: $python has no PyTorch"
        return
    fi
    # shellcheck disable=SC2086 # words
    limited 25 "$python" "$rewind_root/bench/peers/pytorch_gpu_train_step.py" --preset "$preset" --batch "$batch" \
        --seq "$seq" --steps 10 --mode eager ${REWIND_GPU_PEERS:-} none full >"$out/pytorch.json" ||
        echo "peers: exit status $?"
    limited 15 "$python" "$rewind_root/bench/peers/pytorch_gpu_resnet_moe.py" --side "$side" \
        >"$out/pytorch-layers.json" ||
        echo "peers, layers: exit status $?"
    cat "$out/pytorch-layers.json"
}

SECONDS=0
for part in $chosen; do
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
