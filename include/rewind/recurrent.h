/**
 * rewind/recurrent.h - ops that go along a sequence: what state-space and recurrent models are made of.
 *
 * All functions record on tape t and return a
 * tensor owned by the tape, as those of rewind/ops.h; thread-safety is theirs.
 */
#ifndef REWIND_RECURRENT_H
#define REWIND_RECURRENT_H

#include <rewind/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most taps of rw_causal_conv1d(). */
#define RW_CAUSAL_CONV1D_MOST 16

/**
 * Each channel with its own short filter along the sequence, which sees nothing that comes later: PyTorch's conv1d with
 * as many groups as channels and k - 1 zeros on the left. x [b, l, c] of any strides, weight [c, k], bias [c] or
 * RW_NONE, all of one floating-point type -> [b, l, c] with
 *
 *     y[t] = bias + weight[0] x[t - k + 1] + ... + weight[k - 1] x[t]      and zeros before the sequence.
 *
 * One rounding for each element; float32 and 16 bits are summed in float32. Keeps x for the weight's gradient, nothing
 * else. Of a weight's gradient the rows are added up in blocks of fixed length. Differentiable any number of times.
 * Errors: RW_ERR_SHAPE for ranks and channels that do not fit and for more than RW_CAUSAL_CONV1D_MOST taps or none,
 * RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_causal_conv1d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);
#define rw_causal_conv1d(...) rw_causal_conv1d_at(RW_HERE, __VA_ARGS__)

/** Of an LSTM, whose gates are i, f, g, o (G = 4), or a GRU, whose gates are r, z, n (G = 3): PyTorch's order. */
typedef struct rw_recurrent_weights {
    rw_tensor *ih, *hh;           ///< [G h, in] and [G h, h]
    rw_tensor *bias_ih, *bias_hh; ///< [G h] each, or RW_NONE
} rw_recurrent_weights;

/**
 * A step of an LSTM, PyTorch's LSTMCell: x [n, in], h [n, h], c [n, h] and weights, all of one floating-point type.
 *
 *     c' = sigmoid(f) c + sigmoid(i) tanh(g)        h' = sigmoid(o) tanh(c')
 *     i, f, g, o = x ih^T + bias_ih + h hh^T + bias_hh
 *
 * The sum of the two products is stored in the operands' type; what follows is one op, in float32 for 16 bits, which
 * keeps that sum and c: the functions of the gates are made again for the gradient. Twice differentiable and more.
 * @param ret_c receives c' [n, h], owned by the tape; NULL on an error. May be NULL.
 * @return h' [n, h]. Errors: RW_ERR_SHAPE, RW_ERR_DTYPE; RW_ERR_ARGUMENT without weights or a state.
 */
RW_API rw_tensor *rw_lstm_cell_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, rw_tensor *c,
                                  const rw_recurrent_weights *weights, rw_tensor **ret_c);
#define rw_lstm_cell(...) rw_lstm_cell_at(RW_HERE, __VA_ARGS__)

/**
 * A step of a GRU, PyTorch's GRUCell: x [n, in], h [n, h] and weights, all of one floating-point type.
 *
 *     r = sigmoid(xr + hr)    z = sigmoid(xz + hz)    n = tanh(xn + r hn)    h' = n + z (h - n)
 *     xr, xz, xn = x ih^T + bias_ih      hr, hz, hn = h hh^T + bias_hh
 *
 * What follows the products is one op, which keeps them and h. Else as rw_lstm_cell().
 */
RW_API rw_tensor *rw_gru_cell_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h,
                                 const rw_recurrent_weights *weights);
#define rw_gru_cell(...) rw_gru_cell_at(RW_HERE, __VA_ARGS__)

/**
 * One layer of PyTorch's LSTM along a sequence: x [length, n, in] -> [length, n, h], the states h of all steps. x is
 * multiplied once for all of them; a step is then a product with hh and a cell. length is 1 to 8189; 0 is
 * refused, as in PyTorch.
 * @param h, c the states before the first step, [n, h]; RW_NONE stands for zeros.
 * @param ret_h, ret_c receive the states behind the last step, owned by the tape; NULL on an error. May be NULL.
 * Errors: as rw_lstm_cell().
 */
RW_API rw_tensor *rw_lstm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, rw_tensor *c,
                             const rw_recurrent_weights *weights, rw_tensor **ret_h, rw_tensor **ret_c);
#define rw_lstm(...) rw_lstm_at(RW_HERE, __VA_ARGS__)

/** One layer of PyTorch's GRU along a sequence, as rw_lstm(). */
RW_API rw_tensor *rw_gru_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, const rw_recurrent_weights *weights,
                            rw_tensor **ret_h);
#define rw_gru(...) rw_gru_at(RW_HERE, __VA_ARGS__)

/** Of rw_ssd_scan(), all of one floating-point type. p: width of a head, n: of a state. */
typedef struct rw_ssd_operands {
    rw_tensor *x;     ///< [batch, length, heads, p]
    rw_tensor *dt;    ///< steps, above 0 as a rule: [batch, length, heads]
    rw_tensor *a;     ///< below 0 as a rule: [heads]
    rw_tensor *b, *c; ///< [batch, length, groups, n]; groups divide heads
    rw_tensor *state; ///< before the first place, [batch, heads, p, n]; RW_NONE stands for zeros
} rw_ssd_operands;

/** Places of a chunk where the caller names none. */
#define RW_SSD_CHUNK 64

/**
 * The scan of a selective state-space model, as Mamba-2 has it: for each batch and head, of which neighbours share a
 * group's b and c,
 *
 *     state[t] = exp(dt[t] a) state[t - 1] + dt[t] x[t] b[t]^T          [p, n]
 *     y[t] = state[t] c[t]
 *
 * by chunks: products inside a chunk, a state for each, a pass over the states in order (Dao and Gu, arXiv 2405.21060).
 * One op, which keeps its operands alone: backward makes the states before the chunks again, and what belongs to pairs
 * of places a chunk at a time. Operands may be of any strides. 16 bits are computed in float32 and rounded once at the
 * end; under a recipe operands may be of several types, and y is float32. Every sum has an order that shapes and chunk
 * alone decide; another chunk may round differently. Without a place y is empty and the state behind it the one before.
 * Differentiable any number of times; a gradient that is to be differentiated again has a number for each pair of
 * places of a chunk and each head in memory. All of this is finite while y, the states, their gradients, and sums of
 * products of any two of them or of operands, are within the range of the type that is computed in. Beyond it gradients
 * are infinite or NaN, of rw_grad() perhaps others than of rw_backward(). On a CPU what has faded below the least
 * normal number of that type is 0.
 * @param chunk places of a chunk; 0: RW_SSD_CHUNK. At most 8189 chunks.
 * @param ret_state receives the state behind the last place, owned by the tape; NULL on an error. May be NULL.
 * @return y [batch, length, heads, p]. Errors: RW_ERR_SHAPE, RW_ERR_DTYPE; RW_ERR_ARGUMENT for a chunk below 0, too
 *         many chunks, and without operands.
 */
RW_API rw_tensor *rw_ssd_scan_at(rw_site at, rw_tape *t, const rw_ssd_operands *operands, int64_t chunk,
                                 rw_tensor **ret_state);
#define rw_ssd_scan(...) rw_ssd_scan_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
