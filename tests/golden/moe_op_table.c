/* The rows of moe.golden. */
#include "golden/op_table.h"
#include "support/cases/moe.h"

static const struct golden_row rows[] = {
    COUNTED(moe_chosen, moe_layer, moe_layer, .axis = RW_MOE_SOFTMAX_OF_CHOSEN),
    COUNTED(moe_softmax, moe_layer, moe_layer, .axis = RW_MOE_SOFTMAX),
    COUNTED(moe_by_position, moe_layer, moe_layer, .axis = RW_MOE_SOFTMAX, .causal = true),
    COUNTED(moe_by_weight, moe_layer, moe_layer, .axis = RW_MOE_SOFTMAX, .causal = true, .ignoring = true),
    COUNTED(moe_biased_sigmoid, moe_layer, moe_layer, .axis = RW_MOE_SIGMOID, .keep = true, .value = 0.125),
    COUNTED(moe_biased_softmax, moe_layer, moe_layer, .axis = RW_MOE_SOFTMAX, .value = 0.125),
    COUNTED(moe_sigmoid, moe_layer, moe_layer, .axis = RW_MOE_SIGMOID, .keep = true),
};

const struct golden_set golden_moe = { "moe.golden", rows, sizeof rows / sizeof *rows };
