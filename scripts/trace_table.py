#!/usr/bin/env python3
"""A table of a REWIND_TRACE file: for each op and kind of step, its share of the time, operations and bytes per second.

    trace_table.py trace.json
"""
import collections
import json
import sys


def main():
    with open(sys.argv[1]) as f:
        steps = [e for e in json.load(f) if e.get("ph") == "X" and e["tid"] == 1]
    if not steps:
        sys.exit("no steps in the trace")
    groups = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for e in steps:
        g = groups[e["name"], e["cat"]]
        g[0] += 1
        g[1] += e["dur"]
        g[2] += e["args"]["flops"]
        g[3] += e["args"]["bytes"]
    total = sum(g[1] for g in groups.values())
    print(f"{'op':28} {'kind':9} {'steps':>6} {'time':>7} {'us each':>9} {'TFLOP/s':>8} {'GB/s':>7}")
    for (op, kind), (n, us, flops, moved) in sorted(groups.items(), key=lambda item: -item[1][1]):
        rate = (flops / us * 1e-6, moved / us * 1e-3) if us else (0, 0)
        print(f"{op:28} {kind:9} {n:6} {us / total:7.1%} {us / n:9.1f} {rate[0]:8.2f} {rate[1]:7.0f}")
    print(f"{'all':28} {'':9} {len(steps):6} {1:7.1%} {total / len(steps):9.1f}")


if __name__ == "__main__":
    main()
