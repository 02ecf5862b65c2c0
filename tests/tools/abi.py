#!/usr/bin/env python3
"""Compares the binary interface of the library with its record, include/librewind.abi.

    tests/tools/abi.py BUILD           fails if they differ
    tests/tools/abi.py BUILD record    writes the record: after additions, or with a new soname

The record has the soname, each function's declaration without names, each struct's size and the places of its members,
the value of each enumerator, and the symbols that the library exports. While the soname stays, a program that was
compiled before must still run: nothing of the record may change or go, it may only grow."""
import difflib
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
RECORD = ROOT / 'include/librewind.abi'


def output(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options).stdout


def statements():
    """The headers' declarations, each on one line."""
    text = output('cc', '-std=c11', '-E', '-P', f'-I{ROOT}/include', '-', input='#include <rewind/rewind.h>\n')
    text = text.replace('__attribute__((visibility("default")))', 'RW_API')
    depth, begin, found = 0, 0, []
    for i, c in enumerate(text):
        depth += (c == '{') - (c == '}')
        if c == ';' and not depth:
            found.append(' '.join(text[begin:i].split()))
            begin = i + 1
    return found


def without_names(parameters):
    """The types of a list of parameters."""
    types = []
    for p in re.split(r',(?![^()]*\))', parameters):
        p = re.sub(r'\(\*(?:const )?\w+\)', '(*)', p.strip())
        p = re.sub(r'(?<=[ *])(?!const\b)\w+(\[\d*\])?$', lambda m: m[1] or '', p) if ' ' in p and '(*)' not in p else p
        types.append(p.strip())
    return ', '.join(types)


def members(body):
    """Names of a struct's members; of a nested one without a name, its own."""
    body = re.sub(r'(?:struct|union)\s*(?:\w+\s*)?\{[^{}]*\}', 'nested', body)
    for line in filter(None, map(str.strip, body.split(';'))):
        if m := re.match(r'.*\(\*(\w+)(?:\[\w*\])?\)\(', line):
            yield m[1]
            continue
        for part in line.split(','):
            yield re.sub(r'\[.*', '', part).split()[-1].lstrip('*')


def interface():
    """The lines of the record about the headers."""
    functions, structs, values = [], {}, []
    for s in statements():
        s = re.sub(r'__attribute__ ?\(\(.*?\)\)+', '', s).strip()
        if m := re.fullmatch(r'typedef (struct|union) \w* ?\{(.*)\} (\w+)', s):
            if m[3].startswith(('rw_', 'ckpt_')):
                structs[m[3]] = list(members(m[2]))
        elif m := re.fullmatch(r'struct (rw_\w+) ?\{(.*)\}', s):
            structs[m[1]] = list(members(m[2]))
        elif m := re.fullmatch(r'(?:typedef )?enum \w* ?\{(.*)\}(?: \w+)?', s):
            names = (re.split(r'[ =]', v.strip())[0] for v in m[1].split(','))
            values += [name for name in names if name.startswith(('RW_', 'CKPT_'))]
        elif m := re.search(r'\bRW_API (.*?[ *])(\w+)\((.*)\)$', s):
            functions.append(f'function {m[2]}({without_names(m[3])}) {m[1].strip()}')
    lines = ['#include <rewind/rewind.h>', '#include <stdio.h>', 'int main(void) {']
    for name, fields in sorted(structs.items()):
        lines.append(f'printf("struct {name} %zu\\n", sizeof({name}));')
        lines += [f'printf("  {name}.{f} %zu %zu\\n", offsetof({name}, {f}), sizeof((({name} *)0)->{f}));'
                  for f in fields]
    lines += [f'printf("value {v} %lld\\n", (long long){v});' for v in sorted(values)] + ['}']
    with tempfile.TemporaryDirectory() as folder:
        program = f'{folder}/layout'
        subprocess.run(['cc', '-w', '-x', 'c', '-', f'-I{ROOT}/include', '-o', program], input='\n'.join(lines),
                       text=True, check=True)
        return sorted(functions) + output(program).splitlines()


def exported(library):
    """(soname, lines about exported symbols) of the shared library."""
    soname = re.search(r'SONAME.*\[(.*)\]', output('readelf', '-d', library))[1]
    symbols = output('nm', '-D', '--defined-only', '-P', library).splitlines()
    return soname, sorted(f'symbol {name}' for name in (s.split()[0] for s in symbols) if '@' in name and
                          name.split('@')[0].startswith(('rw_', 'ckpt_')))


def strangers(library):
    """Exported symbols that no header declares."""
    names = (s.split()[0].split('@')[0] for s in output('nm', '-D', '--defined-only', '-P', library).splitlines())
    return sorted(n for n in names if not n.startswith(('rw_', 'ckpt_', 'REWIND_')))


def main():
    library = next(iter(sorted(pathlib.Path(sys.argv[1]).glob('librewind.so.*.*.*'))))
    soname, symbols = exported(library)
    now = [f'soname {soname}'] + interface() + symbols
    declared = {re.match(r'function (\w+)', line)[1] for line in now if line.startswith('function')}
    if missing := declared ^ {re.match(r'symbol (\w+)', line)[1] for line in symbols}:
        sys.exit('declared and not exported, or the other way round: ' + ', '.join(sorted(missing)))
    if extra := strangers(library):
        sys.exit('exported without a declaration: ' + ', '.join(extra))
    before = RECORD.read_text().splitlines() if RECORD.exists() else []
    gone = [line for line in before if line not in set(now)]
    if sys.argv[2:] == ['record']:
        if gone and before[0] == now[0]:
            sys.exit('\n'.join(['these lines of the record changed under one soname:'] + gone))
        RECORD.write_text('\n'.join(now) + '\n')
    elif before != now:
        print('\n'.join(difflib.unified_diff(before, now, 'include/librewind.abi', str(library), lineterm='', n=0)))
        sys.exit('a break: it needs a new soname (the minor version before 1.0), then abi.py BUILD record'
                 if gone and before[:1] == now[:1] else 'additions: tests/tools/abi.py BUILD record')
    print(f'{len(declared)} functions, {len(now)} lines')


main()
