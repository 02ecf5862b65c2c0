/* The rows of gather.golden. At most an index's extent along the axis is added to one element. */
#include "golden/op_table.h"

static const struct golden_row rows[] = {
    ROW(gather, gather, .axis = 1, .r = { { 0, 0 }, { 11, 0 } }),
    ROW(gather_last, gather, .axis = -1, .r = { { 0, 0 }, { 30, 0 } }),
    ROW(scatter_add, scatter_add, .axis = 1, .r = { { 12, 0 } }),
    ROW(scatter_add_last, scatter_add, .axis = -1, .keep = true, .r = { { 31, 0 } }),
    ROW(index_select, index_select, .axis = 1, .r = { { 0, 0 }, { 12, 0 } }),
    ROW(bag_sum, embedding_bag, .r = { { 10, 0 }, { 36, 0 } }),
    ROW(bag_mean, embedding_bag, .keep = true, .r = { { 10, 0 }, { 38, 1 } }),
    COUNTED(bag_weighted, embedding_bag_with, bag_with, SHAPE(4, 9), .axis = RW_BAG_SUM, .value = -1),
    COUNTED(bag_padded, embedding_bag_with, bag_with, SHAPE(4, 9), .axis = RW_BAG_MEAN, .value = 3),
    COUNTED(bag_max, embedding_bag_with, bag_with, SHAPE(4, 9), .axis = RW_BAG_MAX, .value = -1),
    COUNTED(bag_offsets, embedding_bag_with, bag_with, SHAPE(36), .axis = RW_BAG_SUM, .value = -1, .causal = true),
    COUNTED(bag_offsets_weighted, embedding_bag_with, bag_with, SHAPE(36), .axis = RW_BAG_SUM, .value = -1,
            .causal = true),
    COUNTED(bag_offsets_padded, embedding_bag_with, bag_with, SHAPE(36), .axis = RW_BAG_MEAN, .value = 3,
            .causal = true),
    COUNTED(bag_offsets_max, embedding_bag_with, bag_with, SHAPE(36), .axis = RW_BAG_MAX, .value = -1,
            .causal = true),
    COUNTED(bag_offsets_max_ties, embedding_bag_with, bag_with, SHAPE(36), .axis = RW_BAG_MAX, .value = -1,
            .causal = true),
    COUNTED(bag_offsets_max_padded, embedding_bag_with, bag_with, SHAPE(36), .axis = RW_BAG_MAX, .value = 3,
            .causal = true),
    COUNTED(bag_ends, embedding_bag_with, bag_with, SHAPE(36), .axis = RW_BAG_MEAN, .value = -1, .causal = true,
            .keep = true),
    ROW(topk, topk, .axis = -1, .value = 7),
    ROW(topk_outer, topk, .axis = 0, .value = 33),
};

const struct golden_set golden_gather = { "gather.golden", rows, sizeof rows / sizeof *rows };
