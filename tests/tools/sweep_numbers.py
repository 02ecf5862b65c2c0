#!/usr/bin/env python3
"""Compares the output of recompute_sweep with values derived from its own columns, its data, and the system.

    tests/tools/sweep_numbers.py BUILD [NAME...]     NAME: only the checks whose names contain it"""
import csv
import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1]).resolve() / 'bench'
MODEL = ['--preset', 'tiny', '--seq', '32', '--batch', '2', '--threads', '1', '--steps', '2']


def run(*options, status=0, fault=None, model=MODEL):
    """Its output, and the peak memory of the process in bytes."""
    program = BUILD / ('sweep_faults' if fault else 'recompute_sweep')
    with open('said', 'w') as said:
        process = subprocess.Popen([program, *model, *options], stdout=said, stderr=subprocess.STDOUT,
                                   env={**os.environ, 'REWIND_OFFLOAD': '', 'SWEEP_FAULT': fault or ''})
        _, ended, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(ended)
    text = pathlib.Path('said').read_text()
    assert process.returncode == status, (options, process.returncode, text)
    return text, 1024 * used.ru_maxrss


def rows_of(folder):
    return json.loads((pathlib.Path(folder) / 'sweep.json').read_text())


def check_columns():
    """Ratios are those of step times, rates those of one count of operations, and both files have the same values."""
    run('--steps', '5', '--out', 'out', '--policy', 'full none uniform:2')
    rows = rows_of('out')
    none = rows[1]
    for r in rows:
        assert abs(r['ratio'] / (r['step_ms'] / none['step_ms']) - 1) < 1e-9, (r, none)
        assert abs(r['tflops'] * r['step_ms'] / (none['tflops'] * none['step_ms']) - 1) < 1e-9, (r, none)
        assert abs(r['utilisation_percent'] / (100 * r['tflops'] / r['ceiling_tflops']) - 1) < 1e-9, r
    table = list(csv.DictReader(pathlib.Path('out/sweep.csv').read_text().splitlines()))
    for row, line in zip(rows, table, strict=True):
        for name, value in row.items():
            if value is None or isinstance(value, (bool, str)):
                assert line[name] == ('' if value is None else str(value).lower() if value in (True, False) else value)
            else:
                assert abs(float(line[name]) - value) <= 1e-4 * abs(value) + 6e-3, (name, line[name], value)


def check_last_loss():
    """The loss of a row is the last point of its line, read from the axis, and not the first. Lines are drawn if one
    differs."""
    run('--steps', '30', '--policy', 'none full', '--out', 'out', fault='loss', status=1)
    loss = rows_of('out')[0]['loss']
    page = pathlib.Path('out/sweep.html').read_text()
    chart = re.search(r'aria-label="Loss against step">(.*?)</svg>', page, re.S)[1]
    labels = [(float(y), float(text)) for y, text in
              re.findall(r'<text class="soft" x="[0-9.]+" y="([0-9.]+)" text-anchor="end">([^<]+)<', chart)]
    (y0, low), (y1, high) = labels[0], labels[-1]
    line = [float(p.split(',')[1]) for p in re.search(r'points="([^"]+)"', chart)[1].split()]
    drawn = [low + (y - y0 + 4) / (y1 - y0) * (high - low) for y in line] # a label is 4 below its line
    assert len(drawn) == 31 and abs(drawn[-1] - loss) < 0.01 * (high - low), (drawn[-1], loss)
    assert loss < drawn[0] - 0.1, (drawn[0], loss)


def check_targets_are_the_next_bytes():
    """Random bytes out of sixteen: the loss of the next one is their entropy, 2.77, whatever is learned."""
    draw = random.Random(3)
    pathlib.Path('random').write_bytes(bytes(draw.randrange(65, 81) for _ in range(400000)))
    run('--data', 'random', '--policy', 'none', '--out', 'out', '--dropout', '0', '--steps', '250', '--batch', '8')
    loss = rows_of('out')[0]['loss']
    assert 2.6 < loss < 3.2, loss


def check_resident_memory():
    """The memory that a step added is less than the process's total, by at least that of an idle process."""
    _, idle = run('--help')
    _, most = run('--policy', 'none full', '--out', 'out')
    for r in rows_of('out'):
        own = r['resident_bytes']
        assert own is None or own <= most - 0.8 * idle, (own, most, idle)


def check_rows_of_their_own_command():
    """Also for a model with grouped heads: explicit sizes are in the command line that reproduces a row."""
    given = ['--model', 'llama', '--layers', '1', '--width', '32', '--heads', '4', '--kv-heads', '2']
    run(*given, '--policy', 'none full', '--out', 'out')
    for row in rows_of('out'):
        words = shlex.split(row['command'])[1:]
        for option, value in zip(given[2::2], given[3::2]):
            assert words[words.index(option) + 1] == value, words
        run(*words, '--out', 'alone', model=[])
        again, = rows_of('alone')
        same = 'loss peak_bytes kept_bytes layers width heads kv_heads command'
        assert all(again[k] == row[k] for k in same.split()), (row, again)


def check_peaks_and_totals_that_are_not_predicted():
    """Faulty builds, whose steps take other memory than planned: this is reported, and the status is not 0."""
    said, _ = run('--policy', 'none', '--out', 'out', fault='peak', status=1)
    assert 'none: predicted a peak of ' in said and '  yes\n' in said, said
    fit, without_batch = ['--policy', 'full', '--fit', '8MiB'], MODEL[:4] + MODEL[6:]
    assert ': as predicted' in run(*fit, fault='none of them', model=without_batch)[0]
    for fault in 'peak', 'total':
        said, _ = run(*fit, fault=fault, status=1, model=without_batch)
        assert ': NOT as predicted' in said, (fault, said)


def check_advice_in_per_cent():
    """Shares of the arena equal those of the bytes next to them, and a budget's bytes are the remainder."""
    said, _ = run('--policy', 'none', '--advise')
    offered = re.findall(r'^  budget:(\d+)B +(\d+) bytes less \( *([0-9.]+) % of the arena\)', said, re.M)
    arenas = {int(budget) + int(less) for budget, less, _ in offered}
    assert len(offered) > 3 and len(arenas) == 1, said
    for _, less, share in offered:
        assert abs(100 * int(less) / arenas.copy().pop() - float(share)) <= 0.051, (less, share, said)


def check_sizes():
    for size in '0B', '0.5B', '0.0001KiB', '300TiB', '-1MiB', 'MiB', '1e3MiB', '4gib', '':
        said, _ = run('--fit', size, status=2)
        assert said.startswith('recompute_sweep: --fit takes a size') and said.count('\n') == 1, (size, said)


def main():
    failed = False
    for name, check in list(globals().items()):
        if not name.startswith('check_') or (sys.argv[2:] and not any(n in name for n in sys.argv[2:])):
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                check()
            except (AssertionError, OSError, KeyError, IndexError, TypeError, ValueError) as e:
                print(f'{name}: {type(e).__name__}: {str(e)[-1500:]}')
                failed = True
            finally:
                os.chdir('/')
    if not failed:
        print('recompute_sweep: its numbers follow from its columns, its data and the system')
    sys.exit(failed)


main()
