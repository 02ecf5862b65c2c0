/* CUDA kernels of embedding_bag_offsets and embedding_bag_argmax. */
/* machine_code.py: number_kernel: a search through a few numbers */
/* machine_code.py: argmax_kernel<.*>: a search through rows: limited by comparisons */
#include "ops/common/elementwise_map.cuh"

#include "ops/select/embedding_bag.h"
#include "ops/select/top.h"

namespace {

constexpr int THREADS = 256;

/* One thread per place of the index, and per offset. With invalid offsets the numbers are still those of existing bags,
   so ops that read them stay within their memory. */
__global__ void __launch_bounds__(THREADS)
    number_kernel(const int32_t *offset, int32_t *number, int64_t given, const __grid_constant__ rw_bags_attrs a,
                  index_guard guard)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < given && !rw_bags_offset_fits(&a, offset, i, given)) guard.report();
    if (i >= a.places) return;
    int64_t low = 0, high = given - a.ends; /* the first bag that begins after the place is between them */
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (offset[middle] <= i) low = middle + 1;
        else high = middle;
    }
    number[i] = static_cast<int32_t>(low ? low - 1 : 0);
}

struct argmax_args {
    rw_bags_attrs bags;
    int64_t given, n, width; /* offsets, bags, columns */
};

__device__ __forceinline__ int64_t within(int64_t i, int64_t places)
{
    return i < 0 ? 0 : i < places ? i : places;
}

/* One thread per column of a bag: adjacent threads read adjacent elements. The first thread of a bag stores whether it
   is empty, even if there are no columns. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    argmax_kernel(const T *x, const int32_t *offset, const uint8_t *kept, int32_t *place, uint8_t *empty,
                  const __grid_constant__ argmax_args a, index_guard guard)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, across = a.width ? a.width : 1;
    if (i < a.given && !rw_bags_offset_fits(&a.bags, offset, i, a.given)) guard.report();
    if (i >= a.n * across) return;
    const int64_t b = i / across, column = i - b * across;
    const int64_t end = within(b + 1 < a.given ? offset[b + 1] : a.bags.places, a.bags.places);
    double best = 0;
    int32_t at = -1;
    for (int64_t p = within(offset[b], a.bags.places); p < end; p++) {
        if (kept && !kept[p]) continue;
        const double v = a.width ? static_cast<double>(widen(x[p * a.width + column])) : 0;
        if (at >= 0 && !rw_comes_before(v, p, best, at)) continue;
        best = v;
        at = static_cast<int32_t>(p);
    }
    if (a.width) place[i] = at < 0 ? 0 : at;
    if (!column) empty[b] = at < 0;
}

} // namespace

extern "C" rw_status rw_bags_cuda(const rw_kernel *k)
{
    const rw_bags_attrs *const a = static_cast<const rw_bags_attrs *>(k->attrs);
    const int64_t given = k->in[0].layout->numel, n = given > a->places ? given : a->places;
    if (!n) return RW_OK;
    RW_LAUNCH(number_kernel, blocks_for(n, THREADS), THREADS, 0, k, static_cast<const int32_t *>(k->in[0].data),
              static_cast<int32_t *>(k->out[0].data), given, *a, guard_of(k));
    return rw_cuda_launched(k);
}

/* Launches embedding_bag_argmax for the type of the rows. */
extern "C" rw_status rw_bags_argmax_cuda(const rw_kernel *k)
{
    argmax_args a = { *static_cast<const rw_bags_attrs *>(k->attrs), k->in[1].layout->numel, 0,
                      k->in[0].layout->dim[1] };
    a.n = a.given - a.bags.ends;
    const int64_t threads = a.n * (a.width ? a.width : 1), n = a.given > threads ? a.given : threads;
    if (!n) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(argmax_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<const int32_t *>(k->in[1].data),
                  rw_kernel_has(k, 2) ? static_cast<const uint8_t *>(k->in[2].data) : nullptr,
                  static_cast<int32_t *>(k->out[0].data), static_cast<uint8_t *>(k->out[1].data), a, guard_of(k));
        return rw_cuda_launched(k);
    });
}
