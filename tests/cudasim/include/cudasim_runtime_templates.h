/* The typed C++ forms of runtime calls. */
#ifndef CUDASIM_RUNTIME_TEMPLATES_H
#define CUDASIM_RUNTIME_TEMPLATES_H

#include <cuda_runtime_api.h>

template <typename T> static inline cudaError_t cudaMalloc(T **ptr, size_t size)
{
    return cudaMalloc(reinterpret_cast<void **>(ptr), size);
}

template <typename T> static inline cudaError_t cudaMallocHost(T **ptr, size_t size)
{
    return cudaMallocHost(reinterpret_cast<void **>(ptr), size);
}

template <typename T> static inline cudaError_t cudaMallocAsync(T **ptr, size_t size, cudaStream_t stream)
{
    return cudaMallocAsync(reinterpret_cast<void **>(ptr), size, stream);
}

template <typename R, typename... P>
static inline cudaError_t cudaFuncSetAttribute(R (*f)(P...), cudaFuncAttribute attr, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(f), attr, value);
}

template <typename R, typename... P>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, R (*f)(P...))
{
    return cudaFuncGetAttributes(a, reinterpret_cast<const void *>(f));
}

template <typename R, typename... P>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, R (*f)(P...), int block,
                                                                        size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void *>(f), block, shared);
}

namespace cudasim {
cudaError_t copy_symbol(void *symbol, size_t size, void *other, size_t count, size_t offset, bool to_symbol);
}

template <typename T>
static inline cudaError_t cudaMemcpyToSymbol(const T &symbol, const void *src, size_t count, size_t offset = 0,
                                             cudaMemcpyKind = cudaMemcpyHostToDevice)
{
    return cudasim::copy_symbol(const_cast<void *>(static_cast<const void *>(&symbol)), sizeof symbol,
                                const_cast<void *>(src), count, offset, true);
}

template <typename T>
static inline cudaError_t cudaMemcpyFromSymbol(void *dst, const T &symbol, size_t count, size_t offset = 0,
                                               cudaMemcpyKind = cudaMemcpyDeviceToHost)
{
    return cudasim::copy_symbol(const_cast<void *>(static_cast<const void *>(&symbol)), sizeof symbol, dst, count,
                                offset, false);
}

#endif
