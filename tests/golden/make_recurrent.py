"""Writes recurrent.golden: see writer.py. Ops along a sequence."""
import torch
import torch.nn.functional as F

from writer import case, normal, write


def causal_conv1d(x, weight, bias=None):
    x = F.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0))
    return F.conv1d(x, weight[:, None], bias, groups=weight.shape[0]).transpose(1, 2)


case("causal_conv1d", causal_conv1d, [normal(2, 9, 5), normal(5, 4), normal(5)])
case("causal_conv1d.plain", causal_conv1d, [normal(1, 6, 35), normal(35, 2)])
case("causal_conv1d.short", causal_conv1d, [normal(3, 2, 4), normal(4, 7), normal(4)])


def named(weights, width, suffix):
    """The parameters of a torch.nn module: for the input, for the state, and both biases, concatenated in one
    tensor."""
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    w_in = weights.shape[1] - width - 2
    parts = weights[:, :w_in], weights[:, w_in:-2], weights[:, -2], weights[:, -1]
    return {name + suffix: part for name, part in zip(names, parts)}


def lstm(x, h, c, weights):
    width, sequence = h.shape[1], x.dim() == 3
    module = (torch.nn.LSTM if sequence else torch.nn.LSTMCell)(x.shape[-1], width)
    state = (h[None], c[None]) if sequence else (h, c)
    a, b = torch.func.functional_call(module, named(weights, width, "_l0" if sequence else ""), (x, state))
    return torch.cat([a, *b]) if sequence else torch.cat([a, b], -1)


def gru(x, h, weights):
    width, sequence = h.shape[1], x.dim() == 3
    module = (torch.nn.GRU if sequence else torch.nn.GRUCell)(x.shape[-1], width)
    y = torch.func.functional_call(module, named(weights, width, "_l0" if sequence else ""),
                                   (x, h[None] if sequence else h))
    return y[0] if sequence else y


# Repeats the computation in the cells' order, for the error of each op.
def linear(r, x, w, bias):
    return r.off(r.product(x, w) + r.of_rows(bias, (x.shape[0], w.shape[0])))


def lstm_steps(r, x, h, c, weights):
    w, made = named(weights, h.shape[1], ""), []
    for step in x if x.dim() == 3 else x[None]:
        z = r.off(linear(r, step, w["weight_ih"], w["bias_ih"]) + linear(r, h, w["weight_hh"], w["bias_hh"]))
        i, f, a, o = z.chunk(4, -1)
        i, f, a, o = (r.function(gate, kind) for gate, kind in ((i, "sigmoid"), (f, "sigmoid"), (a, "tanh"),
                                                                (o, "sigmoid")))
        c = r.off(r.off(f * c) + r.off(i * a))
        h = r.off(o * r.function(c, "tanh"))
        made.append(h)
    return torch.stack([*made, h, c]) if x.dim() == 3 else torch.cat([h, c], -1)


def gru_steps(r, x, h, weights):
    w, made = named(weights, h.shape[1], ""), []
    for step in x if x.dim() == 3 else x[None]:
        of_x, of_h = linear(r, step, w["weight_ih"], w["bias_ih"]), linear(r, h, w["weight_hh"], w["bias_hh"])
        (xr, xz, xn), (hr, hz, hn) = of_x.chunk(3, -1), of_h.chunk(3, -1)
        reset, z = r.function(r.off(xr + hr), "sigmoid"), r.function(r.off(xz + hz), "sigmoid")
        n = r.function(r.off(xn + r.off(reset * hn)), "tanh")
        h = r.off(n + r.off(z * r.off(h - n)))
        made.append(h)
    return torch.stack(made) if x.dim() == 3 else h


def layer(name, shape, width):
    x, h, c = normal(*shape, size=0.5), normal(shape[-2], width, size=0.25), normal(shape[-2], width, size=0.25)
    w = [normal(gates * width, shape[-1] + width + 2, size=0.125) for gates in (3, 4)]
    case("gru" + name, gru, [x, h, w[0]], steps=gru_steps)
    case("lstm" + name, lstm, [x, h, c, w[1]], steps=lstm_steps)


layer("", (3, 7), 5)
layer(".sequence", (3, 2, 6), 5)
layer(".one", (1, 2, 3), 19)


def ssd_scan(x, dt, bc, rest):
    """Place by place; dt in 16ths, b and c in one tensor, and for each head a and its states."""
    (batch, length, heads, p), (groups, n) = x.shape, bc.shape[3:]
    a, state, made = rest[:, 0], rest[:, 1:].reshape(heads, batch, p, n).transpose(0, 1), []
    b, c = bc.repeat_interleave(heads // groups, 3).unbind(2)
    for t in range(length):
        step = dt[:, t] / 16
        state = (step * a).exp()[..., None, None] * state + (step[..., None] * x[:, t])[..., None] * b[:, t, :, None]
        made.append((state * c[:, t, :, None]).sum(-1))
    return torch.cat([torch.stack(made, 1).flatten(), state.flatten()])


for name, length, heads, groups in [("", 9, 4, 2), (".rest", 7, 3, 1), (".one", 2, 2, 2)]:
    case("ssd_scan" + name, ssd_scan,
         [normal(2, length, heads, 5), normal(2, length, heads), normal(2, length, 2, groups, 4),
          normal(heads, 1 + 2 * 5 * 4)])

write(__file__)
