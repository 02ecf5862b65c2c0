/* Cases of prod, var, norm and normalize. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

#include <math.h>

/* Products, variances and norms over a set of axes. */
static void add_over_axes(void)
{
    static const struct {
        const char *name;
        op_build build;
        op_sizes sizes;
        op_count count;
        double value;
        bool unbiased;
    } ops[] = {
        { "prod", op_build_prod, OP_TERMS, op_count_prod, 0, false },
        { "var", op_build_var, op_sizes_var, op_count_var, 0, false },
        { "var unbiased", op_build_var, op_sizes_var, op_count_var, 0, true },
        { "norm of order 1", op_build_norm, op_values, op_count_norm_of, 1, false },
        { "norm of order 2", op_build_norm, op_values, op_count_norm_of, 2, false },
        { "norm of order inf", op_build_norm, op_values, op_count_norm_of, INFINITY, false },
    };
    const struct {
        struct op_operand x;
        uint32_t axes;
    } shapes[] = { { { S(2), 0, 0 }, 1 },
                   { { S(37), 0, 0 }, 1 },
                   { { S(3, 5, 7), 0, 0 }, 2 },
                   { { S(3, 5, 7), 0, 0 }, 5 },
                   { { S(3, 4, 2), 0, 0 }, 7 },
                   { { S(9, 6), OP_TURNED, 0 }, 2 },
                   { { S(4, 8), OP_SLICED, 0 }, 1 },
                   { { S(3, 5), OP_EXPANDED, 0 }, 2 },
                   { { S(0, 3), 0, 0 }, 2 },
                   { { S(9000, 5), 0, 0 }, 2 } };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct op_case *const c = op_case_next(OP_REDUCTIONS, ops[i].build, ops[i].sizes, 1);
            c->in[0] = shapes[k].x;
            c->axes = shapes[k].axes;
            c->value = ops[i].value;
            c->causal = ops[i].unbiased;
            c->keep = k % 2;
            op_case_count(c, ops[i].count);
            c->large = rw_shape_numel(shapes[k].x.shape) > 4096;
            op_case_describe(c, "%s over axes %x", ops[i].name, c->axes);
        }
}

/* Normalizations along one axis. */
static void add_along_one(void)
{
    static const double orders[] = { 1, 2, INFINITY };
    for (size_t k = 0; k < OP_AXIS_CASES; k++)
        for (int kind = 0; kind < 3; kind++) {
            struct op_case *const c = op_case_next(OP_REDUCTIONS, op_build_normalize, op_sizes_normalize, 1);
            c->in[0] = op_axis_cases[k].x;
            c->axis = op_axis_cases[k].axis;
            c->value = orders[kind];
            op_case_count(c, op_count_normalize);
            c->large = rw_shape_numel(op_axis_cases[k].x.shape) > 4096;
            op_case_describe(c, "normalize by order %g along %d", c->value, c->axis);
        }
}

void op_cases_more_reductions(void)
{
    add_over_axes();
    add_along_one();
}
