/**
 * rewind/gather.h - elements by index: the places of the largest, what lies at given places, and sums into them.
 *
 * Indexes are RW_I32. One that is out of range is RW_ERR_ARGUMENT when the op runs, naming it. Where several elements
 * meet in one place they are added up in the order of the index, so that no bit depends on threads or on the device's
 * schedule. Axes are counted from the end when negative. Everything said in rewind/ops.h of mistakes, ownership, call
 * sites and threads holds here too.
 */
#ifndef REWIND_GATHER_H
#define REWIND_GATHER_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------------------------
 * The largest. Of equal elements the one of the lower index; NaN is larger than everything, for argmin smaller: the
 * first NaN of a row is what both find. Floating-point types.
 */

/** The place of the largest element along an axis, RW_I32; no gradient. keep: the axis stays with extent 1. */
RW_API rw_tensor *rw_argmax_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, bool keep);
#define rw_argmax(...) rw_argmax_at(RW_HERE, __VA_ARGS__)

/** The place of the smallest. */
RW_API rw_tensor *rw_argmin_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, bool keep);
#define rw_argmin(...) rw_argmin_at(RW_HERE, __VA_ARGS__)

/**
 * The k largest elements along an axis from the largest on, and their places. Views where the axis is not the last.
 * @param ret_values  receives them, of x's type, with extent k along the axis; the gradient flows to where they lay.
 * @param ret_indexes receives their places, RW_I32, of the same shape; no gradient. Both are set to NULL on an error.
 * @return RW_ERR_SHAPE for a k outside 0 to the extent.
 */
RW_API rw_status rw_topk_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t k, int axis, rw_tensor **ret_values,
                            rw_tensor **ret_indexes);
#define rw_topk(...) rw_topk_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * By index. Values of any type; gradients flow where it is a floating-point one.
 */

/**
 * y[i][j] = x[index[i][j]][j] for axis 0 of two, and so on. index has x's rank and, but along the axis, at most its
 * extents; the result has index's shape.
 */
RW_API rw_tensor *rw_gather_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor *index);
#define rw_gather(...) rw_gather_at(RW_HERE, __VA_ARGS__)

/**
 * x, with src[i][j] added at [index[i][j]][j] for axis 0 of two, and so on. index and src have one shape, whose extents
 * are, but along the axis, at most x's; x and src are of one floating-point type. What is added to an element of x is
 * summed first, in float32 (float64: in float64), then added and rounded once. x of less than 2^31 elements.
 */
RW_API rw_tensor *rw_scatter_add_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor *index, rw_tensor *src);
#define rw_scatter_add(...) rw_scatter_add_at(RW_HERE, __VA_ARGS__)

/** Elements index[0], index[1] ... of an axis: index [n]; the axis has then extent n. */
RW_API rw_tensor *rw_index_select_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor *index);
#define rw_index_select(...) rw_index_select_at(RW_HERE, __VA_ARGS__)

/**
 * rw_embedding() of a table one of whose rows takes no gradient, PyTorch's padding_idx; negative: from the end. It is
 * read as any other. Where the index names it, the gradient is set to 0 before it is added up: a pass over that.
 */
RW_API rw_tensor *rw_embedding_padded_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index, int64_t padding);
#define rw_embedding_padded(...) rw_embedding_padded_at(RW_HERE, __VA_ARGS__)

/** What rw_embedding_bag() makes of a bag's rows. */
typedef enum rw_bag_mode {
    RW_BAG_SUM,
    RW_BAG_MEAN, ///< of an empty bag: 0
    RW_BAG_MAX   ///< of rw_embedding_bag_with() alone; NaN before all; of equals the first takes the gradient
} rw_bag_mode;

/**
 * table [n, c], index [b, m] -> [b, c]: the sum or the mean of rows index[i][0], index[i][1] ..., added up in that
 * order and rounded once, without the rows in memory.
 */
RW_API rw_tensor *rw_embedding_bag_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index, rw_bag_mode mode);
#define rw_embedding_bag(...) rw_embedding_bag_at(RW_HERE, __VA_ARGS__)

/** Zero and RW_NONE mean that there is none of it. */
typedef struct rw_embedding_bag_params {
    rw_bag_mode mode;
    rw_tensor *weights; ///< of the index's shape and the table's type: what each row counts in a sum
    rw_tensor *offsets; ///< [b] of RW_I32, of an index [m]: where bag i begins, from 0 on, never falling
    bool ends;          ///< offsets are [b + 1], and the last is m: PyTorch's include_last_offset
    bool pads;          ///< `padding` holds
    int64_t padding;    ///< rows of this index are in no bag and take no gradient; negative: from the end
} rw_embedding_bag_params;

/**
 * PyTorch's embedding_bag with its options: table [n, c], index [b, m], or [m] with offsets -> [b, c]. Composed of
 * ordinary ops on the rows, which are in memory; without options it is rw_embedding_bag(). Gradients flow into the
 * table and the weights. A bag without rows gives 0. Of a maximum backward keeps where it was, [b, c] of RW_I32, and
 * not the rows.
 * Errors: RW_ERR_ARGUMENT for weights with another mode than RW_BAG_SUM, RW_BAG_MAX of an index [b, 0], an index [m]
 * without offsets, [b, m] with them, `ends` without them, a padding outside of the table; when it runs, for offsets
 * outside of the index, that fall, whose first is not 0, or whose end is not m: embedding_bag_offsets is named, or of a
 * maximum embedding_bag_argmax, the op that reads them. RW_ERR_SHAPE, also for 2^31 elements and more of rows with
 * offsets or of a maximum; RW_ERR_DTYPE.
 * @param params may be NULL
 */
RW_API rw_tensor *rw_embedding_bag_with_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index,
                                           const rw_embedding_bag_params *params);
#define rw_embedding_bag_with(...) rw_embedding_bag_with_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
