/* CUDA kernel of one_hot: one thread per element of the result. */
/* machine_code.py: one_hot_kernel<.*>: writes rows of zeros and one number */
#include "ops/common/elementwise_map.cuh"

#include "ops/select/one_hot.h"

namespace {

constexpr int THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(THREADS)
    one_hot_kernel(const int32_t *index, T *y, int64_t n, const __grid_constant__ map_divider classes, T one,
                   index_guard guard)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const int64_t row = static_cast<int64_t>(classes.quotient(static_cast<uint64_t>(i)));
    const int64_t place = i - row * static_cast<int64_t>(classes.d), wanted = index[row];
    if (place == 0 && (wanted < 0 || wanted >= static_cast<int64_t>(classes.d))) guard.report();
    y[i] = place == wanted ? one : T(0);
}

template <typename T> rw_status one_hot(const rw_kernel *k, int64_t classes)
{
    const int64_t n = k->out[0].layout->numel;
    if (!n) return RW_OK;
    map_divider d;
    d.set(classes);
    RW_LAUNCH(one_hot_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k, static_cast<const int32_t *>(k->in[0].data),
              static_cast<T *>(k->out[0].data), n, d, static_cast<T>(rw_one_bits(k->out[0].dtype)), guard_of(k));
    return rw_cuda_launched(k);
}

} // namespace

extern "C" rw_status rw_one_hot_cuda(const rw_kernel *k)
{
    const int64_t classes = static_cast<const rw_one_hot_attrs *>(k->attrs)->classes;
    switch (rw_dtype_size(k->out[0].dtype)) {
    case 1: return one_hot<uint8_t>(k, classes);
    case 2: return one_hot<uint16_t>(k, classes);
    case 4: return one_hot<uint32_t>(k, classes);
    default: return one_hot<uint64_t>(k, classes);
    }
}
