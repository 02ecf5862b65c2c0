#!/usr/bin/env python3
"""Checks that every public function begins with one of the macros of runtime/base/public_entry.h, and with the
right one.

    tests/tools/public_entry_macros.py

Reads the headers of include/rewind and the sources. A function that a kernel may call (generate_public_calls.py lists
them, and so does rewind/op.h) begins with RW_LOOKS_ONLY or RW_ENTER_ANYWHERE, every other one with RW_ENTER..., which
refuses the call. RW_LOOKS_ONLY does not change the floating-point mode: such a function has no floating-point type
among its own. rw_recording_refused() is the refusal itself. Functions that a macro defines, rw_##NAME##_at(), are
those whose names the macro is used with."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from generate_public_calls import LEGAL  # noqa: E402
from generate_tensor_calls import declarations  # noqa: E402

GUARD = re.compile(r'\s*\\?\n\s*(RW_ENTER_ANYWHERE|RW_LOOKS_ONLY|RW_ENTER(?:_RECORDING|_OP)?\([^\n]*\));')
MACRO = re.compile(r'^#define (\w+)\(NAME\b(?:.*\\\n)*.*', re.M)


def sources():
    return {p: p.read_text() for top in ('runtime', 'ops') for p in sorted((ROOT / top).rglob('*.c'))}


def bodies(text, name):
    """The text after the opening brace of each definition of the function."""
    for found in re.finditer(r'^(?:[a-z][\w ]* \**)%s\([^;{}]*?\)\s*\{' % name, text, re.M):
        yield text[found.end():]


def of_macros(text):
    """(name, body) for each function that a macro of the file defines."""
    within, found = {}, []
    for macro in MACRO.finditer(text):
        within[macro[1]] = macro[0]
    for macro, lines in within.items():
        uses = re.findall(r'^\s*%s\((\w+)' % macro, re.sub(MACRO, '', text), re.M)
        for outer, its_lines in within.items():
            if outer != macro and re.search(r'\b%s\(NAME\b' % macro, its_lines[len(outer) + 8:]):
                uses += re.findall(r'^\s*%s\((\w+)' % outer, re.sub(MACRO, '', text), re.M)
        for head in re.finditer(r'\brw_##NAME##(\w*_at)\([^{}]*?\)\s*\\\n\s*\{', lines):
            suffix = head[1]
            found += [(f'rw_{use}{suffix}', lines[head.end():]) for use in uses]
    return found


def main():
    faults, seen = [], {}
    for path, text in sources().items():
        pasted = {}
        for name, body in of_macros(text):
            pasted.setdefault(name, body)
        for name in re.findall(r'\b((?:rw|ckpt)_\w+)\(', text):
            if name not in seen:
                for body in bodies(text, name):
                    seen[name] = (path, body)
        for name, body in pasted.items():
            seen.setdefault(name, (path, body))
    _, functions = declarations(ROOT / 'include/rewind')
    for returns, name, arguments in functions:
        if name not in seen:
            faults.append(f'{name}: no definition was found')
            continue
        path, body = seen[name]
        guard = GUARD.match(body)
        where = f'{path.relative_to(ROOT)}: {name}'
        if not guard:
            faults.append(f'{where} does not begin with a line of runtime/base/public_entry.h')
        elif guard[1].startswith('RW_ENTER') and guard[1] != 'RW_ENTER_ANYWHERE' and name in LEGAL:
            faults.append(f'{where} refuses kernels, but is on the list of what they may call')
        elif guard[1] in ('RW_ENTER_ANYWHERE', 'RW_LOOKS_ONLY') and name not in LEGAL + ['rw_recording_refused']:
            faults.append(f'{where} takes calls by kernels, but is not on the list of what they may call')
        elif guard[1] == 'RW_LOOKS_ONLY' and re.search(r'\b(double|float)\b', returns + str(arguments)):
            faults.append(f'{where} has floating-point numbers: RW_ENTER_ANYWHERE puts the mode aside')
    text = (ROOT / 'include/rewind/op.h').read_text()
    promise = text[text.index('Functions that are legal'):text.rindex(' * Floating-point mode')]
    promise = promise[promise.index('any thread'):]
    named = set(re.findall(r'\b((?:rw|ckpt)_\w+)', promise))
    listed = {n for n in LEGAL if not re.match(r'rw_(grad|op)_|rw_axes_|rw_none', n)}
    for name in sorted(listed ^ named):
        faults.append(f'include/rewind/op.h: {name} is ' + ('not in' if name in listed else 'in') +
                      ' the list of legal functions; generate_public_calls.py says otherwise')
    print('\n'.join(faults) or f'{len(functions)} public functions')
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
