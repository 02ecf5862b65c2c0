/**
 * rewind/gather.h - indexing: positions of extrema, elements at given indexes, and sums into them.
 *
 * Indexes are RW_I32. An index out of range is RW_ERR_ARGUMENT when the op executes, and the message names it. Several
 * elements with the same destination are added in the order of the index, so no bit depends on threads or on the
 * device's schedule. Negative axes count from the end. Conventions of rewind/ops.h on errors, ownership, call sites and
 * threads apply.
 */
#ifndef REWIND_GATHER_H
#define REWIND_GATHER_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * ----------------------------------------------------------------------------------------------------------------
 * Extrema. Of equal elements the one with the lower index is chosen. NaN counts as larger than all numbers, and for
 * argmin as smaller, so both find the first NaN of a row.
 * @param x a tensor of a floating-point type
 * @param keep the axis stays with extent 1
 */

/** Index of the largest element along an axis, RW_I32; no gradient. */
RW_API rw_tensor *rw_argmax_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, bool keep);
#define rw_argmax(...) rw_argmax_at(RW_HERE, __VA_ARGS__)

/** Index of the smallest element along an axis, otherwise as rw_argmax(). */
RW_API rw_tensor *rw_argmin_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, bool keep);
#define rw_argmin(...) rw_argmin_at(RW_HERE, __VA_ARGS__)

/**
 * The k largest elements along an axis, in descending order, and their indexes. Views if the axis is not the last.
 * @param ret_values receives the elements, of x's type, with extent k along the axis; the gradient flows to their
 *         positions in x
 * @param ret_indexes receives their indexes, RW_I32, of the same shape; no gradient. Both are set to NULL on an error.
 * @return RW_ERR_SHAPE for a k outside 0..extent
 */
RW_API rw_status rw_topk_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t k, int axis, rw_tensor **ret_values,
                            rw_tensor **ret_indexes);
#define rw_topk(...) rw_topk_at(RW_HERE, __VA_ARGS__)

/*
 * ----------------------------------------------------------------------------------------------------------------
 * Access by index. Values of any type; floating-point types have gradients.
 */

/**
 * Gathers along an axis: y[i][j] = x[index[i][j]][j] for axis 0 of two, and so on. index has x's rank and, except along
 * the axis, at most x's extents; the result has index's shape.
 */
RW_API rw_tensor *rw_gather_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor *index);
#define rw_gather(...) rw_gather_at(RW_HERE, __VA_ARGS__)

/**
 * Returns x with src[i][j] added at [index[i][j]][j] for axis 0 of two, and so on. index and src have one shape, whose
 * extents, except along the axis, are at most x's; x and src have one floating-point type. The terms of an element of x
 * are summed first, in float32 (float64: in float64), then added and rounded once; 0 is added to an element without
 * terms, which turns -0 into 0. x must have less than 2^31 elements.
 */
RW_API rw_tensor *rw_scatter_add_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor *index, rw_tensor *src);
#define rw_scatter_add(...) rw_scatter_add_at(RW_HERE, __VA_ARGS__)

/** Selects elements index[0], index[1] ... of an axis of x: index [n]; the axis then has extent n. */
RW_API rw_tensor *rw_index_select_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor *index);
#define rw_index_select(...) rw_index_select_at(RW_HERE, __VA_ARGS__)

/** Zero means that an option is off. */
typedef struct rw_embedding_params {
    bool has_padding_index; ///< use `padding_index`; without it that must be 0
    int64_t padding_index;  ///< this row receives no gradient, PyTorch's padding_idx; negative: from the end
} rw_embedding_params;

/**
 * rw_embedding() with options. Forward reads a padding row as any other. In backward, gradients of its occurrences are
 * set to 0 before the sum, in one more pass over them.
 * @param params may be NULL. RW_ERR_ARGUMENT for a padding index outside of the table.
 */
RW_API rw_tensor *rw_embedding_with_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index,
                                       const rw_embedding_params *params);
#define rw_embedding_with(...) rw_embedding_with_at(RW_HERE, __VA_ARGS__)

/** How a bag's rows are reduced. */
typedef enum rw_bag_mode {
    RW_BAG_SUM,
    RW_BAG_MEAN, ///< 0 for an empty bag
    RW_BAG_MAX   ///< rw_embedding_bag_with() only; NaN is the maximum; of equal ones the first gets the gradient
} rw_bag_mode;

/**
 * Sum or mean, by `mode`, of table rows: table [n, c], index [b, m] -> [b, c] of rows index[i][0], index[i][1] ...,
 * added in that order and rounded once. The gathered rows are not stored.
 */
RW_API rw_tensor *rw_embedding_bag_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index, rw_bag_mode mode);
#define rw_embedding_bag(...) rw_embedding_bag_at(RW_HERE, __VA_ARGS__)

/** Zero and RW_NONE mean that an option is off. */
typedef struct rw_embedding_bag_params {
    rw_bag_mode mode;   ///< how a bag's rows are reduced [RW_BAG_SUM]
    rw_tensor *weights; ///< factor of each row in a sum, of the index's shape and the table's type; that of a padding
                        ///< is not used and receives no gradient
    rw_tensor *offsets; ///< [b] of RW_I32, with an index [m]: start of bag i; starts at 0, non-decreasing
    bool ends;          ///< offsets are [b + 1] and the last is m: PyTorch's include_last_offset
    bool has_padding_index; ///< use `padding_index`; without it that must be 0
    int64_t padding_index;  ///< this row is in no bag and receives no gradient; negative: from the end
} rw_embedding_bag_params;

/**
 * PyTorch's embedding_bag with options: table [n, c], index [b, m], or [m] with offsets -> [b, c]. A composite of
 * ordinary ops on the gathered rows, which are stored; without options it is rw_embedding_bag(). Gradients flow into
 * the table and the weights. A bag without rows gives 0. For a maximum, backward keeps its position, [b, c] of RW_I32,
 * and not the rows.
 * Errors: RW_ERR_ARGUMENT for weights with a mode other than RW_BAG_SUM, RW_BAG_MAX with an index [b, 0], an index [m]
 *         without offsets, [b, m] with offsets, `ends` without offsets, and a padding index outside of the table. When
 *         it executes: for offsets outside of the index, that decrease, whose first is not 0, or whose end is not m.
 *         The message then names embedding_bag_offsets, or for a maximum embedding_bag_argmax, the op that reads them.
 *         RW_ERR_SHAPE, also for 2^31 or more elements of rows with offsets or for a maximum; RW_ERR_DTYPE.
 * @param params may be NULL
 */
RW_API rw_tensor *rw_embedding_bag_with_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index,
                                           const rw_embedding_bag_params *params);
#define rw_embedding_bag_with(...) rw_embedding_bag_with_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
