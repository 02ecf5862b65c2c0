/* A convolution layer, and the descriptions of its three products for cuDNN. */
#ifndef DEVICE_CONV_LAYER_FIXTURE_H
#define DEVICE_CONV_LAYER_FIXTURE_H

#include "device/cuda/cudnn/conv_signature.h"

#include <rewind/rewind.h>

struct layer {
    int64_t n, c, h, w, oc, k, stride, padding, dilation, groups;
};

/* The signature by which the library identifies a product of this layer. */
static inline struct rw_dnn_conv_signature signature_of(const struct layer *l, rw_dtype dtype,
                                                        enum rw_dnn_conv_kind kind, bool bias)
{
    const int64_t reach = l->dilation * (l->k - 1) + 1;
    return (struct rw_dnn_conv_signature){ .n = l->n,
                                           .h = l->h,
                                           .w = l->w,
                                           .c = l->c,
                                           .oh = (l->h + 2 * l->padding - reach) / l->stride + 1,
                                           .ow = (l->w + 2 * l->padding - reach) / l->stride + 1,
                                           .oc = l->oc,
                                           .kh = l->k,
                                           .kw = l->k,
                                           .stride = { l->stride, l->stride },
                                           .padding = { l->padding, l->padding },
                                           .dilation = { l->dilation, l->dilation },
                                           .groups = l->groups,
                                           .dtype = (int32_t)dtype,
                                           .kind = (int32_t)kind,
                                           .bias = bias };
}

#endif
