/* Cases of element-wise ops of two operands. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Functions of two operands, which broadcast. */
void op_cases_pointwise(void)
{
    static const struct {
        const char *name;
        op_build build;
        op_sizes sizes;
        enum op_range range[2];
        struct roundings y, g[2];
    } ops[] = {
        { "add", op_build_add, op_values, { OP_SIGNED, OP_SIGNED }, { 1, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "sub", op_build_sub, op_values, { OP_SIGNED, OP_SIGNED }, { 1, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "mul", op_build_mul, OP_TERMS, { OP_SIGNED, OP_SIGNED }, { 1, 0 }, { { 1, 1 }, { 1, 1 } } },
        { "div", op_build_div, OP_TERMS, { OP_SIGNED, OP_POSITIVE }, { 1, 0 }, { { 1, 1 }, { 4, 3 } } },
        { "maximum", op_build_maximum, op_values, { OP_TIES, OP_TIES }, { 0, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "minimum", op_build_minimum, op_values, { OP_TIES, OP_TIES }, { 0, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "pow",
          op_build_pow,
          op_sizes_pow,
          { OP_POSITIVE, OP_SIGNED },
          { N_POW, 0 },
          { { N_POW + 4, 1 }, { N_POW + N_F + 2, 1 } } },
        { "swiglu",
          op_build_swiglu,
          op_sizes_swiglu,
          { OP_WIDE, OP_SIGNED },
          { N_SWIGLU, 0 },
          { { N_SWIGLU_G, 0 }, { N_SWIGLU, 0 } } },
    };
    const struct op_operand shapes[][2] = {
        { { S(1), 0, 0 }, { S(1), 0, 0 } },
        { { S(257), 0, 0 }, { S(257), 0, 0 } },
        { { S(5, 8), OP_TURNED, 0 }, { S(5, 8), 0, 0 } },
        { { S(4, 16), OP_SLICED, 0 }, { S(4, 16), OP_EXPANDED, 0 } },
        { { S(0, 3), 0, 0 }, { S(0, 3), 0, 0 } },
        { { S(300, 201), OP_CUT, 0 }, { S(300, 201), OP_TURNED, 0 } },
        { { S(3, 37), 0, 0 }, { S(37), 0, 0 } },
        { { S(2, 1, 37), 0, 0 }, { S(3, 1), 0, 0 } },
        { { S(1), 0, 0 }, { S(33), 0, 0 } },
        { { S(2, 3, 4, 5), 0, 0 }, { S(3, 1, 5), 0, 0 } },
        { { S(3, 16), OP_SLICED, 0 }, { S(3, 1), 0, 0 } },
        { { S(0, 3), 0, 0 }, { S(3), 0, 0 } },
        { { S(300, 201), 0, 0 }, { S(201), 0, 0 } },
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            if (ops[i].build == op_build_swiglu && k >= 6) break; /* equal shapes only */
            struct op_case *const c = op_case_next(OP_POINTWISE, ops[i].build, ops[i].sizes, 2);
            c->r[0] = ops[i].y;
            for (int j = 0; j < 2; j++) {
                c->in[j] = shapes[k][j];
                c->in[j].range = ops[i].range[j];
                c->r[1 + j] = ops[i].g[j];
            }
            op_case_count(c, op_count_broadcast);
            c->large = rw_shape_numel(op_broadcast(c->in[0].shape, c->in[1].shape)) > 4096;
            op_case_describe(c, "%s", ops[i].name);
        }
}
