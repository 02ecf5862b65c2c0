"""Writes attention.golden: attention with options beyond those of ops.golden, and rope of interleaved pairs."""
import math

import torch

from writer import case, normal, write


def large(x):
    """1 + 8 max|x| over the keys: the error of an exponential's argument, in roundings."""
    return 1 + 8 * x.abs().amax(-1, keepdim=True)


def causal(s, kv):
    return torch.ones(s, kv, dtype=torch.bool).tril(kv - s)


def attention(name, q, k, v, seen, scale):
    """By the formula, with q and k of another width than v."""
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


SOFT_CAP = 3.0  # of cases/attention_options.c


def spans(s, kv, causal=False, window=0, documents=None):
    """Which query attends to which key, by the definition; documents: an array of starts for each row of the batch."""
    away = (torch.arange(s)[:, None] + kv - s) - torch.arange(kv)
    seen = torch.ones(s, kv, dtype=torch.bool)
    if causal:
        seen &= away >= 0
    if window:
        seen &= away.abs() < window
    if documents is None:
        return seen
    rows = []
    for starts in documents:
        place = torch.arange(s)
        of = torch.bucketize(place, torch.tensor(starts), right=True)
        real = (of > 0) & (of < len(starts))
        rows.append(seen & (of[:, None] == of) & real[:, None] & real)
    return torch.stack(rows)[:, None]


def with_options(name, q, k, v, seen, more=None, kind="", cap=False, slopes=False, lse=False):
    """more: a mask or sinks, according to `kind`; lse: the log-sum-exps are added to the result."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    scale, (s, kv) = 1 / math.sqrt(q.shape[-1]), (q.shape[2], k.shape[2])
    away = ((torch.arange(s)[:, None] + kv - s) - torch.arange(kv)).abs().double()
    taken = 2.0 ** -torch.arange(1, heads + 1).double()[:, None, None] * away if slopes else torch.zeros(s, kv)

    def spread(x):
        return x.repeat_interleave(group, 1)

    def gathered(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    def logits(q, k, more):
        z = scale * q @ k.mT
        z = SOFT_CAP * torch.tanh(z / SOFT_CAP) if cap else z
        z = z - taken + (more if kind == "mask" else 0)
        z = z.masked_fill(~seen, -math.inf)
        sink = more.reshape(1, -1, 1, 1) if kind == "sinks" else torch.full((1, 1, 1, 1), -math.inf)
        return torch.cat([z, sink.expand(*z.shape[:-1], 1)], -1)

    def f(q, k, v, *more):
        z = logits(q, spread(k), *more or [None])
        total = torch.logsumexp(z, -1, keepdim=True)
        p = torch.exp(z - torch.where(torch.isinf(total), 0, total))[..., :-1]
        return p @ spread(v) + (total if lse else 0)

    def sizes(w, y, q, k, v, *more):
        k, v, w = spread(k), spread(v).abs(), w.abs()
        z = logits(q, k, *more or [None])
        total = torch.logsumexp(z, -1, keepdim=True)
        p = torch.exp(z - torch.where(torch.isinf(total), 0, total))
        p, sink = p[..., :-1], p[..., -1:]
        q, k = q.abs(), k.abs()
        terms = scale * q @ k.mT + taken * seen + (SOFT_CAP if cap else 0)
        terms = terms + (more[0].abs() if kind == "mask" else 0)
        terms = terms + (more[0].abs().reshape(1, -1, 1, 1) if kind == "sinks" else 0)
        steep = large(terms)
        pk = p * steep
        dots = 2 * (w * (p @ v)).sum(-1, keepdim=True)
        dots = dots + (w.sum(-1, keepdim=True) if lse else 0)
        flow = pk * (w @ v.mT + dots)
        ds = scale * flow
        m = [pk @ v + (y.abs() + steep if lse else 0), ds @ k, gathered(ds.mT @ q), gathered(pk.mT @ w)]
        if kind == "mask":
            m.append(flow.sum_to_size(more[0].shape))
        if kind == "sinks":
            m.append((sink * steep * dots).sum((0, 2, 3)))
        return m
    case(name, f, [q, k, v] + ([] if more is None else [more]), sizes=sizes)


with_options("attention_window", normal(1, 2, 9, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 8),
             spans(9, 9, causal=True, window=3))
with_options("attention_window.tiles", normal(1, 1, 135, 3), normal(1, 1, 135, 3), normal(1, 1, 135, 3),
             spans(135, 135, causal=True, window=3))
with_options("attention_window_both", normal(2, 2, 7, 6), normal(2, 1, 12, 6), normal(2, 1, 12, 4),
             spans(7, 12, window=2))
with_options("attention_slopes", normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 8), spans(5, 7, causal=True),
             slopes=True)
with_options("attention_soft_cap", normal(1, 2, 6, 8), normal(1, 2, 6, 8), normal(1, 2, 6, 8), spans(6, 6, causal=True),
             cap=True)
starts = [[1, 2 + b, 2 + b, 6, 11, 11] for b in range(2)]  # entry() of cases/attention_options.c
with_options("attention_documents", normal(2, 2, 12, 8), normal(2, 1, 12, 8), normal(2, 1, 12, 8),
             spans(12, 12, causal=True, documents=[starts[0]] * 2))
with_options("attention_documents_by_batch", normal(2, 2, 12, 4), normal(2, 2, 12, 4), normal(2, 2, 12, 4),
             spans(12, 12, documents=starts))
with_options("attention_mask", normal(2, 4, 5, 8), normal(2, 2, 6, 8), normal(2, 2, 6, 8), spans(5, 6, causal=True),
             normal(1, 4, 5, 6), "mask")
with_options("attention_mask.keys", normal(2, 2, 4, 8), normal(2, 2, 6, 8), normal(2, 2, 6, 8),
             spans(4, 6, causal=True), normal(2, 1, 1, 6), "mask")
with_options("attention_sinks", normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 6), spans(5, 7, causal=True),
             normal(4), "sinks")
with_options("attention_all", normal(2, 4, 12, 8), normal(2, 2, 12, 8), normal(2, 2, 12, 4),
             spans(12, 12, causal=True, window=5, documents=starts), normal(4), "sinks", cap=True, slopes=True)
place = (torch.arange(2)[:, None, None], torch.arange(6)[:, None], torch.arange(9))  # truth_of() of the cases
truths = ((place[1] * 3 + place[2] * 5 + place[0]) % 4 != 1) & ~((place[0] == 1) & (place[1] == 2))
with_options("attention_truths", normal(2, 4, 6, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 4),
             spans(6, 9, causal=True) & truths[:, None])
with_options("attention_lse", normal(1, 2, 5, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8), spans(5, 7, causal=True),
             lse=True)
with_options("attention_lse_of_all", normal(2, 2, 5, 8), normal(2, 1, 7, 8), normal(2, 1, 7, 4),
             spans(5, 7, causal=True, window=3), normal(2), "sinks", cap=True, lse=True)


def merge(name, a, b, a_lse, b_lse):
    def f(a, b, a_lse, b_lse):
        lse = torch.logaddexp(a_lse, b_lse)[..., None]
        return torch.exp(a_lse[..., None] - lse) * a + torch.exp(b_lse[..., None] - lse) * b + lse

    def sizes(w, y, a, b, a_lse, b_lse):
        steep = 2 + 8 * (a_lse.abs() + b_lse.abs())[..., None]
        of_a, of_b = (torch.sigmoid(x)[..., None] * steep for x in (a_lse - b_lse, b_lse - a_lse))
        out, w = of_a * a.abs() + of_b * b.abs(), w.abs()
        return (out + steep, w * of_a, w * of_b, (of_a * (w * (a.abs() + out + 1)).sum(-1, keepdim=True))[..., 0],
                (of_b * (w * (b.abs() + out + 1)).sum(-1, keepdim=True))[..., 0])
    case(name, f, [a, b, a_lse, b_lse], sizes=sizes)


merge("attention_merge", normal(2, 3, 5, 8), normal(2, 3, 5, 8), normal(2, 3, 5, size=3), normal(2, 3, 5, size=3))

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
