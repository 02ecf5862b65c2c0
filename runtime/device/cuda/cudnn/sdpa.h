/*
 * cuDNN's fused attention for the CUDA kernels, pinned. It is optional: where the library is not installed, does not
 * take a signature or needs too much workspace, attention uses its own kernels.
 *
 * Off unless REWIND_SDPA=cudnn when the context is created. The library is opened at the first query. Engine and knobs
 * are chosen once per signature and kept for the life of the context (execution_plan_cache.h). The backward is the form
 * that is deterministic on compute capability 9.0: dQ is written by one product, nothing is added up in memory. Its
 * workspace grows with the product of the sequence lengths in cuDNN 9.19, hence the limit; a batch that needs more, or
 * does not fit into the library's types (int32_batch_split.h), runs in equal pieces, one after the other.
 */
#ifndef RW_DEVICE_CUDA_CUDNN_SDPA_H
#define RW_DEVICE_CUDA_CUDNN_SDPA_H

#include "device/cuda/cuda.h"
#include "device/cuda/cudnn/sdpa_signature.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RW_SDPA_WORKSPACE_LIMIT ((size_t)256 << 20)
#define RW_SDPA_HEAD_MAX 256 /* widest head */

struct rw_sdpa;

/*
 * Fills in a signature from layouts. The forward's o is dense [batch, seq, heads, d], and o and dy are NULL. The
 * backward's o and dy are given as [batch, heads, seq, d].
 *
 * packed: dq, dk and dv are pieces of one buffer [batch, seq, heads + 2 kv_heads, d].
 *
 * Offsets do not count: an operand that is not aligned to 16 bytes must be copied before a run.
 * @return false if the library cannot take the operands: by type, head size, strides or dropout.
 */
bool rw_sdpa_describe(struct rw_sdpa_signature *ret, rw_dtype dtype, const rw_layout *q, const rw_layout *k,
                      const rw_layout *v, const rw_layout *o, const rw_layout *dy, bool packed, double scale,
                      bool causal, double dropout);

rw_status rw_sdpa_create(struct rw_sdpa **ret, struct rw_cuda *cuda);

void rw_sdpa_destroy(struct rw_sdpa **sdpa);

/*
 * Pins the implementation of a signature. Call it where the op's workspace is requested, which is outside of a graph's
 * capture. A failure that is not a refusal pins nothing, and the next call tries again.
 * @param ret_has  false if the library is not used: not requested, not installed, or without an engine within the
 * limit. This is final.
 * @param ret_workspace bytes that a run takes, aligned to 256.
 */
rw_status rw_sdpa_query(struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, bool *ret_has, size_t *ret_workspace);

/* Has rw_sdpa_query() pinned an engine for it? Does not query the library. */
bool rw_sdpa_has(const struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, size_t *ret_workspace);

/* Queue a run on the context's stream. RW_ERR_DEVICE if the pinned engine fails: nothing else is tried. */
rw_status rw_sdpa_forward(struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, const void *q, const void *k,
                          const void *v, void *o, void *stats, void *workspace, size_t workspace_bytes);
rw_status rw_sdpa_backward(struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, const void *q, const void *k,
                           const void *v, const void *o, const void *stats, const void *dy, void *dq, void *dk,
                           void *dv, void *workspace, size_t workspace_bytes);

#ifdef __cplusplus
}
#endif

#endif
