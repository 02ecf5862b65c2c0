/*
 * Digests of device memory: every 8-byte word is mixed with its place, and the mixed words are added up. Sums of
 * integers do not depend on their order, so blocks add with atomics. For finding bytes that differ by accident, not by
 * malice. Mixing: the finalizers of SplitMix64 and MurmurHash3.
 */
#include "device/cuda/digest.h"
#include "device/cuda/kernel.cuh"

#include <cstring>

namespace {

constexpr int THREADS = 256;
constexpr int64_t BLOCK_WORDS = 16384;

__device__ uint64_t mix_a(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

__device__ uint64_t mix_b(uint64_t x)
{
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

/* Word i of the bytes, whatever their alignment; the last one is filled up with zeros. */
__device__ uint64_t word_at(const unsigned char *data, int64_t i, int64_t bytes)
{
    uint64_t word = 0;
    if (!(reinterpret_cast<uintptr_t>(data) & 7) && 8 * i + 8 <= bytes)
        return reinterpret_cast<const uint64_t *>(data)[i];
    for (int64_t j = 8 * i; j < 8 * i + 8 && j < bytes; j++)
        word |= static_cast<uint64_t>(data[j]) << (8 * (j - 8 * i));
    return word;
}

__global__ void digest_kernel(const unsigned char *data, int64_t bytes, unsigned long long *sums)
{
    __shared__ uint64_t shared[32];
    const int64_t words = (bytes + 7) / 8, from = static_cast<int64_t>(blockIdx.x) * BLOCK_WORDS;
    uint64_t a = 0, b = 0;
    for (int64_t i = from + threadIdx.x; i < words && i < from + BLOCK_WORDS; i += THREADS) {
        const uint64_t word = word_at(data, i, bytes), place = static_cast<uint64_t>(i + 1);
        a += mix_a(word + place * 0x9e3779b97f4a7c15u);
        b += mix_b(word ^ mix_a(place));
    }
    a = block_sum(a, shared);
    b = block_sum(b, shared);
    if (threadIdx.x) return;
    atomicAdd(&sums[0], static_cast<unsigned long long>(a));
    atomicAdd(&sums[1], static_cast<unsigned long long>(b));
}

} // namespace

extern "C" cudaError_t rw_cuda_digest(struct rw_cuda *cuda, const void *data, size_t bytes, uint64_t ret[2])
{
    rw_kernel k;
    memset(&k, 0, sizeof k);
    k.device = cuda;
    k.stream = cuda->stream;
    unsigned long long *const sums = static_cast<unsigned long long *>(cuda->digest_sums);
    cudaError_t error = cudaMemsetAsync(sums, 0, 2 * sizeof *sums, cuda->stream);
    if (!error && bytes)
        RW_LAUNCH(digest_kernel, blocks_for(static_cast<int64_t>(bytes), 8 * BLOCK_WORDS), THREADS, 0, &k,
                  static_cast<const unsigned char *>(data), static_cast<int64_t>(bytes), sums);
    if (!error) error = cudaPeekAtLastError();
    if (!error) error = cudaMemcpyAsync(ret, sums, 2 * sizeof *sums, cudaMemcpyDeviceToHost, cuda->stream);
    if (!error) error = cudaStreamSynchronize(cuda->stream);
    return error;
}
