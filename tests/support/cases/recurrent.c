/* What goes along a sequence. See cases.h. */
#include "support/cases/recurrent.h"
#include "support/cases/cases.h"
#include "support/op_roundings.h"

/* ---- convolutions ---- */

rw_tensor *op_build_causal_conv1d(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    return rw_causal_conv1d(t, x[0], x[1], c->n > 2 ? x[2] : RW_NONE);
}

/* Taps and the bias; rows, and the sums of their parts. */
void op_count_causal_conv1d(struct op_case *c)
{
    const int taps = (int)c->in[1].shape.dim[1], rows = (int)(c->in[0].shape.dim[0] * c->in[0].shape.dim[1]);
    c->r[0].n = taps + 1;
    c->r[1].n = taps;
    c->r[2].n = c->r[3].n = rows + rows / 128 + 2;
}

static void convolutions(void)
{
    const struct {
        struct op_operand x;
        int64_t taps;
    } all[] = { { { S(1, 1, 1), 0, 0 }, 1 },         { { S(2, 7, 5), 0, 0 }, 4 },
                { { S(2, 3, 33), OP_TURNED, 0 }, 4 }, { { S(3, 9, 19), OP_SLICED, 0 }, 3 },
                { { S(2, 2, 40), OP_CUT, 0 }, 5 },    { { S(3, 6, 4), OP_EXPANDED, 0 }, 2 },
                { { S(1, 20, 3), 0, 0 }, 16 },        { { S(0, 4, 3), 0, 0 }, 4 },
                { { S(2, 0, 3), 0, 0 }, 4 },          { { S(2, 4, 0), 0, 0 }, 4 },
                { { S(2, 700, 40), 0, 0 }, 4 } };
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++) {
        const rw_shape x = all[i / 2].x.shape;
        struct op_case *const c = op_case_next(OP_PRODUCTS, op_build_causal_conv1d, OP_TERMS, 2 + (int)(i % 2));
        c->in[0] = all[i / 2].x;
        c->in[1].shape = S(x.dim[2], all[i / 2].taps);
        c->in[2].shape = S(x.dim[2]);
        op_count_causal_conv1d(c);
        c->large = rw_shape_numel(x) > 4096;
        op_case_describe(c, "causal_conv1d of %lld%s", (long long)all[i / 2].taps, i % 2 ? " and a bias" : "");
    }
}

void op_cases_recurrent(void)
{
    convolutions();
}
