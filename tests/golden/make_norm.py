"""Writes norm.golden: see writer.py. Normalization by batch, by group of channels, by channel."""
import torch
import torch.nn.functional as F

from writer import case, normal, number, single, write

EPS = single(1e-3)


def sizes(groups):
    """As op_sizes_groups(); groups 0: of the batch."""
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


def statistics(n):
    return [torch.tensor([number(i, 9, positive) for i in range(n)]) for positive in (False, True)]


def given_sizes(w, y, x, *vectors):
    """As sizes(0), for statistics that are constants."""
    row = lambda v: v.reshape(1, -1, *(1 for _ in x.shape[2:]))
    mean, var = map(row, statistics(x.shape[1]))
    weight, bias = map(row, vectors) if vectors else (torch.ones(()), torch.zeros(()))
    r = (var + EPS).rsqrt()
    xh, axes = (x.abs() + mean.abs()) * r, (0, *range(2, x.dim()))
    of_vectors = ((w.abs() * xh).sum(axes), w.abs().sum(axes)) if vectors else ()
    return (xh * weight.abs() + bias.abs(), w.abs() * weight.abs() * r, *of_vectors)


given = lambda x, *v: F.batch_norm(x, *statistics(x.shape[1]), *v, False, 0.1, EPS)
for variant, shape in [("", (3, 5, 4, 6)), (".flat", (7, 19))]:
    case("batchnorm_eval" + variant, given, [normal(*shape), normal(shape[1]), normal(shape[1])], sizes=given_sizes)
    case("batchnorm_eval_plain" + variant, lambda x: given(x, None, None), [normal(*shape)], sizes=given_sizes)


def plain(name, x, f, groups):
    """Without weight and bias: as with ones and zeros."""
    ones, zeros = torch.ones(x[1]), torch.zeros(x[1])
    case(name, f, [normal(*x)], sizes=lambda w, y, x: sizes(groups)(w, y, x, ones, zeros)[:2])


plain("batchnorm_plain", (3, 5, 4, 6), lambda x: F.batch_norm(x, None, None, None, None, True, 0.1, EPS), 0)
plain("group_norm_plain", (3, 6, 4, 5), lambda x: F.group_norm(x, 2, eps=EPS), 2)
plain("instance_norm_plain", (3, 5, 4, 6), lambda x: F.instance_norm(x, eps=EPS), 5)


def of_rows(mean):
    def f(w, y, x):
        average = lambda v: v.mean(-1, keepdim=True) if mean else torch.zeros(())
        r = ((x - average(x)).square().mean(-1, keepdim=True) + EPS).rsqrt()
        xh, h = (x.abs() + average(x.abs())) * r, w.abs()
        return xh, r * (h + average(h) + xh * (h * xh).mean(-1, keepdim=True))
    return f


case("layernorm_plain", lambda x: F.layer_norm(x, x.shape[-1:], eps=EPS), [normal(2, 3, 37)], sizes=of_rows(True))
case("rmsnorm_plain", lambda x: F.rms_norm(x, x.shape[-1:], eps=EPS), [normal(2, 3, 37)], sizes=of_rows(False))


GROUP = lambda x, w, b: F.group_norm(x, 2, w, b, EPS)
INSTANCE = lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=EPS)
norm("batchnorm.sequence", (4, 6, 7), batch, 0)
norm("batchnorm.volume", (2, 6, 2, 3, 4), batch, 0)
case("batchnorm_eval.volume", given, [normal(2, 5, 3, 2, 3), normal(5), normal(5)], sizes=given_sizes)
for variant, shape in [("flat", (5, 12)), ("sequence", (3, 6, 11)), ("volume", (2, 6, 3, 2, 4)),
                       ("six_axes", (2, 4, 3, 2, 1, 4))]:
    norm("group_norm." + variant, shape, GROUP, 2)
norm("instance_norm.sequence", (3, 5, 8), INSTANCE, 5)
norm("instance_norm.volume", (2, 3, 2, 4, 3), INSTANCE, 3)

write(__file__)
