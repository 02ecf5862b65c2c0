#!/usr/bin/env python3
"""The loss curve of examples/train_gpt compared with PyTorch's: the same weights, batches, clipping, schedule and
AdamW.

    pytorch_loss_curves.py TRAIN_GPT DATA [STEPS] [DTYPES] [OPTIONS ...]        TRAIN_GPT: build/examples/train_gpt
    pytorch_loss_curves.py build/examples/train_gpt bench/data/kjv.txt 100 "f32 bf16" --batch 8
    pytorch_loss_curves.py build/examples/train_gpt bench/data/kjv.txt 1000 "bf16 fp8"

The trainer writes its initial weights and a line for each step; PyTorch starts with these weights. Both run on the GPU
if there is one. Without dropout, because the two draw different numbers. In bf16 both keep float32 master copies;
PyTorch's gradients are bf16. For fp8 PyTorch runs in float32. Prints a row for each tenth step, and the distance of the
curves: for f32 at most 1e-4 of the loss at any step, for the others at most 1e-2, at any step of the first hundred, and
in longer runs on the average of the last fifty: two runs with different rounding diverge step by step.
"""
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F

BOUNDS = {"f32": 1e-4, "bf16": 1e-2, "fp8": 1e-2}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float32}
TOGETHER, LAST = 100, 50  # steps
SIZES = {"tiny": (4, 4, 128), "gpt2-124m": (12, 12, 768)}  # layers, heads, sequence unless --seq is given
LR, DECAY, CLIP, SEED, BATCH = 1e-3, 0.1, 1.0, 42, 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def load(path):
    """Tensors of a safetensors file, by name."""
    data = pathlib.Path(path).read_bytes()
    n, = struct.unpack("<Q", data[:8])
    kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    tensors = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__" or t["dtype"] not in kinds:
            continue
        begin, end = (8 + n + x for x in t["data_offsets"])
        tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=kinds[t["dtype"]]).reshape(t["shape"])
    return tensors


def number_of(seed, n):
    """splitmix64, as examples/train_gpt/data.c has it."""
    mask = (1 << 64) - 1
    z = (seed + (n + 1) * 0x9e3779b97f4a7c15) & mask
    z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & mask
    z = ((z ^ z >> 27) * 0x94d049bb133111eb) & mask
    return z ^ z >> 31


def batch_of(tokens, step, batch, seq):
    """Windows of the data; each token's target is the next one."""
    starts = [number_of(SEED, step * batch + b) % (len(tokens) - seq) for b in range(batch)]
    rows = torch.stack([tokens[s:s + seq + 1] for s in starts])
    return rows[:, :-1], rows[:, 1:]


def rate(step, total):
    """Linear warm-up over a twentieth, then a cosine down to a tenth."""
    warmup, least = total // 20, LR / 10
    if step < warmup:
        return LR * (step + 1) / warmup
    total = max(total, warmup + 1)
    return least + (LR - least) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def logits(p, x, layers, heads):
    """GPT-2, with the trainer's names of its weights."""
    b, s = x.shape

    def norm(h, name):
        return F.layer_norm(h, h.shape[-1:], p[name], p[name + ".bias"], 1e-5)

    def linear(h, name):
        return F.linear(h, p[name], p[name + ".bias"])

    h = F.embedding(x, p["table"]) + p["positions"][:s]
    for l in range(layers):
        at = f"layer.{l}."
        qkv = linear(norm(h, at + "norm1"), at + "qkv").view(b, s, 3, heads, -1)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + linear(a.transpose(1, 2).reshape(b, s, -1), at + "proj")
        h = h + linear(F.gelu(linear(norm(h, at + "norm2"), at + "up"), approximate="tanh"), at + "down")
    return F.linear(norm(h, "norm"), p["table"])


def theirs(weights, tokens, steps, dtype, layers, heads, batch, seq):
    """Losses of PyTorch's run."""
    p = {name: w.to(DEVICE, copy=True).requires_grad_() for name, w in weights.items()}
    masters = {name: w.detach().float().clone().requires_grad_() for name, w in p.items()}
    wide, narrow = ([m for m in masters.values() if (m.dim() > 1) == matrix] for matrix in (True, False))
    opt = torch.optim.AdamW([{"params": wide, "weight_decay": DECAY}, {"params": narrow, "weight_decay": 0.0}], lr=LR,
                            betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(steps):
        x, y = (part.to(DEVICE) for part in batch_of(tokens, step, batch, seq))
        loss = F.cross_entropy(logits(p, x, layers, heads).float().flatten(0, 1), y.flatten())
        loss.backward()
        norm = math.sqrt(sum(float((w.grad.double() ** 2).sum()) for w in p.values()))
        for name, w in p.items():
            masters[name].grad = w.grad.float() * (CLIP / norm if norm > CLIP else 1.0)
            w.grad = None
        for group in opt.param_groups:
            group["lr"] = rate(step, steps)
        opt.step()
        with torch.no_grad():
            for name, w in p.items():
                w.copy_(masters[name])
        losses.append(loss.item())
    return losses


def ours(trainer, data, steps, dtype, folder, more):
    """Losses of the trainer's run, and its initial weights."""
    first, log = f"{folder}/first-{dtype}.safetensors", f"{folder}/{dtype}.jsonl"
    common = [trainer, "--data", data, "--dtype", dtype, "--dropout", "0", "--eval-tokens", "0", "--sample", "0",
              "--batch", str(BATCH), *more]
    subprocess.run([*common, "--steps", "0", "--save", first], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*common, "--steps", str(steps), "--log", log], check=True, stdout=subprocess.DEVNULL)
    with open(log, encoding="utf-8") as f:
        return [json.loads(line)["loss"] for line in f], load(first)


def option(more, name, otherwise):
    return more[more.index(name) + 1] if name in more else otherwise


def main():
    trainer, data = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    dtypes = sys.argv[4].split() if len(sys.argv) > 4 else ["f32", "bf16"]
    more = sys.argv[5:]
    layers, heads, seq = SIZES[option(more, "--preset", "tiny")]
    seq, batch = int(option(more, "--seq", seq)), int(option(more, "--batch", BATCH))
    tokens = torch.frombuffer(bytearray(pathlib.Path(data).read_bytes()), dtype=torch.uint8).long()
    tokens = tokens[:len(tokens) - len(tokens) // 10]  # the last tenth is for evaluation
    torch.set_num_threads(int(option(more, "--threads", torch.get_num_threads())))
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for dtype in dtypes:
            mine, weights = ours(trainer, data, steps, dtype, folder, more)
            other = theirs(weights, tokens, steps, DTYPES[dtype], layers, heads, batch, seq)
            apart = [abs(a - b) / b for a, b in zip(mine, other)]
            print(f"# {dtype}: step, loss, PyTorch's loss, apart by")
            for i in range(0, steps, 10):
                print(f"{dtype} {i} {mine[i]:.7g} {other[i]:.7g} {apart[i]:.2g}")
            print(f"{dtype} {steps - 1} {mine[-1]:.7g} {other[-1]:.7g} {apart[-1]:.2g}")
            if steps <= TOGETHER or dtype == "f32":
                off, of = max(apart), f"worst of {steps} steps"
            else:
                off = abs(sum(mine[-LAST:]) / sum(other[-LAST:]) - 1)
                of = f"mean of the last {LAST} of {steps} steps"
            met = off <= BOUNDS[dtype]
            print(f"losses apart from PyTorch's, {of}, {dtype}, {off:.3g} of it, at most {BOUNDS[dtype]:.3g}, "
                  f"{'met' if met else 'missed'}", flush=True)
            failed |= not met
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
