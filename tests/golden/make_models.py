"""Writes models.golden: a step of each model of bench/models, with plain operations as in its paper or its authors'
code. For each model the file has a salt and the loss, and for each parameter the 2-norm of its gradient and its product
with a vector of signs: a gradient in another order has the same norm and another product.

Parameters have the names of bench/models, and each is requested by its name and shape where it is used: this is the
whole mapping. Where layouts are arbitrary - q, k and v in one matrix, heads next to each other - the code shows the
slices. Numbers are hashes of the name and the index (models_vs_pytorch.c has the same function), so that both
sides have them without a file.

Rounding must not affect a decision: a relu's sign, a pool's maximum, a router's choice. Each model is also run in
float32, and has the first salt for which the margin of every such decision is MARGIN times float32's error there.
"""
import math
import pathlib
import sys

import torch
from torch.nn import functional as F

from philox import drawn

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)

BATCH = 2
VOCAB = 256
MARGIN = 8


# ---- numbers ----

def key_of(name, salt):
    key = 2166136261
    for byte in name.encode():
        key = (key ^ byte) * 16777619 % 2**32
    return (key + salt * 0x9E3779B9) % 2**32


def hashes(name, salt, n):
    """Hashes of 32 bits."""
    h = (torch.arange(n) * 0x9E3779B1 + key_of(name, salt)) % 2**32
    for _ in range(3):
        h = (h ^ h >> 16) * 0x045D9F3B % 2**32
    return h ^ h >> 16


def signs(name, salt, n):
    return (hashes(name + "/sign", salt, n) >> 31) * 2.0 - 1


def spread(shape):
    """The scale of a weight: sums stay as large as the summed values, because numbers between -1 and 1 have a variance
    of 1 / 3."""
    terms = shape[-1] if len(shape) == 3 else math.prod(shape[1:])
    e = 0
    while 3 * 4**e < terms:
        e += 1
    return 2.0**-e


def values(name, salt, shape):
    u = ((hashes(name, salt, math.prod(shape)) >> 16) / 32768 - 1).reshape(shape)
    if name.endswith("dt.bias"):
        return u - 4  # a step's decay is visible some chunks later
    if name.endswith("bias"):
        return u / 4 + (torch.where(u < 0.75, 2, -1) if name.startswith("bn") else 0)  # far from a relu's kink
    return 1 + u / 4 if len(shape) == 1 else u * spread(shape)


class Step:
    """Parameters by name, and the decisions made."""

    def __init__(self, salt, dtype):
        self.salt, self.dtype = salt, dtype
        self.parameters, self.decisions, self.drawn = {}, [], 11

    def __call__(self, name, *shape):
        """A parameter. A repeated request returns the same one."""
        if name not in self.parameters:
            self.parameters[name] = values(name, self.salt, shape).to(self.dtype).requires_grad_()
        assert self.parameters[name].shape == shape, name
        return self.parameters[name]

    def buffer(self, name, *shape):
        return values(name, self.salt, shape).to(self.dtype)

    def numbers(self, name, *shape):
        return (hashes(name, self.salt, math.prod(shape)) >> 16).reshape(shape) % VOCAB

    def decide(self, x, where=None):
        """Records the margin of a decision by the signs of x."""
        self.decisions.append((x.detach(), where))

    def relu(self, x):
        self.decide(x)
        return F.relu(x)

    def max_pool(self, x, kernel, padding=0):
        """The maximum of each window; if none is above 0, the preceding relu passes no gradient."""
        inside = F.pad(x.detach(), (padding,) * 4, value=-1).unfold(2, kernel, 2).unfold(3, kernel, 2).flatten(4)
        first, second = inside.topk(2).values.unbind(-1)
        self.decide(first - second, first > 0)
        return F.max_pool2d(x, kernel, 2, padding)

    def best(self, x, k):
        """[..., k], the indexes of the largest of each row."""
        if k < x.shape[-1]:
            sorted_ = x.detach().sort(descending=True).values
            self.decide(sorted_[..., k - 1] - sorted_[..., k])
        return x.topk(k).indices

    def dropout(self, x, p):
        """As by the generator of seed 5 at block 11, four elements per block."""
        words = drawn(self.drawn, 5, x.numel())
        self.drawn += -(-x.numel() // 4)
        return x * (torch.tensor(words) >= p * 2.0**32).reshape(x.shape) / (1 - p)


# ---- parts of transformers ----

def linear(p, name, x, out, bias=False):
    y = x @ p(f"{name}.weight", out, x.shape[-1]).T
    return y + p(f"{name}.bias", out) if bias else y


def layer_norm(p, name, x, eps):
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return x * p(f"{name}.weight", x.shape[-1]) + p(f"{name}.bias", x.shape[-1])


def rms_norm(p, name, x, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * p(f"{name}.weight", x.shape[-1])


def heads(x, n):
    """[batch, seq, n of the same width] as [batch, n, seq, width]"""
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


def attention(q, k, v, scale, causal, bias=0):
    scores = q @ k.transpose(-1, -2) * scale + bias
    if causal:  # a query attends to its own place and those before it
        hidden = torch.arange(k.shape[-2])[None, :] > torch.arange(q.shape[-2])[:, None]
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


def turned(a, b, base):
    """Rotates pairs (a, b) by an angle of place * base^(-i / pairs), where i counts pairs."""
    rate = base ** (-torch.arange(a.shape[-1], dtype=torch.float64) / a.shape[-1])
    angle = torch.arange(a.shape[-2], dtype=torch.float64)[:, None] * rate
    cos, sin = angle.cos().to(a.dtype), angle.sin().to(a.dtype)
    return a * cos - b * sin, a * sin + b * cos


def swiglu(p, name, x, hidden):
    return linear(p, f"{name}.down", F.silu(linear(p, f"{name}.gate", x, hidden)) * linear(p, f"{name}.up", x, hidden),
                  x.shape[-1])


def texts(p, seq):
    return p.numbers("tokens", BATCH, seq), p.numbers("targets", BATCH, seq)


def cross_entropy(logits, targets):
    logits, targets = logits.flatten(0, -2), targets.flatten()
    return -logits.log_softmax(-1)[torch.arange(len(targets)), targets].mean()


# ---- GPT-2 (github.com/openai/gpt-2, src/model.py) and ViT (arXiv 2010.11929) ----

def biased_block(p, h, x, n, eps, causal, gelu):
    width = x.shape[-1]
    q, k, v = (heads(y, n) for y in linear(p, f"{h}.attn.qkv", layer_norm(p, f"{h}.ln_1", x, eps), 3 * width,
                                           True).chunk(3, -1))
    y = joined(attention(q, k, v, (width // n) ** -0.5, causal))
    x = x + linear(p, f"{h}.attn.proj", y, width, True)
    y = F.gelu(linear(p, f"{h}.mlp.up", layer_norm(p, f"{h}.ln_2", x, eps), 4 * width, True), approximate=gelu)
    return x + linear(p, f"{h}.mlp.down", y, width, True)


def gpt(p, seq=24, places=32):
    width, n = 64, 4
    tokens, targets = texts(p, seq)
    wte = p("wte.weight", VOCAB, width)
    x = wte[tokens] + p("wpe.weight", places, width)[:seq]
    for i in range(4):
        x = biased_block(p, f"h.{i}", x, n, 1e-5, True, "tanh")
    return cross_entropy(layer_norm(p, "ln_f", x, 1e-5) @ wte.T, targets)


def vit(p, side=20, places=17):
    """Sides are padded to patches of 8, numbered by rows after the class token."""
    width, n, patch = 64, 4, 8
    images, labels = pictures(p, side)
    images = F.pad(images, (0, -side % patch) * 2)
    x = F.conv2d(images, p("patch.weight", width, 3, patch, patch), p("patch.bias", width), patch)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat((p("class.weight", 1, 1, width).expand(len(x), 1, width), x), 1)
    x = x + p("wpe.weight", places, width)[:x.shape[1]]
    for i in range(4):
        x = biased_block(p, f"h.{i}", x, n, 1e-6, False, "none")
    return cross_entropy(linear(p, "head", layer_norm(p, "ln_f", x[:, 0], 1e-6), VOCAB, True), labels)


# ---- Llama (arXiv 2302.13971; pairs of the rotation as its port to Transformers has them: i and i + d / 2) ----

def llama(p, seq=24):
    width, n, shared, hidden = 64, 4, 2, 192
    d = width // n
    tokens, targets = texts(p, seq)
    x = p("wte.weight", VOCAB, width)[tokens]
    for h in (f"h.{i}" for i in range(4)):
        y = linear(p, f"{h}.attn.qkv", rms_norm(p, f"{h}.ln_1", x, 1e-5), width + 2 * shared * d)
        q, k, v = y.split((width, shared * d, shared * d), -1)
        q, k, v = heads(q, n), heads(k, shared), heads(v, shared)
        q, k = (torch.cat(turned(*y.chunk(2, -1), 10000.0), -1) for y in (q, k))
        k, v = (torch.stack([y[:, i // (n // shared)] for i in range(n)], 1) for y in (k, v))
        x = x + linear(p, f"{h}.attn.proj", joined(attention(q, k, v, d**-0.5, True)), width)
        x = x + swiglu(p, f"{h}.mlp", rms_norm(p, f"{h}.ln_2", x, 1e-5), hidden)
    return cross_entropy(linear(p, "head", rms_norm(p, "ln_f", x, 1e-5), VOCAB), targets)


# ---- DeepSeek-V3 (arXiv 2412.19437, sections 2.1 and 2.2), and V2's router (2405.04434) ----

LATENT = dict(width=64, n=4, d=16, rope=8, kv_rank=24)
EXPERTS, CHOSEN, EXPERT_HIDDEN = 16, 4, 32


def latent_attention(p, h, x, q_rank, width, n, d, rope, kv_rank):
    def rotated(y):  # adjacent elements are pairs
        return torch.stack(turned(y[..., ::2], y[..., 1::2], 10000.0), -1).flatten(-2)

    c_q = rms_norm(p, f"{h}.q_norm", linear(p, f"{h}.q_a", x, q_rank), 1e-6) if q_rank else x
    q = heads(linear(p, f"{h}.q_b", c_q, n * (d + rope)), n)
    c_kv, k_rope = linear(p, f"{h}.kv_a", x, kv_rank + rope).split((kv_rank, rope), -1)
    kv = heads(linear(p, f"{h}.kv_b", rms_norm(p, f"{h}.kv_norm", c_kv, 1e-6), 2 * n * d), n)
    q = torch.cat((q[..., :d], rotated(q[..., d:])), -1)
    k = torch.cat((kv[..., :d], rotated(k_rope[:, None]).expand(-1, n, -1, -1)), -1)
    return linear(p, f"{h}.proj", joined(attention(q, k, kv[..., d:], (d + rope) ** -0.5, True)), width)


def route(p, h, x, softmax):
    """x [tokens, width] -> weights [tokens, experts], 0 for those not chosen, and the balancing loss: of shares of the
    scores and of tokens, over the whole batch. Version 3 chooses from two of four groups, those with the largest sum of
    their best two."""
    logits = linear(p, f"{h}.router", x, EXPERTS)
    scores = logits.softmax(-1) if softmax else logits.sigmoid()
    compared = scores if softmax else scores + p.buffer(f"{h}.bias", EXPERTS)
    if not softmax:
        by_group = compared.detach().unflatten(-1, (4, EXPERTS // 4))
        open_ = F.one_hot(p.best(by_group.topk(2).values.sum(-1), 2), 4).sum(1).bool()
        compared = by_group.masked_fill(~open_[..., None], -math.inf).flatten(1)
    index = p.best(compared, CHOSEN)
    chosen = F.one_hot(index, EXPERTS).sum(1)
    weights = scores * chosen
    if not softmax:
        weights = 2.5 * weights / weights.sum(-1, keepdim=True)
        scores = scores / scores.sum(-1, keepdim=True)
    share = chosen.sum(0) * (EXPERTS / (CHOSEN * len(x)))
    return weights, 1e-3 * (share * scores.mean(0)).sum()


def experts(p, h, x, softmax):
    rows, f, y = x.flatten(0, 1), EXPERT_HIDDEN, 0
    weights, loss = route(p, f"{h}.moe", rows, softmax)
    up = p(f"{h}.moe.up.weight", EXPERTS, 2 * f, x.shape[-1])  # gate, then up
    down = p(f"{h}.moe.down.weight", EXPERTS, x.shape[-1], f)
    for e in range(EXPERTS):
        y = y + (F.silu(rows @ up[e, :f].T) * (rows @ up[e, f:].T)) @ down[e].T * weights[:, e:e + 1]
    return y.view_as(x) + swiglu(p, f"{h}.mlp", x, f), loss  # sum over all tokens


def deepseek_block(p, h, x, dense, q_rank, softmax):
    x = x + latent_attention(p, f"{h}.attn", rms_norm(p, f"{h}.ln_1", x, 1e-6), q_rank, **LATENT)
    y = rms_norm(p, f"{h}.ln_2", x, 1e-6)
    y, loss = (swiglu(p, f"{h}.mlp", y, 192), 0) if dense else experts(p, h, y, softmax)
    return x + y, loss


def deepseek(p, seq=24, ahead=2, q_rank=32, softmax=False):
    """Targets are the tokens one place later, so depth k at place i reads target i + k - 1, and predicts target i + k;
    its loss is the mean over its places."""
    tokens, targets = texts(p, seq)
    wte, layers, aux = p("wte.weight", VOCAB, LATENT["width"]), 4, 0
    x = wte[tokens]
    for i in range(layers):
        x, more = deepseek_block(p, f"h.{i}", x, i < 1, q_rank, softmax)
        aux = aux + more
    loss = cross_entropy(linear(p, "head", rms_norm(p, "ln_f", x, 1e-6), VOCAB), targets)
    for k in range(1, ahead + 1):
        h = f"h.{layers + k - 1}"
        x = torch.cat((rms_norm(p, f"{h}.ahead.x_norm", x[:, :-1], 1e-6),
                       rms_norm(p, f"{h}.ahead.token_norm", wte[targets[:, k - 1:-1]], 1e-6)), -1)
        x, more = deepseek_block(p, h, linear(p, f"{h}.ahead.join", x, LATENT["width"]), False, q_rank, softmax)
        logits = linear(p, "head", rms_norm(p, f"{h}.ahead.ln_f", x, 1e-6), VOCAB)
        loss, aux = loss + 0.1 / ahead * cross_entropy(logits, targets[:, k:]), aux + more
    return loss + aux


def deepseek_v2(p):
    return deepseek(p, ahead=0, q_rank=0, softmax=True)


# ---- Mamba-2 (arXiv 2405.21060; github.com/state-spaces/mamba, mamba_ssm/modules/mamba2.py), place by place ----

def ssd(u, dt, a, b, c):
    """u [batch, seq, head, p], dt [batch, seq, head], a [head], b and c [batch, seq, state]"""
    state, y = 0, []
    for t in range(u.shape[1]):
        added = (dt[:, t, :, None] * u[:, t])[..., None] * b[:, t, None, None, :]
        state = state * (dt[:, t] * a).exp()[..., None, None] + added
        y.append((state * c[:, t, None, None, :]).sum(-1))
    return torch.stack(y, 1)


def mamba2(p, seq=40):
    width, d, state = 64, 16, 16
    inner = 2 * width
    n, mixed = inner // d, inner + 2 * state
    tokens, targets = texts(p, seq)
    wte = p("wte.weight", VOCAB, width)
    x = wte[tokens]
    for h in (f"h.{i}" for i in range(4)):
        y = linear(p, f"{h}.ssm.in", rms_norm(p, f"{h}.ln_1", x, 1e-5), inner + mixed + n)
        z, xbc, dt = y.split((inner, mixed, n), -1)
        taps = p(f"{h}.ssm.conv.weight", mixed, 4)
        before = F.pad(xbc, (0, 0, 3, 0))
        xbc = F.silu(sum(before[:, i:i + seq] * taps[:, i] for i in range(4)) + p(f"{h}.ssm.conv.bias", mixed))
        u, b, c = xbc.split((inner, state, state), -1)
        u = u.unflatten(-1, (n, d))
        dt = F.softplus(dt + p(f"{h}.ssm.dt.bias", n))
        y = ssd(u, dt, -p(f"{h}.ssm.a_log", n).exp(), b, c) + p(f"{h}.ssm.d", n)[:, None] * u
        x = x + linear(p, f"{h}.ssm.proj", rms_norm(p, f"{h}.ssm.norm", y.flatten(2) * F.silu(z), 1e-5), width)
    return cross_entropy(rms_norm(p, "ln_f", x, 1e-5) @ wte.T, targets)


# ---- T5 (arXiv 1910.10683; github.com/google-research/text-to-text-transfer-transformer, Mesh TensorFlow's) ----

def bucket(far, both):
    """far: the key's place minus the query's."""
    n, first = 32, 0
    if both:
        n, first = 16, 16 if far > 0 else 0
        far = abs(far)
    else:
        far = max(-far, 0)
    if far < n // 2:
        return first + far
    return first + min(n // 2 + int(math.log(far / (n // 2)) / math.log(128 / (n // 2)) * (n - n // 2)), n - 1)


def t5_attention(p, h, norm, x, memory, n, d, bias, causal):
    y = rms_norm(p, norm, x, 1e-6)
    q, kv = linear(p, f"{h}.q", y, n * d), linear(p, f"{h}.kv", y if memory is None else memory, 2 * n * d)
    q, k, v = heads(q, n), heads(kv[..., :n * d], n), heads(kv[..., n * d:], n)
    return x + linear(p, f"{h}.proj", joined(attention(q, k, v, 1, causal, bias)), x.shape[-1])


def t5_stack(p, name, tokens, memory, first, gated):
    n, d, hidden, decodes, seq = 4, 16, 192, memory is not None, tokens.shape[1]
    x = p("wte.weight", VOCAB, 64)[tokens]
    table = p(f"{name}.positions.weight", 32, n)
    index = torch.tensor([[bucket(k - q, not decodes) for k in range(seq)] for q in range(seq)])
    bias = table[index].permute(2, 0, 1)
    for h in (f"h.{first + i}" for i in range(2)):
        x = t5_attention(p, f"{h}.attn", f"{h}.ln_1", x, None, n, d, bias, decodes)
        if decodes:
            x = t5_attention(p, f"{h}.cross", f"{h}.ln_cross", x, memory, n, d, 0, False)
        y = rms_norm(p, f"{h}.ln_2", x, 1e-6)
        up = linear(p, f"{h}.mlp.up", y, hidden)
        y = F.gelu(linear(p, f"{h}.mlp.gate", y, hidden), approximate="tanh") * up if gated else p.relu(up)
        x = x + linear(p, f"{h}.mlp.down", y, 64)
    return rms_norm(p, "ln_f" if decodes else "encoder.ln_f", x, 1e-6)


def t5(p, seq=80, gated=False):
    """The encoder has the first half of a text, the decoder the second."""
    tokens, targets = texts(p, seq)
    memory = t5_stack(p, "encoder", tokens[:, :seq // 2], None, 0, gated)
    x = t5_stack(p, "decoder", tokens[:, seq // 2:], memory, 2, gated)
    logits = linear(p, "head", x, VOCAB) if gated else x * 64**-0.5 @ p("wte.weight", VOCAB, 64).T
    return cross_entropy(logits, targets[:, seq // 2:])


def t5_gated(p):
    return t5(p, gated=True)


# ---- networks for images ----

def pictures(p, side):
    """[batch, 3, side, side] of rows, columns and their product, and a class of each."""
    tokens, targets = texts(p, side)
    v = ((tokens - 96) / 32).to(p.dtype)
    rows, columns = v[:, :, None].expand(-1, -1, side), v[:, None, :].expand(-1, side, -1)
    return torch.stack((rows, columns, rows * columns), 1), targets[:, 0]


class Layers:
    """Numbered in the order of first use, from 1 on."""

    def __init__(self, p):
        self.p, self.met = p, 0

    def named(self, kind):
        self.met += 1
        return lambda what, *shape: self.p(f"{kind}.{self.met}.{what}", *shape)

    def conv(self, x, out, kernel, stride=1, groups=1, bias=False):
        own = self.named("conv")
        w = own("weight", out, x.shape[1] // groups, kernel, kernel)
        return F.conv2d(x, w, own("bias", out) if bias else None, stride, kernel // 2, groups=groups)

    def bn(self, x):
        own, axes = self.named("bn"), (0, 2, 3)
        x = x - x.mean(axes, keepdim=True)
        x = x / (x.square().mean(axes, keepdim=True) + 1e-5).sqrt()
        return x * own("weight", x.shape[1])[:, None, None] + own("bias", x.shape[1])[:, None, None]

    def conv_bn_relu(self, *given, **named):
        return self.p.relu(self.bn(self.conv(*given, **named)))

    def bn_relu_conv(self, x, *given):
        return self.conv(self.p.relu(self.bn(x)), *given)

    def conv_relu(self, x, out):
        return self.p.relu(self.conv(x, out, 3, bias=True))

    def dense(self, x, out):
        own = self.named("fc")
        return x @ own("weight", out, x.shape[1]).T + own("bias", out)

    def up(self, x, out):
        own = self.named("up")
        return F.conv_transpose2d(x, own("weight", x.shape[1], out, 2, 2), own("bias", out), 2)

    def classify(self, x, labels):
        return cross_entropy(self.dense(x.mean((2, 3)), VOCAB), labels)


def resnet50(p, side=64, width=8):
    """arXiv 1512.03385, table 1; a block's stride is in its 3x3 convolution, as in torchvision. A block's shortcut is
    numbered after its branch."""
    x, labels = pictures(p, side)
    n = Layers(p)
    x = p.max_pool(n.conv_bn_relu(x, width, 7, 2), 3, 1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = width * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            y = n.conv_bn_relu(x, inner, 1)
            y = n.conv_bn_relu(y, inner, 3, stride)
            y = n.conv(y, 4 * inner, 1)
            if block == 0:  # the shortcut's convolution and its norm are numbered before the branch's last norm
                x = n.bn(n.conv(x, 4 * inner, 1, stride))
            x = p.relu(n.bn(y) + x)
    return n.classify(x, labels)


def vgg16(p, side=64, width=8):
    """arXiv 1409.1556, table 1, column D; other sides become 7 x 7 as in torchvision."""
    x, labels = pictures(p, side)
    n = Layers(p)
    for out, times in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        for _ in range(times):
            x = n.conv_relu(x, out * width)
        x = p.max_pool(x, 2)
    x = F.adaptive_avg_pool2d(x, 7).flatten(1)
    for _ in range(2):
        x = p.dropout(p.relu(n.dense(x, 64 * width)), 0.5)
    return cross_entropy(n.dense(x, VOCAB), labels)


def mobilenet(p, side=64, width=8):
    """arXiv 1704.04861, table 1, whose first layer has 32 channels: half of `width` there and here. The last block's
    stride is 1, as its size requires."""
    x, labels = pictures(p, side)
    n = Layers(p)
    x = n.conv_bn_relu(x, width // 2, 3, 2)
    for out, stride in [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)] + 5 * [(512, 1)] + [(1024, 2),
                                                                                                     (1024, 1)]:
        x = n.conv_bn_relu(x, x.shape[1], 3, stride, x.shape[1])
        x = n.conv_bn_relu(x, out * width // 64, 1)
    return n.classify(x, labels)


def densenet121(p, side=64, width=8):
    """arXiv 1608.06993, table 1, with bottlenecks and halved transitions; the growth is half of the first width."""
    x, labels = pictures(p, side)
    n, growth = Layers(p), width // 2
    x = p.max_pool(n.conv_bn_relu(x, width, 7, 2), 3, 1)
    for stage, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            y = n.bn_relu_conv(x, 4 * growth, 1)
            x = torch.cat((x, n.bn_relu_conv(y, growth, 3)), 1)
        if stage < 3:
            x = F.avg_pool2d(n.bn_relu_conv(x, x.shape[1] // 2, 1), 2)
    return n.classify(p.relu(n.bn(x)), labels)


def unet(p, side=32, width=8):
    """arXiv 1505.04597, figure 1, with padding."""
    x, _ = pictures(p, side)
    n, image, skips = Layers(p), x, []
    for i in range(4):
        skips.append(n.conv_relu(n.conv_relu(x, width * 2**i), width * 2**i))
        x = p.max_pool(skips[-1], 2)
    x = n.conv_relu(n.conv_relu(x, width * 16), width * 16)
    for i in (3, 2, 1, 0):
        x = torch.cat((skips[i], n.up(x, width * 2**i)), 1)
        x = n.conv_relu(n.conv_relu(x, width * 2**i), width * 2**i)
    y = n.conv(x, 1, 1, bias=True)
    return (y.sigmoid() - image[:, :1].sigmoid()).square().mean()


# ---- the file ----

MODELS = (gpt, llama, deepseek, deepseek_v2, mamba2, t5, t5_gated, vit, resnet50, vgg16, mobilenet, densenet121, unet)


def margin(model, salt):
    """The smallest margin of a decision, relative to float32's error there; 0 if a gradient is only rounding noise, as
    for a batch norm's bias whose following relus are all positive up to the next norm."""
    wide, narrow = (Step(salt, dtype) for dtype in (torch.float64, torch.float32))
    with torch.no_grad():
        model(wide), model(narrow)
    least = math.inf
    for (x, where), (near, _) in zip(wide.decisions, narrow.decisions):
        off = (x - near).abs()
        off, x = (off, x) if where is None else (off[where], x[where])
        if x.numel():
            least = min(least, (x.abs().min() / off.max()).item())
    if least >= MARGIN:
        norms = [g.norm().item() for g in gradients(model, salt)[1].values()]
        least = least if min(norms) > 1e-6 * max(norms) else 0
    return least


def gradients(model, salt):
    p = Step(salt, torch.float64)
    loss = model(p)
    loss.backward()
    return loss.item(), {name: x.grad.flatten() for name, x in p.parameters.items()}


def rows(model, salt):
    """Sums without roundings of their own."""
    loss, found = gradients(model, salt)
    words = []
    for name, g in found.items():
        norm = math.sqrt(math.fsum(g.square().tolist()))
        words.append(f"{name} {norm:.15e} {math.fsum((g * signs(name, salt, len(g))).tolist()):.15e}")
    return loss, words


def folded(words):
    """Wraps to lines of 120 columns."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > 120:
            lines.append("")
        lines[-1] += " " * bool(lines[-1]) + word
    return lines


def main():
    lines = []
    for model in MODELS:
        salt = next(salt for salt in range(1, 1000) if margin(model, salt) >= MARGIN)
        loss, words = rows(model, salt)
        print(f"{model.__name__:12} salt {salt:3}, margin {margin(model, salt):.3g}, loss {loss:.6f}", file=sys.stderr)
        lines += [f"= {model.__name__} {salt} {len(words)} {loss:.16e}", *folded(words)]
    pathlib.Path(__file__).with_name("models.golden").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
