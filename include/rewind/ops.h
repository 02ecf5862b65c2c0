/**
 * rewind/ops.h - the built-in ops.
 *
 * Every function records one node on tape t and returns its result, owned by the tape until rw_tape_reset(). On a
 * mistake it returns NULL and the first message sticks to the context: op, types, shapes, the caller's file and line.
 * An op given NULL returns NULL: behind a failed op with that one's message, else with one that names the argument. A
 * failed call leaves the tape as it was. Nothing runs until a value is asked for.
 *
 * A number among the arguments is a double. An op on float64 takes it as it is; one on any other type, whose arithmetic
 * is float32's, takes it rounded to float32: 0.1 and 0.1f are the same there, but for the gradient of rw_pow_scalar(),
 * which subtracts 1 from the exponent first.
 *
 * Call the names without _at: rw_add(t, a, b) is rw_add_at(RW_HERE, t, a, b).
 * Thread-safety: as for the context.
 */
#ifndef REWIND_OPS_H
#define REWIND_OPS_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An optional operand that is left out. Not NULL, which stands for the result of a failed op. */
#define RW_NONE rw_none()
RW_API rw_tensor *rw_none(void);

/** RW_AXES(0, -1): the set of these axes; negative ones count from the end. One to eight. */
#define RW_AXES(...) rw_axes_(RW_COUNT_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0), __VA_ARGS__)
#define RW_ALL_AXES 0xffffffffu
RW_API uint32_t rw_axes_(int n, ...);

/** Zero means the default in brackets. */
typedef struct rw_attention_params {
    bool causal;    ///< query i sees keys up to i + (kv_seq - seq)
    double scale;   ///< [1 / sqrt(d)]; RW_ZERO, and what the type rounds to zero, is RW_ERR_ARGUMENT
    double dropout; ///< probability of dropping a probability, [0]
} rw_attention_params;

/* ----------------------------------------------------------------------------------------------------------------
 * Element-wise arithmetic. Operands broadcast as in NumPy: shapes are aligned at their last axes, an axis of extent 1
 * stretches. Both operands have the same floating-point type.
 */

/** a + b. */
RW_API rw_tensor *rw_add_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_add(...) rw_add_at(RW_HERE, __VA_ARGS__)

/** a - b. */
RW_API rw_tensor *rw_sub_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_sub(...) rw_sub_at(RW_HERE, __VA_ARGS__)

/** a * b. */
RW_API rw_tensor *rw_mul_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_mul(...) rw_mul_at(RW_HERE, __VA_ARGS__)

/** a / b. */
RW_API rw_tensor *rw_div_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_div(...) rw_div_at(RW_HERE, __VA_ARGS__)

/** The larger of a and b, a where they are equal; the gradient goes to the one taken. NaN wins. */
RW_API rw_tensor *rw_maximum_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_maximum(...) rw_maximum_at(RW_HERE, __VA_ARGS__)

/** The smaller one; where they are equal, the gradient goes to a. NaN if either is. */
RW_API rw_tensor *rw_minimum_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_minimum(...) rw_minimum_at(RW_HERE, __VA_ARGS__)

/** x * factor. */
RW_API rw_tensor *rw_scale_at(rw_site at, rw_tape *t, rw_tensor *x, double factor);
#define rw_scale(...) rw_scale_at(RW_HERE, __VA_ARGS__)

/** x + term. */
RW_API rw_tensor *rw_add_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double term);
#define rw_add_scalar(...) rw_add_scalar_at(RW_HERE, __VA_ARGS__)

/** x to a constant power, as C's pow(). By 1, 2, -1 and 0.5 it is rounded once: x, a product, a quotient, a root. */
RW_API rw_tensor *rw_pow_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double exponent);
#define rw_pow_scalar(...) rw_pow_scalar_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Element-wise functions. Same shape and type as x. float32 and bfloat16 within 1 ulp of the type (SLEEF u10) per
 * function used, float64 likewise.
 */

/** -x. */
RW_API rw_tensor *rw_neg_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_neg(...) rw_neg_at(RW_HERE, __VA_ARGS__)

/** |x|; gradient 0 at 0 and of NaN. */
RW_API rw_tensor *rw_abs_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_abs(...) rw_abs_at(RW_HERE, __VA_ARGS__)

/** e to the x. */
RW_API rw_tensor *rw_exp_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_exp(...) rw_exp_at(RW_HERE, __VA_ARGS__)

/** Natural logarithm; NaN below 0, -inf at 0. */
RW_API rw_tensor *rw_log_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_log(...) rw_log_at(RW_HERE, __VA_ARGS__)

/** log(1 + x), exact where x is small; NaN below -1, -inf at -1. */
RW_API rw_tensor *rw_log1p_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_log1p(...) rw_log1p_at(RW_HERE, __VA_ARGS__)

/** Square root. */
RW_API rw_tensor *rw_sqrt_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_sqrt(...) rw_sqrt_at(RW_HERE, __VA_ARGS__)

/** Hyperbolic tangent. */
RW_API rw_tensor *rw_tanh_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_tanh(...) rw_tanh_at(RW_HERE, __VA_ARGS__)

/** The error function. */
RW_API rw_tensor *rw_erf_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_erf(...) rw_erf_at(RW_HERE, __VA_ARGS__)

/** Sine and cosine of radians. */
RW_API rw_tensor *rw_sin_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_sin(...) rw_sin_at(RW_HERE, __VA_ARGS__)
RW_API rw_tensor *rw_cos_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_cos(...) rw_cos_at(RW_HERE, __VA_ARGS__)

/** log(1 + exp(x)), without overflow. */
RW_API rw_tensor *rw_softplus_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_softplus(...) rw_softplus_at(RW_HERE, __VA_ARGS__)

/** 1 / (1 + exp(-x)). */
RW_API rw_tensor *rw_sigmoid_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_sigmoid(...) rw_sigmoid_at(RW_HERE, __VA_ARGS__)

/** max(x, 0); gradient 0 at 0 and, as in PyTorch, 1 at NaN. */
RW_API rw_tensor *rw_relu_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_relu(...) rw_relu_at(RW_HERE, __VA_ARGS__)

/** x * sigmoid(x). */
RW_API rw_tensor *rw_silu_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_silu(...) rw_silu_at(RW_HERE, __VA_ARGS__)

/** x * Phi(x) by erf. Source: Hendrycks and Gimpel, arXiv 1606.08415. */
RW_API rw_tensor *rw_gelu_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_gelu(...) rw_gelu_at(RW_HERE, __VA_ARGS__)

/** The tanh form of gelu: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2. */
RW_API rw_tensor *rw_gelu_tanh_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_gelu_tanh(...) rw_gelu_tanh_at(RW_HERE, __VA_ARGS__)

/** silu(gate) * up in one pass; equal shapes. Source: Shazeer, arXiv 2002.05202. */
RW_API rw_tensor *rw_swiglu_at(rw_site at, rw_tape *t, rw_tensor *gate, rw_tensor *up);
#define rw_swiglu(...) rw_swiglu_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Products. A contiguous or transposed view (rw_permute) costs no copy. bfloat16 accumulates in float32 and rounds
 * once.
 */

/** [..., m, k] x [..., k, n] -> [..., m, n]; leading axes broadcast. Both of rank 2 or more. */
RW_API rw_tensor *rw_matmul_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_matmul(...) rw_matmul_at(RW_HERE, __VA_ARGS__)

/** x [..., in], weight [out, in], bias [out] or RW_NONE -> x weight^T + bias [..., out]. */
RW_API rw_tensor *rw_linear_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);
#define rw_linear(...) rw_linear_at(RW_HERE, __VA_ARGS__)

/**
 * rw_gelu_tanh(rw_linear(x, weight, bias)) as one op. On the CPU the same bytes as the two. On CUDA the function may be
 * taken of the product before it is rounded; whether it is, follows from the product's shapes and type.
 */
RW_API rw_tensor *rw_linear_gelu_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);
#define rw_linear_gelu(...) rw_linear_gelu_at(RW_HERE, __VA_ARGS__)

/**
 * residual + rw_linear(x, weight, bias) as one op, rounded once; residual has the result's shape. Where nobody else
 * needs the residual, the result is written over it.
 */
RW_API rw_tensor *rw_linear_add_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                   rw_tensor *residual);
#define rw_linear_add(...) rw_linear_add_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Normalisation over the last axis. No statistics are kept: the backward takes them again from x. They are float32, of
 * float64 float64: a row whose squares sum up to more than that type has numbers for, beyond some 1e19 for an element
 * or 1e154, is NaN, and so are its gradients. PyTorch's layer_norm gives NaN, its rms_norm zeros.
 */

/**
 * x [..., c], weight [c] or RW_NONE, bias [c] or RW_NONE -> (x - mean) / sqrt(var + eps) * weight + bias, var with
 * divisor c.
 */
RW_API rw_tensor *rw_layernorm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                 double eps);
#define rw_layernorm(...) rw_layernorm_at(RW_HERE, __VA_ARGS__)

/** x [..., c], weight [c] or RW_NONE -> x / sqrt(mean(x^2) + eps) * weight. Zhang and Sennrich, arXiv 1910.07467. */
RW_API rw_tensor *rw_rmsnorm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, double eps);
#define rw_rmsnorm(...) rw_rmsnorm_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Reductions. axes is a bit set made by RW_AXES(-1) or RW_AXES(0, 2); RW_ALL_AXES reduces to a scalar. keep: reduced
 * axes stay with extent 1. Sums are taken in an order fixed by the shape alone.
 */

/** Sum. */
RW_API rw_tensor *rw_sum_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_sum(...) rw_sum_at(RW_HERE, __VA_ARGS__)

/** Arithmetic mean. */
RW_API rw_tensor *rw_mean_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_mean(...) rw_mean_at(RW_HERE, __VA_ARGS__)

/** Maximum; the gradient goes to the first maximal element in row-major order. NaN wins. */
RW_API rw_tensor *rw_max_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_max(...) rw_max_at(RW_HERE, __VA_ARGS__)

/** Sums x down to a shape that broadcasts to x's: the transpose of broadcasting. */
RW_API rw_tensor *rw_sum_to_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape);
#define rw_sum_to(...) rw_sum_to_at(RW_HERE, __VA_ARGS__)

/** exp(x) / sum(exp(x)) along one axis (negative: from the end), shifted by the maximum. A row of -inf gives 0. */
RW_API rw_tensor *rw_softmax_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_softmax(...) rw_softmax_at(RW_HERE, __VA_ARGS__)

/** log(softmax(x)) along one axis. */
RW_API rw_tensor *rw_log_softmax_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_log_softmax(...) rw_log_softmax_at(RW_HERE, __VA_ARGS__)

/** log(sum(exp(x))), shifted by the maximum. */
RW_API rw_tensor *rw_logsumexp_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_logsumexp(...) rw_logsumexp_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Random. Numbers are drawn when an op is recorded, and C does not say in which order arguments are evaluated: in
 *     rw_sub(t, rw_dropout(t, a, p), rw_dropout(t, b, p))
 * one compiler records a's mask first, another b's, and the two programs have other numbers. Where a program has to
 * give the same numbers whoever compiles it, at most one argument of a call records a random op; others get a statement
 * each. With REWIND_DEBUG=order in the environment such a call is refused, with RW_ERR_ARGUMENT, where the random ops
 * stand in its own text; arguments that are functions of the caller's are not looked into.
 */

/**
 * x / (1 - p) where word i of the ticket is at least p * 2^32, else 0. 0 <= p < 1. The mask is never kept: the
 * backward draws it again. p = 0 gives x itself and draws nothing. Elements are counted in x's order; of an image that
 * lies channels last, as convolutions leave it, in that of its memory, in which the result lies too.
 */
RW_API rw_tensor *rw_dropout_at(rw_site at, rw_tape *t, rw_tensor *x, double p);
#define rw_dropout(...) rw_dropout_at(RW_HERE, __VA_ARGS__)

/**
 * residual + rw_dropout(x, p) as one op, rounded once; the same mask. Equal shapes. p = 0 is rw_add(residual, x). Where
 * nobody else needs x or the residual, the result is written over it.
 */
RW_API rw_tensor *rw_dropout_add_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *residual, double p);
#define rw_dropout_add(...) rw_dropout_add_at(RW_HERE, __VA_ARGS__)

/** Standard normal deviates (Box-Muller), no gradient. */
RW_API rw_tensor *rw_randn_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape);
#define rw_randn(...) rw_randn_at(RW_HERE, __VA_ARGS__)

/** Uniform deviates in [0, 1), no gradient. */
RW_API rw_tensor *rw_rand_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape);
#define rw_rand(...) rw_rand_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Attention.
 */

/**
 * softmax(scale q k^T + mask) v by blocks, with memory linear in the sequence length.
 * q [batch, heads, seq, d], k [batch, kv_heads, kv_seq, d], v [batch, kv_heads, kv_seq, dv], heads a multiple of
 * kv_heads (query head h uses kv head h / (heads / kv_heads)) -> [batch, heads, seq, dv]. Any strides with a dense
 * last axis are taken without a copy.
 * Where the three are cut out of one dense tensor [batch, seq, heads + 2 kv_heads, d] by rw_split() and rw_transpose(),
 * its gradient is written at once, as one tensor.
 * Dropout on the probabilities draws word i for element i of the [batch, heads, seq, kv_seq] score matrix. Source:
 * Dao, "FlashAttention-2", arXiv 2307.08691. params may be NULL.
 */
RW_API rw_tensor *rw_attention_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                                  const rw_attention_params *params);
#define rw_attention(...) rw_attention_at(RW_HERE, __VA_ARGS__)

/**
 * softmax over the last axis of scale * scores, where query i of s sees keys up to i + (kv - s); the rest gives 0.
 * scores [..., s, kv]. The form of attention with explicit scores: matmul, this, dropout, matmul.
 */
RW_API rw_tensor *rw_causal_softmax_at(rw_site at, rw_tape *t, rw_tensor *scores, double scale);
#define rw_causal_softmax(...) rw_causal_softmax_at(RW_HERE, __VA_ARGS__)

/**
 * Rotary position embedding. x [batch, heads, seq, d], d even; positions [seq] of RW_I32, or RW_NONE for 0, 1, 2, ...;
 * pairs (i, i + d/2). Source: Su et al., arXiv 2104.09864.
 */
RW_API rw_tensor *rw_rope_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *positions, double base);
#define rw_rope(...) rw_rope_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Tables and losses.
 */

/** table [n, c], index [...] of RW_I32 -> [..., c]. An index outside 0..n-1 is RW_ERR_ARGUMENT when it runs. */
RW_API rw_tensor *rw_embedding_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index);
#define rw_embedding(...) rw_embedding_at(RW_HERE, __VA_ARGS__)

/**
 * Mean over rows of -log softmax(logits)[target]: logits [..., classes], target [...] of RW_I32 -> scalar (float32;
 * float64 for float64). A target of -100 is ignored; all ignored gives 0. The gradient overwrites the logits when
 * nobody else needs them.
 */
RW_API rw_tensor *rw_cross_entropy_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target);
#define rw_cross_entropy(...) rw_cross_entropy_at(RW_HERE, __VA_ARGS__)

/** cross_entropy() with another ignored index. */
RW_API rw_tensor *rw_cross_entropy_ignore_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target,
                                             int32_t ignore);
#define rw_cross_entropy_ignore(...) rw_cross_entropy_ignore_at(RW_HERE, __VA_ARGS__)

/** Mean of (x - y)^2 over all elements -> scalar. */
RW_API rw_tensor *rw_mse_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y);
#define rw_mse_loss(...) rw_mse_loss_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Shape. Views cost nothing.
 */

/** Same elements in row-major order; one extent may be -1. A view of a dense x, else a copy. */
RW_API rw_tensor *rw_reshape_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape);
#define rw_reshape(...) rw_reshape_at(RW_HERE, __VA_ARGS__)

/** Axis i of the result is axis axes[i] of x; rank entries. A view. */
RW_API rw_tensor *rw_permute_at(rw_site at, rw_tape *t, rw_tensor *x, const int *axes);
#define rw_permute(...) rw_permute_at(RW_HERE, __VA_ARGS__)

/** Swaps two axes (negative: from the end). A view. */
RW_API rw_tensor *rw_transpose_at(rw_site at, rw_tape *t, rw_tensor *x, int axis_a, int axis_b);
#define rw_transpose(...) rw_transpose_at(RW_HERE, __VA_ARGS__)

/** Elements start <= i < end along an axis. A view. */
RW_API rw_tensor *rw_slice_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t start, int64_t end);
#define rw_slice(...) rw_slice_at(RW_HERE, __VA_ARGS__)

/** Stretches axes of extent 1. A view. */
RW_API rw_tensor *rw_broadcast_to_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape);
#define rw_broadcast_to(...) rw_broadcast_to_at(RW_HERE, __VA_ARGS__)

/** x itself when it is dense, else a dense copy. */
RW_API rw_tensor *rw_contiguous_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_contiguous(...) rw_contiguous_at(RW_HERE, __VA_ARGS__)

/** Converts, rounding to nearest even. x itself when the type is the same. */
RW_API rw_tensor *rw_cast_at(rw_site at, rw_tape *t, rw_tensor *x, rw_dtype dtype);
#define rw_cast(...) rw_cast_at(RW_HERE, __VA_ARGS__)

/** Joins n tensors of equal type that differ at most along axis. Always a new tensor. */
RW_API rw_tensor *rw_concat_at(rw_site at, rw_tape *t, rw_tensor *const *x, int n, int axis);
#define rw_concat(...) rw_concat_at(RW_HERE, __VA_ARGS__)

/**
 * Cuts x along an axis into n pieces of the given sizes, which add up to the extent. Views. The gradient of x joins
 * those of the pieces; where they lie side by side in one buffer already, that costs nothing.
 * @param ret_parts receives the n pieces; set to NULL on an error, unless n itself is the mistake.
 */
RW_API rw_status rw_split_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, const int64_t *sizes, int n,
                             rw_tensor **ret_parts);
#define rw_split(...) rw_split_at(RW_HERE, __VA_ARGS__)

/**
 * Writes x into a buffer (rw_buffer) of the same type and shape, once, when the step ends: everything recorded on this
 * tape, replays included, still reads the old contents. Inside a region too it happens exactly once.
 */
RW_API rw_status rw_assign_at(rw_site at, rw_tape *t, rw_tensor *buffer, rw_tensor *x);
#define rw_assign(...) rw_assign_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
