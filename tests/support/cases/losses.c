/* Cases of losses with options. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Each option, and all together. */
static const struct op_loss options[] = {
    { 0, 0, false, RW_REDUCTION_MEAN, 0 },        { 0.1, 0, false, RW_REDUCTION_MEAN, 0 },
    { 0, 0.25, false, RW_REDUCTION_SUM, 0 },      { 0, 0, true, RW_REDUCTION_MEAN, 0 },
    { 0.3, 0.125, true, RW_REDUCTION_MEAN, 0 },   { 0.2, 0, true, RW_REDUCTION_NONE, 0 },
};

static void take(struct op_case *c, struct op_loss loss, rw_shape rows, bool ignoring)
{
    c->loss = loss;
    c->shape = rows;
    c->ignoring = ignoring;
    c->axis = -100;
    c->no_sum = loss.reduction != RW_REDUCTION_NONE;
}

/* A case of logits, with probabilities of their shape if those are the targets. */
static struct op_case *row_case(const struct op_operand *logits, struct op_loss loss, bool soft, bool ignoring)
{
    struct op_case *const c = op_case_next(OP_TABLES, soft ? op_build_soft_cross_entropy : op_build_cross_entropy_with,
                                           soft ? op_sizes_soft_loss : op_sizes_row_loss, 1 + soft);
    rw_shape rows = logits->shape;
    rows.rank--;
    rows.dim[rows.rank] = 0;
    c->in[0] = *logits;
    c->in[0].range = OP_SCORES;
    if (soft) {
        c->in[1] = *logits;
        c->in[1].range = OP_POSITIVE;
    }
    take(c, loss, rows, ignoring);
    if (soft) op_case_count(c, op_count_soft_loss);
    else op_case_count(c, op_count_row_loss);
    return c;
}

static void add_rows(void)
{
    const struct op_operand shapes[] = { { S(1, 1), 0, 0 },           { S(2, 3, 37), 0, 0 },  { S(5, 11), 0, 0 },
                                         { S(4, 16), OP_SLICED, 0 },  { S(0, 5), 0, 0 },      { S(11), 0, 0 },
                                         { S(9, 64), OP_TURNED, 0 },  { S(3, 257), 0, 0 },    { S(70, 5003), 0, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
            struct op_case *const c = row_case(&shapes[i], options[k], false, k % 2);
            c->large = rw_shape_numel(shapes[i].shape) > 4096;
            op_case_describe(c, "cross_entropy_with option %d", (int)k);
        }
}

/* Logits with a common offset of 1e4 and more, which cancels in the losses. z-loss, in which it does not, is
   excluded. */
static void add_far(void)
{
    const struct op_operand shapes[] = { { S(2, 3, 37), 0, 0 }, { S(4, 257), OP_SLICED, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof options / sizeof *options; k++)
            for (int soft = 0; soft < 2; soft++) {
                if (options[k].z > 0) continue;
                struct op_case *const c = row_case(&shapes[i], options[k], soft, !soft && k % 2);
                c->value = i ? -3e5 : 1e4;
                op_case_describe(c, "cross_entropy_with%s far from 0, option %d", soft ? " probabilities" : "", (int)k);
            }
}

static void add_soft(void)
{
    const struct op_operand shapes[] = { { S(1, 1), 0, 0 },          { S(2, 3, 37), 0, 0 },  { S(5, 11), OP_TURNED, 0 },
                                         { S(4, 16), OP_SLICED, 0 }, { S(0, 5), 0, 0 },      { S(11), 0, 0 },
                                         { S(3, 257), 0, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
            struct op_case *const c = row_case(&shapes[i], options[k], true, false);
            op_case_describe(c, "cross_entropy_with probabilities, option %d", (int)k);
        }
}

/* Cross-entropy fused with its linear layer. */
static void add_linear(void)
{
    static const struct op_loss kinds[] = { { 0, 0, false, RW_REDUCTION_MEAN, 3 },
                                            { 0.1, 0.125, false, RW_REDUCTION_SUM, 4 },
                                            { 0, 0, false, RW_REDUCTION_NONE, 1 },
                                            { 0.2, 0, false, RW_REDUCTION_MEAN, 0 },
                                            { 0.1, 0, true, RW_REDUCTION_MEAN, 3 },
                                            { 0.1, 0.125, true, RW_REDUCTION_NONE, 4 } };
    const struct {
        struct op_operand x;
        int64_t classes;
    } shapes[] = { { { S(1, 1), 0, 0 }, 1 },          { { S(2, 5, 9), 0, 0 }, 7 }, { { S(9, 16), OP_TURNED, 0 }, 24 },
                   { { S(7, 8), OP_SLICED, 0 }, 33 }, { { S(0, 4), 0, 0 }, 3 },    { { S(7), 0, 0 }, 5 },
                   { { S(300, 48), 0, 0 }, 200 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            struct op_case *const c = op_case_next(OP_TABLES, op_build_linear_cross_entropy, op_sizes_linear_loss,
                                                   k > 3 ? 3 : 2);
            rw_shape rows = shapes[i].x.shape;
            c->in[0] = shapes[i].x;
            c->in[1].shape = S(shapes[i].classes, rows.dim[rows.rank - 1]);
            c->in[2].shape = S(shapes[i].classes);
            rows.rank--;
            rows.dim[rows.rank] = 0;
            take(c, kinds[k], rows, k % 2);
            c->loss.chunk = i == 6 ? 64 * kinds[k].chunk : kinds[k].chunk;
            op_case_count(c, op_count_linear_loss);
            c->large = i == 6;
            op_case_describe(c, "linear_cross_entropy option %d", (int)k);
        }
}

/* Negative log-likelihood. */
static void add_nll(void)
{
    const struct op_operand shapes[] = { { S(1, 1), 0, 0 }, { S(2, 3, 37), 0, 0 }, { S(4, 16), OP_SLICED, 0 },
                                         { S(0, 5), 0, 0 }, { S(11), 0, 0 },       { S(9, 33), OP_TURNED, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int r = RW_REDUCTION_MEAN; r <= RW_REDUCTION_NONE; r++) {
            struct op_case *const c = op_case_next(OP_TABLES, op_build_nll_loss, op_sizes_nll, 1);
            rw_shape rows = shapes[i].shape;
            rows.rank--;
            rows.dim[rows.rank] = 0;
            c->in[0] = shapes[i];
            c->in[0].range = OP_SCORES;
            take(c, (struct op_loss){ .weighted = r != RW_REDUCTION_SUM, .reduction = (rw_reduction)r }, rows, r);
            op_case_count(c, op_count_nll);
            op_case_describe(c, "nll_loss reduction %d", r);
        }
}

/* Operands of one shape, and some that broadcast, with each reduction. */
static void add_elements(void)
{
    static const struct {
        const char *name;
        op_build build;
        op_sizes sizes;
        op_count count;
        int n;
        double value;
        bool keep;
        enum op_range range[4];
    } ops[] = {
        { "bce_with_logits", op_build_bce_with_logits, op_sizes_bce, op_count_bce, 2, 1, false, { OP_WIDE, 0 } },
        { "bce_with_logits of positives", op_build_bce_with_logits, op_sizes_bce, op_count_bce, 3, 1, false,
          { OP_WIDE, OP_SIGNED, OP_POSITIVE } },
        { "bce_with_logits weighed", op_build_bce_with_logits, op_sizes_bce, op_count_bce, 4, 1, false,
          { OP_WIDE, OP_SIGNED, OP_POSITIVE, OP_SIGNED } },
        { "mse_loss_with", op_build_mse_loss_with, op_sizes_mse_with, op_count_mse_with, 2, 0, false, { 0 } },
        { "huber_loss", op_build_huber_loss, op_sizes_huber, op_count_huber, 2, 0.75, false, { 0 } },
        { "smooth_l1_loss", op_build_smooth_l1_loss, op_sizes_smooth_l1, op_count_huber, 2, 0.5, false, { 0 } },
        { "smooth_l1_loss of 0", op_build_smooth_l1_loss, op_sizes_smooth_l1, op_count_huber, 2, 0, false, { 0 } },
        { "kl_div", op_build_kl_div, op_sizes_kl, op_count_kl, 2, 0, false, { OP_SIGNED, OP_POSITIVE } },
        { "kl_div of logarithms", op_build_kl_div, op_sizes_kl, op_count_kl, 2, 0, true, { 0 } },
    };
    const struct op_operand shapes[][4] = {
        { { S(1), 0, 0 }, { S(1), 0, 0 }, { S(1), 0, 0 }, { S(1), 0, 0 } },
        { { S(5, 37), 0, 0 }, { S(5, 37), OP_TURNED, 0 }, { S(37), 0, 0 }, { S(5, 1), 0, 0 } },
        { { S(4, 16), OP_SLICED, 0 }, { S(16), 0, 0 }, { S(1), 0, 0 }, { S(4, 16), OP_EXPANDED, 0 } },
        { { S(0, 3), 0, 0 }, { S(0, 3), 0, 0 }, { S(3), 0, 0 }, { S(1), 0, 0 } },
        { { S(257), 0, 0 }, { S(257), 0, 0 }, { S(257), 0, 0 }, { S(257), 0, 0 } },
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            for (int r = RW_REDUCTION_MEAN; r <= RW_REDUCTION_NONE; r++) {
                if (k == 3 && r == RW_REDUCTION_MEAN) continue; /* the mean of no elements */
                struct op_case *const c = op_case_next(OP_TABLES, ops[i].build, ops[i].sizes, ops[i].n);
                for (int j = 0; j < ops[i].n; j++) c->in[j] = shapes[k][j], c->in[j].range = ops[i].range[j];
                c->value = ops[i].value;
                c->keep = ops[i].keep;
                c->loss.reduction = (rw_reduction)r;
                c->no_sum = r != RW_REDUCTION_NONE;
                op_case_count(c, ops[i].count);
                op_case_describe(c, "%s reduction %d", ops[i].name, r);
            }
}

void op_cases_losses(void)
{
    add_rows();
    add_far();
    add_soft();
    add_linear();
    add_nll();
    add_elements();
}
