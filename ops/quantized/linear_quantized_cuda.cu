/*
 * CUDA kernels of products with quantized weights: a kernel decodes a panel of the weight, the product of rw_linear()
 * follows in the stream, then the next panel.
 */
/* machine_code.py: (nf4|int8)_kernel<.*>: codes of four and eight bits; writes a panel that the cache holds */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/matmul/matmul.h"
#include "ops/quantized/linear_quantized.h"
}

namespace {

constexpr int THREADS = 256, EACH = 8; /* elements of a thread, of one NF4 block */

__device__ const float nf4_numbers[] = { RW_NF4_NUMBERS };
__device__ const float dynamic_numbers[] = { RW_DYNAMIC_NUMBERS };

struct panel {
    const uint8_t *codes, *scales;
    const float *mean, *largest;
    int64_t in, row, from, cols, n; /* of the weight: columns, start of panel; of the panel: columns, all elements */
};

/* A thread decodes EACH consecutive elements: four bytes of NF4 data, one scale. */
template <typename T> __global__ void __launch_bounds__(THREADS) nf4_kernel(const panel p, T *to)
{
    __shared__ float numbers[16];
    if (threadIdx.x < 16) numbers[threadIdx.x] = nf4_numbers[threadIdx.x];
    __syncthreads();
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * EACH;
    if (i >= p.n) return;
    const int64_t at = (p.row + i / p.cols) * p.in + p.from + i % p.cols, block = at / RW_NF4_BLOCK;
    const float scale = dynamic_numbers[p.scales[block]] * p.largest[block / RW_NF4_GROUP] + *p.mean;
    const uint32_t codes = *reinterpret_cast<const uint32_t *>(p.codes + at / 2);
#pragma unroll
    for (int first = 0; first < EACH; first += pack<T>::size) {
        pack<T> x;
#pragma unroll
        for (int j = 0; j < pack<T>::size; j++) {
            const int n = first + j;
            const uint32_t code = codes >> (n / 2 * 8 + (n % 2 ? 0 : 4)) & 15;
            x.x[j] = narrow<T>(static_cast<wide<T>>(numbers[code] * scale));
        }
        store_global(to + i + first, x);
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) int8_kernel(const panel p, T *to)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= p.n) return;
    const int64_t row = p.row + i / p.cols, at = row * p.in + p.from + i % p.cols;
    const float code = static_cast<float>(static_cast<int8_t>(p.codes[at]));
    to[i] = narrow<T>(static_cast<wide<T>>(code * p.largest[row] * RW_INT8_STEP));
}

/* Decodes panel i, with the layout of the weight. */
void decode(const rw_kernel *k, const quantized_panels &p, int64_t i)
{
    const rw_linear_quantized_attrs *const a = static_cast<const rw_linear_quantized_attrs *>(k->attrs);
    const int64_t width = quantized_width(&p, i), first = i * p.width;
    panel x = {};
    const rw_quantized_parts parts = quantized_parts_of(a);
    x.codes = static_cast<const uint8_t *>(k->in[1].data);
    x.scales = x.codes + parts.scales;
    x.mean = reinterpret_cast<const float *>(x.codes + parts.mean);
    x.largest = reinterpret_cast<const float *>(x.codes + parts.largest);
    x.in = a->in;
    x.row = a->transposed ? 0 : first;
    x.from = a->transposed ? first : 0;
    x.cols = a->transposed ? width : p.depth;
    x.n = width * p.depth;
    if (!x.n) return;
    with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        T *const to = static_cast<T *>(k->workspace);
        if (a->kind == RW_NF4) RW_LAUNCH(nf4_kernel<T>, blocks_for(x.n / EACH, THREADS), THREADS, 0, k, x, to);
        else RW_LAUNCH(int8_kernel<T>, blocks_for(x.n, THREADS), THREADS, 0, k, x, to);
        return RW_OK;
    });
}

} // namespace

/* Decodes and multiplies panel by panel. */
extern "C" rw_status rw_linear_quantized_cuda(const rw_kernel *k)
{
    const rw_linear_quantized_attrs *const a = static_cast<const rw_linear_quantized_attrs *>(k->attrs);
    const rw_dtype dtype = k->in[0].dtype;
    const size_t size = rw_dtype_size(dtype);
    const quantized_panels p = quantized_panels_of(a, k->in[0].layout, dtype, QUANTIZED_PANEL_CUDA);
    for (int64_t i = 0; i < p.n; i++) {
        const rw_view *const b = k->n_inputs > 2 ? &k->in[2] : nullptr;
        const quantized_product q =
            quantized_product_of(&p, i, a->transposed != 0, k->in[0].layout, b ? b->layout : nullptr);
        const size_t first = static_cast<size_t>(q.first) * size;
        const rw_view in[] = { { k->in[0].data, &q.x, dtype }, { k->workspace, &q.weight, dtype },
                               { b ? static_cast<char *>(b->data) + first : nullptr, &q.bias, dtype } };
        const rw_view out = { static_cast<char *>(k->out[0].data) + first, k->out[0].layout, dtype };
        rw_kernel product = *k;
        product.in = in;
        product.out = &out;
        product.n_inputs = b ? 3 : 2;
        product.workspace = static_cast<char *>(k->workspace) + p.bytes;
        product.workspace_bytes = k->workspace_bytes - p.bytes;
        decode(k, p, i);
        const rw_status status = rw_linear_panel_cuda(&product, p.cols);
        if (status) return status;
    }
    return rw_cuda_launched(k);
}
