/*
 * Cases of comparisons and selections. Compared values are never rounded, so every type selects the same elements.
 */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Pairs that broadcast, of any layout. */
static const struct op_operand pairs[][2] = {
    { { S(1), 0, 0 }, { S(1), 0, 0 } },
    { { S(257), 0, 0 }, { S(257), 0, 0 } },
    { { S(5, 8), OP_TURNED, 0 }, { S(5, 8), 0, 0 } },
    { { S(4, 16), OP_SLICED, 0 }, { S(4, 16), OP_EXPANDED, 0 } },
    { { S(4, 33), OP_CUT, 0 }, { S(33), OP_SLICED, 0 } },
    { { S(2, 3, 37), 0, 0 }, { S(3, 1), 0, 0 } },
    { { S(3, 16), OP_SLICED, 0 }, { S(3, 1), 0, 0 } },
    { { S(0, 3), 0, 0 }, { S(3), 0, 0 } },
    { { S(300, 201), OP_CUT, 0 }, { S(300, 201), OP_TURNED, 0 } },
};
#define N_PAIRS (sizeof pairs / sizeof *pairs)

static struct op_case *pair(op_build build, size_t i, enum op_range range, struct roundings y, struct roundings g)
{
    struct op_case *const c = op_case_next(OP_POINTWISE, build, op_values, 2);
    c->r[0] = y;
    for (int j = 0; j < 2; j++) c->in[j] = pairs[i][j], c->in[j].range = range, c->r[1 + j] = g;
    c->large = rw_shape_numel(op_broadcast(c->in[0].shape, c->in[1].shape)) > 4096;
    op_case_count(c, op_count_broadcast);
    return c;
}

/* A sum, stored, times 1 or 0. The bound is relative to the result, because only the two operands are added. */
static void compare(void)
{
    static const char *const names[] = { "eq", "ne", "lt", "le", "gt", "ge" };
    for (int which = 0; which < 6; which++)
        for (size_t i = 0; i < N_PAIRS; i++) {
            struct op_case *const c = pair(op_build_compare, i, OP_TIES, (struct roundings){ 2, 1 },
                                           (struct roundings){ 1, 1 });
            c->axis = which;
            op_case_describe(c, "%s", names[which]);
        }
}

static void choose(void)
{
    for (size_t i = 0; i < N_PAIRS; i++) {
        struct op_case *c = pair(op_build_where_number, i, OP_SIGNED, (struct roundings){ 0, 0 },
                                 (struct roundings){ 0, 0 });
        op_case_describe(c, "where of a comparison");
        c = pair(op_build_masked_fill, i, OP_SIGNED, (struct roundings){ 1, 0 }, (struct roundings){ 0, 0 });
        c->value = -1.5;
        op_case_describe(c, "masked_fill");
    }
}

/* The product with the selected element, of numbers of one sign. */
static void where(void)
{
    const struct op_operand all[][3] = {
        { { S(37), 0, 0 }, { S(37), 0, 0 }, { S(37), 0, 0 } },
        { { S(5, 8), OP_TURNED, 0 }, { S(5, 8), 0, 0 }, { S(5, 8), OP_SLICED, 0 } },
        { { S(4, 16), OP_EXPANDED, 0 }, { S(4, 16), OP_CUT, 0 }, { S(4, 16), OP_TURNED, 0 } },
        { { S(2, 0, 3), 0, 0 }, { S(2, 0, 3), 0, 0 }, { S(2, 0, 3), 0, 0 } },
        { { S(150, 201), OP_CUT, 0 }, { S(150, 201), 0, 0 }, { S(150, 201), OP_TURNED, 0 } },
    };
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++) {
        struct op_case *const c = op_case_next(OP_POINTWISE, op_build_where, op_values, 3);
        for (int j = 0; j < 3; j++) c->in[j] = all[i / 2][j], c->in[j].range = OP_POSITIVE;
        for (int j = 0; j < 4; j++) c->r[j] = (struct roundings){ 1, j > 1 };
        c->keep = i % 2;
        c->large = rw_shape_numel(c->in[0].shape) > 4096;
        op_case_describe(c, "where");
    }
}

static void clamp(void)
{
    const struct op_operand all[] = { { S(1), 0, 0 },           { S(257), 0, 0 },          { S(3, 37), OP_TURNED, 0 },
                                      { S(5, 16), OP_SLICED, 0 }, { S(3, 5), OP_EXPANDED, 0 }, { S(2, 0, 3), 0, 0 },
                                      { S(131, 1025), OP_TURNED, 0 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *const c = op_case_next(OP_POINTWISE, op_build_clamp, op_values, 1);
        c->in[0] = all[i];
        c->large = rw_shape_numel(all[i].shape) > 4096;
        op_case_describe(c, "clamp");
    }
}

static void clamp_by_tensors(void)
{
    const struct op_operand all[][3] = { { { S(1), 0, 0 }, { S(1), 0, 0 }, { S(1), 0, 0 } },
                                         { { S(5, 37), OP_TURNED, 0 }, { S(37), 0, 0 }, { S(5, 1), 0, 0 } },
                                         { { S(4, 16), OP_SLICED, 0 }, { S(4, 16), OP_EXPANDED, 0 }, { S(1), 0, 0 } },
                                         { { S(2, 0, 3), 0, 0 }, { S(3), 0, 0 }, { S(2, 1, 1), 0, 0 } } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int n = 2; n <= 3; n++) {
            struct op_case *const c = op_case_next(OP_POINTWISE, op_build_clamp_tensor, op_values, n);
            for (int k = 0; k < n; k++) c->in[k] = all[i][k];
            op_case_count(c, op_count_broadcast);
            c->r[3].n = (int)rw_shape_numel(all[i][0].shape); /* all of them may be summed into an element of high */
            op_case_describe(c, "clamp_tensor");
        }
}

void op_cases_compare(void)
{
    compare();
    choose();
    where();
    clamp();
    clamp_by_tensors();
}
