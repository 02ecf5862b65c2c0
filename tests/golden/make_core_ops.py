"""Writes ops.golden: see writer.py. The ops of the first families."""
import math

import torch
import torch.nn.functional as F

from philox import drawn
from writer import case, exact, gradients, normal, number, positive, single, write

# ---- element-wise

def binary(name, f, b=None, **more):
    case(name, f, [normal(2, 1, 37), normal(3, 1) if b is None else b], **more)


binary("add", torch.add)
binary("sub", torch.sub, absolute=torch.add)
binary("mul", torch.mul)
binary("div", torch.div, positive(3, 1))
for name, f in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div)]:
    case(f"{name}.same", f, [normal(5, 19), positive(5, 19)], absolute=torch.add if name == "sub" else None)
# Ties are included on purpose: the first operand is chosen.
first = lambda a, b: torch.where(a >= b, a, b)
for name, a, b in [("maximum", (2, 1, 37), (3, 37)), ("maximum.same", (5, 19), (5, 19))]:
    case(name, first, [torch.randint(-3, 4, a) / 2, torch.randint(-3, 4, b) / 2],
         sizes=lambda w, y, a, b: (y, *gradients(first, [a, b], w.abs())[1]))

last = lambda a, b: torch.where(a <= b, a, b)
case("minimum", last, [torch.randint(-3, 4, (2, 1, 37)) / 2, torch.randint(-3, 4, (3, 37)) / 2],
     sizes=lambda w, y, a, b: (y, *gradients(last, [a, b], w.abs())[1]))

# Two tensors: values around 0 and, with odd extents, values far from it, where functions saturate.
spread = exact(torch.cat([torch.linspace(-6, 6, 75), torch.zeros(1), torch.randn(35)])).reshape(3, 37)
far = exact(torch.cat([torch.linspace(-24, 24, 41), torch.tensor([-0.0, 2.0**-9, -(2.0**-9), 1.0])])).reshape(3, 5, 3)
many = positive(3, 37)
orders = exact(torch.logspace(-3, 3, 45)).reshape(3, 5, 3)
sizes = lambda w, y, x: (y, gradients(f, [x], w)[1][0])
sigmoid = torch.sigmoid
tanh_sizes = lambda w, y, x: (y, w * (1 + 2 * y * y))
slope = lambda x: x.abs() * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
for variant, x, p in [("", spread, many), (".far", far, orders)]:
    case("scale" + variant, lambda x: x * 1.7, [x])
    case("add_scalar" + variant, lambda x: x + 0.3, [x])
    for name, f, x in [("pow_scalar", lambda x: x**2.5, p), ("pow_negative", lambda x: x**-0.5, p),
                       ("exp", torch.exp, x / 4 if variant else x), ("log", torch.log, p), ("log1p", torch.log1p, p),
                       ("sin", torch.sin, x), ("cos", torch.cos, x), ("erf", torch.erf, x / 16 if variant else x / 4),
                       ("softplus", lambda x: F.softplus(x, threshold=500), x), ("sqrt", torch.sqrt, p),
                       ("neg", torch.neg, x), ("abs", torch.abs, x), ("relu", torch.relu, x)]:
        case(name + variant, f, [x], sizes=sizes)
    case("tanh" + variant, torch.tanh, [x], sizes=tanh_sizes)
    case("sigmoid" + variant, sigmoid, [x], sizes=lambda w, y, x: (y, w * y))
    case("silu" + variant, F.silu, [x], sizes=lambda w, y, x: (y, w * sigmoid(x) * (1 + x.abs())))
    case("gelu" + variant, F.gelu, [x], sizes=lambda w, y, x: (x, w * (1 + x.abs())))
    case("gelu_tanh" + variant, lambda x: F.gelu(x, approximate="tanh"), [x],
         sizes=lambda w, y, x: (x, w * (1 + slope(x))))
    case("swiglu" + variant, lambda g, u: F.silu(g) * u, [x, normal(*x.shape)],
         sizes=lambda w, y, g, u: (y, w * u * sigmoid(g) * (1 + g.abs()), w * F.silu(g)))

# ---- products

case("matmul", torch.matmul, [normal(2, 1, 5, 33), normal(3, 33, 7)])
case("matmul_flat", torch.matmul, [normal(2, 5, 33), normal(33, 7)])
case("matmul_transposed", lambda a, b: a.mT @ b.mT, [normal(33, 5), normal(2, 7, 33)])
case("linear", F.linear, [normal(2, 5, 33), normal(7, 33), normal(7)])
case("linear_no_bias", F.linear, [normal(2, 5, 33), normal(7, 33)])
case("linear.vector", F.linear, [normal(19), normal(3, 19), normal(3)])
case("linear_no_bias.wide", F.linear, [normal(6, 96), normal(40, 96)])
case("matmul.ones", torch.matmul, [normal(2, 1, 1), normal(2, 1, 3)])


# ---- norms

def norm(name, f, eps, mean, bias, shape=(2, 3, 37)):
    def sizes(w, y, x, weight, *b):
        centre = x.mean(-1, keepdim=True) if mean else torch.zeros(())
        r = ((x - centre).square().mean(-1, keepdim=True) + eps).rsqrt()
        xh = (x.abs() + (x.abs().mean(-1, keepdim=True) if mean else 0)) * r
        h = (w * weight).abs()
        dx = r * (h + (h.mean(-1, keepdim=True) if mean else 0) + xh * (h * xh).mean(-1, keepdim=True))
        m_y = xh * weight.abs() + (b[0].abs() if b else 0)
        rows = tuple(range(x.dim() - 1))
        return (m_y, dx, (w.abs() * xh).sum(rows), *([w.abs().sum(rows)] if b else []))
    c = shape[-1]
    case(name, f, [exact(normal(*shape, size=2) + 0.5), normal(c)] + ([normal(c)] if bias else []), sizes=sizes)


eps = single(1e-3)
for variant, shape in [("", (2, 3, 37)), (".even", (5, 64)), (".narrow", (40, 3))]:
    c = shape[-1:]
    norm("layernorm" + variant, lambda x, w, b: F.layer_norm(x, c, w, b, eps), eps, True, True, shape)
    norm("layernorm_no_bias" + variant, lambda x, w: F.layer_norm(x, c, w, None, eps), eps, True, False, shape)
    norm("rmsnorm" + variant, lambda x, w: F.rms_norm(x, c, w, eps), eps, False, False, shape)


# ---- reductions

def maximum(x, axes, keep):
    """The first maximal element in row-major order gets the whole gradient; amax would divide it."""
    rest = [i for i in range(x.dim()) if i not in axes]
    rows = x.permute(*rest, *axes).reshape(*[x.shape[i] for i in rest], -1)
    best = rows == rows.amax(-1, keepdim=True)
    first = (best & best.int().cumsum(-1).eq(1)).int().argmax(-1, keepdim=True)
    y = rows.gather(-1, first).squeeze(-1)
    return y.reshape([1 if i in axes else n for i, n in enumerate(x.shape)]) if keep else y


cube = normal(3, 5, 37)
case("sum", lambda x: x.sum((0, 2)), [cube])
case("sum_middle", lambda x: x.sum(1, keepdim=True), [cube])
case("sum_all", lambda x: x.sum(), [cube])
case("mean_last", lambda x: x.mean(-1, keepdim=True), [cube])
case("mean_middle", lambda x: x.mean(1), [cube])
ties = torch.randint(-6, 7, (3, 5, 37)) / 4
for name, f in [("max_middle", lambda x: maximum(x, [1], True)), ("max_outer", lambda x: maximum(x, [0, 2], False))]:
    case(name, f, [ties], sizes=sizes)
case("sum_to", lambda x: x.sum((0, 2)).reshape(5, 1), [cube])
case("sum_to_vector", lambda x: x.sum((0, 1)), [normal(2, 9, 21)])


# ---- softmax: `large` is 1 + 8 max |scaled x| of the row, see op_magnitudes.c

def large(x, axes):
    return 1 + 8 * x.abs().amax(axes, keepdim=True)


def softmax(name, f, x, axis, scale=1.0):
    def sizes(w, y, x):
        k = large(x * scale, axis)
        return y * k, scale * y * k * (w.abs() + (y * w.abs()).sum(axis, keepdim=True))
    case(name, f, [x], sizes=sizes)


def log_softmax(name, x, axis):
    def sizes(w, y, x):
        k = large(x, axis) + torch.logsumexp(x, axis, keepdim=True).abs()
        return k, w.abs() + y.exp() * (k + y.abs()) * w.abs().sum(axis, keepdim=True)
    case(name, lambda x: F.log_softmax(x, axis), [x], sizes=sizes)


def logsumexp(name, x, axes, keep):
    def sizes(w, y, x):
        total = torch.logsumexp(x, axes, keepdim=True)
        k = large(x, axes) + total.abs()
        return k.reshape(y.shape), w.reshape(total.shape).abs() * (x - total).exp() * k
    case(name, lambda x: torch.logsumexp(x, axes, keepdim=keep), [x], sizes=sizes)


def causal(seq, kv_seq):
    return torch.ones(seq, kv_seq, dtype=torch.bool).tril(kv_seq - seq)


softmax("softmax", lambda x: F.softmax(x, -1), normal(5, 37, size=2), -1)
softmax("softmax_middle", lambda x: F.softmax(x, 1), normal(3, 11, 5, size=2), 1)
scale = single(0.7)
softmax("causal_softmax", lambda x: F.softmax((x * scale).masked_fill(~causal(6, 9), -math.inf), -1),
        normal(2, 6, 9, size=2), -1, scale=scale)
softmax("causal_softmax.square", lambda x: F.softmax((x * scale).masked_fill(~causal(17, 17), -math.inf), -1),
        normal(17, 17, size=2), -1, scale=scale)
softmax("softmax.wide", lambda x: F.softmax(x, -1), normal(2, 130, size=2), -1)
log_softmax("log_softmax", normal(5, 37, size=2), -1)
log_softmax("log_softmax.wide", normal(2, 130, size=2), -1)
log_softmax("log_softmax_middle", normal(3, 11, 5, size=2), 1)
logsumexp("logsumexp", normal(5, 37, size=2), (-1,), True)
logsumexp("logsumexp_outer", normal(3, 5, 7, size=2), (0, 2), False)


# ---- attention

def attention(name, q, k, v, mask, scale, drop=None):
    """drop: the factor of the probabilities, 0 or 1 / (1 - p)."""
    group = q.shape[1] // k.shape[1]
    drop = torch.ones(()) if drop is None else drop
    most = drop.max()

    def spread_out(x):
        return x.repeat_interleave(group, 1)

    def gathered(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    def f(q, k, v):
        if drop.dim() == 0:
            return F.scaled_dot_product_attention(q, spread_out(k), spread_out(v), attn_mask=mask, scale=scale)
        p = torch.softmax((scale * q @ spread_out(k).mT).masked_fill(~mask, -math.inf), -1)
        return (p * drop) @ spread_out(v)

    def sizes(w, y, q, k, v):
        k, v, w = spread_out(k), spread_out(v).abs(), w.abs()
        p = torch.softmax((scale * q @ k.mT).masked_fill(~mask, -math.inf), -1)
        q, k = q.abs(), k.abs()
        pk = p * large(scale * q @ k.mT, -1)
        ds = scale * most * pk * (w @ v.mT + 2 * (w * (p @ v)).sum(-1, keepdim=True))
        return most * pk @ v, ds @ k, gathered(ds.mT @ q), most * gathered(pk.mT @ w)
    case(name, f, [q, k, v], sizes=sizes)


attention("attention_causal", normal(2, 4, 5, 12), normal(2, 2, 7, 12), normal(2, 2, 7, 12), causal(5, 7),
          1 / math.sqrt(12))
attention("attention_full", normal(1, 2, 5, 16), normal(1, 2, 3, 16), normal(1, 2, 3, 16),
          torch.ones(5, 3, dtype=torch.bool), single(0.3))
attention("attention_causal.blocks", normal(1, 4, 70, 8), normal(1, 2, 80, 8), normal(1, 2, 80, 8), causal(70, 80),
          1 / math.sqrt(8))
attention("attention_causal.head_64", normal(1, 2, 9, 64), normal(1, 1, 17, 64), normal(1, 1, 17, 64), causal(9, 17),
          1 / 8)
attention("attention_full.head_128", normal(1, 1, 3, 128), normal(1, 1, 7, 128), normal(1, 1, 7, 128),
          torch.ones(3, 7, dtype=torch.bool), single(0.3))
attention("attention_full.odd", normal(2, 1, 4, 5), normal(2, 1, 19, 5), normal(2, 1, 19, 5),
          torch.ones(4, 19, dtype=torch.bool), single(0.3))
# The composed form: matmul, causal_softmax, matmul.
attention("attention_scores", normal(2, 2, 6, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 8), causal(6, 9), single(0.35))


# ---- random: the words of the generator of seed 5, from block 11 on

def words(*shape):
    return torch.tensor(drawn(11, 5, math.prod(shape)), dtype=torch.float64).reshape(shape)


def kept(p, *shape):
    p = single(p)
    return (words(*shape) >= p * 2.0**32) / (1 - p)


def deviates(*shape):
    """Box and Muller: words 2i and 2i + 1 give elements 2i (cosine) and 2i + 1 (sine)."""
    n = math.prod(shape)
    u, v = words(n + n % 2).reshape(-1, 2).T
    r = torch.sqrt(-2 * torch.log((u + 1) * 2.0**-32))
    quarter = torch.round(v * 2.0**-30)  # so that cosines and sines near 0 keep their digits
    angle = (v - quarter * 2.0**30) * (2.0**-32 * 2 * math.pi)
    cos, sin = angle.cos(), angle.sin()
    turns = torch.stack([torch.stack([cos, sin]), torch.stack([-sin, cos]), torch.stack([-cos, -sin]),
                         torch.stack([sin, -cos])])
    turned = turns[quarter.long() % 4, :, torch.arange(len(r))]
    return (r[:, None] * turned).flatten()[:n].reshape(shape)


case("dropout", lambda x: x * kept(0.3, 5, 37), [normal(5, 37)])
case("dropout.small", lambda x: x * kept(0.3, 3), [normal(3)])
case("rand", lambda x: x * words(67) * 2.0**-32, [normal(67)])
case("rand.box", lambda x: x * words(2, 3, 5) * 2.0**-32, [normal(2, 3, 5)])
for variant, shape in [("", (67,)), (".box", (2, 3, 5))]:
    case("randn" + variant, lambda x: x * deviates(*shape), [normal(*shape)],
         sizes=lambda w, y, x: (y, w * deviates(*shape)))
attention("attention_dropout", normal(1, 2, 13, 8), normal(1, 1, 18, 8), normal(1, 1, 18, 8), causal(13, 18),
          1 / math.sqrt(8), kept(0.3, 1, 2, 13, 18))
attention("attention_dropout.batches", normal(2, 2, 3, 6), normal(2, 2, 5, 6), normal(2, 2, 5, 6), causal(3, 5),
          1 / math.sqrt(6), kept(0.3, 2, 2, 3, 5))


# ---- rope

def rope(name, x, positions, base, index=None):
    half = x.shape[-1] // 2
    angle = positions.double()[:, None] * base ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos(), angle.sin()

    def f(x):
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def size(x):
        return ((x[..., :half].abs() + x[..., half:].abs()) * (1 + angle)).repeat(1, 1, 1, 2)
    case(name, f, [x], sizes=lambda w, y, x: (size(x), size(w)), index=index)


rope("rope", normal(2, 3, 5, 36), torch.arange(5), 10000.0)
places = torch.tensor([5, 0, 9, 300], dtype=torch.int32)
rope("rope_positions", normal(2, 1, 4, 6), places, 50.0, places)

# ---- tables and losses

index = torch.tensor([[2, 0, 2], [5, 2, 0]], dtype=torch.int32)
case("embedding", lambda t: F.embedding(index.long(), t), [normal(7, 19)], index=index)
often = torch.arange(40, dtype=torch.int32) ** 2 % 5
case("embedding.often", lambda t: F.embedding(often.long(), t), [normal(5, 8)], index=often)


def cross_entropy(name, x, target, ignore):
    def f(x):
        return F.cross_entropy(x.reshape(-1, x.shape[-1]), target.long().reshape(-1), ignore_index=ignore)

    def sizes(w, y, x):
        counted = (target != ignore)[..., None]
        k = large(x, -1) + torch.logsumexp(x, -1, keepdim=True).abs()
        hit = F.one_hot(target.long().clamp(min=0), x.shape[-1]) * counted
        n = counted.sum()
        rows = counted * (k + (hit * x.abs()).sum(-1, keepdim=True))
        return rows.sum() / n, counted * (F.softmax(x, -1) * k + hit) / n
    case(name, f, [x], sizes=sizes, index=target, loss=True)


cross_entropy("cross_entropy", normal(2, 3, 37, size=2),
              torch.tensor([[3, -100, 36], [0, 7, -100]], dtype=torch.int32), -100)
cross_entropy("cross_entropy.wide", normal(4, 130, size=2), torch.tensor([129, 0, 64, -100], dtype=torch.int32), -100)
cross_entropy("cross_entropy_ignore", normal(5, 11, size=2), torch.tensor([3, 1, 10, 1, 0], dtype=torch.int32), 1)
for variant, shape in [("", (5, 37)), (".small", (3,))]:
    case("mse_loss" + variant, F.mse_loss, [normal(*shape), normal(*shape)], loss=True,
         sizes=lambda w, y, a, b: (y, *[2 * (a - b).abs() / a.numel()] * 2))

# ---- shape: exact

for variant, box in [("", normal(4, 5, 6)), (".odd", normal(6, 7, 9))]:
    case("reshape" + variant, lambda x: x.reshape(6, -1), [box])
    case("permute" + variant, lambda x: x.permute(2, 0, 1), [box])
    case("transpose" + variant, lambda x: x.transpose(0, -1).contiguous(), [box])
    case("contiguous" + variant, lambda x: x.mT.contiguous(), [box])
    case("slice" + variant, lambda x: x[:, 1:4], [box])
    case("slice_last" + variant, lambda x: x[..., 1:4], [box])
    n = box.shape[-1]
    case("split" + variant, lambda x: torch.cat([x.split([1, 2, n - 3], -1)[i] for i in (2, 0)], -1), [box])
case("reshape_turned", lambda x: x.mT.reshape(6, -1), [normal(4, 5, 6)])
case("broadcast_to", lambda x: x.expand(3, 4, 6), [normal(4, 1)])
case("broadcast_to.row", lambda x: x.expand(3, 4, 6), [normal(6)])
case("concat", lambda a, b, c: torch.cat([a, b, c], 1), [normal(4, 2, 3), normal(4, 1, 3), normal(4, 5, 3)])
case("concat.columns", lambda a, b, c: torch.cat([a, b, c], 1), [normal(7, 1), normal(7, 16), normal(7, 2)])


class ToBfloat16(torch.autograd.Function):
    """Rounded forward, with the gradient passed on unchanged, as by a cast."""

    @staticmethod
    def forward(ctx, x):
        return x.to(torch.bfloat16).to(torch.float64)

    @staticmethod
    def backward(ctx, g):
        return g


for variant, x in [("", spread), (".far", far)]:
    case("cast_bf16" + variant, lambda x: ToBfloat16.apply(x * x), [x])
    case("cast_f32" + variant, lambda x: x * x, [x])
    case("cast_f64" + variant, lambda x: x * x, [x])


def linear_gelu(x, weight, *bias):
    return F.gelu(F.linear(x, weight, *bias), approximate="tanh")


def linear_gelu_sizes(w, y, x, weight, *bias):
    """The function of the product: its terms are multiplied by its slope, below 1.129, and the slope's, below 0.798."""
    terms = F.linear(x.abs(), weight.abs(), *[b.abs() for b in bias])
    dz = (w.abs() * (1 + slope(F.linear(x, weight, *bias)) + 0.798 * terms)).reshape(-1, weight.shape[0])
    dx, dw = (dz @ weight.abs()).reshape(x.shape), dz.T @ x.abs().reshape(-1, x.shape[-1])
    return (1.129 * terms, dx, dw, *([dz.sum(0)] if bias else []))


case("linear_gelu", linear_gelu, [normal(2, 5, 33), normal(7, 33), normal(7)], sizes=linear_gelu_sizes)
case("linear_gelu.wide", linear_gelu, [normal(6, 96), normal(40, 96, size=0.125), normal(40)], sizes=linear_gelu_sizes)
case("linear_gelu_no_bias", linear_gelu, [normal(3, 19), normal(16, 19, size=0.25)], sizes=linear_gelu_sizes)

# ---- added to a residual, which is the first operand of linear_add and the second of dropout_add

for variant, shapes in [("linear_add", [(2, 5, 7), (2, 5, 33), (7, 33), (7,)]),
                        ("linear_add.wide", [(6, 40), (6, 96), (40, 96), (40,)]),
                        ("linear_add_no_bias", [(3, 16), (3, 19), (16, 19)])]:
    case(variant, lambda r, x, weight, *bias: r + F.linear(x, weight, *bias), [normal(*s) for s in shapes])
for variant, shape in [("dropout_add", (5, 37)), ("dropout_add.small", (3,))]:
    case(variant, lambda x, r: r + x * kept(0.3, *shape), [normal(*shape), normal(*shape)])


def rope_with(name, x, interleaved, scale):
    half, seq = x.shape[-1] // 2, x.shape[2]
    frequencies = torch.tensor([number(i, 5, True) / 4 for i in range(half)])
    angle = torch.arange(seq).double()[:, None] * frequencies
    cos, sin = scale * angle.cos(), scale * angle.sin()

    def halves(x):
        return (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])

    def whole(a, b):
        return torch.stack([a, b], -1).flatten(-2) if interleaved else torch.cat([a, b], -1)

    def f(x):
        a, b = halves(x)
        return whole(a * cos - b * sin, b * cos + a * sin)

    def size(x):
        a, b = halves(x.abs())
        return whole(*[(a + b) * (1 + angle) * scale] * 2)
    case(name, f, [x], sizes=lambda w, y, x: (size(x), size(w)))


rope_with("rope_with", normal(2, 3, 5, 36), False, single(1.25))
rope_with("rope_with_pairs", normal(1, 2, 4, 10), True, single(1))
case("embedding_padded", lambda t: F.embedding(index.long(), t, padding_idx=2), [normal(7, 19)], index=index)

write(__file__)
