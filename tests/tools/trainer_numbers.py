#!/usr/bin/env python3
"""Compares a run of train_gpt with what follows from its command line and its data alone: the tokens that a step read,
its rates, decay, validation, speed, samples, the checkpoint after a signal, and the points of its page.

    tests/tools/trainer_numbers.py BUILD [NAME...]

NAME: only the checks whose names contain it."""
import json
import math
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(sys.argv[1]).resolve() / 'examples/train_gpt'
WORD = 2**64 - 1


def restore_signals():
    """A shell starts background processes with SIGINT ignored, nohup with SIGHUP, and the program does not change
    that."""
    for number in signal.SIGINT, signal.SIGHUP, signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)


def run(*options, status=0):
    words = [w for o in options for w in o.split()]
    done = subprocess.run([PROGRAM, '--threads', '1', '--sample', '0', *words], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors='replace', timeout=600)
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:])
    return done.stdout


def refused(*options, says):
    said = run(*options, status=2)
    assert said.startswith('train_gpt: ') and said.count('\n') == 1 and says in said, (options, said)


def steps_of(path):
    return [line for line in map(json.loads, open(path)) if 'memory' in line]


def tokens_file(path, tokens):
    head = [20240520, 1, len(tokens)] + [0] * 253
    pathlib.Path(path).write_bytes(struct.pack('<256i', *head) + struct.pack(f'<{len(tokens)}H', *tokens))


FORMATS = {'F32': 'f', 'F16': 'e', 'BF16': 'H'}


def read_weights(path):
    """(header, bytes, {name: (first, last) byte}) of a file of safetensors."""
    data = bytearray(pathlib.Path(path).read_bytes())
    base = 8 + struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:base])
    header.pop('__metadata__', None)
    return header, data, {name: [base + x for x in t['data_offsets']] for name, t in header.items()}


def numbers_of(path, name):
    header, data, where = read_weights(path)
    form = FORMATS[header[name]['dtype']]
    return [x for x, in struct.iter_unpack('<' + form, data[slice(*where[name])])]


# ---- tokens of a step ----

def number_of(seed, n):
    """splitmix64: the n-th number of a seed."""
    z = (seed + (n + 1) * 0x9e3779b97f4a7c15) & WORD
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & WORD
    z = (z ^ z >> 27) * 0x94d049bb133111eb & WORD
    return z ^ z >> 31


def check_tokens_of_steps():
    """Only rows of the embedding table that a step has read have a gradient: with a distinct token at each place of the
    data, they identify its windows. Each micro-batch of each step has its own windows, and none reads beyond its
    part."""
    seq, batch, accum, steps, n = 12, 2, 3, 2, 3000
    tokens_file('places.bin', range(n))
    tokens_file('other.bin', range(n))
    common = ('--preset llama-tiny --layers 1 --width 8 --heads 2 --kv-heads 1 --hidden 8 --data places.bin'
              f' --val other.bin --vocab {n} --eval-tokens 0 --decay 0 --dropout 0 --seq {seq} --batch {batch}')
    for seed in 42, 7:
        run(common, f'--steps 0 --seed {seed} --save before')
        run(common, f'--steps {steps} --accum {accum} --seed {seed} --save after')
        before, after = numbers_of('before', 'table'), numbers_of('after', 'table')
        read = {row for row in range(n) if before[8 * row:8 * row + 8] != after[8 * row:8 * row + 8]}
        wanted = set()
        for window in range(steps * accum * batch):
            first = number_of(seed, window) % (n - seq)
            wanted |= set(range(first, first + seq))
        assert read == wanted, (seed, sorted(read ^ wanted))


def check_smallest_data():
    """In a file with two windows, both are read eventually, and the token after the last one is never an input."""
    seq, n = 12, 14
    tokens_file('small.bin', range(n))
    common = (f'--preset llama-tiny --layers 1 --width 8 --heads 2 --kv-heads 1 --hidden 8 --data small.bin'
              f' --val small.bin --vocab 32 --eval-tokens 0 --decay 0 --dropout 0 --seq {seq} --batch 4')
    run(common, '--steps 0 --save before')
    run(common, '--steps 20 --save after')
    before, after = numbers_of('before', 'table'), numbers_of('after', 'table')
    read = {row for row in range(32) if before[8 * row:8 * row + 8] != after[8 * row:8 * row + 8]}
    assert read == set(range(n - 1)), read
    refused(common.replace(f'--seq {seq}', '--seq 13'), says='14 tokens, at least 15')


def check_tokens_beyond_the_vocabulary():
    tokens_file('top.bin', [i % 300 for i in range(900)])
    small = '--preset tiny --layers 1 --width 8 --heads 2 --kv-heads 2 --hidden 8 --seq 8 --batch 1 --steps 1'
    run(small, '--data top.bin --vocab 300')
    refused(small, '--data top.bin --vocab 299', says='token 299 at 299 is beyond --vocab 299')


# ---- rates, decay ----

def rate(kind, step, total, warmup, lr, least):
    if step < warmup:
        return lr * (step + 1) / warmup
    if kind == 'constant':
        return lr
    along = min(1, (step - warmup) / (total - warmup))
    return least + (lr - least) * (1 - along if kind == 'linear' else (1 + math.cos(math.pi * along)) / 2)


SMALL = '--preset tiny --layers 1 --width 8 --heads 2 --kv-heads 2 --hidden 8 --seq 8 --batch 2 --eval-tokens 0'


def check_rates():
    """For each kind of schedule, with the defaults that the help states."""
    cases = (('', 'cosine', 40, 2, 1e-3, 1e-4), ('--schedule linear --warmup 7', 'linear', 40, 7, 1e-3, 1e-4),
             ('--schedule constant --warmup 3 --lr 0.25', 'constant', 40, 3, 0.25, 0),
             ('--total-steps 100', 'cosine', 100, 5, 1e-3, 1e-4), ('--total-steps 25', 'cosine', 25, 1, 1e-3, 1e-4),
             ('--lr 0.5 --min-lr 0.125 --warmup 0', 'cosine', 40, 0, 0.5, 0.125),
             ('--min-lr 0 --warmup 0 --schedule linear', 'linear', 40, 0, 1e-3, 0))
    for options, kind, *rest in cases:
        pathlib.Path('rates.jsonl').unlink(missing_ok=True)
        run(SMALL, '--steps 40 --log rates.jsonl', options)
        got = [line['lr'] for line in steps_of('rates.jsonl')]
        wanted = [rate(kind, step, *rest) for step in range(40)]
        assert len(got) == 40 and all(abs(x - y) <= 1e-8 * abs(y) for x, y in zip(got, wanted)), (options, got, wanted)


def check_warm_up_beyond_the_schedule():
    """The message that the rate never reaches --lr agrees with the rates of the log."""
    for steps, total, warmup in (100, 50, 60), (60, 50, 60), (59, 50, 60), (55, 50, 60), (30, 100, 60), (30, None, 60):
        pathlib.Path('rates.jsonl').unlink(missing_ok=True)
        said = run(SMALL, f'--steps {steps} --warmup {warmup} --log rates.jsonl',
                   f'--total-steps {total}' if total else '')
        reached = max(line['lr'] for line in steps_of('rates.jsonl')) > 0.999e-3
        warned = re.search(r'--warmup 60 is longer than the run of (\d+) steps: the rate never reaches --lr', said)
        assert not (reached and warned) and (reached or warned or total == 100), (steps, total, warmup, said)
        assert not warned or int(warned[1]) == steps, said


def check_decay():
    """Rows of the embedding table that are never read have no gradient: AdamW only decays them."""
    steps, n = 12, 64
    tokens_file('few.bin', [i % 5 for i in range(400)])
    common = ('--preset llama-tiny --layers 1 --width 8 --heads 2 --kv-heads 1 --hidden 8 --data few.bin --seq 8'
              f' --batch 2 --vocab {n} --eval-tokens 0 --schedule constant --warmup 0 --lr 0.01')
    run(common, '--steps 0 --save before')
    before = numbers_of('before', 'table')
    for optimizer in 'adamw', 'lion':
        for options, decay in ('', 0.1), ('--decay 0', 0), ('--decay 3', 3):
            run(common, f'--steps {steps} --optimizer {optimizer} --save after', options)
            after = numbers_of('after', 'table')
            factor = (1 - 0.01 * decay) ** steps
            unread = range(8 * 5, 8 * n)
            assert all(abs(after[i] - factor * before[i]) <= 2e-6 * abs(before[i]) for i in unread), (optimizer, decay)
            assert after[:8 * 5] != before[:8 * 5]


# ---- validation, speed ----

def check_validation_of_its_own_text():
    """The last tenth is not trained on; the logged loss is the printed one."""
    draw = random.Random(1)
    text = b'a' * 18000 + bytes(draw.randrange(98, 123) for _ in range(2000))
    pathlib.Path('text').write_bytes(text)
    said = run('--preset tiny --layers 1 --width 16 --heads 2 --kv-heads 2 --hidden 16 --seq 16 --batch 4 --lr 0.03'
               ' --data text --steps 60 --log split.jsonl')
    printed = [float(x) for x in re.findall(r'validation loss (\S+)', said)]
    logged = [line['validation_loss'] for line in map(json.loads, open('split.jsonl')) if 'validation_loss' in line]
    last = steps_of('split.jsonl')[-1]['loss']
    assert last < 0.1 and len(printed) == 1 and printed[0] > 3, (last, printed)
    assert abs(logged[0] - printed[0]) < 6e-5, (logged, printed)


def check_windows_of_validation():
    """64 windows of --seq, evenly spaced: in a file whose first sixteenth is known and whose rest is not, one in
    sixteen has no loss. A shorter file is read completely."""
    seq = 64
    pathlib.Path('known').write_bytes(b'a' * 20000)
    pathlib.Path('part').write_bytes(b'a' * (4 * seq + 1) + b'b' * (60 * seq))
    pathlib.Path('rest').write_bytes(b'b' * (8 * seq))
    losses = {}
    for val in 'known', 'part', 'rest':
        said = run(f'--preset tiny --layers 1 --width 16 --heads 2 --kv-heads 2 --hidden 16 --seq {seq} --batch 4'
                   f' --lr 0.03 --dropout 0 --data known --val {val} --steps 40')
        losses[val] = float(re.search(r'validation loss (\S+)', said)[1])
    share = (losses['part'] - losses['known']) / (losses['rest'] - losses['known'])
    assert losses['known'] < 0.05 and losses['rest'] > 3, losses
    assert abs(share - 60 / 64) < 0.03, (share, losses) # a window with both kinds has a loss between the two


def check_tokens_per_second():
    """The tokens that a step has read divided by its time."""
    for options, tokens in ('--accum 3', 48), ('--batch 5', 40), ('--graph', 16):
        pathlib.Path('speed.jsonl').unlink(missing_ok=True)
        run(SMALL, '--steps 6 --log speed.jsonl', options)
        for line in steps_of('speed.jsonl')[1:]:
            assert abs(line['tokens_per_s'] * line['step_ms'] / 1e3 / tokens - 1) < 1e-5, (options, line)


# ---- sampling ----

def check_samples_beyond_the_length():
    """The context window slides: if the next token depends on the five before it, a sample longer than --seq continues
    correctly."""
    tokens_file('runs.bin', [i // 5 % 2 for i in range(4000)])
    said = run('--preset tiny --layers 2 --width 32 --heads 2 --kv-heads 2 --hidden 64 --seq 16 --batch 16 --lr 0.01'
               ' --dropout 0 --data runs.bin --vocab 4 --steps 250 --eval-tokens 0 --temperature 0.05 --sample 120')
    drawn = [int(x) for x in said.strip().split('\n')[-1].split()]
    assert len(drawn) == 120, said
    lengths = [len(run_) for run_ in re.findall(r'0+|1+', ''.join(map(str, drawn)))]
    assert set(lengths[3:-1]) == {5}, drawn


# ---- checkpoints, weights ----

def interrupt(folder, seconds):
    """Sends SIGINT so long after a run has begun its first step, or slightly before. Returns the number of its
    steps."""
    process = subprocess.Popen([PROGRAM, *('--preset tiny --width 512 --hidden 2048 --batch 16 --steps 50 --threads 1'
                                           f' --checkpoint {folder} --log {folder}.jsonl --eval-tokens 0').split()],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=restore_signals)
    said = process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    said += process.stdout.read()
    assert process.wait(600) == 128 + signal.SIGINT, said
    made = len(steps_of(f'{folder}.jsonl'))
    files = sorted(p.name for p in pathlib.Path(folder).iterdir() if p.suffix == '.safetensors')
    assert files == [f'000001-step{made}.safetensors'] * (made > 0), (made, files, said)
    return made


def check_signal_in_the_first_step():
    """The step is finished and saved."""
    made = [interrupt(f'after{s}', s) for s in (0, 0.05, 0.1, 0.2)]
    assert 1 in made or max(made) > 1, made


def check_weights_that_are_not_finite():
    """One number in a row that is never read: no loss shows it. The run is not a success, and saves nothing."""
    tokens_file('few.bin', [i % 5 for i in range(400)])
    for dtype in 'f32', 'bf16', 'f16':
        common = ('--preset llama-tiny --layers 1 --width 8 --heads 2 --kv-heads 1 --hidden 8 --data few.bin --seq 8'
                  f' --batch 2 --vocab 64 --eval-tokens 0 --dtype {dtype} --decay 0')
        run(common, '--steps 0 --save weights')
        header, data, where = read_weights('weights')
        size = 4 if dtype == 'f32' else 2
        at = where['table'][1] - size
        exponent = {'f32': '00 00 80 7f', 'bf16': '80 7f', 'f16': '00 7c'}[dtype]
        for kind in 'infinite', 'nan':
            number = bytearray.fromhex(exponent)
            number[0] |= kind == 'nan'
            data[at:at + size] = number
            pathlib.Path('odd').write_bytes(data)
            said = run(common, f'--steps 2 --load odd --save {dtype}.{kind} --checkpoint {dtype}-{kind}', status=3)
            assert 'weights are not finite' in said and not pathlib.Path(f'{dtype}.{kind}').exists(), said
            assert not list(pathlib.Path(f'{dtype}-{kind}').glob('*.safetensors')), said


def check_files_that_are_no_checkpoints():
    """A name that only begins like a checkpoint's is none: there is nothing to resume, and nothing to lose."""
    names = ('000001-step2.safetensors.failed', '000001-step2.safetensors.part', '-step2.safetensors',
             '000001-step.safetensors', '000001-step2', '1step2.safetensors', '1-step2.safetensors',
             '0000001-step2.safetensors', '000001-step02.safetensors')
    os.mkdir('kept')
    for name in names:
        (pathlib.Path('kept') / name).write_text('x')
    refused(SMALL, '--steps 1 --resume kept', says='no checkpoint there')
    run(SMALL, '--steps 1 --checkpoint kept')
    there = set(os.listdir('kept')) - {'000001-step1.safetensors'}
    assert there == set(names) - {'000001-step2.safetensors.part'}, there # the remains of a save are removed
    refused(SMALL, '--steps 1 --checkpoint kept', says='1 checkpoints of another run')


def check_old_checkpoint_that_stays():
    """An old file that cannot be removed causes no failure, and is reported once."""
    os.makedirs('kept/000001-step1.safetensors')
    said = run(SMALL, '--steps 6 --save-every 1 --keep 2 --checkpoint kept --replace-checkpoints')
    assert said.count('000001-step1.safetensors cannot be removed') == 1, said
    assert (pathlib.Path('kept') / '000007-step6.safetensors').exists(), os.listdir('kept')


def check_fields_of_a_config():
    """Sizes without a default must be given. --kv-heads has that of --heads only."""
    config = {'model_type': 'llama', 'hidden_size': 8, 'num_hidden_layers': 1, 'num_attention_heads': 2,
              'num_key_value_heads': 1, 'intermediate_size': 8, 'rms_norm_eps': 1e-5, 'vocab_size': 256}
    common = ('--preset llama-tiny --layers 1 --width 8 --heads 2 --hidden 8 --seq 8 --batch 1 --steps 0'
              ' --load-hf weights')
    pathlib.Path('weights').write_text('none')
    for field in config:
        pathlib.Path('config.json').write_text(json.dumps({k: v for k, v in config.items() if k != field}))
        refused(common, '--kv-heads 1', says=f'"{field}" is nothing: ')
    without = {k: v for k, v in config.items() if k != 'num_key_value_heads'}
    pathlib.Path('config.json').write_text(json.dumps(without))
    # It reads the file of weights, which does not exist.
    assert 'num_key_value_heads' not in run(common, '--kv-heads 2', status=1)


# ---- the page ----

def points_of(path):
    chart = re.search(r"<svg [^>]*aria-label='loss'>(.*?)</svg>", pathlib.Path(path).read_text(), re.S)[1]
    line = re.search(r"<path class='run' d='([^']*)'", chart)[1]
    return [float(x) for x in re.findall(r'[ML]([0-9.]+) ', line)]


def check_page_of_a_run_that_went_on():
    """Resumed from an earlier step than the log's last: each step is drawn once."""
    common = SMALL + ' --checkpoint run --save-every 4 --log run.jsonl --dashboard page.html'
    run(common, '--steps 7 --total-steps 9')
    newest = sorted(pathlib.Path('run').glob('*.safetensors'))[-1]
    assert newest.name.endswith('-step7.safetensors')
    newest.unlink()
    said = run(common, '--steps 9 --resume run')
    assert 'going on from step 4' in said, said
    points = points_of('page.html')
    assert len(points) == 9 and points == sorted(set(points)), points


def check_page_beside_a_link():
    """The page is first written to a temporary file of its own: a link, or a folder, beside the page stays."""
    pathlib.Path('precious').write_text('mine')
    pathlib.Path('page.html.part').symlink_to('precious')
    os.makedirs('other.html.part/full')
    for page in 'page.html', 'other.html':
        run(SMALL, f'--steps 2 --dashboard {page}')
        assert pathlib.Path(page).read_text().rstrip().endswith('</html>')
    assert pathlib.Path('precious').read_text() == 'mine' and os.path.islink('page.html.part')
    assert len(os.listdir()) == 5, os.listdir()


def main():
    failed = False
    for name, check in list(globals().items()):
        if not name.startswith('check_') or (sys.argv[2:] and not any(n in name for n in sys.argv[2:])):
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                check()
            except (AssertionError, subprocess.TimeoutExpired, OSError, KeyError, IndexError, TypeError) as e:
                print(f'{name}: {type(e).__name__}: {str(e)[-1500:]}')
                failed = True
            finally:
                os.chdir('/')
    if not failed:
        print('train_gpt: what it read, computed and wrote follows from its command line')
    sys.exit(failed)


main()
