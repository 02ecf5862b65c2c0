#!/usr/bin/env python3
"""Runs recompute_sweep on a small model and compares its outputs and answers with each other.

    tests/tools/sweep.py BUILD [NAME...]     NAME: only the checks whose names contain it

Charts are checked with costs of fixed numbers; with measured ones only that it runs and that rows are identical. Every
row has its policy as given and the predicted peak; budgets hold; a cost file is written and read again; the answer of
--fit fits, and one more does not; --advise names policies that the program accepts, for the requested lengths; with a
store, offloadable values are drawn and considered."""
import csv
import functools
import inspect
import json
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import page_style  # noqa: E402

PROGRAM = pathlib.Path(sys.argv[1]).resolve() / 'bench/recompute_sweep'
IMAGES = 'resnet50', 'vgg16', 'mobilenet', 'densenet121', 'unet'
TEXTS = 'gpt', 'llama', 'deepseek', 'mamba2', 't5'
MODEL = ['--preset', 'tiny', '--seq', '32', '--batch', '2', '--threads', '1', '--steps', '2']


def limit_files(most):
    """For a process: a file larger than so many bytes cannot be written, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def run(*options, status=0, store='', limit=None, fault=None):
    program = PROGRAM.parent / 'sweep_faults' if fault else PROGRAM
    finds_batch = '--fit' in options and 'seq' not in options and '--advise' not in options # then it is not given
    model = MODEL[:4] + MODEL[6:] if finds_batch else MODEL
    done = subprocess.run([program, *model, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, 'REWIND_OFFLOAD': str(store), 'SWEEP_FAULT': fault or ''},
                          preexec_fn=limit and functools.partial(limit_files, limit))
    assert done.returncode == status, (options, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def fix_costs(costs, *, store=None):
    """Replaces measured costs by fixed numbers, so that a curve is the same on every machine and under every load: each
    node at 1 us, 100 GFLOP/s and 10 GB/s; copies to the store at 1 GB/s."""
    lines = costs.read_text().splitlines()
    for i, line in enumerate(lines):
        node = re.fullmatch(r'([0-9a-f]{16}) \d+ (\d+) (\d+) (.*)', line)
        if node:
            ps = 1000000 + max(10 * int(node[2]), 100 * int(node[3]))
            lines[i] = f'{node[1]} {ps} {node[2]} {node[3]} {node[4]}'
        elif line.startswith('memory '):
            lines[i] = 'memory 0 0 0'
        elif line.startswith('store '):
            lines[i] = f'store 1000000000 1000000000 0 {os.path.realpath(store)}' if store else 'store none'
    costs.write_text('\n'.join(lines) + '\n')
    said = run('--policy', 'none', '--costs', costs, '--out', costs.parent / 'fixed', store=store or '', status=2)
    lines[-1] = 'end ' + re.search(r'expected ([0-9a-f]{16})', said)[1]
    costs.write_text('\n'.join(lines) + '\n')


def measured_and_fixed(out, name, *, store=None):
    costs = out / name
    run('--policy', 'none', '--costs', costs, '--out', out / 'measured', store=store or '')
    fix_costs(costs, store=store)
    return '--costs', costs


def check_rows(out):
    policies = ['none', 'full', 'selective:core_attn,mlp', 'budget:60%', 'budget:1MiB']
    run('--policy', ' '.join(policies[:3]), '--budget', '60%,1MiB', '--out', out)
    rows = json.loads((out / 'sweep.json').read_text())
    assert [r['policy'] for r in rows] == policies, rows
    none = rows[0]['peak_bytes']
    for r in rows:
        assert r['identical'] and r['peak_bytes'] == r['predicted_peak_bytes'] and r['predicted_ms'] > 0, r
        assert r['resident_bytes'] is None or r['resident_bytes'] >= r['peak_bytes'], r # by the system, not predicted
    assert rows[3]['peak_bytes'] <= 0.6 * none and rows[4]['peak_bytes'] <= 1 << 20, rows
    run('--policy', ' '.join(policies[:3]), '--budget', '60%,1MiB', '--out', out,
        *measured_and_fixed(out, 'rows.txt'))
    page = (out / 'sweep.html').read_text()
    assert page.count('class="predicted"') == 2 and page.count('class="ring"') == 2 * len(rows), 'a chart of each width'
    assert 'class="moved"' not in page, 'there is no store'
    for drawing in page, (out / 'sweep.svg').read_text():
        curve, bound = (points(drawing, name) for name in ('predicted', 'bound'))
        assert len(curve) > 8 and len(bound) > 4, 'the frontier and the lower bound'
        assert all(y >= fastest(curve, x) - 0.11 for x, y in bound), 'no plan is below the bound' # y grows downwards
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in zip(bound, bound[1:])), 'between two points it is no bound'
        assert all(a[1] <= b[1] for a, b in zip(bound, bound[1:])), 'a smaller budget is not faster'
        texts = re.findall(r'>([^<>]+)</text>', drawing)
        assert all(text in texts for text in ('measured: a policy', 'measured: a budget', 'lower bound',
                                              'predicted for every budget', 'the best that was measured')), texts
    page_style.check(page, 'sweep.html')
    page_style.check_colours((out / 'sweep.svg').read_text(), 'sweep.svg')


def check_losses_and_times_on_the_page(out, costs):
    """A chart of losses only if they differ, a note only if the machine was busy, and units that fit."""
    run('--policy', 'none full', '--out', out, *costs)
    page, rows = (out / 'sweep.html').read_text(), json.loads((out / 'sweep.json').read_text())
    assert 'Loss against step' not in page and 'probably busy' not in page
    assert f'{rows[0]["loss"]:.5f} after 2.' in page
    unit, scale = ('GFLOP/s', 1e3) if rows[0]['ceiling_tflops'] < 1 else ('TFLOP/s', 1)
    assert f'reaches {rows[0]["ceiling_tflops"] * scale:.3g} {unit}' in page, (unit, rows[0])
    assert 'peak,<br>MiB' in page and 'peak of activations, MiB' in page
    run('--layers', '1', '--width', '32', '--seq', '8', '--batch', '1', '--policy', 'none full', '--out', out)
    page, rows = (out / 'sweep.html').read_text(), json.loads((out / 'sweep.json').read_text())
    assert rows[0]['peak_bytes'] < 1 << 20 and 'peak,<br>KiB' in page and 'peak of activations, KiB' in page, rows[0]
    assert f'<td>{rows[0]["peak_bytes"] / 1024:.2f}<td>' in page, rows[0]
    said = run('--policy', 'none full', '--out', out, *costs, fault='loss', status=1)
    page = (out / 'sweep.html').read_text()
    assert page.count('Loss against step') == 2 and 'nats per byte' in page and 'the same loss' not in page, said
    said = run('--policy', 'none full', '--out', out, fault='busy')
    row = json.loads((out / 'sweep.json').read_text())[1]
    assert 'full was predicted to take' in said and 'the machine was busy' in said, said
    assert 'The machine was probably busy: <code>full</code>' in (out / 'sweep.html').read_text(), row


def check_models(out, costs):
    """Each model, with every region recomputed."""
    for model in *TEXTS, 'vit', *IMAGES:
        run('--model', model, '--policy', 'none full', '--out', out, *costs)
        none, full = json.loads((out / 'sweep.json').read_text())
        assert none['identical'] and full['identical'] and full['replayed_nodes'] > 0, (model, full)


def check_default_policies(out, costs):
    """They name regions and tags of the model, so none of them is `none` by another name."""
    for model in *TEXTS, 'vit', *IMAGES:
        run('--model', model, '--steps', '1', '--out', out, *costs)
        rows = json.loads((out / 'sweep.json').read_text())
        assert len(rows) > 5 and all(r['identical'] for r in rows), model
        idle = [r['policy'] for r in rows[1:] if r['replayed_nodes'] == 0]
        assert not idle, (model, idle)


def check_misspelt_names(out, costs):
    """A name that the model does not have is an error, before any row has run."""
    for policy, says in (('selective:blcok', 'column 11: expected the name of a region, got "blcok"'),
                         ('names:keep=qvk', 'column 12: expected the name of a value, got "qvk"')):
        for question in [], ['--fit', '8MiB'], ['--advise']:
            said = run('--policy', f'none {policy}', '--out', out, *question, *costs, status=2)
            assert says in said and 'wrote' not in said, said


def check_store(out):
    run('--policy', 'none', '--budget', '60%+offload', '--out', out, store=out)
    none, row = json.loads((out / 'sweep.json').read_text())
    assert row['identical'] and row['peak_bytes'] <= 0.6 * none['peak_bytes'], row
    run('--policy', 'none', '--budget', '60%+offload', '--out', out, *measured_and_fixed(out, 'moved.txt', store=out),
        store=out)
    for name in 'sweep.html', 'sweep.svg':
        moved, replayed = (points((out / name).read_text(), curve) for curve in ('moved', 'predicted'))
        assert len(moved) > 8 and min(x for x, _ in moved) <= min(x for x, _ in replayed) + 0.1, 'the least'
        assert all(fastest(replayed, x) <= max(y for at, y in moved if at <= x + 0.1) + 0.11 for x, _ in replayed), name


def check_store_without_room(out, costs):
    """A value that stays in the device's memory needs no store, so a full one does not matter."""
    full = {'store': out, 'limit': 4 << 20}
    said = run('--policy', 'none full', '--out', out, *costs, **full)
    assert 'budgets with +offload are left out: ' in said and said.count('  yes\n') == 2, said
    assert 'class="moved"' not in (out / 'sweep.html').read_text(), 'nobody knows how fast that would be'
    said = run('--policy', 'none full', '--advise', *costs, **full)
    assert said.count('\nlength x 2: ') == 2 and 'that the planner finds with offload' not in said, said
    assert 'as predicted' in run('--policy', 'full', '--fit', '8MiB', *costs, **full)
    assert 'could not be measured' in run('--policy', 'none budget:60%+offload', *costs, **full, status=2)


def points(drawing, name):
    """The points of the line of that class."""
    found = re.findall(rf'<polyline class="{name}" points="([^"]+)"', drawing)
    assert len(found) in (1, 2), name # on the page, a chart for a phone follows
    return [tuple(map(float, p.split(','))) for p in found[0].split()]


def fastest(curve, x):
    """The fastest plan at x."""
    return max(y for at, y in curve if abs(at - x) < 0.06)


def check_faults(out, costs):
    """Each fault changes the bytes, and a faulty build reports which."""
    faults = (('draw', 'gpt', 'the number of random blocks drawn of step 0'),
              ('buffer', 'resnet50', 'the buffers of step 0'), ('buffer', 'deepseek', 'the buffers of step 0'),
              ('update', 'gpt', 'in its own run: the parameters of step 0'))
    for fault, model, says in faults:
        options = '--model', model, '--policy', 'none full', '--out', out, *costs
        said = run(*options, fault=fault, status=1)
        none, full = json.loads((out / 'sweep.json').read_text())
        assert none['identical'] and not full['identical'] and says in said, (fault, model, said)
    run('--policy', 'none full', '--out', out, *costs, fault='none of them')


def check_rows_alone(out):
    """A row does not depend on the others, and its own command line reproduces it."""
    small = '--policy', 'none full', '--layers', '2', '--width', '32', '--out', out
    run(*small, '--seq', '32,64,96')
    rows = json.loads((out / 'sweep.json').read_text())
    table = list(csv.DictReader((out / 'sweep.csv').read_text().splitlines()))
    assert [r['preset'] for r in rows] == ['custom'] * 6 and [r['layers'] for r in rows] == [2] * 6, rows
    for row, line in zip(rows, table, strict=True):
        assert row['command'] == line['command'] and line['seed'] == row['seed'] == '42', (row, line)
    for row in rows[0], rows[3]:
        words = shlex.split(row['command'])
        assert words[0] == 'recompute_sweep', row
        subprocess.run([PROGRAM, *words[1:], '--out', out / 'alone'], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        again, = json.loads((out / 'alone/sweep.json').read_text())
        same = 'loss peak_bytes kept_bytes layers width dropout seed steps command replayed_nodes'
        assert all(again[k] == row[k] for k in same.split()), (row, again)
    run('--policy', 'full none full', '--out', out)
    first, none, last = (r['resident_bytes'] for r in json.loads((out / 'sweep.json').read_text()))
    assert abs(first - last) < 0.1 * last, 'the first row has what the process touches once'


def same_row(row, again):
    keys = 'loss peak_bytes kept_bytes replayed_nodes dropout command'
    return all(again[k] == row[k] for k in keys.split())


def check_commands(out, costs):
    """A shell runs the command of a row, and gets the same: names with quotes, all digits, costs, the store."""
    folder = out / "it's $HOME"
    folder.mkdir()
    (folder / 'a "text"').write_bytes(b'some text, and other text ' * 400)
    slow = folder / 'slow'
    slow.write_bytes(costs[1].read_bytes())
    fix_costs(slow, store=folder)
    kept = []
    for given, budget in ((), 'budget:50%+offload'), (('--costs', slow), 'budget:60%'):
        run('--policy', f'none {budget}', '--data', folder / 'a "text"', '--dropout', '0.123456789',
            '--out', folder / 'out', *given, store=folder)
        none, row = json.loads((folder / 'out/sweep.json').read_text())
        kept += [none['command'], row['command']]
        command = row['command'].replace('recompute_sweep ', f'{shlex.quote(str(PROGRAM))} ', 1)
        assert command.startswith('REWIND_OFFLOAD='), command
        environment = {k: v for k, v in os.environ.items() if k != 'REWIND_OFFLOAD'}
        subprocess.run(['sh', '-c', f'{command} --out {shlex.quote(str(folder))}/again'], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        again, = json.loads((folder / 'again/sweep.json').read_text())
        assert same_row(row, again), (row, again)
    assert len(set(kept)) == 4, 'the costs are a part of each command'


def check_files_beside_the_outputs(out, costs):
    """Outputs are written under names of their own: files beside them stay."""
    folder = out / 'beside'
    folder.mkdir()
    for name, option in ('sweep.csv.part', '--data'), ('sweep.json.part', '--costs'):
        (folder / name).write_bytes(costs[1].read_bytes() if option == '--costs' else b'some text ' * 2000)
        before = (folder / name).read_bytes()
        run('--policy', 'none', '--out', folder, option, folder / name)
        assert (folder / name).read_bytes() == before, name
    assert len(list(folder.glob('*.part'))) == 2, list(folder.iterdir())


def check_lengths_that_have_run(out, costs):
    """A later length that fails, or is interrupted, costs no row of an earlier one."""
    said = run('--policy', 'none full', '--seq', '16,32', '--out', out / 'some', *costs, fault='length', status=2)
    assert 'they have 1 of 2 lengths' in said, said
    rows = json.loads((out / 'some/sweep.json').read_text())
    assert [(r['seq'], r['policy'], r['identical']) for r in rows] == [(16, 'none', True), (16, 'full', True)], rows
    page = (out / 'some/sweep.html').read_text()
    assert page.count('<h2>Sequence length') == 1 and page.rstrip().endswith('</html>'), 'the page'
    folder = out / 'interrupted'
    process = subprocess.Popen([PROGRAM, *MODEL, '--policy', 'none', '--seq', '16,4096', '--steps', '100', '--out',
                                folder, *costs], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    end = time.monotonic() + 300 # the first length takes a second
    while not (folder / 'sweep.svg').exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT, process.returncode
    assert [r['seq'] for r in json.loads((folder / 'sweep.json').read_text())] == [16]


def check_folder_of_two_sweeps(out, costs):
    """The second one would plan with the measured costs of the first: it is refused, until the first has ended."""
    folder = out / 'both'
    first = subprocess.Popen([PROGRAM, *MODEL, '--policy', 'none', '--steps', '1000000', '--out', folder],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert 'layers of width' in first.stdout.readline()
    said = run('--policy', 'none', '--out', folder, status=2)
    assert said == f'recompute_sweep: --out {folder}: another sweep writes to this folder\n', said
    first.kill()
    first.wait()
    first.stdout.close()
    run('--policy', 'none', '--out', folder, *costs)


def check_environment(out, costs):
    """Variables that change every row are ignored, with a note."""
    names = 'REWIND_POLICY', 'REWIND_VERIFY', 'REWIND_EAGER'
    done = subprocess.run([PROGRAM, *MODEL, '--policy', 'none full', '--out', out / 'plain', *map(str, costs)],
                          env={**os.environ, 'REWIND_POLICY': 'none', 'REWIND_VERIFY': '1', 'REWIND_EAGER': '1'},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and all(f'{name} is ignored: ' in done.stderr for name in names), done
    rows = json.loads((out / 'plain/sweep.json').read_text())
    run('--policy', 'none full', '--out', out / 'same', *costs)
    for row, same in zip(rows, json.loads((out / 'same/sweep.json').read_text()), strict=True):
        assert all(row[k] == same[k] for k in ('peak_bytes', 'kept_bytes', 'replayed_nodes', 'loss')), (row, same)


def check_length_beyond_the_memory(out):
    """It is refused before the first row; here `full` would fit, and `none`, with which it is compared, does not."""
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_AS, (600 << 20, 600 << 20))
    done = subprocess.run([PROGRAM, *MODEL, '--seq', '16,20000', '--policy', 'full', '--device', 'cpu',
                           '--out', out / 'large'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=limit)
    assert done.returncode == 2 and not done.stdout, done
    assert re.fullmatch(r'recompute_sweep: length 20000 under none takes \d+ bytes, and the process may hold \d+\n',
                        done.stderr), done


def check_ceiling_that_is_too_low(out, costs):
    said = run('--policy', 'none', '--out', out, *costs, fault='ceiling')
    assert 'the machine was busy while that was measured' in said, said
    assert 'The ceiling is too low' in (out / 'sweep.html').read_text()


def check_words(out, costs):
    """No unit, size or warning of another model or policy."""
    said = run('--policy', 'none budget:100% total:1GiB', '--out', out, *costs)
    assert 'replays nothing' not in said, said
    said = run('--model', 'unet', '--policy', 'none discard:relu', '--out', out, *costs)
    page = (out / 'sweep.html').read_text()
    assert 'layers' not in said.splitlines()[0] + page and 'nats per byte' not in page and '<th>side' in page, said
    (out / 'short').write_text('some text')
    plans = '--data', out / 'short', '--seq', '256', '--policy', 'full'
    assert 'length x 2: ' in run(*plans, '--advise', *costs)
    assert 'are needed' in run(*plans, '--out', out, *costs, status=2)
    assert 'are needed' in run(*plans, '--advise', '--costs', out / 'measured.txt', status=2)


def check_chart_without_none(out):
    """The predicted line and the bound are inside the chart, whether or not none is a row."""
    run('--policy', 'full', '--seq', '64', '--out', out)
    page = (out / 'sweep.html').read_text()
    for drawing in page, (out / 'sweep.svg').read_text():
        width = float(re.search(r'viewBox="0 0 (\d+) ', drawing)[1])
        for name in 'predicted', 'bound':
            assert all(0 <= x <= width for x, _ in points(drawing, name)), name
    assert 'costs of nodes measured in this run' in page and 'before anything ran' not in page
    run('--policy', 'full', '--seq', '64', '--costs', out / 'costs.txt', '--out', out)
    assert f'costs of nodes read from <code>{out}/costs.txt</code>' in (out / 'sweep.html').read_text()


def check_advice_of_positions(out):
    """Learned positions are parameters: as many as this step's length, and more in the longer one."""
    costs = '--costs', out / 'positions.txt'
    said = run('--seq', '256', '--batch', '1', '--policy', 'none', '--advise', *costs)
    now, batch, follows, length = re.search(r'^  parameters +(\d+) +(\d+)  (\S+) +(\d+)  \S', said, re.M).groups()
    assert follows == 'no' and now == batch and int(length) == int(now) + 4 * 256 * 64, said
    total = int(re.search(r'^  all +(\d+)', said, re.M)[1])
    fits = run('--seq', '256', '--policy', 'none', '--fit', f'{total}B', *costs)
    assert f'batch 1 of length 256 takes {total} of {total} bytes' in fits and 'as predicted' in fits, (said, fits)


def check_files_that_are_there(out, costs):
    """A name in --out that is no file, or an input, is refused before any row. An earlier file is replaced whole."""
    folder = out / 'there'
    names = 'sweep.csv', 'sweep.json', 'sweep.html', 'sweep.svg'
    for name in *names, 'costs.txt':
        (folder / name).mkdir(parents=True)
        given = costs if name in names else () # otherwise the costs are written there
        said = run('--policy', 'none', '--out', folder, *given, status=2)
        assert said == f'recompute_sweep: {folder}/{name}: a folder, not a file\n', said
        (folder / name).rmdir()
    (folder / 'sweep.csv').write_bytes(b'some text ' * 2000)
    said = run('--policy', 'none', '--out', folder, '--data', folder / '../there/sweep.csv', *costs, status=2)
    assert said == f'recompute_sweep: {folder}/sweep.csv: the same file as --data\n', said
    (folder / 'sweep.csv').unlink()
    for _ in range(2): # a file that is not there, and one that is
        said = run('--policy', 'none', '--out', folder, '--costs', folder / '../there/sweep.csv', status=2)
        assert said == f'recompute_sweep: {folder}/sweep.csv: the same file as --costs\n', said
        (folder / 'sweep.csv').write_bytes(costs[1].read_bytes())
    (folder / 'target').write_text('old')
    (folder / 'sweep.csv').unlink()
    (folder / 'sweep.csv').symlink_to('target')
    run('--policy', 'none', '--out', folder, *costs)
    assert (folder / 'sweep.csv').is_symlink() and (folder / 'target').read_text().startswith('model,'), 'the target'
    before = {name: (folder / name).read_bytes() for name in names}
    said = run('--policy', 'none full', '--out', folder, *costs, status=2, limit=300)
    assert all(f'{folder}/{name}: File too large' in said for name in names), said
    assert {name: (folder / name).read_bytes() for name in names} == before, 'the earlier files'
    assert not list(folder.glob('*.part'))


def check_reader_that_ends(out, costs):
    """As head does: the files are written, and what was not printed is reported."""
    process = subprocess.Popen([PROGRAM, *MODEL, '--policy', 'none full', '--out', out / 'piped', *costs],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == 1 and 'standard output' in said, (process.returncode, said)
    assert len(json.loads((out / 'piped/sweep.json').read_text())) == 2


def check_full_stdout(out):
    for question in [], ['--fit', '8MiB'], ['--advise'], ['--help']:
        model = MODEL[:4] + MODEL[6:] if '--fit' in question else MODEL
        with open('/dev/full', 'w') as full:
            done = subprocess.run([PROGRAM, *model, '--policy', 'none', '--out', out, *question], stdout=full,
                                  stderr=subprocess.PIPE, text=True)
        assert done.returncode in (1, 2) and 'standard output' in done.stderr, (question, done)


def check_costs(out, costs):
    costs = costs[1]
    before = costs.read_text()
    run('--policy', 'none', '--costs', costs, '--out', out / 'again')
    assert costs.read_text() == before, 'a file that is there is read'
    costs.write_text(before.replace('threads 1', 'threads 9', 1))
    assert 'line 5' in run('--policy', 'none', '--costs', costs, '--out', out / 'again', status=2)
    costs.write_text(before)


def check_fit():
    said = run('--policy', 'none full', '--fit', '8MiB')
    found = re.findall(r'^(\S+) +batch (\d+) of length 32 takes (\d+) of (\d+) bytes \(arena \d+\), (\d+) takes (\d+)',
                       said, re.M)
    assert len(found) == 2 and said.count('as predicted') == 2 and 'NOT' not in said, said
    for _, batch, takes, most, above, beyond in found:
        assert int(above) == int(batch) + 1 and int(takes) <= int(most) < int(beyond), said
    for policy, _, _, _, above, beyond in found: # what it says of one more is the plan of one more
        more = run('--policy', policy, '--batch', above, '--advise')
        assert re.search(r'^  all +(\d+)', more, re.M)[1] == beyond, (policy, above, beyond, more)
    assert int(found[1][1]) > int(found[0][1]), 'full fits more than none'
    said = run('--policy', 'budget:20%', '--fit', '64MiB')
    assert 'batch' in said and 'as predicted' in said, f'a share too small for one may be enough for many: {said}'
    said = run('--policy', 'full', '--fit', '8MiB', '--grow', 'seq')
    found = re.findall(r'^full +length (\d+) takes (\d+) of (\d+) bytes \(arena \d+\), (\d+) takes (\d+)', said, re.M)
    assert len(found) == 1 and said.count('as predicted') == 1, said
    length, takes, most, above, beyond = map(int, found[0])
    assert above == length + 1 and takes <= most < beyond, said
    said = run('--policy', 'full', '--fit', '255TiB')
    assert re.search(r'batch (\d+) of length 32 takes .*, \d+ is refused: .* more than a plan can address', said), said
    machine = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    large = '--model', 'deepseek', '--preset', 'v3', '--dtype', 'bf16', '--policy', 'full'
    said = run(*large, '--fit', '11.5TiB')
    assert f'not run: the process may hold {machine} bytes' in said, f'what is too large here is planned: {said}'


def check_fit_of_lengths(costs):
    """An answer for each length of the list; a size that is the answer is not given."""
    fit = '--policy', 'full', '--fit', '8MiB', '--seq', '32,128', *costs
    said = run(*fit)
    batches = re.findall(r'^the largest batch of length (\d+) that fits is (\d+), under full$', said, re.M)
    assert [int(length) for length, _ in batches] == [32, 128] and int(batches[0][1]) > int(batches[1][1]) > 0, said
    for length, batch in batches:
        assert re.search(rf'^full +batch {batch} of length {length} takes ', said, re.M), (length, batch, said)
    said = run(*fit, '--batch', '3', status=2)
    assert said == 'recompute_sweep: --fit answers the batch: expected no --batch, got 3\n', said
    said = run(*fit, '--grow', 'seq', status=2)
    assert 'answers one length: expected at most one in --seq, got 2' in said, said


def check_properties_of_networks(out, costs):
    """Options that a network of convolutions does not have are refused, and its rows do not have them."""
    for model in 'vgg16', 'resnet50':
        for option, value in ('--dropout', '0.9'), ('--attention', 'scores'), ('--attention', 'flash'):
            said = run('--model', model, option, value, '--out', out, status=2)
            assert f'{option} takes ' in said and 'needs a model that has' in said, said
        run('--model', model, '--policy', 'none', '--out', out, *costs)
        row, = json.loads((out / 'sweep.json').read_text())
        line, = csv.DictReader((out / 'sweep.csv').read_text().splitlines())
        dropout = 0.5 if model == 'vgg16' else None
        assert row['dropout'] == dropout and line['dropout'] == ('0.5' if dropout else ''), (row, line)
        for name in 'layers', 'heads', 'kv_heads', 'attention':
            assert row[name] is None and line[name] == '', (name, row, line)
        subprocess.run([PROGRAM, *shlex.split(row['command'])[1:], '--out', out / 'again'], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        again, = json.loads((out / 'again/sweep.json').read_text())
        assert same_row(row, again), (row, again)


def check_fit_of_images(costs):
    """Sides and batches that the model refuses do not fit: those that are too small or, for unet, not a multiple of
    16."""
    for model in IMAGES:
        for grow, what in ('batch', 'batch'), ('seq', 'side'):
            said = run('--model', model, '--seq', '48', '--policy', 'full', '--fit', '48MiB', '--grow', grow, *costs)
            found = re.search(rf'^full +{what} (\d+)(?: of side 48)? takes (\d+) of (\d+) bytes .*, (\d+) takes (\d+)',
                              said, re.M)
            assert found and ': as predicted' in said, (model, grow, said)
            size, takes, most, above, beyond = map(int, found.groups())
            assert takes <= most < beyond and above == size + (16 if (model, what) == ('unet', 'side') else 1), said
    said = run('--model', 'resnet50', '--seq', '32', '--policy', 'none', '--fit', '24MiB', *costs)
    assert re.search(r'^none +batch (\d+) of side 32 takes', said, re.M) and 'no variance' not in said, said
    said = run('--model', 'vgg16', '--seq', '16', '--policy', 'none', '--fit', '4MiB', *costs, status=2)
    assert 'expected a padded extent of at least 2' in said, f'the message names what no batch mends: {said}'
    shares = '--policy', 'budget:60% budget:1%'
    said = run('--model', 'vgg16', '--seq', '32', *shares, '--fit', '24MiB', *costs, status=1)
    takes = re.findall(r' nothing fits: batch \d+ of side 32 takes (?:at least )?(\d+) of 25165824 bytes', said)
    assert len(takes) == 2 and all(int(x) > 25165824 for x in takes), f'a share too small for one is no reason: {said}'


def check_fit_of_totals(out, costs):
    """Without a policy, the size itself is the policy. If nothing fits, it is a failure."""
    fits = '--fit', '5MiB', '--seq', '64', *costs
    sizes = {}
    for store, policies in ('', ['total:5242880B']), (out, ['total:5242880B', 'total:5242880B+offload']):
        said = run(*fits, store=store)
        found = dict(re.findall(r'^(\S+) +batch (\d+) of length 64 takes', said, re.M))
        assert list(found)[-len(policies):] == policies, said
        winner = re.search(r'^the largest batch of length 64 that fits is (\d+), under (\S+)$', said, re.M)
        assert winner and winner[1] == max(found.values(), key=int) == found[winner[2]], said
        assert said.count(': as predicted') == len(found) and int(found['total:5242880B']) >= int(found['full']), said
        sizes[store] = int(winner[1])
    assert sizes[out] >= sizes[''] > 0, sizes
    said = run(*fits, store=out, limit=4 << 20)
    assert 'total:5242880B+offload is left out: ' in said and 'under total:5242880B\n' in said, said
    said = run('--policy', 'none full', '--fit', '1MiB', *costs, status=1)
    assert said.count(' nothing fits: batch 1 of length 32 takes ') == 2 and 'the largest' not in said, said


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
    # whether offload by name pays depends on the disk: explain.c
    assert 'that the planner finds with offload' in said and f'may also offload values to {out}' in said, said
    assert re.search(r'^  budget:\d+B\+offload .* bytes less', said, re.M), said


def check_lengths_of_advice(costs):
    """Each longer one is answered, or the list is refused."""
    advise = '--policy', 'none', '--layers', '1', '--width', '32', '--batch', '1', '--advise', *costs
    lengths = [str(n) for n in range(8, 16)]
    said = run(*advise, '--seq', ','.join([*lengths, '8', '4']))
    assert len(re.findall(r'^length x [0-9.]+: ', said, re.M)) == 7, said
    said = run(*advise, '--seq', ','.join([*lengths, '16']), status=2)
    assert said == 'recompute_sweep: --advise: expected at most 7 longer lengths than the first of --seq, got 8\n', said


def check_advice_beyond_a_budget(costs):
    """A size that does not fit is reported with its minimum, growth is expressed by it, and other policies are
    proposed."""
    said = run('--seq', '32,128', '--policy', 'total:4300KiB total:3550KiB full', '--advise', *costs)
    assert said.count('all  ') == said.count('\nlength x 4: ') == 3, said
    missed = re.findall(r'^(.*) does not fit under (total:\w+): .* the minimum, (total:\d+B)$', said, re.M)
    assert [m[:2] for m in missed] == [('length x 4', 'total:4300KiB'), ('it', 'total:3550KiB'),
                                       ('batch x 2', 'total:3550KiB'), ('length x 4', 'total:3550KiB')], said
    said = run('--seq', '128', '--policy', missed[0][2], '--fit', '1GiB', *costs)
    assert re.search(r'^total:\d+B +batch \d+ of length 128 takes', said, re.M), said


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


def main():
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder)
        given = {'out': target, 'costs': ('--costs', target / 'given.txt')} # costs of gpt's are as good as any
        run('--policy', 'none', *given['costs'], '--out', target)
        for name, check in list(globals().items()):
            if name.startswith('check_') and (not sys.argv[2:] or any(n in name for n in sys.argv[2:])):
                check(**{k: given[k] for k in inspect.signature(check).parameters})
    print('recompute_sweep: rows, costs, --fit and --advise agree')


main()
