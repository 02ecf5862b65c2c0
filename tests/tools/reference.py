#!/usr/bin/env python3
"""Checks the reference of the headers (docs/reference): `ninja docs` has no warning, every page of docs/ is linked from
the main page, every header has its example, and planted mistakes are warnings. Exits with 77 without Doxygen.

    reference.py BUILD
"""
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# file, text, its replacement, and a pattern of the warning
PLANTED = [
    ('include/rewind/pointwise.h', 'rw_elu_at(rw_site at, rw_tape *t, rw_tensor *x, double alpha)',
     'rw_elu_at(rw_site at, rw_tape *t, rw_tensor *x, double alpha, int planted)', "parameter 'planted'"),
    ('include/rewind/io.h', 'RW_API rw_status rw_save(',
     'RW_API rw_status rw_planted(void);\n\nRW_API rw_status rw_save(', 'Member rw_save'),
    ('include/rewind/context.h', ' * @return RW_OK; RW_ERR_ARGUMENT; RW_ERR_MEMORY if the threads', ' * The threads',
     'return type of member rw_context_set_threads'),
    ('include/rewind/einsum.h', 'rw_matmul() if an', 'rw_planted_link() if an', 'rw_planted_link'),
    ('include/rewind/types.h', ' ///< number of axes', '', 'Member rank'),
    ('include/rewind/offsets.h', '', '/**\n * rewind/offsets.h - planted.\n *\n */\n#define PLANTED 1 ///< planted\n',
     r'included file offsets\.c'),
    ('examples/by_header/ops.c', '//! [conv]', '//! [planted]', r'\[conv\]'),
    ('docs/tape.md', '# The tape', 'See [a page](planner.md#planted).\n\n# The tape', 'planner-planted'),
]


def doxygen(doxyfile, source, output):
    """Runs Doxygen on another source folder; returns its status and warnings."""
    text = doxyfile.read_text().replace(str(ROOT), str(source))
    text = re.sub(r'(?m)^OUTPUT_DIRECTORY.*', f'OUTPUT_DIRECTORY = {output}', text)
    done = subprocess.run(['doxygen', '-'], input=text, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def plant(source):
    for name, old, new, _ in PLANTED:
        path = source / name
        text = path.read_text() if path.exists() else ''
        if old not in text:
            sys.exit(f'{name}: the text to replace is not there: {old}')
        path.write_text(text.replace(old, new, 1))


def planted_mistakes_are_found(doxyfile):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / 'source'
        for name in ('include', 'docs', 'examples/by_header'):
            shutil.copytree(ROOT / name, source / name)
        plant(source)
        status, warnings = doxygen(doxyfile, source, pathlib.Path(folder))
    missed = [pattern for *_, pattern in PLANTED if not re.search(pattern, warnings)]
    print(f'{len(PLANTED) - len(missed)} of {len(PLANTED)} planted mistakes are warnings, exit status {status}')
    if missed:
        print(warnings, f'not reported: {missed}', sep='\n')
    return status != 0 and not missed


def has_example(pages, name):
    """Whether a header has a page, which begins with an example."""
    page = pages / f'{name.replace("_", "__")}_8h.html'
    return page.exists() and '<dl class="section user"><dt>Example</dt>' in page.read_text()


def missing_on_main_page():
    main = (ROOT / 'docs/reference/main.md').read_text()
    return [p.name for p in sorted((ROOT / 'docs').glob('*.md')) if f']({p.name})' not in main]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    doxyfile = build / 'docs/reference/Doxyfile'
    if not shutil.which('doxygen') or not doxyfile.exists():
        print('Doxygen is not there, or the build is configured with -Ddocs=disabled')
        sys.exit(77)
    fcntl.flock(os.open(build, os.O_RDONLY), fcntl.LOCK_EX)  # as in scripts/setup.sh: one ninja at a time
    made = subprocess.run(['ninja', '-C', build, 'docs'])
    headers = sorted((ROOT / 'include/rewind').glob('*.h'))
    without = [h.name for h in headers if not has_example(build / 'docs/reference/html', h.stem)]
    unlinked = missing_on_main_page()
    print(f'{len(headers)} headers; without an example: {without}; pages that the main page does not link: {unlinked}')
    sys.exit(made.returncode or bool(without or unlinked) or not planted_mistakes_are_found(doxyfile))


if __name__ == '__main__':
    main()
