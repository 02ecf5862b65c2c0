"""Writes einsum.golden: see writer.py. Sums of products by notation."""
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
einsum("einsum_trace", "ii", (7, 7))
einsum("einsum_diagonal", "iij->ji", (5, 5, 3))
einsum("einsum_thrice", "bii,iib->b", (3, 4, 4), (4, 4, 3))
einsum("einsum_ellipsis", "...ij,...jk->...ik", (2, 3, 4, 5), (3, 5, 6))
einsum("einsum_ellipsis.stretched", "...ij,...jk->...ik", (2, 1, 4, 5), (3, 5, 6))
einsum("einsum_ellipsis_implied", "i...j,...j", (4, 2, 3, 5), (2, 1, 5))
einsum("einsum_ellipsis_summed", "a...,... -> a", (4, 2, 3), (3,))
einsum("einsum_stretched", "ij,jk->ik", (4, 7), (1, 5))
write(__file__)
