/*
 * What a concatenation was made of, for ops that can read its pieces where they lie:
 *
 *     x1 = concat(x0, a)      x2 = concat(x1, b)      y = batchnorm(x2)       of x2 along the channels: x0, a, b
 *
 *     x0 --+--[concat]-- x1 --+--[concat]-- x2 . . . . .      whole: where the gradient goes, as if it had been read
 *     a  --+                  |                        .
 *     b  ---------------------+                        .
 *     x0, a, b --------------------------------[batchnorm]-- y
 *
 * Nobody reads x1 and x2 then. What nobody reads is not run, so they take neither time nor memory, and what backward
 * keeps are x0, a and b, once each, however many layers have read them. The op hands the gradient of the whole over to
 * x2 (rw_grad_set_value()), from where it goes its way through the concatenations: so it is there for who asks for that
 * of x2 or x1, and is added up in the order in which it ever was.
 */
#ifndef RW_OPS_SHAPE_JOINED_H
#define RW_OPS_SHAPE_JOINED_H

#include <rewind/op.h>

#define RW_PIECES_MOST 96

/*
 * The pieces of x along an axis into piece[RW_PIECES_MOST]; returns how many. One, x itself (NULL too), where it is to
 * be read as it is: it is no concatenation of dense tensors, or not along that axis; it has more pieces, or one of them
 * twice; it requires no gradient, or they don't. A concatenation that has a name, or that ckpt_save() and the like have
 * decided about, is a piece itself.
 *
 * ret_more, ret_whole: what an op's attributes say of that: pieces behind the first, and, where there are any, which
 * value of the tape they make up, else 0.
 */
int rw_joined_pieces(rw_tensor *x, int axis, rw_tensor **piece, int64_t *ret_more, int64_t *ret_whole);

#endif
