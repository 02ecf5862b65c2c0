/* attention on CUDA: computes the row statistics (log-sum-exp and delta) that the backward kernels need. */
/* machine_code.py: stream stat_kernel<{ANY}>: store=0, share=1 */
#include "ops/attention/attention_vectorized_loads.cuh"

namespace
{

constexpr int THREADS = 256;

template <typename T> struct row_args {
    operand<T> o, dy;
    bool packs; /* each pack of a row of o and of dy is one access */
    const wide<T> *lse;
    wide<T> *stat, *delta;
    int heads, seq, d, stat_rows;
    const wide<T> *dlse; /* NULL: none */
    int64_t dlse_stride[3];
    const T *sinks; /* NULL: none */
    int64_t sink_stride;
    wide<T> *sink_rows;
};

__device__ __forceinline__ float exponential(float x)
{
    return expf(x);
}
__device__ __forceinline__ double exponential(double x)
{
    return exp(x);
}

/* Loads n columns of a row from p on; zeros after them. */
template <typename T> __device__ __forceinline__ raw<pack<T>> gather_row(const T *p, int64_t col, int n)
{
    return gather_raw<pack<T>, T>([=](int i) { return i < n ? p[i * col] : narrow<T>(wide<T>(0)); });
}

/*
 * The statistics of each row: the log-sum-exp times `factor`, minus `lift`; and delta = sum of o * dy minus the
 * gradient of the log-sum-exp, which the gradient of softmax subtracts. A sink's gradient is -p * delta alone. Rows
 * after the last one and rows that see no key get probability 0. `lanes` threads per row, a power of two; `blocks`
 * blocks per head. All loads are issued before any value is used.
 */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    stat_kernel(const row_args<T> a, int lanes, unsigned blocks, wide<T> factor, wide<T> lift)
{
    using W = wide<T>;
    constexpr int P = pack<T>::size;
    const int64_t pair = blockIdx.x / blocks;
    const int b = static_cast<int>(pair) / a.heads, h = static_cast<int>(pair) % a.heads, lane = threadIdx.x % lanes;
    const int row = static_cast<int>(blockIdx.x % blocks) * (THREADS / lanes) + static_cast<int>(threadIdx.x) / lanes;
    const int64_t at = pair * a.stat_rows + row;
    const bool valid = row < a.seq;
    W sum = 0, lse = -static_cast<W>(INFINITY);
    if (valid) {
        const matrix<T> o = a.o.of(b, h, a.seq, a.d), dy = a.dy.of(b, h, a.seq, a.d);
        lse = a.lse[pair * a.seq + row];
        for (int c = lane * P; c < a.d; c += lanes * P) {
            const T *const from_o = o.p + row * o.row + c * o.col, *const from_dy = dy.p + row * dy.row + c * dy.col;
            raw<pack<T>> x, y;
            if (a.packs && c + P <= a.d) {
                x = load_raw<pack<T>>(from_o);
                y = load_raw<pack<T>>(from_dy);
            } else {
                x = gather_row(from_o, o.col, a.d - c);
                y = gather_row(from_dy, dy.col, a.d - c);
            }
            const pack<T> u = x.elements(), v = y.elements();
#pragma unroll
            for (int i = 0; i < P; i++) sum = fused(widen(u.x[i]), widen(v.x[i]), sum);
        }
    }
    for (int d = lanes / 2; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane) return;
    if (valid && a.dlse) sum -= a.dlse[b * a.dlse_stride[0] + h * a.dlse_stride[1] + row * a.dlse_stride[2]];
    if (valid && a.sinks) {
        const W sink = widen(a.sinks[h * a.sink_stride]);
        const W p = lse == -static_cast<W>(INFINITY) ? static_cast<W>(0) : exponential(sink - lse);
        a.sink_rows[pair * a.seq + row] = -p * sum;
    }
    a.stat[at] = lse == -static_cast<W>(INFINITY) ? static_cast<W>(INFINITY) : lse * factor - lift;
    a.delta[at] = sum;
}

template <typename T> bool has_packs(const att_operand &x)
{
    const int64_t each = sizeof(T);
    return x.col == 1 && is_aligned_16(x.p) && x.batch * each % 16 == 0 && x.head * each % 16 == 0 &&
           x.row * each % 16 == 0;
}

/* The kernel arguments of a call. */
template <typename T> row_args<T> row_args_of(const att_call &c)
{
    using W = wide<T>;
    row_args<T> a = {};
    a.o = operand_of<T>(c.o), a.dy = operand_of<T>(c.dy);
    a.packs = has_packs<T>(c.o) && has_packs<T>(c.dy);
    a.lse = static_cast<const W *>(c.lse), a.stat = static_cast<W *>(c.stat);
    a.heads = c.heads, a.seq = c.seq, a.d = c.dv, a.stat_rows = c.stat_rows;
    a.dlse = static_cast<const W *>(c.options.dlse);
    for (int i = 0; i < 3; i++) a.dlse_stride[i] = c.options.dlse_stride[i];
    if (c.options.sink_rows) a.sinks = static_cast<const T *>(c.options.sinks);
    a.sink_stride = c.options.sink_stride;
    a.sink_rows = static_cast<W *>(c.options.sink_rows);
    a.delta = a.stat + c.pairs * c.stat_rows;
    return a;
}

} // namespace

rw_status rw_attention_prepare_rows(const rw_kernel *k, const att_call &c, double factor, double lift)
{
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const row_args<T> a = row_args_of<T>(c);
        const int half = 8 * pack<T>::size, lanes = c.dv > 2 * half ? 32 : c.dv > half ? 16 : 8;
        const int64_t blocks = c.stat_rows / (THREADS / lanes); /* whole: the rows of a head are padded */
        if (!c.pairs || !blocks) return RW_OK;
        RW_LAUNCH(stat_kernel<T>, static_cast<unsigned>(c.pairs * blocks), THREADS, 0, k, a, lanes,
                  static_cast<unsigned>(blocks), static_cast<wide<T>>(factor), static_cast<wide<T>>(lift));
        return rw_cuda_launched(k);
    });
}
