"""
Writes a file of golden values, with which tests/ops/golden.c compares the ops: inputs, results and gradients by
PyTorch, in float64. A family of ops has a script make_NAME.py, which writes NAME.golden to its own folder. It is run by
hand when a case is added (PyTorch 2 or newer); neither building nor testing needs it.

Inputs and upstream weights are numbers that bfloat16 and float16 hold exactly, so that one reference serves all four
types. A result y is followed by y.m, the magnitude of the terms to which its rounding errors are relative; likewise g0
and g0.m of the gradient of input 0. The number of roundings is in op_roundings.h and .c, the definition of M in
op_magnitudes.c and, for composites of many ops, at slopes().

The file: "RWGOLD01", then tensors up to the end, all little-endian: u32 length of the name, the name, u32 type (0
float32, 1 float64, 2 int32), u32 rank, u64 per extent, the elements in row-major order. Names are CASE/x0, x1, ...
(inputs), CASE/i0 (an int32 input), CASE/w (upstream gradient), CASE/y, CASE/y.m, CASE/g0, CASE/g0.m ... CASE is OP or
OP.VARIANT: another shape, or other values. OP is the first words of the name of a case of tests/support/cases, or the
name of a row of NAME_op_table.c.
"""
import pathlib
import struct

import torch

torch.manual_seed(20240229)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
out = bytearray(b"RWGOLD01")


def put(name, x, code):
    x = x.detach().contiguous()
    kind = ("f", "d", "i")[code]
    out.extend(struct.pack("<I", len(name)) + name.encode())
    out.extend(struct.pack(f"<II{x.dim()}Q", code, x.dim(), *x.shape))
    out.extend(struct.pack(f"<{x.numel()}{kind}", *x.flatten().tolist()))


def exact(x):
    """The nearest number that bfloat16 holds and, below 2^-16, float16 too."""
    return x.to(torch.bfloat16).to(torch.float16).to(torch.float64)


def normal(*shape, size=1.0):
    return exact(torch.randn(shape) * size)


def positive(*shape):
    return exact(torch.rand(*shape) * 3 + 0.25)


def number(i, salt, positive):
    """op_number() of tests/support/op_builds.c, signed or positive."""
    wrap = 2**64 - 1
    mixed = ((i * 0x9E3779B97F4A7C15 + (salt + 1) * 0xD1B54A32D192ED03) & wrap) ^ (i >> 7)
    k = ((mixed * 0xBF58476D1CE4E5B9) & wrap) >> 57
    return (k + 8) / 32 if positive else (k - 64) / 32


def single(x):
    """A constant as the float that the library is given."""
    return float(torch.tensor(x, dtype=torch.float32))


def gradients(f, xs, w):
    xs = [x.detach().clone().requires_grad_() for x in xs]
    y = f(*xs)
    return y.detach(), torch.autograd.grad((y * w).sum(), xs)


# ---- M of composites of many ops: the slope along each rounding ----

class Off(torch.autograd.Function):
    """x with a relative error `there`, whose gradient has a relative error `back`."""
    @staticmethod
    def forward(ctx, x, there, back):
        ctx.save_for_backward(x, back)
        return x * (1 + there)

    @staticmethod
    def backward(ctx, g):
        x, back = ctx.saved_tensors
        return g * (1 + back), g * x, None


class OffFunction(torch.autograd.Function):
    """sigmoid or tanh of x, as Off; its slope is computed from the value, which is recomputed with an error `again`."""
    @staticmethod
    def forward(ctx, x, there, back, again, kind):
        ctx.save_for_backward(x, back, again)
        ctx.kind = kind
        return getattr(torch, kind)(x) * (1 + there)

    @staticmethod
    def backward(ctx, g):
        x, back, again = ctx.saved_tensors
        y = getattr(torch, ctx.kind)(x)
        a = y * (1 + again)
        slope = a * (1 - a) if ctx.kind == "sigmoid" else 1 - a * a
        return g * slope * (1 + back), g * y, None, None, None


class Roundings:
    """Functions passed to case() as `steps`. Each result has an error, and so has each gradient in backward."""
    def __init__(self):
        self.shares = []

    def share(self, x):
        self.shares.append(torch.zeros(x.shape, requires_grad=True))
        return self.shares[-1]

    def off(self, x):
        return Off.apply(x, self.share(x), self.share(x))

    def function(self, x, kind):
        return OffFunction.apply(x, self.share(x), self.share(x), self.share(x), kind)

    def sum(self, x, axis=-1):
        """Each term has an error, as in a sum's bound, and so has each summed term in backward."""
        return self.off(x).sum(axis)

    def product(self, x, w):
        """x w^T, where w is common to all rows, or one for each."""
        return self.sum(x[..., None, :] * w)

    def of_rows(self, x, shape):
        return self.off(x.expand(shape))


def slopes(steps, w, xs, want):
    """
    For y and for each gradient, for each element: the sum over all roundings of |its slope along that one|, each
    relative to the rounded value. To first order the error of an element is at most this times the maximum number of
    roundings of any of them: running error analysis, without the growth due to taking absolute values at each step.
    """
    r, xs = Roundings(), [x.detach().clone().requires_grad_() for x in xs]
    y = steps(r, *xs)
    got = [y, *torch.autograd.grad((y * w).sum(), xs, create_graph=True)]
    sizes = []
    for a, b in zip(got, want):
        size = torch.zeros(a.numel())
        for i, element in enumerate(a.flatten()):
            along = torch.autograd.grad(element, r.shares, retain_graph=True, allow_unused=True)
            size[i] = sum(s.abs().sum() for s in along if s is not None)
        sizes.append(size.reshape(a.shape))
        assert ((a - b).abs() <= 1e-13 * sizes[-1]).all(), "the steps are not the function"
    return sizes


def case(name, f, xs, sizes=None, absolute=None, index=None, loss=False, steps=None):
    """
    sizes(w, y, *xs) gives the magnitudes of y and of each gradient. Without it the op has no cancelling terms except
    those of its sums: then they are its own values at |x| and |w|, by `absolute`, or by f. With `steps`, f again by
    Roundings, they are slopes().
    """
    with torch.no_grad():
        shape = f(*xs).shape
    w = torch.ones(shape) if loss else normal(*shape)
    y, g = gradients(f, xs, w)
    if steps:
        m_y, *m_g = slopes(steps, w, xs, [y, *g])
    elif sizes:
        m_y, *m_g = sizes(w, y, *xs)
    else:
        m_y, m_g = gradients(absolute or f, [x.abs() for x in xs], w.abs())
    for i, x in enumerate(xs):
        assert torch.equal(x, exact(x)), name
        put(f"{name}/x{i}", x, 0)
    if index is not None:
        put(f"{name}/i0", index, 2)
    if not loss:
        put(f"{name}/w", w, 0)
    for key, value, m in [("y", y, m_y)] + [(f"g{i}", g[i], m_g[i]) for i in range(len(xs))]:
        assert torch.isfinite(value).all(), name
        put(f"{name}/{key}", value, 1)
        put(f"{name}/{key}.m", (m.abs() * (1 + 2.0**-20)).expand(value.shape), 0)  # rounded up, not down, to float32


def write(script):
    """Writes all cases: make_NAME.py to NAME.golden."""
    path = pathlib.Path(script)
    path = path.with_name(path.stem.removeprefix("make_") + ".golden")
    path.write_bytes(out)
    print(path.name, len(out), "bytes")
