#!/usr/bin/env python3
"""The figures promised for a GPU, from what scripts/gpu_check.sh wrote: name, value, bound, met or missed.

    gpu_figures.py bench/results/DEVICE
"""
import json
import os
import sys


def rows(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f if line.startswith("{")]


def one(all_rows, **keys):
    found = [r for r in all_rows if all(r[k] == v for k, v in keys.items())]
    return found[-1] if found else None


def figure(name, value, unit, bound, at_least=False):
    met = value >= bound if at_least else value <= bound
    print(f"{name}, {value:.4g} {unit}, at {'least' if at_least else 'most'} {bound:g}, {'met' if met else 'missed'}")


def main():
    ours, theirs, large = (rows(sys.argv[1], n) for n in ("steps.json", "pytorch.json", "steps-1.5b.json"))
    graph = {p: one(ours, policy=p, mode="graph") for p in ("none", "full", "selective:core_attn")}
    if graph["none"]:
        for mode, bound in (("eager", 0.8), ("compile", 1.0)):
            peer = one(theirs, policy="none", mode=mode)
            if peer:
                figure(f"step time over PyTorch's, {mode} ({graph['none']['step_ms']:.1f} and {peer['step_ms']:.1f} ms)",
                       graph["none"]["step_ms"] / peer["step_ms"], "times", bound)
        figure("host time per step, graph launch", graph["none"]["host_us"], "us", 50)
    if graph["none"] and graph["full"]:
        ratio = graph["full"]["step_ms"] / graph["none"]["step_ms"]
        figure("step time of full over none", ratio, "times", 1.27)
        for mode in ("eager", "compile"):
            a, b = (one(theirs, policy=p, mode=mode) for p in ("full", "none"))
            if a and b:
                figure(f"the same, beside PyTorch's own, {mode}", ratio, "times", a["step_ms"] / b["step_ms"])
    for policy in ("none", "full"):
        peer = one(theirs, policy=policy, mode="eager")
        if graph[policy] and peer:
            figure(f"peak memory over PyTorch's, {policy}", graph[policy]["total_bytes"] / peer["peak_bytes"], "times", 0.9)
    for r in large[-1:]:
        if r["ceiling_tflops"]:
            figure(f"model FLOP/s over the matmul ceiling, 1.5B, {r['policy']} ({r['tflops']:.0f} of {r['ceiling_tflops']:.0f} TFLOP/s)",
                   100 * r["tflops"] / r["ceiling_tflops"], "%", 50, at_least=True)


if __name__ == "__main__":
    main()
