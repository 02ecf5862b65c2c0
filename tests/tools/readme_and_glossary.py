#!/usr/bin/env python3
"""The README leads to a first result quickly, and terms are in the glossary.

    readme_and_glossary.py         checks the lengths of the README and its two first blocks, and that each term in
                                   italics in docs/ is a term or a synonym of docs/glossary.md
    readme_and_glossary.py self    checks that a planted term and a planted README are found
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
README_LINES, CODE_BEFORE, INSTALL_BEFORE = 160, 15, 60
TERM = re.compile(r'(?<![*\w`])\*([A-Za-z][A-Za-z -]{1,30})\*(?![*\w:])')


def faults_of_readme(text):
    lines = text.splitlines()
    if len(lines) > README_LINES:
        yield f'README.md: expected at most {README_LINES} lines, got {len(lines)}'
    code = next((i for i, line in enumerate(lines, 1) if line.startswith('```')), len(lines) + 1)
    if code > CODE_BEFORE:
        yield f'README.md: expected the first code block within {CODE_BEFORE} lines, got line {code}'
    install = next((i for i, line in enumerate(lines, 1) if 'meson' in line and 'install' in line), len(lines) + 1)
    if install > INSTALL_BEFORE:
        yield f'README.md: expected the install line within {INSTALL_BEFORE} lines, got line {install}'


def prose(text):
    """(number, line) outside of code blocks, tables and legends, which explain their own words."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith('```'):
            fenced = not fenced
        elif not fenced and not line.startswith(('    ', '|')):
            yield number, re.sub(r'`[^`]*`', '', line)


def stem(word):
    return re.sub(r'(es|s)$', '', word.lower())


def known_terms(glossary):
    bold = re.findall(r'\*\*([^*]+)\*\*', glossary)
    synonyms = re.findall(r'(?<!\*)\*([^*]+)\*(?!\*)', glossary)
    terms = {t.strip(' .') for text in bold + synonyms for t in re.split(r'[,;.]', text.replace('\n', ' '))}
    return {stem(t) for t in terms} | {stem(t.split()[0]) for t in terms if t} # "deferred" of "deferred node"


def faults_of_page(name, text, known):
    for number, line in prose(text):
        for term in TERM.findall(line):
            if stem(term) not in known:
                yield f'{name}:{number}: "{term}" is marked as a term and is not in docs/glossary.md'


def self_check():
    known = known_terms('**Fate.** What a choice decides. *Decision, verdict.*\n**Segment, part.** ...\n')
    page = 'A *fate*, *segments*, a *verdict* and\na *gizmo*; `*code*`.\n\n    *block*\n'
    found = list(faults_of_page('page', page, known))
    readme = list(faults_of_readme('text\n' * 200))
    ok = len(found) == 1 and 'gizmo' in found[0] and len(readme) == 3
    print('the planted term and README are found' if ok else f'found {found}, {readme}')
    sys.exit(not ok)


def main():
    if sys.argv[1:] == ['self']:
        self_check()
    known = known_terms((ROOT / 'docs/glossary.md').read_text())
    faults = list(faults_of_readme((ROOT / 'README.md').read_text()))
    for page in sorted((ROOT / 'docs').glob('*.md')):
        if page.name not in ('glossary.md', 'ops.md'): # ops.md marks the columns of a table
            faults += faults_of_page(page.name, page.read_text(), known)
    print('\n'.join(faults) or 'the README is short, and every marked term is in the glossary')
    sys.exit(bool(faults))


if __name__ == '__main__':
    main()
