/* Cases of gather and scatter: elements by index, and sums by index. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

static struct op_case *one(op_build build, struct op_operand x, int axis, rw_shape index)
{
    struct op_case *const c = op_case_next(OP_TABLES, build, op_values, 1);
    c->in[0] = x;
    c->axis = axis;
    c->shape = index;
    c->large = rw_shape_numel(x.shape) > 4096;
    return c;
}

static int64_t extent(rw_shape s, int axis)
{
    return s.dim[axis < 0 ? s.rank + axis : axis];
}

/* One element receives at most as many as an index has elements along the axis. */
static void gathers(void)
{
    const struct {
        struct op_operand x;
        int axis;
        rw_shape index;
    } all[] = { { { S(1), 0, 0 }, 0, S(1) },
                { { S(7), 0, 0 }, 0, S(40) },
                { { S(5, 9), 0, 0 }, 0, S(3, 9) },
                { { S(5, 9), OP_TURNED, 0 }, 1, S(5, 4) },
                { { S(5, 9), OP_SLICED, 0 }, -1, S(2, 30) },
                { { S(4, 6, 37), OP_MIDDLE, 0 }, 1, S(3, 11, 35) },
                { { S(4, 6, 70), 0, 0 }, 0, S(9, 6, 70) },
                { { S(4, 3), OP_CUT, 0 }, 0, S(0, 3) },
                { { S(0, 3), 0, 0 }, 1, S(0, 2) },
                { { S(40, 1100), OP_TURNED, 0 }, 1, S(40, 300) } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *c = one(op_build_gather, all[i].x, all[i].axis, all[i].index);
        c->r[1].n = (int)extent(all[i].index, all[i].axis);
        op_case_describe(c, "gather along %d", c->axis);
        for (int keep = 0; keep < 2; keep++) {
            c = op_case_next(OP_TABLES, op_build_scatter_add, OP_TERMS, 2);
            c->in[0] = all[i].x;
            c->in[1].shape = c->shape = all[i].index;
            if (all[i].x.layout) c->in[1].layout = keep ? OP_TURNED : OP_SLICED;
            c->axis = all[i].axis;
            c->keep = keep;
            c->large = rw_shape_numel(all[i].x.shape) > 4096;
            c->r[0].n = (int)extent(all[i].index, all[i].axis) + 1;
            op_case_describe(c, "scatter_add along %d", c->axis);
        }
    }
    struct op_case *const c = op_case_next(OP_TABLES, op_build_scatter_add, OP_TERMS, 2);
    c->in[0] = (struct op_operand){ .shape = S(90, 130), .layout = OP_TURNED };
    c->in[1] = (struct op_operand){ .shape = S(80, 700), .layout = OP_SLICED };
    c->shape = S(80, 700);
    c->axis = 1;
    c->keep = c->large = true;
    c->r[0].n = 701;
    op_case_describe(c, "scatter_add along 1");
}

/* Selections of several rows by index, along each axis. */
static void lists(void)
{
    const struct {
        struct op_operand x;
        int axis;
        int64_t n;
    } all[] = { { { S(1), 0, 0 }, 0, 1 },
                { { S(7, 19), 0, 0 }, 0, 6 },
                { { S(5, 9), OP_TURNED, 0 }, 1, 20 },
                { { S(5, 9), OP_SLICED, 0 }, -1, 4 },
                { { S(4, 6, 33), OP_MIDDLE, 0 }, 1, 200 },
                { { S(4, 6, 7), OP_EXPANDED, 0 }, 2, 3 },
                { { S(4, 3), 0, 0 }, 0, 0 },
                { { S(0, 3), 0, 0 }, 1, 2 },
                { { S(60, 50, 40), OP_CUT, 0 }, 1, 90 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *const c = one(op_build_index_select, all[i].x, all[i].axis, S(all[i].n));
        c->r[1].n = (int)all[i].n;
        op_case_describe(c, "index_select of %d along %d", (int)all[i].n, c->axis);
    }
}

/* The mean adds one rounding; its gradient adds a rounded factor and a product, stored. */
static void bags(void)
{
    const struct {
        struct op_operand table;
        rw_shape index;
    } all[] = { { { S(1, 1), 0, 0 }, S(1, 1) },         { { S(7, 19), 0, 0 }, S(5, 3) },
                { { S(5, 64), 0, 0 }, S(2, 40) },       { { S(11, 257), 0, 0 }, S(4, 6) },
                { { S(4, 8), 0, 0 }, S(0, 3) },         { { S(4, 8), 0, 0 }, S(3, 0) },
                { { S(6, 5), OP_TURNED, 0 }, S(3, 4) }, { { S(5, 9), OP_SLICED, 0 }, S(2, 3) },
                { { S(250, 96), 0, 0 }, S(90, 21) } };
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++) {
        const rw_shape index = all[i / 2].index;
        struct op_case *const c = one(op_build_embedding_bag, all[i / 2].table, 0, index);
        c->sizes = OP_TERMS;
        c->keep = i % 2;
        c->r[0].n = (int)index.dim[1] + 1;
        c->r[1] = (struct roundings){ (int)rw_shape_numel(index) + 2, c->keep };
        op_case_describe(c, "embedding_bag, %s of %d", c->keep ? "means" : "sums", (int)index.dim[1]);
    }
}

/* Each mode with each of its options: weights, a padding, offsets, and all of them. */
static void bags_with(void)
{
    const struct {
        struct op_operand table;
        rw_shape index;
        enum op_layout weights[2]; /* of bags with a fixed size, and by offsets */
    } all[] = { { { S(1, 1), 0, 0 }, S(1, 1), { 0 } },   { { S(7, 19), 0, 0 }, S(5, 3), { 0 } },
                { { S(5, 64), 0, 0 }, S(2, 10), { 0 } }, { { S(11, 33), 0, 0 }, S(4, 6), { 0 } },
                { { S(4, 8), 0, 0 }, S(0, 3), { 0 } },   { { S(7, 9), OP_TURNED, 0 }, S(3, 4), { OP_TURNED, OP_CUT } },
                { { S(5, 6), OP_SLICED, 0 }, S(4, 2), { OP_SLICED, OP_SLICED } } };
    static const struct {
        rw_bag_mode mode;
        bool weights, padding, offsets, ends;
    } forms[] = { { RW_BAG_SUM, true, false, false },  { RW_BAG_SUM, false, true, false },
                  { RW_BAG_MEAN, false, true, false }, { RW_BAG_MAX, false, false, false },
                  { RW_BAG_MAX, false, true, false },  { RW_BAG_SUM, true, true, true },
                  { RW_BAG_MEAN, false, true, true },  { RW_BAG_SUM, false, false, true },
                  { RW_BAG_MAX, false, false, true },  { RW_BAG_MAX, false, true, true, true },
                  { RW_BAG_MEAN, false, false, true, true } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
            const bool most = forms[k].mode == RW_BAG_MAX;
            struct op_case *const c = op_case_next(OP_TABLES, op_build_embedding_bag_with, most ? op_values : OP_TERMS,
                                                   forms[k].weights ? 2 : 1);
            c->in[0] = all[i].table;
            c->shape = forms[k].offsets ? S(rw_shape_numel(all[i].index)) : all[i].index;
            c->in[1].shape = c->shape;
            c->in[1].layout = all[i].weights[forms[k].offsets];
            c->axis = forms[k].mode;
            c->causal = forms[k].offsets;
            c->keep = forms[k].ends;
            c->value = forms[k].padding ? 0 : -1;
            op_case_count(c, op_count_bag_with);
            op_case_describe(c, "embedding_bag_with form %d of %d", (int)k, (int)rw_shape_numel(c->shape));
        }
}

/* The k largest elements along an axis, with ties. */
static void largest(void)
{
    const struct {
        struct op_operand x;
        int axis, k;
    } all[] = { { { S(1), 0, 0 }, 0, 1 },          { { S(3, 8), 0, 0 }, -1, 2 },   { { S(5, 64), OP_SLICED, 0 }, 1, 8 },
                { { S(9, 5), OP_TURNED, 0 }, 0, 4 },
                { { S(2, 6, 7), 0, 0 }, 1, 6 },
                { { S(4, 33), OP_CUT, 0 }, -1, 33 },
                { { S(3, 4), 0, 0 }, 1, 0 },       { { S(0, 4), 0, 0 }, 1, 2 },    { { S(2, 2000), 0, 0 }, 1, 20 },
                { { S(90, 64), OP_TURNED, 0 }, 0, 5 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *const c = one(op_build_topk, all[i].x, all[i].axis, RW_SCALAR);
        c->value = all[i].k;
        c->in[0].range = OP_TIES;
        op_case_describe(c, "topk of %d along %d", all[i].k, c->axis);
    }
}

/* The place of the largest or smallest element along an axis, with ties. */
static void places(void)
{
    const struct {
        struct op_operand x;
        int axis;
    } all[] = { { { S(1), 0, 0 }, 0 },
                { { S(3, 8), 0, 0 }, -1 },
                { { S(5, 64), OP_SLICED, 0 }, 1 },
                { { S(9, 5), OP_TURNED, 0 }, 0 },
                { { S(2, 6, 7), OP_MIDDLE, 0 }, 1 },
                { { S(4, 33), OP_CUT, 0 }, -1 },
                { { S(3, 7), OP_EXPANDED, 0 }, 1 },
                { { S(0, 4), 0, 0 }, 1 },
                { { S(3, 0, 4), 0, 0 }, 2 },
                { { S(90, 64), OP_TURNED, 0 }, 0 } };
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++) {
        struct op_case *const c = one(i % 2 ? op_build_argmin : op_build_argmax, all[i / 2].x, all[i / 2].axis,
                                      RW_SCALAR);
        c->in[0].range = OP_TIES;
        op_case_describe(c, "arg%s along %d", i % 2 ? "min" : "max", c->axis);
    }
}

void op_cases_gather(void)
{
    gathers();
    lists();
    bags();
    bags_with();
    largest();
    places();
}
