#!/usr/bin/env python3
"""Checks of train_gpt's safety and of its numbers: folders of another run, outputs that are not files, sizes that
overflow, roll-backs, logs that cannot be written, signals, validation, data, model FLOPs, the page. And of
train_text's files.

    tests/tools/trainer.py BUILD [NAME...]

NAME: only the checks whose names contain it."""
import functools
import json
import os
import pathlib
import re
import resource
import signal
import stat
import statistics
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import page_style  # noqa: E402

BUILD = pathlib.Path(sys.argv[1]).resolve()
PROGRAM = BUILD / 'examples/train_gpt'
TEXT = BUILD / 'examples/train_text'
TOOLS = pathlib.Path(__file__).resolve().parent
QUICK = ['--quick', '--threads', '1', '--sample', '0']


def limit_files(most):
    """For a process: a file larger than so many bytes cannot be written, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def run(*options, status=0, limit=None, quick=True, timeout=600, env=None):
    """Its output. options: words in one string, or a path."""
    words = [w for o in options for w in (o.split() if isinstance(o, str) else [str(o)])]
    done = subprocess.run([PROGRAM, *(QUICK if quick else []), *words], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors='replace', timeout=timeout,
                          env={**os.environ, **(env or {})},
                          preexec_fn=limit and functools.partial(limit_files, limit))
    wanted = status if isinstance(status, tuple) else (status,)
    assert done.returncode in wanted, (words, done.returncode, done.stdout[-2000:])
    return done.stdout


def refused(*options, says=''):
    said = run(*options, status=2)
    assert said.startswith('train_gpt: ') and said.count('\n') == 1 and says in said, (options, says, said)


def lines_of(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def steps_of(path):
    return [line for line in lines_of(path) if 'memory' in line]


def files_of(folder):
    return sorted(p.name for p in pathlib.Path(folder).glob('*.safetensors'))


def header_of(path):
    with open(path, 'rb') as f:
        return json.loads(f.read(struct.unpack('<Q', f.read(8))[0]))


# ---- no data is lost ----

def check_folder_of_another_run():
    run('--steps 30 --checkpoint used --save-every 10')
    before = files_of('used')
    wild = '--steps 40 --seed 7 --lr 1000 --clip 1e9 --warmup 0 --save-every 50 --on loss_nonfinite=roll_back'
    refused(wild, '--checkpoint used', says='--replace-checkpoints')
    refused('--steps 10 --seed 9 --checkpoint used --save-every 5', says='3 checkpoints of another run')
    assert files_of('used') == before
    said = run(wild, '--checkpoint used --replace-checkpoints', status=(0, 3))
    assert 'back to step 0' in said and 'back to step 30' not in said, said
    run('--steps 40 --resume used --checkpoint used')


def check_resume_by_another_network():
    """Every weight of a smaller network may be in the checkpoint: it is refused, and the files stay."""
    run('--layers 4 --heads 4 --steps 4 --checkpoint whole --save-every 1')
    before = files_of('whole')
    for options, says in (('', 'expected --layers 4, as that run has, got 2'),
                          ('--layers 4 --heads 2 --kv-heads 2', 'expected --heads 4, as that run has, got 2')):
        said = run('--steps 9 --resume whole --checkpoint whole --save-every 1', options, status=2)
        assert says in said and 'step ' not in said and files_of('whole') == before, said
    llama = '--preset llama-tiny --layers 1 --resume llama --checkpoint llama --resume-if-there'
    run(llama, '--heads 4 --kv-heads 2 --steps 1')
    said = run(llama, '--heads 8 --kv-heads 4 --steps 2', status=2) # the weights have the same shapes
    assert 'expected --heads 4, as that run has, got 8' in said, said
    said = run(llama, '--heads 4 --kv-heads 2 --seq 16 --steps 2 --total-steps 1') # a length is no weight
    assert 'that run had another --seq' in said, said


def check_load_of_a_larger_model():
    """The weights that a smaller model lacks would be gone from the file of --save."""
    run('--layers 4 --steps 1 --save weights --checkpoint saved')
    before = pathlib.Path('weights').read_bytes()
    names = [name for name in header_of('weights') if name.startswith(('layer.2', 'layer.3'))]
    refused('--steps 1 --load weights --save weights', says=f'lacks {len(names)} entries of the file, the first is '
            f'"{names[0]}"')
    assert pathlib.Path('weights').read_bytes() == before
    run('--layers 4 --steps 1 --load weights --save weights')
    run('--layers 4 --steps 1 --load', f'saved/{files_of("saved")[0]}') # states of the optimizer are no weights
    for how in '--dtype f16', '--dtype fp8 --scaling delayed':
        run(how, '--steps 1 --save scaled --checkpoint scales --replace-checkpoints')
        run('--steps 1 --load scaled', '--dtype f16' if 'f16' in how else '')
        run(how, '--steps 1 --load scaled')


def check_resume_past_damaged_files():
    """--keep does not count damaged checkpoints: the whole ones before them stay."""
    run('--steps 6 --checkpoint saved --save-every 1 --keep 6')
    names = files_of('saved')
    assert len(names) == 6, names
    for name in names[3:]:
        data = bytearray((pathlib.Path('saved') / name).read_bytes())
        data[-1] ^= 1
        (pathlib.Path('saved') / name).write_bytes(data)
    said = run('--steps 4 --total-steps 6 --resume saved --checkpoint saved --save-every 1 --keep 3')
    assert 'passed over 3 that are not whole' in said and 'going on from step 3' in said, said
    left = files_of('saved')
    assert names[1] in left and names[2] in left and left[-1].endswith('-step4.safetensors'), left


def check_roll_back_finds_no_other_run():
    """The run's own files are gone: the newest existing one was saved by another run."""
    run('--steps 6 --checkpoint mixed --save-every 2 --keep 9 --save weights')
    scale('weights', 'norm', 3e38)
    said = run('--steps 8 --seed 3 --load weights --checkpoint mixed --replace-checkpoints --save-every 99 --keep 9'
               ' --on loss_nonfinite=roll_back', status=3)
    assert "is another run's: this run has no checkpoint left" in said, said


def scale(path, name, factor):
    """Makes finite weights whose loss is not finite."""
    data = bytearray(pathlib.Path(path).read_bytes())
    base = 8 + struct.unpack('<Q', data[:8])[0]
    begin, end = (base + x for x in header_of(path)[name]['data_offsets'])
    numbers = struct.unpack(f'<{(end - begin) // 4}f', data[begin:end])
    data[begin:end] = struct.pack(f'<{len(numbers)}f', *(max(-3e38, min(3e38, x * factor)) for x in numbers))
    pathlib.Path(path).write_bytes(data)


def check_outputs_that_are_no_files():
    os.mkfifo('fifo')
    is_root = os.geteuid() == 0
    if is_root:
        os.mknod('device', 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    for option in '--dashboard', '--save', '--prometheus':
        refused(f'--steps 5 {option} fifo', says='a FIFO, not a file')
        if is_root:
            refused(f'--steps 5 {option} ./device', says='a device, not a file')
            assert stat.S_ISCHR(os.stat('device').st_mode)
        refused(f'--steps 5 {option} nowhere/file', says='folder does not exist')
        refused(f'--steps 5 {option} .', says='a folder, not a file')
    for option in '--data', '--val', '--good', '--load', '--load-hf':
        refused(f'--steps 5 {option} fifo', says='a FIFO, not a file')
        refused(f'--steps 5 {option} nowhere', says='No such file')
    for target in 'there', 'new', 'folder/new':
        os.makedirs('folder', exist_ok=True)
        pathlib.Path('there').write_text('old')
        for option in '--dashboard', '--save', '--prometheus':
            link = pathlib.Path('link')
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            if (option, target) != ('--save', 'new') and (option, target) != ('--save', 'folder/new'):
                run(f'--steps 2 {option} link')
                assert link.is_symlink() and pathlib.Path(target).stat().st_size > 100, (option, target)


def check_outputs_that_are_one_file():
    pathlib.Path('text').write_bytes(b'some text ' * 2000)
    for other in '--data text --log text', '--save a --dashboard a', '--data text --save text':
        refused('--steps 1', other, says='the same file as')
    assert pathlib.Path('text').stat().st_size == 20000
    run('--steps 1 --save weights')
    run('--steps 1 --load weights --save weights')
    refused('--steps 1 --load-hf weights --save weights', says='the same file as --load-hf') # other names
    refused('--steps 2 --data text --dashboard folder/../text', says='folder does not exist')
    # Files that do not exist yet, under two names.
    os.mkdir('folder')
    os.symlink('linked', 'link')
    for one, other in (('--log a', '--dashboard ./a'), ('--dashboard ./a', '--save a'), ('--log ./a', '--prometheus a'),
                       ('--log folder/a', '--save folder/../folder//a'), ('--log link', '--save linked'),
                       ('--save b', '--tensorboard b'), ('--save b', '--tensorboard ./b/'),
                       ('--log b', '--checkpoint b')):
        refused('--steps 1', one, other, says='the same')
        refused('--steps 1', other, one, says='the same')
    assert sorted(p.name for p in pathlib.Path('.').iterdir()) == ['folder', 'link', 'text', 'weights']
    run('--steps 1 --log folder/a --save a --tensorboard both --checkpoint both')


def check_files_beside_the_page():
    """The page is written under a name that no file has, and a page that cannot be written leaves none."""
    data = b'some text ' * 2000
    for name in 'page.part', 'small.part':
        pathlib.Path(name).write_bytes(data)
    run('--steps 2 --data page.part --dashboard page')
    run('--steps 2 --log old.part')
    run('--steps 2 --log old.part --dashboard old')
    small_trainer('--data small.part --dashboard small')
    assert all(pathlib.Path(name).read_bytes() == data for name in ('page.part', 'small.part'))
    assert len(log_lines('old.part')) == 6, log_lines('old.part')
    said = run('--steps 2 --dashboard old', limit=900)
    assert 'old: File too large' in said, said
    assert sorted(p.name for p in pathlib.Path('.').iterdir()) == ['old', 'old.part', 'page', 'page.part', 'small',
                                                                   'small.part']


def small_trainer(*options, status=0):
    """The output of train_text."""
    done = subprocess.run([TEXT, '--quick', '--sample', '0', *' '.join(options).split()], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors='replace', timeout=600)
    assert done.returncode == status, (options, done.returncode, done.stdout[-2000:])
    return done.stdout


def check_files_of_the_small_trainer():
    """It overwrites no data and no other output, and a full disk of the log costs no weights."""
    pathlib.Path('mine').write_bytes(b'some text ' * 2000)
    for other in ('--data mine --save mine', '--data mine --dashboard ./mine', '--data mine --log mine',
                  '--save a --dashboard ./a', '--log a --save a'):
        said = small_trainer(other, status=2)
        assert said.startswith('train_text: --') and 'the same file as --' in said and said.count('\n') == 1, said
    assert pathlib.Path('mine').stat().st_size == 20000
    assert 'its folder does not exist' in small_trainer('--log nowhere/log', status=2)
    said = small_trainer('--data mine --steps 4 --log /dev/full --save weights')
    assert said.count('/dev/full: No space') == 1 and finite('weights'), said
    small_trainer('--data mine --steps 1 --load weights --save weights')


def check_load_of_a_larger_small_trainer():
    """The model of fewer layers would be saved over the file."""
    small_trainer('--steps 1 --layers 3 --save weights')
    before = pathlib.Path('weights').read_bytes()
    said = small_trainer('--steps 1 --layers 2 --load weights --save weights', status=1)
    assert 'is not in the file' in said, said
    assert pathlib.Path('weights').read_bytes() == before
    small_trainer('--steps 1 --layers 3 --load weights --save weights')


def check_one_log_of_two_small_trainers():
    """The second one at a time is refused, and leaves no weights."""
    first = subprocess.Popen([TEXT, '--quick', '--steps', '1000000', '--log', 'log'], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, preexec_fn=restore_signals)
    while not first.stdout.readline().startswith(b'step'):
        pass
    said = small_trainer('--steps 1 --log log --save weights', status=2)
    assert 'train_text: --log log: another run writes to this file' in said, said
    assert not pathlib.Path('weights').exists()
    first.send_signal(signal.SIGINT)
    first.stdout.read()
    assert first.wait(300) == 130
    small_trainer('--steps 1 --log log')


def signalled_text(number, *options):
    process = subprocess.Popen([TEXT, '--quick', '--steps', '1000000', *options], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, preexec_fn=restore_signals)
    while not process.stdout.readline().startswith(b'step   10'):
        pass
    process.send_signal(number)
    said = process.stdout.read()
    return process.wait(300), said.decode()


def check_ends_of_the_small_trainer():
    """Weights that are not finite replace no others. A signal ends it as its last step does."""
    small_trainer('--steps 2 --save weights')
    before = pathlib.Path('weights').read_bytes()
    bad = bytearray(before)
    base = 8 + struct.unpack('<Q', bad[:8])[0]
    at = base + header_of('weights')['0.positions']['data_offsets'][0]
    bad[at:at + 4] = struct.pack('<f', float('nan'))
    pathlib.Path('bad').write_bytes(bad)
    said = small_trainer('--steps 20 --load bad --save weights --dashboard page', status=3)
    assert 'not finite' in said and '--save weights: not saved' in said, said
    assert pathlib.Path('weights').read_bytes() == before
    page = pathlib.Path('page').read_text()
    assert "class='mark'" in page and '; ended 20' in page and 'http-equiv' not in page, 'the page'
    for number in signal.SIGINT, signal.SIGHUP:
        status, said = signalled_text(number, '--save', f'{number}.weights', '--dashboard', 'page', '--layers', '1')
        assert status == 128 + number and finite(f'{number}.weights'), (status, said)
        page = pathlib.Path('page').read_text()
        assert '; ended 20' in page and 'http-equiv' not in page, 'the page'


def check_one_folder_of_two_runs():
    """The first run has not saved yet: the folder is its own nevertheless."""
    first = subprocess.Popen([PROGRAM, *QUICK, *'--steps 1000000 --save-every 1000000 --checkpoint both'.split()],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=restore_signals)
    while not first.stdout.readline().startswith(b'step'):
        pass
    for options in '', '--replace-checkpoints', '--resume both --resume-if-there':
        refused('--steps 2 --keep 1 --checkpoint both', options, says='another run saves to this folder')
    first.send_signal(signal.SIGINT)
    first.stdout.read()
    assert first.wait(300) == 130
    saved, = files_of('both')
    second = ['--checkpoint', 'both', '--resume', 'both', '--save-every', '1', '--steps', '1000000']
    process = subprocess.Popen([PROGRAM, *QUICK, *second], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               preexec_fn=restore_signals)
    while len(files_of('both')) < 2 and process.poll() is None: # the library has the lock now
        time.sleep(0.01)
    refused('--steps 2 --resume both --checkpoint both', says='another run saves to this folder')
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(300) == 130


def check_sizes():
    refused('--steps 1 --batch 65536 --seq 65536', says='2^30')
    refused('--steps 1 --batch 65536 --seq 16385', says='2^30')


def check_roll_back_without_a_good_checkpoint():
    """The weights of the first checkpoint are the best available; NaN is never saved, and is not a success."""
    for how in '', '--graph':
        folder = f'nan{how}'
        said = run(f'--steps 12 --lr 1000 --clip 1e9 --warmup 0 --eval-tokens 64 --checkpoint {folder} --save-every 50'
                   f' --on loss_nonfinite=roll_back --on grad_nonfinite=roll_back --save {folder}.weights', how,
                   status=(0, 3))
        assert 'back to step 0' in said and 'validation loss -nan' not in said, said
        saved = pathlib.Path(f'{folder}.weights').exists()
        assert saved == ('stopped' not in said) and (not saved or finite(f'{folder}.weights')), said
        for name in files_of(folder):
            assert finite(f'{folder}/{name}'), name
    # Saved after the update that broke the weights: the earlier file is used.
    said = run('--steps 14 --lr 1000 --clip 1e9 --warmup 0 --save-every 2 --checkpoint behind --keep 9'
               ' --on loss_nonfinite=roll_back --on grad_nonfinite=note', status=(0, 3))
    back = [int(n) for n in re.findall(r'roll_back: back to step (\d+)', said)]
    assert 'fails again: behind/0' in said and 2 in back, said


def finite(path):
    header = header_of(path)
    data = pathlib.Path(path).read_bytes()
    base = 8 + struct.unpack('<Q', data[:8])[0]
    for name, t in header.items():
        if name == '__metadata__' or t['dtype'] != 'F32':
            continue
        begin, end = (base + x for x in t['data_offsets'])
        if not all(abs(x) < float('inf') for x in struct.unpack(f'<{(end - begin) // 4}f', data[begin:end])):
            return False
    return True


def check_nan_is_no_success():
    said = run('--steps 12 --lr 1000 --clip 1e9 --warmup 0 --checkpoint noted --save-every 2 --on loss_nonfinite=note'
               ' --on grad_nonfinite=note --save noted.weights', status=3)
    assert 'not finite' in said and not pathlib.Path('noted.weights').exists(), said
    assert files_of('noted') and all(finite(f'noted/{name}') for name in files_of('noted'))


def check_log_that_cannot_be_written():
    said = run('--steps 5 --log /dev/full --checkpoint lost --save-every 2')
    assert said.count('/dev/full: No space') == 1, said
    assert re.search(r'^train_gpt: 6 lines or files of the log', said, re.M), said
    assert files_of('lost')[-1].endswith('-step5.safetensors')
    run('--steps 3 --checkpoint whole')
    # The disk fills up: every line in the log is complete.
    said = run('--steps 30 --log short.jsonl', limit=3000)
    assert 'could not be written' in said, said


def restore_signals():
    """A shell starts background processes with SIGINT ignored, nohup with SIGHUP, and the program does not change
    that."""
    for number in signal.SIGINT, signal.SIGHUP, signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)


def signalled(number, *options, after=b'step     10'):
    words = [w for o in options for w in o.split()]
    process = subprocess.Popen([PROGRAM, *QUICK, '--steps', '1000000', *words], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, preexec_fn=restore_signals)
    said = b''
    while after not in said:
        said += process.stdout.readline()
    process.send_signal(number)
    if number == signal.SIGHUP: # of a lost connection, by the kernel and by the shell
        process.send_signal(number)
    said += process.stdout.read()
    return process.wait(300), said.decode()


def check_signals():
    for number, how in (signal.SIGINT, ''), (signal.SIGTERM, '--graph'), (signal.SIGHUP, ''):
        folder = f'signal{int(number)}'
        status, said = signalled(number, f'--checkpoint {folder} --save-every 1000000 --dashboard {folder}.html'
                                 f' --log {folder}.jsonl --save {folder}.weights', how)
        assert status == 128 + number, (status, said)
        steps = steps_of(f'{folder}.jsonl')
        assert files_of(folder)[-1].endswith(f'-step{steps[-1]["step"] + 1}.safetensors'), (files_of(folder), steps[-1])
        page = pathlib.Path(f'{folder}.html').read_text()
        assert '; ended 20' in page and 'http-equiv' not in page
        assert finite(f'{folder}.weights')
        run(f'--steps {steps[-1]["step"] + 3} --total-steps 1000000 --resume {folder} --checkpoint {folder}')
    long = ['--steps', '1000000', '--eval-every', '5', '--eval-tokens', '100000000']
    process = subprocess.Popen([PROGRAM, *QUICK, *long], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               preexec_fn=restore_signals)
    while not process.stdout.readline().startswith(b'step'): # from here on signals are caught, on any machine
        pass
    time.sleep(1) # the first evaluation, which takes minutes, has probably begun; if not, the result is the same
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait(300) in (-signal.SIGTERM, 130), process.returncode


def check_reader_that_ends():
    """As head does, or tee after Ctrl-C: the run goes on, is saved, and reports at its end what was not printed."""
    process = subprocess.Popen([PROGRAM, *QUICK, *('--steps 1000000 --save-every 1000000 --checkpoint piped'
                                                   ' --save piped.weights --log piped.jsonl').split()],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=restore_signals)
    process.stdout.readline()
    process.stdout.close()
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until and len(log_lines('piped.jsonl')) < 40:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(300) == 130 and 'standard output could not be written' in said, (process.returncode, said)
    assert len(files_of('piped')) == 1 and finite('piped.weights')
    for program, options in (PROGRAM, QUICK), (TEXT, ['--quick']):
        pathlib.Path('weights').unlink(missing_ok=True)
        process = subprocess.Popen([program, *options, *'--steps 30 --save weights'.split()], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(300) == 1 and 'standard output could not be written' in said, (process.returncode, said)
        assert finite('weights')


def log_lines(path):
    return pathlib.Path(path).read_bytes().split(b'\n')[:-1] if pathlib.Path(path).exists() else []


def check_signal_before_the_first_step():
    """Weights that no step has trained replace no file. The run waits in its first line, because the pipe is full."""
    run('--steps 2 --save weights')
    before = pathlib.Path('weights').read_bytes()
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b'x')
    except BlockingIOError:
        os.set_blocking(write, True)
    words = '--steps 50 --seed 7 --save weights --checkpoint early --log early.jsonl'.split()
    process = subprocess.Popen([PROGRAM, *QUICK, *words], stdout=write, stderr=subprocess.PIPE, text=True,
                               preexec_fn=restore_signals)
    os.close(write)
    while not pathlib.Path('early.jsonl').exists() and process.poll() is None: # from here on signals are caught
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    with os.fdopen(read, 'rb') as pipe:
        pipe.read()
    said = process.stderr.read()
    assert process.wait(300) == 130 and '--save weights: not saved' in said, (process.returncode, said)
    assert not log_lines('early.jsonl') and not files_of('early')
    assert pathlib.Path('weights').read_bytes() == before


def check_signal_while_it_samples():
    for number in signal.SIGINT, signal.SIGTERM:
        pathlib.Path('weights').unlink(missing_ok=True)
        process = subprocess.Popen([PROGRAM, *QUICK, *'--steps 2 --sample 1000000 --save weights'.split()],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=restore_signals)
        while not process.stdout.readline().startswith(b'step      1  validation'): # the last line before the sample
            pass
        time.sleep(0.3)
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(300) == 128 + number and finite('weights'), process.returncode


def check_checkpoint_that_cannot_be_written():
    """It ends the run with a status that is not 0, and the weights are saved to their own file."""
    process = subprocess.Popen([PROGRAM, *QUICK, *'--steps 1000000 --checkpoint lost --save-every 1 --keep 100000'
                                                  ' --save weights --log lost.jsonl --dashboard page'.split()],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (pathlib.Path('lost').exists() and files_of('lost')) and process.poll() is None:
        time.sleep(0.01)
    os.rename('lost', 'moved')
    pathlib.Path('lost').write_text('a file')
    said = process.stderr.read()
    assert process.wait(300) == 1 and re.search('^train_gpt: .*lost', said, re.M), (process.returncode, said)
    assert pathlib.Path('weights').exists() and finite('weights'), said
    page = pathlib.Path('page').read_text()
    assert '; ended 20' in page and 'http-equiv' not in page, 'the page'


def check_stop_of_a_finite_run():
    """A stop by an alert about finite numbers ends the run as its last step does: weights and checkpoint are saved."""
    small = ('--layers 1 --width 8 --heads 2 --kv-heads 2 --hidden 8 --seq 8 --batch 1 --policy none --eval-tokens 0'
             ' --lr 1e-12 --min-lr 0 --save-every 100000')
    for how in '', '--graph', '--dtype f16':
        name = f'plateau{how.replace(" ", "")}'
        said = run(small, f'--steps 400 --on plateau=stop --save {name}.weights --checkpoint {name} --log {name}.jsonl',
                   how, status=4)
        last = steps_of(f'{name}.jsonl')[-1]['step']
        assert 'plateau: loss' in said and 'stop: stopped' in said and last < 399, said
        assert files_of(name) == [f'000001-step{last + 1}.safetensors'] and finite(f'{name}.weights'), said
        said = run(small, f'--steps {last + 3} --total-steps 400 --resume {name} --checkpoint {name}', how)
        assert f'going on from step {last + 1} of' in said, said


def check_full_stdout():
    with open('/dev/full', 'w') as full:
        done = subprocess.run([PROGRAM, *QUICK, '--steps', '2'], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and 'standard output' in done.stderr, done


# ---- data ----

def tokens_file(path, tokens, magic=20240520):
    head = [magic, 1, len(tokens)] + [0] * 253
    pathlib.Path(path).write_bytes(struct.pack('<256i', *head) + struct.pack(f'<{len(tokens)}H', *tokens))


def check_data():
    tokens_file('tokens.bin', [i * i % 300 for i in range(4000)])
    tokens_file('tokens', [i * i % 300 for i in range(4000)])
    tokens_file('wide.bin', [1] * 4000, magic=20240801)
    pathlib.Path('text').write_bytes(bytes(i * i % 251 for i in range(40000)))
    pathlib.Path('text.bin').write_bytes(b'some text ' * 2000)
    refused('--vocab 2000 --data tokens.bin --val text', says='expected tokens, as --data has, got text')
    refused('--vocab 2000 --data text --val tokens', says='expected text, as --data is, got tokens')
    refused('--data text.bin', says='expected a file of tokens')
    refused('--data wide.bin', says='32 bits')
    refused('--data tokens --vocab 200', says='is beyond --vocab 200')
    said = run('--data tokens --vocab 300 --steps 1')
    assert '3600 training tokens' in said, said
    # Another file of the same length is other data.
    pathlib.Path('other').write_bytes(bytes((i * i + i) % 251 for i in range(40000)))
    run('--data text --steps 4 --checkpoint data')
    assert 'another' not in run('--data text --steps 6 --total-steps 4 --resume data')
    said = run('--data other --steps 6 --total-steps 4 --resume data')
    assert 'that run had another data: these are other bytes' in said, said
    said = run('--data text --steps 6 --total-steps 4 --resume data --seed 9 --dropout 0')
    assert 'another --seed, --dropout:' in said, said
    # Validation losses of other text are no continuation of the earlier ones.
    go_on = '--data text --val text --eval-tokens 64'
    run(go_on, '--steps 2 --checkpoint valued')
    assert 'another' not in run(go_on, '--steps 4 --total-steps 2 --resume valued')
    for option in '--val other', '--eval-tokens 128':
        said = run(go_on, '--steps 4 --total-steps 2 --resume valued', option)
        assert 'that run had another --val or --eval-tokens' in said and 'other bytes' not in said, (option, said)


def check_resume_of_nothing():
    refused('--steps 2 --resume typo', says='--resume-if-there')
    assert not pathlib.Path('typo').exists()
    refused('--steps 2 --resume-if-there', says='--resume DIR')
    assert 'from the beginning' in run('--steps 2 --resume later --checkpoint later --resume-if-there')
    said = run('--steps 4 --total-steps 2 --resume later --checkpoint later --resume-if-there')
    assert 'going on from step 2' in said, said
    # The page of a run from the beginning, or from an earlier step, has no alerts of the discarded ones.
    lines = [json.dumps({'step': i, 'loss': 5, 'memory': {}, 'alerts': ['loss_spike']}, separators=(',', ':'))
             for i in range(9)]
    for options, alerts in ('--resume none --resume-if-there', 0), ('--resume later --total-steps 2', 4):
        pathlib.Path('old.jsonl').write_text('\n'.join(lines) + '\n')
        run('--steps 5 --log old.jsonl --dashboard page --on slow_step=note', options)
        events = events_of('page')
        assert sum(count for _, _, count, what in events if 'loss_spike' in what) == alerts, (options, events)


def check_log_of_an_earlier_run():
    """A page has no alerts of an earlier run in the same log; those of a roll-back remain."""
    def line(step, *alerts, **more):
        return json.dumps({'step': step, 'loss': 4, **more, 'alerts': alerts}, separators=(',', ':'))
    lines = [line(step, *(['loss_spike'] if step < 6 else ['grad_spike']), memory={}) for step in range(9)]
    lines += [line(step, memory={}) for step in range(3)] # another run
    lines += [line(3, 'plateau', memory={}), line(3, 'plateau', recovery='roll_back'), line(2, memory={})] # back to 2
    run('--steps 4 --checkpoint log')
    pathlib.Path('log.jsonl').write_text('\n'.join(lines) + '\n')
    run('--steps 5 --total-steps 4 --resume log --log log.jsonl --dashboard page --on slow_step=note')
    alerts = [text for *_, text in events_of('page') if 'slow_step' not in text]
    assert sorted(alerts) == ['plateau', 'plateau → roll_back'], alerts


def check_one_log_of_two_runs():
    """The second one at a time is refused."""
    first = subprocess.Popen([PROGRAM, *QUICK, *'--steps 1000000 --log log.jsonl'.split()], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, preexec_fn=restore_signals)
    while not first.stdout.readline().startswith(b'step'):
        pass
    refused('--steps 1 --log log.jsonl', says='--log log.jsonl: another run writes to this file')
    first.send_signal(signal.SIGINT)
    first.stdout.read()
    assert first.wait(300) == 130
    run('--steps 1 --log log.jsonl')
    run('--steps 1 --log /dev/null')


def check_skipped_updates():
    """Updates that --on leaves out count as those of a scaler do, and none counts twice."""
    wild = '--steps 9 --lr 1000 --clip 1e9 --warmup 0 --schedule constant --on loss_nonfinite=skip --eval-tokens 0'
    for how in '', '--dtype f16 --on grad_nonfinite=skip':
        pathlib.Path('skipped.jsonl').unlink(missing_ok=True)
        run(wild, how, '--log skipped.jsonl --prometheus metrics', status=3)
        steps = {line['step'] for line in lines_of('skipped.jsonl') if line.get('skipped') or
                 line.get('recovery') == 'skip'}
        total = re.search(r'^rewind_skipped_total (\d+)', pathlib.Path('metrics').read_text(), re.M)[1]
        assert int(total) == len(steps) > 2, (how, total, steps)


def check_samples_of_known_tokens():
    """No token is drawn that the data does not have: padding of the vocabulary."""
    tokens_file('few.bin', [i % 5 for i in range(4000)])
    said = run('--data few.bin --vocab 50304 --steps 1 --sample 60', quick=True)
    drawn = [int(x) for x in said.strip().split('\n')[-1].split()]
    assert len(drawn) == 60 and max(drawn) < 5, drawn


# ---- Hugging Face ----

def check_config_of_hugging_face():
    """A config.json is required, and each field that is not supported is refused by its name. A tied head is tied."""
    shape = ('--preset llama-tiny --layers 1 --width 32 --heads 2 --kv-heads 1 --hidden 48 --seq 24 --vocab 256 '
             '--batch 2 --sample 0')
    config = {'model_type': 'llama', 'hidden_size': 32, 'num_hidden_layers': 1, 'num_attention_heads': 2,
              'num_key_value_heads': 1, 'intermediate_size': 48, 'rms_norm_eps': 1e-5, 'vocab_size': 256,
              'max_position_embeddings': 64, 'hidden_act': 'silu', 'torch_dtype': 'float32', 'rope_scaling': None,
              'rope_parameters': {'rope_type': 'default', 'rope_theta': 10000.0}, 'use_cache': True}
    refused('--steps 1 --load-hf nowhere')
    run(shape, '--steps 0 --save own', quick=False)
    names = {'table': 'model.embed_tokens', 'norm': 'model.norm', 'head': 'lm_head', 'norm1': 'input_layernorm',
             'norm2': 'post_attention_layernorm', 'proj': 'self_attn.o_proj', 'gate': 'mlp.gate_proj',
             'up': 'mlp.up_proj', 'down': 'mlp.down_proj'}
    data = pathlib.Path('own').read_bytes()
    base = 8 + struct.unpack('<Q', data[:8])[0]
    tensors = {}
    for name, t in header_of('own').items():
        if name == '__metadata__':
            continue
        bytes_ = data[base + t['data_offsets'][0]:base + t['data_offsets'][1]]
        layer, part = (f'model.layers.{name.split(".")[1]}.', name.split('.')[2]) if '.' in name else ('', name)
        if part != 'qkv':
            tensors[f'{layer}{names[part]}.weight'] = t['shape'], bytes_
            continue
        row = 4 * 32
        for letter, (first, last) in zip('qkv', ((0, 32), (32, 48), (48, 64))):
            tensors[f'{layer}self_attn.{letter}_proj.weight'] = [last - first, 32], bytes_[first * row:last * row]
    write_tensors('untied.safetensors', tensors)
    load = shape + ' --steps 0 --seed 9 --load-hf'
    refused(load, 'untied.safetensors --save x', says='which says what the model is')
    changes = [('model_type', 'mistral'), ('rms_norm_eps', 1e-6), ('rope_theta', 500000), ('hidden_act', 'gelu'),
               ('rope_scaling', {'rope_type': 'llama3', 'factor': 8.0}), ('attention_bias', True), ('mlp_bias', True),
               ('rope_parameters', {'rope_type': 'default', 'rope_theta': 5e5}), ('head_dim', 32),
               ('hidden_size', 64), ('num_key_value_heads', 2), ('vocab_size', 300), ('sliding_window', 8),
               ('quantization_config', {'bits': 4}), ('max_position_embeddings', 16), ('tie_word_embeddings', 1)]
    for field, value in changes:
        pathlib.Path('config.json').write_text(json.dumps({**config, field: value}))
        refused(load, 'untied.safetensors', says=f'"{field}" is ')
    pathlib.Path('config.json').write_text('{')
    refused(load, 'untied.safetensors', says='not a JSON object')
    pathlib.Path('config.json').write_text(json.dumps(config))
    run(load, 'untied.safetensors --save again', quick=False)
    assert pathlib.Path('again').read_bytes() == data
    # Tied: the file has no head, the model one parameter less, and they stay tied in training.
    del tensors['lm_head.weight']
    write_tensors('tied.safetensors', tensors)
    assert '"lm_head.weight" is not in the file' in run(load, 'tied.safetensors', quick=False, status=1)
    pathlib.Path('config.json').write_text(json.dumps({**config, 'tie_word_embeddings': True}))
    run(shape, '--steps 5 --load-hf tied.safetensors --save trained', quick=False)
    assert set(header_of('trained')) == set(header_of('own')) - {'head'}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack('<Q', len(text)) + text + b''.join(d for _, d in tensors.values()))


def check_options():
    done = subprocess.run([PROGRAM, *QUICK, '--optimizer', 'adamw adam'], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and 'takes one of' in done.stderr, done
    refused('--optimizer adam_w', says='takes one of')
    refused('--preset llama', says='llama-tiny')
    refused('--on nan=stop', says='loss_nonfinite')
    refused('--policy selctive:mlp', says='--policy: ')
    refused('--log nowhere/log', says='--log nowhere/log: its folder does not exist')
    pathlib.Path('file').touch()
    refused('--tensorboard file', says='not a folder')
    refused('--stesp 3', says='--stesp: unknown option')
    refused('--checkpoint', says='--checkpoint: a value is missing')
    assert run('-h') == run('--help')
    refused('--min-lr 1', says='--min-lr: expected at most --lr')
    assert '--warmup 500 is longer than the run of 3 steps' in run('--warmup 500')


# ---- numbers ----

def check_validation():
    """A separate data set: it depends neither on --seed nor on --batch. Its loss is in every log, and on a page."""
    run('--steps 5 --save weights')
    frozen = '--steps 1 --lr 1e-12 --min-lr 0 --load weights --eval-tokens 4096'
    losses = {}
    for seed in range(1, 4):
        for batch in 4, 8, 7:
            said = run(frozen, f'--seed {seed} --batch {batch}')
            losses[seed, batch] = float(re.search(r'validation loss (\S+)', said)[1])
    assert max(losses.values()) - min(losses.values()) <= 1.001e-4, losses
    every = '--eval-every 2 --log v.jsonl --dashboard v.html --tensorboard v.tb --prometheus v.prom --checkpoint v'
    run('--steps 4', every)
    logged = [line for line in lines_of('v.jsonl') if 'validation_loss' in line]
    assert [line['step'] for line in logged] == [1, 3], logged
    assert all(5 < line['validation_loss'] < 6 for line in logged), logged
    events = b''.join(p.read_bytes() for p in pathlib.Path('v.tb').iterdir())
    assert events.count(b'validation_loss') == 2
    text = pathlib.Path('v.prom').read_text()
    assert re.findall(r'^rewind_validation_loss (\S+)', text, re.M) == [str(logged[-1]['validation_loss'])], text[-300:]
    run('--steps 8 --total-steps 4', every, '--resume v')
    page = pathlib.Path('v.html').read_text()
    assert page.count("<circle class='validation'") == 4, page.count("<circle class='validation'")


def chart_of(page, name):
    return re.search(rf"<svg [^>]*aria-label='{name}'>(.*?)</svg>", page, re.S)[1]


def labels_of(chart):
    """(height, text) of each line of the grid."""
    return [(float(y), text) for y, text in
            re.findall(r"<path class='grid' d='M\d+ ([0-9.]+)H\d+'/><text [^>]*class='up'>([^<]*)<", chart)]


def values_of(chart, kind):
    """The drawn values, as numbers read from the axis: a list of points for each stretch without a gap."""
    (y0, low), *_, (y1, high) = labels_of(chart)
    low, high = float(low), float(high)
    path = re.search(rf"<path class='{kind}' d='([^']*)'", chart)[1]
    along = re.findall(r"<text x='([0-9.]+)' y='\d+' class='along'>([^<]*)<", chart)
    x_labels = [(float(x), float(text)) for x, text in along]
    (x0, first), (x1, last) = x_labels[0], x_labels[-1]
    stretches = []
    for stretch in path.split('M')[1:]:
        points = [tuple(map(float, p.split())) for p in stretch.replace('h0', '').replace('Z', '').split('L')]
        stretches.append([(first + (x - x0) / (x1 - x0) * (last - first), low + (y - y0) / (y1 - y0) * (high - low))
                          for x, y in points])
    return stretches


def check_page_against_log():
    """For 1,200 steps, buckets: the line is their mean, the band contains all of them, a value that is not finite is a
    gap."""
    every = '--log long.jsonl --checkpoint long --eval-tokens 0 --save-every 5000'
    run('--steps 1200 --dashboard page.html', every)
    losses = [line['loss'] for line in steps_of('long.jsonl')]
    pathlib.Path('good.jsonl').write_text(''.join(open('long.jsonl').readlines()[:300]))
    run('--steps 1201 --total-steps 1200 --resume long --dashboard both.html --good good.jsonl', every)
    for page in 'page.html', 'both.html':
        text = pathlib.Path(page).read_text()
        chart = chart_of(text, 'loss')
        line, = values_of(chart, 'run')
        near = 0.004 * (max(losses) - min(losses))
        for i, (step, value) in enumerate(line[:390]):
            part = losses[3 * i:3 * i + 3]
            assert abs(step - 3 * i - 1) < 2 and abs(value - sum(part) / 3) < near, (page, i, step, value, part)
        band, = values_of(chart, 'band of-run')
        heights = [y for _, y in band]
        for i in range(0, 390):
            part = losses[3 * i:3 * i + 3]
            assert heights[i] > max(part) - near and heights[-1 - i] < min(part) + near, (i, part)
        assert 'mean of each 3 steps' in text
    good, = values_of(chart, 'good')
    assert len(good) == 300 and all(abs(y - loss) < near for (_, y), loss in zip(good, losses)), 'the same numbers'
    lines = open('long.jsonl').readlines()
    broken = range(30, 1200, 24)
    for i in broken:
        lines[i] = re.sub(r'"loss":[^,]*', '"loss":null', lines[i])
    open('long.jsonl', 'w').writelines(lines)
    run('--steps 1202 --total-steps 1200 --resume long --dashboard gaps.html', every)
    text = pathlib.Path('gaps.html').read_text()
    chart = chart_of(text, 'loss')
    assert len(values_of(chart, 'run')) == len(broken) + 1 and chart.count("class='mark'") == len(broken), 'gaps'
    assert '× not finite' in text
    steps = [x for stretch in values_of(chart, 'run') for x, _ in stretch]
    assert steps == sorted(steps), 'the line goes on'


def check_page_for_people():
    """Colours, widths, heading, axes, the numbers under the pointer, and the moving average."""
    said = run("--steps 60 --eval-every 20 --log people.jsonl --dashboard people.html --on loss_spike=note")
    page = pathlib.Path('people.html').read_text()
    page_style.check(page, 'the dashboard')
    assert 'on cpu, 1 thread</p>' in page and '<title>tiny on cpu, 1 thread</title>' in page, page[:3000]
    assert '2 layers of width 64' in page and 'dashboard people.html --on loss_spike=note</code>' in page, page[:3000]
    steps = steps_of('people.jsonl')
    names = {'loss': 'loss', 'norm of the gradients': 'grad_norm', 'learning rate': 'lr', 'norm of the weights':
             'param_norm', 'update over the weights': 'update_ratio'}
    for name, key in names.items():
        given = re.search(rf"<svg [^>]*data-run='([^']*)'[^>]*aria-label='{name}'>", page)[1].split()
        values = [(int(step), float(x)) for step, x in (pair.split(':') for pair in given)]
        assert [step for step, _ in values] == list(range(60)), (name, values)
        for (step, x), line in zip(values, steps):
            assert abs(x - line[key]) <= 1e-5 * abs(line[key]), (name, step, x, line)
        assert ">step</text>" in chart_of(page, name), name
    assert "<tspan class='unit'>, nats per byte</tspan>" in chart_of(page, 'loss')
    line, = values_of(chart_of(page, 'loss'), 'average of-run')
    losses = [s['loss'] for s in steps]
    for i, (_, x) in enumerate(line):
        around = losses[max(0, i - 3):i + 4]
        assert abs(x - sum(around) / len(around)) < 0.004 * (max(losses) - min(losses)), (i, x, around)
    assert 'moving average over about 7 steps' in page and 'average' not in chart_of(page, 'learning rate'), said
    script = re.search('<script>(.*)</script>', page, re.S)[1]
    assert 'pointermove' in script and 'data-steps' in script
    tokens_file('tokens.bin', [i * i % 300 for i in range(4000)])
    run('--data tokens.bin --vocab 300 --steps 1 --dashboard people.html')
    assert ', nats per token<' in pathlib.Path('people.html').read_text()


def events_of(path):
    """(first step, last step, number, text) of each row of the table of alerts."""
    table = re.search("<table class='events'>(.*?)</table>", pathlib.Path(path).read_text(), re.S)
    rows = re.findall(r"<tr><td>steps? (\d+)(?: to (\d+))?</td><td[^>]*>(?:(\d+) ×)?</td><td>(.*?)</td></tr>",
                      table[1] if table else '')
    return [(int(first), int(last or first), int(n or 1), text) for first, last, n, text in rows]


def check_alerts_on_the_page():
    """Equal alerts between two actions are one row, with their number and the newest numbers."""
    run('--steps 80 --checkpoint alerts')
    def line(step, *alerts, ms=412.3):
        values = {'slow_step': (ms, 118), 'grad_spike': (11.1, 1.1)}
        numbers = [{'alert': a, 'value': values[a][0], 'usual': values[a][1]} for a in alerts]
        return json.dumps({'step': step, 'loss': 4, 'memory': {}, 'alerts': alerts, 'alert_numbers': numbers})
    lines = [line(step, *(['grad_spike'] if step % 2 else []), 'slow_step', ms=400 + step) for step in range(10, 70)]
    lines += [json.dumps({'step': 70, 'recovery': 'lower', 'alerts': ['slow_step'], 'note': 'rate halved to 1'})]
    lines += [line(71, 'slow_step'), line(72, 'slow_step', ms=999)]
    with open('alerts.jsonl', 'w') as log:
        log.write(''.join(text.replace('": ', '":').replace(', "', ',"') + '\n' for text in lines))
    run('--steps 81 --total-steps 80 --resume alerts --log alerts.jsonl --dashboard alerts.html')
    wanted = [(71, 72, 2, 'slow_step: 999 ms, median 118'), (70, 70, 1, 'slow_step → lower: rate halved to 1'),
              (11, 69, 30, 'grad_spike: norm 11.1, median 1.1'), (10, 69, 60, 'slow_step: 469 ms, median 118')]
    assert sorted(events_of('alerts.html')) == sorted(wanted), events_of('alerts.html')
    # Those of a run in this process: their names in the log, and the numbers that were printed.
    said = run('--steps 140 --log spikes.jsonl --dashboard spikes.html')
    told = [x['step'] for x in steps_of('spikes.jsonl') if 'grad_spike' in x['alerts']]
    row, = [e for e in events_of('spikes.html') if e[3].startswith('grad_spike')]
    assert len(told) > 1 and row[:3] == (told[0], told[-1], len(told)), (told, row)
    newest = re.findall('^step +\\d+  (grad_spike .*): loss', said, re.M)[-1]
    assert row[3] == newest[:399] and ', median ' in newest, (row, newest)
    slow = re.findall(r'slow_step: loss .*; (\S+) ms, median (\S+)$', said, re.M)
    numbers = [n for x in steps_of('spikes.jsonl') for n in x.get('alert_numbers', []) if n['alert'] == 'slow_step']
    assert len(slow) == len(numbers) == sum('slow_step' in x['alerts'] for x in steps_of('spikes.jsonl')), said
    for (ms, median), n in zip(slow, numbers):
        assert abs(float(ms) / n['value'] - 1) < 1e-3 and abs(float(median) / n['usual'] - 1) < 1e-3, (ms, median, n)


def check_line_holds_one_step():
    """Norms, update and weights of a line are of the same step, also of the last one; a skipped update has none."""
    for how in '', '--graph', '--accum 2', '--dtype f16':
        pathlib.Path('one.jsonl').unlink(missing_ok=True)
        run('--steps 6 --clip 0.5 --log one.jsonl --save weights', how)
        steps = steps_of('one.jsonl')
        for s in steps:
            assert ('param_norm' in s) != s.get('skipped', False), (how, s)
            for name, group in s['groups'].items():
                if group['elements']: # a GPT has no head of its own
                    ratio, factor = group['grad_norm'] / group['unclipped_norm'], min(1, 0.5 / s['grad_norm'])
                    assert abs(ratio / factor - 1) < 1e-3, (how, s['step'], name, ratio, factor)
        if how != '--dtype f16': # its master copies are not in the file
            norm = norm_of('weights')
            assert abs(steps[-1]['param_norm'] / norm - 1) < 1e-6, (how, steps[-1], norm)
    for alert in 'slow_step', 'updates', 'zeros':
        refused(f'--steps 1 --on {alert}=skip', says='the update comes before this alert')
    pathlib.Path('one.jsonl').unlink()
    run('--steps 120 --on grad_spike=skip --log one.jsonl')
    skipped = {x['step'] for x in lines_of('one.jsonl') if x.get('recovery') == 'skip'}
    assert skipped and all(('param_norm' in s) == (s['step'] not in skipped) for s in steps_of('one.jsonl')), skipped


def norm_of(path):
    data = pathlib.Path(path).read_bytes()
    base = 8 + struct.unpack('<Q', data[:8])[0]
    total = 0
    for name, t in header_of(path).items():
        if name != '__metadata__':
            begin, end = (base + x for x in t['data_offsets'])
            total += sum(x * x for x, in struct.iter_unpack('<f', data[begin:end]))
    return total**0.5


def check_memory_on_the_page():
    """The memory of a step, not of the evaluation after it."""
    run('--steps 4 --eval-every 2 --policy none --dashboard page.html --log memory.jsonl')
    peak, kept = (float(re.search(rf'<td>{name}</td><td[^>]*>([0-9.]+) MiB', pathlib.Path('page.html').read_text())[1])
                  for name in ('peak', 'kept'))
    memory = steps_of('memory.jsonl')[-1]['memory']
    assert abs(peak - memory['peak'] / 2**20) < 0.06, (peak, memory)
    assert abs(kept - memory['kept'] / 2**20) < 0.06 and kept > 0.1, (kept, memory)


def check_labels():
    """For weights that hardly change, and for numbers of any magnitude."""
    run('--steps 12 --width 512 --hidden 2048 --lr 1e-6 --batch 1 --dashboard labels.html')
    lines = [json.dumps({'step': i, 'loss': 1e7 + i, 'grad_norm': 1e-7 * (1 + i * 1e-3), 'lr': 3e30 * (i + 1),
                         'tokens_per_s': 123456 + i, 'param_norm': 65.95 + 1e-5 * i, 'memory': {}, 'alerts': []})
             for i in range(40)]
    pathlib.Path('odd.jsonl').write_text('\n'.join(lines) + '\n')
    run('--steps 1 --good odd.jsonl --dashboard odd.html')
    for page in 'labels.html', 'odd.html':
        for chart in re.findall(r"<svg [^>]*aria-label=.*?</svg>", pathlib.Path(page).read_text(), re.S):
            labels = [text for _, text in labels_of(chart)]
            assert len(set(labels)) == len(labels) >= 2 and all(len(text) <= 11 for text in labels), (page, labels)


def check_model_flops():
    """The three ways to run a step have the same count, which is the formula of monitor.h; hardware FLOPs include
    recompute."""
    width, seq, layers, vocab, batch = 64, 128, 2, 256, 8
    for preset, hidden, kv in ('tiny', 128, 4), ('llama-tiny', 96, 2):
        head = width // 4
        products = layers * ((4 + 2 * kv) * head * width + width * width + (3 if kv == 2 else 2) * width * hidden)
        wanted = batch * seq * (6 * (products + vocab * width) + 6 * layers * width * seq)
        work = {}
        for how in '', '--graph', '--graph --update-inside':
            pathlib.Path('flops.jsonl').unlink(missing_ok=True)
            run(f'--preset {preset} --layers {layers} --width {width} --hidden {hidden} --seq {seq} --steps 4'
                ' --policy full --heads 4 --log flops.jsonl --peak-flops 1e11', f'--kv-heads {kv}', how,
                '--sample 0 --threads 1', quick=False)
            step = steps_of('flops.jsonl')[-1]
            work[how] = [step[kind] * step['step_ms'] / 1e3 for kind in ('model_flops_per_s', 'hardware_flops_per_s')]
            assert abs(step['mfu'] / (step['model_flops_per_s'] / 1e11) - 1) < 1e-6
            assert abs(work[how][0] / wanted - 1) < 1e-6, (preset, how, work[how][0] / wanted)
        assert 1.2 < work[''][1] / work[''][0] < work['--graph --update-inside'][1] / work[''][0], work


def check_group_of_a_spike():
    """A spike of one group is reported with its name and its norm: the norm of all may be ordinary."""
    said = run('--steps 200 --log spikes.jsonl')
    told = set()
    for line in steps_of('spikes.jsonl'):
        for name, group in line.get('groups', {}).items():
            if 'grad_spike' in group.get('alerts', []):
                told.add((line['step'], name))
    named = {(int(step), name) for step, names in re.findall(r'^step +(\d+)  grad_spike of (.*): loss', said, re.M)
             for name in re.findall(r'(?:^|and )(\w+), norm', names)}
    assert named == told, (named, told)


def check_rate_that_is_lowered():
    """The line, the console and the update of a step have the same rate; the next step has the lower one."""
    run('--steps 6 --lr 0.5 --warmup 0 --schedule constant --on loss_spike=lower --on updates=lower'
        ' --on grad_spike=lower --log low.jsonl')
    for how in '', '--graph':
        pathlib.Path('rate.jsonl').unlink(missing_ok=True)
        said = run('--steps 30 --lr 1000 --clip 1e9 --warmup 0 --schedule constant --on loss_nonfinite=lower'
                   ' --on grad_nonfinite=lower --log rate.jsonl', how, status=3)
        rates = [line['lr'] for line in steps_of('rate.jsonl')]
        lowered = [line['step'] for line in lines_of('rate.jsonl') if line.get('recovery') == 'lower']
        assert lowered, said
        for step in lowered[:5]:
            assert rates[step + 1] == rates[step] / 2, (step, rates)
        for step, rate in re.findall(r'^step +(\d+)  loss .* lr (\S+)', said, re.M):
            assert abs(float(rate) / rates[int(step)] - 1) < 0.01, (step, rate, rates)


def check_step_times():
    """The times of saving and drawing are not part of a step's. On a clock that goes on by 1,000 s whenever the
    training thread starts the thread that saves, or renames a page, a step that includes one of them is that long."""
    subprocess.run(['cc', '-shared', '-fPIC', '-O1', '-o', 'clock.so', TOOLS / 'jumping_clock.c'], check=True)
    for what in '--save-every 6 --checkpoint times --keep 1', '--dashboard times.html':
        pathlib.Path('times.jsonl').unlink(missing_ok=True)
        run('--steps 30 --log times.jsonl', what, env={'LD_PRELOAD': str(pathlib.Path('clock.so').resolve()),
                                                       'JUMPS': 'jumps'})
        ms = [line['step_ms'] for line in steps_of('times.jsonl')[1:]]
        assert len(ms) == 29 and 0 < min(ms) and max(ms) < 500_000, (what, ms)
        assert int(pathlib.Path('jumps').read_text()) >= 5, what


def check_time_that_is_left():
    """It includes the time of saving: here 1,000 s for each of two saves in eleven steps, see check_step_times()."""
    subprocess.run(['cc', '-shared', '-fPIC', '-O1', '-o', 'clock.so', TOOLS / 'jumping_clock.c'], check=True)
    said = run('--steps 31 --checkpoint left --save-every 5 --eval-tokens 0',
               env={'LD_PRELOAD': str(pathlib.Path('clock.so').resolve()), 'JUMPS': 'jumps'})
    minutes, = re.findall(r'^step +10 .* (\d+):\d\d left$', said, re.M)
    assert int(minutes) >= 20 * 2000 / 11 / 60 - 1, said


def check_step_times_after_a_roll_back():
    """The time of loading a checkpoint is not part of the next step's: see check_step_times()."""
    subprocess.run(['cc', '-shared', '-fPIC', '-O1', '-o', 'clock.so', TOOLS / 'jumping_clock.c'], check=True)
    said = run('--steps 25 --lr 1000 --clip 1e9 --warmup 0 --checkpoint back --save-every 50 --log back.jsonl'
               ' --eval-tokens 0 --on loss_nonfinite=roll_back --on grad_nonfinite=roll_back', status=(0, 3),
               env={'LD_PRELOAD': str(pathlib.Path('clock.so').resolve()), 'JUMPS': 'jumps'})
    assert said.count('roll_back: back to step 0') >= 3 and int(pathlib.Path('jumps').read_text()) >= 5, said
    ms = [line['step_ms'] for line in steps_of('back.jsonl') if 'step_ms' in line]
    assert len(ms) > 10 and max(ms) < 500_000, ms
    rates = [int(x) for x in re.findall(r' (\d+) tokens/s', said)]
    assert rates and min(rates) > 20, (rates, said)


def check_comparison_with_a_good_run():
    """By the last step for which both losses are finite."""
    run('--steps 6 --log good.jsonl')
    lines = open('good.jsonl').readlines()
    steps = [i for i, line in enumerate(lines) if '"memory"' in line]
    lines[steps[5]] = re.sub(r'"loss":[^,]*', '"loss":null', lines[steps[5]])
    open('odd.jsonl', 'w').writelines(lines)
    for good, step in ('good.jsonl', 5), ('odd.jsonl', 4):
        run(f'--steps 6 --dashboard page.html --good {good}')
        said = re.search('<p>Loss at step .*?</p>', pathlib.Path('page.html').read_text())[0]
        assert f'Loss at step {step}: ' in said, said
        assert abs(float(re.search(r', (\S+) %\.</p>', said)[1])) < 1e-5, said


def resident_of(*options):
    """The largest resident memory of a run, in bytes: the system's count."""
    process = subprocess.Popen([PROGRAM, *' '.join(options).split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, (options, said)
    return used.ru_maxrss * 1024


def check_memory_of_an_evaluation():
    """An evaluation takes less than a training step in which all is recomputed, whatever `none` would keep."""
    size = '--threads 1 --sample 0 --steps 3 --layers 8 --width 128 --heads 4 --hidden 512 --seq 256 --batch 8'
    none = resident_of(size, '--policy none --eval-tokens 0')
    full = resident_of(size, '--policy full --eval-tokens 0')
    evaluated = resident_of(size, '--policy full --eval-every 1 --eval-tokens 4096')
    assert none - full > 64 << 20, (none, full)
    assert evaluated < full + 0.1 * (none - full), (none, full, evaluated)


def check_policy_of_the_environment():
    """REWIND_POLICY overrides --policy: the first line and the page name the policy that is used."""
    said = run('--steps 1 --policy full --dashboard page', env={'REWIND_POLICY': 'uniform:2'})
    assert said.splitlines()[0].endswith(', uniform:2'), said
    assert 'f32; adamw, uniform:2; on cpu' in pathlib.Path('page').read_text()


def check_defaults_and_notes():
    """A GPT has as many KV heads as heads; a resumed run has one source of weights; a run at its end says so."""
    pathlib.Path('text').write_bytes(b'some text ' * 2000)
    run('--steps 4 --width 64 --heads 8 --data text --checkpoint notes --save weights')
    assert header_of('weights')['layer.0.qkv']['shape'] == [3 * 64, 64]
    page = '--width 64 --heads 8 --data text --resume notes --dashboard page'
    said = run('--steps 3', page)
    assert re.search(r'^already at step 4 of 3$', said, re.M) and '; ended 20' in pathlib.Path('page').read_text(), said
    for option in '--load weights', '--load-hf weights':
        refused('--steps 5', page, option, says='expected no other weights than those of --resume')
    run('--steps 5 --total-steps 4', page, '--load weights --resume-if-there')
    said = run('--steps 1 --data text --val text')
    assert said.count('--val is the same file as --data') == 1, said


def check_page_that_cannot_be_written():
    """Its line is printed at most every two seconds, not after each step."""
    os.mkdir('folder')
    process = subprocess.Popen([PROGRAM, *QUICK, *'--steps 300 --eval-tokens 0 --dashboard folder/page'.split()],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    begin = time.monotonic()
    while not pathlib.Path('folder/page').exists() and process.poll() is None:
        time.sleep(0.001)
    os.rename('folder', 'gone')
    _, said = process.communicate()
    lines = said.count('folder/page: No such file')
    assert process.returncode == 0 and 1 <= lines <= 3 + (time.monotonic() - begin) / 2, (lines, said[-500:])


def check_misspelt_policy():
    """A region that the model does not have is an error, and nothing is trained."""
    for how in '', '--graph', '--resume-if-there --resume none --checkpoint none':
        said = run('--steps 2 --policy selective:blcok --save wrong', how, status=1)
        assert 'column 11: expected the name of a region, got "blcok"' in said and 'there are block' in said, said
        assert 'step ' not in said and not pathlib.Path('wrong').exists(), said


def main():
    names = sys.argv[2:]
    for name, check in list(globals().items()):
        if not name.startswith('check_') or (names and not any(n in name for n in names)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                check()
            except (AssertionError, subprocess.TimeoutExpired, OSError, KeyError, IndexError) as e:
                print(f'{name}: {type(e).__name__}: {str(e)[-1500:]}')
                main.failed = True
            finally:
                os.chdir('/')
    if not main.failed:
        print('train_gpt: nothing lost, no misleading number')
    sys.exit(main.failed)


main.failed = False
main()
