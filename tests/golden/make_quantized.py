"""
Writes quantized.golden, products with weights that bitsandbytes dequantizes, and quantized_codes.h, the data into
which it quantizes numbers. Needs bitsandbytes 0.50.2 in addition to PyTorch; its CPU backend.

Quantized scales are those of its portable backend and of its CUDA kernels, the nearest of the dynamic map. Its library
for x86 looks them up by a number's upper 16 bits, and takes the second nearest for one in a thousand.
"""
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

import bitsandbytes.functional as bnb

from writer import case, normal, write

DYNAMIC = bnb.create_dynamic_map()


def scales_of(codes, largest, mean):
    blocks = torch.arange(len(codes)) // 256
    return DYNAMIC[codes.long()] * largest[blocks] + mean


def decoded_nf4(packed, scales, shape):
    state = bnb.QuantState(absmax=scales, shape=torch.Size(shape), dtype=torch.float32, blocksize=64,
                           code=bnb.get_4bit_type("nf4", device="cpu"), quant_type="nf4")
    return bnb.dequantize_4bit(packed.reshape(-1, 1), state)


# ---- products: the words of cases/quantized.c ----

def floats(at, n):
    return torch.tensor([0.25 + (at // 4 + i) % 5 / 8 for i in range(n)], dtype=torch.float32)


def nf4_weight(out, inner):
    n = out * inner
    packed = [0] * (n // 2)
    for i in range(n):
        packed[i // 2] = (8 + (i * 7 + i // 3) % 8) << 4 | (8 + (i * 5 + i // 7) % 8)
    codes = torch.tensor([130 + i * 13 % 120 for i in range(n // 64)])
    mean = (n // 2 + n // 64 + 3) // 4 * 4
    numbers = floats(mean, 1 + -(-n // 16384))
    return decoded_nf4(torch.tensor(packed, dtype=torch.uint8), scales_of(codes, numbers[1:], numbers[0]), (out, inner))


def int8_weight(out, inner):
    n = out * inner
    codes = torch.tensor([1 + (i * 11 + i // 5) % 127 for i in range(n)], dtype=torch.int8).reshape(out, inner)
    return bnb.int8_vectorwise_dequant(codes, floats((n + 3) // 4 * 4, out))


def product(name, w, *rows):
    def f(x, bias):
        return F.linear(x, w.double(), bias)
    case(name, f, [normal(*rows, w.shape[1]), normal(w.shape[0])])


product("linear_nf4", nf4_weight(70, 128), 2, 5)
product("linear_int8", int8_weight(7, 33), 10)
write(__file__)


# ---- quantized data ----

def digest(x):
    """FNV-1a of 64 bits."""
    h = 0xCBF29CE484222325
    for byte in x.tobytes():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"0x{h:016x}"


def numbers(n, bits):
    """As in tests/ops/quantized.c: integers times 2^-bits, smaller in some blocks and in every second group."""
    i = np.arange(n, dtype=np.uint64)
    x = ((i * 2654435761 + i // 7 * 40503) % 2**32 >> np.uint64(31 - bits)).astype(np.float64) - 2**bits
    x = x * 2.0**-bits * 2.0 ** -((i // 64) % 3 + (i // 16384) % 2).astype(np.float64)
    x[(i // 64) % 11 == 5] = 0
    return torch.tensor(x, dtype=torch.float32)


def nearest(x, largest):
    scaled = (x * (np.float32(1) / np.maximum(largest, np.float32(1e-38)))).astype(np.float32).clip(-1, 1)
    code = DYNAMIC.numpy()
    return np.searchsorted((code[:-1] + code[1:]) / np.float32(2), scaled).astype(np.uint8)


def row(out, inner, bits, dtype):
    w = numbers(out * inner, bits).to(dtype).reshape(out, inner)
    packed, state = bnb.quantize_4bit(w, blocksize=64, quant_type="nf4")
    scales = state.absmax.numpy()
    mean = np.float32(scales.astype(np.float64).mean())
    assert mean == scales.mean() or bits > 10, "bitsandbytes' mean has other bits"
    apart = (scales - mean).astype(np.float32)
    groups = [apart[i:i + 256] for i in range(0, len(apart), 256)]
    largest = np.array([np.abs(g).max() for g in groups], dtype=np.float32)
    codes = np.concatenate([nearest(g, m) for g, m in zip(groups, largest)])
    whole = decoded_nf4(packed, scales_of(torch.tensor(codes), torch.tensor(largest), torch.tensor(mean)), w.shape)
    rows, most, _ = bnb.int8_vectorwise_quant(w.float())
    back = bnb.int8_vectorwise_dequant(rows, most)
    values = [digest(a.contiguous().numpy() if isinstance(a, torch.Tensor) else a)
              for a in (packed, codes, np.concatenate([[mean], largest]).astype(np.float32), whole, rows, most, back)]
    kind = {torch.float32: "RW_F32", torch.bfloat16: "RW_BF16", torch.float16: "RW_F16"}[dtype]
    return f"{{ {out}, {inner}, {bits}, {kind},\n  {{ " + ",\n    ".join(
        ", ".join(values[i:i + 4]) for i in (0, 4)) + " } },\n"


rows = "".join(row(*x) for x in [(3, 64, 20, torch.float32), (96, 192, 20, torch.float32), (40, 1024, 9, torch.float32),
                                 (33, 128, 7, torch.bfloat16), (33, 128, 7, torch.float16)])
pathlib.Path(__file__).with_name("quantized_codes.h").write_text(
    "/* Written by make_quantized.py: out, in, bits and type of the numbers; digests of NF4's codes, codes of scales,"
    "\n   mean and largest, decoded numbers; of INT8's codes, largest, decoded numbers. No include guard. */\n" + rows)
