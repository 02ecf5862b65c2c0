/* Cases of slices, pads and leaves without storage. Only sums of copied elements are rounded. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

static const struct op_operand boxes[] = {
    { S(4, 5, 6), 0, 0 },           { S(2, 33, 12), OP_TURNED, 0 }, { S(3, 8, 6), OP_MIDDLE, 0 },
    { S(3, 6, 5), OP_SLICED, 0 },   { S(6, 7, 4), OP_EXPANDED, 0 }, { S(4, 3, 16), OP_CUT, 0 },
    { S(35, 33, 66), OP_TURNED, 0 }
};
#define N_BOXES (sizeof boxes / sizeof *boxes)

static struct op_case *one(op_build build, struct op_operand x, int axis, const char *name)
{
    struct op_case *const c = op_case_next(OP_SHAPES, build, op_values, 1);
    c->in[0] = x;
    c->axis = axis;
    c->large = rw_shape_numel(x.shape) > 4096;
    op_case_describe(c, "%s %d", name, axis);
    return c;
}

/* An element is in as many windows as there are steps in one. */
static void windows(struct op_operand x, int axis, int64_t size, int64_t step)
{
    struct op_case *const c = one(op_build_unfold, x, axis, "unfold");
    c->shape = S(size, step);
    c->r[1].n = size > step ? (int)((size + step - 1) / step) : 0;
    op_case_describe(c, "unfold %d by %d, %d apart", axis, (int)size, (int)step);
}

/* Ops that select, insert or unbind axes, and windows. */
static void views(void)
{
    for (size_t i = 0; i < N_BOXES - 1; i++)
        for (int axis = -1; axis < 2; axis++) {
            const int64_t n = boxes[i].shape.dim[axis < 0 ? 2 : axis];
            one(op_build_select, boxes[i], axis, "select")->keep = i % 2;
            one(op_build_unsqueeze, boxes[i], axis, "unsqueeze");
            if (n < 17) one(op_build_unbind, boxes[i], axis, "unbind");
            for (int64_t step = 1; step < 5; step += 2) windows(boxes[i], axis, 2, step);
        }
    windows(boxes[N_BOXES - 1], 1, 5, 3);
    windows((struct op_operand){ .shape = S(20) }, 0, 7, 2);
    windows((struct op_operand){ .shape = S(4, 5) }, 0, 0, 3);
    one(op_build_select, (struct op_operand){ .shape = S(3, 1, 5) }, 1, "select")->keep = true;
    one(op_build_select, (struct op_operand){ .shape = S(0, 3) }, 1, "select");
}

static void stacks(void)
{
    for (int axis = -1; axis < 3; axis++) {
        struct op_case *const c = op_case_next(OP_SHAPES, op_build_stack, op_values, 3);
        c->in[0].shape = c->in[1].shape = c->in[2].shape = S(5, 7);
        c->in[1].layout = OP_TURNED;
        c->in[2].layout = OP_SLICED;
        c->axis = axis;
        op_case_describe(c, "stack along %d", axis);
    }
}

static void moves(void)
{
    for (size_t i = 0; i < N_BOXES; i++)
        for (int axis = i + 1 < N_BOXES ? -1 : 1; axis < 2; axis++) { /* the large one along the middle */
            one(op_build_flip, boxes[i], axis, "flip");
            one(op_build_roll, boxes[i], axis, "roll")->value = i % 2 ? -7 : 2;
        }
    one(op_build_flip, (struct op_operand){ .shape = S(2, 0) }, 1, "flip");
    one(op_build_roll, (struct op_operand){ .shape = S(0, 3) }, 0, "roll")->value = 5;
}

/* An element is copied to at most three places along an axis; the sum along one axis is stored before the next. */
static void pads(void)
{
    static const char *const names[] = { "constant pad", "reflect pad", "replicate pad", "circular pad" };
    for (size_t i = 0; i < N_BOXES; i++)
        for (int mode = 0; mode < RW_PAD_MODE_COUNT; mode++)
            for (int both = i + 1 < N_BOXES ? 0 : 1; both < 2; both++) {
                struct op_case *const c = one(op_build_pad, boxes[i], mode, names[mode]);
                c->keep = both;
                c->value = -1.25;
                c->causal = mode == RW_PAD_CONSTANT && i % 2; /* crops too */
                if (mode) c->r[1] = (struct roundings){ both ? 6 : 3, both };
                op_case_describe(c, "%s of %d", names[mode], both + 1);
            }
    one(op_build_pad, (struct op_operand){ .shape = S(2, 0) }, RW_PAD_CONSTANT, "constant pad");
}

/* Quarters and halves that every type holds, except for one product and one sum. */
static void numbers(void)
{
    const struct op_operand all[] = { { S(3), 0, 0 }, { S(4, 9), OP_TURNED, 0 }, { S(2, 5, 33), OP_SLICED, 0 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *const c = one(op_build_numbers, all[i], 0, "numbers");
        c->in[0].range = OP_POSITIVE;
        c->sizes = OP_TERMS;
        c->r[0] = (struct roundings){ 3, 1 };
        c->r[1] = (struct roundings){ 1, 0 };
    }
}

void op_cases_select(void)
{
    views();
    stacks();
    moves();
    pads();
    numbers();
}
