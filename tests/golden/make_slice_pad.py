"""Writes select.golden: see writer.py. Slices, pads, and leaves without storage."""
import torch
import torch.nn.functional as F

from writer import case, gradients, normal, positive, write


def own(f):
    """Magnitudes: its own values, and gradients of a nonnegative upstream gradient."""
    return lambda w, y, *xs: (y, *gradients(f, xs, w.abs())[1])


def exact(name, f, *xs):
    case(name, f, xs, sizes=own(f))


exact("select", lambda x: x.select(1, 1), normal(4, 5, 6))
exact("select_last", lambda x: x.select(-1, -1), normal(4, 5, 6))
exact("unsqueeze", lambda x: x.unsqueeze(1), normal(4, 5))
exact("unsqueeze_last", lambda x: x.unsqueeze(-1), normal(4, 5))


def unbound(x):
    part = list(x.unbind(1))
    part[1], part[-1] = part[-1], part[1]
    return torch.stack(part[1:], 1)


exact("unbind", unbound, normal(4, 5, 6))
exact("stack", lambda a, b, c: torch.stack([a, b, c], 1), normal(4, 5), normal(4, 5), normal(4, 5))
exact("stack_last", lambda a, b: torch.stack([a, b], -1), normal(4, 5), normal(4, 5))
exact("unfold", lambda x: x.unfold(1, 3, 2), normal(2, 9, 5))
exact("unfold_last", lambda x: x.unfold(-1, 4, 1), normal(2, 9))
exact("roll", lambda x: x.roll(-3, 1), normal(4, 5, 6))
exact("flip", lambda x: x.flip(1), normal(4, 5, 6))

around, cut = (1, 2, 2, 0), (-1, 2, 3, -2)
exact("pad", lambda x: F.pad(x, around, value=-1.25), normal(4, 5, 6))
exact("pad_cut", lambda x: F.pad(x, cut, value=-1.25), normal(4, 5, 6))
for mode in ("reflect", "replicate", "circular"):
    exact("pad_" + mode, lambda x: F.pad(x, around, mode=mode), normal(4, 5, 6))
    exact("pad_last_" + mode, lambda x: F.pad(x, around[:2], mode=mode), normal(4, 5))


def numbers(x):
    n = x.shape[-1]
    row = torch.arange(3, 3 - 0.5 * n, -0.5) + F.one_hot(torch.tensor([2, 0]), n).to(x.dtype)[0]
    return x * row + (torch.full(x.shape, 0.75) - torch.ones(n) + torch.zeros(()))


case("numbers", numbers, [positive(4, 5)], sizes=lambda w, y, x: (x * 4 + 1, gradients(numbers, [x], w)[1][0]))

write(__file__)
