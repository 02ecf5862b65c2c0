/* The signature of one attention, for which a cuDNN plan is pinned. C11, C++17. */
#ifndef RW_DEVICE_CUDA_CUDNN_SDPA_SIGNATURE_H
#define RW_DEVICE_CUDA_CUDNN_SDPA_SIGNATURE_H

#include <stdint.h>

/*
 * q [batch, heads, seq, d], k and v [batch, kv_heads, kv_seq, d], o and dy like q. Strides of the first three axes are
 * in elements; that of d is 1. dq, dk and dv are dense, or side by side in one buffer. Stats are the logarithms of the
 * rows' sums, float32 [batch, heads, seq], dense. Keys are compared by bytes: there is no padding.
 */
struct rw_sdpa_signature {
    int64_t batch, heads, kv_heads, seq, kv_seq, d;
    int64_t q[3], k[3], v[3], o[3], dy[3], dq[3], dk[3]; /* dv has the strides of dk */
    float scale;
    int32_t causal; /* query i sees keys up to i; seq and kv_seq are then equal */
    int32_t dtype;
    int32_t backward;
};

#endif
