/**
 * rewind/recurrent.h - ops along a sequence, for state-space and recurrent models.
 *
 * All functions record on tape t and return a tensor that the tape owns, as those of rewind/ops.h, with the same
 * thread-safety.
 */
#ifndef REWIND_RECURRENT_H
#define REWIND_RECURRENT_H

#include <rewind/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Maximum filter length of rw_causal_conv1d(). */
#define RW_CAUSAL_CONV1D_MAX 16

/**
 * Causal depthwise convolution along the sequence: PyTorch's conv1d with groups equal to channels and k - 1 zeros on
 * the left. x [b, l, c] with any strides, weight [c, k], bias [c] or RW_NONE, all of one floating-point type -> [b, l,
 * c] with
 *
 *     y[t] = bias + weight[0] x[t - k + 1] + ... + weight[k - 1] x[t]      and zeros before the sequence.
 *
 * float32 and 16-bit types are summed in float32; each element is rounded once. Backward keeps only x, for the gradient
 * of the weight, whose sum over rows has blocks of fixed length. Differentiable any number of times.
 * Errors: RW_ERR_SHAPE for ranks and channels that do not fit and for a filter length of 0 or above
 *         RW_CAUSAL_CONV1D_MAX, RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_causal_conv1d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);
#define rw_causal_conv1d(...) rw_causal_conv1d_at(RW_HERE, __VA_ARGS__)

/** Weights of an LSTM with gates i, f, g, o (G = 4), or of a GRU with gates r, z, n (G = 3): PyTorch's order. */
typedef struct rw_recurrent_weights {
    rw_tensor *ih, *hh;           ///< [G h, in] and [G h, h]
    rw_tensor *bias_ih, *bias_hh; ///< [G h] each, or RW_NONE
} rw_recurrent_weights;

/**
 * One step of an LSTM, PyTorch's LSTMCell: x [n, in], h [n, h], c [n, h] and weights, all of one floating-point type.
 *
 *     c' = sigmoid(f) c + sigmoid(i) tanh(g)        h' = sigmoid(o) tanh(c')
 *     i, f, g, o = x ih^T + bias_ih + h hh^T + bias_hh
 *
 * The sum of the two products is stored in the operands' type. The rest is one op, computed in float32 for 16-bit
 * types. It keeps that sum and c; backward recomputes the gate functions. Differentiable any number of times.
 * @param ret_c receives c' [n, h], owned by the tape; NULL on an error. May be NULL.
 * @return h' [n, h]. Errors: RW_ERR_SHAPE, RW_ERR_DTYPE; RW_ERR_ARGUMENT without weights or a state.
 */
RW_API rw_tensor *rw_lstm_cell_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, rw_tensor *c,
                                  const rw_recurrent_weights *weights, rw_tensor **ret_c);
#define rw_lstm_cell(...) rw_lstm_cell_at(RW_HERE, __VA_ARGS__)

/**
 * One step of a GRU, PyTorch's GRUCell: x [n, in], h [n, h] and weights, all of one floating-point type.
 *
 *     r = sigmoid(xr + hr)    z = sigmoid(xz + hz)    n = tanh(xn + r hn)    h' = n + z (h - n)
 *     xr, xz, xn = x ih^T + bias_ih      hr, hz, hn = h hh^T + bias_hh
 *
 * The part after the products is one op, which keeps them and h. Otherwise as rw_lstm_cell().
 */
RW_API rw_tensor *rw_gru_cell_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h,
                                 const rw_recurrent_weights *weights);
#define rw_gru_cell(...) rw_gru_cell_at(RW_HERE, __VA_ARGS__)

/**
 * One layer of PyTorch's LSTM over a sequence: x [length, n, in] -> [length, n, h], the states h of all steps. One
 * product with x serves all steps; each step is then a product with hh and a cell. length is 1 to 8189; 0 is refused,
 * as in PyTorch.
 * @param h, c the states before the first step, [n, h]; RW_NONE means zeros.
 * @param weights as for rw_lstm_cell()
 * @param ret_h, ret_c receive the states after the last step, owned by the tape; NULL on an error. May be NULL.
 * Errors: as rw_lstm_cell().
 */
RW_API rw_tensor *rw_lstm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, rw_tensor *c,
                             const rw_recurrent_weights *weights, rw_tensor **ret_h, rw_tensor **ret_c);
#define rw_lstm(...) rw_lstm_at(RW_HERE, __VA_ARGS__)

/**
 * One layer of PyTorch's GRU over a sequence, as rw_lstm().
 * @param x, h, ret_h as for rw_lstm()
 * @param weights as for rw_gru_cell()
 */
RW_API rw_tensor *rw_gru_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, const rw_recurrent_weights *weights,
                            rw_tensor **ret_h);
#define rw_gru(...) rw_gru_at(RW_HERE, __VA_ARGS__)

/** Operands of rw_ssd_scan(), all of one floating-point type. p: width of a head, n: width of a state. */
typedef struct rw_ssd_operands {
    rw_tensor *x;     ///< [batch, length, heads, p]
    rw_tensor *dt;    ///< step sizes, normally positive: [batch, length, heads]
    rw_tensor *a;     ///< normally negative: [heads]
    rw_tensor *b, *c; ///< [batch, length, groups, n]; groups divides heads
    rw_tensor *state; ///< before the first position, [batch, heads, p, n]; RW_NONE means zeros
} rw_ssd_operands;

/** Default number of positions per chunk. */
#define RW_SSD_CHUNK 64

/**
 * The scan of a selective state-space model (Mamba-2). For each batch and head, where adjacent heads share the b and c
 * of a group,
 *
 *     state[t] = exp(dt[t] a) state[t - 1] + dt[t] x[t] b[t]^T          [p, n]
 *     y[t] = state[t] c[t]
 *
 * It is computed in chunks: products inside a chunk, one state per chunk, and a pass over the states in order (Dao and
 * Gu, arXiv 2405.21060). It is one op that keeps only its operands. Backward recomputes the states before the chunks,
 * and the terms for pairs of positions one chunk at a time.
 *
 * Operands may have any strides. 16-bit types are computed in float32 and rounded once at the end. Under a recipe
 * operands may have several types, and y is float32. The order of every sum depends only on shapes and the chunk;
 * another chunk may round differently. With length 0, y is empty and the final state is the initial one.
 *
 * Differentiable any number of times; a second derivative stores one number per head and pair of positions of a chunk.
 * Results are finite while y, the states, their gradients, and sums of products of any two of these or of operands are
 * in the range of the computation's type. Beyond that, gradients are infinite or NaN, and those of rw_grad() may differ
 * from those of rw_backward(). On a CPU, subnormal results are 0.
 * @param chunk positions per chunk; 0: RW_SSD_CHUNK. At most 8189 chunks.
 * @param ret_state receives the state after the last position, owned by the tape; NULL on an error. May be NULL.
 * @return y [batch, length, heads, p]. Errors: RW_ERR_SHAPE, RW_ERR_DTYPE; RW_ERR_ARGUMENT for a negative chunk, too
 *         many chunks, and without operands.
 */
RW_API rw_tensor *rw_ssd_scan_at(rw_site at, rw_tape *t, const rw_ssd_operands *operands, int64_t chunk,
                                 rw_tensor **ret_state);
#define rw_ssd_scan(...) rw_ssd_scan_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
