#!/usr/bin/env python3
"""Checks the behavior of benchmarks and examples when a step fails, when an option is invalid, and when their output
cannot be written.

    tests/tools/bench_failures.py BUILD"""
import functools
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1]).resolve()

# Arguments without which a program does nothing.
WORDS = {'model_step': ('gpt', 'tiny', 'f32', '1', '16'), 'ops': ('exp', 'f32', '1'),
         'checkpoint_save': ('/tmp', '1', '1'), 'optimizer_offload_step': ('/tmp', '1', '1'),
         'disk_offload_step': ('/tmp', '2', '64', '1', '16'), 'train_step': ('none',)}


def run(program, *options, stdout=subprocess.PIPE, limit=None, variables={}):
    limited = limit and functools.partial(resource.setrlimit, resource.RLIMIT_AS, (limit, limit))
    return subprocess.run([BUILD / program, *options], stdout=stdout, stderr=subprocess.PIPE, text=True,
                          preexec_fn=limited, env={**os.environ, **variables})


def limit_files(most):
    """For a process: a file larger than so many bytes cannot be written, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def check_failed_steps():
    """A failed step has no time, and fulfills no documented figure."""
    for program, *options in (('moe_layer', '1', '32768', '512', '256', '64', '8'),
                              ('linear_loss', '1', '16384', '768', '50257'), ('block_step', '1', '1')):
        done = run(f'bench/{program}', *options, limit=400_000_000)
        assert done.returncode == 1 and 'met' not in done.stdout and done.stderr, (program, done)


def check_no_context():
    """A program that cannot create a context, or a tape, says why, and prints no figure."""
    for program in ('arena_fragmentation', 'block_step', 'budgets', 'checkpoint_save', 'convolutions',
                    'cpu_contended_step', 'disk_offload_step', 'dynamic_shapes_memory', 'fp8_snr',
                    'fused_update_memory', 'half_precision', 'host_cost', 'linear_loss', 'model_step', 'moe_layer',
                    'monitor_overhead', 'ops', 'optimizer_offload_step', 'peer_planners', 'planner_quality',
                    'prediction_error', 'quantized', 'recompute_batchnorm_step', 'subnormal', 'train_step'):
        for variables in {'REWIND_POLICY': 'rubbish'}, {'REWIND_DUMP': '/dev/null/rubbish'}:
            done = run(f'bench/{program}', *WORDS.get(program, ()), variables=variables)
            told = 'rubbish' in done.stderr
            assert done.returncode in (1, 2) and told and 'met' not in done.stdout, (program, variables, done)


def check_options():
    for program, *options in (('train_step', '--model', 'deepseek', 'none'), ('train_step', '--dropout', '0,1', 'none'),
                              ('train_step', '--dropout', 'foo', 'none'), ('train_step', '--preset', 'tiny'),
                              ('train_step', '--batch', '65536', '--seq', '65536', 'none'), ('ops', 'exp', 'bf61'),
                              ('ops', 'exp', 'f32', '0'), ('moe_layer', 'one'), ('moe_layer', '1', '4096', '-1'),
                              ('linear_loss', '0'), ('block_step', '1', '1', '2'), ('prediction_error', '5x'),
                              ('prediction_error', '1', '1', 'tiny', '32', '-', 'gpt2'),
                              ('quantized', '1', '64', '64', '65'), ('peer_planners', 'mamba2'),
                              ('planner_quality', 'gpt', '12'), ('planner_quality', 'foo', '1', '64'),
                              ('planner_quality', '--run'), ('dynamic_shapes_memory', '100x')):
        done = run(f'bench/{program}', *options)
        assert done.returncode == 2 and not done.stdout and done.stderr, (program, options, done)


def check_figures_of_nothing():
    """A figure needs a measurement: of a step after the first quarter, and of a disk that takes what is written."""
    done = run('bench/dynamic_shapes_memory', '100', '10')
    assert done.returncode == 0 and '(0.0 MB)' not in done.stdout and ' 0 times' not in done.stdout, done
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([BUILD / 'bench/disk_offload_step', folder, '2', '64', '1', '16'], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, preexec_fn=functools.partial(limit_files, 32 << 20))
        assert done.returncode == 1 and ' times, at most ' not in done.stdout and done.stderr, done


def check_folder_of_the_caller():
    """A benchmark of saves writes to a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        names = 'plain', '000001-step2.safetensors', '000002-step4.safetensors', '000003-step6.safetensors.1.2.part'
        for name in names:
            (pathlib.Path(folder) / name).write_text('mine')
        for limit, status in (None, 0), (500000, 1):
            done = subprocess.run([BUILD / 'bench/checkpoint_save', folder, '1', '1'], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True,
                                  preexec_fn=limit and functools.partial(limit_files, limit))
            assert done.returncode == status and ('speed of a save' in done.stdout) == (not status), done
            assert sorted(os.listdir(folder)) == sorted(names), os.listdir(folder)
            assert all((pathlib.Path(folder) / name).read_text() == 'mine' for name in names)


def check_full_stdout():
    """Their result is their output, so a failed write is a failure."""
    with open('/dev/full', 'w') as full:
        for program, *options in (('bench/ops', 'exp', 'f32', '1'),
                                  ('bench/moe_layer', '1', '64', '32', '32', '4', '2'),
                                  ('examples/predict_step', '--quick'), ('examples/step_cost_and_memory', '--quick'),
                                  ('examples/recompute_policies', '--quick'), ('examples/verify', )):
            done = run(program, *options, stdout=full)
            assert done.returncode == 1, (program, done)


check_failed_steps()
check_no_context()
check_options()
check_figures_of_nothing()
check_folder_of_the_caller()
check_full_stdout()
print('benchmarks and examples: a failed step, a wrong option and a full output are errors')
