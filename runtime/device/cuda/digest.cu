/*
 * Digests of device memory: every 8-byte word is mixed with its position, and the mixed words are added. Sums of
 * integers do not depend on their order, so blocks add with atomics. The digest detects accidental differences, not
 * malicious ones. Mixing: the finalizers of SplitMix64 and MurmurHash3.
 */
/* machine_code.py: (digest|compare)_kernel: verification */
#include "device/cuda/digest.h"
#include "device/cuda/kernel.cuh"

#include <cstring>

namespace {

constexpr int THREADS = 256; /* maximum; small inputs have fewer threads */
constexpr int EACH = 16;     /* words per thread of small inputs: sums of a block take longer than its reads */
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

/* Word i of the bytes, with any alignment; the last one is padded with zeros. */
__device__ uint64_t word_at(const unsigned char *data, int64_t i, int64_t bytes)
{
    uint64_t word = 0;
    if (!(reinterpret_cast<uintptr_t>(data) & 7) && 8 * i + 8 <= bytes)
        return reinterpret_cast<const uint64_t *>(data)[i];
    for (int64_t j = 8 * i; j < 8 * i + 8 && j < bytes; j++)
        word |= static_cast<uint64_t>(data[j]) << (8 * (j - 8 * i));
    return word;
}

/* A block sums its own words, and adds the result to the digest with atomics. */
__global__ void digest_kernel(const unsigned char *data, int64_t bytes, rw_digest *sum)
{
    __shared__ uint64_t shared[32];
    const int64_t words = (bytes + 7) / 8, from = static_cast<int64_t>(blockIdx.x) * BLOCK_WORDS;
    uint64_t a = 0, b = 0;
    for (int64_t i = from + threadIdx.x; i < words && i < from + BLOCK_WORDS; i += blockDim.x) {
        const uint64_t word = word_at(data, i, bytes), place = static_cast<uint64_t>(i + 1);
        a += mix_a(word + place * 0x9e3779b97f4a7c15u);
        b += mix_b(word ^ mix_a(place));
    }
    a = block_sum(a, shared);
    b = block_sum(b, shared);
    if (threadIdx.x) return;
    atomicAdd(reinterpret_cast<unsigned long long *>(&sum->lo), static_cast<unsigned long long>(a));
    atomicAdd(reinterpret_cast<unsigned long long *>(&sum->hi), static_cast<unsigned long long>(b));
}

__global__ void compare_kernel(const rw_digest *a, const rw_digest *b, uint32_t serial, rw_error_flags *words)
{
    if ((a->lo != b->lo || a->hi != b->hi) && !words->bad_comparison)
        words->bad_comparison = serial + 1;
}

/* Whole warps, and no warp without words. */
unsigned threads_for(size_t bytes)
{
    const size_t words = (bytes + 7) / 8, threads = (words + EACH - 1) / EACH;
    return threads < THREADS ? static_cast<unsigned>((threads + 31) / 32 * 32) : THREADS;
}

rw_kernel kernel_on(struct rw_cuda *cuda)
{
    rw_kernel k;
    memset(&k, 0, sizeof k);
    k.device = cuda;
    k.stream = cuda->stream;
    return k;
}

} // namespace

extern "C" cudaError_t rw_cuda_digest(struct rw_cuda *cuda, const void *data, size_t bytes, struct rw_digest *ret)
{
    const rw_kernel k = kernel_on(cuda);
    const cudaError_t error = cudaMemsetAsync(ret, 0, sizeof *ret, cuda->stream);
    if (error) return error;
    if (bytes)
        RW_LAUNCH(digest_kernel, blocks_for(static_cast<int64_t>(bytes), 8 * BLOCK_WORDS), threads_for(bytes), 0,
                  &k, static_cast<const unsigned char *>(data), static_cast<int64_t>(bytes), ret);
    return cudaPeekAtLastError();
}

extern "C" cudaError_t rw_cuda_compare_digests(struct rw_cuda *cuda, const struct rw_digest *a,
                                               const struct rw_digest *b, uint32_t serial,
                                               struct rw_error_flags *words)
{
    const rw_kernel k = kernel_on(cuda);
    RW_LAUNCH(compare_kernel, 1, 1, 0, &k, a, b, serial, words);
    return cudaPeekAtLastError();
}
