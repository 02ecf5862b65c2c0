/* The rows of attention.golden. */
#include "golden/op_table.h"
#include "support/cases/attention_options.h"

static const struct golden_row rows[] = {
    COUNTED(attention_widths, attention, attention, .causal = true),
    COUNTED(attention_window, attention_options, attention_options, .causal = true, .axis = 3),
    COUNTED(attention_window_both, attention_options, attention_options, .axis = 2),
    COUNTED(attention_slopes, attention_options, attention_options, .causal = true, .axes = WITH_SLOPES),
    COUNTED(attention_soft_cap, attention_options, attention_options, .causal = true, .axes = WITH_CAP),
    COUNTED(attention_documents, attention_options, attention_options, .causal = true, .axes = WITH_DOCUMENTS),
    COUNTED(attention_documents_by_batch, attention_options, attention_options, .axes = WITH_DOCUMENTS | WITH_SETS),
    COUNTED(attention_mask, attention_options, attention_options, .causal = true, .axes = WITH_MASK),
    COUNTED(attention_truths, attention_options, attention_options, .causal = true, .axes = WITH_TRUTHS),
    COUNTED(attention_sinks, attention_options, attention_options, .causal = true, .axes = WITH_SINKS),
    COUNTED(attention_all, attention_options, attention_options, .causal = true, .axis = 5,
            .axes = WITH_SINKS | WITH_CAP | WITH_SLOPES | WITH_DOCUMENTS | WITH_SETS),
    COUNTED(attention_lse, attention_options, attention_options, .causal = true, .axes = WITH_LSE),
    COUNTED(attention_lse_of_all, attention_options, attention_options, .causal = true, .axis = 3,
            .axes = WITH_LSE | WITH_SINKS | WITH_CAP),
    COUNTED(attention_merge, attention_merge, attention_merge, ),
    COUNTED(rope_interleaved, rope_interleaved, rope, .value = 10000),
    COUNTED(rope_interleaved_positions, rope_interleaved, rope, .value = 50),
};

const struct golden_set golden_attention = { "attention.golden", rows, sizeof rows / sizeof *rows };
