#!/usr/bin/env python3
"""Writes optimizers.h: the results of PyTorch's optimizers for a few numbers in float64. Run it in this folder.

Lion is not in PyTorch: its update is implemented here as in the authors' code (github.com/google/automl,
lion_pytorch.py). The inputs are sums of few powers of two, as in tests/ops/optimizers.c."""
import pathlib

import torch

N, STEPS = 6, 5
torch.set_default_dtype(torch.float64)


def start(i):
    return ((i * 40503 >> 3 & 0x7F) - 50) / 32


def gradient(i, step):
    return (((i * 31 + step * 17) * 2654435761 >> 9 & 0x7F) - 63) / 64


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group['betas']
            for p in group['params']:
                m = self.state[p].setdefault('exp_avg', torch.zeros_like(p))
                p.mul_(1 - group['lr'] * group['weight_decay'])
                p.add_(torch.sign(m * beta1 + p.grad * (1 - beta1)), alpha=-group['lr'])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


CASES = {
    'sgd': lambda p: torch.optim.SGD(p, lr=0.0625),
    'sgd, decay': lambda p: torch.optim.SGD(p, lr=0.0625, weight_decay=0.5),
    'sgd, momentum': lambda p: torch.optim.SGD(p, lr=0.0625, momentum=0.75),
    'sgd, dampening': lambda p: torch.optim.SGD(p, lr=0.0625, momentum=0.75, dampening=0.25, weight_decay=0.5),
    'sgd, nesterov': lambda p: torch.optim.SGD(p, lr=0.0625, momentum=0.75, nesterov=True, weight_decay=0.5),
    'adam': lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=0.3),
    'adam, decay': lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=0.3, weight_decay=0.2),
    'adamw': lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.8, 0.95), eps=0.3, weight_decay=0.2),
    'lion': lambda p: Lion(p, lr=0.0625, betas=(0.875, 0.125), weight_decay=0.25),
}


def run(make):
    p = torch.nn.Parameter(torch.tensor([start(i) for i in range(N)]))
    optimizer = make([p])
    for step in range(STEPS):
        p.grad = torch.tensor([gradient(i, step) for i in range(N)])
        optimizer.step()
    return p.tolist()


def average(decay):
    model = torch.nn.Linear(N, 1, bias=False)
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
    for step in range(STEPS):
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[gradient(i, step) for i in range(N)]]))
        averaged.update_parameters(model)
    return averaged.module.weight.flatten().tolist()


def row(name, values):
    return f'    {{ "{name}",\n      {{ ' + ',\n        '.join(v.hex() for v in values) + ' } },\n'


rows = [row(name, run(make)) for name, make in CASES.items()] + [row('average', average(0.75))]
pathlib.Path('optimizers.h').write_text(
    f'/* Written by make_optimizers.py with PyTorch {torch.__version__.split("+")[0]}. */\n'
    f'enum {{ GOLDEN_N = {N}, GOLDEN_STEPS = {STEPS} }};\n\n'
    'static const struct {\n    const char *name;\n    double want[GOLDEN_N];\n} golden_rows[] = {\n'
    + ''.join(rows) + '};\n')
