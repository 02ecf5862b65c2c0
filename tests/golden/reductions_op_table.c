/* The rows of reductions.golden. */
#include "golden/op_table.h"

#include <math.h>

static const struct golden_row rows[] = {
    COUNTED(norm_1, norm, norm_of, .value = 1, .axes = 2),
    COUNTED(norm_2, norm, norm_of, .value = 2, .axes = 5, .keep = true),
    COUNTED(norm_inf, norm, norm_of, .value = INFINITY, .axes = 4),
    COUNTED(normalize, normalize, normalize, .value = 2, .axis = 1),
    COUNTED(normalize_1, normalize, normalize, .value = 1, .axis = -1),
    COUNTED(prod, prod, prod, .axes = 2),
    COUNTED(prod_outer, prod, prod, .axes = 5, .keep = true),
    COUNTED(var, var, var, .axes = 4),
    COUNTED(var_unbiased, var, var, .axes = 5, .causal = true, .keep = true),
};

const struct golden_set golden_reductions = { "reductions.golden", rows, sizeof rows / sizeof *rows };
