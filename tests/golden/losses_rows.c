/* The rows of losses.golden. */
#include "golden/rows.h"

#define LOSS(...) .axis = -100, .no_sum = true, .loss = { __VA_ARGS__ }
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
};

const struct golden_set golden_losses = { "losses.golden", rows, sizeof rows / sizeof *rows };
