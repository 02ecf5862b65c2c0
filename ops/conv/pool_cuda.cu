/* CUDA kernels of pooling: one thread per element of the result; adjacent threads process adjacent channels. */
/* machine_code.py: (max|avg|pick|backward)_kernel<.*>: windows: elements side by side, each read from the cache
   again */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/conv/pool.h"
}

namespace {

constexpr int THREADS = 256;

/* The first of the largest; NaN counts as the largest. n: elements; bytes: of the positions, up to a whole word. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    max_kernel(const T *x, T *to, unsigned char *places, rw_pool p, int64_t n, int64_t bytes)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n && i < bytes) places[i] = 0;
    if (i >= n) return;
    const int64_t c = i % p.c, ox = i / p.c % p.ow, oy = i / p.c / p.ow % p.oh, image = i / p.c / p.ow / p.oh;
    const rw_pool_range ys = rw_pool_inside(&p, 0, oy), xs = rw_pool_inside(&p, 1, ox);
    wide<T> best = -static_cast<wide<T>>(INFINITY); /* the window is all padding */
    int64_t place = 0;
    bool first = true;
    for (int64_t y = ys.from; y < ys.to; y += p.a.dilation[0])
        for (int64_t z = xs.from; z < xs.to; z += p.a.dilation[1]) {
            const wide<T> v = widen(x[((image * p.h + y) * p.w + z) * p.c + c]);
            if (!first && !(v > best) && v == v) continue;
            best = v;
            place = rw_pool_place(&p, 0, oy, y) * p.a.kernel[1] + rw_pool_place(&p, 1, ox, z);
            first = false;
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
    const rw_pool_range ys = rw_pool_inside(&p, 0, oy), xs = rw_pool_inside(&p, 1, ox);
    wide<T> sum = 0;
    for (int64_t y = ys.from; y < ys.to; y++)
        for (int64_t z = xs.from; z < xs.to; z++) sum += widen(x[((image * p.h + y) * p.w + z) * p.c + c]);
    to[i] = narrow<T>(sum / static_cast<wide<T>>(rw_pool_count(&p, oy, ox)));
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    pick_kernel(const T *x, const unsigned char *places, T *to, rw_pool p, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t c = i % p.c, ox = i / p.c % p.ow, oy = i / p.c / p.ow % p.oh, image = i / p.c / p.ow / p.oh;
    const int64_t y = rw_pool_at(&p, 0, oy, places[i] / p.a.kernel[1]);
    const int64_t z = rw_pool_at(&p, 1, ox, places[i] % p.a.kernel[1]);
    const bool there = y >= 0 && y < p.h && z >= 0 && z < p.w;
    to[i] = there ? x[((image * p.h + y) * p.w + z) * p.c + c] : narrow<T>(0);
}

/* places: for a maximum; NULL for an average. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    backward_kernel(const T *dy, const unsigned char *places, T *to, rw_pool p, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t c = i % p.c, z = i / p.c % p.w, y = i / p.c / p.w % p.h, image = i / p.c / p.w / p.h;
    const rw_pool_range ys = rw_pool_over(&p, 0, y), xs = rw_pool_over(&p, 1, z);
    wide<T> sum = 0;
    for (int64_t oy = ys.from; oy < ys.to; oy++)
        for (int64_t ox = xs.from; ox < xs.to; ox++) {
            const int64_t at = ((image * p.oh + oy) * p.ow + ox) * p.c + c;
            const int64_t py = rw_pool_place(&p, 0, oy, y), px = rw_pool_place(&p, 1, ox, z);
            if (py < 0 || px < 0) continue;
            if (!places) sum += widen(dy[at]) / static_cast<wide<T>>(rw_pool_count(&p, oy, ox));
            else if (places[at] == py * p.a.kernel[1] + px) sum += widen(dy[at]);
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
