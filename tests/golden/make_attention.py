"""Golden values of attention.golden: attention beyond that of ops.golden, and rope of interleaved pairs."""
import math

import torch

from writer import case, normal, write


def large(x):
    """1 + 8 max|x| over the keys: what an exponential's argument is off by, in roundings."""
    return 1 + 8 * x.abs().amax(-1, keepdim=True)


def causal(s, kv):
    return torch.ones(s, kv, dtype=torch.bool).tril(kv - s)


def attention(name, q, k, v, seen, scale):
    """By the formula, q and k of another width than v."""
    group = q.shape[1] // k.shape[1]

    def spread(x):
        return x.repeat_interleave(group, 1)

    def gathered(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    def probabilities(q, k):
        return torch.softmax((scale * q @ k.mT).masked_fill(~seen, -math.inf), -1)

    def f(q, k, v):
        return probabilities(q, spread(k)) @ spread(v)

    def sizes(w, y, q, k, v):
        k, v, w = spread(k), spread(v).abs(), w.abs()
        p = probabilities(q, k)
        q, k = q.abs(), k.abs()
        pk = p * large(scale * q @ k.mT)
        ds = scale * pk * (w @ v.mT + 2 * (w * (p @ v)).sum(-1, keepdim=True))
        return pk @ v, ds @ k, gathered(ds.mT @ q), gathered(pk.mT @ w)
    case(name, f, [q, k, v], sizes=sizes)


attention("attention_widths", normal(2, 4, 5, 24), normal(2, 2, 7, 24), normal(2, 2, 7, 16), causal(5, 7),
          1 / math.sqrt(24))
attention("attention_widths.latent", normal(1, 2, 4, 192), normal(1, 2, 6, 192), normal(1, 2, 6, 128), causal(4, 6),
          1 / math.sqrt(192))
attention("attention_widths.narrow", normal(1, 2, 66, 3), normal(1, 2, 67, 3), normal(1, 2, 67, 9), causal(66, 67),
          1 / math.sqrt(3))


def rope(name, x, positions, base, index=None):
    """As view_as_complex() of consecutive pairs, times e^(i angle)."""
    half = x.shape[-1] // 2
    angle = positions.double()[:, None] * base ** (-torch.arange(half).double() / half)
    turn = torch.polar(torch.ones_like(angle), angle)

    def f(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], half, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    def size(x):
        pairs = x.abs().reshape(*x.shape[:-1], half, 2).sum(-1) * (1 + angle)
        return pairs.repeat_interleave(2, -1)
    case(name, f, [x], sizes=lambda w, y, x: (size(x), size(w)), index=index)


rope("rope_interleaved", normal(2, 3, 5, 36), torch.arange(5), 10000.0)
places = torch.tensor([5, 0, 9, 300], dtype=torch.int32)
rope("rope_interleaved_positions", normal(2, 1, 4, 6), places, 50.0, places)

write(__file__)
