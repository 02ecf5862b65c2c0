/* The rows of quantized.golden: the words of cases/quantized.c, dequantized by bitsandbytes. */
#include "golden/op_table.h"

static const struct golden_row rows[] = {
    ROW(linear_nf4, linear_quantized, .axis = RW_NF4, SHAPE(70, 128), .r = { { 129, 1 }, { 70, 1 }, { 10, 0 } }),
    ROW(linear_int8, linear_quantized, .axis = RW_INT8, SHAPE(7, 33), .r = { { 34, 1 }, { 7, 1 }, { 10, 0 } }),
};

const struct golden_set golden_quantized = { "quantized.golden", rows, sizeof rows / sizeof *rows };
