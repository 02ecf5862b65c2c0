#!/usr/bin/env bash
# Prints every figure the project promises: name, value, bound, met or missed.
# The rows against PyTorch need a Python with PyTorch 2.4 or later: REWIND_PYTHON=path scripts/figures.sh
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
rewind_setup bench/host_cost bench/memory_figures bench/block_step >&2
bench=$REWIND_BUILD/bench
python=${REWIND_PYTHON:-python3}
rounds=${REWIND_ROUNDS:-5}

"$bench/host_cost"
"$bench/memory_figures"
ours=$(mktemp) theirs=$(mktemp)
trap 'rm -f "$ours" "$theirs"' EXIT
"$bench/block_step" "$rounds" | tee "$ours" | grep -v '^{'
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "step time over PyTorch's, not measured: no PyTorch found (REWIND_PYTHON names a Python that has it)"
    exit 0
fi
# In turns, so that a machine that changes its speed changes both: ours, theirs, ours.
"$python" "$rewind_root/bench/peers/pytorch_blocks.py" "$rounds" >"$theirs"
"$bench/block_step" "$rounds" >>"$ours"
"$python" - "$ours" "$theirs" <<'PY'
import json, statistics, sys
rows = [[json.loads(l) for l in open(f) if l.startswith("{")] for f in sys.argv[1:3]]
for dtype in ("f32", "bf16"):
    for policy in ("none", "full"):
        a, b = (statistics.mean(r["step_ms"] for r in side if r["dtype"] == dtype and r["policy"] == policy) for side in rows)
        print(f"step time over PyTorch's, {policy}, {dtype} ({a:.0f} and {b:.0f} ms), {a / b:.3f} times, at most 1, "
              f"{'met' if a <= b else 'missed'}")
PY
