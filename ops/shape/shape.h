/* Shape ops: views, dense copies, casts. */
#ifndef RW_OPS_SHAPE_H
#define RW_OPS_SHAPE_H

#include <rewind/op.h>

/* A dense copy: what recording puts before an op that cannot take a strided input. */
extern const rw_op_def rw_op_contiguous;

/* A tensor of one value. */
rw_tensor *rw_fill_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, double value);

/* Zeros of a shape, with x at [start, start + extent of x) along an axis. */
rw_tensor *rw_pad_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape, int axis, int64_t start);

#endif
