/*
 * cuDNN's convolutions for the CUDA kernels, pinned. They are optional: where the library is not installed or does not
 * take a signature, convolutions use their own kernels.
 *
 * Off unless REWIND_CONV=cudnn when the context is created. The library is opened at the first query. Each product is
 * one operation of the graph API, a forward with a bias two, on channels-last images and weights in our layout. An
 * engine is not used if a note says one of these: its sums have no fixed order; they are rounded in between; or they
 * are not of the products (FFT, Winograd, where an error of one pixel reaches its neighbors). For float32 it must not
 * use tensor cores, which there means TF32, unless the context allows it. The first remaining engine within the limit
 * of workspace is pinned for the life of the context (execution_plan_cache.h), or that there is none. The queries and
 * their order follow from what is recorded, so no policy changes them.
 *
 * A batch that does not fit into the library's types runs in parts, one after another (int32_batch_split.h).
 */
#ifndef RW_DEVICE_CUDA_CUDNN_CONV_H
#define RW_DEVICE_CUDA_CUDNN_CONV_H

#include "device/cuda/cuda.h"
#include "device/cuda/cudnn/conv_signature.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RW_DNN_CONV_WORKSPACE_LIMIT ((size_t)256 << 20)

struct rw_dnn_conv;

rw_status rw_dnn_conv_create(struct rw_dnn_conv **ret, struct rw_cuda *cuda);
void rw_dnn_conv_destroy(struct rw_dnn_conv **conv);

/*
 * Pins the implementation of a signature. Call it where the op's workspace is requested, which is outside of a graph's
 * capture. A failure that is not a refusal pins nothing, and the next call tries again.
 * @param ret_has  false if the library is not used: not requested, not installed, without an engine, or the convolution
 *                 does not fit into its types. This is final.
 * @param ret_workspace bytes that a run takes, at 256 bytes.
 */
rw_status rw_dnn_conv_query(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, bool *ret_has,
                            size_t *ret_workspace);

/* Has rw_dnn_conv_query() pinned an engine for it? Does not query the library. */
bool rw_dnn_conv_has(const struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, size_t *ret_workspace);

/* Queues a run of the pinned engine on the context's stream. RW_ERR_DEVICE if that fails: nothing else is tried. */
rw_status rw_dnn_conv_run(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, const void *x, const void *w,
                          const void *y, const void *bias, void *workspace, size_t workspace_bytes);

#ifdef __cplusplus
}
#endif

#endif
