"""Writes gather.golden: see writer.py. Elements by index, and sums by index."""
import torch
import torch.nn.functional as F

from writer import case, gradients, normal, write


def own(f):
    """Magnitudes: its own values, and gradients of a nonnegative upstream gradient."""
    return lambda w, y, *xs: (y, *gradients(f, xs, w.abs())[1])


def at(n, *shape):
    return torch.randint(0, n, shape)


i = at(5, 3, 11, 4)
case("gather", lambda x: x.gather(1, i), [normal(4, 5, 6)], index=i, sizes=own(lambda x: x.gather(1, i)))
i = at(6, 4, 30)
case("gather_last", lambda x: x.gather(-1, i), [normal(4, 6)], index=i, sizes=own(lambda x: x.gather(-1, i)))

i = at(5, 3, 11, 4)
case("scatter_add", lambda x, s: x.scatter_add(1, i, s), [normal(4, 5, 6), normal(3, 11, 4)], index=i)
i = at(6, 4, 30)
case("scatter_add_last", lambda x, s: x.scatter_add(-1, i, s), [normal(4, 6), normal(4, 30)], index=i)

i = at(5, 12)
case("index_select", lambda x: x.index_select(1, i), [normal(4, 5, 6)], index=i,
     sizes=own(lambda x: x.index_select(1, i)))

j = at(7, 4, 9)
for mode in ("sum", "mean"):
    case("bag_" + mode, lambda x: F.embedding_bag(j, x, mode=mode), [normal(7, 19)], index=j)

# Numbers that occur once in a row: PyTorch does not specify which of two equal ones it chooses.
x = (torch.stack([torch.randperm(33) for _ in range(5)]).to(torch.float64) - 16) / 8
case("topk", lambda x: x.topk(7, -1).values, [x], sizes=own(lambda x: x.topk(7, -1).values))
x = x.T.contiguous()
case("topk_outer", lambda x: x.topk(33, 0).values, [x], sizes=own(lambda x: x.topk(33, 0).values))

k = at(7, 4, 9)
weights = normal(4, 9)
none = {"mode": "mean", "padding_idx": 3}


def most(x):
    return F.embedding_bag(k, x, mode="max")


case("bag_weighted", lambda x, w: F.embedding_bag(k, x, mode="sum", per_sample_weights=w), [normal(7, 19), weights],
     index=k)
case("bag_padded", lambda x: F.embedding_bag(k, x, **none), [normal(7, 19)], index=k)
case("bag_max", most, [normal(7, 19)], index=k, sizes=own(most))
flat, begin = k.reshape(-1), torch.tensor([0, 0, 3, 3])
case("bag_offsets", lambda x: F.embedding_bag(flat, x, begin, mode="sum"), [normal(7, 19)], index=flat)
case("bag_offsets_weighted", lambda x, w: F.embedding_bag(flat, x, begin, mode="sum", per_sample_weights=w),
     [normal(7, 19), normal(36)], index=flat)
case("bag_offsets_padded", lambda x: F.embedding_bag(flat, x, begin, **none), [normal(7, 19)], index=flat)


def most_of_each(x, **options):
    return F.embedding_bag(flat, x, begin, mode="max", **options)


def most_but_padding(x):
    return most_of_each(x, padding_idx=3)


# Repeated numbers: the gradient goes to the first row of equal ones in a bag.
same = torch.randint(-2, 3, (7, 19)).to(torch.float64)
case("bag_offsets_max", most_of_each, [normal(7, 19)], index=flat, sizes=own(most_of_each))
case("bag_offsets_max_ties", most_of_each, [same], index=flat, sizes=own(most_of_each))
case("bag_offsets_max_padded", most_but_padding, [normal(7, 19)], index=flat, sizes=own(most_but_padding))
ends = torch.tensor([0, 0, 3, 3, 36])
case("bag_ends", lambda x: F.embedding_bag(flat, x, ends, mode="mean", include_last_offset=True), [normal(7, 19)],
     index=flat)

write(__file__)
