/* The rows of attention.golden. */
#include "golden/rows.h"

static const struct golden_row rows[] = {
    COUNTED(attention_widths, attention, attention, .causal = true),
    COUNTED(rope_interleaved, rope_interleaved, rope, .value = 10000),
    COUNTED(rope_interleaved_positions, rope_interleaved, rope, .value = 50),
};

const struct golden_set golden_attention = { "attention.golden", rows, sizeof rows / sizeof *rows };
