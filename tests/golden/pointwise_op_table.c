/* The rows of pointwise.golden, of ops that their cases do not describe. */
#include "golden/op_table.h"

/* An op without a gradient of its own, multiplied by x. */
static rw_tensor *with_sign(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    (void)c;
    return rw_mul(t, x[0], rw_sign(t, x[0]));
}

static const struct golden_row rows[] = {
    COUNTED(pow, pow, broadcast, .r = { { N_POW, 0 }, { N_POW + 4, 1 }, { N_POW + N_F + 2, 1 } }),
    { "sign", { .build = with_sign }, NULL },
};

const struct golden_set golden_pointwise = { "pointwise.golden", rows, sizeof rows / sizeof *rows };
