"""Writes losses.golden: see writer.py. The losses of rewind/losses.h."""
import torch
import torch.nn.functional as F

from writer import case, normal, single, write

MEAN, SUM, NONE = "mean", "sum", "none"


def class_weights(n):
    """As op_class_weight()."""
    return (torch.arange(n) % 5 + 1) / 4


def loss_of(target, ignore, smoothing, z, weight, reduction):
    def f(x):
        x, y = x.reshape(-1, x.shape[-1]), target.long().reshape(-1)
        live = y != ignore
        rows = F.cross_entropy(x, y, weight, ignore_index=ignore, label_smoothing=smoothing, reduction="none")
        rows = rows + live * z * torch.logsumexp(x, -1) ** 2
        if reduction == NONE:
            return rows.reshape(target.shape)
        total = (weight[y[live]] if weight is not None else live).sum()
        return rows.sum() / (total if reduction == MEAN else 1)
    return f


def row_sizes(x, off, target, ignore, smoothing, z, weight, reduction, w):
    """As row_sizes() of op_sizes.c."""
    n = x.shape[-1]
    live = (target != ignore)[..., None]
    each = torch.ones(n) if weight is None else weight
    share = live * each * (smoothing / n + F.one_hot(target.long().clamp(min=0), n) * (1 - smoothing))
    hit = live * each[target.long().clamp(min=0)][..., None]
    factor = 1 / hit.sum() if reduction == MEAN else 1
    total, l = share.sum(-1, keepdim=True), torch.logsumexp(x, -1, keepdim=True).abs()
    k = 1 + 8 * x.abs().amax(-1, keepdim=True) + l + 2 * off
    rows = total * k + (share * x.abs()).sum(-1, keepdim=True) + 2 * z * l * k
    slope = factor * (F.softmax(x, -1) * k * (total + 2 * z * (1 + l)) + share)
    if reduction == NONE:
        return rows[..., 0], slope * w.abs()[..., None]
    return factor * rows.sum(), slope


def rows(name, x, target, ignore=-100, smoothing=0.0, z=0.0, weighted=False, reduction=MEAN):
    options = (target, ignore, single(smoothing), z, class_weights(x.shape[-1]) if weighted else None, reduction)
    case(name, loss_of(*options), [x], index=target, loss=reduction != NONE,
         sizes=lambda w, y, x: row_sizes(x, 0, *options, w))


def linear(name, x, weight, target, ignore=-100, smoothing=0.0, z=0.0, reduction=MEAN):
    options = (target, ignore, single(smoothing), z, None, reduction)

    def sizes(w, y, x, weight):
        a, b = x.abs(), weight.abs()
        off = F.linear(a, b).amax(-1, keepdim=True)
        m_y, slope = row_sizes(F.linear(x, weight), off, *options, w)
        return m_y, slope @ b, slope.reshape(-1, len(b)).T @ a.reshape(-1, a.shape[-1])
    case(name, lambda x, weight: loss_of(*options)(F.linear(x, weight)), [x, weight], index=target,
         loss=reduction != NONE, sizes=sizes)


def targets(*values):
    return torch.tensor(values, dtype=torch.int32)


some, wide = targets([3, -100, 36], [0, 7, -100]), targets(129, 0, 64, -100)
for variant, x, target in [("", normal(2, 3, 37, size=2), some), (".wide", normal(4, 130, size=2), wide)]:
    rows("cross_entropy_smooth" + variant, x, target, smoothing=0.1)
    rows("cross_entropy_weighted" + variant, x, target, weighted=True)
    rows("cross_entropy_all" + variant, x, target, smoothing=0.3, z=0.125, weighted=True)
    rows("cross_entropy_sum" + variant, x, target, z=0.25, reduction=SUM)
rows("cross_entropy_rows", normal(5, 11, size=2), targets(3, 1, 10, 1, 0), ignore=1, smoothing=0.2, weighted=True,
     reduction=NONE)
many = (torch.arange(14, dtype=torch.int32) * 5 % 13).reshape(2, 7)
many[1, 2] = -100
linear("linear_cross_entropy", normal(2, 7, 9), normal(13, 9), many)
linear("linear_cross_entropy.one", normal(3, 16), normal(40, 16), targets(39, 0, 7))
linear("linear_cross_entropy_smooth", normal(2, 7, 9), normal(13, 9), many, smoothing=0.1, z=0.125, reduction=SUM)
write(__file__)
