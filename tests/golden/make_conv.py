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

write(__file__)
