/* The rows of norm.golden. axis: groups. */
#include "golden/op_table.h"

static const struct golden_row rows[] = {
    COUNTED(batchnorm, batchnorm, groups, .value = 1e-3),
    COUNTED(group_norm, group_norm, groups, .value = 1e-3, .axis = 2),
    COUNTED(instance_norm, instance_norm, groups, .value = 1e-3),
    COUNTED(batchnorm_eval, batchnorm_eval, groups, .value = 1e-3),
    COUNTED(batchnorm_eval_plain, batchnorm_eval, groups, .value = 1e-3),
    COUNTED(batchnorm_plain, batchnorm, groups, .value = 1e-3),
    COUNTED(group_norm_plain, group_norm, groups, .value = 1e-3, .axis = 2),
    COUNTED(instance_norm_plain, instance_norm, groups, .value = 1e-3),
    COUNTED(layernorm_plain, layernorm, norm, .value = 1e-3),
    COUNTED(rmsnorm_plain, rmsnorm, norm, .value = 1e-3),
};

const struct golden_set golden_norm = { "norm.golden", rows, sizeof rows / sizeof *rows };
