#!/usr/bin/env python3
"""Prints a table of a REWIND_TRACE file: for each op and kind of step, its share of the time, operations and bytes per
second.

    trace_table.py trace.json [--limits rows.json]

A node's time is the median over the steps of the trace, so that the first, which loads code and selects algorithms, has
no effect.

With --limits, the JSON lines of a `train_step --ceiling` on the same device, one figure follows for each memory-bound
op: its bytes per second, as its cost function counts them, over those of a plain copy. An op is memory-bound if moving
its bytes takes longer than its operations, both at the device's limits. Ops whose bytes fit in the caches, or take less
time than a kernel launch, are left out.
"""
import argparse
import collections
import json
import statistics
import sys

BYTES_MIN = 48e6
PERCENT_MIN = 80


class Group:
    """The nodes of one op and kind."""

    def __init__(self):
        self.nodes, self.us, self.flops, self.bytes, self.most = 0, 0.0, 0.0, 0.0, 0.0


def read(path):
    with open(path) as f:
        text = f.read().rstrip()
    if not text.endswith("]"):  # the program was interrupted: all except the last, unfinished line
        text = text[:text.rfind("\n")].rstrip().rstrip(",") + "\n]"
    return [e for e in json.loads(text) if e.get("ph") == "X" and e["tid"] == 1]


def group(steps):
    """Nodes with the same op, kind, call site and size are grouped; a median of each, times their number."""
    alike = collections.defaultdict(list)
    for e in steps:
        alike[e["name"], e["cat"], e["args"]["site"], e["args"]["flops"], e["args"]["bytes"]].append(e["dur"])
    groups = collections.defaultdict(Group)
    for (op, kind, _, flops, moved), durations in alike.items():
        g, n = groups[op, kind], len(durations)
        g.nodes += n
        g.us += n * statistics.median(durations)
        g.flops += n * flops
        g.bytes += n * moved
        g.most = max(g.most, moved)
    return sorted(groups.items(), key=lambda item: -item[1].us)


def table(groups):
    total = sum(g.us for _, g in groups) or 1
    print(f"{'op':28} {'kind':9} {'nodes':>6} {'time':>7} {'us each':>9} {'TFLOP/s':>8} {'GB/s':>7}")
    for (op, kind), g in groups:
        rate = (g.flops / g.us * 1e-6, g.bytes / g.us * 1e-3) if g.us else (0, 0)
        print(f"{op:28} {kind:9} {g.nodes:6} {g.us / total:7.1%} {g.us / g.nodes:9.1f} {rate[0]:8.2f} {rate[1]:7.0f}")


def bandwidth(name, gbs, copy):
    percent = 100 * gbs / copy
    print(f"bandwidth of {name} over a copy's ({gbs:.0f} and {copy:.0f} GB/s), {percent:.4g} %, "
          f"at least {PERCENT_MIN}, {'met' if percent >= PERCENT_MIN else 'missed'}")


def figures(groups, rows):
    limits = [r for r in rows if r.get("copy_gbs") and r.get("ceiling_tflops")]
    if not limits:
        sys.exit("no copy_gbs and ceiling_tflops in the limits: was it train_step --ceiling?")
    copy, top = limits[-1]["copy_gbs"], limits[-1]["ceiling_tflops"]
    for (op, kind), g in groups:
        memory_bound = g.bytes / (copy * 1e9) > g.flops / (top * 1e12)
        if memory_bound and g.us and g.most >= BYTES_MIN:
            bandwidth(f"{op}, {kind}", g.bytes / g.us * 1e-3, copy)
    if limits[-1].get("optimizer_gbs"):
        bandwidth("adamw", limits[-1]["optimizer_gbs"], copy)


def json_lines(path):
    with open(path) as f:
        return [json.loads(line) for line in f if line.startswith("{") and line.rstrip().endswith("}")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace")
    p.add_argument("--limits")
    o = p.parse_args()
    try:
        steps = read(o.trace)
    except (OSError, ValueError) as failure:
        sys.exit(f"no trace: {failure}")
    if not steps:
        sys.exit("no steps in the trace")
    groups = group(steps)
    table(groups)
    if o.limits:
        figures(groups, json_lines(o.limits))


if __name__ == "__main__":
    main()
