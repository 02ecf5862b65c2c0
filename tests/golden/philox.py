"""The words of the library's random number generator (Salmon et al., SC'11): four per block."""


def philox(block, seed):
    c, k = [block & 0xFFFFFFFF, block >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c


def drawn(block, seed, n):
    """The n words of the block and those that follow."""
    return [word for i in range(-(-n // 4)) for word in philox(block + i, seed)][:n]
