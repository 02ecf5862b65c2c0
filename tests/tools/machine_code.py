#!/usr/bin/env python3
"""Checks the machine code of the CUDA kernels, read with cuobjdump, against a list of rules.

    tests/tools/machine_code.py DIR [--table]      DIR has the objects (*.cu.o) of a build

For every kernel and every architecture in the objects:
  - no atomics on floats, and no atomics at all except in the kernels listed in ATOMICS: sums have a fixed order;
  - no stack and no local memory: a spilled register is read back through the memory that the kernel is waiting for;
  - compiled without contraction; no fused multiply-add in the kernels listed in UNFUSED;
  - kernels that move memory load and store 16 bytes at a time and have enough bytes in flight.
Which do, and why others need not, is said in the file of the kernel, in comments of one of these forms, where KERNEL is
a regular expression, {ANY} the floating-point types, and {FLOATS} those without double:

    /* machine_code.py: stream KERNEL */                     also "stream KERNEL: store=0, share=1": see Stream
    /* machine_code.py: KERNEL: the reason that its accesses are not checked */

STREAMS and OTHERS here are for kernels that several files share. A kernel that no entry describes is a failure too. So
is an entry of a list here whose file was renamed: it would check nothing.

Bytes in flight are counted in the machine code: the maximum that one thread has loaded before it uses any of it, times
the threads that registers and shared memory allow on a multiprocessor. The count follows the code from top to bottom,
so it is a model; it detects loads that wait for one another, which is its purpose.
"""
import argparse
import collections
import concurrent.futures
import fractions
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]

# Kernels whose integers are added in any order: the sums are the same.
ATOMICS = {'delayed_update_cuda:note_kernel', 'digest:digest_kernel', 'embedding_cuda:count_kernel',
           *(f'quantize_cuda:{kernel}_kernel' for kernel in ('block', 'codes', 'note', 'part', 'scale'))}

# Kernels that may use the stack: the allowed share of such accesses among the instructions of the innermost loop around
# one, and the reason.
STACK = [
    (r'rope_cuda:table_kernel<.*>', 1, 'sincos() of libdevice, for large angles; one small launch per call'),
    (r'pointwise_cuda:map_\w+<(sin|cos)_of<.*', 0.1, 'sin() and cos() of libdevice, for angles beyond 100,000'),
    (r'attention_portable_cuda:\w+<.*, true(, (true|false))?>', 1,
     'options: tanh and a slope for each score, beside the sums; and whether the second pass for what is not finite'),
    (r'attention_portable_cuda:mask_kernel<.*>', 0.1, 'all registers are taken: one word is put aside'),
    (r'attention_merge_cuda:backward_kernel<.*>', 0.1, 'a row of any layout is found by divisions, which are calls'),
    (r'moe_routing_cuda:topk_kernel<.*>', 0.1, 'a few words, beside a division that is a call'),
    (r'update_cuda:update_kernel<(3, float|0, __nv_bfloat16)>', 0.01, 'one word, once for a chunk'),
    (r'layer_rms_norm_cuda:backward_kernel<float, 8, .*>', 0.011, 'all registers are taken: two words, once for a row'),
    (r'quantize_cuda:block_kernel<.*>', 0.01, 'one word, once for a block'),
    (r'(attention_(mma|portable)|conv|moe_linear)_cuda:\w+<.*>', 0.01,
     'all registers are taken: a word is put aside for a whole tile'),
    (r'ssd_scan_cuda:(product|pairs|steps|sums)_kernel<.*>', 0.1, 'a few words, beside a division that is a call'),
    (r'pool_cuda:backward_kernel<.*>', 0.01, 'a few words, beside divisions that are calls'),
]

# Bit-identical to the CPU, and without a division or a root, whose own code contains fused multiply-adds.
UNFUSED = ('random_cuda:dropout_kernel',)

# An H200 moves 4.8 TB/s with about 700 ns of latency: 4.8e12 * 700e-9 / 132 multiprocessors is 25.5 KB that each must
# have in flight. If a kernel writes as well, loads are only a share of the traffic.
LATENCY_BYTES = 4.8e12 * 700e-9 / 132

ELEMENT = {'double': 8, 'float': 4, '__half': 2, '__nv_bfloat16': 2, 'int': 4, 'char': 1}


class Stream:
    """A memory-bound kernel: bits of its widest load and store (0: any), and the loads' share of the traffic."""

    def __init__(self, pattern, load=128, store=128, share=0.5, stores=1):
        self.pattern, self.load, self.store, self.share = re.compile(pattern), load, store, share
        self.stores = stores  # number of the widest ones: one for each result

    def of(self, kernel):
        """(load, store, share): those of a cast follow from its types."""
        if self.share is not None:
            return self.load, self.store, self.share
        sizes = [ELEMENT[t] for t in re.findall(r'\w+', kernel.name.split('cast_of<')[1]) if t in ELEMENT]
        widest = max(sizes)
        return 128 * sizes[0] // widest, 128 * sizes[1] // widest, sizes[0] / sum(sizes)


FLOATS = '(float|__half|__nv_bfloat16)'
ANY = '(float|__half|__nv_bfloat16|double)'
# Of several files. An element-wise op is as wide as its wider side; the width of the other side follows.
STREAMS = [
    Stream(r'\w+:map_packs<.*>'),
]

# Of several files, and the reason that their accesses are not checked.
OTHERS = [
    (r'moe_(act|gather_combine)_cuda:\w+_kernel<.*>', 'rows of any width'),
    (r'\w+:map_elements<.*>', 'rows that do not divide into packs'),
    (r'(layer_rms_norm|softmax)_cuda:\w+_any_kernel<.*>', 'float64, and rows that do not divide into packs'),
    (r'\w+:(columns|runs)_kernel<\w+, \w+, 1, (\d+|stored|gelu_slopes|dropped)>',
     'float64, and rows that do not divide into packs'),
    (r'\w+:merge_parts_kernel<.*>', 'the second stage of a sum: small'),
]

ENTRY = re.compile(r'^/\* machine_code\.py: (stream )?(.*?)(?:: (.*?))? \*/$', re.M | re.S)


def options(text):
    """{'share': 2 / 3, 'store': 0} of "share=2/3, store=0"."""
    pairs = (option.split('=') for option in text.split(', ')) if text else ()
    return {key: None if value == 'None' else float(fractions.Fraction(value)) if key == 'share' else int(value)
            for key, value in pairs}


@functools.cache
def entries():
    """The streams and the others that the files of kernels describe, before those of several files."""
    streams, others = [], []
    for path in sorted(ROOT.glob('ops/**/*.cu')) + sorted(ROOT.glob('runtime/**/*.cu')):
        for stream, kernel, rest in ENTRY.findall(path.read_text(encoding='utf-8')):
            pattern = f'{path.stem}:' + kernel.replace('{ANY}', ANY).replace('{FLOATS}', FLOATS)
            if stream:
                streams.append(Stream(pattern, **options(' '.join(rest.split()))))
            else:
                others.append((pattern, ' '.join(rest.split())))
    return streams + STREAMS, others + OTHERS


def demangle(names):
    names = sorted(names)
    text = subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, (short_name(line) for line in text.splitlines())))


def short_name(full):
    """kernel<arguments> of a demangled signature."""
    full = full.replace('(anonymous namespace)::', '').removeprefix('void ')
    depth = 0
    for i, c in enumerate(full):
        depth += (c == '<') - (c == '>')
        if c == '(' and not depth:
            return full[:i]
    return full


class Kernel:
    def __init__(self, file, arch, name):
        self.file, self.arch, self.name = file, arch, name
        self.registers = self.stack = self.shared = self.local = 0
        self.threads = 1024
        self.widest = {'load': 0, 'store': 0}
        self.stores = collections.Counter()  # by bits
        self.opcodes = collections.Counter()
        self.loops, self.spills = [], []  # addresses: (begin, end) of loops, and of accesses to local memory
        self.flight = 0

    @property
    def id(self):
        return self.file + ':' + self.name

    @property
    def base(self):
        return self.id.split('<')[0]

    def blocks(self):
        """Blocks per multiprocessor, limited by its 64 Ki registers, its threads and its shared memory."""
        warps = (self.threads + 31) // 32
        per_warp = (self.registers * 32 + 255) // 256 * 256
        shared = {80: 164, 90: 228}.get(self.arch, 100) * 1024
        each = self.shared + (1024 if self.arch < 90 else 0)
        return min(65536 // per_warp // warps, 64 // warps, 32, shared // each if each else 32)

    def spill_share(self):
        """The largest share of accesses to local memory in the innermost loop around one of them."""
        share = 0
        for spill in self.spills:
            around = [(end - begin, begin, end) for begin, end in self.loops if begin <= spill <= end]
            if around:
                size, begin, end = min(around)
                share = max(share, sum(begin <= s <= end for s in self.spills) / (size / 16 + 1))
        return share

    def in_flight(self):
        return self.flight * self.threads * self.blocks()


def run(command, pattern=None):
    """The lines of a command's output; with a pattern, those that match the extended regular expression."""
    if not pattern:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    kept = subprocess.run(['grep', '-E', pattern], stdin=made.stdout, capture_output=True,
                          env={**os.environ, 'LC_ALL': 'C'})
    made.stdout.close()
    if made.wait():
        raise RuntimeError(' '.join(map(str, command)) + ' failed')
    return kept.stdout.decode().splitlines()


REGISTER = re.compile(r'\bR(\d+)\b')
INSTRUCTION = re.compile(r'\s+/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);')
MEMORY = {'LDG': 'load', 'LD': 'load', 'STG': 'store', 'ST': 'store'}
ADDRESS_BITS = {'128': 128, '64': 64, 'U16': 16, 'S16': 16, 'U8': 8, 'S8': 8}


def bits_of(opcode):
    for part in opcode.split('.')[1:]:
        if part in ADDRESS_BITS:
            return ADDRESS_BITS[part]
    return 32


class Flight:
    """Bytes in flight of one thread, counted separately for each width: a slow path next to a fast one does not
    count."""

    def __init__(self):
        self.pending = {}  # register: (its load, bits)
        self.loads = 0
        self.most = 0

    def touch(self, operands):
        waited = {self.pending[int(r)][0] for r in REGISTER.findall(operands) if int(r) in self.pending}
        if waited:
            self.pending = {r: load for r, load in self.pending.items() if load[0] not in waited}

    def load(self, operands, bits):
        to, _, address = operands.partition(',')
        self.touch(address)
        first = REGISTER.search(to)
        if not first:
            return
        self.loads += 1
        for i in range(max(1, bits // 32)):
            self.pending[int(first.group(1)) + i] = (self.loads, bits)
        alike = {load for load, width in self.pending.values() if width == bits}
        self.most = max(self.most, len(alike) * bits // 8)

    def end(self):
        self.pending.clear()


def read_instruction(kernel, flight, line):
    m = INSTRUCTION.match(line)
    if not m:
        return
    at, predicate, opcode, operands = m.groups()
    operation = opcode.split('.')[0]
    here = int(at, 16)
    if operation in ('LDL', 'STL'):
        kernel.spills.append(here)
    if operation == 'BRA' and (target := re.search(r'0x([0-9a-f]+)', operands)) and int(target[1], 16) < here:
        kernel.loops.append((int(target[1], 16), here))
    kernel.opcodes[opcode] += 1
    if operation in MEMORY:
        kernel.widest[MEMORY[operation]] = max(kernel.widest[MEMORY[operation]], bits_of(opcode))
        kernel.stores[bits_of(opcode)] += MEMORY[operation] == 'store'
    if MEMORY.get(operation) == 'load':
        flight.load(operands, bits_of(opcode))
    elif operation in ('EXIT', 'RET') and not predicate:
        flight.end()
    else:
        flight.touch(operands)
    kernel.flight = flight.most


def read_code(tool, path, kernels):
    kernel = flight = None
    arch = 0
    for line in run([tool, '-sass', path], r'^\s+/\*[0-9a-f]{4,5}\*/|Function :|code for sm_'):
        if 'code for sm_' in line:
            arch = int(line.split('sm_')[1])
        elif 'Function :' in line:
            kernel, flight = kernels[arch, line.split()[-1]], Flight()
        elif kernel:
            read_instruction(kernel, flight, line)


def read_threads(tool, path, kernels):
    """The launch bounds."""
    arch, name, next_is_it = 0, None, False
    for line in run([tool, '-elf', path], r'^arch = |^\.nv\.info\._Z|EIATTR_MAX_THREADS|Value:\s+0x[0-9a-f]+ 0x1 0x1'):
        if line.startswith('arch = '):
            arch = int(line.split('_')[1])
        elif line.startswith('.nv.info.'):
            name = line.removeprefix('.nv.info.').strip()
        elif 'EIATTR' in line:
            next_is_it = True
        elif next_is_it:
            kernels[arch, name].threads = int(line.split()[1], 16)
            next_is_it = False


def read_object(tool, path):
    """(kernels, True if all of its code was compiled without contraction)"""
    kernels, arch, name, fused = {}, 0, None, None
    for line in run([tool, '-res-usage', path]):
        if line.startswith('arch = '):
            arch = int(line.split('_')[1])
        elif line.startswith('ptxasOptions'):
            fused = '--fmad false' not in line
        elif line.startswith(' Function '):
            name = line.split()[1].rstrip(':')
        elif 'REG:' in line and name:
            k = kernels[arch, name] = Kernel(pathlib.Path(path).name.removesuffix('.cu.o'), arch, name)
            use = dict(p.split(':') for p in line.split())
            k.registers, k.stack, k.shared, k.local = (int(use[u]) for u in ('REG', 'STACK', 'SHARED', 'LOCAL'))
            name = None
    read_threads(tool, path, kernels)
    read_code(tool, path, kernels)
    short = demangle({k.name for k in kernels.values()})
    for k in kernels.values():
        k.name = short[k.name]
    return list(kernels.values()), fused is False


FLOAT_ATOMIC = re.compile(r'(RED|ATOM|ATOMG|ATOMS|REDG)\b.*\.(F\d|BF\d)')
ANY_ATOMIC = re.compile(r'(RED|ATOM|ATOMG|ATOMS|REDG)(\.|$)')
ARITHMETIC = re.compile(r'(FFMA|DFMA|HFMA2)(\.|$)')


def faults_of(k):
    """The faults of a kernel, in words."""
    streams, others = entries()
    stream = next((s for s in streams if s.pattern.fullmatch(k.id)), None)
    if any(FLOAT_ATOMIC.match(op) for op in k.opcodes):
        yield 'adds floats with atomics: the sum depends on the order of threads'
    elif any(ANY_ATOMIC.match(op) for op in k.opcodes) and k.base not in ATOMICS:
        yield 'uses atomics, and is not in ATOMICS'
    allowed = next((most for pattern, most, _ in STACK if re.fullmatch(pattern, k.id)), None)
    if (k.stack or k.local or k.spills) and (allowed is None or k.spill_share() > allowed):
        yield f'{k.stack} bytes of stack, {len(k.spills)} accesses to local memory, {k.spill_share():.1%} of a loop'
    if k.base in UNFUSED and any(ARITHMETIC.match(op) for op in k.opcodes):
        yield 'has fused multiply-adds'
    if not stream:
        if not any(re.fullmatch(pattern, k.id) for pattern, _ in others):
            yield 'is described neither in its file nor here'
        return
    load, store, share = stream.of(k)
    if k.widest['load'] < load:
        yield f'loads at most {k.widest["load"]} bits at a time, not {load}'
    if k.widest['store'] < store:
        yield f'stores at most {k.widest["store"]} bits at a time, not {store}'
    if store and k.stores[store] < stream.stores:
        yield f'has {k.stores[store]} stores of {store} bits, not {stream.stores}: one for each result'
    if k.arch >= 90 and k.in_flight() < LATENCY_BYTES * share:
        need = LATENCY_BYTES * share / 1024
        yield f'{k.in_flight() / 1024:.0f} KiB in flight on a multiprocessor: {need:.0f} are needed'


def stale_entries(objects):
    """Entries of the lists above whose files are none of these objects."""
    files = {path.name.removesuffix('.cu.o') for path in objects}
    patterns = [s.pattern.pattern for s in STREAMS] + [pattern for pattern, *_ in OTHERS + STACK]
    for entry in [*patterns, *ATOMICS, *UNFUSED]:
        file = entry.partition(':')[0]
        if not any(re.fullmatch(file, f) for f in files):
            yield f'{entry}: there is no file {file}.cu'


def print_table(kernels):
    print(f'{"kernel":72} sm  threads blocks registers shared stack  load store  in flight: thread  multiprocessor')
    for k in kernels:
        load, store = k.widest['load'], k.widest['store']
        print(f'{k.id:72} {k.arch} {k.threads:8} {k.blocks():6} {k.registers:9} {k.shared:6} {k.stack:5} '
              f'{load:5} {store:5} {k.flight:9} bytes {k.in_flight() / 1024:10.0f} KiB')


def find_tool():
    """cuobjdump: from CUOBJDUMP, the PATH, or the folder of nvcc; together with nvdisasm, which it runs."""
    for place in (os.environ.get('CUOBJDUMP'), 'cuobjdump', '/usr/local/cuda/bin/cuobjdump'):
        tool = place and shutil.which(place)
        if tool and (shutil.which('nvdisasm') or shutil.which(pathlib.Path(tool).with_name('nvdisasm'))):
            return tool
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('dir', type=pathlib.Path, help='where the objects of the kernels (*.cu.o) are')
    parser.add_argument('--table', action='store_true', help='registers, shared memory and accesses of every kernel')
    args = parser.parse_args()
    tool, objects = find_tool(), sorted(args.dir.rglob('*.cu.o'))
    if not tool or not objects:
        print('no objects of CUDA kernels' if tool else 'no cuobjdump with an nvdisasm: CUOBJDUMP can name it')
        return 77
    with concurrent.futures.ProcessPoolExecutor() as pool:
        read = list(pool.map(read_object, [tool] * len(objects), objects))
    kernels = sorted((k for of_file, _ in read for k in of_file), key=lambda k: (k.id, k.arch))
    faults = [f'{path.name}: not all of it was compiled with --fmad=false'
              for path, (_, exact) in zip(objects, read) if not exact]
    faults += [f'{k.id}, sm_{k.arch}: {fault}' for k in kernels for fault in faults_of(k)]
    faults += stale_entries(objects)
    if args.table:
        print_table(kernels)
    print('\n'.join(faults + [f'{len(kernels)} kernels in {len(objects)} objects, {len(faults)} faults']))
    return 1 if faults or not kernels else 0


if __name__ == '__main__':
    sys.exit(main())
