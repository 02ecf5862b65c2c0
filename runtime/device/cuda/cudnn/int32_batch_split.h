/*
 * Which operations fit into cuDNN's types, and in how large parts of the batch the others run.
 *
 * The graph API takes extents and strides in 64 bits. It does not document which of its engines count in 32, so no
 * number of an operation and no tensor in memory has more elements, from the first to the last, than an int32 holds.
 * Parts are cut from the batch alone: an operation of which one image or sequence does not fit runs in our own kernels,
 * and so does a weight's gradient, whose sum is over the whole batch. This is the one place that decides.
 */
#ifndef RW_DEVICE_CUDA_CUDNN_INT32_BATCH_SPLIT_H
#define RW_DEVICE_CUDA_CUDNN_INT32_BATCH_SPLIT_H

#include "device/cuda/cudnn/conv_signature.h"
#include "device/cuda/cudnn/sdpa_signature.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Returns the images of a part of a convolution, all of them if it fits; 0 if it has no parts. The last part may have
 * fewer. Parts begin at multiples of 16 bytes.
 * @param max_count maximum of each number, and of the elements of a tensor.
 */
int64_t rw_dnn_conv_part(const struct rw_dnn_conv_signature *s, int64_t max_count);

/* Does a part of attention, of so many of its batch, fit? */
bool rw_sdpa_fits(const struct rw_sdpa_signature *s, int64_t batch, int64_t max_count);

#endif
