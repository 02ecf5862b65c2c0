"""Writes moe.golden: whole layers of experts, by a loop over all of them."""
import math

import torch
import torch.nn.functional as F

from writer import case, normal, number, write

EXPERTS, CHOSEN = 6, 2  # of cases/moe.h


def stays(index, weights, rule):
    """[T, k]: the slots kept with a capacity of half the average load: Megatron's policies position and probs."""
    stay, tokens = torch.zeros_like(index), len(index)
    for e in range(EXPERTS):
        slots = (index == e).nonzero().tolist()
        if rule == "probs":
            slots.sort(key=lambda s: -weights[s[0], s[1]].item())
        for t, s in slots[:math.ceil(tokens * CHOSEN / EXPERTS * 0.5)]:
            stay[t, s] = 1
    assert 0 < stay.sum() < stay.numel()
    return stay


def weights_of(s, index, score, groups):
    w = s.gather(1, index)
    w = w.softmax(-1) if score == "chosen" else w
    return 2.5 * w / w.sum(-1, keepdim=True) if groups else w


# Repeats the computation of the experts in the ops' order, for the error of each op.
def softmax(r, z):
    e = r.off(r.off(z - z.detach().amax(-1, keepdim=True)).exp())
    return r.off(e / r.of_rows(r.sum(e)[:, None], e.shape))


def steps_of_weights(r, z, index, score, groups):
    s = z if score == "chosen" else r.function(z, "sigmoid") if score == "sigmoid" else softmax(r, z)
    w = s.gather(1, index)
    w = softmax(r, w) if score == "chosen" else w
    return r.off(2.5 * r.off(w / r.of_rows(r.sum(w)[:, None], w.shape))) if groups else w


def layer(name, x, router, first, second, score, groups=False, rule=None, bias=0):
    def scores(x, router):
        z = x @ router.T
        return {"softmax": z.softmax(-1), "sigmoid": z.sigmoid(), "chosen": z}[score]

    def chosen(s):
        if groups:
            best = s.reshape(-1, 3, 2).amax(-1).topk(2).indices
            s = s.masked_fill(~F.one_hot(best, 3).sum(1).bool().repeat_interleave(2, -1), -1e30)
        gaps = s.sort(descending=True).values
        assert (gaps[:, CHOSEN - 1] - gaps[:, CHOSEN]).min() > 1e-4, "a near tie: take other numbers"
        return s.topk(CHOSEN).indices

    with torch.no_grad():  # the choice has no gradient, and the compared scores do not affect the weights
        added = torch.tensor([bias * number(e, 7, False) for e in range(EXPERTS)])
        s = scores(x, router)
        index = chosen(s + added)
        changed = (index.sort().values != chosen(s).sort().values).any(-1)
        assert not bias or 0 < changed.sum() < len(x), "the bias decides nothing, or all"

    def weights(x, router):
        return weights_of(scores(x, router), index, score, groups)

    with torch.no_grad():
        stay = stays(index, weights(x, router), rule) if rule else torch.ones_like(index)

    def experts(x, router, first, second):
        w, y = weights(x, router), torch.zeros_like(x)
        for e in range(EXPERTS):
            gate, up = (x @ first[e].T).chunk(2, -1)
            share = (w * stay * (index == e)).sum(-1, keepdim=True)
            y = y + (share * F.silu(gate) * up) @ second[e].T
        return y

    def steps(r, x, router, first, second):
        w = steps_of_weights(r, r.product(x, router), index, score, groups)
        rows = r.of_rows(x[:, None], (len(x), CHOSEN, x.shape[1]))  # their gradients are summed
        gate, up = r.off(r.product(rows, first[index])).chunk(2, -1)
        h = r.off(r.off(gate * r.function(gate, "sigmoid")) * up)
        h = r.off(h * r.of_rows((w * stay)[..., None], h.shape))
        return r.sum(r.off(r.product(h, second[index])), 1)

    case(name, experts, [x, router, first, second], steps=steps)


def operands(tokens, h, f):
    return normal(tokens, h), normal(EXPERTS, h), normal(EXPERTS, 2 * f, h, size=0.5), normal(EXPERTS, h, f, size=0.5)


layer("moe_chosen", *operands(9, 8, 5), "chosen")
layer("moe_softmax", *operands(9, 8, 5), "softmax")
layer("moe_sigmoid", *operands(7, 8, 6), "sigmoid", groups=True)
layer("moe_sigmoid.one", *operands(1, 8, 3), "sigmoid", groups=True)
layer("moe_by_position", *operands(8, 5, 3), "softmax", rule="position")
layer("moe_by_weight", *operands(8, 5, 3), "softmax", rule="probs")
layer("moe_biased_sigmoid", *operands(9, 8, 5), "sigmoid", groups=True, bias=0.125)
layer("moe_biased_softmax", *operands(9, 8, 5), "softmax", bias=0.125)

write(__file__)
