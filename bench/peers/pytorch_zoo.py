#!/usr/bin/env python3
"""Steps of the models of bench/models beside PyTorch's, in turn in one run: time of forward and backward under `none`
and `full`, f32 and bf16, and bytes kept under `none` (pytorch_memory.py says which count).

    pytorch_zoo.py bench/model_step [--rounds 5] [--threads N] [--models NAME,NAME] [--sizes published|small|tiny]

With --rounds 0 bytes alone. Prints a JSON line for each side, and a figure for each ratio. Both sides have the same
threads; of PyTorch, images lie with channels last, as they do here.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# PyTorch at its best: memory that is freed stays with the process, instead of being mapped and cleared anew in each
# step.
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "10000000000", "MALLOC_TOP_PAD_": "1000000000"}
if "MALLOC_TOP_PAD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP)

import torch
from torch.utils.checkpoint import checkpoint

from pytorch_memory import Held
from pytorch_nets import model

IMAGES = ("resnet50", "densenet121", "mobilenet", "vgg16", "unet", "vit")
SIZES = {  # preset, batch, length or side
    "published": {"vgg16": ("published", 4, 224), "unet": ("published", 1, 224), "t5": ("t5-small", 4, 256),
                  "deepseek": ("small", 4, 256)},
    "small": {name: ("small", 4, 64) for name in IMAGES} | {"t5": ("small", 4, 256), "deepseek": ("small", 4, 256)},
    "tiny": {name: ("tiny", 2, 64) for name in IMAGES} | {"t5": ("tiny", 2, 64), "deepseek": ("tiny", 2, 64)},
}


class Theirs:
    def __init__(self, name, preset, dtype, batch, size):
        torch.manual_seed(1)
        self.net = model(name, preset, size).to(torch.bfloat16 if dtype == "bf16" else torch.float32)
        if name in IMAGES:
            self.net = self.net.to(memory_format=torch.channels_last)
            x = torch.rand(batch, 3, size, size).to(next(self.net.parameters()).dtype)
            self.given = x.to(memory_format=torch.channels_last), torch.arange(batch)
        else:
            tokens = torch.arange(batch * size + 1) * 7 % 256
            self.given = tokens[:-1].view(batch, size), tokens[1:].view(batch, size)

    def loss(self, policy):
        def run(part, *given):
            return checkpoint(part, *given, use_reentrant=False) if policy == "full" else part(*given)
        return self.net(*self.given, run)

    def step(self, policy):
        begin = time.perf_counter()
        self.loss(policy).backward()
        ms = 1e3 * (time.perf_counter() - begin)
        self.net.zero_grad()
        return ms

    def kept(self, policy):
        with Held(self.net) as held:
            loss = self.loss(policy)
            held.forward_done()
            loss.backward()
        self.net.zero_grad()
        return held.kept()


class Ours:
    def __init__(self, program, *given):
        own = {name: value for name, value in os.environ.items() if name not in KEEP}
        self.process = subprocess.Popen([program, *map(str, given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=own)

    def step(self, policy):
        print(policy, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure(args, name, dtype):
    preset, batch, size = SIZES[args.sizes].get(name, ("published", 8, 224))
    theirs, ours = Theirs(name, preset, dtype, batch, size), Ours(args.program, name, preset, dtype, batch, size,
                                                                  args.threads)
    times = {(side, policy): [] for policy in ("none", "full") for side in ("ours", "theirs")}
    kept = {}
    for round_ in range(args.rounds + 1):  # the first one warms up
        for side, policy in times:
            if side == "ours":
                row = ours.step(policy)
                ms, kept[side, policy] = row["step_ms"], row["kept_bytes"]
            else:
                ms = theirs.step(policy) if args.rounds else 0
            times[side, policy] += [ms] if round_ else []
    ours.close()
    for policy in ("none", "full"):
        kept["theirs", policy] = theirs.kept(policy)
    ms = {key: statistics.median(t) for key, t in times.items() if t}
    for side, policy in times:
        row = {"library": "rewind" if side == "ours" else "pytorch " + torch.__version__, "model": name,
               "preset": preset, "batch": batch, "size": size, "dtype": dtype, "threads": args.threads,
               "policy": policy, "kept_bytes": kept[side, policy]}
        print(json.dumps(row | ({"step_ms": round(ms[side, policy], 1)} if ms else {})))
    for what, of, unit, policies in (("step time", ms, "ms", ("none", "full") if ms else ()),
                                     ("kept bytes", kept, "bytes", ("none",))):
        for policy in policies:
            a, b = of["ours", policy], of["theirs", policy]
            print(f"{what} over PyTorch's, {name} {preset}, {policy}, {dtype} ({a:.5g} and {b:.5g} {unit}), "
                  f"{a / b:.3f} times, at most 1, {'met' if a <= b else 'missed'}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--models", default="resnet50,densenet121,mobilenet,vgg16,unet,vit,t5,deepseek")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--sizes", default="published", choices=SIZES)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    load = " ".join(f"{x:.2f}" for x in os.getloadavg())
    print(f"# {args.threads} threads, load before: {load}", flush=True)
    for name in args.models.split(","):
        for dtype in args.dtypes.split(","):
            measure(args, name, dtype)


if __name__ == "__main__":
    main()
