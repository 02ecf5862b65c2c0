"""All models of bench/models in PyTorch: the same layers and shapes. A model is called with its input, and `run`, which
calls each part that may be checkpointed."""
import math

import torch
from torch import nn
from torch.nn import functional as F

import pytorch_models

PRESETS = {  # width; of transformers as in bench/models
    "images": {"tiny": (8, 256), "small": (24, 256), "published": (64, 1000)},
    "vit": {"tiny": (4, 64, 4, 8, 256), "small": (6, 256, 8, 8, 256), "published": (12, 768, 12, 16, 1000)},
    "t5": {"tiny": (2, 64, 4, 16, 192, 256, False), "small": (3, 256, 8, 32, 704, 256, True),
           "t5-small": (6, 512, 8, 64, 2048, 32128, False), "t5-v1.1-small": (8, 512, 6, 64, 1024, 32128, True)},
    "deepseek": {"tiny": (4, 64, 4, 192, 8, 2, 4, 2, 32, 16, 8, 32, 24), "small": (6, 256, 8, 704, 16, 4, 4, 2, 96,
                                                                                   32, 16, 96, 64)},
    "mamba2": {"tiny": (4, 64, 16, 16, 256), "small": (6, 256, 32, 64, 256),
               "mamba2-130m": (24, 768, 64, 128, 50288)},
}


# ---- networks for images ----

def conv(i, o, k, stride=1, groups=1, bias=False):
    return nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=bias)


def conv_bn_relu(*given, **named):
    c = conv(*given, **named)
    return nn.Sequential(c, nn.BatchNorm2d(c.out_channels), nn.ReLU(True))


def bn_relu_conv(i, o, k):
    return nn.Sequential(nn.BatchNorm2d(i), nn.ReLU(True), conv(i, o, k))


class Bottleneck(nn.Module):
    def __init__(self, i, width, stride, projects):
        super().__init__()
        self.body = nn.Sequential(conv_bn_relu(i, width, 1), conv_bn_relu(width, width, 3, stride),
                                  conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width))
        self.side = nn.Sequential(conv(i, 4 * width, 1, stride), nn.BatchNorm2d(4 * width)) if projects else None

    def forward(self, x):
        return F.relu(self.body(x) + (self.side(x) if self.side else x), inplace=True)


class Dense(nn.Module):
    def __init__(self, i, growth):
        super().__init__()
        self.body = nn.Sequential(bn_relu_conv(i, 4 * growth, 1), bn_relu_conv(4 * growth, growth, 3))

    def forward(self, x):
        return torch.cat((x, self.body(x)), 1)


class Classifier(nn.Module):
    def __init__(self, parts, i, classes, before=()):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.end = nn.Sequential(*before, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, classes))

    def forward(self, x, labels, run):
        for part in self.parts:
            x = run(part, x)
        return F.cross_entropy(self.end(x).float(), labels)


def resnet50(w, classes):
    parts, i = [nn.Sequential(conv_bn_relu(3, w, 7, 2), nn.MaxPool2d(3, 2, 1))], w
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for b in range(blocks):
            parts.append(Bottleneck(i, w << stage, 2 if stage and not b else 1, not b))
            i = 4 * (w << stage)
    return Classifier(parts, i, classes)


def mobilenet(w, classes):
    parts, i = [conv_bn_relu(3, w // 2, 3, 2)], w // 2
    for times, stride in ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2)) + ((16, 1),) * 5 + ((32, 2), (32, 1)):
        o = times * w // 2
        parts.append(nn.Sequential(conv_bn_relu(i, i, 3, stride, i), conv_bn_relu(i, o, 1)))
        i = o
    return Classifier(parts, i, classes)


def densenet121(w, classes):
    parts, i = [nn.Sequential(conv_bn_relu(3, w, 7, 2), nn.MaxPool2d(3, 2, 1))], w
    for stage, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            parts.append(Dense(i, w // 2))
            i += w // 2
        if stage < 3:
            parts.append(nn.Sequential(bn_relu_conv(i, i // 2, 1), nn.AvgPool2d(2)))
            i //= 2
    return Classifier(parts, i, classes, (nn.BatchNorm2d(i), nn.ReLU(True)))


class VGG16(nn.Module):
    def __init__(self, w, classes):
        super().__init__()
        self.parts, i = nn.ModuleList(), 3
        for stage, n in enumerate((2, 2, 3, 3, 3)):
            o, layers = w << min(stage, 3), []
            for _ in range(n):
                layers += [conv(i, o, 3, bias=True), nn.ReLU(True)]
                i = o
            self.parts.append(nn.Sequential(*layers, nn.MaxPool2d(2)))
        self.hidden = nn.ModuleList(nn.Sequential(nn.Linear(n, 64 * w), nn.ReLU(True), nn.Dropout())
                                    for n in (49 * i, 64 * w))
        self.end = nn.Linear(64 * w, classes)

    def forward(self, x, labels, run):
        for part in self.parts:
            x = run(part, x)
        x = F.adaptive_avg_pool2d(x, 7).flatten(1)
        for part in self.hidden:
            x = run(part, x)
        return F.cross_entropy(self.end(x).float(), labels)


def twice(i, o):
    return nn.Sequential(conv(i, o, 3, bias=True), nn.ReLU(True), conv(o, o, 3, bias=True), nn.ReLU(True))


class Up(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.up, self.body = nn.ConvTranspose2d(2 * o, o, 2, 2), twice(2 * o, o)

    def forward(self, skip, x):
        return self.body(torch.cat((skip, self.up(x)), 1))


class UNet(nn.Module):
    def __init__(self, w, classes):
        super().__init__()
        self.down = nn.ModuleList(twice(3 if not i else w << (i - 1), w << i) for i in range(5))
        self.up = nn.ModuleList(Up(w << i) for i in (3, 2, 1, 0))
        self.end = conv(w, 1, 1, bias=True)

    def forward(self, x, labels, run):
        image, skips = x, []
        for part in self.down[:-1]:
            skips.append(run(part, x))
            x = F.max_pool2d(skips[-1], 2)
        x = run(self.down[-1], x)
        for part in self.up:
            x = run(part, skips.pop(), x)
        return F.mse_loss(self.end(x).sigmoid(), image[:, :1].sigmoid())


# ---- transformers ----

def heads(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


class ViTBlock(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.n = n
        self.ln_1, self.ln_2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = F.scaled_dot_product_attention(*(heads(y, self.n) for y in self.qkv(self.ln_1(x)).chunk(3, -1)))
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(self, layers, width, n, patch, classes, side):
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) / 50)
        self.positions = nn.Parameter(torch.randn(1 + (side // patch) ** 2, width) / 50)
        self.h = nn.ModuleList(ViTBlock(width, n) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, classes)

    def forward(self, x, labels, run):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.positions
        for block in self.h:
            x = run(block, x)
        return F.cross_entropy(self.head(self.norm(x[:, 0])).float(), labels)


class T5Attention(nn.Module):
    def __init__(self, width, n, d, dropout):
        super().__init__()
        self.n, self.dropout = n, dropout
        self.norm, self.q = nn.RMSNorm(width, 1e-6), nn.Linear(width, n * d, bias=False)
        self.kv, self.proj = nn.Linear(width, 2 * n * d, bias=False), nn.Linear(n * d, width, bias=False)

    def forward(self, x, memory=None, bias=None):
        h = self.norm(x)
        q, (k, v) = self.q(h), self.kv(h if memory is None else memory).chunk(2, -1)
        q, k, v = (heads(y, self.n) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, bias, self.dropout, scale=1.0)
        return x + F.dropout(self.proj(y.transpose(1, 2).flatten(2)), self.dropout)


class T5Block(nn.Module):
    def __init__(self, width, n, d, hidden, gated, decodes, dropout):
        super().__init__()
        self.dropout = dropout
        self.attn = T5Attention(width, n, d, dropout)
        self.cross = T5Attention(width, n, d, dropout) if decodes else None
        self.norm, self.up = nn.RMSNorm(width, 1e-6), nn.Linear(width, hidden, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False) if gated else None
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, bias, memory=None):
        x = self.attn(x, bias=bias)
        if self.cross:
            x = self.cross(x, memory)
        h = self.norm(x)
        h = F.gelu(self.gate(h), approximate="tanh") * self.up(h) if self.gate else F.relu(self.up(h))
        return x + F.dropout(self.down(F.dropout(h, self.dropout)), self.dropout)


def buckets(seq, causal):
    far = torch.arange(seq)[:, None] - torch.arange(seq)
    n = 32 if causal else 16
    first = torch.zeros_like(far) if causal else (far < 0).long() * n
    far = far.clamp(min=0) if causal else far.abs()
    large = n // 2 + (torch.log(far.clamp(min=1) / (n // 2)) / math.log(256 / n) * (n // 2)).long()
    return first + torch.where(far < n // 2, far, large.clamp(max=n - 1))


class T5(nn.Module):
    def __init__(self, layers, width, n, d, hidden, vocab, gated, dropout=0.1):
        super().__init__()
        self.width, self.gated, self.dropout = width, gated, dropout
        self.wte = nn.Embedding(vocab, width)
        self.positions = nn.ModuleList(nn.Embedding(32, n) for _ in range(2))
        self.h = nn.ModuleList(nn.ModuleList(T5Block(width, n, d, hidden, gated, decodes, dropout)
                                             for _ in range(layers)) for decodes in (False, True))
        self.norm = nn.ModuleList(nn.RMSNorm(width, 1e-6) for _ in range(2))
        self.head = nn.Linear(width, vocab, bias=False) if gated else None

    def stack(self, i, tokens, memory, run):
        seq = tokens.shape[1]
        bias = self.positions[i](buckets(seq, i == 1)).permute(2, 0, 1)[None]
        if i:
            bias = bias.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), -math.inf)
        x = F.dropout(self.wte(tokens), self.dropout)
        for block in self.h[i]:
            x = run(block, x, bias, memory)
        return F.dropout(self.norm[i](x), self.dropout)

    def forward(self, tokens, targets, run):
        half = tokens.shape[1] // 2
        x = self.stack(1, tokens[:, half:], self.stack(0, tokens[:, :half], None, run), run)
        logits = self.head(x) if self.gated else F.linear(x / math.sqrt(self.width), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets[:, half:].flatten())


def rope(x):
    half = x.shape[-1] // 2
    angle = torch.outer(torch.arange(x.shape[-2]), 10000 ** (-torch.arange(half) / half))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


class SwiGLU(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Routed experts plus a shared one. Rows are sorted by expert; a weight is split once, so that its gradient is
    computed once; each token sums its rows. A loop over experts that adds to the result takes up to twice as long."""

    def __init__(self, width, e, k, groups, best, f):
        super().__init__()
        self.e, self.k, self.groups, self.best = e, k, groups, best
        self.router = nn.Linear(width, e, bias=False)
        self.register_buffer("balance", torch.zeros(e))
        self.up, self.down = (nn.Parameter(torch.randn(e, *s) / 50) for s in ((2 * f, width), (width, f)))
        self.shared = SwiGLU(width, f)
        self.loss = 0

    def forward(self, x):
        rows = x.flatten(0, 1)
        scores = F.linear(rows.float(), self.router.weight.float()).sigmoid()
        with torch.no_grad():
            by_group = (scores + self.balance.float()).unflatten(-1, (self.groups, -1))
            best = by_group.topk(max(1, self.k // self.best), -1).values.sum(-1).topk(self.best, -1).indices
            open_ = torch.zeros(len(rows), self.groups).scatter_(1, best, 1).bool()
            index = by_group.masked_fill(~open_[..., None], -math.inf).flatten(1).topk(self.k, -1).indices
        w = scores.gather(1, index)
        w = 2.5 * w / (w.sum(-1, keepdim=True) + 1e-20)
        load = torch.bincount(index.flatten(), minlength=self.e)
        shares = scores / scores.sum(-1, keepdim=True)
        self.loss = 1e-3 * self.e / (self.k * len(rows) ** 2) * (shares.sum(0) * load).sum()
        order = index.flatten().argsort(stable=True)
        gate, up = self.by_expert(rows[order // self.k], self.up, load).chunk(2, -1)
        h = F.silu(gate) * up * w.flatten()[order, None].to(x.dtype)
        y = self.by_expert(h, self.down, load)[order.argsort()].unflatten(0, (-1, self.k)).sum(1)
        return x + y.view_as(x) + self.shared(x), self.loss


    def by_expert(self, rows, weight, load):
        """The fastest for each type: on CPUs _grouped_mm in float32 is slower than a loop."""
        if rows.dtype == torch.bfloat16:
            return torch._grouped_mm(rows, weight.transpose(1, 2), offs=load.cumsum(0).int())
        return torch.cat([F.linear(x, w) for x, w in zip(rows.split(load.tolist()), weight.unbind(0))])


class DeepSeekBlock(nn.Module):
    def __init__(self, p, dense):
        super().__init__()
        _, w, self.n, hidden, e, k, groups, best, f, self.d, self.rope, q, self.kv_rank = p
        self.ln_1, self.ln_2 = nn.RMSNorm(w, 1e-6), nn.RMSNorm(w, 1e-6)
        self.q = nn.Sequential(nn.Linear(w, q, bias=False), nn.RMSNorm(q, 1e-6),
                               nn.Linear(q, self.n * (self.d + self.rope), bias=False))
        self.kv_a = nn.Linear(w, self.kv_rank + self.rope, bias=False)
        self.kv_b = nn.Sequential(nn.RMSNorm(self.kv_rank, 1e-6),
                                  nn.Linear(self.kv_rank, 2 * self.n * self.d, bias=False))
        self.proj = nn.Linear(self.n * self.d, w, bias=False)
        self.dense = SwiGLU(w, hidden) if dense else None
        self.experts = None if dense else Experts(w, e, k, groups, best, f)

    def attention(self, x):
        q = heads(self.q(x), self.n)
        q = torch.cat((q[..., :self.d], rope(q[..., self.d:])), -1)
        latent, k_rope = self.kv_a(x).split((self.kv_rank, self.rope), -1)
        k, v = heads(self.kv_b(latent), self.n).chunk(2, -1)
        k = torch.cat((k, rope(k_rope[:, None]).expand(-1, self.n, -1, -1)), -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        h = self.ln_2(x)
        if self.dense:
            return x + self.dense(h), torch.zeros(())
        y, loss = self.experts(h)
        return x + y - h, loss


class DeepSeek(nn.Module):
    """Predicts one token after the next one."""

    def __init__(self, *p):
        super().__init__()
        w, vocab = p[1], 256
        self.wte, self.head = nn.Embedding(vocab, w), nn.Linear(w, vocab, bias=False)
        self.h = nn.ModuleList(DeepSeekBlock(p, i < 1) for i in range(p[0] + 1))
        self.norms = nn.ModuleList(nn.RMSNorm(w, 1e-6) for _ in range(4))
        self.join = nn.Linear(2 * w, w, bias=False)

    def loss(self, x, targets):
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), targets.flatten())

    def forward(self, tokens, targets, run):
        x, aux = self.wte(tokens), 0
        for block in self.h[:-1]:
            x, more = run(block, x)
            aux = aux + more
        loss = self.loss(self.norms[0](x), targets)
        known = self.wte(targets[:, :-1])
        x = self.join(torch.cat((self.norms[1](x[:, :-1]), self.norms[2](known)), -1))
        x, more = run(self.h[-1], x)
        return loss + 0.1 * self.loss(self.norms[3](x), targets[:, 1:]) + aux + more


class Mamba2Block(nn.Module):
    """All heads share one B and one C; the scan works by chunks of 64 places, in float32 for the decays, with its
    products in the model's type."""

    chunk = 64

    def __init__(self, width, n, p, state):
        super().__init__()
        self.n, self.p, self.state = n, p, state
        inner, mixed = n * p, n * p + 2 * state
        self.norm, self.up = nn.RMSNorm(width, 1e-5), nn.Linear(width, inner + mixed + n, bias=False)
        self.conv = nn.Conv1d(mixed, mixed, 4, padding=3, groups=mixed)
        self.dt_bias, self.d = nn.Parameter(torch.full((n,), -4.6)), nn.Parameter(torch.ones(n))
        self.a_log = nn.Parameter(torch.linspace(0, math.log(16), n))
        self.gate_norm, self.proj = nn.RMSNorm(inner, 1e-5), nn.Linear(inner, width, bias=False)

    def scan(self, x, dt, b, c):
        """x [batch, seq, head, p], dt [batch, seq, head], b and c [batch, seq, state]"""
        chunks = (-1, self.chunk)
        x = (x * dt[..., None].to(x.dtype)).unflatten(1, chunks).transpose(2, 3)  # [batch, chunk, head, place, p]
        steps = (-self.a_log.float().exp() * dt).unflatten(1, chunks).transpose(2, 3).cumsum(-1)
        b, c = b.unflatten(1, chunks)[:, :, None], c.unflatten(1, chunks)[:, :, None]
        later = torch.ones(self.chunk, self.chunk, dtype=torch.bool).triu(1)
        decay = (steps[..., :, None] - steps[..., None, :]).masked_fill(later, -math.inf).exp().to(x.dtype)
        inside = ((c @ b.transpose(-1, -2)) * decay) @ x
        rest = (steps[..., -1:] - steps).exp().to(x.dtype)
        added = ((x * rest[..., None]).transpose(-1, -2) @ b).float()
        share = steps[..., -1].exp()[..., None, None]
        state, before = torch.zeros_like(added[:, 0]), []
        for i in range(added.shape[1]):
            before.append(state)
            state = state * share[:, i] + added[:, i]
        before = torch.stack(before, 1).to(x.dtype)
        y = inside + (c @ before.transpose(-1, -2)) * steps.exp()[..., None].to(x.dtype)
        return y.transpose(2, 3).flatten(1, 2)

    def forward(self, x):
        inner, seq = self.n * self.p, x.shape[1]
        z, mixed, dt = self.up(self.norm(x)).split((inner, inner + 2 * self.state, self.n), -1)
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., :seq].transpose(1, 2))
        u, b, c = mixed.split((inner, self.state, self.state), -1)
        u = u.unflatten(-1, (self.n, self.p))
        y = self.scan(u, F.softplus((dt + self.dt_bias).float()), b, c) + u * self.d[:, None]
        return x + self.proj(self.gate_norm(y.flatten(2) * F.silu(z)))


class Mamba2(nn.Module):
    def __init__(self, layers, width, p, state, vocab):
        super().__init__()
        self.wte, self.norm = nn.Embedding(vocab, width), nn.RMSNorm(width, 1e-5)
        nn.init.normal_(self.wte.weight, 0, 0.02)
        self.h = nn.ModuleList(Mamba2Block(width, 2 * width // p, p, state) for _ in range(layers))

    def forward(self, tokens, targets, run):
        x = self.wte(tokens)
        for block in self.h:
            x = run(block, x)
        return F.cross_entropy(F.linear(self.norm(x), self.wte.weight).flatten(0, 1).float(), targets.flatten())


class Decoder(nn.Module):
    """GPT or Llama of pytorch_models.py, with blocks called like those of the others."""

    def __init__(self, name, preset, side):
        super().__init__()
        self.decoder = pytorch_models.Model(pytorch_models.Config(name, preset, max_seq=side))

    def forward(self, tokens, targets, run):
        return self.decoder(tokens, targets, lambda _, block, x: run(block, x))


def model(name, preset, side):
    if name in ("gpt", "llama"):
        return Decoder(name, preset, side)
    if name in ("t5", "deepseek", "mamba2"):
        return {"t5": T5, "deepseek": DeepSeek, "mamba2": Mamba2}[name](*PRESETS[name][preset])
    if name == "vit":
        return ViT(*PRESETS[name][preset], side)
    nets = {"resnet50": resnet50, "mobilenet": mobilenet, "densenet121": densenet121, "vgg16": VGG16, "unet": UNet}
    return nets[name](*PRESETS["images"][preset])
