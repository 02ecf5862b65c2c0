/* The rows of conv.golden. Of shape: stride, padding, dilation, groups; axis: the output's padding. */
#include "golden/rows.h"

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
};

const struct golden_set golden_conv = { "conv.golden", rows, sizeof rows / sizeof *rows };
