/* Cases of ops that move elements or convert them. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

#include <string.h>

static struct op_case *exact(const char *name, op_build build, struct op_operand x)
{
    struct op_case *const c = op_case_next(OP_SHAPES, build, op_values, 1);
    c->in[0] = x;
    c->large = rw_shape_numel(x.shape) > 4096;
    op_case_describe(c, "%s", name);
    return c;
}

/* Appends the cases of ops that move or convert elements. */
void op_cases_shapes(void)
{
    const struct op_operand boxes[] = { { S(4, 5, 6), 0, 0 },           { S(2, 33, 12), OP_TURNED, 0 },
                                        { S(3, 8, 6), OP_MIDDLE, 0 },   { S(3, 6, 5), OP_SLICED, 0 },
                                        { S(6, 7, 4), OP_EXPANDED, 0 }, { S(35, 33, 66), OP_TURNED, 0 } };
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        const rw_shape s = boxes[i].shape;
        exact("permute", op_build_permute, boxes[i]);
        exact("contiguous", op_build_contiguous, boxes[i]);
        exact("reshape", op_build_reshape, boxes[i])->shape = S(s.dim[1], -1);
        for (int axis = -1; axis < 2; axis++) {
            if (s.dim[axis < 0 ? 2 : axis] < 4) continue;
            exact("slice", op_build_slice, boxes[i])->axis = axis;
            exact("split", op_build_split, boxes[i])->axis = axis;
        }
    }
    const rw_shape wide[][2] = {
        { S(4, 1), S(3, 4, 6) }, { S(1), S(257) }, { S(5), S(2, 0, 5) }, { S(3, 1, 2), S(3, 7, 2) }
    };
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        struct op_case *const c = exact("broadcast_to", op_build_broadcast_to,
                                        (struct op_operand){ .shape = wide[i][0] });
        c->sizes = OP_TERMS;
        c->shape = wide[i][1];
        op_case_count(c, op_count_broadcast_to);
    }
    const struct {
        struct op_operand x[3];
        int n, axis;
    } parts[] = { { { { S(4, 2, 3), 0, 0 }, { S(4, 1, 3), 0, 0 }, { S(4, 5, 3), OP_SLICED, 0 } }, 3, 1 },
                  { { { S(7), 0, 0 }, { S(257), 0, 0 } }, 2, 0 },
                  { { { S(3, 5), OP_TURNED, 0 }, { S(3, 0), 0, 0 }, { S(3, 2), 0, 0 } }, 3, -1 },
                  { { { S(5, 4), 0, 0 } }, 1, 0 } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct op_case *const c = op_case_next(OP_SHAPES, op_build_concat, op_values, parts[i].n);
        memcpy(c->in, parts[i].x, sizeof parts[i].x);
        c->axis = parts[i].axis;
        op_case_describe(c, "concat");
    }
    for (int d = 0; d < RW_DTYPE_COUNT; d++)
        for (int k = 0; k < 2 && rw_dtype_is_float((rw_dtype)d); k++) {
            /* Squares have 16 bits: rounded once to a 16-bit type, by the product or by the cast. */
            struct op_case *const c = op_case_next(OP_SHAPES, op_build_cast, op_values, 1);
            c->in[0] = (struct op_operand){ .shape = k ? S(5, 33) : S(257), .layout = k ? OP_TURNED : OP_DENSE };
            c->dtype = (rw_dtype)d;
            c->r[0] = (struct roundings){ 1, 1 };
            c->r[1] = (struct roundings){ 2, 1 };
            op_case_describe(c, "cast to %s", rw_dtype_name((rw_dtype)d));
        }
}
