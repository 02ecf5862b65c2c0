"""Writes compare.golden: see writer.py. Comparisons, and selection by them."""
import torch

from writer import case, gradients, normal, positive, write

OPS = [("eq", torch.eq), ("ne", torch.ne), ("lt", torch.lt), ("le", torch.le), ("gt", torch.gt), ("ge", torch.ge)]


def own(f):
    """Magnitudes: its own values, and gradients of a nonnegative upstream gradient."""
    return lambda w, y, *xs: (y, *gradients(f, xs, w.abs())[1])


def ties(*shape):
    return torch.randint(-3, 4, shape) / 2


for name, compare in OPS:
    f = lambda a, b: (a + b) * compare(a, b).to(a.dtype)
    case(name, f, [ties(2, 3, 19), ties(3, 1)], sizes=own(f))
    case(name + ".same", f, [ties(5, 19), ties(5, 19)], sizes=own(f))

f = lambda x, a, b: x * torch.where(x > 2, a, b)
case("where", f, [positive(5, 19) for _ in range(3)], sizes=own(f))

f = lambda a, b: torch.where(torch.logical_or(a < b, a > 1), b, a)
case("where_number", f, [normal(2, 3, 19), normal(3, 1)], sizes=own(f))

f = lambda x, z: z + x.masked_fill(torch.logical_and(z > 1 / 64, torch.isfinite(z)), -1.5)
case("masked_fill", f, [normal(2, 3, 19), normal(3, 1)], sizes=own(f))

f = lambda x: torch.clamp(x, -0.5, 0.75)
x = normal(3, 37)
assert not ((x == -0.5) | (x == 0.75)).any()
case("clamp", f, [x], sizes=own(f))
# At a bound the gradient is 0 from PyTorch 2.15 on; earlier versions passed it on.
x = torch.randint(-8, 9, (3, 37)) / 8
assert (x == -0.5).any() and (x == 0.75).any()
case("clamp.bounds", f, [x], sizes=own(f))

f = lambda x, low, high: torch.clamp(x, low, high)
x, low, high = normal(3, 37), normal(37), normal(3, 1)
assert not ((x == low) | (x == high) | (low == high)).any()
case("clamp_tensor", f, [x, low, high], sizes=own(f))

write(__file__)
