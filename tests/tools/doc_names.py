#!/usr/bin/env python3
"""What the pages name is there: functions, types, constants (rw_..., RW_..., ckpt_..., REWIND_...) somewhere in the
sources, and files by their paths from the root. Prints what is not, with its page and line."""
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
    """A file or a folder, of the tests' by its path among them, too; a program that is built of one."""
    suite = f'*/{pathlib.PurePath(path).name}.c'
    return any((ROOT / p).exists() for p in (path, f'{path}.c', f'tests/{path}')) or any((ROOT / 'tests').glob(suite))


def is_placeholder(name):
    """rw_NAME, bench/results/MACHINE/figures.txt; not RW_NONE."""
    return not name.startswith(('RW_', 'REWIND_')) and re.search(r'(?<![A-Za-z])[A-Z]{4,}', name) is not None


def missing_of(page, known):
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for name in NAME.findall(line):
            # a family is named by its beginning
            if name not in known and not (name.endswith('_') and any(k.startswith(name) for k in known)):
                yield number, name
        yield from ((number, path) for path in PATH.findall(line) if not is_there(path))


def main():
    known, pages = named_in_sources(), sorted((ROOT / 'docs').glob('*.md')) + sorted(ROOT.glob('*.md'))
    missing = [(page, *m) for page in pages for m in missing_of(page, known) if not is_placeholder(m[1])]
    for page, number, name in missing:
        print(f'{page.relative_to(ROOT)}:{number}: {name} is nowhere')
    print(f'{len(pages)} pages, {len(missing)} names that are nowhere')
    sys.exit(bool(missing))


if __name__ == '__main__':
    main()
