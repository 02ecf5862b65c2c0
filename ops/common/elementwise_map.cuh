/*
 * The CUDA kernels of all element-wise ops: up to three inputs of any strides (0 along a broadcast axis), up to two
 * dense outputs, one function object applied to elements. A thread handles packs of at most 16 bytes, or one element if
 * rows do not divide into packs. The choice does not affect results, because each element is computed independently.
 * Overwriting an input of the same layout is safe: a thread reads exactly the elements that it writes, and reads them
 * first.
 *
 * A function object `op` has the types In and Out, the constants `inputs` and `outputs`, and op(x, y), which maps
 * `inputs` elements to `outputs` elements.
 */
#ifndef RW_OPS_ELEMENTWISE_MAP_CUH
#define RW_OPS_ELEMENTWISE_MAP_CUH

#include "device/cuda/kernel.cuh"
#include "ops/common/coalesced_axes.h"

/* An nvcc keyword: the kernel reads its parameters in place. The test ptx_accuracy runs the resulting PTX. */
#if defined(RW_CUDASIM) && !defined(__grid_constant__)
#define __grid_constant__
#endif

namespace {

constexpr int MAP_THREADS = 256;

/*
 * n / d without an integer division: a multiplication if both have 31 bits (Granlund and Montgomery, "Division by
 * invariant integers using multiplication", PLDI 1994), else a floating-point estimate with a correction. n and d have
 * at most 52 bits.
 */
struct map_divider {
    uint64_t d;
    double inverse;
    uint32_t magic, shift; /* magic 0: d is too large for the multiplication */

    void set(int64_t divisor)
    {
        d = static_cast<uint64_t>(divisor), inverse = 1.0 / static_cast<double>(divisor), magic = shift = 0;
        if (d >> 31) return;
        while ((uint64_t(1) << shift) < d) shift++;
        magic = static_cast<uint32_t>((((uint64_t(1) << shift) - d) << 32) / d + 1);
    }

    __device__ __forceinline__ uint64_t quotient(uint64_t n) const
    {
        const uint32_t low = static_cast<uint32_t>(n);
        if (!(n >> 31) && magic) return (static_cast<uint32_t>((n * magic) >> 32) + low) >> shift;
        const uint64_t q = static_cast<uint64_t>(static_cast<double>(n) * inverse), product = q * d;
        return product > n ? q - 1 : n - product >= d ? q + 1 : q;
    }
};

template <int N_IN, int N_OUT> struct map_args {
    int64_t numel;
    int32_t rank;
    map_divider dim[RW_MAX_RANK];
    int64_t stride[N_IN][RW_MAX_RANK], step[N_IN]; /* step: stride of the innermost axis */
    const void *in[N_IN];
    void *out[N_OUT];
    bool whole_in[N_IN], whole_out[N_OUT]; /* each pack is one load or store */
};

template <typename Op> using map_args_of = map_args<Op::inputs, Op::outputs>;

template <typename T, int P> struct alignas(sizeof(T) * P) map_vector {
    T x[P];
};

template <typename Op> constexpr int map_pack()
{
    constexpr int in = sizeof(typename Op::In), out = sizeof(typename Op::Out), pack = 16 / (in > out ? in : out);
    return pack * in < 4 ? 4 / in : pack; /* reads use words of 32 bits */
}

/* at[j]: position of element i of the output in input j. */
template <int N_IN, int N_OUT>
__device__ __forceinline__ void map_seek(const map_args<N_IN, N_OUT> &a, int64_t i, int64_t *at)
{
    uint64_t rest = static_cast<uint64_t>(i);
#pragma unroll
    for (int j = 0; j < N_IN; j++) at[j] = 0;
#pragma unroll 1
    for (int axis = a.rank - 1; axis > 0; axis--) {
        const uint64_t q = a.dim[axis].quotient(rest);
#pragma unroll
        for (int j = 0; j < N_IN; j++) at[j] += static_cast<int64_t>(rest - q * a.dim[axis].d) * a.stride[j][axis];
        rest = q;
    }
#pragma unroll
    for (int j = 0; j < N_IN; j++) at[j] += static_cast<int64_t>(rest) * a.stride[j][0];
}

/* Loads n <= P elements that are `step` apart; the rest of the pack is zero. */
template <typename T, int P>
__device__ __forceinline__ raw<map_vector<T, P>> map_load(const T *p, int64_t step, int n, bool whole)
{
    if (n == P && whole) return load_raw<map_vector<T, P>>(p);
    return gather_raw<map_vector<T, P>, T>([=](int l) { return l < n ? p[l * step] : T{}; });
}

template <typename T, int P>
__device__ __forceinline__ void map_store(void *to, int64_t i, int n, const map_vector<T, P> &v, bool whole)
{
    T *const p = static_cast<T *>(to) + i;
    if (n == P && whole) {
        *reinterpret_cast<map_vector<T, P> *>(p) = v;
        return;
    }
    for (int l = 0; l < P; l++)
        if (l < n) p[l] = v.x[l];
}

/* With only one input to read, a thread keeps more packs in flight. */
template <typename Op> constexpr int map_unroll()
{
    return Op::inputs == 1 ? 2 : 1;
}

/* Kernel for packs: a single axis, or a last axis that divides into packs. */
template <typename Op>
__global__ void __launch_bounds__(MAP_THREADS) map_packs(const __grid_constant__ map_args_of<Op> a, const Op op)
{
    using In = typename Op::In;
    using Out = typename Op::Out;
    constexpr int P = map_pack<Op>(), U = map_unroll<Op>();
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (MAP_THREADS * U) + threadIdx.x;
    raw<map_vector<In, P>> x[U][Op::inputs];
#pragma unroll
    for (int u = 0; u < U; u++) {
        const int64_t i = (first + u * MAP_THREADS) * P, rest = a.numel - i;
        const int n = rest < P ? static_cast<int>(rest) : P;
        int64_t at[Op::inputs];
        map_seek(a, i, at);
#pragma unroll
        for (int j = 0; j < Op::inputs; j++)
            x[u][j] = map_load<In, P>(static_cast<const In *>(a.in[j]) + at[j], a.step[j], n, a.whole_in[j]);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        const int64_t i = (first + u * MAP_THREADS) * P, rest = a.numel - i;
        const int n = rest < P ? static_cast<int>(rest) : P;
        map_vector<In, P> v[Op::inputs];
        map_vector<Out, P> y[Op::outputs];
#pragma unroll
        for (int j = 0; j < Op::inputs; j++) v[j] = x[u][j].elements();
#pragma unroll
        for (int l = 0; l < P; l++) {
            In from[Op::inputs];
            Out to[Op::outputs];
#pragma unroll
            for (int j = 0; j < Op::inputs; j++) from[j] = v[j].x[l];
            op(from, to);
#pragma unroll
            for (int j = 0; j < Op::outputs; j++) y[j].x[l] = to[j];
        }
#pragma unroll
        for (int j = 0; j < Op::outputs; j++) map_store(a.out[j], i, n, y[j], a.whole_out[j]);
    }
}

/* Kernel for any layout: one element per thread. */
template <typename Op>
__global__ void __launch_bounds__(MAP_THREADS) map_elements(const __grid_constant__ map_args_of<Op> a, const Op op)
{
    using In = typename Op::In;
    using Out = typename Op::Out;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * MAP_THREADS + threadIdx.x;
    if (i >= a.numel) return;
    int64_t at[Op::inputs];
    In from[Op::inputs];
    Out to[Op::outputs];
    map_seek(a, i, at);
#pragma unroll
    for (int j = 0; j < Op::inputs; j++) from[j] = static_cast<const In *>(a.in[j])[at[j]];
    op(from, to);
#pragma unroll
    for (int j = 0; j < Op::outputs; j++) static_cast<Out *>(a.out[j])[i] = to[j];
}

static inline bool map_is_aligned(const void *p, size_t bytes)
{
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

/* Fills in the layout part of the arguments. It does not depend on the op, so it is compiled once per element size. A
   pack has P elements of these sizes. */
template <int N_IN, int N_OUT>
void map_lay_out(map_args<N_IN, N_OUT> &a, const rw_kernel *k, int P, size_t in_size, size_t out_size)
{
    rw_axes m;
    rw_axes_join(k, N_IN, &m);
    a.rank = m.rank;
    const int last = m.rank - 1;
    for (int axis = 0; axis < m.rank; axis++) a.dim[axis].set(m.dim[axis]);
    for (int j = 0; j < N_IN; j++) {
        a.in[j] = k->in[j].data;
        a.step[j] = m.stride[j][last];
        a.whole_in[j] = a.step[j] == 1 && map_is_aligned(a.in[j], P * in_size);
        for (int axis = 0; axis <= last; axis++) a.stride[j][axis] = m.stride[j][axis];
        for (int axis = 0; axis < last; axis++) a.whole_in[j] &= m.stride[j][axis] % P == 0;
    }
    for (int j = 0; j < N_OUT; j++) {
        a.out[j] = k->out[j].data;
        a.whole_out[j] = map_is_aligned(a.out[j], P * out_size);
    }
}

/* Runs the kernel of an op. */
template <typename Op> rw_status map_run(const rw_kernel *k, const Op &op)
{
    constexpr int P = map_pack<Op>();
    map_args<Op::inputs, Op::outputs> a = {};
    a.numel = k->out[0].layout->numel;
    if (!a.numel) return RW_OK;
    map_lay_out(a, k, P, sizeof(typename Op::In), sizeof(typename Op::Out));
    if (a.rank == 1 || a.dim[a.rank - 1].d % P == 0)
        RW_LAUNCH((map_packs<Op>), blocks_for(a.numel, P * map_unroll<Op>() * MAP_THREADS), MAP_THREADS, 0, k, a, op);
    else
        RW_LAUNCH((map_elements<Op>), blocks_for(a.numel, MAP_THREADS), MAP_THREADS, 0, k, a, op);
    return rw_cuda_launched(k);
}

} // namespace

#endif
