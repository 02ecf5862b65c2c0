"""Writes losses.golden: see writer.py. The losses of rewind/losses.h."""
import torch
import torch.nn.functional as F

from writer import case, exact, gradients, normal, positive, single, write

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
    """As row_sizes() of op_magnitudes.c."""
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


def linear(name, x, weight, target, ignore=-100, smoothing=0.0, z=0.0, reduction=MEAN, bias=(), weighted=False):
    options = (target, ignore, single(smoothing), z, class_weights(len(weight)) if weighted else None, reduction)

    def sizes(w, y, x, weight, *bias):
        a, b = x.abs(), weight.abs()
        off = F.linear(a, b, *[v.abs() for v in bias]).amax(-1, keepdim=True)
        m_y, slope = row_sizes(F.linear(x, weight, *bias), off, *options, w)
        rows = slope.reshape(-1, len(b))
        return m_y, slope @ b, rows.T @ a.reshape(-1, a.shape[-1]), *[rows.sum(0) for _ in bias]
    case(name, lambda x, weight, *bias: loss_of(*options)(F.linear(x, weight, *bias)), [x, weight, *bias],
         index=target, loss=reduction != NONE, sizes=sizes)


def soft(name, x, target, smoothing=0.0, z=0.0, weighted=False, reduction=MEAN):
    gain = class_weights(x.shape[-1]) if weighted else torch.ones(x.shape[-1])
    smoothing = single(smoothing)

    def f(x, target):
        a, b = x.reshape(-1, x.shape[-1]), target.reshape(-1, x.shape[-1])
        rows = F.cross_entropy(a, b, gain, label_smoothing=smoothing, reduction="none")
        rows = rows + z * torch.logsumexp(a, -1) ** 2
        return rows.reshape(x.shape[:-1]) if reduction == NONE else rows.mean() if reduction == MEAN else rows.sum()

    def sizes(w, y, x, target):
        """As op_sizes_soft_loss() of op_magnitudes.c."""
        share = (target.abs() * (1 - smoothing) + smoothing / x.shape[-1]) * gain
        total, l = share.sum(-1, keepdim=True), torch.logsumexp(x, -1, keepdim=True).abs()
        k = 1 + 8 * x.abs().amax(-1, keepdim=True) + l
        rows = (share * (k + x.abs())).sum(-1) + 2 * z * (l * k)[..., 0]
        factor = (1 / rows.numel() if reduction == MEAN else 1) * (w.abs()[..., None] if reduction == NONE else 1)
        slope = F.softmax(x, -1) * k * (total + 2 * z * (1 + l)) + share
        m_y = rows if reduction == NONE else factor * rows.sum()
        return m_y, factor * slope, factor * (k + x.abs()) * gain
    case(name, f, [x, target], loss=reduction != NONE, sizes=sizes)


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


def nll(name, x, target, weighted=False, reduction=MEAN):
    weight = class_weights(x.shape[-1]) if weighted else None

    def f(x):
        return F.nll_loss(x.reshape(-1, x.shape[-1]), target.long().reshape(-1), weight, reduction=reduction)
    case(name, f, [x], sizes=lambda w, y, x: (f(-x.abs()), gradients(f, [x], w)[1][0]), index=target, loss=True)


nll("nll_loss", F.log_softmax(normal(2, 3, 37, size=2), -1).to(torch.bfloat16).double(), some, weighted=True)
nll("nll_loss_sum", F.log_softmax(normal(4, 130, size=2), -1).to(torch.bfloat16).double(), wide, reduction=SUM)


def elements(name, f, xs, parts, reduction=MEAN):
    """parts(*xs): the terms of each element's loss, and its derivatives, as in op_magnitudes.c."""
    def sizes(w, y, *xs):
        loss, *slopes = parts(*xs)
        factor = 1 / loss.numel() if reduction == MEAN else 1
        m_y = loss if reduction == NONE else factor * loss.sum()
        return m_y, *[(factor * w.abs() * s.expand(loss.shape)).sum_to_size(x.shape) for s, x in zip(slopes, xs)]
    case(name, f, xs, sizes=sizes, loss=reduction != NONE)


def bce(name, x, y, p, weight, reduction):
    def f(x, y, p, weight):
        return F.binary_cross_entropy_with_logits(x, y, weight.expand(x.shape), reduction=reduction, pos_weight=p)

    def parts(x, y, p, weight):
        missed, far, z, p, weight = F.softplus(-x), x.abs(), y.abs(), p.abs(), weight.abs()
        all = 1 + (1 + p) * z
        loss = (1 + z) * far + all * missed
        slopes = all * torch.sigmoid(x) + p * z, far + (1 + p) * missed, z * missed
        return loss * weight, *[s * weight for s in slopes], loss

    class Composed:
        """PyTorch has no gradient of pos_weight; the formula has one, and gives the same values."""
        @staticmethod
        def f(x, y, p, weight):
            loss = weight * ((1 - y) * x + (1 + (p - 1) * y) * F.softplus(-x, threshold=500))
            return loss if reduction == NONE else loss.mean()
    assert torch.allclose(f(x, y, p, weight), Composed.f(x, y, p, weight), rtol=1e-12, atol=1e-14)
    for a, b in zip(gradients(lambda x, y: f(x, y, p, weight), [x, y], torch.ones(()))[1],
                    gradients(lambda x, y: Composed.f(x, y, p, weight), [x, y], torch.ones(()))[1]):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)
    elements(name, Composed.f, [x, y, p, weight], parts, reduction)


for name, reduction in [("bce_with_logits", MEAN), ("bce_with_logits_each", NONE)]:
    bce(name, normal(5, 37, size=4), exact(torch.rand(5, 37)), positive(37), positive(5, 1), reduction)


def huber(name, f, value, over, reduction):
    def parts(x, y):
        d = (x - y).abs()
        return over * (d * d + value * (d + value)), over * d, over * d
    elements(name, f, [normal(5, 37), normal(5, 37)], parts, reduction)


huber("huber_loss", lambda x, y: F.huber_loss(x, y, delta=0.75), 0.75, 1, MEAN)
huber("huber_loss_each", lambda x, y: F.huber_loss(x, y, delta=0.75, reduction=NONE), 0.75, 1, NONE)
huber("smooth_l1_loss", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, reduction=SUM), 0.5, 2, SUM)
elements("smooth_l1_loss_of_0", lambda x, y: F.smooth_l1_loss(x, y, beta=0, reduction=NONE),
         [normal(5, 37), normal(5, 37)], lambda x, y: ((x - y).abs(), torch.ones(5, 37), torch.ones(5, 37)), NONE)


def kl(name, x, y, log_target, reduction):
    def parts(x, y):
        p, l = (y.exp(), y.abs()) if log_target else (y, y.log().abs())
        both = l + x.abs()
        return p * both, p, (1 + both) * (p if log_target else 1)
    elements(name, lambda x, y: F.kl_div(x, y, reduction=reduction, log_target=log_target), [x, y], parts, reduction)


for name, reduction in [("kl_div", MEAN), ("kl_div_each", NONE)]:
    kl(name, normal(5, 19), positive(5, 19), False, reduction)
kl("kl_div_log", normal(5, 19), normal(5, 19), True, SUM)
linear("linear_cross_entropy_bias", normal(2, 7, 9), normal(13, 9), many, bias=(normal(13),))
linear("linear_cross_entropy_weighted", normal(2, 7, 9), normal(13, 9), many, smoothing=0.1, bias=(normal(13),),
       weighted=True)
soft("cross_entropy_soft", normal(2, 3, 37, size=2), exact(F.softmax(normal(2, 3, 37), -1)))
soft("cross_entropy_soft_all", normal(2, 3, 37, size=2), exact(F.softmax(normal(2, 3, 37), -1)), 0.3, 0.125, True, SUM)
soft("cross_entropy_soft_rows", normal(5, 11, size=2), exact(torch.rand(5, 11)), 0.2, 0, True, NONE)
elements("mse_loss_sum", lambda x, y: F.mse_loss(x, y, reduction=SUM), [normal(5, 37), normal(5, 37)],
         lambda x, y: ((x - y) ** 2, 2 * (x - y).abs(), 2 * (x - y).abs()), SUM)


def far(name, offset, **options):
    """Logits with a common `offset`: in 16ths, so that float32 holds the sums."""
    target = torch.tensor([[3, -100, 36], [0, 7, -100]], dtype=torch.int32)
    x = (torch.randn(2, 3, 37) * 32).round() / 16
    settings = (target, -100, single(options.get("smoothing", 0.0)), 0.0,
                class_weights(37) if options.get("weighted") else None, MEAN)
    case(name, lambda x: loss_of(*settings)(x + offset), [x], index=target, loss=True,
         sizes=lambda w, y, x: row_sizes(x, 0, *settings, w))


far("cross_entropy_far", 1e4)
far("cross_entropy_far_options", -3e5, smoothing=0.3, weighted=True)
write(__file__)
