#!/usr/bin/env python3
"""Ends runs of train_gpt at random moments - SIGKILL, SIGTERM, SIGINT, a limit on file sizes as for a full disk
- with a log, TensorBoard, Prometheus, a page and checkpoints on, each run resuming the one before. After every end
the newest checkpoint must load, and the log and the page must be complete.

    tests/tools/trainer_kills.py BUILD [RUNS]     [30 runs; scripts/test.sh --full: 300]"""
import functools
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(sys.argv[1]).resolve() / 'examples/train_gpt'
RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
EVERY = ('--quick --threads 1 --sample 0 --eval-every 7 --eval-tokens 64 --save-every 1 --keep 2 --checkpoint run '
         '--resume run --resume-if-there --total-steps 100000 --log log.jsonl --tensorboard tb --prometheus metrics '
         '--dashboard page.html --on loss_nonfinite=roll_back').split()
ENDS = 'SIGKILL', 'SIGTERM', 'SIGINT', 'disk'


def prepare(limit):
    """In the child. A shell starts background processes with SIGINT ignored, nohup with SIGHUP, and the program does
    not change that."""
    for number in signal.SIGINT, signal.SIGHUP, signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def start(steps, limit=None):
    return subprocess.Popen([PROGRAM, '--steps', str(steps), *EVERY], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            preexec_fn=functools.partial(prepare, limit))


def output_of(process):
    """What it prints until it ends, at the latest after two minutes; the operation takes milliseconds."""
    try:
        return process.communicate(timeout=120)[0].decode(errors='replace')
    except subprocess.TimeoutExpired:
        process.kill()
        said = process.communicate()[0].decode(errors='replace')
        raise AssertionError(f'it does not end: {said[-600:]}') from None


def end_at_random(kind, draw):
    """Runs it and ends it; returns its output and its status."""
    limit = None
    if kind == 'disk': # larger than the existing log, or than a part of a checkpoint
        log = pathlib.Path('log.jsonl')
        limit = (log.stat().st_size if log.exists() else 0) + draw.randrange(1, 5000)
        if draw.random() < 0.5:
            limit = max(limit, draw.randrange(1000, 1200000))
    process = start(1000000 if kind != 'disk' else steps_made() + draw.randrange(1, 12), limit)
    if kind != 'disk':
        time.sleep(draw.uniform(0.0, 0.35))
        process.send_signal(getattr(signal, kind))
    said = output_of(process)
    return said, process.returncode


def checkpoints():
    return sorted(pathlib.Path('run').glob('*.safetensors'))


def steps_made():
    return int(checkpoints()[-1].stem.split('step')[1]) if checkpoints() else 0


def check_files(told):
    log = pathlib.Path('log.jsonl')
    for number, line in enumerate(log.read_bytes().split(b'\n')[:-1] if log.exists() else [], 1):
        try:
            json.loads(line)
        except ValueError:
            raise AssertionError(f'log.jsonl:{number}: half a line: {line[:100]!r} ({told})')
    tail = log.read_bytes()[-1:] if log.exists() else b''
    assert tail in (b'', b'\n'), f'half a line at the end of log.jsonl ({told})'
    page = pathlib.Path('page.html')
    assert not page.exists() or page.read_text().rstrip().endswith('</html>'), f'half a page ({told})'
    for path in checkpoints():
        data = path.read_bytes()
        size = 8 + struct.unpack('<Q', data[:8])[0]
        header = json.loads(data[8:size])
        end = max(t['data_offsets'][1] for name, t in header.items() if name != '__metadata__')
        assert len(data) >= size + end, f'{path} is cut off ({told})'


def drop_halves():
    """So that one partial line counts once."""
    log = pathlib.Path('log.jsonl')
    lines = log.read_bytes().split(b'\n') if log.exists() else []
    log.write_bytes(b''.join(line + b'\n' for line in lines if line.endswith(b'}') and line.count(b'"step":') == 1))


def check_goes_on(told):
    """One step from the newest checkpoint: it loads, and it is the newest."""
    before = steps_made()
    process = start(before + 1)
    said = output_of(process)
    assert process.returncode == 0, f'does not go on: {said} ({told})'
    found = f"going on from step {before} of" in said
    assert found or not before, f"not from step {before}, the newest: {said} ({told})"


def main():
    draw = random.Random(47)
    counts = dict.fromkeys(ENDS, 0)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for i in range(RUNS):
            kind = ENDS[i % len(ENDS)]
            if i % 40 == 0: # sometimes a run that has saved nothing yet
                for name in 'run', 'tb':
                    shutil.rmtree(name, ignore_errors=True)
                for name in 'log.jsonl', 'metrics', 'page.html':
                    pathlib.Path(name).unlink(missing_ok=True)
            said, status = end_at_random(kind, draw)
            told = f'end {i}, {kind}, status {status}'
            wanted = {'SIGKILL': (-9,), 'SIGTERM': (143, -15), 'SIGINT': (130, -2), 'disk': (0, 1)}[kind]
            try:
                assert status in wanted, f'{said[-600:]} ({told})'
                check_files(told)
                check_goes_on(told)
                check_files(told)
            except AssertionError as e:
                failed += 1
                print(e)
                drop_halves()
            counts[kind] += 1
        os.chdir('/')
    print(f'train_gpt: {failed} of {RUNS} ends left a checkpoint that does not load, or half a line: {counts}')
    sys.exit(failed > 0)


main()
