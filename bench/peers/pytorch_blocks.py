#!/usr/bin/env python3
"""bench/block_step in PyTorch: six GPT blocks of width 768, batch 4 x 256, `none` and `full`, eager and compiled,
alternately.

Prints the same JSON lines (pytorch_memory.py defines the counted bytes).    pytorch_blocks.py [ROUNDS] [THREADS]
[DROPOUT]
"""
import json
import os
import statistics
import sys
import time

import torch
from torch.utils.checkpoint import checkpoint

from pytorch_memory import Held
from pytorch_models import Block, Config


def milliseconds(run):
    begin = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begin)


def product_rate(dtype):
    """GFLOP/s of a product of square matrices, measured as in bench/device_roofline.c: sizes double up to 5 ms."""
    best, n, ms = 0, 256, 0
    while n <= 8192 and ms < 5:
        a, b = torch.randn(n, n).to(dtype), torch.randn(n, n).to(dtype)
        rounds = [milliseconds(lambda: [a @ b for _ in range(8)]) / 8 for _ in range(5)]
        ms = statistics.median(rounds[1:])
        best, n = max(best, 2e-6 * n ** 3 / ms), 2 * n
    return best


def forward(blocks, x, policy):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False) if policy == "full" else block(x)
    return x.sum()


def step(blocks, x, policy):
    """Milliseconds of forward and backward."""
    ms = milliseconds(lambda: forward(blocks, x, policy).backward())
    forget(blocks, x)
    return ms


def forget(blocks, x):
    for p in [x] + [p for block in blocks for p in block.parameters()]:
        p.grad = None


def memory(blocks, x, policy):
    """Kept and peak bytes."""
    with Held(torch.nn.ModuleList(blocks)) as held:
        loss = forward(blocks, x, policy)
        held.forward_done()
        loss.backward()
    found = held.kept(), held.peak()
    forget(blocks, x)
    return found


def compiled(blocks, x):
    """The blocks under torch.compile, both policies run once; None, and the reason, if it cannot compile."""
    made = [torch.compile(block, dynamic=False) for block in blocks]
    try:
        step(made, x, "none")
        step(made, x, "full")
    except Exception as e:  # any error of its compilers
        print(f"torch.compile: {e}".split("\n")[0], file=sys.stderr)
        return None
    return made


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count())
    dropout = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1
    c = Config("gpt", "gpt2-124m", layers=6, dropout=dropout)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        common = {"library": "pytorch " + torch.__version__, "dtype": name, "threads": torch.get_num_threads()}
        print(json.dumps(common | {"product_gflops": round(product_rate(dtype), 1)}), flush=True)
        torch.manual_seed(1)
        blocks = list(torch.nn.ModuleList(Block(c) for _ in range(c.layers)).to(dtype))
        x = torch.zeros(4, 256, c.width, dtype=dtype, requires_grad=True)
        bytes_of = {policy: (memory(blocks, x, policy), memory(blocks[:-1], x, policy)) for policy in ("none", "full")}
        ways = {"eager": blocks, "compiled": compiled(blocks, x)}
        times = {(how, policy): [] for how, made in ways.items() if made for policy in bytes_of}
        for _ in range(rounds):
            for (how, policy), t in times.items():
                t.append(step(ways[how], x, policy))
        for (how, policy), t in times.items():
            (kept, peak), (kept_less, _) = bytes_of[policy]
            ms = statistics.median(t)
            line = common | {"how": how, "policy": policy, "step_ms": round(ms, 1),
                             "ratio": round(ms / statistics.median(times[how, "none"]), 4)}
            if how == "eager":  # the storages of compiled code are not visible
                line |= {"kept_bytes": kept, "kept_per_block_bytes": kept - kept_less, "peak_bytes": peak}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
