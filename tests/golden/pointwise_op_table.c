/* The rows of pointwise.golden. */
#include "golden/op_table.h"

/* An op without a gradient of its own, multiplied by x. */
static rw_tensor *with_sign(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    (void)c;
    return rw_mul(t, x[0], rw_sign(t, x[0]));
}

static const struct golden_row rows[] = {
    ROW(elu, elu, .value = 1.7, .r = { { N_F + 2, 0 }, { N_F + 3, 0 } }),
    COUNTED(pow, pow, broadcast, .r = { { N_POW, 0 }, { N_POW + 4, 1 }, { N_POW + N_F + 2, 1 } }),
    ROW(hardswish, hardswish, .r = { { 3, 0 }, { 3, 0 } }),
    ROW(leaky_relu, leaky_relu, .value = 0.2, .r = { { 2, 0 }, { 2, 0 } }),
    ROW(relu6, relu6, ),
    { "sign", { .build = with_sign }, NULL },
};

const struct golden_set golden_pointwise = { "pointwise.golden", rows, sizeof rows / sizeof *rows };
