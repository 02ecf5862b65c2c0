/*
 * Images are [n, c, h, w] outside and lie channels last inside: the ops of ops/conv work on [n, h, w, c], which is
 * dense, and hand out its permuted view; so do those of ops/norm of volumes and of all that has channels in axis 1. An
 * element-wise op keeps that order: it is recorded on what such a view looks into, for a result that is dense in
 * [n, c, h, w] would have to be turned for the next convolution, and back. Of three axes it does not: the transposed
 * matrices of a batch lie so, too, which are no images.
 */
#ifndef RW_OPS_COMMON_CHANNELS_H
#define RW_OPS_COMMON_CHANNELS_H

#include "ops/common/util.h"

/* Does the memory of an image, or of what has more axes, go over its channels first? False for one that is dense as it
   stands, and for no image. */
bool rw_lies_channels_last(const rw_tensor *x);

/* Are all images, of one rank, and does one of them? */
bool rw_any_lies_channels_last(rw_tensor *const *in, int n);

/* Which axis of [n, h, w, c] is that of [n, c, h, w]; of any rank from 2 on. */
int rw_axis_inside(int axis, int rank);

/* [n, c, h, w] as [n, h, w, c], and the way back, of any rank from 2 on: views. */
rw_tensor *rw_channels_inside_at(rw_site at, rw_tape *t, rw_tensor *x);
rw_tensor *rw_channels_outside_at(rw_site at, rw_tape *t, rw_tensor *x);

/* rw_apply_at() of an element-wise op with one output; on operands that are images of which one lies channels last,
   in that order. */
rw_tensor *rw_apply_in_order_at(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, int n,
                                const void *attrs, size_t attrs_size);

#endif
