#!/usr/bin/env python3
"""Checks that everything named in the pages exists: functions, types, constants (rw_..., RW_..., ckpt_..., REWIND_...)
somewhere in the sources, and files by their paths from the root. Prints what does not exist, with its page and line."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ['bench', 'examples', 'include', 'ops', 'runtime', 'scripts', 'tests']
NAME = re.compile(r'\b(?:rw|RW|ckpt|REWIND)_\w+')
PATH = re.compile(r'`((?:%s|docs)/[\w./-]*\w)' % '|'.join(FOLDERS))
SOURCE = {'.c', '.h', '.cu', '.cuh', '.cc', '.cpp', '.py', '.sh', '.build', '.txt'}


def named_in_sources():
    names = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob('*'):
            if path.suffix in SOURCE and path.is_file():
                names.update(NAME.findall(path.read_text(errors='replace')))
    return names


def is_there(path):
    """Whether it is a file or a folder, also by a path relative to tests/, or a program built from one."""
    suite = f'*/{pathlib.PurePath(path).name}.c'
    return any((ROOT / p).exists() for p in (path, f'{path}.c', f'tests/{path}')) or any((ROOT / 'tests').glob(suite))


def is_placeholder(name):
    """rw_NAME, bench/results/MACHINE/figures.txt; not RW_NONE."""
    return not name.startswith(('RW_', 'REWIND_')) and re.search(r'(?<![A-Za-z])[A-Z]{4,}', name) is not None


def without_old_names(line):
    """Handles a row of the changelog's table of names: | old | new |. The names of its first column no longer exist."""
    cells = line.split('|')
    return '|'.join(cells[2:]) if len(cells) == 4 and line.startswith('|') else line


def missing_of(page, known):
    for number, line in enumerate(page.read_text().splitlines(), 1):
        named = without_old_names(line) if page.name == 'CHANGELOG.md' else line
        for name in NAME.findall(named):
            # a family of names is written as its common prefix
            if name not in known and not (name.endswith('_') and any(k.startswith(name) for k in known)):
                yield number, name
        yield from ((number, path) for path in PATH.findall(named) if not is_there(path))


def main():
    known, pages = named_in_sources(), sorted((ROOT / 'docs').glob('*.md')) + sorted(ROOT.glob('*.md'))
    missing = [(page, *m) for page in pages for m in missing_of(page, known) if not is_placeholder(m[1])]
    for page, number, name in missing:
        print(f'{page.relative_to(ROOT)}:{number}: {name} is nowhere')
    print(f'{len(pages)} pages, {len(missing)} names that are nowhere')
    sys.exit(bool(missing))


if __name__ == '__main__':
    main()
