/* Pooling on CUDA: a thread for each element of the result, neighbours take neighbouring channels. See pool.h. */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/conv/pool.h"
}

namespace {

constexpr int THREADS = 256;

/* What rw_pool_inside() and rw_pool_over() say, on the device. */
struct range {
    int64_t from, to;
};

__device__ range inside(const rw_pool &p, int i, int64_t out)
{
    const int64_t begin = out * p.a.stride[i] - p.a.padding[i], end = begin + p.a.kernel[i], most = i ? p.w : p.h;
    return { begin < 0 ? 0 : begin, end < most ? end : most };
}

__device__ range over(const rw_pool &p, int i, int64_t in)
{
    const int64_t at = in + p.a.padding[i], first = at - p.a.kernel[i] + 1, most = i ? p.ow : p.oh;
    const int64_t last = at / p.a.stride[i] + 1;
    return { first <= 0 ? 0 : (first + p.a.stride[i] - 1) / p.a.stride[i], last < most ? last : most };
}

__device__ int64_t place_of(const rw_pool &p, int64_t oy, int64_t ox, int64_t y, int64_t x)
{
    return (y + p.a.padding[0] - oy * p.a.stride[0]) * p.a.kernel[1] + x + p.a.padding[1] - ox * p.a.stride[1];
}

template <typename W> __device__ W count_of(const rw_pool &p, int64_t oy, int64_t ox)
{
    if (!p.a.exclude) return static_cast<W>(p.a.kernel[0] * p.a.kernel[1]);
    const range y = inside(p, 0, oy), x = inside(p, 1, ox);
    return static_cast<W>((y.to - y.from) * (x.to - x.from));
}

/* The first of the largest; NaN is larger than anything. n: elements; words: of the places, the last one whole. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    max_kernel(const T *x, T *to, unsigned char *places, rw_pool p, int64_t n, int64_t bytes)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n && i < bytes) places[i] = 0;
    if (i >= n) return;
    const int64_t c = i % p.c, ox = i / p.c % p.ow, oy = i / p.c / p.ow % p.oh, image = i / p.c / p.ow / p.oh;
    const range ys = inside(p, 0, oy), xs = inside(p, 1, ox);
    wide<T> best = 0;
    int64_t place = -1;
    for (int64_t y = ys.from; y < ys.to; y++)
        for (int64_t z = xs.from; z < xs.to; z++) {
            const wide<T> v = widen(x[((image * p.h + y) * p.w + z) * p.c + c]);
            if (place >= 0 && !(v > best) && v == v) continue;
            best = v;
            place = place_of(p, oy, ox, y, z);
        }
    to[i] = narrow<T>(best);
    places[i] = static_cast<unsigned char>(place);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) avg_kernel(const T *x, T *to, rw_pool p, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t c = i % p.c, ox = i / p.c % p.ow, oy = i / p.c / p.ow % p.oh, image = i / p.c / p.ow / p.oh;
    const range ys = inside(p, 0, oy), xs = inside(p, 1, ox);
    wide<T> sum = 0;
    for (int64_t y = ys.from; y < ys.to; y++)
        for (int64_t z = xs.from; z < xs.to; z++) sum += widen(x[((image * p.h + y) * p.w + z) * p.c + c]);
    to[i] = narrow<T>(sum / count_of<wide<T>>(p, oy, ox));
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    pick_kernel(const T *x, const unsigned char *places, T *to, rw_pool p, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t c = i % p.c, ox = i / p.c % p.ow, oy = i / p.c / p.ow % p.oh, image = i / p.c / p.ow / p.oh;
    const int64_t y = oy * p.a.stride[0] - p.a.padding[0] + places[i] / p.a.kernel[1];
    const int64_t z = ox * p.a.stride[1] - p.a.padding[1] + places[i] % p.a.kernel[1];
    to[i] = x[((image * p.h + y) * p.w + z) * p.c + c];
}

/* places: of a maximum; NULL of an average. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    backward_kernel(const T *dy, const unsigned char *places, T *to, rw_pool p, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t c = i % p.c, z = i / p.c % p.w, y = i / p.c / p.w % p.h, image = i / p.c / p.w / p.h;
    const range ys = over(p, 0, y), xs = over(p, 1, z);
    wide<T> sum = 0;
    for (int64_t oy = ys.from; oy < ys.to; oy++)
        for (int64_t ox = xs.from; ox < xs.to; ox++) {
            const int64_t at = ((image * p.oh + oy) * p.ow + ox) * p.c + c;
            if (!places) sum += widen(dy[at]) / count_of<wide<T>>(p, oy, ox);
            else if (places[at] == place_of(p, oy, ox, y, z)) sum += widen(dy[at]);
        }
    to[i] = narrow<T>(sum);
}

template <typename F> rw_status run(const rw_kernel *k, rw_pool_kind kind, F launch)
{
    const rw_pool p = rw_pool_of(k, kind);
    const int64_t n = k->out[0].layout->numel;
    if (!n) return RW_OK;
    return with_float_type(k->out[0].dtype, [&](auto type) {
        launch(type, p, n, blocks_for(4 * rw_pool_words(n), THREADS));
        return rw_cuda_launched(k);
    });
}

} // namespace

#define OF(T, view) static_cast<const T *>(view.data)
#define TO(T) static_cast<T *>(k->out[0].data)

extern "C" rw_status rw_max_pool2d_cuda(const rw_kernel *k)
{
    return run(k, RW_POOL_MAX, [=](auto type, const rw_pool &p, int64_t n, unsigned blocks) {
        using T = decltype(type);
        RW_LAUNCH(max_kernel<T>, blocks, THREADS, 0, k, OF(T, k->in[0]), TO(T),
                  static_cast<unsigned char *>(k->out[1].data), p, n, 4 * rw_pool_words(n));
    });
}

extern "C" rw_status rw_max_pool2d_backward_cuda(const rw_kernel *k)
{
    return run(k, RW_POOL_MAX_BACKWARD, [=](auto type, const rw_pool &p, int64_t n, unsigned blocks) {
        using T = decltype(type);
        RW_LAUNCH(backward_kernel<T>, blocks, THREADS, 0, k, OF(T, k->in[1]), OF(unsigned char, k->in[0]), TO(T), p, n);
    });
}

extern "C" rw_status rw_max_pool2d_pick_cuda(const rw_kernel *k)
{
    return run(k, RW_POOL_PICK, [=](auto type, const rw_pool &p, int64_t n, unsigned blocks) {
        using T = decltype(type);
        RW_LAUNCH(pick_kernel<T>, blocks, THREADS, 0, k, OF(T, k->in[0]), OF(unsigned char, k->in[1]), TO(T), p, n);
    });
}

extern "C" rw_status rw_avg_pool2d_cuda(const rw_kernel *k)
{
    return run(k, RW_POOL_AVG, [=](auto type, const rw_pool &p, int64_t n, unsigned blocks) {
        using T = decltype(type);
        RW_LAUNCH(avg_kernel<T>, blocks, THREADS, 0, k, OF(T, k->in[0]), TO(T), p, n);
    });
}

extern "C" rw_status rw_avg_pool2d_backward_cuda(const rw_kernel *k)
{
    return run(k, RW_POOL_AVG_BACKWARD, [=](auto type, const rw_pool &p, int64_t n, unsigned blocks) {
        using T = decltype(type);
        RW_LAUNCH(backward_kernel<T>, blocks, THREADS, 0, k, OF(T, k->in[0]), nullptr, TO(T), p, n);
    });
}
