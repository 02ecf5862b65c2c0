"""Golden values of moe.golden: whole layers of experts, by a loop over all of them."""
import math

import torch
import torch.nn.functional as F

from writer import case, normal, write

EXPERTS, CHOSEN = 6, 2  # of cases/moe.h


def stays(index, weights, rule):
    """[T, k]: the slots that stay of experts with half the room they need: Megatron's policies position and probs."""
    stay, tokens = torch.zeros_like(index), len(index)
    for e in range(EXPERTS):
        slots = (index == e).nonzero().tolist()
        if rule == "probs":
            slots.sort(key=lambda s: -weights[s[0], s[1]].item())
        for t, s in slots[:math.ceil(tokens * CHOSEN / EXPERTS * 0.5)]:
            stay[t, s] = 1
    assert 0 < stay.sum() < stay.numel()
    return stay


def layer(name, x, router, first, second, score, groups=False, rule=None):
    def scores(x, router):
        z = x @ router.T
        return {"softmax": z.softmax(-1), "sigmoid": z.sigmoid(), "chosen": z}[score]

    with torch.no_grad():  # the choice has no gradient
        s = scores(x, router)
        if groups:
            best = s.reshape(-1, 3, 2).amax(-1).topk(2).indices
            s = s.masked_fill(~F.one_hot(best, 3).sum(1).bool().repeat_interleave(2, -1), -1e30)
        index = s.topk(CHOSEN).indices
        gaps = s.sort(descending=True).values
        assert (gaps[:, CHOSEN - 1] - gaps[:, CHOSEN]).min() > 1e-4, "a near tie: take other numbers"

    def weights(x, router):
        w = scores(x, router).gather(1, index)
        w = w.softmax(-1) if score == "chosen" else w
        return 2.5 * w / w.sum(-1, keepdim=True) if groups else w

    with torch.no_grad():
        stay = stays(index, weights(x, router), rule) if rule else torch.ones_like(index)

    def experts(x, w, first, second, act):
        y = torch.zeros_like(x)
        for e in range(EXPERTS):
            gate, up = (x @ first[e].T).chunk(2, -1)
            share = (w * stay * (index == e)).sum(-1, keepdim=True)
            y = y + (share * act(gate, up)) @ second[e].T
        return y

    def f(x, router, first, second):
        return experts(x, weights(x, router), first, second, lambda g, u: F.silu(g) * u)

    def most(x, router, first, second):  # of absolute values: no slope of f is steeper
        z = x @ router.T  # a softmax moves with all of them
        w = 2.5 * (1 + z.gather(1, index) + z.sum(-1, keepdim=True)) * 2
        return experts(x, w, first, second, lambda g, u: 2 * (1 + g) * u)
    case(name, f, [x, router, first, second], absolute=most)


def operands(tokens, h, f):
    return normal(tokens, h), normal(EXPERTS, h), normal(EXPERTS, 2 * f, h, size=0.5), normal(EXPERTS, h, f, size=0.5)


layer("moe_chosen", *operands(9, 8, 5), "chosen")
layer("moe_softmax", *operands(9, 8, 5), "softmax")
layer("moe_sigmoid", *operands(7, 8, 6), "sigmoid", groups=True)
layer("moe_sigmoid.one", *operands(1, 8, 3), "sigmoid", groups=True)
layer("moe_by_position", *operands(8, 5, 3), "softmax", rule="position")
layer("moe_by_weight", *operands(8, 5, 3), "softmax", rule="probs")

write(__file__)
