"""Writes the list of the library's ops, from the lines of their sources: RW_BUILTIN_OP and RW_INTERNAL_OP
(ops/common/declare_kernels.h). Its rows are BUILTIN_OP(name, inputs, torch), in alphabetical order, and then
INTERNAL_OP(name, inputs).

    builtin_ops.py OUTPUT SOURCE...
"""
import re
import sys

LINE = re.compile(r'^RW_(BUILTIN|INTERNAL)_OP\b([^;]*?\))$', re.M)
HEAD = """/* Written by ops/builtin_ops.py. No include guard: the includer sets either macro, or both. */
#ifndef BUILTIN_OP
#define BUILTIN_OP(name, inputs, torch)
#endif
#ifndef INTERNAL_OP
#define INTERNAL_OP(name, inputs)
#endif"""
TAIL = """#undef BUILTIN_OP
#undef INTERNAL_OP"""
ARGUMENTS = re.compile(r'\((\w+), ("[\w \[\]]*")(?:,\s+("[^"]+"))?\)')


def rows_of(path):
    """(kind, name, row) of each op that a source declares."""
    with open(path, encoding='utf-8') as f:
        text = f.read()
    for kind, rest in LINE.findall(text):
        found = ARGUMENTS.fullmatch(rest)
        if not found or (kind == 'BUILTIN') != bool(found[3]):
            sys.exit(f'{path}: RW_{kind}_OP{rest}: expected RW_BUILTIN_OP(name, "inputs", "PyTorch\'s name") or '
                     'RW_INTERNAL_OP(name, "inputs")')
        name, inputs, torch = found.groups()
        yield kind, name, f'BUILTIN_OP("{name}", {inputs}, {torch})' if torch else f'INTERNAL_OP("{name}", {inputs})'


def main():
    rows, places = {'BUILTIN': {}, 'INTERNAL': {}}, {}
    for path in sys.argv[2:]:
        for kind, name, row in rows_of(path):
            if name in places:
                sys.exit(f'{path}: {name} is already declared in {places[name]}')
            places[name] = path
            rows[kind][name] = row
    with open(sys.argv[1], 'w', encoding='utf-8') as f:
        print(HEAD, *(rows[kind][name] for kind in rows for name in sorted(rows[kind])), TAIL, sep='\n', file=f)


if __name__ == '__main__':
    main()
