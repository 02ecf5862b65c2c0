"""Writes conv.golden: see writer.py. Convolutions; the numbers of a case stand in conv_rows.c too."""
import torch
import torch.nn.functional as F

from writer import case, normal, write


def conv(name, x, weight, bias=False, transposed=False, **more):
    f = F.conv_transpose2d if transposed else F.conv2d
    groups = more.get("groups", 1)
    extra = [normal(weight[1] * groups if transposed else weight[0])] if bias else []
    case(name, lambda x, w, *b: f(x, w, *b, **more), [normal(*x), normal(*weight, size=0.5)] + extra)


conv("conv2d", (2, 3, 7, 6), (5, 3, 3, 3))
conv("conv2d_bias", (2, 3, 8, 7), (4, 3, 3, 2), bias=True, stride=2, padding=1)
conv("conv2d_groups", (1, 4, 9, 9), (6, 2, 3, 3), bias=True, padding=2, dilation=2, groups=2)
conv("conv2d_depthwise", (2, 19, 5, 4), (19, 1, 3, 3), padding=1, groups=19)
conv("conv2d_depthwise.image", (1, 19, 9, 9), (19, 1, 3, 3), padding=1, groups=19)
conv("conv2d_point", (3, 33, 4, 5), (17, 33, 1, 1), stride=2)
conv("conv2d_wide", (2, 16, 9, 9), (32, 16, 3, 3), padding=1)
conv("conv_transpose2d", (2, 4, 5, 3), (4, 3, 2, 2), bias=True, transposed=True, stride=2)
conv("conv_transpose2d_more", (2, 4, 5, 3), (4, 3, 3, 3), transposed=True, stride=2, padding=1, output_padding=1,
     groups=2)


def maximum(name, x, *how):
    case(name, lambda x: F.max_pool2d(x, *how), [torch.randint(-6, 7, x) / 2],
         sizes=lambda w, y, x: (y, torch.autograd.grad((F.max_pool2d(v := x.clone().requires_grad_(), *how) *
                                                        w.abs()).sum(), [v])[0]))


# Halves: many are equal, and the first of them is taken.
maximum("max_pool2d", (2, 5, 7, 8), (3, 3), 2, 1)
maximum("max_pool2d_even", (2, 19, 6, 6), (2, 2))
case("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), [normal(2, 5, 7, 8)])
case("avg_pool2d_inside", lambda x: F.avg_pool2d(x, (2, 3), 1, 1, count_include_pad=False), [normal(2, 5, 7, 8)])
case("global_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), [normal(2, 19, 5, 3)])

write(__file__)
