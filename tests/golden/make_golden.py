#!/usr/bin/env python3
"""Makes golden.txt: values and gradients of the ops as PyTorch computes them in float64. Run by hand; never needed to test.

Inputs and weights are multiples of 1/64 below 4, so float32 and bfloat16 hold them exactly and one reference serves all types.
A case is "case NAME", then arrays: "in|weight|out|grad RANK DIM... : VALUES". The gradient is of sum(weight * out).
"""
import math
import sys

import torch
from torch.nn import functional as F

g = torch.Generator().manual_seed(7)
out = open(sys.argv[1] if len(sys.argv) > 1 else "golden.txt", "w")


def rand(*shape, lo=-1.0, hi=1.0):
    x = torch.rand(shape, generator=g, dtype=torch.float64) * (hi - lo) + lo
    return (x * 64).round() / 64


def write(kind, x):
    dims = " ".join(str(d) for d in x.shape)
    print(kind, x.dim(), dims, ":", " ".join(repr(v) for v in x.detach().flatten().tolist()), file=out)


def case(name, f, *inputs):
    x = [i.clone().requires_grad_() for i in inputs]
    y = f(*x)
    w = rand(*y.shape)
    (y * w).sum().backward()
    print("case", name, file=out)
    for i in x:
        write("in", i)
    write("weight", w)
    write("out", y)
    for i in x:
        write("grad", i.grad)


def causal(s, kv):
    return torch.ones(s, kv, dtype=torch.bool).triu(1 + kv - s)


def attention(q, k, v, mask):
    n = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask:
        s = s.masked_fill(causal(q.shape[2], k.shape[2]), -math.inf)
    return s.softmax(-1) @ v


def rope(x, base):
    half = x.shape[-1] // 2
    a = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), base ** (-torch.arange(half, dtype=torch.float64) / half))
    p, q = x[..., :half], x[..., half:]
    return torch.cat((p * a.cos() - q * a.sin(), q * a.cos() + p * a.sin()), -1)


def rmsnorm(x, w):
    return x / (x.pow(2).mean(-1, keepdim=True) + 2**-10).sqrt() * w


index, target = torch.tensor([2, 0, 2, 1]), torch.tensor([2, -100, 0, 4])
case("add", lambda a, b: a + b, rand(2, 3, 5), rand(3, 1))
case("sub", lambda a, b: a - b, rand(5), rand(2, 3, 1))
case("mul", lambda a, b: a * b, rand(2, 3, 5), rand(5))
case("div", lambda a, b: a / b, rand(3, 7), rand(3, 1, lo=0.5, hi=2))
case("maximum", torch.maximum, rand(4, 9), rand(9))
case("exp", torch.exp, rand(37, lo=-2, hi=2))
case("log", torch.log, rand(37, lo=0.5, hi=3))
case("sqrt", torch.sqrt, rand(37, lo=0.5, hi=3))
case("tanh", torch.tanh, rand(37, lo=-2, hi=2))
case("sigmoid", torch.sigmoid, rand(37, lo=-3, hi=3))
case("relu", torch.relu, rand(37))
case("silu", F.silu, rand(37, lo=-3, hi=3))
case("gelu", F.gelu, rand(37, lo=-3, hi=3))
case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), rand(37, lo=-3, hi=3))
case("swiglu", lambda a, b: F.silu(a) * b, rand(3, 13), rand(3, 13))
case("matmul", torch.matmul, rand(2, 1, 5, 17), rand(3, 17, 9))
case("linear", F.linear, rand(2, 5, 19), rand(11, 19), rand(11))
case("layernorm", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, 2**-10), rand(3, 21), rand(21), rand(21))
case("rmsnorm", rmsnorm, rand(3, 21), rand(21))
case("sum", lambda x: x.sum((0, 2)), rand(3, 4, 5))
case("mean", lambda x: x.mean(-1, keepdim=True), rand(3, 19))
case("max", lambda x: x.amax(1), torch.stack([torch.randperm(19, generator=g) / 16.0 for _ in range(3)]).double())
case("softmax", lambda x: x.softmax(-1), rand(3, 19, lo=-3, hi=3))
case("log_softmax", lambda x: x.log_softmax(1), rand(2, 7, 3, lo=-3, hi=3))
case("logsumexp", lambda x: x.logsumexp((0, 2)), rand(2, 7, 3, lo=-3, hi=3))
case("attention_causal", lambda q, k, v: attention(q, k, v, True), rand(2, 4, 5, 8), rand(2, 2, 7, 8), rand(2, 2, 7, 8))
case("attention", lambda q, k, v: attention(q, k, v, False), rand(1, 2, 70, 16), rand(1, 2, 66, 16), rand(1, 2, 66, 16))
case("rope", lambda x: rope(x, 100.0), rand(2, 2, 5, 8))
case("embedding", lambda t: F.embedding(index, t), rand(4, 9))
case("cross_entropy", lambda x: F.cross_entropy(x, target, ignore_index=-100), rand(4, 5, lo=-3, hi=3))
case("mse_loss", F.mse_loss, rand(3, 17), rand(3, 17))
case("permute", lambda x: x.permute(2, 0, 1) * 1.0, rand(2, 3, 5))
case("concat", lambda a, b: torch.cat((a, b), 1), rand(2, 3, 5), rand(2, 1, 5))
case("slice", lambda x: x[:, 1:3], rand(2, 4, 5))
case("neg", lambda x: -x, rand(19))
case("abs", torch.abs, rand(19, lo=0.25, hi=1) * torch.tensor([1.0, -1.0] * 9 + [1.0]))
case("scale", lambda x: x * 1.5, rand(19))
case("add_scalar", lambda x: x + 0.75, rand(19))
case("pow_scalar", lambda x: x**2.5, rand(19, lo=0.5, hi=2))
case("reshape", lambda x: x.reshape(6, -1), rand(3, 4, 5))
case("broadcast_to", lambda x: x.broadcast_to(3, 4, 5), rand(4, 1))
case("split", lambda x: torch.cat(x.split((2, 5, 4), -1)[::-1], -1), rand(3, 11))
case("causal_softmax", lambda x: (x * 0.5).masked_fill(causal(5, 7), -math.inf).softmax(-1), rand(2, 5, 7, lo=-3, hi=3))
