/* Shape ops: views, dense copies, casts. */
#ifndef RW_OPS_SHAPE_H
#define RW_OPS_SHAPE_H

#include <rewind/fusion.h>
#include <rewind/op.h>

struct rw_arange_attrs {
    double start, step;
    int64_t dtype, n;
};

struct rw_concat_attrs {
    int64_t axis;
};

struct rw_pad_attrs {
    double value;
    int64_t axis, start, rank;
    int64_t dim[RW_MAX_RANK];
};

/* A tensor of that shape full of one number, with x at [start, start + extent of x) along an axis. */
rw_tensor *rw_pad_axis_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape, int axis, int64_t start, double value);

/* Copies its inputs next to each other; with virtual_concat.h, readers use the inputs in place. */
extern const rw_op_def rw_op_concat;

/*
 * Are n values of a tape, of one rank, adjacent along an axis, in order, and do they fill their buffer? *ret then has
 * the extents and strides of the whole.
 */
bool rw_pieces_of_one(rw_tensor *const *piece, int n, int axis, rw_layout *ret);

/*
 * That whole, as a view of the buffer; NULL if there is none. Only for gradients: a caller's tensors are values through
 * which a gradient must pass, so rw_concat() copies them.
 */
rw_tensor *rw_whole_of_pieces(rw_tape *t, rw_tensor *const *piece, int n, int axis);

#endif
