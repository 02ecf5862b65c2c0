/* The rows of einsum.golden. */
#include "golden/op_table.h"

static const struct golden_row rows[] = {
    COUNTED(einsum_attention, einsum, einsum, .equation = "bhid,bhjd->bhij"),
    COUNTED(einsum_bilinear, einsum, einsum, .equation = "bi,oij,bj->bo"),
    COUNTED(einsum_four, einsum, einsum, .equation = "bd,bij,jd,i->bd"),
    COUNTED(einsum_implied, einsum, einsum, .equation = "ib,cb"),
    COUNTED(einsum_outer, einsum, einsum, .equation = "i,Aj->Aji"),
    COUNTED(einsum_sum, einsum, einsum, .equation = "ijk->ki"),
    COUNTED(einsum_two, einsum, einsum, .equation = "ijk,kjl->li"),
    COUNTED(einsum_trace, einsum, einsum, .equation = "ii"),
    COUNTED(einsum_diagonal, einsum, einsum, .equation = "iij->ji"),
    COUNTED(einsum_thrice, einsum, einsum, .equation = "bii,iib->b"),
    COUNTED(einsum_ellipsis, einsum, einsum, .equation = "...ij,...jk->...ik"),
    COUNTED(einsum_ellipsis_implied, einsum, einsum, .equation = "i...j,...j"),
    COUNTED(einsum_ellipsis_summed, einsum, einsum, .equation = "a...,... -> a"),
    COUNTED(einsum_stretched, einsum, einsum, .equation = "ij,jk->ik"),
};

const struct golden_set golden_einsum = { "einsum.golden", rows, sizeof rows / sizeof *rows };
