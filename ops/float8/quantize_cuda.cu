/*
 * CUDA kernels of quantize and dequantize. With one scale per tensor there are three: amax by parts, the scale, the
 * encoding; if the scale is given, the first one encodes. With block scales there is one: a group of threads, a warp or
 * a block, reads its elements, reduces their amax, and encodes them.
 */
/* machine_code.py: (part|codes|block|decode)_kernel<.*>: elements side by side, a byte of each */
/* machine_code.py: (note|scale)_kernel: one block */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/float8/fp8_scaling_ops.h"
#include "ops/float8/quantize.h"
}

namespace {

constexpr int THREADS = 256, WARP = 32;
constexpr int BATCH = 64; /* counts per launch, limited by the size of kernel arguments */

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The maximum over a block of THREADS threads, in all of them. */
__device__ __forceinline__ uint32_t largest_of_block(uint32_t m)
{
    __shared__ uint32_t of_warp[THREADS / WARP];
    for (int d = WARP / 2; d; d /= 2) m = larger(m, __shfl_xor_sync(0xffffffffu, m, d));
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = m;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++) m = larger(m, of_warp[w]);
    return m;
}

__device__ __forceinline__ unsigned sum_of_warp(unsigned n)
{
    for (int d = WARP / 2; d; d /= 2) n += __shfl_xor_sync(0xffffffffu, n, d);
    return n;
}

/* The counts of a thread (enum rw_codes_number); all threads of a warp add them to counts, if that is not null. They
   are integers, so the order does not matter. */
struct counted {
    unsigned saturated, flushed, elements;

    __device__ __forceinline__ void see(float x, float by, uint8_t code, bool e5m2)
    {
        saturated += rw_codes_saturate(x, by, e5m2);
        flushed += rw_codes_flush(x, code);
        elements++;
    }

    __device__ __forceinline__ void add_to(unsigned long long *counts) const
    {
        const unsigned s = sum_of_warp(saturated), f = sum_of_warp(flushed), e = sum_of_warp(elements);
        if (threadIdx.x % WARP) return;
        if (s) atomicAdd(counts + RW_CODES_SATURATED, static_cast<unsigned long long>(s));
        if (f) atomicAdd(counts + RW_CODES_FLUSHED, static_cast<unsigned long long>(f));
        if (e) atomicAdd(counts + RW_CODES_ELEMENTS, static_cast<unsigned long long>(e));
    }
};

__device__ __forceinline__ void count_scale(uint32_t amax, float by, unsigned long long *counts)
{
    atomicMax(counts + RW_CODES_AMAX, static_cast<unsigned long long>(amax));
    if (!rw_codes_have_scale(amax)) return;
    atomicMax(counts + RW_CODES_MIN, static_cast<unsigned long long>(UINT32_MAX - rw_f8_bits(by)));
    atomicMax(counts + RW_CODES_MAX, static_cast<unsigned long long>(rw_f8_bits(by)));
}

/* given: s, or null. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    part_kernel(const T *x, uint32_t *part, int64_t n, const float *given, uint8_t *y, bool e5m2,
                unsigned long long *counts)
{
    const int64_t from = static_cast<int64_t>(blockIdx.x) * RW_QUANTIZE_PART;
    const int64_t to = from + RW_QUANTIZE_PART < n ? from + RW_QUANTIZE_PART : n;
    const float by = given ? *given : 0;
    counted met = {};
    uint32_t m = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += THREADS) {
        const float v = widen(x[i]);
        m = larger(m, rw_f8_magnitude(v));
        if (!given) continue;
        const uint8_t code = rw_f8_encode(v * by, e5m2);
        if (counts) met.see(v, by, code, e5m2);
        y[i] = code;
    }
    if (counts) met.add_to(counts);
    m = largest_of_block(m);
    if (threadIdx.x == 0) part[blockIdx.x] = m;
}

/* given: s, or null. The factor of elements is stored after the parts. */
__global__ void __launch_bounds__(THREADS)
    scale_kernel(uint32_t *part, int64_t parts, const float *given, bool e5m2, bool power_of_two, float *scale,
                 float *amax, unsigned long long *counts)
{
    uint32_t m = 0;
    for (int64_t p = threadIdx.x; p < parts; p += THREADS) m = larger(m, part[p]);
    m = largest_of_block(m);
    if (threadIdx.x) return;
    const float by = given ? *given : rw_f8_scale_of_amax(m, e5m2, power_of_two);
    *scale = 1 / by;
    *amax = rw_f8_float(m);
    part[parts] = rw_f8_bits(by);
    if (counts) count_scale(m, by, counts);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    codes_kernel(const T *x, const uint32_t *by, uint8_t *y, int64_t n, bool e5m2, unsigned long long *counts)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    counted met = {};
    if (i < n) {
        const float v = widen(x[i]), s = rw_f8_float(*by);
        const uint8_t code = rw_f8_encode(v * s, e5m2);
        if (counts) met.see(v, s, code, e5m2);
        y[i] = code;
    }
    if (counts) met.add_to(counts);
}

struct block_args {
    rw_scales s;
    uint8_t *codes, *powers; /* powers: scales of MX, else null */
    float *scales, *amax;
    bool e5m2, power_of_two;
    unsigned long long *counts; /* null: not requested */
};

/* G threads for a block of elements that share a scale. */
template <typename T, int G>
__global__ void __launch_bounds__(THREADS) block_kernel(const T *x, const block_args a)
{
    const int64_t block = static_cast<int64_t>(blockIdx.x) * (THREADS / G) + threadIdx.x / G;
    const int t = threadIdx.x % G;
    const bool is = block < a.s.down * a.s.across;
    const int64_t row = is ? block / a.s.across * a.s.high : 0, column = is ? block % a.s.across * a.s.wide : 0;
    const int64_t high = !is ? 0 : a.s.high < a.s.rows - row ? a.s.high : a.s.rows - row;
    const int64_t wide = a.s.wide < a.s.columns - column ? a.s.wide : a.s.columns - column;
    uint32_t m = 0;
    for (int64_t i = t; i < high * wide; i += G)
        m = larger(m, rw_f8_magnitude(widen(x[(row + i / wide) * a.s.columns + column + i % wide])));
    if (G == WARP) {
        for (int d = WARP / 2; d; d /= 2) m = larger(m, __shfl_xor_sync(0xffffffffu, m, d));
    } else {
        m = largest_of_block(m);
    }
    counted met = {};
    const uint8_t power = rw_e8m0_of_amax(m, a.e5m2);
    const float by = a.powers ? rw_e8m0_inverse(power) : rw_f8_scale_of_amax(m, a.e5m2, a.power_of_two);
    for (int64_t i = t; i < high * wide; i += G) {
        const int64_t at = (row + i / wide) * a.s.columns + column + i % wide;
        const float v = widen(x[at]);
        const uint8_t code = rw_f8_encode(v * by, a.e5m2);
        if (a.counts) met.see(v, by, code, a.e5m2);
        a.codes[at] = code;
    }
    if (a.counts) met.add_to(a.counts);
    if (t || !is) return;
    if (a.counts) count_scale(m, by, a.counts);
    if (a.powers) a.powers[block] = power;
    else a.scales[block] = 1 / by;
    a.amax[block] = rw_f8_float(m);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    decode_kernel(const uint8_t *x, const void *scales, T *y, const rw_scales s, bool whole, bool mx, bool e5m2)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= s.rows * s.columns) return;
    const int64_t block = whole ? 0 : i / s.columns / s.high * s.across + i % s.columns / s.wide;
    const float scale = mx ? rw_e8m0_decode(static_cast<const uint8_t *>(scales)[block])
                           : static_cast<const float *>(scales)[block];
    y[i] = narrow<T>(rw_f8_decode(x[i], e5m2) * scale);
}

struct counts_batch {
    const unsigned long long *counts[BATCH];
    uint32_t row[BATCH];
    int32_t n;
};

/* One thread for each; two may add to the same row. */
__global__ void __launch_bounds__(BATCH) note_kernel(const __grid_constant__ counts_batch b, unsigned long long *noted)
{
    const int i = static_cast<int>(threadIdx.x);
    if (i >= b.n) return;
    const unsigned long long *const own = b.counts[i];
    unsigned long long *const to = noted + static_cast<int64_t>(b.row[i]) * RW_CODES_NUMBERS;
    for (int j = 0; j <= RW_CODES_MAX; j++) atomicMax(to + j, own[j]);
    for (int j = RW_CODES_SATURATED; j < RW_CODES_NUMBERS; j++) atomicAdd(to + j, own[j]);
}

unsigned long long *counts_of(const rw_kernel *k)
{
    return k->n_outputs > 3 ? static_cast<unsigned long long *>(k->out[3].data) : nullptr;
}

template <typename F> void with_narrow_type(rw_dtype dtype, F f)
{
    if (dtype == RW_BF16) f(bf16());
    else if (dtype == RW_F16) f(f16());
    else f(float());
}

/* Launches the kernels of one scale per tensor. */
template <typename T> void quantize_tensor(const rw_kernel *k, const rw_quantize_attrs *a)
{
    const T *const x = static_cast<const T *>(k->in[0].data);
    const int64_t n = k->in[0].layout->numel, parts = rw_quantize_parts(n);
    const bool e5m2 = k->out[0].dtype == RW_F8_E5M2;
    uint32_t *const part = static_cast<uint32_t *>(k->workspace);
    const float *const given = k->n_inputs == 2 ? static_cast<const float *>(k->in[1].data) : nullptr;
    uint8_t *const y = static_cast<uint8_t *>(k->out[0].data);
    unsigned long long *const counts = counts_of(k);
    if (n) RW_LAUNCH(part_kernel<T>, static_cast<unsigned>(parts), THREADS, 0, k, x, part, n, given, y, e5m2,
                     counts);
    RW_LAUNCH(scale_kernel, 1, THREADS, 0, k, part, parts, given, e5m2, a->power_of_two != 0,
              static_cast<float *>(k->out[1].data), static_cast<float *>(k->out[2].data), counts);
    if (n && !given)
        RW_LAUNCH(codes_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k, x, part + parts, y, n, e5m2, counts);
}

template <typename T> void quantize_blocks(const rw_kernel *k, const rw_quantize_attrs *a)
{
    const bool mx = a->scaling == RW_SCALING_MX;
    block_args b = { rw_scales_of(k->in[0].layout, a->scaling), static_cast<uint8_t *>(k->out[0].data),
                     mx ? static_cast<uint8_t *>(k->out[1].data) : nullptr, static_cast<float *>(k->out[1].data),
                     static_cast<float *>(k->out[2].data), k->out[0].dtype == RW_F8_E5M2, a->power_of_two != 0,
                     counts_of(k) };
    const T *const x = static_cast<const T *>(k->in[0].data);
    const int64_t blocks = b.s.down * b.s.across;
    if (!blocks) return;
    if (b.s.high == 1) RW_LAUNCH((block_kernel<T, WARP>), blocks_for(blocks, THREADS / WARP), THREADS, 0, k, x, b);
    else RW_LAUNCH((block_kernel<T, THREADS>), static_cast<unsigned>(blocks), THREADS, 0, k, x, b);
}

} // namespace

extern "C" rw_status rw_quantize_cuda(const rw_kernel *k)
{
    const rw_quantize_attrs *const a = static_cast<const rw_quantize_attrs *>(k->attrs);
    if (unsigned long long *const counts = counts_of(k)) {
        const cudaError_t cleared = cudaMemsetAsync(counts, 0, RW_CODES_NUMBERS * sizeof *counts, rw_stream(k));
        if (cleared) return rw_cuda_status(static_cast<rw_cuda *>(k->device), cleared, "cudaMemsetAsync");
    }
    with_narrow_type(k->in[0].dtype, [&](auto x) {
        if (a->scaling == RW_SCALING_TENSOR) quantize_tensor<decltype(x)>(k, a);
        else quantize_blocks<decltype(x)>(k, a);
    });
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_note_counts_cuda(const rw_kernel *k)
{
    const uint32_t *const row = static_cast<const uint32_t *>(k->attrs);
    unsigned long long *const noted = static_cast<unsigned long long *>(k->out[0].data);
    for (int i = 0; i < k->n_inputs - 1;) {
        counts_batch b = {};
        for (; b.n < BATCH && i < k->n_inputs - 1; i++) {
            b.counts[b.n] = static_cast<const unsigned long long *>(k->in[i].data);
            b.row[b.n++] = row[i];
        }
        RW_LAUNCH(note_kernel, 1, BATCH, 0, k, b, noted);
    }
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_dequantize_cuda(const rw_kernel *k)
{
    const rw_quantize_attrs *const a = static_cast<const rw_quantize_attrs *>(k->attrs);
    const rw_scales s = rw_scales_of(k->in[0].layout, a->scaling);
    const int64_t n = k->in[0].layout->numel;
    with_narrow_type(k->out[0].dtype, [&](auto y) {
        using T = decltype(y);
        if (n)
            RW_LAUNCH(decode_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k,
                      static_cast<const uint8_t *>(k->in[0].data), k->in[1].data, static_cast<T *>(k->out[0].data), s,
                      a->scaling == RW_SCALING_TENSOR, a->scaling == RW_SCALING_MX, k->in[0].dtype == RW_F8_E5M2);
    });
    return rw_cuda_launched(k);
}
