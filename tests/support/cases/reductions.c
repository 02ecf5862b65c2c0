/* Cases of reductions over axes, and of softmaxes along one. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Sums, means and maxima over axes. */
static void add_reductions(void)
{
    static const struct {
        const char *name;
        op_build build;
        op_sizes sizes;
        enum op_range range;
        op_count count;
    } ops[] = { { "sum", op_build_sum, OP_TERMS, OP_SIGNED, op_count_sum },
                { "mean", op_build_mean, OP_TERMS, OP_SIGNED, op_count_mean },
                { "max", op_build_max, op_values, OP_TIES, op_count_max },
                { "logsumexp", op_build_logsumexp, op_sizes_logsumexp, OP_SCORES, op_count_logsumexp } };
    const struct {
        struct op_operand x;
        uint32_t axes;
    } shapes[] = {
#define NOTHING 0
        { { S(0, 3), 0, 0 }, 1 },
        { { S(1), 0, 0 }, 1 },
        { { S(257), 0, 0 }, 1 },
        { { S(3, 5, 37), 0, 0 }, 1 },
        { { S(3, 5, 37), 0, 0 }, 2 },
        { { S(3, 5, 37), 0, 0 }, 4 },
        { { S(3, 5, 37), 0, 0 }, 3 },
        { { S(3, 5, 37), 0, 0 }, 5 },
        { { S(3, 5, 37), 0, 0 }, 6 },
        { { S(3, 5, 37), 0, 0 }, 7 },
        { { S(2, 1025), 0, 0 }, 2 },
        { { S(300, 3), 0, 0 }, 1 },
        { { S(33, 32), OP_TURNED, 0 }, 2 },
        { { S(33, 32), OP_TURNED, 0 }, 1 },
        { { S(7, 31), OP_SLICED, 0 }, 2 },
        { { S(5, 12), OP_EXPANDED, 0 }, 1 },
        { { S(0, 3), 0, 0 }, 2 },
        { { S(3, 70000), 0, 0 }, 2 },
        { { S(5000, 65), 0, 0 }, 1 },
        { { S(37, 41, 43), 0, 0 }, 5 },
        { { S(700, 256), 0, 0 }, 1 },
        { { S(3, 1200, 8), 0, 0 }, 2 },
        { { S(40000), 0, 0 }, 1 },
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            const rw_shape s = shapes[k].x.shape;
            if (i && k == NOTHING) continue; /* only sum is defined for it */
            struct op_case *const c = op_case_next(OP_REDUCTIONS, ops[i].build, ops[i].sizes, 1);
            c->in[0] = shapes[k].x;
            c->in[0].range = ops[i].range;
            c->axes = shapes[k].axes;
            c->keep = k % 2;
            op_case_count(c, ops[i].count);
            c->large = rw_shape_numel(s) > 4096;
            op_case_describe(c, "%s of axes %x", ops[i].name, c->axes);
        }
    const struct {
        rw_shape from, to;
    } down[] = { { S(3, 5, 37), S(5, 1) }, { S(3, 5, 37), S(37) }, { S(4, 9), S(1) }, { S(300, 33), S(33) } };
    for (size_t i = 0; i < sizeof down / sizeof *down; i++) {
        struct op_case *const c = op_case_next(OP_REDUCTIONS, op_build_sum_to, OP_TERMS, 1);
        c->in[0].shape = down[i].from;
        c->shape = down[i].to;
        op_case_count(c, op_count_sum_to);
        c->large = i == 3;
        op_case_describe(c, "sum_to");
    }
}

/* Softmax, log-softmax and causal softmax. */
static void add_softmaxes(void)
{
    const struct {
        struct op_operand x;
        int axis;
    } shapes[] = {
        { { S(1, 1), 0, 0 }, -1 },           { { S(3, 5), 0, 0 }, -1 },     { { S(5, 33), OP_TURNED, 0 }, -1 },
        { { S(2, 257), OP_SLICED, 0 }, -1 }, { { S(3, 11, 5), 0, 0 }, 1 },  { { S(7, 3), 0, 0 }, 0 },
        { { S(2, 1025), 0, 0 }, -1 },        { { S(0, 4), 0, 0 }, -1 },     { { S(6, 9), OP_EXPANDED, 0 }, -1 },
        { { S(70, 4), 0, 0 }, -1 },          { { S(40, 5003), 0, 0 }, -1 }, { { S(9, 65, 129), 0, 0 }, 1 },
        { { S(2, 400), 0, 0 }, -1 },         { { S(4, 1024), 0, 0 }, -1 },  { { S(2, 2048), 0, 0 }, -1 },
        { { S(1, 4096), 0, 0 }, -1 },        { { S(3, 8192), 0, 0 }, -1 }
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int logarithm = 0; logarithm < 2; logarithm++) {
            struct op_case *const c = op_case_next(OP_REDUCTIONS, logarithm ? op_build_log_softmax : op_build_softmax,
                                                   logarithm ? op_sizes_log_softmax : op_sizes_softmax, 1);
            const rw_shape s = shapes[i].x.shape;
            c->in[0] = shapes[i].x;
            c->in[0].range = OP_SCORES;
            c->axis = shapes[i].axis;
            op_case_count(c, logarithm ? op_count_log_softmax : op_count_softmax);
            c->large = rw_shape_numel(s) > 4096;
            op_case_describe(c, "%s along %d", logarithm ? "log_softmax" : "softmax", c->axis);
        }
    const struct op_operand scores[] = { { S(2, 6, 9), 0, 0 },    { S(1, 5, 5), 0, 0 },   { S(9, 6), 0, 0 },
                                         { S(3, 1, 8), 0, 0 },    { S(2, 33, 33), 0, 0 }, { S(2, 5, 7), OP_TURNED, 0 },
                                         { S(3, 200, 131), 0, 0 } };
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        struct op_case *const c = op_case_next(OP_REDUCTIONS, op_build_causal_softmax, op_sizes_softmax, 1);
        c->in[0] = scores[i];
        c->in[0].range = OP_SCORES;
        c->axis = -1;
        c->value = (double)0.7f;
        op_case_count(c, op_count_softmax);
        c->large = rw_shape_numel(scores[i].shape) > 4096;
        op_case_describe(c, "causal_softmax");
    }
}

void op_cases_reductions(void)
{
    add_reductions();
    add_softmaxes();
}
