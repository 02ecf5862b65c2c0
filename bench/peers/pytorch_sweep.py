#!/usr/bin/env python3
"""recompute_sweep in PyTorch, for comparison only: the same models, data, options and columns, with
torch.utils.checkpoint (non-reentrant) around each block for `full`. Needs PyTorch 2.4 or later.

`identical` compares losses and gradients of every step and the last parameters with those of `none`, byte for byte.
`kept_bytes` and `peak_bytes` are counted in the step that warms up (pytorch_memory.py defines what counts). PyTorch
predicts no peak and counts neither nodes nor operations: these columns are null. Weights saved by rw_save() can be
loaded with --weights; parameter names are the same.
"""
import argparse
import csv
import hashlib
import json
import os
import statistics
import struct
import time

import torch
from torch.utils.checkpoint import checkpoint

from pytorch_memory import Held
from pytorch_models import PRESETS, Config, Model

COLUMNS = ("model preset device dtype threads batch seq policy step_ms ratio kept_bytes peak_bytes "
           "predicted_peak_bytes device_bytes replayed_nodes tflops ceiling_tflops utilisation_percent loss "
           "identical").split()
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}
POLICIES = {"none": lambda i, block, x: block(x),
            "full": lambda i, block, x: checkpoint(block, x, use_reentrant=False)}


def positive(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def lengths(text):
    return [positive(s) for s in text.split(",")]


def policies(text):
    unknown = set(text.split()) - set(POLICIES)
    if unknown or not text.split():
        raise argparse.ArgumentTypeError("none and full are there, not " + (" ".join(sorted(unknown)) or "nothing"))
    return text.split()


def options():
    p = argparse.ArgumentParser(description=__doc__)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--model", choices=("gpt", "llama"), default="gpt")
    p.add_argument("--preset", choices=PRESETS, default="small")
    for name in ("layers", "width", "heads", "kv-heads"):
        p.add_argument("--" + name, type=positive)
    p.add_argument("--policy", type=policies, default="none full", help="none, full")
    p.add_argument("--seq", type=lengths, default="256,512")
    p.add_argument("--batch", type=positive, default=4)
    p.add_argument("--steps", type=positive, default=20)
    p.add_argument("--dtype", choices=DTYPES, default="f32")
    p.add_argument("--dropout", type=float)
    p.add_argument("--attention", choices=("flash", "scores"), default="flash")
    p.add_argument("--threads", type=positive, default=os.cpu_count())
    p.add_argument("--seed", type=positive, default=42)
    p.add_argument("--data", default=os.path.join(here, "..", "data", "kjv.txt"))
    p.add_argument("--weights", help="a file written by rw_save()")
    p.add_argument("--out", default="out")
    return p.parse_args()


def batch_of(text, batch, seq, step):
    """The windows of the text that recompute_sweep uses."""
    rows = []
    for b in range(batch):
        h = (step * 1000003 + b) * 0x9E3779B97F4A7C15 % 2**64
        at = (h >> 20) % (len(text) - seq)
        rows.append(torch.tensor(list(text[at:at + seq + 1])))
    x = torch.stack(rows)
    return x[:, :-1], x[:, 1:]


def load(model, path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    types = {"F32": torch.float32, "BF16": torch.bfloat16, "F64": torch.float64}
    for name, p in model.named_parameters():
        entry = header[name]
        begin, end = entry["data_offsets"]
        x = torch.frombuffer(bytearray(data[begin:end]), dtype=types[entry["dtype"]]).reshape(entry["shape"])
        p.data.copy_(x)


def digest(tensors):
    h = hashlib.blake2b(digest_size=16)
    for x in tensors:
        h.update(x.detach().contiguous().flatten().view(torch.uint8).numpy())
    return h.digest()


def step(model, run, tokens, targets):
    begin = time.perf_counter()
    loss = model(tokens, targets, run)
    loss.backward()
    return 1e3 * (time.perf_counter() - begin), loss.item()


def warm_up(model, run, tokens, targets):
    """A step that counts bytes instead of time."""
    with Held(model) as held:
        loss = model(tokens, targets, run)
        held.forward_done()
        loss.backward()
    return held.kept(), held.peak(), loss.item()


def train(o, c, text, seq, policy):
    """A row, and the values that must be the same in every row: losses, gradients of every step, the last
    parameters."""
    torch.manual_seed(o.seed)
    model = Model(c).to(DTYPES[o.dtype])
    if o.weights:
        load(model, o.weights)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-4)
    times, losses, digests = [], [], []
    kept, peak = 0, 0
    for s in range(o.steps + 1):
        tokens, targets = batch_of(text, o.batch, seq, s)
        opt.zero_grad(set_to_none=True)
        if s == 0:
            kept, peak, loss = warm_up(model, POLICIES[policy], tokens, targets)
        else:
            ms, loss = step(model, POLICIES[policy], tokens, targets)
            times.append(ms)
        losses.append(loss)
        digests.append(digest(p.grad for p in model.parameters()))
        opt.step()
    digests.append(digest(model.parameters()))
    row = {"seq": seq, "policy": policy, "step_ms": statistics.median(times), "kept_bytes": kept, "peak_bytes": peak,
           "loss": losses[-1]}
    return row, (losses, digests)


def sweep(o, text):
    custom = any(v is not None for v in (o.layers, o.width, o.heads, o.kv_heads))
    common = {"model": o.model, "preset": "custom" if custom else o.preset, "device": "cpu", "dtype": o.dtype,
              "threads": o.threads, "batch": o.batch}
    for seq in o.seq:
        c = Config(o.model, o.preset, layers=o.layers, width=o.width, heads=o.heads, kv_heads=o.kv_heads,
                   dropout=o.dropout, max_seq=max(o.seq), scores=o.attention == "scores")
        none, expected = train(o, c, text, seq, "none")
        for policy in o.policy:
            row, got = (dict(none), expected) if policy == "none" else train(o, c, text, seq, policy)
            row |= common | {"ratio": row["step_ms"] / none["step_ms"], "identical": got == expected}
            print(f"{seq:5d}  {policy:10s} {row['step_ms']:9.1f} ms {row['ratio']:6.3f}  kept {row['kept_bytes']}  "
                  f"peak {row['peak_bytes']}  loss {row['loss']:.5f}  identical {row['identical']}", flush=True)
            yield {key: row.get(key) for key in COLUMNS}


def main():
    o = options()
    torch.set_num_threads(o.threads)
    os.makedirs(o.out, exist_ok=True)
    with open(o.data, "rb") as f:
        text = f.read()
    rows = list(sweep(o, text))
    with open(os.path.join(o.out, "pytorch_sweep.json"), "w") as f:
        json.dump(rows, f, indent=1)
    with open(os.path.join(o.out, "pytorch_sweep.csv"), "w", newline="") as f:
        w = csv.DictWriter(f, COLUMNS)
        w.writeheader()
        w.writerows(row | {"identical": str(row["identical"]).lower()} for row in rows)


if __name__ == "__main__":
    main()
