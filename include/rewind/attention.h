/**
 * rewind/attention.h - attention beyond rw_attention() of rewind/ops.h, and what goes with it.
 *
 * Conventions are those of rewind/ops.h: a result belongs to the tape, NULL after a mistake, whose message sticks.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_ATTENTION_H
#define REWIND_ATTENTION_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * What rw_attention_with() does besides. Zero, NULL and RW_NONE mean that there is none of it; the first three are
 * those of rw_attention_params. Query i stands at i + (kv_seq - seq) among the keys. A score goes through these in this
 * order: scale, soft_cap, slopes, mask, then what is not seen is taken out.
 */
typedef struct rw_attention_options {
    bool causal;    ///< a query sees no keys behind its place
    double scale;   ///< [1 / sqrt(d)]; RW_ZERO, and what the type rounds to zero, is RW_ERR_ARGUMENT
    double dropout; ///< probability of dropping a probability, by element of the score matrix
    /** Keys at most window - 1 places from a query are seen, its own place included: window keys with causal, else
        2 window - 1 (Longformer, arXiv 2004.05150; Mistral, arXiv 2310.06825). */
    int64_t window;
    double soft_cap; ///< c: scores become c tanh(score / c) (Gemma 2, arXiv 2408.00118)
    /** [heads], float32 (float64 for float64): slope times distance is taken off a score (ALiBi, arXiv 2108.12409).
        A constant: asking for its gradient is RW_ERR_NO_GRADIENT. */
    rw_tensor *slopes;
    /** Added to the scores: of four axes that broadcast to [batch, heads, seq, kv_seq], of q's type or of the slopes'.
        Minus infinity takes a key out. Its gradient, if asked for, first has seq and kv_seq in full. Of RW_BOOL: true
        where a key is seen. */
    rw_tensor *mask;
    /** [heads], of q's type: one more score of each row, of no key; it takes probability and gives nothing (gpt-oss,
        arXiv 2508.10925; a sink of 0: "softmax one"). */
    rw_tensor *sinks;
    /** [n + 1] or [batch, n + 1] of RW_I32, n at least 1: documents packed in one row. Document i is at the places from
        entry i up to entry i + 1, and its queries see its keys only. Entries do not fall and lie in 0..seq, else
        RW_ERR_ARGUMENT when it runs; documents may be empty; places before the first and behind the last entry are
        padding, which sees nothing. seq and kv_seq are equal. Read on the device: the same plan serves any cuts. */
    rw_tensor *documents;
} rw_attention_options;

/**
 * rw_attention() with options: q [batch, heads, seq, d], k [batch, kv_heads, kv_seq, d], v [batch, kv_heads, kv_seq,
 * dv] -> [batch, heads, seq, dv]. No score matrix, no mask of one is made; blocks of keys that no query of a block sees
 * are left out. A query that sees nothing gives 0. What causal, window, documents or a mask (false, or minus infinity)
 * takes out has no effect, whatever it holds: infinity or NaN in a key's k or v changes no bit of the results and
 * gradients of queries that do not see it, nor one in a query's q or gradient those of keys that it does not see. That
 * does not hold for rw_grad(), and not for cuDNN's kernels (REWIND_SDPA=cudnn). Gradients: q, k, v, mask, sinks, of any
 * order; those of gradients (rw_grad()) have the scores in memory. On CUDA the kernels on the ordinary cores take it;
 * on a CPU results below the least normal number are 0.
 * @param options may be NULL; read during the call. A NULL among its tensors is left out: a failed op's error sticks.
 */
RW_API rw_tensor *rw_attention_with_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                                       const rw_attention_options *options);
#define rw_attention_with(...) rw_attention_with_at(RW_HERE, __VA_ARGS__)

/**
 * rw_attention_with() that hands out the logarithm of each row's sum of exponentials, too, sinks included.
 * @param ret_lse receives [batch, heads, seq] of float32 (float64 for float64), minus infinity where nothing is seen;
 *                it has a gradient. NULL on an error.
 */
RW_API rw_tensor *rw_attention_lse_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                                      const rw_attention_options *options, rw_tensor **ret_lse);
#define rw_attention_lse(...) rw_attention_lse_at(RW_HERE, __VA_ARGS__)

/**
 * Attention over two sets of keys from attention over each, as a ring of devices takes it together (Liu, Zaharia,
 * Abbeel, arXiv 2310.01889): a and b [..., d] by exp(lse - sum of both), a_lse and b_lse [...] of float32 (float64 for
 * float64) -> [..., d]. Rounded once. Where both see nothing, 0 and minus infinity.
 * @param ret_lse receives [...], the logarithm of both sums; may be NULL. NULL on an error.
 */
RW_API rw_tensor *rw_attention_merge_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *a_lse, rw_tensor *b,
                                        rw_tensor *b_lse, rw_tensor **ret_lse);
#define rw_attention_merge(...) rw_attention_merge_at(RW_HERE, __VA_ARGS__)

/**
 * rw_rope() over the pairs (2i, 2i + 1), as DeepSeek's and GPT-J's weights have them, instead of (i, i + d/2).
 * x [batch, heads, seq, d], d even; positions [seq] of RW_I32, or RW_NONE for 0, 1, 2, ...; pair i turns by
 * position / base^(2i / d). Types, gradients and errors as for rw_rope().
 */
RW_API rw_tensor *rw_rope_interleaved_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *positions, double base);
#define rw_rope_interleaved(...) rw_rope_interleaved_at(RW_HERE, __VA_ARGS__)

/** Zero means the default in brackets; RW_ZERO means zero. */
typedef struct rw_rope_params {
    double base;            ///< above zero [10000]
    bool interleaved;       ///< pairs (2i, 2i + 1), [(i, i + d/2)]
    rw_tensor *frequencies; ///< [d/2], of a floating-point type: by what pair i turns from one position to the next
    double scale;           ///< of cos and sin, [1]
} rw_rope_params;

/**
 * rw_rope() by frequencies of one's own, for contexts longer than a model was trained for: divided by a factor (linear
 * scaling), of a larger base (NTK), blended from both (YaRN, arXiv 2309.00071, whose factor on cos and sin is `scale`),
 * or any table: `inv_freq` and `attention_scaling` of Hugging Face's models. They are read in float32 (float64 for
 * float64), angles are taken in double; no gradient flows into them. NULL or RW_NONE: base^(-2i / d).
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
