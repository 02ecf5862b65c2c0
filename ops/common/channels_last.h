/*
 * Channels-last layout (NHWC). Callers see images as [n, c, h, w]. The ops of ops/conv compute on [n, h, w, c], which
 * is dense, and return its permuted view. So do the ops of ops/norm on volumes and on any tensor with channels in axis
 * 1.
 *
 * An element-wise op keeps this memory order: it is recorded on the dense [n, h, w, c] tensor of which its operand is a
 * view. A result that is dense in [n, c, h, w] would need a transposition for the next convolution, and another one
 * back. Tensors of three axes are excluded, because transposed matrices of a batch have the same layout and are not
 * images.
 */
#ifndef RW_OPS_COMMON_CHANNELS_LAST_H
#define RW_OPS_COMMON_CHANNELS_LAST_H

#include "ops/common/util.h"

/* Is x an image, or a tensor of more axes, whose memory is in channels-last order? False for a tensor that is dense in
   its own order. */
bool rw_is_channels_last(const rw_tensor *x);

/* Are all of them images of one rank, and is at least one in channels-last order? */
bool rw_any_is_channels_last(rw_tensor *const *in, size_t n);

/* The axis of [n, h, w, c] that corresponds to an axis of [n, c, h, w]; for any rank from 2 on. */
int rw_axis_inside(int axis, int rank);

/* Views of [n, c, h, w] as [n, h, w, c], and back; for any rank from 2 on. */
rw_tensor *rw_channels_inside_at(rw_site at, rw_tape *t, rw_tensor *x);
rw_tensor *rw_channels_outside_at(rw_site at, rw_tape *t, rw_tensor *x);

/* rw_apply_at() of an element-wise op with one output. If an operand is in channels-last order, the op is recorded in
   that order. */
rw_tensor *rw_apply_in_order_at(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, size_t n,
                                const void *attrs, size_t attrs_size);

#endif
