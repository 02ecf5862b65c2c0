/* The rows of conv.golden. shape: stride, padding, dilation, groups; axis: the output's padding. */
#include "golden/op_table.h"

static const struct golden_row rows[] = {
    COUNTED(conv2d, conv2d, conv, SHAPE(1, 0, 1, 1)),
    COUNTED(conv2d_bias, conv2d, conv, SHAPE(2, 1, 1, 1)),
    COUNTED(conv2d_groups, conv2d, conv, SHAPE(1, 2, 2, 2)),
    COUNTED(conv2d_depthwise, conv2d, conv, SHAPE(1, 1, 1, 19)),
    COUNTED(conv2d_point, conv2d, conv, SHAPE(2, 0, 1, 1)),
    COUNTED(conv2d_wide, conv2d, conv, SHAPE(1, 1, 1, 1)),
    COUNTED(conv_transpose2d, conv_transpose2d, conv, SHAPE(2, 0, 1, 1)),
    COUNTED(conv_transpose2d_more, conv_transpose2d, conv, SHAPE(2, 1, 1, 2), .axis = 1),
    COUNTED(max_pool2d, max_pool2d, pool, SHAPE(3, 3, 2, 1)),
    COUNTED(max_pool2d_even, max_pool2d, pool, SHAPE(2, 2, 2, 0)),
    COUNTED(avg_pool2d, avg_pool2d, pool, SHAPE(3, 3, 2, 1)),
    COUNTED(avg_pool2d_inside, avg_pool2d, pool, SHAPE(2, 3, 1, 1), .keep = true),
    COUNTED(global_avg_pool2d, global_avg_pool2d, pool, ),
    COUNTED(max_pool2d_dilated, max_pool2d, pool, SHAPE(3, 2, 1, 1, 2)),
    COUNTED(max_pool2d_up, max_pool2d, pool, SHAPE(3, 3, 2, 1, 1, 1)),
    COUNTED(max_pool2d_all, max_pool2d, pool, SHAPE(3, 3, 3, 1, 2, 1)),
    COUNTED(avg_pool2d_up, avg_pool2d, pool, SHAPE(3, 2, 2, 1, 0, 1)),
    COUNTED(avg_pool2d_up_inside, avg_pool2d, pool, SHAPE(3, 3, 2, 1, 0, 1), .keep = true),
    COUNTED(avg_pool2d_divisor, avg_pool2d, pool, SHAPE(2, 2, 3, 0, 0, 1, 3)),
    COUNTED(adaptive_avg_pool2d_3x4, adaptive_avg_pool2d, adaptive_pool, SHAPE(3, 4)),
    COUNTED(adaptive_avg_pool2d_7x7, adaptive_avg_pool2d, adaptive_pool, SHAPE(7, 7)),
    COUNTED(adaptive_avg_pool2d_1x1, adaptive_avg_pool2d, adaptive_pool, SHAPE(1, 1)),
    COUNTED(adaptive_max_pool2d_3x4, adaptive_max_pool2d, adaptive_pool, SHAPE(3, 4)),
    COUNTED(adaptive_max_pool2d_7x7, adaptive_max_pool2d, adaptive_pool, SHAPE(7, 7)),
    COUNTED(adaptive_max_pool2d_1x1, adaptive_max_pool2d, adaptive_pool, SHAPE(1, 1)),
    COUNTED(adaptive_max_pool2d_far, adaptive_max_pool2d, adaptive_pool, SHAPE(1, 2)),
};

const struct golden_set golden_conv = { "conv.golden", rows, sizeof rows / sizeof *rows };
