#!/usr/bin/env python3
"""Runs recompute_sweep on a small model and holds what it writes and answers against each other.

    tests/tools/sweep.py BUILD

Every row has its policy as it was given and the peak that was predicted; budgets hold; a cost file is written and taken
again; what --fit answers fits, and one more does not; --advise names policies that the program takes, for the
lengths that it is asked about; where there is a store, what could wait there is drawn and weighed."""
import functools
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(sys.argv[1]).resolve() / 'bench/recompute_sweep'
IMAGES = 'resnet50', 'vgg16', 'mobilenet', 'densenet121', 'unet'
TEXTS = 'gpt', 'llama', 'deepseek', 'mamba2', 't5'
MODEL = ['--preset', 'tiny', '--seq', '32', '--batch', '2', '--threads', '1', '--steps', '2']


def limit_files(most):
    """For a process: writing more than so many bytes to a file fails, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def run(*options, status=0, store='', limit=None):
    done = subprocess.run([PROGRAM, *MODEL, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, 'REWIND_OFFLOAD': str(store)},
                          preexec_fn=limit and functools.partial(limit_files, limit))
    assert done.returncode == status, (options, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def check_rows(out):
    policies = ['none', 'full', 'selective:core_attn,mlp', 'budget:60%', 'budget:1MiB']
    run('--policy', ' '.join(policies[:3]), '--budget', '60%,1MiB', '--out', out)
    rows = json.loads((out / 'sweep.json').read_text())
    assert [r['policy'] for r in rows] == policies, rows
    none = rows[0]['peak_bytes']
    for r in rows:
        assert r['identical'] and r['peak_bytes'] == r['predicted_peak_bytes'] and r['predicted_ms'] > 0, r
        assert r['resident_bytes'] is None or r['resident_bytes'] >= r['peak_bytes'], r # by the system, not by a plan
    assert rows[3]['peak_bytes'] <= 0.6 * none and rows[4]['peak_bytes'] <= 1 << 20, rows
    page = (out / 'sweep.html').read_text()
    assert page.count('class="predicted"') == 1 and page.count('class="ring"') == len(rows), 'the chart'
    assert 'class="moved"' not in page, 'there is no store'
    for drawing in page, (out / 'sweep.svg').read_text():
        curve, bound = (points(drawing, name) for name in ('predicted', 'bound'))
        assert len(curve) > 8 and len(bound) > 4, 'the frontier and the lower bound'
        assert all(y >= fastest(curve, x) - 0.11 for x, y in bound), 'no plan is below the bound' # y grows downwards


def check_models(out, costs):
    """Each of them, with every region made again."""
    for model in *TEXTS, 'vit', *IMAGES:
        run('--model', model, '--policy', 'none full', '--out', out, *costs)
        none, full = json.loads((out / 'sweep.json').read_text())
        assert none['identical'] and full['identical'] and full['replayed_nodes'] > 0, (model, full)


def check_store(out):
    run('--policy', 'none', '--budget', '60%+offload', '--out', out, store=out)
    none, row = json.loads((out / 'sweep.json').read_text())
    assert row['identical'] and row['peak_bytes'] <= 0.6 * none['peak_bytes'], row
    for name in 'sweep.html', 'sweep.svg':
        moved, replayed = (points((out / name).read_text(), curve) for curve in ('moved', 'predicted'))
        assert len(moved) > 8 and min(x for x, _ in moved) <= min(x for x, _ in replayed) + 0.1, 'the least'
        assert all(fastest(replayed, x) <= max(y for at, y in moved if at <= x + 0.1) + 0.11 for x, _ in replayed), name


def check_store_without_room(out, costs):
    """What never leaves the device's memory needs no store, be there one that is full."""
    full = {'store': out, 'limit': 4 << 20}
    said = run('--policy', 'none full', '--out', out, *costs, **full)
    assert 'budgets with +offload are left out: ' in said and said.count('  yes\n') == 2, said
    assert 'class="moved"' not in (out / 'sweep.html').read_text(), 'nobody knows how fast that would be'
    said = run('--policy', 'none full', '--advise', *costs, **full)
    assert said.count('\nlength x 2: ') == 2 and 'where values may wait outside' not in said, said
    assert 'as predicted' in run('--policy', 'full', '--fit', '8MiB', *costs, **full)
    assert 'cannot be measured' in run('--policy', 'none budget:60%+offload', *costs, **full, status=2)


def points(drawing, name):
    """Of the line of that class."""
    found = re.findall(rf'<polyline class="{name}" points="([^"]+)"', drawing)
    assert len(found) == 1, name
    return [tuple(map(float, p.split(','))) for p in found[0].split()]


def fastest(curve, x):
    """Of the plans at x."""
    return max(y for at, y in curve if abs(at - x) < 0.06)


def check_costs(out):
    costs = out / 'costs.txt'
    before = costs.read_text()
    run('--policy', 'none', '--costs', costs, '--out', out / 'again')
    assert costs.read_text() == before, 'a file that is there is read'
    costs.write_text(before.replace('threads 1', 'threads 9', 1))
    assert 'line 5' in run('--policy', 'none', '--costs', costs, '--out', out / 'again', status=2)
    costs.write_text(before)


def check_fit():
    said = run('--policy', 'none full', '--fit', '8MiB')
    found = re.findall(r'^(\S+) +batch (\d+) takes (\d+) of (\d+) bytes \(arena \d+\), (\d+) takes (\d+)', said, re.M)
    assert len(found) == 2 and said.count('as predicted') == 2 and 'NOT' not in said, said
    for _, batch, takes, most, above, beyond in found:
        assert int(above) == int(batch) + 1 and int(takes) <= int(most) < int(beyond), said
    assert int(found[1][1]) > int(found[0][1]), 'full fits more than none'
    said = run('--policy', 'budget:20%', '--fit', '64MiB')
    assert 'batch' in said and 'as predicted' in said, f'a share too small for one may be enough for many: {said}'
    said = run('--policy', 'full', '--fit', '8MiB', '--grow', 'seq')
    found = re.findall(r'^full +length (\d+) takes (\d+) of (\d+) bytes \(arena \d+\), (\d+) takes (\d+)', said, re.M)
    assert len(found) == 1 and said.count('as predicted') == 1, said
    length, takes, most, above, beyond = map(int, found[0])
    assert above == length + 1 and takes <= most < beyond, said
    said = run('--policy', 'full', '--fit', '255TiB')
    assert re.search(r'batch (\d+) takes .*, \d+ is refused: .* more than a plan can address', said), said
    machine = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    large = '--model', 'deepseek', '--preset', 'v3', '--dtype', 'bf16', '--policy', 'full'
    said = run(*large, '--fit', '11.5TiB')
    assert f'not run: the process may hold {machine} bytes' in said, f'what is too large here is planned: {said}'


def check_fit_of_images(costs):
    """Sides and batches that the model refuses are none, be they too small or, of unet, no multiple of 16."""
    for model in IMAGES:
        for grow, what in ('batch', 'batch'), ('seq', 'side'):
            said = run('--model', model, '--seq', '48', '--policy', 'full', '--fit', '48MiB', '--grow', grow, *costs)
            found = re.search(rf'^full +{what} (\d+) takes (\d+) of (\d+) bytes .*, (\d+) takes (\d+)', said, re.M)
            assert found and ': as predicted' in said, (model, grow, said)
            size, takes, most, above, beyond = map(int, found.groups())
            assert takes <= most < beyond and above == size + (16 if (model, what) == ('unet', 'side') else 1), said
    said = run('--model', 'resnet50', '--seq', '32', '--batch', '1', '--policy', 'none', '--fit', '24MiB', *costs)
    assert re.search(r'^none +batch (\d+) takes', said, re.M) and 'no variance' not in said, said
    said = run('--model', 'vgg16', '--seq', '16', '--policy', 'none', '--fit', '4MiB', *costs, status=2)
    assert 'a window of 2, x has 1' in said, f'what no batch mends is said: {said}'
    shares = '--policy', 'budget:60% budget:1%'
    said = run('--model', 'vgg16', '--seq', '32', *shares, '--fit', '24MiB', *costs, status=1)
    takes = re.findall(r' nothing fits: batch \d+ takes (?:at least )?(\d+) of 25165824 bytes', said)
    assert len(takes) == 2 and all(int(x) > 25165824 for x in takes), f'a share too small for one is no reason: {said}'


def check_fit_of_totals(out, costs):
    """Where nobody names policies, the size itself is one. What fits nowhere is a failure."""
    fits = '--fit', '5MiB', '--seq', '64', *costs
    sizes = {}
    for store, policies in ('', ['total:5242880B']), (out, ['total:5242880B', 'total:5242880B+offload']):
        said = run(*fits, store=store)
        found = dict(re.findall(r'^(\S+) +batch (\d+) takes', said, re.M))
        assert list(found)[-len(policies):] == policies, said
        winner = re.search(r'^the largest batch that fits is (\d+), under (\S+)$', said, re.M)
        assert winner and winner[1] == max(found.values(), key=int) == found[winner[2]], said
        assert said.count(': as predicted') == len(found) and int(found['total:5242880B']) >= int(found['full']), said
        sizes[store] = int(winner[1])
    assert sizes[out] >= sizes[''] > 0, sizes
    said = run(*fits, store=out, limit=4 << 20)
    assert 'total:5242880B+offload is left out: ' in said and 'under total:5242880B\n' in said, said
    said = run('--policy', 'none full', '--fit', '1MiB', *costs, status=1)
    assert said.count(' nothing fits: batch 1 takes ') == 2 and 'the largest' not in said, said


def check_advice_of_images(costs):
    for model in IMAGES:
        said = run('--model', model, '--seq', '48,64', '--policy', 'full', '--advise', *costs)
        assert 'batch 2, side 48\n' in said and re.search(r'^side x 1.33333: ', said, re.M), (model, said)
        assert re.search(r'^  inputs +\d+ +\d+  yes', said, re.M), (model, said)


def check_advice(out):
    costs = ['--costs', out / 'advice.txt'] # the same plans again
    said = run('--policy', 'none', '--advise', *costs)
    offered = re.findall(r'^  (\S+) +(\d+) bytes less', said, re.M)
    assert len(offered) > 3 and 'x block' in said and re.search(r'^  arena .* yes', said, re.M), said
    assert re.search(r'^  budget:\S+ .* time, at most [0-9.]+ % above the best there is$', said, re.M), said
    run('--policy', ' '.join(['none', *(policy for policy, _ in offered)]), '--steps', '1', '--out', out, *costs)
    none, *rows = json.loads((out / 'sweep.json').read_text())
    for (policy, less), r in zip(offered, rows, strict=True):
        assert none['peak_bytes'] - r['peak_bytes'] == int(less), (policy, less, r)
    every = run('--policy', 'full', '--advise', '--all', *costs)
    said = run('--policy', 'full', '--advise', *costs)
    assert '  4 x block' in said and '  4 x block' not in every and every.count('\n') > said.count('\n') + 20, every
    assert 'no policy that was tried takes less' not in said and re.search(r'^  budget:.* less', said, re.M), said
    assert 'length x 2:' in said and 'names a folder on a disk' in said and 'offload:block' not in said, said


def check_advice_of_more(out):
    said = run('--seq', '32,128,64', '--policy', 'none', '--advise', store=out)
    for size in 'batch x 2', 'length x 4', 'length x 2':
        assert re.search(rf'^{size}: (fits|no plan)', said, re.M), said
    assert 'where values may wait outside' in said, said # what is worth moving by name, the disk decides: explain.c
    assert re.search(r'^  budget:\d+B\+offload .* bytes less', said, re.M) and f'wait in {out} as well' in said, said


def check_advice_beyond_a_budget(costs):
    """What runs out is named with what would do, growth is told by that, and the other policies have their turn."""
    said = run('--seq', '32,128', '--policy', 'total:4300KiB total:3700KiB full', '--advise', *costs)
    assert said.count('all  ') == said.count('\nlength x 4: ') == 3, said
    missed = re.findall(r'^(.*) does not fit under (total:\w+): .* the least that would do, (total:\d+B)$', said, re.M)
    assert [m[:2] for m in missed] == [('length x 4', 'total:4300KiB'), ('it', 'total:3700KiB'),
                                       ('batch x 2', 'total:3700KiB'), ('length x 4', 'total:3700KiB')], said
    said = run('--seq', '128', '--policy', missed[0][2], '--fit', '1GiB', *costs)
    assert re.search(r'^total:\d+B +batch 2 takes', said, re.M), said


def check_mistakes(out):
    for options in (['--fit', '5x'], ['--fit', '0B'], ['--grow', 'up'], ['--budget', ''], ['--budget', 'x'],
                    ['--budget', '1B'], ['--all'], ['--policy', 'none,budget:50%'], ['--data', '/dev/zero']):
        assert run(*options, '--out', out, status=2).startswith('recompute_sweep: '), options
    for budgets, column in (',', 1), ('', 1), ('50%,', 5), (' ,50%', 2), ('50%,,60%', 5):
        said = run('--budget', budgets, '--out', out, status=2)
        assert f'--budget "{budgets}", column {column}: a budget is missing' in said, said
    for question in [], ['--advise'], ['--fit', '8MiB']:
        said = run('--costs', out / 'nowhere/costs.txt', '--out', out, *question, status=2)
        assert said == f'recompute_sweep: --costs {out}/nowhere/costs.txt: No such file or directory\n', said


with tempfile.TemporaryDirectory() as folder:
    target = pathlib.Path(folder)
    check_rows(target)
    check_costs(target)
    check_fit()
    costs = '--costs', target / 'costs.txt' # gpt's, as good as any where sizes are asked for
    check_models(target, costs)
    check_fit_of_images(costs)
    check_fit_of_totals(target, costs)
    check_advice_of_images(costs)
    check_advice_beyond_a_budget(costs)
    check_store_without_room(target, costs)
    check_advice(target)
    check_advice_of_more(target)
    check_store(target)
    check_mistakes(target)
print('recompute_sweep: rows, costs, --fit and --advise agree')
