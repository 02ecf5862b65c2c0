/**
 * rewind/fusion.h - ops that take over work of their neighbours: producers, fused bias gradients, and ops that read the
 * parts of a value.
 *
 * For the author of an op (rewind/op.h). The functions of a gradient rule take its rw_grad_call, and apply to the op
 * that is differentiated.
 *
 * Producers. A function that records an op, or a rule, may look at the op that computed an operand, and read that op's
 * inputs in place of the operand. The operand is then not computed if nothing else reads it.
 *
 * Fused bias gradients. The gradient of a layer's bias is the sum of the columns of the gradient of the layer's result
 * (over all axes but the last). The rule that computes the last part of that gradient may sum its columns in the same
 * pass. rw_op_def.bias says that an op is such a layer.
 *
 *     rule of the op that reads the layer's result        rule of the layer
 *     if (rw_grad_wants_column_sums(g, 0, &sum))          columns = rw_grad_column_sums(g, bias);
 *         dx and columns = one op;                        if (columns) rw_grad_set_sum(g, bias, columns);
 *     rw_grad_set(g, 0, dx);                              else ...
 *     rw_grad_set_column_sums(g, 0, columns, sum != NULL);
 *
 * Parts of a value. An op may read the parts of a value, such as the inputs of a concatenation, in place of the value,
 * which is then not computed. rw_op_def.parts says so. Its rule sets the gradient of the value, not of the parts.
 *
 * @param g the rule's argument
 * @param i number of an input of the op that is differentiated
 * Thread-safety: as for the context.
 */
#ifndef REWIND_FUSION_H
#define REWIND_FUSION_H

#include <rewind/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The op that computed a value. */
typedef struct rw_producer {
    const rw_op_def *op; ///< its definition
    const void *attrs;   ///< its attributes, valid until something is recorded
    int n_inputs;        ///< number of its inputs
} rw_producer;

/**
 * Finds the op that computed x.
 * @param x a value of a tape
 * @param ret_producer receives the op; untouched if the result is false
 * @return false for anything that no op of the present recording computed: an input, a parameter, a gradient, NULL
 */
RW_API bool rw_tensor_producer(const rw_tensor *x, rw_producer *ret_producer);

/** Returns input k of the op that computed x, owned by the tape; NULL if there is none. */
RW_API rw_tensor *rw_tensor_producer_input(const rw_tensor *x, int k);

/** True if x, a value that is not a view, has a name or a mark of ckpt_keep(), ckpt_recompute() or ckpt_offload(): an
    op should then read x itself. */
RW_API bool rw_tensor_is_named_or_marked(const rw_tensor *x);

/** Returns the number of x, a value, on its tape, for rw_op_def.parts; -1 for anything else. */
RW_API int64_t rw_tensor_number(const rw_tensor *x);

/**
 * True if the rule may compute the columns of input i's gradient. A layer with a bias (rw_op_def.bias) computed the
 * input, which has two axes or more. The bias has no other use, and no other part of the gradient follows. If the op
 * does not add to the gradient so far, rw_grad_is_whole() must hold as well.
 * @param ret_sum receives what the columns may be added to, or NULL; may be NULL
 */
RW_API bool rw_grad_wants_column_sums(const rw_grad_call *g, int i, rw_tensor **ret_sum);

/** True if what the rule computes for input i is its whole gradient, and not only the last part. */
RW_API bool rw_grad_is_whole(const rw_grad_call *g, int i);

/**
 * Sets the columns that rw_grad_wants_column_sums() requested.
 * @param columns [the last extent of input i], of the type in which the bias's gradient is summed (rw_grad_dtype() in
 *        the layer's rule), or of the bias's type. NULL after a failed op: an error, which is sticky.
 * @param added they include the sum of rw_grad_wants_column_sums()
 * @return RW_OK; RW_ERR_ARGUMENT, sticky, if no columns are wanted or if they are not a value of the tape
 */
RW_API rw_status rw_grad_set_column_sums(rw_grad_call *g, int i, rw_tensor *columns, bool added);

/**
 * As rw_grad_wants_column_sums() for an op whose inputs 0 to pieces - 1 are views that fill the result of such a layer,
 * if no other op reads the result or a view of it. Their gradients are in one buffer in the same arrangement.
 * @param pieces  number of views
 * @param columns last extent of the layer's result
 * @param ret_sum as for rw_grad_wants_column_sums()
 * @return true if the rule may compute the columns
 */
RW_API bool rw_grad_pieces_want_column_sums(const rw_grad_call *g, int pieces, int64_t columns, rw_tensor **ret_sum);

/**
 * Sets the columns of the whole buffer that rw_grad_pieces_want_column_sums() requested.
 * @param pieces as for that function
 * @param columns, added as for rw_grad_set_column_sums()
 * @return as for rw_grad_set_column_sums()
 */
RW_API rw_status rw_grad_set_column_sums_of_pieces(rw_grad_call *g, int pieces, rw_tensor *columns, bool added);

/**
 * Returns the columns that another rule has set, in the rule of the layer, ready for rw_grad_set_sum(); NULL if there
 * are none, and the rule sums the columns itself.
 * @param bias number of the input that is the bias
 */
RW_API rw_tensor *rw_grad_column_sums(rw_grad_call *g, int bias);

/** Returns the value whose parts the op reads (rw_op_def.parts); NULL if it reads none. */
RW_API rw_tensor *rw_grad_whole(const rw_grad_call *g);

/** True if the gradient of that value is needed. */
RW_API bool rw_grad_whole_wanted(const rw_grad_call *g);

/**
 * Sets the gradient of that value, to which other contributions are added. The value was recorded before the op, so its
 * own rule runs later.
 * @param dx of the value's type and shape; NULL after a failed op
 * @return RW_OK; RW_ERR_ARGUMENT if the op reads no parts, RW_ERR_SHAPE for another type or shape; or the sticky error
 */
RW_API rw_status rw_grad_set_whole(rw_grad_call *g, rw_tensor *dx);

#ifdef __cplusplus
}
#endif

#endif
