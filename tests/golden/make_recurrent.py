"""Writes recurrent.golden: see writer.py. What goes along a sequence."""
import torch.nn.functional as F

from writer import case, normal, write


def causal_conv1d(x, weight, bias=None):
    x = F.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0))
    return F.conv1d(x, weight[:, None], bias, groups=weight.shape[0]).transpose(1, 2)


case("causal_conv1d", causal_conv1d, [normal(2, 9, 5), normal(5, 4), normal(5)])
case("causal_conv1d.plain", causal_conv1d, [normal(1, 6, 35), normal(35, 2)])
case("causal_conv1d.short", causal_conv1d, [normal(3, 2, 4), normal(4, 7), normal(4)])

write(__file__)
