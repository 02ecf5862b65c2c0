"""The benchmark models in PyTorch: the same layers, shapes, names and initialization as bench/models."""
import math

import torch
from torch import nn
from torch.nn import functional as F

PRESETS = {"tiny": (4, 64, 4, 2), "small": (6, 256, 8, 4), "gpt2-124m": (12, 768, 12, 4)}


class Config:
    def __init__(self, model, preset="small", **given):
        self.model = model
        self.layers, self.width, self.heads, kv = PRESETS[preset]
        self.kv_heads = self.heads if model == "gpt" else kv
        self.vocab = 50304 if preset == "gpt2-124m" else 256
        self.dropout = 0.1 if model == "gpt" else 0.0
        self.scores = False
        self.max_seq = 256
        self.run_core = lambda core, *qkv: core(*qkv)  # how the fused attention is called: a hook for checkpointing it
        for key, value in given.items():
            if value is not None:
                setattr(self, key, value)
        if model == "gpt":
            self.kv_heads = self.heads
        self.hidden = 4 * self.width if model == "gpt" else (8 * self.width // 3 + 31) // 32 * 32


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


def norm(c):
    return nn.LayerNorm(c.width, eps=1e-5) if c.model == "gpt" else RMSNorm(c.width)


def rope(x, base=10000.0):
    """Rotates the pairs (i, i + d/2). x [batch, heads, seq, d]."""
    half = x.shape[-1] // 2
    rate = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64, device=x.device), rate)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        gpt = c.model == "gpt"
        head = c.width // c.heads
        self.ln_1, self.ln_2 = norm(c), norm(c)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(c.width, c.width + 2 * head * c.kv_heads, bias=gpt),
                                   "proj": nn.Linear(c.width, c.width, bias=gpt)})
        self.mlp = nn.ModuleDict({"up": nn.Linear(c.width, c.hidden, bias=gpt),
                                  "down": nn.Linear(c.hidden, c.width, bias=gpt)})
        if not gpt:
            self.mlp["gate"] = nn.Linear(c.width, c.hidden, bias=False)

    def attention(self, x):
        c = self.c
        b, s, _ = x.shape
        head = c.width // c.heads
        qkv = self.attn["qkv"](x).view(b, s, c.heads + 2 * c.kv_heads, head).transpose(1, 2)
        q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads), 1)
        if c.model == "llama":
            q, k = rope(q), rope(k)
        if c.kv_heads != c.heads:
            k, v = (y.repeat_interleave(c.heads // c.kv_heads, 1) for y in (k, v))
        drop = c.dropout if self.training else 0.0
        if c.scores:
            p = (q @ k.transpose(-1, -2)) / math.sqrt(head)
            p = p.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
            y = F.dropout(p, drop) @ v
        else:
            y = c.run_core(lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=drop, is_causal=True), q, k, v)
        return F.dropout(self.attn["proj"](y.transpose(1, 2).reshape(b, s, c.width)), drop)

    def feed_forward(self, x):
        h = self.mlp["up"](x)
        h = F.gelu(h, approximate="tanh") if self.c.model == "gpt" else F.silu(self.mlp["gate"](x)) * h
        return F.dropout(self.mlp["down"](h), self.c.dropout if self.training else 0.0)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.feed_forward(self.ln_2(x))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.wte = nn.Embedding(c.vocab, c.width)
        self.wpe = nn.Embedding(c.max_seq, c.width) if c.model == "gpt" else None
        self.h = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.ln_f = norm(c)
        self.head = None if c.model == "gpt" else nn.Linear(c.width, c.vocab, bias=False)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.dim() == 2:
                residual = "proj" in name or "down" in name
                nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * c.layers) if residual else 0.02)

    def forward(self, tokens, targets, run_block):
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        x = F.dropout(x, self.c.dropout if self.training else 0.0)
        for i, block in enumerate(self.h):
            x = run_block(i, block, x)
        x = self.ln_f(x)
        weight = self.wte.weight if self.head is None else self.head.weight
        return F.cross_entropy(F.linear(x, weight).flatten(0, 1).float(), targets.flatten())
