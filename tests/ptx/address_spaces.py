#!/usr/bin/env python3
"""Reports PTX that accesses shared memory by an instruction for global memory: address_spaces.py FILE.ptx...

An intrinsic such as __stwb() uses .global for any pointer. Given the generic address of a shared array, a GPU faults; a
C++ build of the same source cannot see it. For each function, registers that hold an address of shared memory are the
results of `cvta.shared` or of the name of a shared variable, and those that arithmetic derives from them. An ld, st,
red, atom, prefetch or the source of a cp.async with .global at such a register is reported.

The analysis ignores the order of instructions, and values that pass through memory or calls. Exit status 1: some were
found, or there was no function.
"""
import re
import sys

from translate import functions, split, statements

# Their results are addresses if an operand is one.
DERIVES = {"mov", "add", "sub", "mad", "cvt", "cvta", "and", "or", "selp", "min", "max"}
ACCESSES = {"ld", "ldu", "st", "red", "atom", "prefetch"}


def instructions(body):
    """(parts of the name, operands) of each instruction of a function's body."""
    for text in statements(body):
        m = re.match(r"(?:@!?%?\w+\s+)?([a-z][\w.:]*)\s+(.*)", text)
        if m:
            yield m[1].split("."), split(m[2])


def names_in(operands):
    """Registers and variables of operands: %r1 of [%r1+8]."""
    return {name for x in operands for name in re.findall(r"[%$A-Za-z_][\w$.]*", x)}


def sources(parts, given):
    """Operands from which an address may be derived; the difference of two addresses is a number."""
    return given[1:2] if parts[0] == "sub" else given[1:3] if parts[0] == "selp" else given[1:]


def shared_names(code, variables):
    """Names that hold an address in shared memory."""
    held = set(variables)
    steps = []
    for parts, given in code:
        if parts[0] == "cvta" and "shared" in parts:
            if "to" not in parts:
                held.add(given[0])
        elif parts[0] in DERIVES:
            steps.append((names_in(given[:1]), names_in(sources(parts, given))))
    size = 0
    while size < len(held):
        size = len(held)
        for results, operands in steps:
            if operands & held:
                held |= results
    return held


def wrong_accesses(code, held):
    """Instructions that name .global at an address of shared memory."""
    for parts, given in code:
        if "global" not in parts or parts[0] not in ACCESSES | {"cp"}:
            continue
        places = [x for x in given if x.startswith("[")]
        if names_in(places[1:] if parts[0] == "cp" else places) & held:
            yield ".".join(parts) + " " + ", ".join(given)


def shared_variables(text):
    """Names of .shared variables that a text declares."""
    return re.findall(r"(?<![\w.])\.shared\b[^;]*?([\w$]+)(?:\[\d*\])?;", text)


def faults_of(path):
    """(number of functions, report lines) of one file."""
    text = re.sub(r"//.*", "", open(path, encoding="utf-8", errors="replace").read())
    found, _ = functions(text, [])
    variables, report = shared_variables(text), []
    for f in found:
        code = list(instructions(f.body))
        wrong = wrong_accesses(code, shared_names(code, variables))
        report += [f"{path}: {f.name}: {x}" for x in wrong]
    return len(found), report


def main():
    paths = sys.argv[1:]
    results = [faults_of(p) for p in paths]
    total, report = sum(n for n, _ in results), [line for _, lines in results for line in lines]
    print("\n".join(report))
    print(f"{total} functions in {len(paths)} files, {len(report)} accesses to shared memory that name .global")
    return 1 if report or not total else 0


if __name__ == "__main__":
    sys.exit(main())
