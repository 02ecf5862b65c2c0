#!/usr/bin/env python3
"""Checks that the dependencies between folders of runtime/ and ops/ have one direction, by includes and by calls.

    tests/tools/include_graph.py BUILD

A .c and its header are one unit. No unit may depend on itself through others, nor may a folder of runtime/ or a family
of ops/. A dependency within runtime/ stays in its folder or goes to an earlier folder of ORDER. Files of ops/ include
public headers, ops/, base/ and device/, and nothing of a pass. Passes include of ops/ only the headers of PASS_OPS,
which declare the ops that passes record, and which include only public headers and each other. Calls within runtime/,
read from BUILD's objects, count like includes: a call of a function that a later folder defines is detected, whichever
header declares it."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
ORDER = ['base', 'device', 'record', 'autodiff', 'remat/policy', 'remat/schedule', 'remat/planner', 'place', 'plan',
         'run', 'verify', 'api', 'io']
PASS_OPS = tuple(f'ops/{name}.h' for name in (
    'common/pass_ops', 'float8/fp8_scaling_ops', 'optim/loss_scaling_ops', 'optim/update_ops', 'random/random_fill'))
# Dependencies that remain to be removed, FROM -> TO. An entry that is not needed fails the test as well.
EXCEPTIONS = """
"""


def room(path):
    return str(path.with_suffix(''))


def folder(name):
    """runtime/record, ops/matmul: two levels, and the three folders of runtime/remat; device/cpu and device/cuda belong
    to device."""
    return '/'.join(name.split('/')[:3 if name.startswith('runtime/remat/') else 2])


def place(path):
    """The entry of ORDER to which a file of runtime/ belongs."""
    return folder(str(path)).removeprefix('runtime/')


def resolve(source, name):
    """The file of the tree to which an #include "NAME" refers."""
    for base in (source.parent, pathlib.Path('runtime'), pathlib.Path('.')):
        if (ROOT / base / name).is_file():
            return base / name
    sys.exit(f'{source} includes {name}, which is not there')


def sources():
    return [p.relative_to(ROOT) for top in ('runtime', 'ops') for p in sorted((ROOT / top).rglob('*'))
            if p.suffix in ('.c', '.h', '.cu', '.cuh')]


def includes(build):
    """(file, file) for each include of a file of the tree; the build generates others."""
    return {(source, resolve(source, name)) for source in sources()
            for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', (ROOT / source).read_text(), re.M)
            if not (build / name).is_file()}


def calls(build):
    """(file, file) for each symbol of runtime/ that another file of runtime/ uses."""
    by_object = {str(s).replace('/', '_') + '.o': s for s in sources() if s.parts[0] == 'runtime'}
    owner, used = {}, set()
    for path in build.glob('**/librewind_*.a.p/*.o'):
        source = by_object.get(path.name.removeprefix('.._'))
        listing = source and subprocess.run(['nm', '-gP', path], stdout=subprocess.PIPE, text=True, check=True).stdout
        for symbol, kind in (line.split()[:2] for line in (listing or '').splitlines()):
            if kind == 'U':
                used.add((source, symbol))
            else:
                owner[symbol] = source
    if not owner:
        sys.exit(f'{build} holds no objects of runtime/')
    return {(source, owner[symbol]) for source, symbol in used if symbol in owner}


def refused(source, target):
    """Why a dependency between two folders violates the order, or None."""
    a, b = source.parts, target.parts
    if str(source) in PASS_OPS:
        return None if str(target) in PASS_OPS else 'a header for passes includes public headers alone'
    if a[0] == 'runtime' and b[0] == 'ops':
        if ORDER.index(place(source)) < ORDER.index('record'):
            return f'{place(source)}/ knows nothing of ops/'
        return None if str(target) in PASS_OPS else 'passes know only the headers of PASS_OPS'
    if a[0] == b[0] == 'runtime':
        first, second = place(source), place(target)
        return f'{first}/ comes before {second}/' if ORDER.index(second) > ORDER.index(first) else None
    if a[0] == 'ops' and b[0] == 'runtime' and b[1] not in ('base', 'device'):
        return f'an op knows nothing of {b[1]}/'
    return None


def circles(edges):
    """The strongly connected parts of more than one node (Tarjan)."""
    out = {}
    for a, b in edges:
        if a != b:
            out.setdefault(a, set()).add(b)
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(out.get(v, ())):
            if w not in index:
                visit(w)
            low[v] = min(low[v], low[w]) if w in stack else low[v]
        if low[v] == index[v]:
            part = stack[stack.index(v):]
            del stack[stack.index(v):]
            if len(part) > 1:
                found.append(sorted(part))

    for v in sorted(out):
        if v not in index:
            visit(v)
    return found


def faults(edges):
    """Messages about the invalid dependencies between files."""
    said = [f'{a} -> {b}: {why}' for a, b in sorted(edges) for why in [refused(a, b)] if why]
    rooms = {(room(a), room(b)) for a, b in edges}
    said += ['files in a circle: ' + ', '.join(part) for part in circles(rooms)]
    said += ['folders in a circle: ' + ', '.join(part) for part in circles({(folder(a), folder(b)) for a, b in rooms})]
    return said


def main():
    build = pathlib.Path(sys.argv[1])
    edges = includes(build) | calls(build)
    strangers = {f'{folder(str(s))}/ is not in ORDER' for s in sources()
                 if s.parts[0] == 'runtime' and place(s) not in ORDER}
    if strangers:
        sys.exit('\n'.join(sorted(strangers)))
    excepted = {tuple(map(pathlib.Path, line.split(' -> '))) for line in EXCEPTIONS.split('\n') if line}
    said = faults(edges - excepted)
    said += [f'{a} -> {b}: is in order, take it off the list of exceptions' for a, b in sorted(excepted)
             if (a, b) not in edges or not faults(edges - excepted | {(a, b)}) and not said]
    found = f'{len(edges)} arrows between {len(sources())} files, no circle, {len(excepted)} exceptions'
    print('\n'.join(said) or found)
    sys.exit(bool(said))


main()
