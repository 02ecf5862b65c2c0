#!/usr/bin/env python3
"""Checks that old vocabulary does not return (docs/glossary.md has the terms to use).

    words.py             counts old phrases by folder, prints those in include/, docs/ and the pages of the root, where
                         none is allowed, and fails where a folder has more than tests/tools/words.txt allows
    words.py list PATH   prints each of them below a path
    words.py lower       writes today's counts to words.txt where they are lower; counts only fall
    words.py lengths     prints the lengths of sentences in include/ and docs/; fails if the median is above 18 words or
                         a sentence has more than 40
    words.py self        checks that planted phrases are found and that code is not read as prose

Read are comments of C and CUDA, comments and docstrings of Python, comments of shell and Meson, and Markdown without
code."""
import io
import pathlib
import re
import statistics
import sys
import tokenize

ROOT = pathlib.Path(__file__).parents[2]
ALLOWED = pathlib.Path(__file__).with_name('words.txt')
FOLDERS = ['runtime', 'ops', 'tests', 'bench', 'examples', 'scripts']
C = {'.c', '.h', '.cu', '.cuh', '.cc', '.cpp'}
MEDIAN, LONGEST = 18, 40

# old phrase (a regular expression between word boundaries): what to write
PHRASES = {
    r'made (?:again|anew)|makes? (?:it|them) (?:again|anew)': 'recomputed',
    r'r[ua]n again|runs again': 're-executed',
    r'wait(?:s|ed|ing)? (?:outside|elsewhere|away)|moved (?:out|away)|store trips?': 'offloaded',
    r'lies|lie|lying|sits?|stands?(?! for\b)': 'is, is stored at, is listed in, follows',
    r'lives|dies|tenants?': 'is live, last use, lifetime',
    r'hand(?:s|ed)? out|given out|hand(?:s|ed)? over': 'returned, published, passed',
    r'asked(?!:)|asks? for|asking for': 'requested',
    r'(?:far|near) bytes|ha(?:s|ve) no room': 'cache misses, does not fit',
    r'alike(?!:)': 'identically, in the same order',
    r'that would do': 'minimum, maximum',
    r'taken for|held against': 'assumed to be, compared with',
    r'keeps? books|books of': 'accounting',
    r'fades?|faded': 'underflows, subnormal',
    r'in company|company of': 'contention',
    r'(?:8-bit|of|in|by|makes?) codes': 'quantized values, FP8 data',
    r'turned(?! (?:on|off|into|out)\b)': 'transposed',
    r'used up': 'consumed',
    r'passing bytes|lost bytes': 'transient, fragmentation',
    r'whoever|nobody|somebody|everybody|who (?:adds|asks|reads|waits|watches|writes)': 'the caller, no other op',
    r'stopped runs?': 'suspended run',
    r'grown steps?': 'scaled step',
    r'ceilings': 'calibration',
    r'behind': 'after, following',
    r'by chance': 'stochastic rounding',
    r'settles?|settled': 'commits',
    r'once a step': 'once per step',
    r'no number any more|(?:is|are|was|or) no number': 'NaN',
}
OLD = re.compile('|'.join(rf'(?P<p{i}>\b(?:{p})\b)' for i, p in enumerate(PHRASES)), re.I)
INSTEAD = list(PHRASES.values())


def c_comments(text):
    """Line and text of each comment of C, strings and characters left out."""
    for m in re.finditer(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', text, re.S):
        if m[0].startswith('/'):
            line = text.count('\n', 0, m.start()) + 1
            yield line, re.sub(r'\A/\*+|\*/\Z|^[ \t]*(?:\*|///?<?)[ \t]?', '', m[0], flags=re.M)


def python_comments(text):
    before = tokenize.NEWLINE
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            docstring = token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT)
            if token.type == tokenize.COMMENT or docstring:
                yield token.start[0], token.string.strip('#"\' ')
            if token.type not in (tokenize.COMMENT, tokenize.DEDENT):
                before = token.type
    except (tokenize.TokenError, IndentationError):
        return


def hash_comments(text):
    for i, line in enumerate(text.splitlines(), 1):
        m = re.match(r'(?:.*\s)?#(?!!)(.*)', line)
        if m:
            yield i, m[1]


def markdown(text):
    """The page without its code: blocks between backquotes, and indented ones that are in no list."""
    text = re.sub(r'^( *```).*?^\1', lambda m: '\n' * m[0].count('\n'), text, flags=re.M | re.S)
    lines, code, top = text.split('\n'), False, ''
    for i, line in enumerate(lines):
        if line.startswith('    '):
            code = code or i == 0 or not lines[i - 1].strip()
            lines[i] = '' if code and not re.match(r'[-*] |\d+\. ', top) else line
        elif line.strip():
            code, top = False, line if not line.startswith(' ') else top
    yield 1, '\n'.join(lines)


def prose(path, text):
    if path.suffix in C:
        return c_comments(text)
    if path.suffix == '.md':
        return markdown(text)
    if path.suffix == '.py':
        return python_comments(text)
    return hash_comments(text) if path.suffix == '.sh' or path.name == 'meson.build' else ()


def without_code(text):
    """Names in backquotes, calls, files, members, policies and words in quotes are not prose."""
    blank = lambda m: ' ' * len(m[0]) if '\n' not in m[0] else re.sub(r'[^\n]', ' ', m[0])
    text = re.sub(r'`[^`]*`', blank, text)
    text = re.sub(r'"[^"\n]{1,40}"', blank, text)
    return re.sub(r'[\w/.-]+\.(?:c|h|cu|cuh|md|py|sh)\b|\b\w+\(\)|\b\w+_\w*|->\w+', blank, text)


def found_in(path, text):
    """Line, phrase and what to write instead, for each old phrase of a file."""
    for line, comment in prose(path, text):
        plain = without_code(comment)
        for m in OLD.finditer(plain):
            yield line + plain.count('\n', 0, m.start()), m[0], INSTEAD[int(m.lastgroup[1:])]


def files_of(folder):
    return sorted(p for p in (ROOT / folder).rglob('*')
                  if p.is_file() and 'build' not in p.parts and p.resolve() != pathlib.Path(__file__).resolve())


def pages():
    """The files in which no old phrase is allowed. CHANGELOG.md names renamed things."""
    root = [p for p in sorted(ROOT.glob('*.md')) if p.name != 'CHANGELOG.md']
    return files_of('include') + files_of('docs') + root


def phrases_of(paths):
    for path in paths:
        for line, phrase, instead in found_in(path, path.read_text(errors='replace')):
            yield path, line, phrase, instead


def show(found):
    for path, line, phrase, instead in found:
        print(f'{path.relative_to(ROOT)}:{line}: "{phrase}"; write: {instead}')


def counts():
    return {folder: sum(1 for _ in phrases_of(files_of(folder))) for folder in FOLDERS}


def allowed():
    return {folder: int(n) for folder, n in (line.split() for line in ALLOWED.read_text().splitlines() if line)}


def check():
    bad, today, most = list(phrases_of(pages())), counts(), allowed()
    show(bad)
    print(f'include/, docs/ and pages: {len(bad)}')
    for folder, n in today.items():
        note = ' more than allowed: words.py list' if n > most[folder] else ''
        note = note or (' fewer: write that down, words.py lower' if n < most[folder] else '')
        print(f'{folder}: {n} of {most[folder]}{note}')
    return bool(bad) or any(today[f] > most[f] for f in FOLDERS)


def lower():
    most = allowed() if ALLOWED.exists() else {}
    ALLOWED.write_text(''.join(f'{f} {min(n, most.get(f, n))}\n' for f, n in counts().items()))
    return 0


# ---- lengths of sentences ----

def sentences(text):
    """Line and text. Paragraphs, items of lists, cells of tables and tags end a sentence, too, and so do semicolons
    and colons before a capital letter."""
    text = re.sub(r'`[^`]*`', lambda m: 'Code' + '\n' * m[0].count('\n'), text)
    ends = re.compile(r'\n\s*\n|\n\s*(?=[-*#]+ |\d+\. |@\w|\|)|\||'
                      r'(?<!e\.g\.)(?<!i\.e\.)(?<!al\.)(?<=[.!?])["\')\]*]*\s+|(?<=[;:])\s+(?=[A-Z"(\[*])')
    at = 0
    for m in list(ends.finditer(text)) + [None]:
        sentence = text[at:m.start() if m else len(text)]
        yield text.count('\n', 0, at + len(sentence) - len(sentence.lstrip())), ' '.join(sentence.split())
        at = m.end() if m else 0


def words_in(sentence):
    return len(re.findall(r"[A-Za-z0-9_'][\w'./-]*", sentence))


def is_text(line):
    """Lines of indented code and of tables in comments are not sentences."""
    return not re.match(r' {2,}\S', line) or bool(re.match(r' {2,9}[-*] ', line))


def lengths_of(path):
    for line, block in prose(path, path.read_text(errors='replace')):
        if path.suffix == '.h':
            lines, kept = block.split('\n'), []
            for i, text in enumerate(lines):
                hanging = kept and kept[-1].strip() and re.match(r' {2,}\S', text) and lines[i - 1].strip()
                kept.append(text if is_text(text) or hanging and not re.search(r'[{};]|   ', text.strip()) else '')
            block = '\n'.join(kept)
        for offset, sentence in sentences(block):
            n = words_in(sentence)
            if n > 2:
                yield n, line + offset, sentence


def lengths():
    bad = 0
    for folder in ['include', 'docs']:
        all_of = [(n, path, line, s) for path in files_of(folder) if path.suffix in ('.h', '.md')
                  for n, line, s in lengths_of(path)]
        numbers = [n for n, *_ in all_of]
        print(f'{folder}: {len(numbers)} sentences, median {statistics.median(numbers):g} words, '
              f'longest {max(numbers)}')
        for n, path, line, s in sorted(all_of, key=lambda a: (str(a[1]), a[2])):
            if n > LONGEST:
                print(f'  {path.relative_to(ROOT)}:{line}: {n} words: {s[:160]}')
                bad += 1
        bad += statistics.median(numbers) > MEDIAN
    return bool(bad)


def self_test():
    """Each phrase is found in a comment; none in code, strings, names and backquotes."""
    c, md, py = pathlib.Path('a.c'), pathlib.Path('a.md'), pathlib.Path('a.py')
    planted = ['made again', 'runs again', 'waits outside', 'moved out', 'lies', 'stands in', 'tenants', 'handed out',
               'asked', 'alike', 'that would do', 'held against', 'faded', 'of codes', 'used up', 'whoever', 'nobody',
               'stopped run', 'ceilings', 'behind', 'by chance', 'settles', 'once a step', 'is no number']
    wrong = [p for p in planted if len(list(found_in(c, f'int x; /* it {p} now\n * so. */\n'))) != 1]
    wrong += [p for p in planted if len(list(found_in(md, f'A value {p} now.\n'))) != 1]
    clean = [(c, 'int behind = lies("made again", \'"\'); /* stands for `behind`, rw_lies, lives.h, lie() */'),
             (md, '```\nbehind\n```\nUse `alike` and "moved out".\n'), (py, 'behind = "lies"\n')]
    wrong += [text for path, text in clean if list(found_in(path, text))]
    where = list(found_in(c, 'int a;\n/* one\n   two behind */\n// lies\n'))
    wrong += [] if [w[0] for w in where] == [3, 4] else [f'lines {where}']
    lengths_seen = [(line, words_in(text)) for line, text in sentences('One two.\nTwo `of three`\nfour. ' + 'x ' * 50)]
    wrong += [] if lengths_seen == [(0, 2), (1, 3), (2, 50)] else [f'sentences {lengths_seen}']
    print('\n'.join(map(str, wrong)) or f'{len(planted)} planted phrases found')
    return bool(wrong)


def main():
    command, *rest = sys.argv[1:] or ['check']
    if command == 'list' and len(rest) == 1:
        path = (ROOT / rest[0]).resolve()
        show(phrases_of([path] if path.is_file() else files_of(path)))
        return 0
    commands = {'check': check, 'lower': lower, 'lengths': lengths, 'self': self_test}
    if command not in commands or rest:
        sys.exit(__doc__)
    return commands[command]()


if __name__ == '__main__':
    sys.exit(main())
