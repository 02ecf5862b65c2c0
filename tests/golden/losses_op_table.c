/* The rows of losses.golden. */
#include "golden/op_table.h"

#define LOSS(...) .axis = -100, .no_sum = true, .loss = { __VA_ARGS__ }
#define EACH .loss = { .reduction = RW_REDUCTION_NONE }
static const struct golden_row rows[] = {
    COUNTED(cross_entropy_smooth, cross_entropy_with, row_loss, LOSS(.smoothing = 0.1)),
    COUNTED(cross_entropy_weighted, cross_entropy_with, row_loss, LOSS(.weighted = true)),
    COUNTED(cross_entropy_all, cross_entropy_with, row_loss, LOSS(.smoothing = 0.3, .z = 0.125, .weighted = true)),
    COUNTED(cross_entropy_sum, cross_entropy_with, row_loss, LOSS(.z = 0.25, .reduction = RW_REDUCTION_SUM)),
    COUNTED(cross_entropy_rows, cross_entropy_with, row_loss, .axis = 1,
            .loss = { .smoothing = 0.2, .weighted = true, .reduction = RW_REDUCTION_NONE }),
    COUNTED(linear_cross_entropy, linear_cross_entropy, linear_loss, LOSS(.chunk = 4)),
    COUNTED(linear_cross_entropy_smooth, linear_cross_entropy, linear_loss,
            LOSS(.smoothing = 0.1, .z = 0.125, .reduction = RW_REDUCTION_SUM, .chunk = 3)),
    COUNTED(linear_cross_entropy_bias, linear_cross_entropy, linear_loss, LOSS(.chunk = 4)),
    COUNTED(linear_cross_entropy_weighted, linear_cross_entropy, linear_loss,
            LOSS(.smoothing = 0.1, .weighted = true, .chunk = 3)),
    COUNTED(cross_entropy_soft, soft_cross_entropy, soft_loss, LOSS(.smoothing = 0)),
    COUNTED(cross_entropy_soft_all, soft_cross_entropy, soft_loss,
            LOSS(.smoothing = 0.3, .z = 0.125, .weighted = true, .reduction = RW_REDUCTION_SUM)),
    COUNTED(cross_entropy_soft_rows, soft_cross_entropy, soft_loss, .axis = -100,
            .loss = { .smoothing = 0.2, .weighted = true, .reduction = RW_REDUCTION_NONE }),
    COUNTED(cross_entropy_far, cross_entropy, cross_entropy, .axis = -100, .no_sum = true, .value = 1e4),
    COUNTED(cross_entropy_far_options, cross_entropy_with, row_loss, LOSS(.smoothing = 0.3, .weighted = true),
            .value = -3e5),
    COUNTED(mse_loss_sum, mse_loss_with, mse_with, .no_sum = true, .loss = { .reduction = RW_REDUCTION_SUM }),
    COUNTED(nll_loss, nll_loss, nll, LOSS(.weighted = true)),
    COUNTED(nll_loss_sum, nll_loss, nll, LOSS(.reduction = RW_REDUCTION_SUM)),
    COUNTED(bce_with_logits, bce_with_logits, bce, .no_sum = true),
    COUNTED(bce_with_logits_each, bce_with_logits, bce, EACH),
    COUNTED(huber_loss, huber_loss, huber, .value = 0.75, .no_sum = true),
    COUNTED(huber_loss_each, huber_loss, huber, .value = 0.75, EACH),
    COUNTED(smooth_l1_loss, smooth_l1_loss, huber, .value = 0.5, .no_sum = true,
            .loss = { .reduction = RW_REDUCTION_SUM }),
    COUNTED(smooth_l1_loss_of_0, smooth_l1_loss, huber, EACH),
    COUNTED(kl_div, kl_div, kl, .no_sum = true),
    COUNTED(kl_div_each, kl_div, kl, EACH),
    COUNTED(kl_div_log, kl_div, kl, .no_sum = true, .keep = true, .loss = { .reduction = RW_REDUCTION_SUM }),
};

const struct golden_set golden_losses = { "losses.golden", rows, sizeof rows / sizeof *rows };
