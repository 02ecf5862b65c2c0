"""Writes reductions.golden: see writer.py. The ops of rewind/reductions.h."""
import math

import torch
import torch.nn.functional as F

from writer import case, gradients, normal, write


def values(name, f, x):
    """Terms that do not cancel: M is the result, and the gradient at |w|."""
    case(name, f, [x], sizes=lambda w, y, x: (y, gradients(f, [x], w.abs())[1][0]))


def var(name, axes, keep, correction):
    def sizes(w, y, x):
        d = x.abs() + x.abs().mean(axes, keepdim=True)
        n = math.prod(x.shape[i] for i in axes) - correction
        total = (d * d).sum(axes, keepdim=True)
        term = d * w.abs().reshape(total.shape) * 2 / n
        return (total / n).reshape(y.shape), term + term.mean(axes, keepdim=True)
    case(name, lambda x: x.var(axes, correction=correction, keepdim=keep), [cube], sizes=sizes)


def normalize(name, p, axis, x):
    def sizes(w, y, x):
        norm = x.norm(p, axis, keepdim=True)
        into = (w * y).abs().sum(axis, keepdim=True)
        return y, (w.abs() + (y.abs() if p == 2 else 1) * into) / norm
    case(name, lambda x: F.normalize(x, p, axis, 0.0078125), [x], sizes=sizes)


def product(x, axes, keep):
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


cube = normal(3, 5, 7)
values("norm_1", lambda x: x.norm(1, 1), cube)
values("norm_2", lambda x: torch.linalg.vector_norm(x, 2, (0, 2), True), cube)
values("norm_2.zero", lambda x: torch.linalg.vector_norm(x, 2, (0, 2), True), torch.zeros(2, 3, 2))
values("norm_inf", lambda x: torch.linalg.vector_norm(x, math.inf, 2),
       (torch.randperm(105) + 1).reshape(3, 5, 7) / 16 * torch.randn(3, 5, 7).sign())
normalize("normalize", 2, 1, cube)
normalize("normalize_1", 1, -1, cube)
with_zeros = normal(3, 4, 5)
with_zeros[0, 1, 2] = with_zeros[1, 0, 0] = with_zeros[1, 2, 0] = 0
case("prod", lambda x: product(x, [1], False), [with_zeros])
case("prod_outer", lambda x: product(x, [0, 2], True), [normal(2, 3, 7)])
var("var", (2,), False, 0)
var("var_unbiased", (0, 2), True, 1)
case("cumsum along -1", lambda x: x.cumsum(-1), [normal(3, 130)])
case("cumsum along 0", lambda x: x.cumsum(0), [normal(19, 5)])
write(__file__)
