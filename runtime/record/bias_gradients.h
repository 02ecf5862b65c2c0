/* How the rule of a layer and the rule that computes the gradient of its result share one pass over that gradient. */
#ifndef RW_RECORD_BIAS_GRADIENTS_H
#define RW_RECORD_BIAS_GRADIENTS_H

#include <rewind/op.h>

/*
 * Fused bias gradients. The gradient of a layer's bias is the sum of the columns (over all axes but the last) of the
 * gradient of the layer's result. The rule that computes the last part of that gradient may compute these sums in the
 * same pass.
 *
 * rw_grad_wants_columns(): is input i such a result, of at least two axes, with a bias that has no other use? *ret_sum
 * is what the sums may be added to, or NULL. The rule sets the sums by rw_grad_set_columns(); added: they include
 * *ret_sum. The layer's own rule then gets them for its input `bias`, ready for rw_grad_set_sum(), or NULL if there are
 * none.
 *
 * rw_grad_is_whole(): is what the rule computes for input i the whole gradient, and not only its last part? A rule that
 * does not add to other contributions must also check this, because sums of a part are of no use.
 *
 * rw_grad_pieces_want_columns(): the same for a rule whose inputs 0 to n - 1 are views that fill such a result of so
 * many columns, if no other op reads the result or a view of it. Their gradients are in one buffer in the same
 * arrangement, and the sums of that buffer's columns are set by rw_grad_set_columns_of_pieces().
 */
bool rw_grad_wants_columns(const rw_grad_call *g, int i, rw_tensor **ret_sum);
bool rw_grad_is_whole(const rw_grad_call *g, int i);
void rw_grad_set_columns(rw_grad_call *g, int i, rw_tensor *columns, bool added);
bool rw_grad_pieces_want_columns(const rw_grad_call *g, int n, int64_t columns, rw_tensor **ret_sum);
void rw_grad_set_columns_of_pieces(rw_grad_call *g, int n, rw_tensor *columns, bool added);
rw_tensor *rw_grad_columns(rw_grad_call *g, int bias);

/* The input that is such a bias, if the node has that many inputs; -1: the op is not such a layer. */
static inline int rw_bias_of(const rw_op_def *op)
{
    return op->bias ? op->bias : -1;
}

#endif
