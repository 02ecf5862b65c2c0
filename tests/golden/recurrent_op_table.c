/* The rows of recurrent.golden. */
#include "golden/op_table.h"
#include "support/cases/recurrent.h"

static const struct golden_row rows[] = {
    COUNTED(causal_conv1d, causal_conv1d, causal_conv1d, ),
    COUNTED(gru, gru_layer, recurrent_layer, ),
    COUNTED(lstm, lstm_layer, recurrent_layer, ),
    COUNTED(ssd_scan, ssd_scan, ssd_scan, .axis = 3),
};

const struct golden_set golden_recurrent = { "recurrent.golden", rows, sizeof rows / sizeof *rows };
