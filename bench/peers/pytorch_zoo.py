#!/usr/bin/env python3
"""Steps of the models of bench/models compared with PyTorch's, alternately in one run: time of forward and backward
under `none` and `full`, f32 and bf16, and bytes kept under `none` (pytorch_memory.py defines which count).

    pytorch_zoo.py bench/model_step [--rounds 5] [--threads N] [--models NAME,NAME] [--sizes published|small|tiny]
                               [--compile]

With --rounds 0 only bytes. Prints a JSON line for each side, and a figure for each ratio. Both sides have the same
threads; PyTorch's images are channels last, as they are here.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import pytorch_malloc_env  # before torch
import torch
from torch.utils.checkpoint import checkpoint

from pytorch_memory import Held
from pytorch_nets import model

POLICIES = ("none", "full")
IMAGES = ("resnet50", "densenet121", "mobilenet", "vgg16", "unet", "vit")
TEXTS = ("t5", "deepseek", "mamba2", "gpt", "llama")
KEPT = {"t5": 0.6, "gpt": 0.6,  # bytes relative to PyTorch's, which keeps a mask of each dropout
        "densenet121": 0.8, "unet": 0.8}  # pools keep a byte per element, and concatenations are virtual; others: 1
torch._dynamo.config.recompile_limit = 64  # the parts of an image network differ in their shapes
SIZES = {  # preset, batch, length or side
    "published": {"vgg16": ("published", 4, 224), "unet": ("published", 1, 224), "t5": ("t5-small", 4, 256),
                  "deepseek": ("small", 4, 256), "mamba2": ("mamba2-130m", 2, 256), "gpt": ("gpt2-124m", 1, 1024),
                  "llama": ("gpt2-124m", 4, 256)},
    "small": {name: ("small", 4, 64) for name in IMAGES} | {name: ("small", 4, 256) for name in TEXTS},
    "tiny": {name: ("tiny", 2, 64) for name in IMAGES + TEXTS},
}


class Theirs:
    def __init__(self, name, preset, dtype, batch, size):
        torch.manual_seed(1)
        self.net = model(name, preset, size).to(torch.bfloat16 if dtype == "bf16" else torch.float32)
        self.made = {}  # part -> the same part compiled
        if name in IMAGES:
            self.net = self.net.to(memory_format=torch.channels_last)
            x = torch.rand(batch, 3, size, size).to(next(self.net.parameters()).dtype)
            self.given = x.to(memory_format=torch.channels_last), torch.arange(batch)
        else:
            tokens = torch.arange(batch * size + 1) * 7 % 256
            self.given = tokens[:-1].view(batch, size), tokens[1:].view(batch, size)

    def compile(self):
        """Whether torch.compile works, part by part as for the blocks: both policies run once."""
        try:
            for policy in POLICIES:
                self.step(policy, "compiled")
            return True
        except Exception as e:  # any error of its compilers
            print(f"torch.compile: {e}".split("\n")[0], file=sys.stderr)
            return False

    def compiled(self, part):
        if part not in self.made:
            self.made[part] = torch.compile(part, dynamic=False)
        return self.made[part]

    def loss(self, policy, how="eager"):
        def run(part, *given):
            part = self.compiled(part) if how == "compiled" else part
            return checkpoint(part, *given, use_reentrant=False) if policy == "full" else part(*given)
        return self.net(*self.given, run)

    def step(self, policy, how="eager"):
        begin = time.perf_counter()
        self.loss(policy, how).backward()
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
        own = pytorch_best.environment_of_others()
        self.process = subprocess.Popen([program, *map(str, given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=own)

    def step(self, policy):
        print(policy, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def figure(what, name, a, b, unit, bound=1):
    met = "met" if a <= bound * b else "missed"
    print(f"{what}, {name} ({a:.5g} and {b:.5g} {unit}), {a / b:.3f} times, at most {bound}, {met}", flush=True)


def times_of(args, ours, theirs, ways):
    """Medians by (how, policy), and our kept bytes by policy; all alternately, the first round warms up."""
    times, kept = {(how, policy): [] for policy in POLICIES for how in ways}, {}
    for round_ in range(args.rounds + 1):
        for how, policy in times:
            if how == "ours":
                row = ours.step(policy)
                ms, kept[policy] = row["step_ms"], row["kept_bytes"]
            else:
                ms = theirs.step(policy, how) if args.rounds else 0
            times[how, policy] += [ms] if round_ else []
    return {key: statistics.median(t) for key, t in times.items() if t}, kept


def measure(args, name, dtype):
    preset, batch, size = SIZES[args.sizes].get(name, ("published", 8, 224))
    theirs = Theirs(name, preset, dtype, batch, size)
    ways = ["ours", "eager"] + (["compiled"] if args.compile and theirs.compile() else [])
    ours = Ours(args.program, name, preset, dtype, batch, size, args.threads)
    ms, our_kept = times_of(args, ours, theirs, ways)
    ours.close()
    for how in ways:
        for policy in POLICIES:
            row = {"library": "rewind" if how == "ours" else "pytorch " + torch.__version__, "model": name,
                   "preset": preset, "batch": batch, "size": size, "dtype": dtype, "threads": args.threads,
                   "policy": policy}
            row |= {} if how == "ours" else {"how": how}
            if how != "compiled":  # the storages of compiled code are not visible
                row["kept_bytes"] = our_kept[policy] if how == "ours" else theirs.kept(policy)
            print(json.dumps(row | ({"step_ms": round(ms[how, policy], 1)} if ms else {})))
    for how, whose in (("eager", "PyTorch's"), ("compiled", "torch.compile's")):
        for policy in POLICIES if how in ways and ms else ():
            figure(f"step time over {whose}", f"{name} {preset}, {policy}, {dtype}", ms["ours", policy],
                   ms[how, policy], "ms")
    if args.compile and "compiled" not in ways:
        print(f"step time over torch.compile's, {name} {preset}, {dtype}, not measured: it cannot compile this here")
    figure("kept bytes over PyTorch's", f"{name} {preset}, none, {dtype}", our_kept["none"], theirs.kept("none"),
           "bytes", KEPT.get(name, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--models", default=",".join(IMAGES + TEXTS))
    parser.add_argument("--compile", action="store_true", help="beside torch.compile, too: minutes for each model")
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
