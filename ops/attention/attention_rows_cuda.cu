/* attention on CUDA: what all of our backward kernels know of each row beforehand. */
#include "ops/attention/attention_quads.cuh"

namespace {

constexpr int THREADS = 256;

template <typename T> struct row_args {
    operand<T> o, dy;
    const wide<T> *lse;
    wide<T> *stat, *delta;
    int heads, seq, d, stat_rows;
    int64_t rows;
    const wide<T> *dlse; /* NULL: none */
    int64_t dlse_stride[3];
    const T *sinks; /* NULL: none */
    int64_t sink_stride;
    wide<T> *sink_rows;
};

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

/*
 * What backward knows of each row: the log-sum-exp times `factor`, less `lift`, and delta = sum of o * dy less the
 * log-sum-exp's gradient, what softmax's gradient subtracts; of a sink it is all of the gradient. Rows after the last
 * and rows that see nothing get probability 0. `lanes` threads per row, a power of two.
 */
template <typename T>
__global__ void __launch_bounds__(THREADS) stat_kernel(const row_args<T> a, int lanes, wide<T> factor, wide<T> lift)
{
    using W = wide<T>;
    const int64_t at = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) / lanes;
    const int64_t pair = at / a.stat_rows, b = pair / a.heads;
    const int row = static_cast<int>(at % a.stat_rows), h = static_cast<int>(pair % a.heads);
    const int lane = threadIdx.x % lanes;
    const bool valid = at < a.rows && row < a.seq;
    W sum = 0;
    if (valid) {
        const matrix<T> o = a.o.of(b, h, a.seq, a.d), dy = a.dy.of(b, h, a.seq, a.d);
        for (int c = lane * 4; c < a.d; c += lanes * 4) {
            const quad<W> x = read_quad(o, row, c), y = read_quad(dy, row, c);
            for (int i = 0; i < 4; i++) sum = fused(x.x[i], y.x[i], sum);
        }
    }
    for (int d = lanes / 2; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane || at >= a.rows) return;
    const W lse = valid ? a.lse[pair * a.seq + row] : -static_cast<W>(INFINITY);
    if (valid && a.dlse) sum -= a.dlse[b * a.dlse_stride[0] + h * a.dlse_stride[1] + row * a.dlse_stride[2]];
    if (valid && a.sinks) {
        const W sink = widen(a.sinks[h * a.sink_stride]);
        const W p = lse == -static_cast<W>(INFINITY) ? static_cast<W>(0) : exponential(sink - lse);
        a.sink_rows[pair * a.seq + row] = -p * sum;
    }
    a.stat[at] = lse == -static_cast<W>(INFINITY) ? static_cast<W>(INFINITY) : lse * factor - lift;
    a.delta[at] = sum;
}

template <typename T> row_args<T> row_args_of(const att_call &c)
{
    using W = wide<T>;
    row_args<T> a = {};
    a.o = operand_of<T>(c.o), a.dy = operand_of<T>(c.dy);
    a.lse = static_cast<const W *>(c.lse), a.stat = static_cast<W *>(c.stat);
    a.heads = c.heads, a.seq = c.seq, a.d = c.dv, a.stat_rows = c.stat_rows;
    a.rows = c.pairs * c.stat_rows;
    a.dlse = static_cast<const W *>(c.options.dlse);
    for (int i = 0; i < 3; i++) a.dlse_stride[i] = c.options.dlse_stride[i];
    if (c.options.sink_rows) a.sinks = static_cast<const T *>(c.options.sinks);
    a.sink_stride = c.options.sink_stride;
    a.sink_rows = static_cast<W *>(c.options.sink_rows);
    a.delta = a.stat + a.rows;
    return a;
}

} // namespace

rw_status rw_attention_prepare_rows(const rw_kernel *k, const att_call &c, double factor, double lift)
{
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const row_args<T> a = row_args_of<T>(c);
        const int lanes = c.dv > 64 ? 32 : c.dv > 32 ? 16 : 8;
        const int64_t per_block = THREADS / lanes, blocks = (a.rows + per_block - 1) / per_block;
        if (!blocks) return RW_OK;
        RW_LAUNCH(stat_kernel<T>, static_cast<unsigned>(blocks), THREADS, 0, k, a, lanes, static_cast<wide<T>>(factor),
                  static_cast<wide<T>>(lift));
        return rw_cuda_launched(k);
    });
}
