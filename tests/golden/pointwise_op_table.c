/* The rows of pointwise.golden, of ops that their cases do not describe. */
#include "golden/op_table.h"

static const struct golden_row rows[] = {
    COUNTED(pow, pow, broadcast, .r = { { N_POW, 0 }, { N_POW + 4, 1 }, { N_POW + N_F + 2, 1 } }),
};

const struct golden_set golden_pointwise = { "pointwise.golden", rows, sizeof rows / sizeof *rows };
