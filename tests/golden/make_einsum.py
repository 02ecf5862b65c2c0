"""Writes einsum.golden: see writer.py."""
import torch

from writer import case, normal, write


def einsum(name, equation, *shapes):
    case(name, lambda *x: torch.einsum(equation, *x), [normal(*s) for s in shapes])


einsum("einsum_attention", "bhid,bhjd->bhij", (2, 3, 5, 8), (2, 3, 7, 8))
einsum("einsum_bilinear", "bi,oij,bj->bo", (3, 4), (6, 4, 5), (3, 5))
einsum("einsum_four", "bd,bij,jd,i->bd", (2, 3), (2, 4, 5), (5, 3), (4,))
einsum("einsum_implied", "ib,cb", (4, 9), (3, 9))
einsum("einsum_outer", "i,Aj->Aji", (4,), (3, 5))
einsum("einsum_sum", "ijk->ki", (4, 5, 6))
einsum("einsum_two", "ijk,kjl->li", (3, 4, 5), (5, 4, 6))
write(__file__)
