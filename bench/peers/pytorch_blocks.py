#!/usr/bin/env python3
"""bench/block_step in PyTorch: six GPT blocks of width 768, batch 4 x 256, `none` and `full` in turn.

Prints the same JSON lines (pytorch_memory.py says which bytes count).    pytorch_blocks.py [ROUNDS] [THREADS] [DROPOUT]
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


def forward(blocks, x, policy):
    for block in blocks:
        x = block(x) if policy == "none" else checkpoint(block, x, use_reentrant=False)
    return x.sum()


def forget(blocks, x):
    for p in blocks.parameters():
        p.grad = None
    x.grad = None


def step(blocks, x, policy):
    begin = time.perf_counter()
    forward(blocks, x, policy).backward()
    ms = 1e3 * (time.perf_counter() - begin)
    forget(blocks, x)
    return ms


def memory(blocks, x, policy):
    with Held(blocks) as held:
        loss = forward(blocks, x, policy)
        held.forward_done()
        loss.backward()
    found = held.kept(), held.peak()
    forget(blocks, x)
    return found


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count())
    dropout = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1
    c = Config("gpt", "gpt2-124m", layers=6, dropout=dropout)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        torch.manual_seed(1)
        blocks = torch.nn.ModuleList(Block(c) for _ in range(c.layers)).to(dtype)
        x = torch.zeros(4, 256, c.width, dtype=dtype, requires_grad=True)
        bytes_of = {policy: (memory(blocks, x, policy), memory(blocks[:-1], x, policy)) for policy in ("none", "full")}
        times = {"none": [], "full": []}
        for _ in range(rounds):
            for policy, t in times.items():
                t.append(step(blocks, x, policy))
        for policy, t in times.items():
            (kept, peak), (kept_less, _) = bytes_of[policy]
            ms = statistics.median(t)
            print(json.dumps({"library": "pytorch " + torch.__version__, "dtype": name,
                              "threads": torch.get_num_threads(), "policy": policy, "step_ms": round(ms, 1),
                              "ratio": round(ms / statistics.median(times["none"]), 4), "kept_bytes": kept,
                              "kept_per_block_bytes": kept - kept_less, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
