/* The rows of compare.golden. */
#include "golden/op_table.h"

#define COMPARED(name, number) \
    COUNTED(name, compare, broadcast, .axis = number, .r = { { 2, 1 }, { 1, 1 }, { 1, 1 } })

static const struct golden_row rows[] = {
    COMPARED(eq, 0),
    COMPARED(ne, 1),
    COMPARED(lt, 2),
    COMPARED(le, 3),
    COMPARED(gt, 4),
    COMPARED(ge, 5),
    ROW(where, where, .r = { { 1, 0 }, { 1, 0 }, { 1, 1 }, { 1, 1 } }),
    COUNTED(where_number, where_number, broadcast, .r = { { 0, 0 } }),
    COUNTED(masked_fill, masked_fill, broadcast, .value = -1.5, .r = { { 1, 0 } }),
    ROW(clamp, clamp, ),
    COUNTED(clamp_tensor, clamp_tensor, broadcast, .r = { { 0, 0 }, { 0, 0 }, { 0, 0 }, { 37, 0 } }),
};

const struct golden_set golden_compare = { "compare.golden", rows, sizeof rows / sizeof *rows };
