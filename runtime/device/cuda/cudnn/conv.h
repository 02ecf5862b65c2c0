/*
 * cuDNN's convolutions for the CUDA kernels, pinned. Never required: where the library is not installed or does not
 * take a signature, convolutions run the kernels of their own.
 *
 * Off unless REWIND_CONV=cudnn when the context is made. The library is opened at the first question. Each product is
 * one operation of the graph API, a forward with a bias two, on images that lie channels last and a weight as it lies
 * here. An engine is taken only without a note that says that its sums have no fixed order, are rounded in between, or
 * are of something else than the products (FFT, Winograd: there an error of one pixel reaches its neighbours); in
 * float32 also none that uses tensor cores, which there means TF32, unless the context allows it. The first that is
 * left and wants no more workspace than the limit is pinned for the life of the context (pins.h), and so is that there
 * is none. What is asked and in which order follows from what is recorded, so no policy changes it.
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
 * Pins the implementation of a signature. Call it where the op's workspace is asked for: that is outside a graph's
 * capture. A failure, which is not a refusal, pins nothing: it is asked again.
 * @param ret_has  false when the library is not used: not asked for, not there, or without an engine. So it stays.
 * @param ret_workspace bytes that a run takes, at 256 bytes.
 */
rw_status rw_dnn_conv_query(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, bool *ret_has,
                            size_t *ret_workspace);

/* Has rw_dnn_conv_query() pinned an engine for it? Asks nobody. */
bool rw_dnn_conv_has(const struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, size_t *ret_workspace);

/* Queues a run of what is pinned on the context's stream. RW_ERR_DEVICE when that fails: nothing else is tried. */
rw_status rw_dnn_conv_run(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, const void *x, const void *w,
                          const void *y, const void *bias, void *workspace, size_t workspace_bytes);

#ifdef __cplusplus
}
#endif

#endif
