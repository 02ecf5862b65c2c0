/**
 * rewind/recurrent.h - ops that go along a sequence: what state-space and recurrent models are made of.
 *
 * Sequences are [batch, length, channels], as transformers have them. All functions record on tape t and return a
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

#ifdef __cplusplus
}
#endif

#endif
