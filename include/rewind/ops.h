/**
 * rewind/ops.h - the ops of a transformer: arithmetic, products, norms, reductions, attention, losses, shapes.
 *
 * Every function records a node on tape t and returns its result, owned by the tape until rw_tape_reset(). Nothing is
 * executed until a value is requested. On an error a function returns NULL and changes nothing. The error is sticky;
 * its message has op, types, shapes and the caller's file and line. NULL inputs propagate: the op returns NULL and
 * keeps the first error; if there is none, the message names the NULL argument.
 *
 * Options are members of a params struct: zero means the default or that an option is off, and NULL means all defaults.
 * rw_NAME_with() is rw_NAME() with options.
 *
 * Scalar arguments are doubles. An op on float64 uses them as they are. Ops on other types compute in float32 and round
 * them to float32 first, so 0.1 and 0.1f are the same. Exception: the gradient of rw_pow_scalar() subtracts 1 from the
 * exponent before rounding.
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

/** An omitted optional operand. Not NULL, which means the result of a failed op. */
#define RW_NONE rw_none()
/** Returns the omitted operand; programs write RW_NONE. */
RW_API rw_tensor *rw_none(void);

/** RW_AXES(0, -1) is the set of these axes, one to eight; negative axes count from the end. */
#define RW_AXES(...) rw_axes_(RW_COUNT_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0), __VA_ARGS__)
#define RW_ALL_AXES 0xffffffffu ///< the set of all axes
RW_API uint32_t rw_axes_(int n, ...);

/* ----------------------------------------------------------------------------------------------------------------
 * Element-wise arithmetic. Operands broadcast as in NumPy: shapes are aligned at their last axes, and axes of extent 1
 * are expanded. Both operands have the same floating-point type.
 * @param a, b operands that broadcast
 * Errors: RW_ERR_SHAPE if shapes do not broadcast, RW_ERR_DTYPE.
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

/** Element-wise maximum, a if they are equal. The gradient flows to the selected element. NaN if either is NaN. */
RW_API rw_tensor *rw_maximum_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_maximum(...) rw_maximum_at(RW_HERE, __VA_ARGS__)

/** Element-wise minimum, a if they are equal. The gradient flows to the selected element. NaN if either is NaN. */
RW_API rw_tensor *rw_minimum_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_minimum(...) rw_minimum_at(RW_HERE, __VA_ARGS__)

/** x * factor. */
RW_API rw_tensor *rw_scale_at(rw_site at, rw_tape *t, rw_tensor *x, double factor);
#define rw_scale(...) rw_scale_at(RW_HERE, __VA_ARGS__)

/** x + term. */
RW_API rw_tensor *rw_add_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double term);
#define rw_add_scalar(...) rw_add_scalar_at(RW_HERE, __VA_ARGS__)

/** x to a constant power (exponent), as C's pow(). Exponents 1, 2, -1 and 0.5 are rounded once: x, x * x, 1 / x,
    sqrt(x). */
RW_API rw_tensor *rw_pow_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double exponent);
#define rw_pow_scalar(...) rw_pow_scalar_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Element-wise functions of floating-point types. The result has the shape and type of x. Each elementary function is
 * accurate to 1 ulp of the type (SLEEF u10).
 * @param x a tensor of a floating-point type
 * Errors: RW_ERR_DTYPE.
 */

/** -x. */
RW_API rw_tensor *rw_neg_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_neg(...) rw_neg_at(RW_HERE, __VA_ARGS__)

/** |x|. The gradient is 0 at 0 and at NaN. */
RW_API rw_tensor *rw_abs_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_abs(...) rw_abs_at(RW_HERE, __VA_ARGS__)

/** e to the x. */
RW_API rw_tensor *rw_exp_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_exp(...) rw_exp_at(RW_HERE, __VA_ARGS__)

/** Natural logarithm; NaN below 0, -inf at 0. */
RW_API rw_tensor *rw_log_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_log(...) rw_log_at(RW_HERE, __VA_ARGS__)

/** log(1 + x), accurate for small x; NaN below -1, -inf at -1. */
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

/** max(x, 0). The gradient is 0 at 0 and, as in PyTorch, 1 at NaN. */
RW_API rw_tensor *rw_relu_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_relu(...) rw_relu_at(RW_HERE, __VA_ARGS__)

/** x * sigmoid(x). */
RW_API rw_tensor *rw_silu_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_silu(...) rw_silu_at(RW_HERE, __VA_ARGS__)

/** x * Phi(x), computed with erf. Source: Hendrycks and Gimpel, arXiv 1606.08415. */
RW_API rw_tensor *rw_gelu_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_gelu(...) rw_gelu_at(RW_HERE, __VA_ARGS__)

/** The tanh form of gelu: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2. */
RW_API rw_tensor *rw_gelu_tanh_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_gelu_tanh(...) rw_gelu_tanh_at(RW_HERE, __VA_ARGS__)

/** silu(gate) * up in one pass. Both have one shape and type. Source: Shazeer, arXiv 2002.05202. */
RW_API rw_tensor *rw_swiglu_at(rw_site at, rw_tape *t, rw_tensor *gate, rw_tensor *up);
#define rw_swiglu(...) rw_swiglu_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Matrix products. A contiguous or transposed view (rw_permute) needs no copy. bfloat16 and float16 accumulate in
 * float32 and round once. Operands have one floating-point type.
 * Errors: RW_ERR_SHAPE, RW_ERR_DTYPE.
 */

/** a [..., m, k] times b [..., k, n] -> [..., m, n]; leading axes broadcast. Both of rank 2 or more. */
RW_API rw_tensor *rw_matmul_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_matmul(...) rw_matmul_at(RW_HERE, __VA_ARGS__)

/** x [..., in], weight [out, in], bias [out] or RW_NONE -> x weight^T + bias [..., out]. */
RW_API rw_tensor *rw_linear_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);
#define rw_linear(...) rw_linear_at(RW_HERE, __VA_ARGS__)

/**
 * rw_gelu_tanh(rw_linear(x, weight, bias)) as one op. On the CPU it is bit-identical to the two ops. On CUDA gelu may
 * be applied before the product is rounded; whether it is depends only on the product's shapes and type.
 */
RW_API rw_tensor *rw_linear_gelu_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);
#define rw_linear_gelu(...) rw_linear_gelu_at(RW_HERE, __VA_ARGS__)

/**
 * residual + rw_linear(x, weight, bias) as one op, rounded once. residual has the result's shape. The result overwrites
 * the residual in memory if no other op needs it.
 */
RW_API rw_tensor *rw_linear_add_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                   rw_tensor *residual);
#define rw_linear_add(...) rw_linear_add_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Normalization over the last axis. No statistics are kept: backward recomputes them from x. They are float32, or
 * float64 for float64. If a row's sum of squares overflows that type (elements beyond about 1e19, or 1e154), the row
 * and its gradients are NaN. PyTorch's layer_norm also gives NaN, its rms_norm zeros.
 * Errors: RW_ERR_SHAPE, RW_ERR_DTYPE, RW_ERR_ARGUMENT for eps.
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
 * Reductions of floating-point types. The order of summation depends only on the shape.
 * @param x a tensor of a floating-point type
 * @param axes a set such as RW_AXES(-1) or RW_AXES(0, 2); RW_ALL_AXES reduces to a scalar
 * @param keep reduced axes stay with extent 1
 * Errors: RW_ERR_SHAPE, also for an axis that x does not have; RW_ERR_DTYPE.
 */

/** Sum. */
RW_API rw_tensor *rw_sum_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_sum(...) rw_sum_at(RW_HERE, __VA_ARGS__)
/** Sum of all elements -> scalar. */
#define rw_sum_all(t, x) rw_sum((t), (x), RW_ALL_AXES, false)

/** Arithmetic mean. */
RW_API rw_tensor *rw_mean_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_mean(...) rw_mean_at(RW_HERE, __VA_ARGS__)
/** Mean of all elements -> scalar. */
#define rw_mean_all(t, x) rw_mean((t), (x), RW_ALL_AXES, false)

/** Maximum. The gradient flows to the first maximum in row-major order. NaN counts as the maximum. */
RW_API rw_tensor *rw_max_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_max(...) rw_max_at(RW_HERE, __VA_ARGS__)

/** Sums x to a shape that broadcasts to x's: the transpose of broadcasting. */
RW_API rw_tensor *rw_sum_to_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape);
#define rw_sum_to(...) rw_sum_to_at(RW_HERE, __VA_ARGS__)

/** exp(x) / sum(exp(x)) along one axis (negative: from the end), shifted by the maximum. A row of only -inf gives 0. */
RW_API rw_tensor *rw_softmax_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_softmax(...) rw_softmax_at(RW_HERE, __VA_ARGS__)

/** x - logsumexp(x) along one axis. A row of only -inf gives NaN. */
RW_API rw_tensor *rw_log_softmax_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_log_softmax(...) rw_log_softmax_at(RW_HERE, __VA_ARGS__)

/** log(sum(exp(x))), shifted by the maximum. */
RW_API rw_tensor *rw_logsumexp_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_logsumexp(...) rw_logsumexp_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Random ops. Numbers are drawn when an op is recorded, and C does not define the order in which arguments are
 * evaluated. In
 *     rw_sub(t, rw_dropout(t, a, p), rw_dropout(t, b, p))
 * one compiler records a's mask first, another one b's, so the masks differ. For numbers that do not depend on the
 * compiler, record at most one random op in the arguments of a call, and the others in statements of their own. With
 * REWIND_DEBUG=order in the environment a call with two is RW_ERR_ARGUMENT, if the random ops are in the text of the
 * call itself; functions of the caller are not inspected.
 * @param dtype a floating-point type, of the result
 * @param shape shape of the result
 */

/**
 * Dropout: x / (1 - p) if word i of the ticket is at least p * 2^32, rounded down, else 0. 0 <= p < 1, or
 * RW_ERR_ARGUMENT. The mask is not kept: backward draws it again. p = 0 returns x itself and draws nothing. Element i
 * is counted in row-major order; in an image that is stored channels-last, as convolutions return it, in memory order,
 * and the result is stored in the same way.
 */
RW_API rw_tensor *rw_dropout_at(rw_site at, rw_tape *t, rw_tensor *x, double p);
#define rw_dropout(...) rw_dropout_at(RW_HERE, __VA_ARGS__)

/**
 * residual + rw_dropout(x, p) as one op, rounded once, with the same mask. Both have one shape. p = 0 is
 * rw_add(residual, x). The result overwrites x or the residual in memory if no other op needs it.
 */
RW_API rw_tensor *rw_dropout_add_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *residual, double p);
#define rw_dropout_add(...) rw_dropout_add_at(RW_HERE, __VA_ARGS__)

/** Standard normal deviates (Box-Muller). No gradient. */
RW_API rw_tensor *rw_randn_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape);
#define rw_randn(...) rw_randn_at(RW_HERE, __VA_ARGS__)

/** Uniform deviates in [0, 1). No gradient. */
RW_API rw_tensor *rw_rand_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape);
#define rw_rand(...) rw_rand_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Attention.
 */

/**
 * Options of rw_attention(). Zero, NULL and RW_NONE mean the default in brackets, or that an option is off. Query i has
 * position i + (kv_seq - seq) among the keys. A score is changed in this order: scale, soft_cap, slopes, mask; then
 * excluded keys are removed.
 */
typedef struct rw_attention_params {
    bool causal;    ///< a query sees no keys after its own position
    double scale;   ///< [1 / sqrt(d)]; RW_ZERO, and a number that the type rounds to zero, is RW_ERR_ARGUMENT
    double dropout; ///< probability with which an attention probability is dropped
    /**
     * Sliding window: a query sees keys at most window - 1 positions away, its own included: window keys with causal,
     * else 2 window - 1 (Longformer, arXiv 2004.05150; Mistral, arXiv 2310.06825).
     */
    int64_t window;
    double soft_cap; ///< c: scores become c tanh(score / c) (Gemma 2, arXiv 2408.00118)
    /**
     * ALiBi (arXiv 2108.12409): [heads], float32 (float64 for float64). Slope times distance is subtracted from a
     * score. A constant: requesting its gradient is RW_ERR_NO_GRADIENT.
     */
    rw_tensor *slopes;
    /**
     * Added to the scores: four axes that broadcast to [batch, heads, seq, kv_seq], of q's type or the slopes'. Minus
     * infinity excludes a key. If its gradient is requested, that is first computed with seq and kv_seq in full.
     * RW_BOOL: true where a key is seen.
     */
    rw_tensor *mask;
    /**
     * Attention sinks: [heads], of q's type, one more score per row that belongs to no key. It takes probability and
     * contributes no value (gpt-oss, arXiv 2508.10925; a sink of 0 is "softmax one").
     */
    rw_tensor *sinks;
    /**
     * Documents packed in one row: [n + 1] or [batch, n + 1] of RW_I32, n at least 1. Document i has the positions from
     * entry i up to, not including, entry i + 1, and its queries see only its keys. Entries must not decrease and must
     * be in 0..seq; otherwise RW_ERR_ARGUMENT when the op executes. Documents may be empty. Positions before the first
     * and after the last entry are padding, which sees nothing. seq and kv_seq must be equal. The kernel reads the
     * entries on the device, so one plan serves all of them.
     */
    rw_tensor *documents;
} rw_attention_params;

/**
 * Fused attention: softmax(scale q k^T + mask) v by blocks, with memory linear in the sequence length.
 *
 * q [batch, heads, seq, d], k [batch, kv_heads, kv_seq, d], v [batch, kv_heads, kv_seq, dv] -> [batch, heads, seq, dv].
 * heads is a multiple of kv_heads; query head h uses kv head h / (heads / kv_heads). Views whose last axis is dense
 * need no copy. If the three are parts of one dense tensor [batch, seq, heads + 2 kv_heads, d], by rw_split() and
 * rw_transpose(), backward writes its gradient as one tensor. Dropout draws word i of the ticket for element i of the
 * score matrix [batch, heads, seq, kv_seq].
 *
 * Neither a score matrix nor its mask is stored, and blocks of keys that no query of a block sees are skipped. The
 * output of a query that sees no key is 0. Gradients: q, k, v, mask and sinks, of any order; second derivatives
 * (rw_grad()) store the scores. Options other than causal, scale and dropout use the kernels without tensor cores on
 * CUDA. Subnormal results on a CPU are 0.
 *
 * A key that causal, window, documents or a mask (false, or minus infinity) excludes has no effect, whatever its
 * contents. Infinity or NaN in its k or v changes no bit of results and gradients of queries that do not see it. The
 * same holds for q and the gradient of a query, and the gradients of keys that it does not see. It does not hold for
 * rw_grad(), nor for cuDNN's kernels (REWIND_SDPA=cudnn).
 * Source: Dao, "FlashAttention-2", arXiv 2307.08691.
 * Errors: RW_ERR_SHAPE, RW_ERR_DTYPE, RW_ERR_ARGUMENT for params.
 * @param params may be NULL for the defaults; read during the call. A NULL among its tensors counts as left out; the
 *        error of the op that failed is kept.
 */
RW_API rw_tensor *rw_attention_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                                  const rw_attention_params *params);
#define rw_attention(...) rw_attention_at(RW_HERE, __VA_ARGS__)

/**
 * Softmax over the last axis of scale * scores with a causal mask: scores [..., s, kv]; query i sees keys up to
 * i + (kv - s), and other elements are 0. For attention with explicit scores: matmul, this op, dropout, matmul.
 *
 * An excluded element has no effect, whatever its contents: infinity or NaN in it, or in its upstream gradient, changes
 * no bit of results and gradients, and its own gradient is 0. This does not hold for upstream gradients in rw_grad().
 */
RW_API rw_tensor *rw_causal_softmax_at(rw_site at, rw_tape *t, rw_tensor *scores, double scale);
#define rw_causal_softmax(...) rw_causal_softmax_at(RW_HERE, __VA_ARGS__)

/**
 * Rotary position embedding of pairs (i, i + d/2): x [batch, heads, seq, d], d even; positions [seq] of RW_I32, or
 * RW_NONE for 0, 1, 2, ... rw_rope_with() has other pairs and frequencies. Source: Su et al., arXiv 2104.09864.
 * @param base the rotation of pair i per position is base^(-2i / d)
 */
RW_API rw_tensor *rw_rope_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *positions, double base);
#define rw_rope(...) rw_rope_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Tables and losses.
 */

/** Selects rows: table [n, c], index [...] of RW_I32 -> [..., c]. An index outside of 0..n-1 is RW_ERR_ARGUMENT when
    the op is executed. rw_embedding_with() has a padding row. */
RW_API rw_tensor *rw_embedding_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index);
#define rw_embedding(...) rw_embedding_at(RW_HERE, __VA_ARGS__)

/**
 * Mean over rows of -log softmax(logits)[target]: logits [..., classes], target [...] of RW_I32 -> scalar (float32;
 * float64 for float64). A target of -100 is ignored (rw_cross_entropy_with(): another one); if all are ignored,
 * the result is 0. The gradient overwrites the logits in memory if no other op needs them.
 */
RW_API rw_tensor *rw_cross_entropy_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target);
#define rw_cross_entropy(...) rw_cross_entropy_at(RW_HERE, __VA_ARGS__)

/** Mean of (x - y)^2 over all elements -> scalar. */
RW_API rw_tensor *rw_mse_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y);
#define rw_mse_loss(...) rw_mse_loss_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Shapes. A view costs nothing itself. An op that does not support its strides first copies it to a dense tensor:
 * the table of ops (docs/ops.md) lists the operands that each op reads as views ("reads views of").
 * Errors: RW_ERR_SHAPE for shapes, axes and ranges that do not fit.
 */

/** Same elements in row-major order with another shape; one extent may be -1. A view if x is dense, else a copy. */
RW_API rw_tensor *rw_reshape_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape);
#define rw_reshape(...) rw_reshape_at(RW_HERE, __VA_ARGS__)

/** Permutes axes: axis i of the result is axis axes[i] of x; axes has rank entries. A view. */
RW_API rw_tensor *rw_permute_at(rw_site at, rw_tape *t, rw_tensor *x, const int *axes);
#define rw_permute(...) rw_permute_at(RW_HERE, __VA_ARGS__)

/** Swaps axes axis_a and axis_b of x (negative: from the end). A view. */
RW_API rw_tensor *rw_transpose_at(rw_site at, rw_tape *t, rw_tensor *x, int axis_a, int axis_b);
#define rw_transpose(...) rw_transpose_at(RW_HERE, __VA_ARGS__)

/** Elements start <= i < end of x along an axis. A view. */
RW_API rw_tensor *rw_slice_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t start, int64_t end);
#define rw_slice(...) rw_slice_at(RW_HERE, __VA_ARGS__)

/** Expands axes of x of extent 1 to a shape. A view. */
RW_API rw_tensor *rw_broadcast_to_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape);
#define rw_broadcast_to(...) rw_broadcast_to_at(RW_HERE, __VA_ARGS__)

/** Returns x itself if it is dense, else a dense copy. */
RW_API rw_tensor *rw_contiguous_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_contiguous(...) rw_contiguous_at(RW_HERE, __VA_ARGS__)

/**
 * Converts x to another type (dtype). Floating-point types: rounds to nearest even. RW_I32: truncates toward zero,
 * saturates at its limits, and converts NaN to 0. RW_BOOL: true if not equal to 0. Returns x itself if the type is the
 * same.
 */
RW_API rw_tensor *rw_cast_at(rw_site at, rw_tape *t, rw_tensor *x, rw_dtype dtype);
#define rw_cast(...) rw_cast_at(RW_HERE, __VA_ARGS__)

/** Concatenates x, n tensors, 1 to 65533, of equal type whose shapes differ at most along axis. Always a new tensor. */
RW_API rw_tensor *rw_concat_at(rw_site at, rw_tape *t, rw_tensor *const *x, size_t n, int axis);
#define rw_concat(...) rw_concat_at(RW_HERE, __VA_ARGS__)

/**
 * Splits x along an axis into n views, 1 to 8189, of the given sizes, whose sum is the extent. The gradient of x
 * concatenates the gradients of the views, at no cost if they already are adjacent in one buffer.
 * @param ret_parts receives the n views; set to NULL on an error, unless n is invalid.
 * @return RW_OK or the error, which is sticky
 */
RW_API rw_status rw_split_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, const int64_t *sizes, size_t n,
                             rw_tensor **ret_parts);
#define rw_split(...) rw_split_at(RW_HERE, __VA_ARGS__)

/**
 * Writes x to a buffer (rw_buffer()) of the same type and shape at the end of the step. All ops on this tape, including
 * replays, read the old contents. It happens exactly once, also inside a region.
 * @return RW_OK or the error, which is sticky
 */
RW_API rw_status rw_assign_at(rw_site at, rw_tape *t, rw_tensor *buffer, rw_tensor *x);
#define rw_assign(...) rw_assign_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
