/**
 * rewind/attention.h - attention with its log-sum-exp, merging of attention results, and rotary embeddings.
 *
 * Conventions are those of rewind/ops.h: the tape owns each result; after an error a function returns NULL and the
 * context keeps the message.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_ATTENTION_H
#define REWIND_ATTENTION_H

#include <rewind/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * rw_attention() that also returns the log-sum-exp of each row, sinks included.
 * @param q, k, v, params as for rw_attention()
 * @param ret_lse receives [batch, heads, seq] of float32 (float64 for float64), with a gradient; minus infinity where a
 *         query sees no key. NULL on an error.
 */
RW_API rw_tensor *rw_attention_lse_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                                      const rw_attention_params *params, rw_tensor **ret_lse);
#define rw_attention_lse(...) rw_attention_lse_at(RW_HERE, __VA_ARGS__)

/**
 * Merges attention over two sets of keys, as in ring attention (Liu, Zaharia, Abbeel, arXiv 2310.01889): a and b [...,
 * d] with their log-sum-exps a_lse and b_lse [...], float32 (float64 for float64) -> [..., d]. Each is weighted by
 * exp(its lse - lse of both); the sum is rounded once. Where neither sees a key, the result is 0 and the lse minus
 * infinity. A row whose weight is 0 is not read: it may hold NaN.
 * @param ret_lse receives [...], the log-sum-exp over both sets; may be NULL. NULL on an error.
 */
RW_API rw_tensor *rw_attention_merge_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *a_lse, rw_tensor *b,
                                        rw_tensor *b_lse, rw_tensor **ret_lse);
#define rw_attention_merge(...) rw_attention_merge_at(RW_HERE, __VA_ARGS__)

/** Zero means the default in brackets; RW_ZERO means zero. */
typedef struct rw_rope_params {
    double base;            ///< above zero [10000]
    bool interleaved;       ///< pairs (2i, 2i + 1), as in the weights of DeepSeek and GPT-J [(i, i + d/2)]
    rw_tensor *frequencies; ///< [d/2], floating point: rotation of pair i per position [base^(-2i / d)]
    double scale;           ///< factor of cos and sin [1]
} rw_rope_params;

/**
 * rw_rope() with options. The caller's frequencies are for contexts longer than those of training: divided by a factor
 * (linear scaling), of a larger base (NTK), or a blend of both (YaRN, arXiv 2309.00071, whose factor of cos and sin is
 * `scale`). Any other table is possible, such as `inv_freq` with `attention_scaling` of Hugging Face's models.
 * Frequencies are read as float32 (float64 for float64), angles are computed in double, and no gradient flows into
 * frequencies. NULL or RW_NONE means the default.
 * @param x, positions as for rw_rope()
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
