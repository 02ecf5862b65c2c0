/* The rows of select.golden. */
#include "golden/op_table.h"

/* An element is copied to at most three places along an axis; the sum along one axis is stored before the next. */
#define TWICE { { 0, 0 }, { 6, 1 } }
#define ONCE { { 0, 0 }, { 3, 0 } }

static const struct golden_row rows[] = {
    ROW(select, select, .axis = 1),
    ROW(select_last, select, .axis = -1, .keep = true),
    ROW(unsqueeze, unsqueeze, .axis = 1),
    ROW(unsqueeze_last, unsqueeze, .axis = -1),
    ROW(unbind, unbind, .axis = 1),
    ROW(stack, stack, .axis = 1),
    ROW(stack_last, stack, .axis = -1),
    ROW(unfold, unfold, .axis = 1, SHAPE(3, 2), .r = { { 0, 0 }, { 2, 0 } }),
    ROW(unfold_last, unfold, .axis = -1, SHAPE(4, 1), .r = { { 0, 0 }, { 4, 0 } }),
    ROW(roll, roll, .axis = 1, .value = -3),
    ROW(flip, flip, .axis = 1),
    ROW(pad, pad, .axis = RW_PAD_CONSTANT, .keep = true, .value = -1.25),
    ROW(pad_cut, pad, .axis = RW_PAD_CONSTANT, .keep = true, .causal = true, .value = -1.25),
    ROW(pad_reflect, pad, .axis = RW_PAD_REFLECT, .keep = true, .r = TWICE),
    ROW(pad_last_reflect, pad, .axis = RW_PAD_REFLECT, .r = ONCE),
    ROW(pad_replicate, pad, .axis = RW_PAD_REPLICATE, .keep = true, .r = TWICE),
    ROW(pad_last_replicate, pad, .axis = RW_PAD_REPLICATE, .r = ONCE),
    ROW(pad_circular, pad, .axis = RW_PAD_CIRCULAR, .keep = true, .r = TWICE),
    ROW(pad_last_circular, pad, .axis = RW_PAD_CIRCULAR, .r = ONCE),
    ROW(numbers, numbers, .r = { { 3, 1 }, { 1, 0 } }),
};

const struct golden_set golden_select = { "select.golden", rows, sizeof rows / sizeof *rows };
