/*
 * Virtual concatenation: the inputs of a concatenation, for ops that can read them in place.
 *
 *     x1 = concat(x0, a)      x2 = concat(x1, b)      y = batchnorm(x2)       of x2 along the channels: x0, a, b
 *
 *     x0 --+--[concat]-- x1 --+--[concat]-- x2 . . . . .      whole: receives the gradient, as if it had been read
 *     a  --+                  |                        .
 *     b  ---------------------+                        .
 *     x0, a, b --------------------------------[batchnorm]-- y
 *
 * No op reads x1 and x2 then. Ops whose results are not read are not executed, so x1 and x2 take neither time nor
 * memory. Backward keeps x0, a and b, once each, for any number of layers that read them. The op sets the gradient of
 * the whole on x2 (rw_grad_set_whole()), and from there it passes through the rules of the concatenations. So the
 * gradients of x2 and x1 are available if they are requested, and sums have the same order as without virtual
 * concatenation.
 */
#ifndef RW_OPS_VIRTUAL_CONCAT_H
#define RW_OPS_VIRTUAL_CONCAT_H

#include <rewind/op.h>

#define RW_PIECES_MAX 96

/*
 * Finds the concatenation inputs of x along an axis, stores them in piece[RW_PIECES_MAX] and returns their number.
 * Returns one, x itself (which may be NULL), if x must be read as a whole. This is the case if x is not a concatenation
 * of dense tensors along that axis, or has more inputs or one of them twice. It is also the case if x or an input
 * requires no gradient. A concatenation that has a name, or for which ckpt_keep() or a similar call has decided, is
 * itself an input that is not divided further.
 *
 * ret_more, ret_whole: for an op's attributes: the number of inputs after the first and, if there are any, the value of
 * the tape that they form, else 0.
 */
int rw_virtual_concat_inputs(rw_tensor *x, int axis, rw_tensor **piece, int64_t *ret_more, int64_t *ret_whole);

#endif
