/*
 * Kernels over all gradients of a context: a fixed number of blocks processes the chunks of all of them in turn.
 * Gradients are the last inputs of a node; absent ones are skipped.
 */
#ifndef RW_OPS_OPTIM_MULTI_TENSOR_APPLY_CUH
#define RW_OPS_OPTIM_MULTI_TENSOR_APPLY_CUH

#include "device/cuda/kernel.cuh"

namespace {

constexpr int GRADIENT_THREADS = 256;
constexpr int GRADIENT_BLOCKS = 1024; /* for any device */
constexpr int CHUNK = 8192;           /* elements of a chunk */
constexpr int BATCH = 64;             /* gradients per launch, limited by the size of kernel arguments */

struct gradient_batch {
    int32_t n;
    int64_t chunks;
    void *data[BATCH];
    int64_t numel[BATCH], end[BATCH]; /* end: number of chunks up to and including this gradient's */
    uint16_t input[BATCH];
    uint8_t dtype[BATCH];
};

/* Calls f(data, dtype, first element, elements) for each chunk of this block, in order. */
template <typename F> __device__ __forceinline__ void for_chunks(const gradient_batch &b, F f)
{
    int i = 0;
    for (int64_t c = blockIdx.x; c < b.chunks; c += gridDim.x) {
        while (b.end[i] <= c) i++;
        const int64_t from = (c - (i ? b.end[i - 1] : 0)) * CHUNK, rest = b.numel[i] - from;
        f(b.data[i], b.dtype[i], from, rest < CHUNK ? static_cast<int>(rest) : CHUNK);
    }
}

/* The gradients that are present, from input *next on, as many as fit. */
gradient_batch next_batch(const rw_kernel *k, int *next)
{
    gradient_batch b = {};
    for (; *next < k->n_inputs && b.n < BATCH; ++*next) {
        const rw_view &g = k->in[*next];
        if (!rw_kernel_has(k, *next)) continue;
        b.chunks += (g.layout->numel + CHUNK - 1) / CHUNK;
        b.data[b.n] = g.data;
        b.numel[b.n] = g.layout->numel;
        b.end[b.n] = b.chunks;
        b.input[b.n] = static_cast<uint16_t>(*next);
        b.dtype[b.n++] = static_cast<uint8_t>(g.dtype);
    }
    return b;
}

size_t chunks_of(const rw_layout *layout)
{
    return static_cast<size_t>((layout->numel + CHUNK - 1) / CHUNK);
}

/* A batch of one gradient. */
gradient_batch batch_of(const rw_view &g)
{
    gradient_batch b = {};
    b.n = 1;
    b.chunks = b.end[0] = static_cast<int64_t>(chunks_of(g.layout));
    b.data[0] = g.data;
    b.numel[0] = g.layout->numel;
    b.dtype[0] = static_cast<uint8_t>(g.dtype);
    return b;
}

} // namespace

#endif
