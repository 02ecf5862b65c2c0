#!/usr/bin/env python3
"""The documented GPU figures, from the output of scripts/gpu_check.sh: name, value, bound, met or missed. A figure that
cannot be computed, because its part failed or never ran, is printed too: not measured, missed.

    gpu_figures.py bench/results/DEVICE
"""
import json
import os
import sys

POLICIES = ("none", "full", "selective:core_attn")


def lines(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return f.read().splitlines()


def rows(folder, name):
    """The JSON lines; a truncated one is skipped."""
    found = []
    for line in lines(folder, name):
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return [r for r in found if isinstance(r, dict)]


def one(all_rows, key, **keys):
    """The value of `key` in the last row with these keys; None if there is none, or none above zero."""
    found = [r.get(key) for r in all_rows if all(r.get(k) == v for k, v in keys.items())]
    return found[-1] if found and found[-1] and found[-1] > 0 else None


def over(a, b, scale=1):
    return scale * a / b if a and b else None


def figure(name, value, unit, bound, at_least=False):
    limit = f"at {'least' if at_least else 'most'} " + (f"{bound:.4g}" if bound is not None else "PyTorch's own")
    if value is None or bound is None:
        shown = f"{value:.4g} {unit}" if value is not None else "not measured"
        print(f"{name}, {shown}, {limit}, missed")
        return
    met = value >= bound if at_least else value <= bound
    print(f"{name}, {value:.4g} {unit}, {limit}, {'met' if met else 'missed'}")


def pair(a, b, unit, scale=1.0):
    return f" ({a / scale:.4g} and {b / scale:.4g} {unit})" if a and b else ""


def identity(folder):
    found = [line for line in lines(folder, "identity.txt") if line]
    for line in found:
        print(line)
    for what in (f"{model} {dtype}" for model in ("gpt", "llama") for dtype in ("f32", "bf16", "f16", "f64")):
        if not any(what + "," in line for line in found):
            print(f"gradients, losses, masks, recompute on and off, graph on and off, {what}, not measured, at most 0, "
                  "missed")


def step_times(ours, theirs):
    mine = {p: one(ours, "step_ms", policy=p, mode="graph") for p in POLICIES}
    for mode, bound in (("eager", 0.8), ("compile", 1.0)):
        if mode == "compile" and not any(r.get("mode") == mode for r in theirs):
            continue  # compiling takes longer than a lease allows: by hand
        peer = one(theirs, "step_ms", policy="none", mode=mode)
        figure(f"step time over PyTorch's, {mode}" + pair(mine["none"], peer, "ms"), over(mine["none"], peer), "times",
               bound)
    ratio = over(mine["full"], mine["none"])
    figure("step time of full over none" + pair(mine["full"], mine["none"], "ms"), ratio, "times", 1.27)
    for mode in sorted({r.get("mode") for r in theirs} | {"eager"}, reverse=True):
        a, b = (one(theirs, "step_ms", policy=p, mode=mode) for p in ("full", "none"))
        figure(f"step time of full over none, beside PyTorch's own, {mode}", ratio, "times", over(a, b))
    figure("host time per step, graph launch", one(ours, "host_us", policy="none", mode="graph"), "us", 50)


def memory(ours, theirs):
    for policy in POLICIES:
        a = one(ours, "total_bytes", policy=policy, mode="graph")
        b = one(theirs, "peak_bytes", policy=policy, mode="eager")
        figure(f"peak memory over PyTorch's, {policy}" + pair(a, b, "GB", 1e9), over(a, b), "times", 0.9)


def memory_beside(ours, theirs):
    """torch.compile keeps less than eager: no figure is documented for it."""
    for policy in ("none", "full"):
        a = one(ours, "total_bytes", policy=policy, mode="graph")
        b = one(theirs, "peak_bytes", policy=policy, mode="compile")
        print(f"peak memory over PyTorch's, {policy}, compile" + pair(a, b, "GB", 1e9) +
              (f", {a / b:.4g} times" if a and b else ", not measured"))


def float8(rows_of_both):
    """No figure is documented for its time, but one is for no product falling back to bfloat16."""
    a, b = (next((r for r in rows_of_both if ("fp8_products" in r) == fp8 and r.get("mode") == "graph"), {})
            for fp8 in (True, False))
    mine, theirs = a.get("step_ms"), b.get("step_ms")
    print(f"step time by 8-bit factors over bfloat16, width {a.get('width', '?')}" + pair(mine, theirs, "ms") +
          (f", {mine / theirs:.4g} times" if mine and theirs else ", not measured"))
    figure("products of 8-bit factors that fell back to bfloat16", a.get("decoded_products"), "products", 0)


def utilisation(large):
    if not large:
        return  # the part `large`, which neither command runs
    policy = "selective:core_attn"
    a, b = (one(large, k, policy=policy, mode="graph") for k in ("tflops", "ceiling_tflops"))
    figure(f"model FLOP/s over the matmul ceiling, 1.5B parameters, {policy}" + pair(a, b, "TFLOP/s"), over(a, b, 100),
           "%", 50, at_least=True)


def beside(ours, cudnn, digest):
    """Values without a documented bound, for comparing the alternatives."""
    for policy in ("none", "full"):
        a, b = (one(r, "step_ms", policy=policy, mode="graph") for r in (cudnn, ours))
        print(f"step time with cuDNN's attention over ours, {policy}" + pair(a, b, "ms") +
              (f", {a / b:.4g} times" if a and b else ", not measured"))
    a, b = (one(r, "step_ms", policy="full", mode="graph") for r in (digest, ours))
    print("step time with every replay digested, REWIND_VERIFY=digest, full" + pair(a, b, "ms") +
          (f", {a / b:.4g} times" if a and b else ", not measured"))


def kernels(folder):
    found = [line for line in lines(folder, "kernels.txt") if line.endswith((", met", ", missed"))]
    for line in found or ["bandwidth of the memory-bound kernels over a copy's, not measured, at least 80, missed"]:
        print(line)


def main():
    folder = sys.argv[1]
    ours, theirs, large = (rows(folder, n) for n in ("steps.json", "pytorch.json", "steps-1.5b.json"))
    identity(folder)
    step_times(ours, theirs)
    memory(ours, theirs)
    utilisation(large)
    kernels(folder)
    float8(rows(folder, "fp8.json"))
    memory_beside(ours, theirs)
    beside(ours, *(rows(folder, n) for n in ("steps-cudnn.json", "steps-digest.json")))


if __name__ == "__main__":
    main()
