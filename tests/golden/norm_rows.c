/* The rows of norm.golden. axis: groups. */
#include "golden/rows.h"

static const struct golden_row rows[] = {
    COUNTED(batchnorm, batchnorm, groups, .value = 1e-3),
    COUNTED(group_norm, group_norm, groups, .value = 1e-3, .axis = 2),
    COUNTED(instance_norm, instance_norm, groups, .value = 1e-3),
};

const struct golden_set golden_norm = { "norm.golden", rows, sizeof rows / sizeof *rows };
