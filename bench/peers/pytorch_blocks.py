#!/usr/bin/env python3
"""bench/block_step in PyTorch: six GPT blocks of width 768, batch 4 x 256, forward and backward, `none` and `full` in turn.

Prints the same JSON lines.    pytorch_blocks.py [ROUNDS] [THREADS] [DROPOUT]
"""
import json
import os
import statistics
import sys
import time

import torch
from torch.utils.checkpoint import checkpoint

from pytorch_models import Block, Config


def step(blocks, x, policy):
    begin = time.perf_counter()
    y = x
    for block in blocks:
        y = block(y) if policy == "none" else checkpoint(block, y, use_reentrant=False)
    y.sum().backward()
    ms = 1e3 * (time.perf_counter() - begin)
    for p in blocks.parameters():
        p.grad = None
    x.grad = None
    return ms


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count())
    dropout = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1
    c = Config("gpt", "gpt2-124m", layers=6, dropout=dropout)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        torch.manual_seed(1)
        blocks = torch.nn.ModuleList(Block(c) for _ in range(c.layers)).to(dtype)
        x = torch.zeros(4, 256, c.width, dtype=dtype, requires_grad=True)
        times = {"none": [], "full": []}
        for i in range(rounds + 1):
            for policy, t in times.items():
                ms = step(blocks, x, policy)
                if i:
                    t.append(ms)
        for policy, t in times.items():
            print(json.dumps({"library": "pytorch " + torch.__version__, "dtype": name, "threads": torch.get_num_threads(),
                              "policy": policy, "step_ms": round(statistics.median(t), 1)}), flush=True)


if __name__ == "__main__":
    main()
