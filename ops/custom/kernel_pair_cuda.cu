/* rw_call() on CUDA: zeroes memory on the stream, then calls the caller's functions, which queue their work on it. */
#include "device/cuda/kernel.cuh"
#include "ops/custom/kernel_pair.h"

static rw_status clear(const rw_kernel *k, int i)
{
    const rw_view *const v = &k->out[i];
    if (!v->layout->numel) return RW_OK;
    const size_t bytes = static_cast<size_t>(v->layout->numel) * rw_dtype_size(v->dtype);
    const cudaError_t error = cudaMemsetAsync(v->data, 0, bytes, static_cast<cudaStream_t>(k->stream));
    return error == cudaSuccess ? RW_OK : RW_ERR_DEVICE;
}

extern "C" rw_status rw_call_forward_cuda(const rw_kernel *k)
{
    return rw_pair_forward(k, clear);
}

extern "C" rw_status rw_call_backward_cuda(const rw_kernel *k)
{
    return rw_pair_backward(k, clear);
}
