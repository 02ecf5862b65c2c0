#!/usr/bin/env python3
"""Plants the mistakes of faults.txt one at a time, and reports which of them the suite detects: faults.py PROGRAM
[NAME...]

PROGRAM is the suite with all of them, each with a switch. A mistake is detected if a test fails, or the program ends
or takes ten times as long as without it; a mistake that no launch reaches is not detected. Exits with 1 if one is not
detected.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time


def run(program, number, limit):
    """The way in which the suite fails: None if it passes."""
    with tempfile.NamedTemporaryFile() as log:
        environment = {**os.environ, "REWIND_TEST_DEVICE": "cuda", "CUDASIM_PTX_FAULT": str(number),
                       "CUDASIM_PTX_LOG": log.name}
        try:
            done = subprocess.run([program, "--tap", "--fail-fast", "--jobs", "1"], env=environment, timeout=limit,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        except subprocess.TimeoutExpired:
            return "out of time"
        if number and not re.search(r"^reached ", log.read().decode(), re.M):
            return "not reached"
    return None if done.returncode == 0 else "a test fails" if done.returncode == 1 else f"ends by {done.returncode}"


def main():
    text = (pathlib.Path(__file__).parent / "faults.txt").read_text(encoding="utf-8")
    names = re.findall(r"^(\w+): ", text, re.M)
    idle = set(re.findall(r"^(\w+): .*\n(?:[-+] .*\n)*= ", text, re.M))
    begin = time.monotonic()
    if why := run(sys.argv[1], 0, 600):
        sys.exit(f"the suite fails without a mistake: {why}")
    limit = 10 * (time.monotonic() - begin)
    chosen = [(i, n) for i, n in enumerate(names, 1) if n not in idle and n in (sys.argv[2:] or names)]
    left = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (_, name), end in zip(chosen, pool.map(lambda f: run(sys.argv[1], f[0], limit), chosen)):
            noticed = end and end != "not reached"
            left += not noticed
            print(f"{'noticed ' if noticed else 'SURVIVED'} {name:32} {end or ''}", flush=True)
    print(f"{len(chosen) - left} of {len(chosen)} planted mistakes are noticed; {len(idle)} more change nothing")
    return 1 if left or not chosen else 0


sys.exit(main())
