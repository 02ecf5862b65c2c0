/* Cases of einsum: sums of products by notation. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Appends the cases of einsum. */
void op_cases_einsum(void)
{
    static const struct {
        const char *equation;
        int n;
        struct op_operand x[4];
    } all[] = {
        { "ij->ji", 1, { { S(3, 5), 0, 0 } } },
        { "ijk->j", 1, { { S(3, 5, 7), OP_TURNED, 0 } } },
        { "i,i->", 2, { { S(33), 0, 0 }, { S(33), 0, 0 } } },
        { "i,j->ij", 2, { { S(5), 0, 0 }, { S(7), 0, 0 } } },
        { "i,j->ji", 2, { { S(5), 0, 0 }, { S(7), 0, 0 } } },
        { "ij,jk->ik", 2, { { S(3, 9), OP_SLICED, 0 }, { S(9, 5), OP_TURNED, 0 } } },
        { "ij,kj->ki", 2, { { S(3, 9), 0, 0 }, { S(5, 9), OP_EXPANDED, 0 } } },
        { "bij,bjk->bik", 2, { { S(2, 3, 4), OP_MIDDLE, 0 }, { S(2, 4, 5), 0, 0 } } },
        { "bhid,bhjd->bhij", 2, { { S(2, 3, 4, 5), OP_MIDDLE, 0 }, { S(2, 3, 6, 5), OP_MIDDLE, 0 } } },
        { "ijk,jkl->il", 2, { { S(3, 4, 5), 0, 0 }, { S(4, 5, 2), 0, 0 } } },
        { "ijk,kjl->il", 2, { { S(3, 4, 5), 0, 0 }, { S(5, 4, 2), 0, 0 } } },
        { "bij,bj->bi", 2, { { S(2, 3, 4), 0, 0 }, { S(2, 4), 0, 0 } } },
        { "bij,ij->bij", 2, { { S(2, 3, 4), 0, 0 }, { S(3, 4), OP_TURNED, 0 } } },
        { "ij,ij->", 2, { { S(5, 8), OP_TURNED, 0 }, { S(5, 8), 0, 0 } } },
        { "ij,kl->k", 2, { { S(3, 4), 0, 0 }, { S(5, 2), 0, 0 } } },
        { "ij,jk,kl->il", 3, { { S(3, 4), 0, 0 }, { S(4, 5), 0, 0 }, { S(5, 2), 0, 0 } } },
        { "ib,jb,kb->ijk", 3, { { S(3, 4), 0, 0 }, { S(5, 4), 0, 0 }, { S(2, 4), 0, 0 } } },
        { "bd,bij,jd,i->bd", 4, { { S(2, 3), 0, 0 }, { S(2, 4, 5), 0, 0 }, { S(5, 3), 0, 0 }, { S(4), 0, 0 } } },
        { "ij,jk->ik", 2, { { S(3, 0), 0, 0 }, { S(0, 4), 0, 0 } } },
        { "ij,j->ij", 2, { { S(0, 3), 0, 0 }, { S(3), 0, 0 } } },
        { "ii", 1, { { S(5, 5), 0, 0 } } },
        { "i i -> i", 1, { { S(5, 5), OP_TURNED, 0 } } },
        { "ijij->ji", 1, { { S(3, 4, 3, 4), OP_MIDDLE, 0 } } },
        { "iij,jkk->ik", 2, { { S(3, 3, 5), OP_SLICED, 0 }, { S(5, 2, 2), 0, 0 } } },
        { "ii->i", 1, { { S(0, 0), 0, 0 } } },
        { "...ij,...jk->...ik", 2, { { S(2, 3, 4), OP_CUT, 0 }, { S(2, 4, 5), 0, 0 } } },
        { "...ij,...jk", 2, { { S(6, 2, 3, 4), 0, 0 }, { S(2, 4, 5), OP_TURNED, 0 } } },
        { "i...,i->...", 2, { { S(5, 3, 4), 0, 0 }, { S(5), 0, 0 } } },
        { "...a->a...", 1, { { S(3, 4, 5), OP_SLICED, 0 } } },
        { "...i->i", 1, { { S(3, 4, 5), 0, 0 } } },
        { "ij,jk->ik", 2, { { S(3, 9), 0, 0 }, { S(1, 5), 0, 0 } } },
        { "bij,bij->ij", 2, { { S(3, 1, 4), 0, 0 }, { S(1, 5, 4), 0, 0 } } },
        { "...,...->...", 2, { { S(3, 1, 4), 0, 0 }, { S(5, 1), 0, 0 } } },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *const c = op_case_next(OP_PRODUCTS, op_build_einsum, OP_TERMS, all[i].n);
        for (int k = 0; k < all[i].n; k++) c->in[k] = all[i].x[k];
        c->equation = all[i].equation;
        op_case_count(c, op_count_einsum);
        op_case_describe(c, "einsum %s", c->equation);
    }
}
