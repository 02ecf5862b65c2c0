/**
 * rewind/attention.h - attention with options, merging of attention results, and rotary embeddings.
 *
 * Conventions are those of rewind/ops.h: the tape owns each result; after an error a function returns NULL and the
 * context keeps the message.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_ATTENTION_H
#define REWIND_ATTENTION_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Options of rw_attention_with(). Zero, NULL and RW_NONE mean that an option is off; the first three members are those
 * of rw_attention_params. Query i has position i + (kv_seq - seq) among the keys. A score is changed in this order:
 * scale, soft_cap, slopes, mask; then excluded keys are removed.
 */
typedef struct rw_attention_options {
    bool causal;    ///< a query sees no keys after its own position
    double scale;   ///< [1 / sqrt(d)]; RW_ZERO, and a number that rounds to zero in the type, is RW_ERR_ARGUMENT
    double dropout; ///< probability of dropping an element of the matrix of attention probabilities
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
} rw_attention_options;

/**
 * Attention with options: q [batch, heads, seq, d], k [batch, kv_heads, kv_seq, d], v [batch, kv_heads, kv_seq, dv] ->
 * [batch, heads, seq, dv].
 *
 * Neither a score matrix nor its mask is stored, and blocks of keys that no query of a block sees are skipped. The
 * output of a query that sees no key is 0. Gradients: q, k, v, mask and sinks, of any order; second derivatives
 * (rw_grad()) store the scores. On CUDA the kernels without tensor cores run; on a CPU subnormal results are 0.
 *
 * A key that causal, window, documents or a mask (false, or minus infinity) excludes has no effect, whatever its
 * contents. Infinity or NaN in its k or v changes no bit of results and gradients of queries that do not see it. The
 * same holds for q and the gradient of a query, and the gradients of keys that it does not see. It does not hold for
 * rw_grad(), nor for cuDNN's kernels (REWIND_SDPA=cudnn).
 * @param options may be NULL; read during the call. A NULL among its tensors counts as left out; the error of the op
 *         that failed is kept.
 */
RW_API rw_tensor *rw_attention_with_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                                       const rw_attention_options *options);
#define rw_attention_with(...) rw_attention_with_at(RW_HERE, __VA_ARGS__)

/**
 * rw_attention_with() that also returns the log-sum-exp of each row, sinks included.
 * @param ret_lse receives [batch, heads, seq] of float32 (float64 for float64), with a gradient; minus infinity where a
 *         query sees no key. NULL on an error.
 */
RW_API rw_tensor *rw_attention_lse_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                                      const rw_attention_options *options, rw_tensor **ret_lse);
#define rw_attention_lse(...) rw_attention_lse_at(RW_HERE, __VA_ARGS__)

/**
 * Merges attention over two sets of keys, as in ring attention (Liu, Zaharia, Abbeel, arXiv 2310.01889): a and b [...,
 * d] with their log-sum-exps a_lse and b_lse [...], float32 (float64 for float64) -> [..., d]. Each is weighted by
 * exp(its lse
 * - lse of both); the sum is rounded once. Where neither sees a key, the result is 0 and the lse minus infinity.
 * @param ret_lse receives [...], the log-sum-exp over both sets; may be NULL. NULL on an error.
 */
RW_API rw_tensor *rw_attention_merge_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *a_lse, rw_tensor *b,
                                        rw_tensor *b_lse, rw_tensor **ret_lse);
#define rw_attention_merge(...) rw_attention_merge_at(RW_HERE, __VA_ARGS__)

/**
 * rw_rope() over the pairs (2i, 2i + 1), as in the weights of DeepSeek and GPT-J, instead of (i, i + d/2): x [batch,
 * heads, seq, d], d even; positions [seq] of RW_I32, or RW_NONE for 0, 1, 2, ... Pair i is rotated by position /
 * base^(2i / d). Types, gradients and errors as for rw_rope().
 */
RW_API rw_tensor *rw_rope_interleaved_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *positions, double base);
#define rw_rope_interleaved(...) rw_rope_interleaved_at(RW_HERE, __VA_ARGS__)

/** Zero means the default in brackets; RW_ZERO means zero. */
typedef struct rw_rope_params {
    double base;            ///< above zero [10000]
    bool interleaved;       ///< pairs (2i, 2i + 1), [(i, i + d/2)]
    rw_tensor *frequencies; ///< [d/2], floating point: rotation of pair i per position
    double scale;           ///< factor of cos and sin, [1]
} rw_rope_params;

/**
 * rw_rope() with the caller's frequencies, for contexts longer than those of training. They may be divided by a factor
 * (linear scaling), come from a larger base (NTK), or be a blend of both (YaRN, arXiv 2309.00071, whose factor of cos
 * and sin is `scale`). Any other table is possible, such as `inv_freq` with `attention_scaling` of Hugging Face's
 * models. Frequencies are
 * read as float32 (float64 for float64), angles are computed in double, and no gradient flows into them. NULL or
 * RW_NONE: base^(-2i / d).
 * @param params may be NULL
 * Errors: as rw_rope(); RW_ERR_SHAPE for frequencies of another shape, RW_ERR_ARGUMENT for a scale that is not finite.
 */
RW_API rw_tensor *rw_rope_with_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *positions,
                                  const rw_rope_params *params);
#define rw_rope_with(...) rw_rope_with_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
