/* Kernel launches, copies and fills: checked when they are called, run when their stream reaches them. */
#include "cudasim_device.h"
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

#include <map>

namespace cudasim {

cudaError_t (*kernel_runner)(const kernel_launch &k) = run_kernel;

static std::map<const void *, int> dynamic_limits; /* kernels with a limit above 48 KiB */
static long limit_changes;

static cudaError_t check_launch(const void *function, dim3 g, dim3 b, size_t shared)
{
    const uint64_t threads = static_cast<uint64_t>(b.x) * b.y * b.z;
    if (!g.x || !g.y || !g.z || !threads || g.x > 2147483647u || g.y > 65535 || g.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (b.x > 1024 || b.y > 1024 || b.z > 64 || threads > 1024) return cudaErrorInvalidConfiguration;
    size_t limit = 227 << 10;
    if (function) {
        const auto own = dynamic_limits.find(function);
        limit = own == dynamic_limits.end() ? 48 << 10 : static_cast<size_t>(own->second);
    }
    return shared > limit ? cudaErrorInvalidValue : cudaSuccess;
}

static cudaError_t run(const std::shared_ptr<kernel_launch> &k)
{
    if (const cudaError_t e = kernel_fault()) return e;
    device_access access;
    return kernel_runner(*k);
}

void pack_parameter(std::vector<char> &all, const void *p, size_t size, size_t align)
{
    all.resize((all.size() + align - 1) / align * align);
    all.insert(all.end(), static_cast<const char *>(p), static_cast<const char *>(p) + size);
}

void launch(const char *name, const void *function, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
            std::function<void()> thread, std::vector<char> parameters)
{
    entry here("launch");
    if (here.refused()) return (void)here.give(here.refused());
    if (!is_here(stream)) return (void)here.give(cudaErrorInvalidResourceHandle);
    if (const cudaError_t e = check_launch(function, grid, block, shared)) return (void)here.give(e);
    auto k = std::make_shared<kernel_launch>(
        kernel_launch{ name, function, grid, block, shared, std::move(thread), std::move(parameters) });
    here.give(enqueue(stream, cudaGraphNodeTypeKernel, [k] { return run(k); }));
}

/* 1: device, 0: host, -1: neither contains the whole range */
static int side(const void *ptr, size_t size)
{
    if (is_in_device_region(ptr)) return is_device(ptr, size) ? 1 : -1;
    return 0;
}

static cudaError_t check_copy(const void *dst, const void *src, size_t size, cudaMemcpyKind kind)
{
    if (kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (!size) return cudaSuccess;
    const int to = side(dst, size), from = side(src, size);
    if (!dst || !src || to < 0 || from < 0) return cudaErrorInvalidValue;
    if (kind == cudaMemcpyDefault) return cudaSuccess;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    /* Pinned memory has device addresses as well. */
    if (to_device != (to == 1) && !(to_device && is_pinned(dst, size))) return cudaErrorInvalidValue;
    if (from_device != (from == 1) && !(from_device && is_pinned(src, size))) return cudaErrorInvalidValue;
    return cudaSuccess;
}

static bool is_pageable(const void *ptr, size_t size)
{
    return !is_in_device_region(ptr) && !is_pinned(ptr, size);
}

/*
 * As the runtime promises: from pageable memory the bytes are read before the call returns; to pageable memory the call
 * returns when they have arrived. Between pinned and device memory nothing is promised before a synchronization.
 */
static cudaError_t copy(void *dst, const void *src, size_t size, cudaMemcpyKind kind, cudaStream_t stream, bool wait)
{
    if (const cudaError_t e = check_copy(dst, src, size, kind)) return e;
    if (!size) return cudaSuccess;
    const bool captured = is_capturing(stream);
    std::shared_ptr<char> staged;
    if (!captured && is_pageable(src, size)) {
        staged.reset(static_cast<char *>(malloc(size)), free);
        memcpy(staged.get(), src, size);
    }
    work_ptr queued;
    const cudaError_t e = enqueue(stream, cudaGraphNodeTypeMemcpy, [=] {
        device_access access;
        memmove(dst, staged ? staged.get() : src, size);
        return cudaSuccess;
    }, &queued);
    if (e) return e;
    if (queued && (wait || is_pageable(dst, size))) finish(queued);
    return broken;
}

static cudaError_t fill(void *ptr, int value, size_t count, cudaStream_t stream)
{
    if (!count) return cudaSuccess;
    if (!is_device(ptr, count) && !is_pinned(ptr, count)) return cudaErrorInvalidValue;
    return enqueue(stream, cudaGraphNodeTypeMemset, [=] {
        device_access access;
        memset(ptr, value, count);
        return cudaSuccess;
    });
}

cudaError_t copy_symbol(void *symbol, size_t size, void *other, size_t count, size_t offset, bool to_symbol)
{
    entry here(to_symbol ? "cudaMemcpyToSymbol" : "cudaMemcpyFromSymbol");
    if (here.refused()) return here.give(here.refused());
    if (!other || offset > size || count > size - offset) return here.give(cudaErrorInvalidValue);
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    finish_all();
    char *at = static_cast<char *>(symbol) + offset;
    if (to_symbol) memcpy(at, other, count);
    else memcpy(other, at, count);
    return here.give(broken);
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUDASIM_ENTER;
    return here.give(copy(dst, src, count, kind, stream, false));
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
    CUDASIM_ENTER;
    if (const cudaError_t e = refuse_legacy()) return here.give(e);
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    const bool between_devices = is_in_device_region(dst) && is_in_device_region(src);
    return here.give(copy(dst, src, count, kind, cudaStreamLegacy, !between_devices));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUDASIM_ENTER;
    if (width > dpitch || width > spitch) return here.give(cudaErrorInvalidPitchValue);
    for (size_t row = 0; row < height; row++) {
        const cudaError_t e = copy(static_cast<char *>(dst) + row * dpitch,
                                   static_cast<const char *>(src) + row * spitch, width, kind, stream, false);
        if (e) return here.give(e);
    }
    return cudaSuccess;
}

cudaError_t cudaMemset(void *ptr, int value, size_t count)
{
    CUDASIM_ENTER;
    if (const cudaError_t e = refuse_legacy()) return here.give(e);
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    return here.give(fill(ptr, value, count, cudaStreamLegacy));
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t count, cudaStream_t stream)
{
    CUDASIM_ENTER;
    return here.give(fill(ptr, value, count, stream));
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attr, int value)
{
    CUDASIM_ENTER;
    if (!function) return here.give(cudaErrorInvalidDeviceFunction);
    if (attr == cudaFuncAttributePreferredSharedMemoryCarveout)
        return here.give(value > 100 || value < -1 ? cudaErrorInvalidValue : cudaSuccess);
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > 227 << 10)
        return here.give(cudaErrorInvalidValue);
    const auto known = dynamic_limits.find(function);
    limit_changes += known != dynamic_limits.end() && known->second != value;
    dynamic_limits[function] = value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    CUDASIM_ENTER;
    if (!attributes) return here.give(cudaErrorInvalidValue);
    if (!function) return here.give(cudaErrorInvalidDeviceFunction);
    memset(attributes, 0, sizeof *attributes);
    const auto own = dynamic_limits.find(function);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = config.major * 10 + config.minor;
    attributes->maxDynamicSharedSizeBytes = own == dynamic_limits.end() ? 48 << 10 : own->second;
    attributes->preferredShmemCarveout = -1;
    return cudaSuccess;
}

/* By threads and shared memory, for a kernel with 32 registers. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                          size_t shared)
{
    CUDASIM_ENTER;
    if (!blocks || block_size < 1 || block_size > 1024) return here.give(cudaErrorInvalidValue);
    if (!function) return here.give(cudaErrorInvalidDeviceFunction);
    const size_t by_shared = (228 << 10) / (shared + (1 << 10)),
                 by_threads = 2048 / static_cast<size_t>((block_size + 31) & ~31);
    size_t n = by_threads < 32 ? by_threads : 32;
    if (by_shared < n) n = by_shared;
    *blocks = shared > 227 << 10 ? 0 : static_cast<int>(n);
    return cudaSuccess;
}

long cudasim_limit_changes(void)
{
    return limit_changes;
}

} // extern "C"
