#!/usr/bin/env bash
# Where a GPU is at hand: builds, runs every test on it, compute-sanitizer over the kernels, the figures and the peers, and
# writes what it finds, with the machine's description, to bench/results/DEVICE/. Under ten minutes, no network.
#
#   scripts/gpu_check.sh [PART...]    machine build tests sanitizer identity figures kernels peers; all without an argument
#
# REWIND_PYTHON names a Python that has PyTorch, for the peers. REWIND_OUT is a folder to write to instead.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

all="machine build tests sanitizer identity figures kernels peers"
parts=${*:-$all}
for part in $parts; do
    [[ " $all " == *" $part "* ]] || { echo "usage: scripts/gpu_check.sh [PART...], of: $all" >&2; exit 2; }
done
python=${REWIND_PYTHON:-python3}
bench=$REWIND_BUILD/bench
passed=0 failed=0

name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1) ||
    { echo "no GPU: nvidia-smi does not answer" >&2; exit 2; }
[ -n "$name" ] || { echo "no GPU: nvidia-smi lists none" >&2; exit 2; }
folder=$(tr 'A-Z ' 'a-z-' <<<"$name")
out=${REWIND_OUT:-$rewind_root/bench/results/$folder}
mkdir -p "$out"

wanted() { [[ " $parts " == *" $1 "* ]]; }

machine() {
    {
        echo "date: $(date -u +%Y-%m-%dT%H:%MZ)"
        echo "commit: $(git -C "$rewind_root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit --format=csv
        nvcc --version | tail -2
        grep -m1 'model name' /proc/cpuinfo
        nproc
    } >"$out/machine.txt" 2>&1
    cat "$out/machine.txt"
}

build() {
    rewind_install && rewind_build "$REWIND_BUILD" || exit 1
}

# One test at a time: a GPU is not shared, and a failing test is then easy to name.
tests() {
    local t ok bad status
    : >"$out/tests.txt"
    while read -r t; do
        REWIND_TEST_DEVICE=cuda timeout 150 "$REWIND_BUILD/tests/$t" --tap --jobs 1 >"$out/$t.log" 2>&1 </dev/null
        status=$?
        ok=$(grep -c '^ok ' "$out/$t.log") bad=$(grep -c '^not ok ' "$out/$t.log")
        if [ $status -ne 0 ] && [ "$bad" -eq 0 ] || [ $((ok + bad)) -eq 0 ]; then bad=$((bad + 1)); fi
        passed=$((passed + ok)) failed=$((failed + bad))
        echo "$t: $ok passed, $bad failed, exit status $status" | tee -a "$out/tests.txt"
        if [ "$bad" -gt 0 ]; then grep -v '^ok ' "$out/$t.log" | tail -25 | tee -a "$out/tests.txt"; fi
        rm -f "$out/$t.log"
    done < <(grep -v -e cudasim_test "$REWIND_BUILD/tests/suites.txt")
    echo "tests on the GPU: $passed passed, $failed failed" | tee -a "$out/tests.txt"
}

# Every kernel at small sizes, through a plain program: the sanitizer does not follow Criterion's processes.
sanitizer() {
    local tool status
    for tool in memcheck racecheck; do
        timeout 120 compute-sanitizer --tool $tool --error-exitcode 9 "$bench/train_step" --device cuda --preset tiny --layers 1 \
            --batch 2 --seq 65 --steps 2 --dtype bf16 --dropout 0.1 full >"$out/$tool.txt" 2>&1
        status=$?
        echo "compute-sanitizer $tool: exit status $status, $(tail -1 "$out/$tool.txt")"
    done
}

# Recompute on and off, recorded and as a graph, 1,000 steps: losses, parameters, generator.
identity() {
    local model dtype status
    : >"$out/identity.json"
    for model in gpt llama; do
        for dtype in f32 bf16 f64; do
            timeout 60 "$bench/train_step" --device cuda --model $model --preset tiny --dtype $dtype --batch 2 --seq 64 --dropout 0.1 \
                --steps 1000 none full selective:core_attn uniform:2 >>"$out/identity.json"
            status=$?
            echo "bytes that differ over 1,000 steps, $model $dtype, graph on and off, $([ $status -eq 0 ] && echo 0, at most 0, met ||
                echo "exit status $status, missed")"
        done
    done
}

figures() {
    timeout 200 "$bench/train_step" --device cuda --preset gpt2-124m --dtype bf16 --batch 32 --seq 1024 --steps 10 --ceiling \
        none full selective:core_attn >"$out/steps.json"
    # 1.5 billion parameters: GPT-2 XL's sizes
    timeout 120 "$bench/train_step" --device cuda --preset gpt2-124m --layers 48 --width 1600 --heads 25 --dtype bf16 --batch 16 \
        --seq 1024 --steps 5 --ceiling selective:core_attn >"$out/steps-1.5b.json"
}

# Every op of a step by the device's clock, beside what it must read and write.
kernels() {
    REWIND_TRACE=$out/trace.json timeout 60 "$bench/train_step" --device cuda --preset gpt2-124m --dtype bf16 --batch 32 --seq 1024 \
        --steps 2 full >/dev/null
    "$python" "$rewind_root/scripts/trace_table.py" "$out/trace.json" | tee "$out/kernels.txt"
    rm -f "$out"/trace.json*
}

peers() {
    timeout 240 "$python" "$rewind_root/bench/peers/pytorch_gpu.py" --steps 10 none full budget:0.5 >"$out/pytorch.json"
}

for part in $all; do
    if wanted $part; then echo "== $part"; $part; fi
done
if wanted figures; then "$python" "$rewind_root/scripts/gpu_figures.py" "$out" | tee "$out/figures.txt"; fi
[ $failed -eq 0 ]
