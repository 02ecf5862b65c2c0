#!/usr/bin/env python3
"""recompute_sweep in PyTorch, for comparison only: the same models, data, options and columns, with
torch.utils.checkpoint (non-reentrant) around each block for `full`. Needs PyTorch 2.4 or later.

`identical` compares losses, the last gradients and the parameters with `none` by torch.equal.
Weights saved by rw_save() can be loaded with --weights; parameter names are the same.
"""
import argparse
import csv
import json
import os
import statistics
import struct
import time

import torch
from torch.utils.checkpoint import checkpoint

from pytorch_models import Config, Model

COLUMNS = ("model preset device dtype threads batch seq policy step_ms ratio kept_bytes peak_bytes predicted_peak_bytes "
           "replayed_nodes loss identical").split()
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}


def options():
    p = argparse.ArgumentParser(description=__doc__)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--model", choices=("gpt", "llama"), default="gpt")
    p.add_argument("--preset", default="small")
    for name in ("layers", "width", "heads", "kv-heads"):
        p.add_argument("--" + name, type=int)
    p.add_argument("--policy", default="none full", help="none, full")
    p.add_argument("--seq", default="256,512")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--dtype", choices=DTYPES, default="f32")
    p.add_argument("--dropout", type=float)
    p.add_argument("--attention", choices=("flash", "scores"), default="flash")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--data", default=os.path.join(here, "..", "data", "kjv.txt"))
    p.add_argument("--weights", help="a file written by rw_save()")
    p.add_argument("--out", default="out")
    return p.parse_args()


def batch_of(text, batch, seq, step):
    """The windows that recompute_sweep takes."""
    rows = []
    for b in range(batch):
        h = (step * 1000003 + b) * 0x9E3779B97F4A7C15 % 2**64
        at = (h >> 20) % (len(text) - seq)
        rows.append(torch.tensor(list(text[at:at + seq + 1])))
    x = torch.stack(rows)
    return x[:, :-1], x[:, 1:]


class Saved:
    """Bytes that autograd holds for backward, each storage once; parameters left out."""

    def __init__(self, model):
        self.parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.storages = {}

    def pack(self, x):
        s = x.untyped_storage()
        if s.data_ptr() not in self.parameters:
            self.storages[s.data_ptr()] = s.nbytes()
        return x

    def hooks(self):
        return torch.autograd.graph.saved_tensors_hooks(self.pack, lambda x: x)


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


def train(o, c, text, seq, policy):
    torch.manual_seed(o.seed)
    model = Model(c).to(DTYPES[o.dtype])
    if o.weights:
        load(model, o.weights)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-4)
    run = {"none": lambda i, block, x: block(x),
           "full": lambda i, block, x: checkpoint(block, x, use_reentrant=False)}[policy]
    times, losses, kept = [], [], 0
    for step in range(o.steps + 1):
        tokens, targets = batch_of(text, o.batch, seq, step)
        opt.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        if step == 0:
            saved = Saved(model)
            with saved.hooks() if policy == "none" else torch.enable_grad():
                loss = model(tokens, targets, run)
            kept = sum(saved.storages.values())
        else:
            loss = model(tokens, targets, run)
        loss.backward()
        times.append(1e3 * (time.perf_counter() - begin))
        losses.append(loss.item())
        if step < o.steps:
            opt.step()
    state = [p.grad.clone() for p in model.parameters()] + [p.detach().clone() for p in model.parameters()]
    return statistics.median(times[1:]), losses, kept if policy == "none" else None, state


def main():
    o = options()
    torch.set_num_threads(o.threads)
    with open(o.data, "rb") as f:
        text = f.read()
    rows = []
    for seq in map(int, o.seq.split(",")):
        c = Config(o.model, o.preset, layers=o.layers, width=o.width, heads=o.heads, kv_heads=o.kv_heads, dropout=o.dropout,
                   max_seq=seq)
        c.scores = o.attention == "scores"
        base_ms, base_losses, kept, base_state = train(o, c, text, seq, "none")
        for policy in o.policy.split():
            ms, losses, held, state = (base_ms, base_losses, kept, base_state) if policy == "none" else train(o, c, text, seq, policy)
            same = losses == base_losses and all(torch.equal(a, b) for a, b in zip(state, base_state))
            rows.append(dict(zip(COLUMNS, (o.model, o.preset, "cpu", o.dtype, o.threads, o.batch, seq, policy, ms, ms / base_ms, held,
                                           None, None, None, losses[-1], same))))
            print(f"{seq:5d}  {policy:10s} {ms:9.1f} ms {ms / base_ms:6.3f}  kept {held}  loss {losses[-1]:.5f}  identical {same}", flush=True)
    os.makedirs(o.out, exist_ok=True)
    with open(os.path.join(o.out, "pytorch_sweep.json"), "w") as f:
        json.dump(rows, f, indent=1)
    with open(os.path.join(o.out, "pytorch_sweep.csv"), "w", newline="") as f:
        w = csv.DictWriter(f, COLUMNS)
        w.writeheader()
        w.writerows(rows)


if __name__ == "__main__":
    main()
