"""Writes conv.golden: see writer.py. Convolutions; conv_op_table.c repeats the parameters of a case."""
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


# Halves: many are equal, and the first of them is chosen.
maximum("max_pool2d", (2, 5, 7, 8), (3, 3), 2, 1)
maximum("max_pool2d_even", (2, 19, 6, 6), (2, 2))
case("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), [normal(2, 5, 7, 8)])
case("avg_pool2d_inside", lambda x: F.avg_pool2d(x, (2, 3), 1, 1, count_include_pad=False), [normal(2, 5, 7, 8)])
case("global_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), [normal(2, 19, 5, 3)])

maximum("max_pool2d_dilated", (2, 5, 9, 8), (3, 2), 1, 1, 2)
maximum("max_pool2d_up", (2, 19, 6, 8), 3, 2, 1, 1, True)
maximum("max_pool2d_all", (1, 3, 12, 11), 3, 3, 1, 2, True)
# Elements of the padding count, those of a last window beyond it do not.
case("avg_pool2d_up", lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True), [normal(2, 5, 6, 7)])
case("avg_pool2d_up.gap", lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True), [normal(1, 3, 4, 4)])
case("avg_pool2d_up_inside", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), [normal(2, 5, 6, 8)])
case("avg_pool2d_divisor", lambda x: F.avg_pool2d(x, 2, 3, 0, True, True, 3), [normal(2, 4, 7, 6)])
for height, width in ((3, 4), (7, 7), (1, 1)):
    case(f"adaptive_avg_pool2d_{height}x{width}", lambda x: F.adaptive_avg_pool2d(x, (height, width)),
         [normal(2, 19, 5, 6)])
    case(f"adaptive_max_pool2d_{height}x{width}", lambda x: F.adaptive_max_pool2d(x, (height, width)),
         [torch.randint(-6, 7, (2, 19, 5, 6)) / 2],
         sizes=lambda w, y, x: (y, torch.autograd.grad((F.adaptive_max_pool2d(v := x.clone().requires_grad_(),
                                                                              (height, width)) * w.abs()).sum(),
                                                       [v])[0]))
# Windows with more than 255 elements.
case("adaptive_max_pool2d_far", lambda x: F.adaptive_max_pool2d(x, (1, 2)),
     [torch.randint(-200, 201, (1, 2, 20, 33)) / 2],
     sizes=lambda w, y, x: (y, torch.autograd.grad((F.adaptive_max_pool2d(v := x.clone().requires_grad_(), (1, 2)) *
                                                    w.abs()).sum(), [v])[0]))

write(__file__)
