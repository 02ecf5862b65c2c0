/* Cases of matrix products: matmul, linear, and their sums with a residual. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

static rw_shape op_product(rw_shape a, rw_shape b)
{
    const int64_t m = a.dim[a.rank - 2], n = b.dim[b.rank - 1];
    a.rank -= 2, b.rank -= 2;
    rw_shape c = op_broadcast(a, b);
    c.dim[c.rank++] = m, c.dim[c.rank++] = n;
    return c;
}

/* Appends the cases of matrix products. */
void op_cases_products(void)
{
    const struct {
        struct op_operand a, b;
    } products[] = {
        { { S(1, 1), 0, 0 }, { S(1, 1), 0, 0 } },
        { { S(2, 3), 0, 0 }, { S(3, 4), 0, 0 } },
        { { S(5, 33), OP_TURNED, 0 }, { S(33, 7), 0, 0 } },
        { { S(17, 16), 0, 0 }, { S(16, 65), OP_TURNED, 0 } },
        { { S(9, 8), OP_TURNED, 0 }, { S(8, 24), OP_TURNED, 0 } },
        { { S(6, 20), OP_SLICED, 0 }, { S(20, 5), OP_CUT, 0 } },
        { { S(2, 5, 33), 0, 0 }, { S(33, 7), 0, 0 } },
        { { S(2, 1, 5, 33), 0, 0 }, { S(3, 33, 7), 0, 0 } },
        { { S(2, 3, 5, 8), OP_MIDDLE, 0 }, { S(2, 3, 8, 5), OP_MIDDLE, 0 } },
        { { S(3, 4, 6), OP_EXPANDED, 0 }, { S(3, 6, 4), 0, 0 } },
        { { S(3, 0), 0, 0 }, { S(0, 4), 0, 0 } },
        { { S(0, 3), 0, 0 }, { S(3, 4), 0, 0 } },
        { { S(200, 257), 0, 0 }, { S(257, 130), OP_TURNED, 0 } },
        { { S(4, 129, 64), 0, 0 }, { S(4, 64, 129), OP_TURNED, 0 } },
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        struct op_case *const c = op_case_next(OP_PRODUCTS, op_build_matmul, OP_TERMS, 2);
        c->in[0] = products[i].a, c->in[1] = products[i].b;
        op_case_count(c, op_count_product);
        c->large = rw_shape_numel(c->in[0].shape) > 4096;
        op_case_describe(c, "matmul");
    }
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (int lives = 0; lives < 2; lives++) {
            struct op_case *const c = op_case_next(OP_PRODUCTS, op_build_matmul_add, OP_TERMS, 3);
            c->in[1] = products[i].a, c->in[2] = products[i].b;
            c->in[0] = (struct op_operand){ .shape = op_product(c->in[1].shape, c->in[2].shape),
                                            .layout = lives ? OP_CUT : OP_DENSE };
            c->keep = lives;
            op_case_count(c, op_count_matmul_add);
            c->large = rw_shape_numel(c->in[1].shape) > 4096;
            op_case_describe(c, "matmul_add");
        }
    const struct {
        struct op_operand x;
        int64_t out;
    } layers[] = { { { S(1, 1), 0, 0 }, 1 },          { { S(2, 5, 33), 0, 0 }, 7 }, { { S(9, 16), OP_TURNED, 0 }, 24 },
                   { { S(3, 8), OP_SLICED, 0 }, 65 }, { { S(0, 4), 0, 0 }, 3 },     { { S(7), 0, 0 }, 5 },
                   { { S(300, 96), 0, 0 }, 200 } };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int form = 0; form < 4; form++) {
            const int bias = form & 1, gelu = form & 2;
            struct op_case *const c = op_case_next(OP_PRODUCTS, gelu ? op_build_linear_gelu : op_build_linear,
                                                   gelu ? op_sizes_linear_gelu : OP_TERMS, 2 + bias);
            const rw_shape x = layers[i].x.shape;
            const int64_t in = x.dim[x.rank - 1];
            c->in[0] = layers[i].x;
            c->in[1].shape = S(layers[i].out, in), c->in[2].shape = S(layers[i].out);
            if (gelu) op_case_count(c, op_count_linear_gelu);
            else op_case_count(c, op_count_linear);
            c->large = rw_shape_numel(x) > 4096;
            op_case_describe(c, gelu ? "linear_gelu" : "linear");
        }
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int form = 0; form < 4; form++) {
            const int bias = form & 1;
            struct op_case *const c = op_case_next(OP_PRODUCTS, op_build_linear_add, OP_TERMS, 3 + bias);
            rw_shape s = layers[i].x.shape;
            c->keep = form & 2;
            c->in[1] = layers[i].x;
            c->in[2].shape = S(layers[i].out, s.dim[s.rank - 1]), c->in[3].shape = S(layers[i].out);
            s.dim[s.rank - 1] = layers[i].out;
            c->in[0] = (struct op_operand){ .shape = s, .layout = c->keep && s.rank > 1 ? OP_CUT : OP_DENSE };
            op_case_count(c, op_count_linear_add);
            c->large = rw_shape_numel(layers[i].x.shape) > 4096;
            op_case_describe(c, "linear_add");
        }
}
