/*
 * CUDA kernels of where: moves elements as words of their size, in packs of 16 bytes if rows allow it. Whether a row
 * divides into packs depends on its shape and the addresses. This does not affect the result, because elements are
 * independent.
 */
/* machine_code.py: stream where_packs<.*>: share=2/3 */
/* machine_code.py: where_elements<.*>: rows that do not divide into packs */
#include "ops/common/elementwise_map.cuh"

namespace {

constexpr int THREADS = 256;

struct where_args {
    int64_t numel;
    int rank;
    map_divider dim[RW_MAX_RANK];
    int64_t stride[3][RW_MAX_RANK];
    const uint8_t *condition;
    const void *a, *b;
    void *y;
    bool whole[3]; /* each pack of the condition, of a, of b is one load; else its elements are step apart */
    int64_t step[3];
};

__device__ __forceinline__ void seek(const where_args &a, int64_t i, int64_t (&at)[3])
{
    uint64_t rest = static_cast<uint64_t>(i);
    for (int j = 0; j < 3; j++) at[j] = 0;
#pragma unroll 1
    for (int axis = a.rank - 1; axis > 0; axis--) {
        const uint64_t q = a.dim[axis].quotient(rest);
        const int64_t place = static_cast<int64_t>(rest - q * a.dim[axis].d);
#pragma unroll
        for (int j = 0; j < 3; j++) at[j] += place * a.stride[j][axis];
        rest = q;
    }
#pragma unroll
    for (int j = 0; j < 3; j++) at[j] += static_cast<int64_t>(rest) * a.stride[j][0];
}

/* At least four elements, so that those of the condition are a word. */
template <typename T> constexpr int pack_of()
{
    return sizeof(T) > 4 ? 4 : 16 / static_cast<int>(sizeof(T));
}

/* Selects packs of elements. */
template <typename T>
__global__ void __launch_bounds__(THREADS) where_packs(const __grid_constant__ where_args a)
{
    constexpr int P = pack_of<T>();
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * P, rest = a.numel - i;
    if (rest <= 0) return;
    const int n = rest < P ? static_cast<int>(rest) : P;
    int64_t at[3];
    seek(a, i, at);
    const auto c = map_load<uint8_t, P>(a.condition + at[0], a.step[0], n, a.whole[0]);
    const auto x = map_load<T, P>(static_cast<const T *>(a.a) + at[1], a.step[1], n, a.whole[1]);
    const auto z = map_load<T, P>(static_cast<const T *>(a.b) + at[2], a.step[2], n, a.whole[2]);
    const map_vector<uint8_t, P> truth = c.elements();
    const map_vector<T, P> first = x.elements(), second = z.elements();
    map_vector<T, P> y;
#pragma unroll
    for (int l = 0; l < P; l++) y.x[l] = truth.x[l] ? first.x[l] : second.x[l];
    map_store(a.y, i, n, y, true);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) where_elements(const __grid_constant__ where_args a)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= a.numel) return;
    int64_t at[3];
    seek(a, i, at);
    static_cast<T *>(a.y)[i] = a.condition[at[0]] ? static_cast<const T *>(a.a)[at[1]]
                                                  : static_cast<const T *>(a.b)[at[2]];
}

/* Launches the kernel of packs if the operands allow it, else that of elements. */
template <typename T> rw_status where(const rw_kernel *k)
{
    constexpr int P = pack_of<T>();
    where_args a = {};
    rw_axes m;
    a.numel = k->out[0].layout->numel;
    if (!a.numel) return RW_OK;
    rw_axes_join(k, 3, &m);
    a.rank = m.rank;
    const int last = m.rank - 1;
    for (int axis = 0; axis < m.rank; axis++) a.dim[axis].set(m.dim[axis]);
    a.condition = static_cast<const uint8_t *>(k->in[0].data);
    a.a = k->in[1].data, a.b = k->in[2].data, a.y = k->out[0].data;
    for (int j = 0; j < 3; j++) {
        a.step[j] = m.stride[j][last];
        a.whole[j] = a.step[j] == 1 && map_is_aligned(k->in[j].data, P * (j ? sizeof(T) : 1));
        for (int axis = 0; axis <= last; axis++) a.stride[j][axis] = m.stride[j][axis];
        for (int axis = 0; axis < last; axis++) a.whole[j] &= m.stride[j][axis] % P == 0;
    }
    if (m.rank == 1 || m.dim[last] % P == 0)
        RW_LAUNCH(where_packs<T>, blocks_for(a.numel, P * THREADS), THREADS, 0, k, a);
    else RW_LAUNCH(where_elements<T>, blocks_for(a.numel, THREADS), THREADS, 0, k, a);
    return rw_cuda_launched(k);
}

} // namespace

extern "C" rw_status rw_where_cuda(const rw_kernel *k)
{
    switch (rw_dtype_size(k->out[0].dtype)) {
    case 1: return where<uint8_t>(k);
    case 2: return where<uint16_t>(k);
    case 4: return where<uint32_t>(k);
    default: return where<uint64_t>(k);
    }
}
