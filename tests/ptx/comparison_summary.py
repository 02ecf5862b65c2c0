#!/usr/bin/env python3
"""Prints the summary of scripts/ptx.sh: comparison_summary.py LOG TRANSLATED.cc...

Kernels that were translated, run and equal; which were not, and why. Exits with 1 if a kernel without approximations
differs.
"""
import re
import sys


def short(name):
    """A symbol without its anonymous namespace."""
    return name.replace("_ZN12_GLOBAL__N_1", "")


def main():
    seen = {}
    for line in open(sys.argv[1], encoding="utf-8"):
        what, kind, name = line.rstrip("\n").split(" ", 2)
        seen.setdefault(name, set()).update((what, kind))
    translated, missing = set(), []
    for path in sys.argv[2:]:
        text = open(path, encoding="utf-8").read()
        translated |= {(path, n) for n in re.findall(r'^\{ "(\w+)", f\d+', text, re.M)}
        missing += re.findall(r"^/\* not translated: (.*) \*/$", text, re.M)
    total = len(translated) + len(missing)
    names = {n for _, n in translated}
    run = {n for n in seen if n in names}
    print(f"{len(translated)} of {total} kernels translated, {len(run)} of {len(names)} names run")
    differ = {n for n in run if "differs" in seen[n]}
    wrong = sorted(n for n in differ if "approximate" not in seen[n])
    print(f"{len(run - differ)} gave the simulator's bytes in every launch, {len(differ) - len(wrong)} differ and hold "
          f"fma or .approx, {len(wrong)} differ without")
    for title, which in (("not translated", missing), ("not run", sorted(map(short, names - run))),
                         ("differ without approximations", map(short, wrong)),
                         ("launched without PTX", sorted(n for n in seen if "missing" in seen[n]))):
        for name in which:
            print(f"    {title}: {name}")
    return 1 if wrong or total == 0 else 0


sys.exit(main())
