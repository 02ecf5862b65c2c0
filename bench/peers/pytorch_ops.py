#!/usr/bin/env python3
"""Single ops of bench/ops compared with PyTorch's, alternately in one run: milliseconds of forward and backward, f32
and bf16.

    pytorch_ops.py bench/ops [--rounds 9] [--threads N] [--ops NAME,NAME] [--turns 2]

Prints a line for each op, those with the largest ratio to PyTorch first. For each side it takes the minimum of the
turns' medians, because disturbances only make a measurement longer.
"""
import argparse
import os
import statistics
import subprocess
import time

import pytorch_malloc_env  # before torch
import torch
import torch.nn.functional as F

ROWS, IMAGES, CONV = (2048, 1024), (8, 64, 64, 64), (8, 64, 56, 56)


def joined(f, axis):
    return (ROWS, ROWS), lambda x, y: f((x, y), axis)


def conv(groups, dilation):
    return (CONV, (64, 64 // groups, 3, 3)), lambda x, w: F.conv2d(x, w, None, 1, dilation, dilation, groups)


def attention(heads, seq, width, causal):
    return ((2, heads, seq, width),) * 3, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def index(places, *shape):
    return torch.randint(0, places, shape)


# Shapes of the operands, and the function. A shape in a list: positive numbers.
OPS = {
    "exp": ((ROWS,), torch.exp),
    "log": (([*ROWS],), torch.log),
    "tanh": ((ROWS,), torch.tanh),
    "gelu": ((ROWS,), F.gelu),
    "silu": ((ROWS,), F.silu),
    "square": ((ROWS,), lambda x: x**2),
    "power": (([*ROWS],), lambda x: x**1.7),
    "clamp": ((ROWS,), lambda x: x.clamp(-0.5, 0.5)),
    "mul": ((ROWS, ROWS), torch.mul),
    "add_row": ((ROWS, (1024,)), torch.add),
    "mul_column": ((ROWS, (2048, 1)), torch.mul),
    "add_transposed": ((ROWS, (1024, 2048)), lambda x, y: x + y.t()),
    "sum_all": ((ROWS,), torch.sum),
    "sum_rows": ((ROWS,), lambda x: x.sum(1)),
    "sum_columns": ((ROWS,), lambda x: x.sum(0)),
    "sum_of_8": (((262144, 8),), lambda x: x.sum(1)),
    "max_rows": ((ROWS,), lambda x: x.amax(1)),
    "prod_rows": (([*ROWS],), lambda x: x.prod(1)),
    "var_rows": ((ROWS,), lambda x: x.var(1)),
    "cumsum_rows": ((ROWS,), lambda x: x.cumsum(1)),
    "cumsum_columns": ((ROWS,), lambda x: x.cumsum(0)),
    "softmax_rows": ((ROWS,), lambda x: x.softmax(1)),
    "softmax_columns": ((ROWS,), lambda x: x.softmax(0)),
    "softmax_of_8": (((262144, 8),), lambda x: x.softmax(1)),
    "layernorm": ((ROWS, (1024,), (1024,)), lambda x, w, b: F.layer_norm(x, (1024,), w, b)),
    "rmsnorm": ((ROWS, (1024,)), lambda x, w: F.rms_norm(x, (1024,), w, 1e-5)),
    "batchnorm": ((IMAGES, (64,), (64,)), lambda x, w, b: F.batch_norm(x, None, None, w, b, True)),
    "group_norm": ((IMAGES, (64,), (64,)), lambda x, w, b: F.group_norm(x, 8, w, b)),
    "instance_norm": ((IMAGES, (64,), (64,)), lambda x, w, b: F.instance_norm(x, weight=w, bias=b)),
    "dropout": ((ROWS,), lambda x: F.dropout(x, 0.1)),
    "transpose": ((ROWS,), lambda x: x.t().contiguous()),
    "heads": (((4, 512, 16, 64),), lambda x: x.transpose(1, 2).contiguous()),
    "concat_rows": joined(torch.cat, 0),
    "concat_columns": joined(torch.cat, 1),
    "stack_last": joined(torch.stack, 2),
    "roll": ((ROWS,), lambda x: x.roll(100, 1)),
    "flip": ((ROWS,), lambda x: x.flip(1)),
    "unfold": ((ROWS,), lambda x: x.unfold(1, 8, 4).contiguous()),
    "pad_zeros": ((IMAGES,), lambda x: F.pad(x, (3, 3, 3, 3))),
    "pad_reflect": ((IMAGES,), lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect")),
    "topk_8": ((ROWS,), lambda x: x.topk(8, 1)[0]),
    "topk_256": ((ROWS,), lambda x: x.topk(256, 1)[0]),
    "topk_columns": ((ROWS,), lambda x: x.topk(8, 0)[0]),
    "gather": ((ROWS,), lambda x, i=index(1024, *ROWS): x.gather(1, i)),
    "scatter_add": ((ROWS, ROWS), lambda x, y, i=index(1024, *ROWS): x.scatter_add(1, i, y)),
    "index_select": ((ROWS,), lambda x, i=index(2048, 4096): x.index_select(0, i)),
    "embedding": (((32000, 256),), lambda x, i=index(32000, 8, 1024): F.embedding(i, x)),
    "embedding_bag": (((32000, 128),), lambda x, i=index(32000, 2048, 16): F.embedding_bag(i, x, mode="sum")),
    "cross_entropy": (((1024, 8192),), lambda x, i=index(8192, 1024): F.cross_entropy(x, i)),
    "cross_entropy_of_10": (((131072, 10),), lambda x, i=index(10, 131072): F.cross_entropy(x, i)),
    "mse_loss": ((ROWS, ROWS), F.mse_loss),
    "max_pool": ((IMAGES,), lambda x: F.max_pool2d(x, 3, 2, 1)),
    "avg_pool": ((IMAGES,), lambda x: F.avg_pool2d(x, 2)),
    "avg_pool_to_7": ((IMAGES,), lambda x: F.adaptive_avg_pool2d(x, 7)),
    "avg_pool_to_1": ((IMAGES,), lambda x: F.adaptive_avg_pool2d(x, 1)),
    "conv": conv(1, 1),
    "conv_dilated": conv(1, 2),
    "conv_of_groups": conv(4, 1),
    "conv_of_channels": conv(64, 1),
    "linear": (((1024, 1024), (1024, 1024), (1024,)), F.linear),
    "products_of_128": (((64, 128, 64), (64, 64, 128)), torch.matmul),
    "products_of_8": (((4096, 8, 8), (4096, 8, 8)), torch.matmul),
    "attention_causal": attention(8, 512, 64, True),
    "attention_short": attention(64, 32, 32, False),
}


def theirs(name, dtype, rounds):
    shapes, f = OPS[name]
    x = [(torch.rand(*s) * 2 - (-0.5 if isinstance(s, list) else 1)).to(dtype).requires_grad_() for s in shapes]
    grad = torch.rand_like(f(*x))
    ms = []
    for i in range(rounds + 2):
        for operand in x:
            operand.grad = None
        begin = time.perf_counter()
        f(*x).backward(grad)
        ms.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(ms[2:])


def ours(program, name, dtype, rounds, threads):
    done = subprocess.run([program, name, dtype, str(rounds)], capture_output=True, text=True, check=True,
                          env=pytorch_best.environment_of_others() | {"OMP_NUM_THREADS": str(threads)})
    return float(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ops", default=",".join(OPS))
    a = parser.parse_args()
    there = subprocess.run([a.program], capture_output=True, text=True, check=True).stdout.split()
    if set(there) != set(OPS):
        raise SystemExit(f"not on both sides: {sorted(set(there) ^ set(OPS))}")
    torch.set_num_threads(a.threads)
    rows = []
    for name in a.ops.split(","):
        for dtype, kind in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            turns = [(ours(a.program, name, dtype, a.rounds, a.threads), theirs(name, kind, a.rounds))
                     for _ in range(a.turns)]
            rows.append((name, dtype, *map(min, zip(*turns))))
    for name, dtype, mine, other in sorted(rows, key=lambda r: -r[2] / r[3]):
        print(f"{name}, {dtype} ({mine:.3g} and {other:.3g} ms), {mine / other:.3f} times")


if __name__ == "__main__":
    main()
