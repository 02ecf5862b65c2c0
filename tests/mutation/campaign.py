#!/usr/bin/env python3
"""Mutations of runtime/, ops/, bench/ and examples/, and which suite detects each: a test that cannot fail proves
nothing.

    tests/mutation/campaign.py check            every anchor occurs in its file, once
    tests/mutation/campaign.py make FOLDER      the tree with all mutations in it, each enabled by a switch
    tests/mutation/campaign.py targets [NAME...]    what these need: suites of the CPU, and others that are named
    tests/mutation/campaign.py run BUILD [NAME...]    tries them all, or those whose names begin so

The mutations are in the *.txt files of this folder:

    @ FILE                      the following mutations are of this file
    NAME: SUITE SUITE:TESTS     a mutation, and the suites that are tried first; TESTS: those of a suite, by a pattern
    NAME: SCRIPT SCRIPT:WORD    of a program: scripts of tests/tools, and no suite after them; WORD: their argument
    - text before <<<what is mutated>>> and after
    + the replacement
    = reason                    it has no observable effect: it is neither tried nor counted

The text of the `-` lines occurs once in the file, with any line breaks. A mutated part that ends in a semicolon is a
statement, any other an expression; without brackets all of the text is mutated. The output of `make` has both versions,
and REWIND_MUTANT=N in the environment selects one. scripts/mutation.sh builds that and runs it.

A mutation is killed if a suite fails, crashes, or takes ten times as long as without it. The rest of the suites are not
run then. REWIND_MUTATION_QUICK=1 runs only those that the list names. Suites of the simulated device, which are slow,
are only run if they are named: those of CUDA kernels. The last line is the summary."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
COPIED = ['meson.build', 'meson_options.txt', 'include', 'runtime', 'ops', 'tests', 'bench', 'examples', 'docs']
# The scripts that run programs, and the programs that they need.
SCRIPTS = {'trainer.py': ['examples/train_gpt', 'examples/train_text'],
           'train_gpt.sh': ['examples/train_gpt', 'examples/train_text'],
           'trainer_kills.py': ['examples/train_gpt'], 'trainer_numbers.py': ['examples/train_gpt'],
           'sweep.py': ['bench/recompute_sweep', 'bench/sweep_faults'],
           'sweep_numbers.py': ['bench/recompute_sweep', 'bench/sweep_faults']}
# The files with the switch: in the library, and in each program that is mutated, because a shared library does not
# export it.
SWITCHED = ['runtime/base/alloc.c', 'examples/train_gpt/main.c', 'examples/train_text.c',
            'bench/sweep/recompute_sweep.c']
HEADER = '''#ifdef __cplusplus
extern "C" int rw_mutant;
#else
extern int rw_mutant;
#endif
#define RW_MUTANT(n) __builtin_expect(rw_mutant == (n), 0)
'''
SWITCH = '''
#include <stdlib.h>
__attribute__((weak)) int rw_mutant;
static __attribute__((constructor)) void choose_mutant(void)
{
    const char *const number = getenv("REWIND_MUTANT");
    if (number) rw_mutant = atoi(number);
}
'''


class Mutation:
    def __init__(self, path, name, suites):
        self.path, self.suites = path, suites
        self.name = f'{pathlib.Path(path).with_suffix("")}/{name}'.removeprefix('runtime/')
        # From the name only: when the list grows, the other files of a build are unchanged
        self.number = zlib.crc32(self.name.encode()) & 0x7fffffff
        self.anchor, self.instead, self.reason = [], [], []

    def pattern(self):
        """The anchor, with any white space between its words; groups: before, mutated, after."""
        def words(text):
            return r'\s+'.join(re.escape(word) for word in text.split())
        text = ' '.join(self.anchor)
        if '<<<' not in text:
            text = f'<<<{text}>>>'
        before, rest = text.split('<<<')
        part, behind = rest.split('>>>')

        def gap(left, right):
            return r'\s*' if left[-1:].isspace() or right[:1].isspace() or not left or not right else ''
        return re.compile(f'({words(before)}{gap(before, part)})({words(part)})({gap(part, behind)}{words(behind)})')

    def place(self, texts):
        """The range of the mutated part and its text, or what is wrong."""
        found = list(self.pattern().finditer(texts[self.path]))
        if len(found) != 1:
            return None, f'{self.name}: its text stands {len(found)} times in {self.path}'
        return found[0].span(2), found[0].group(2)


def read_lists():
    mutations, path = [], None
    for file in sorted(HERE.glob('*.txt')):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            kind, rest = line[:2], line[2:]
            if not line.strip() or line.startswith('#'):
                continue
            if kind == '@ ':
                path = rest.strip()
            elif kind == '- ':
                mutations[-1].anchor.append(rest)
            elif kind in ('+ ', '+'):
                mutations[-1].instead.append(rest)
            elif kind == '= ':
                mutations[-1].reason.append(rest)
            elif re.match(r'[\w-]+:', line):
                name, suites = line.split(':', 1)
                mutations.append(Mutation(path, name, suites.split()))
            else:
                sys.exit(f'{file.name}:{number}: not understood: {line}')
    return mutations


def sources_of(mutations):
    return {path: (ROOT / path).read_text() for path in {m.path for m in mutations}}


# Tokens with which no operand of ?: begins or ends
BEGINS = re.compile(r'[<>=!+*/%&|^-]=|[<>=/%|^?:,;]|&&|\.[a-z]')
ENDS = re.compile(r'(?:[*/%&|^<>=!,?:;]|->|(?<![+])[+]|(?<!-)-)$')


def misfits(m, original, texts):
    """Why no compiler would accept the text with its switch, as far as this can be determined without one."""
    instead = '\n'.join(m.instead).strip()
    begin = m.place(texts)[0][0]
    before = texts[m.path][:begin].rstrip()
    if texts[m.path][:begin].rpartition('\n')[2].lstrip().startswith('#'):
        yield 'what it mutates is a directive\'s, which has no switch'
    if any(text.count(a) != text.count(b) for text in (original, instead) for a, b in ('()', '[]', '{}')):
        yield 'a bracket has no other'
    elif not is_statement(instead) if is_statement(original) else instead.endswith(';'):
        yield 'a statement and an expression cannot stand for each other: the semicolon belongs inside of <<<>>>'
    elif is_statement(original) and not before.endswith((';', '{', '}', ')', ':', 'else', '*/')):
        yield 'a statement cannot stand within an expression: the semicolon belongs outside of <<<>>>'
    elif not is_statement(original) and any(not text or BEGINS.match(text) or ENDS.search(text)
                                               for text in (original.strip(), instead)):
        yield 'what it mutates is no whole expression'


def faults_of(mutations):
    texts = sources_of(mutations)
    places = [(m, *m.place(texts)) for m in mutations]
    faults = [why for _, span, why in places if span is None]
    spans = sorted((m.path, *span, m.name) for m, span, _ in places if span)
    faults += [f'{a[3]} and {b[3]} overlap' for a, b in zip(spans, spans[1:]) if a[0] == b[0] and b[1] < a[2]]
    names = [m.name for m in mutations]
    faults += [f'{name} stands there twice' for name in sorted(set(names)) if names.count(name) > 1]
    numbers = [m.number for m in mutations if names.count(m.name) == 1]
    faults += [f'{m.name} has the number of another' for m in mutations if numbers.count(m.number) > 1]
    faults += [f'{m.name}: nothing stands there instead' for m in mutations if not m.instead]
    suites = set()
    for suite, where in re.findall(r"'\w+/(\w+)': '([^']*)'", (ROOT / 'tests/meson.build').read_text()):
        suites |= {suite} if 'cpu' in where.split() else set()
        suites |= {f'{kind}_{suite}' for kind in ('sim', 'amx') if kind in where.split()}
    faults += [f'{m.name}: {why}' for m, span, original in places if span for why in misfits(m, original, texts)]
    suites |= set(SCRIPTS)
    return faults + [f'{m.name}: no suite is called {s}' for m in mutations for s in m.suites
                     if s.split(':')[0] not in suites]


def is_statement(text):
    return text.endswith((';', '}'))


def switched(m, original):
    instead = '\n'.join(m.instead)
    if is_statement(original):
        return f'if (RW_MUTANT({m.number})) {{ {instead} }} else {{ {original} }}'
    return f'(RW_MUTANT({m.number}) ? ({instead}) : ({original}))'


def make(folder, mutations):
    folder = pathlib.Path(folder)
    fresh = folder / 'fresh'
    shutil.rmtree(fresh, ignore_errors=True)
    for name in COPIED:
        source, to = ROOT / name, fresh / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, to)
        else:
            shutil.copy(source, to)
    texts = sources_of(mutations)
    for path, text in texts.items():
        places = sorted((m.place(texts)[0], m) for m in mutations if m.path == path)
        for (begin, end), m in reversed(places):
            text = text[:begin] + switched(m, text[begin:end]) + text[end:]
        (fresh / path).write_text(text)
    (fresh / 'mutant.h').write_text(HEADER)
    # GCC 12 fails on switches between vectors without AVX; these kernels do not run here
    meson = (fresh / 'meson.build').read_text()
    (fresh / 'meson.build').write_text(meson.replace("isa_flags = {'base': []}", "isa_flags = {'base': ['-mavx2']}"))
    for path in SWITCHED:
        with open(fresh / path, 'a') as f:
            f.write(SWITCH)
    synchronize(fresh, folder / 'tree')


def synchronize(fresh, tree):
    """Unchanged files keep their time: they are not compiled again."""
    for file in [p for p in fresh.rglob('*') if p.is_file()]:
        to = tree / file.relative_to(fresh)
        if to.is_file() and to.read_bytes() == file.read_bytes():
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)
    shutil.rmtree(fresh)


def run_suite(build, suite, number, limit):
    """None if it passes, else how it fails. suite: as in the list."""
    name, _, tests = suite.partition(':')
    environment = {**os.environ, 'REWIND_MUTANT': str(number)}
    if name.startswith('sim_'):
        environment |= {'REWIND_TEST_DEVICE': 'cuda', 'CUDASIM_LAZY': '1', 'REWIND_FUZZ_PROGRAMS': '10'}
    if not name.startswith('amx_'):
        environment.setdefault('REWIND_ISA', 'v3') # other suites run code mutated in every set of kernels
    if name in SCRIPTS:
        command = [ROOT / 'tests/tools' / name, build, *tests.split()]
    else:
        command = [build / 'tests' / name, '--tap', '--fail-fast', *(['--filter', f'*/{tests}'] if tests else [])]
    try:
        done = subprocess.run(command, env=environment, timeout=limit, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors='replace')
    except subprocess.TimeoutExpired:
        return 'time'
    if name in SCRIPTS:
        return 'failure' if done.returncode else None
    if done.returncode or re.search(r'^not ok ', done.stdout, re.M) or not re.search(r'^ok ', done.stdout, re.M):
        return 'failure'
    return None


def needs_of(suite):
    """The programs that it runs, as targets of a build."""
    name = suite.split(':')[0]
    return SCRIPTS.get(name, [f'tests/{name}'])


def time_suites(build, suites):
    """Each without a mutation, once for each build of it."""
    known = build / 'seconds.json'
    times = json.loads(known.read_text()) if known.is_file() else {}
    for suite in suites:
        made = max((build / file).stat().st_mtime for file in needs_of(suite))
        if times.get(suite, [0])[0] == made:
            continue
        begin = time.monotonic()
        if run_suite(build, suite, 0, 3600):
            sys.exit(f'{suite} fails without a mutation')
        times[suite] = [made, time.monotonic() - begin]
        known.write_text(json.dumps(times))
    return {suite: times[suite][1] for suite in suites}


def chosen_of(mutations, names):
    return [m for m in mutations if not m.reason and (not names or any(m.name.startswith(n) for n in names))]


def has_no_other_suites(m):
    """Suites of the CPU do not run what it changes."""
    return m.path.endswith(('.cu', '.cuh')) or m.suites[0].split(':')[0] in SCRIPTS


def try_one(build, m, seconds, rest):
    begin = time.monotonic()
    if has_no_other_suites(m):
        rest = []
    for suite in m.suites + sorted(set(rest) - set(m.suites), key=seconds.get):
        end = run_suite(build, suite, m.number, 10 * seconds[suite] + 20)
        if end:
            return m, f'{suite}{", out of time" if end == "time" else ""}', time.monotonic() - begin
    return m, None, time.monotonic() - begin


def run(build, names, mutations):
    build = pathlib.Path(build).resolve()
    # Scripts send SIGINT, which a program does not handle if it was ignored at its start, as in a shell's background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = chosen_of(mutations, names)
    rest = [s for s in (build / 'tests/suites.txt').read_text().split() if s != 'cudasim_test']
    if os.environ.get('REWIND_MUTATION_QUICK') or all(map(has_no_other_suites, chosen)):
        rest = []
    seconds = time_suites(build, sorted({s for m in chosen for s in m.suites} | set(rest)))
    print(f'{len(chosen)} mutations; the {len(seconds)} suites take {sum(seconds.values()):.0f} s without one',
          flush=True)
    survivors = []
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get('REWIND_MUTATION_JOBS') or os.cpu_count())) as pool:
        for m, killer, took in pool.map(lambda m: try_one(build, m, seconds, rest), chosen):
            if not killer:
                survivors.append(m)
            print(f'{"killed  " if killer else "SURVIVED"} {m.name:44} {killer or ""} ({took:.1f} s)', flush=True)
    idle = sum(bool(m.reason) for m in mutations)
    for m in survivors:
        print(f'survived: {m.name}')
    killed = len(chosen) - len(survivors)
    print(f'{killed} of {len(chosen)} mutations killed: {100 * killed / max(1, len(chosen)):.1f} % of those that '
          f'change anything; {idle} more change nothing')
    return 20 * len(survivors) > len(chosen)


def targets(mutations, names):
    chosen = chosen_of(mutations, names)
    table = re.findall(r"'\w+/(\w+)': '([^']*)'", (ROOT / 'tests/meson.build').read_text())
    named = {target for m in chosen for s in m.suites for target in needs_of(s)}
    if all(map(has_no_other_suites, chosen)):
        return sorted(named)
    cpu = {s for s, where in table if 'cpu' in where.split() and 'cuda' not in where.split()}
    amx = {f'amx_{s}' for s, where in table if 'amx' in where.split()}
    return sorted({f'tests/{s}' for s in cpu | amx} | named)


def main():
    mutations = read_lists()
    faults = faults_of(mutations)
    if faults:
        sys.exit('\n'.join(faults))
    if sys.argv[1:2] == ['check'] and len(sys.argv) == 2:
        print(f'{len(mutations)} mutations, each with its place')
    elif sys.argv[1:2] == ['make'] and len(sys.argv) == 3:
        make(sys.argv[2], mutations)
    elif sys.argv[1:2] == ['targets']:
        print('\n'.join(targets(mutations, sys.argv[2:])))
    elif sys.argv[1:2] == ['run'] and len(sys.argv) > 2:
        sys.exit(run(sys.argv[2], sys.argv[3:], mutations))
    else:
        sys.exit(__doc__)


if __name__ == '__main__':
    main()
