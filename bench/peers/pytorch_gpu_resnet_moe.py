#!/usr/bin/env python3
"""ResNet-50 and one layer of routed experts in eager PyTorch on a GPU: forward and backward, bfloat16, by CUDA events.

Compare with recompute_sweep's rows of resnet50 (channels last, batch 32) and bench/moe_layer (4,096 tokens of width
2,048, 64 experts of 1,024, 8 each; products by torch._grouped_mm). Prints a JSON line for each.

    pytorch_gpu_resnet_moe.py [--side 224] [--batch 32] [--tokens 4096] [--steps 10] [--device cpu]

--device cpu is for testing the script: times are the host's.
"""
import argparse
import json
import statistics
import time

import torch

from pytorch_nets import Experts, model


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("side", 224), ("batch", 32), ("tokens", 4096), ("steps", 10)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return p.parse_args()


def milliseconds(device, step):
    """Milliseconds of one call of step, in the device's own queue."""
    if device == "cpu":
        begin = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - begin)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def report(o, name, net, loss_of):
    def step():
        loss_of().backward()
        net.zero_grad()

    for _ in range(3):
        step()
    ms = statistics.median(milliseconds(o.device, step) for _ in range(o.steps))
    print(json.dumps({"library": "pytorch", "version": torch.__version__, "device": o.device, "model": name,
                      "dtype": "bf16", "mode": "eager", "ms": round(ms, 3)}), flush=True)


def resnet50(o):
    net = model("resnet50", "published", o.side).to(o.device, torch.bfloat16).to(memory_format=torch.channels_last)
    x = torch.rand(o.batch, 3, o.side, o.side, device=o.device, dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last)
    labels = torch.arange(o.batch, device=o.device)
    report(o, "resnet50", net, lambda: net(x, labels, lambda part, *given: part(*given)))


def experts(o):
    net = Experts(2048, 64, 8, 1, 1, 1024).to(o.device, torch.bfloat16)
    x = torch.randn(1, o.tokens, 2048, device=o.device, dtype=torch.bfloat16, requires_grad=True)

    def loss():
        y, balance = net(x)
        return y.float().sum() + balance

    report(o, "experts", net, loss)


def main():
    o = options()
    torch.manual_seed(1)
    resnet50(o)
    experts(o)


if __name__ == "__main__":
    main()
