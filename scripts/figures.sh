#!/usr/bin/env bash
# Prints every figure the project promises: name, value, bound, met or missed. docs/figures.md says how it is measured.
# The rows against PyTorch need a Python with PyTorch 2.4 or later: REWIND_PYTHON=path scripts/figures.sh
# REWIND_ROUNDS (5): timed steps. Times of a busy machine say little: the first line gives its load and its cores.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
rewind_setup bench/host_cost bench/memory_figures bench/block_step >&2
bench=$REWIND_BUILD/bench
python=${REWIND_PYTHON:-python3}
rounds=${REWIND_ROUNDS:-5}

load() { echo "# $(nproc) cores, load $1: $(cut -d' ' -f1-3 /proc/loadavg)"; }

load before
"$bench/host_cost"
"$bench/memory_figures"
ours=$(mktemp) theirs=$(mktemp)
trap 'rm -f "$ours" "$theirs"' EXIT
"$bench/block_step" "$rounds" | tee "$ours" | grep -v '^{'
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "step time over PyTorch's, not measured: no PyTorch found (REWIND_PYTHON names a Python that has it)"
    exit 0
fi

# compare LABEL: the JSON lines in $ours and $theirs
compare() {
    "$python" - "$ours" "$theirs" "$1" <<'PY'
import json, statistics, sys

rows = [[json.loads(l) for l in open(f) if l.startswith("{")] for f in sys.argv[1:3]]


def lines(name, key, unit, scale, bound):
    for dtype in ("f32", "bf16"):
        for policy in ("none", "full"):
            a, b = (statistics.mean(r[key] for r in side if (r["dtype"], r["policy"]) == (dtype, policy)) / scale
                    for side in rows)
            verdict = ", for comparison" if not bound else f", at most {bound}, {'met' if a <= bound * b else 'missed'}"
            print(f"{name} over PyTorch's, {policy}, {dtype}{sys.argv[3]} ({a:.4g} and {b:.4g} {unit}), "
                  f"{a / b:.3f} times{verdict}")


lines("step time", "step_ms", "ms", 1, 1)
lines("kept bytes per block", "kept_per_block_bytes", "MB", 1e6, None)
lines("peak bytes", "peak_bytes", "MB", 1e6, None)
PY
}

# In turns, so that a machine that changes its speed changes both: ours, theirs, ours.
threads=$(nproc)
"$python" "$rewind_root/bench/peers/pytorch_blocks.py" "$rounds" >"$theirs"
"$bench/block_step" "$rounds" >>"$ours"
compare ""
# PyTorch's attention on a CPU is the slow one, with scores in memory, as long as it drops anything: once more without.
"$bench/block_step" "$rounds" "$threads" 0 >"$ours"
"$python" "$rewind_root/bench/peers/pytorch_blocks.py" "$rounds" "$threads" 0 >"$theirs"
"$bench/block_step" "$rounds" "$threads" 0 >>"$ours"
compare ", no dropout"
load after
