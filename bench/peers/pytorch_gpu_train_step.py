#!/usr/bin/env python3
"""bench/train_step in PyTorch on a GPU: whole training steps of the same model, eager and compiled, with
torch.utils.checkpoint around each block (`full`) or the attention (`selective:core_attn`, eager only), and with
torch.compile's memory budget (`budget:FRACTION`, compiled only).

Prints the same JSON lines; `mode` is eager or compile. Times are CUDA-event times of forward, backward and fused AdamW;
`peak_bytes` is the maximum that the allocator had in use, `device_bytes` the memory that the driver reports in use.

    pytorch_gpu_train_step.py [--model gpt] [--preset gpt2-124m] [--batch 32] [--seq 1024] [--dtype bf16]
                              [--steps 20] POLICY...

--device cpu is for testing the script: times are the host's, and bytes 0.
"""
import argparse
import json
import statistics
import time

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
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--mode", choices=("eager", "compile", "both"), default="both")
    p.add_argument("policy", nargs="+", help="none, full, selective:core_attn, budget:FRACTION")
    return p.parse_args()


def build(o, policy):
    c = Config(o.model, o.preset, layers=o.layers, width=o.width, heads=o.heads, vocab=o.vocab, dropout=o.dropout,
               max_seq=o.seq)
    if policy == "selective:core_attn":
        c.run_core = lambda core, *qkv: checkpoint(core, *qkv, use_reentrant=False)
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


class Clock:
    """A stopwatch in the device's own queue."""

    def __init__(self, device):
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device == "cuda" else None

    def __enter__(self):
        self.began = time.perf_counter()
        if self.events:
            self.events[0].record()
        return self

    def __exit__(self, *failure):
        self.ms = 1e3 * (time.perf_counter() - self.began)
        if self.events:
            self.events[1].record()
            torch.cuda.synchronize()
            self.ms = self.events[0].elapsed_time(self.events[1])


def memory(device):
    """Maximum bytes that the allocator had in use, and bytes in use according to the driver."""
    if device == "cpu":
        return 0, 0
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.max_memory_allocated(), total - free


def train(o, policy, compiled):
    c, model = build(o, policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    loss_of = step_function(model, policy, compiled)
    generator = torch.Generator(o.device).manual_seed(1)
    times, loss = [], None
    for step in range(o.steps + 3):
        batch = torch.randint(0, c.vocab, (2, o.batch, o.seq), generator=generator)
        if step == 3 and o.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with Clock(o.device) as clock:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(batch[0], batch[1])
            loss.backward()
            optimizer.step()
        if step >= 3:
            times.append(clock.ms)
    peak, lent = memory(o.device)
    return {"library": "pytorch " + torch.__version__,
            "device": torch.cuda.get_device_name() if o.device == "cuda" else "cpu", "model": o.model,
            "preset": o.preset, "layers": c.layers, "width": c.width, "dtype": o.dtype, "batch": o.batch, "seq": o.seq,
            "dropout": o.dropout, "policy": policy, "mode": "compile" if compiled else "eager",
            "step_ms": round(statistics.median(times), 3),
            "peak_bytes": peak, "device_bytes": lent, "loss": loss.item()}


def runs(o):
    """Eager runs first: they are fast, so an interrupted run only lacks compiled ones."""
    for policy in o.policy:
        if o.mode != "compile" and not policy.startswith("budget:"):
            yield policy, False
    for policy in o.policy:
        if o.mode != "eager" and not policy.startswith("selective:"):
            yield policy, True


def main():
    o = options()
    torch.set_default_device(o.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    for policy, compiled in runs(o):
        print(json.dumps(train(o, policy, compiled)), flush=True)
        if o.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
