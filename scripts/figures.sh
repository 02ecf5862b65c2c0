#!/usr/bin/env bash
# Prints every documented figure: name, value, bound, met or missed. docs/figures.md explains how each is measured. The
# rows against PyTorch need a Python with PyTorch 2.4 or later: REWIND_PYTHON=path scripts/figures.sh
#
# REWIND_ROUNDS (5): timed steps. Times on a busy machine are unreliable: the first line gives its load and its cores.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
rewind_setup bench/host_cost bench/arena_fragmentation bench/dynamic_shapes_memory bench/block_step \
    bench/prediction_error bench/budgets bench/linear_loss bench/recompute_batchnorm_step bench/moe_layer \
    bench/fp8_snr bench/quantized bench/checkpoint_save bench/optimizer_offload_step bench/fused_update_memory \
    bench/monitor_overhead bench/cpu_contended_step bench/subnormal bench/half_precision bench/disk_offload_step \
    bench/convolutions bench/model_step bench/peer_planners tests/optimum examples/train_gpt >&2
bench=$REWIND_BUILD/bench
python=${REWIND_PYTHON:-python3}
rounds=${REWIND_ROUNDS:-5}

load() { echo "# $(nproc) cores, load $1: $(cut -d' ' -f1-3 /proc/loadavg)"; }

load before
"$bench/host_cost"
"$bench/arena_fragmentation"
saved=$(mktemp -d)
"$bench/prediction_error" 9 0 small 256 "$saved"
"$bench/budgets" "$rounds"
"$bench/peer_planners" | grep ', at most '
REWIND_FIGURES=1 REWIND_OPTIMUM=200 "$REWIND_BUILD/tests/optimum" 2>/dev/null | grep ', at most '
"$bench/dynamic_shapes_memory" 2>/dev/null
"$bench/checkpoint_save" "$saved" "$rounds"
"$bench/optimizer_offload_step" "$saved"
"$bench/disk_offload_step" "$saved" "$rounds" | sed '/, at most /!s/^/# /'
rm -rf "$saved"
"$bench/fused_update_memory"
"$bench/monitor_overhead"
"$bench/cpu_contended_step"
"$bench/subnormal"
"$bench/half_precision"
"$bench/linear_loss" "$rounds"
"$bench/moe_layer" "$rounds"
"$bench/quantized" "$rounds"
"$bench/fp8_snr"
"$bench/convolutions" "$rounds" | grep -v '^#'
"$bench/recompute_batchnorm_step" "$rounds"
ours=$(mktemp) theirs=$(mktemp)
trap 'rm -f "$ours" "$theirs"' EXIT
"$bench/block_step" "$rounds" | tee "$ours" | grep -v '^{'
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "step time over PyTorch's, not measured: no PyTorch found (REWIND_PYTHON names a Python that has it)"
    exit 0
fi

# compare LABEL: compares the JSON lines in $ours and $theirs
compare() {
    "$python" - "$ours" "$theirs" "$1" <<'PY'
import json, statistics, sys

rows = [[json.loads(l) for l in open(f) if l.startswith("{")] for f in sys.argv[1:3]]
label = sys.argv[3]


def mean(side, key, **wanted):
    """None where that side has no such line."""
    found = [r[key] for r in rows[side] if key in r and all(r.get(k, v) == v for k, v in wanted.items())]
    return statistics.mean(found) if found else None


def line(name, a, b, unit, bound=None):
    if a is None or b is None:
        return print(f"{name}, not measured: torch.compile cannot compile here")
    verdict = "for comparison" if not bound else f"at most {bound}, {'met' if a <= bound * b else 'missed'}"
    print(f"{name} ({a:.4g} and {b:.4g} {unit}), {a / b:.3f} times, {verdict}")


def steps(how, what):
    for dtype in ("f32", "bf16"):
        for policy in ("none", "full"):
            line(f"step time over {what}, {policy}, {dtype}{label}", mean(0, "step_ms", dtype=dtype, policy=policy),
                 mean(1, "step_ms", dtype=dtype, policy=policy, how=how), "ms", 1)


def sizes(name, key):
    for dtype in ("f32", "bf16"):
        for policy in ("none", "full"):
            a, b = (mean(side, key, dtype=dtype, policy=policy) / 1e6 for side in (0, 1))
            line(f"{name} over PyTorch's, {policy}, {dtype}{label}", a, b, "MB")


for dtype in ("f32", "bf16"):
    line(f"rate of products over PyTorch's, {dtype}{label}", mean(0, "product_gflops", dtype=dtype),
         mean(1, "product_gflops", dtype=dtype), "GFLOP/s")
steps("eager", "PyTorch's")
steps("compiled", "torch.compile's")
sizes("kept bytes per block", "kept_per_block_bytes")
sizes("peak bytes", "peak_bytes")
PY
}

# PyTorch at its best: on AMD its MKL has to be told to take the fast path (bench/peers/mkl_force_intel.c).
preload=
if grep -qm1 AuthenticAMD /proc/cpuinfo; then
    preload=$REWIND_BUILD/bench/mkl_force_intel.so
    cc -shared -fPIC -o "$preload" "$rewind_root/bench/peers/mkl_force_intel.c"
fi
peer() { LD_PRELOAD=$preload "$python" "$rewind_root/bench/peers/pytorch_blocks.py" "$@"; }

# Alternately, so that a change of the machine's speed affects both: ours, theirs, ours.
threads=$(nproc)
peer "$rounds" >"$theirs"
"$bench/block_step" "$rounds" >>"$ours"
compare ""
# PyTorch's attention on a CPU uses its slow path, with scores in memory, if it has dropout: once more without.
"$bench/block_step" "$rounds" "$threads" 0 >"$ours"
peer "$rounds" "$threads" 0 >"$theirs"
"$bench/block_step" "$rounds" "$threads" 0 >>"$ours"
compare ", no dropout"
# Every model, also with torch.compile: takes most of an hour
LD_PRELOAD=$preload "$python" "$rewind_root/bench/peers/pytorch_zoo.py" "$bench/model_step" --rounds "$rounds" \
    --compile | grep -v '^{'
"$python" "$rewind_root/bench/peers/pytorch_loss_curves.py" "$REWIND_BUILD/examples/train_gpt" \
    "$rewind_root/bench/data/kjv.txt" 2>/dev/null | grep '^losses' || true
load after
