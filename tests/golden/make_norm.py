"""Writes norm.golden: see writer.py. Normalisation by batch, by group of channels, by channel."""
import torch
import torch.nn.functional as F

from writer import case, normal, single, write

EPS = single(1e-3)


def sizes(groups):
    """What op_sizes_groups() says; groups 0: of the batch."""
    def f(w, y, x, weight, bias):
        n, c = x.shape[:2]
        cut = (lambda v: v.transpose(0, 1).reshape(1, c, 1, -1)) if not groups else \
            (lambda v: v.reshape(n, groups, c // groups, -1))
        back = (lambda v: v.reshape(c, n, *x.shape[2:]).transpose(0, 1)) if not groups else \
            (lambda v: v.reshape(x.shape))
        rows = (lambda v: v.reshape(1, c, 1, 1)) if not groups else (lambda v: v.reshape(1, groups, c // groups, 1))
        mean = lambda v: v.mean((2, 3), keepdim=True)
        total = lambda v: v.sum((0, 3)).reshape(c)
        r = (cut(x).var((2, 3), unbiased=False, keepdim=True) + EPS).rsqrt()
        xh, h = (cut(x).abs() + mean(cut(x).abs())) * r, cut(w).abs() * rows(weight).abs()
        dx = r * (h + mean(h) + xh * mean(h * xh))
        return (back(xh * rows(weight).abs() + rows(bias).abs()), back(dx), total(cut(w).abs() * xh),
                total(cut(w).abs()))
    return f


def norm(name, x, f, groups):
    case(name, f, [normal(*x), normal(x[1]), normal(x[1])], sizes=sizes(groups))


batch = lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, EPS)
norm("batchnorm", (3, 5, 4, 6), batch, 0)
norm("batchnorm.flat", (7, 19), batch, 0)
norm("batchnorm.wide", (2, 40, 3, 3), batch, 0)
norm("group_norm", (3, 6, 4, 5), lambda x, w, b: F.group_norm(x, 2, w, b, EPS), 2)
norm("group_norm.wide", (2, 34, 3, 2), lambda x, w, b: F.group_norm(x, 2, w, b, EPS), 2)
norm("instance_norm", (3, 5, 4, 6), lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=EPS), 5)

write(__file__)
