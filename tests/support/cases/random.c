/* Cases of random ops. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Appends the cases of random ops. */
void op_cases_random(void)
{
    static const double p[] = { 0.1, 0.5, 0.9 };
    const struct op_operand shapes[] = { { S(1), 0, 0 },
                                         { S(63), 0, 0 },
                                         { S(64), 0, 0 },
                                         { S(65), 0, 0 },
                                         { S(257), 0, 0 },
                                         { S(1027), 0, 0 },
                                         { S(3, 37), OP_TURNED, 0 },
                                         { S(0), 0, 0 },
                                         { S(40003), 0, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const bool large = rw_shape_numel(shapes[i].shape) > 4096;
        for (int k = 0; k < 3; k++) {
            struct op_case *const c = op_case_next(OP_RANDOM, op_build_dropout, op_values, 1);
            c->in[0] = shapes[i];
            c->in[0].range = OP_POSITIVE; /* no zeros except the mask's */
            c->dropout = p[k];
            c->r[0].n = c->r[1].n = N_DROPOUT;
            c->large = large;
            op_case_describe(c, "dropout %g", p[k]);
        }
        for (int k = 0; k < 6; k++) {
            struct op_case *const c = op_case_next(OP_RANDOM, op_build_dropout_add, OP_TERMS, 2);
            c->in[0] = c->in[1] = shapes[i];
            c->in[1].layout = k % 2 && shapes[i].shape.rank > 1 ? OP_SLICED : OP_DENSE;
            c->dropout = p[k / 2];
            c->keep = k % 2;
            c->r[0].n = N_DROPOUT + 1;
            c->r[1].n = N_DROPOUT;
            c->large = large;
            op_case_describe(c, "dropout_add %g", c->dropout);
        }
        for (int normal = 0; normal < 2; normal++)
            for (int d = 0; d < RW_DTYPE_COUNT; d++) {
                if (!rw_dtype_is_float((rw_dtype)d)) continue;
                struct op_case *const c = op_case_next(OP_RANDOM, normal ? op_build_randn : op_build_rand, op_values,
                                                       0);
                c->shape = shapes[i].shape;
                c->dtype = (rw_dtype)d;
                c->typed = true;
                /* Evaluated in double: logarithm, root, sine and product, then rounded. Uniform deviates are exact. */
                c->r[0].n = normal ? N_RANDN : 0;
                c->large = large;
                op_case_describe(c, "%s %s of %lld", normal ? "randn" : "rand", rw_dtype_name(c->dtype),
                                 (long long)rw_shape_numel(c->shape));
            }
    }
}
