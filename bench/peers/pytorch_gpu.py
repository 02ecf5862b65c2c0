#!/usr/bin/env python3
"""bench/train_step in PyTorch on a GPU: whole training steps of the same model, eager and compiled, with
torch.utils.checkpoint around each block (`full`) and with torch.compile's memory budget (`budget:FRACTION`).

Prints the same JSON lines; `mode` is eager or compile. Times are CUDA-event times of forward, backward and a fused AdamW;
`peak_bytes` is what the allocator had in use at most, `device_bytes` what the driver has lent.

    pytorch_gpu.py [--model gpt] [--preset gpt2-124m] [--batch 32] [--seq 1024] [--dtype bf16] [--steps 20] POLICY...
"""
import argparse
import json
import statistics

import torch
from torch.utils.checkpoint import checkpoint

from pytorch_models import PRESETS, Config, Model

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=("gpt", "llama"), default="gpt")
    p.add_argument("--preset", choices=PRESETS, default="gpt2-124m")
    for name in ("layers", "width", "heads", "vocab"):
        p.add_argument("--" + name, type=int)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--dtype", choices=DTYPES, default="bf16")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--mode", choices=("eager", "compile", "both"), default="both")
    p.add_argument("policy", nargs="+", help="none, full, budget:FRACTION (compiled only)")
    return p.parse_args()


def build(o):
    c = Config(o.model, o.preset, layers=o.layers, width=o.width, heads=o.heads, vocab=o.vocab, dropout=o.dropout, max_seq=o.seq)
    torch.manual_seed(42)
    return c, Model(c).to(DTYPES[o.dtype])


def block_runner(policy):
    if policy == "full":
        return lambda i, block, x: checkpoint(block, x, use_reentrant=False)
    return lambda i, block, x: block(x)


def step_function(model, policy, compiled):
    run = block_runner(policy)

    def loss_of(tokens, targets):
        return model(tokens, targets, run)

    if not compiled:
        return loss_of
    torch._dynamo.reset()
    budget = float(policy.split(":")[1]) if policy.startswith("budget:") else 1.0
    torch._functorch.config.activation_memory_budget = budget
    return torch.compile(loss_of)


def train(o, policy, compiled):
    c, model = build(o)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    loss_of = step_function(model, policy, compiled)
    generator = torch.Generator("cuda").manual_seed(1)
    times, loss = [], None
    for step in range(o.steps + 3):
        batch = torch.randint(0, c.vocab, (2, o.batch, o.seq), generator=generator)
        if step == 3:
            torch.cuda.reset_peak_memory_stats()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(batch[0], batch[1])
        loss.backward()
        optimizer.step()
        end.record()
        torch.cuda.synchronize()
        if step >= 3:
            times.append(begin.elapsed_time(end))
    free, total = torch.cuda.mem_get_info()
    return {"library": "pytorch " + torch.__version__, "device": torch.cuda.get_device_name(), "model": o.model,
            "preset": o.preset, "layers": c.layers, "width": c.width, "dtype": o.dtype, "batch": o.batch, "seq": o.seq,
            "dropout": o.dropout, "policy": policy, "mode": "compile" if compiled else "eager",
            "step_ms": round(statistics.median(times), 3), "peak_bytes": torch.cuda.max_memory_allocated(),
            "device_bytes": total - free, "loss": loss.item()}


def main():
    o = options()
    torch.set_default_device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    for policy in o.policy:
        for compiled in (False, True):
            if (o.mode == "eager" and compiled) or (o.mode == "compile" and not compiled):
                continue
            if policy.startswith("budget:") and not compiled:
                continue
            print(json.dumps(train(o, policy, compiled)), flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
