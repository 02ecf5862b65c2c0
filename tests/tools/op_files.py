#!/usr/bin/env python3
"""Prints the files that mention an op, or checks the list of files in docs/adding_an_op.md.

    tests/tools/op_files.py NAME    prints the files
    tests/tools/op_files.py         fails if the page's example is in other files than the page lists, or in more than
                                    nine: then a new op is a line in a place that the page does not name"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ['bench', 'docs', 'examples', 'include', 'ops', 'runtime', 'scripts', 'tests']
PAGE = 'docs/adding_an_op.md'
EXAMPLE, FILES_MAX = 'celu', 9


def files_of(op):
    """Files of the tree, other than the page, with the op's name as a word, or as a part of rw_NAME_at and the like."""
    word = re.compile(rb'(?<![a-z0-9])' + op.encode() + rb'(?![a-z0-9])')
    tree = [path for folder in FOLDERS for path in (ROOT / folder).rglob('*')] + list(ROOT.glob('*.md'))
    files = {str(path.relative_to(ROOT)) for path in tree
             if path.is_file() and path.suffix != '.pyc' and word.search(path.read_bytes())}
    return files - {PAGE, f'tests/tools/{pathlib.Path(__file__).name}'}


def listed():
    """The files of the page's list: lines of four spaces, a path, and what is there."""
    text = (ROOT / PAGE).read_text().split(f'`rw_{EXAMPLE}()`', 1)[-1]
    block = re.search(r'(?m)(?:^ {4}\S.*\n)+', text)
    return {line.split()[0] for line in block[0].splitlines()} if block else set()


def main():
    if len(sys.argv) > 1:
        print('\n'.join(sorted(files_of(sys.argv[1]))))
        return
    found, page = files_of(EXAMPLE), listed()
    for name in sorted(found - page):
        print(f'{name} mentions {EXAMPLE}, and {PAGE} does not list it')
    for name in sorted(page - found):
        print(f'{PAGE} lists {name}, which does not mention {EXAMPLE}')
    print(f'{EXAMPLE} is in {len(found)} files, of at most {FILES_MAX}')
    sys.exit(found != page or len(found) > FILES_MAX)


if __name__ == '__main__':
    main()
