"""Writes pointwise.golden: see writer.py. The ops of rewind/pointwise.h."""
import torch
import torch.nn.functional as F

from writer import case, exact, gradients, normal, positive, write

# Around 0 and the other kinks, which are included on purpose, and far from them.
spread = exact(torch.cat([torch.linspace(-8, 8, 105), torch.tensor([0.0, 3, -3, 6, -0.0, 2.0**-9])])).reshape(3, 37)
far = exact(torch.linspace(-60, 60, 45)).reshape(3, 5, 3)
for variant, x in [("", spread), (".far", far)]:
    for name, f in [("elu", lambda x: F.elu(x, 1.7)), ("leaky_relu", lambda x: F.leaky_relu(x, 0.2)),
                    ("relu6", F.relu6), ("sign", lambda x: x * torch.sign(x))]:
        case(name + variant, f, [x], sizes=lambda w, y, x: (y, gradients(f, [x], w)[1][0]))
    # PyTorch's slope is x / 3 + 1 / 2, whose terms cancel.
    case("hardswish" + variant, F.hardswish, [x], sizes=lambda w, y, x: (y, w * (x.abs() / 3 + 0.5)))


def power(variant, a, b):
    def sizes(w, y, a, b):
        steep = b.abs() * a ** (b - 1) * (1 + ((b - 1) * a.log()).abs())
        return (y, (w.abs() * steep).sum_to_size(a.shape), (w.abs() * y * a.log().abs()).sum_to_size(b.shape))
    case("pow" + variant, torch.pow, [a, b], sizes=sizes)


power("", positive(2, 1, 37), normal(3, 1))
power(".same", positive(5, 19), normal(5, 19))
# Powers of 0, and to the power of 0: bases without a logarithm, and products of 0 and infinity.
case("pow.corners", torch.pow, [torch.tensor([0.0, 0, 0, 2, 2]), torch.tensor([2.0, 0, 1, 0, -1])],
     sizes=lambda w, y, a, b: (y, *[1 + x for x in gradients(torch.pow, [a, b], w.abs())[1]]))
for variant, x in [("", spread), (".far", far)]:
    # An error of x / 1.5 is one of the exponential, times x / 1.5. PyTorch's gradient rounds alpha to float32: 1.5 is
    # exact there.
    case("celu" + variant, lambda x: F.celu(x, 1.5), [x],
         sizes=lambda w, y, x: (y, w * torch.where(x > 0, 1, (x / 1.5).exp() * (1 - x / 1.5))))
write(__file__)
