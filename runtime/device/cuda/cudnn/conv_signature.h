/* The signature of one of the three products of a convolution, for which a cuDNN plan is pinned. C11, C++17. */
#ifndef RW_DEVICE_CUDA_CUDNN_CONV_SIGNATURE_H
#define RW_DEVICE_CUDA_CUDNN_CONV_SIGNATURE_H

#include <stdint.h>

/* In the order of enum rw_conv_kind (ops/conv/conv.h). */
enum rw_dnn_conv_kind { RW_DNN_CONV_FORWARD, RW_DNN_CONV_DATA, RW_DNN_CONV_WEIGHT };

/*
 * x [n, h, w, c] and y [n, oh, ow, oc] are dense, the weight is dense [oc, c / groups, kh, kw]; all aligned to 16
 * bytes. The kind says which of them are read and which is written. Keys are compared by bytes: there is no padding.
 */
struct rw_dnn_conv_signature {
    int64_t n, h, w, c, oh, ow, oc, kh, kw;
    int64_t stride[2], padding[2], dilation[2];
    int64_t groups;
    int32_t dtype;
    int32_t kind;
    int64_t bias; /* of a forward: is a bias [oc] added before the sum is rounded? */
};

#endif
