/*
 * CUDA kernels of gather, sums by index and embedding_bag. Sums by index use the gradient of an embedding, whose sort
 * is stable and whose sums are cut by the indices alone. Here the index is flattened for it. An index out of range
 * becomes a row that does not exist, which the embedding's kernel reports.
 */
/* machine_code.py: (take|bag)_kernel<.*>: elements that are not adjacent */
/* machine_code.py: flat(_rows)?_kernel: four bytes per index */
#include "ops/common/elementwise_map.cuh"

#include "ops/embedding/embedding.h"
#include "ops/select/index_add_via_embedding_grad.h"

extern "C" rw_status rw_embedding_backward_cuda(const rw_kernel *k);

namespace {

constexpr int THREADS = 256;

/* Element e of the index: its coordinates, and their offset in x. */
struct place_args {
    int64_t n, extent, step; /* of x along the axis */
    int rank, axis;
    map_divider dim[RW_MAX_RANK];
    int64_t stride[RW_MAX_RANK]; /* 0 along the axis */
};

__device__ __forceinline__ int64_t place_of(const place_args &a, int64_t e)
{
    uint64_t rest = static_cast<uint64_t>(e);
    int64_t at = 0;
#pragma unroll 1
    for (int axis = a.rank - 1; axis > 0; axis--) {
        const uint64_t q = a.dim[axis].quotient(rest);
        at += static_cast<int64_t>(rest - q * a.dim[axis].d) * a.stride[axis];
        rest = q;
    }
    return at + static_cast<int64_t>(rest) * a.stride[0];
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    take_kernel(const T *x, const int32_t *index, T *y, const __grid_constant__ place_args a, index_guard guard)
{
    const int64_t e = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (e >= a.n) return;
    const int64_t at = index[e];
    if (at >= 0 && at < a.extent) y[e] = x[place_of(a, e) + at * a.step];
    else guard.report();
}

__global__ void __launch_bounds__(THREADS)
    flat_kernel(const int32_t *index, int32_t *flat, const __grid_constant__ place_args a)
{
    const int64_t e = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (e >= a.n) return;
    const int64_t at = index[e];
    flat[e] = at >= 0 && at < a.extent ? static_cast<int32_t>(place_of(a, e) + at * a.step) : -1;
}

/* Flattens a list of rows, once for each place before the axis. */
__global__ void __launch_bounds__(THREADS)
    flat_rows_kernel(const int32_t *index, int32_t *flat, int64_t n, const __grid_constant__ map_divider listed,
                     int64_t extent)
{
    const int64_t e = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (e >= n) return;
    const int64_t outer = static_cast<int64_t>(listed.quotient(static_cast<uint64_t>(e)));
    const int64_t at = index[e - outer * static_cast<int64_t>(listed.d)];
    flat[e] = at >= 0 && at < extent ? static_cast<int32_t>(outer * extent + at) : -1;
}

/* The arguments of place computations for an index into x. */
place_args places(const rw_kernel *k, const rw_layout *x)
{
    const rw_layout *const index = k->in[1].layout;
    const int64_t axis = static_cast<const rw_gather_attrs *>(k->attrs)->axis;
    place_args a = {};
    a.n = index->numel;
    a.rank = x->rank;
    a.axis = static_cast<int>(axis < 0 ? axis + x->rank : axis);
    a.extent = x->dim[a.axis];
    a.step = x->stride[a.axis];
    for (int i = 0; i < x->rank; i++) {
        a.dim[i].set(index->dim[i]);
        a.stride[i] = i == a.axis ? 0 : x->stride[i];
    }
    return a;
}

template <typename T> rw_status take(const rw_kernel *k)
{
    const place_args a = places(k, k->in[0].layout);
    RW_LAUNCH(take_kernel<T>, blocks_for(a.n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
              static_cast<const int32_t *>(k->in[1].data), static_cast<T *>(k->out[0].data), a, guard_of(k));
    return rw_cuda_launched(k);
}

/* ---- embedding_bag: one thread per column of a bag ---- */

struct bag_args {
    int64_t n, m, rows;
    map_divider width;
    int64_t divisor;
};

template <typename T>
__global__ void __launch_bounds__(THREADS)
    bag_kernel(const T *table, const int32_t *index, T *y, const __grid_constant__ bag_args a, index_guard guard)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= a.n) return;
    const int64_t width = static_cast<int64_t>(a.width.d);
    const int64_t bag = static_cast<int64_t>(a.width.quotient(static_cast<uint64_t>(i))), col = i - bag * width;
    wide<T> sum = 0;
#pragma unroll 4
    for (int64_t j = 0; j < a.m; j++) {
        const int64_t row = index[bag * a.m + j];
        if (row >= 0 && row < a.rows) sum += widen(table[row * width + col]);
        else guard.report();
    }
    y[i] = narrow<T>(sum / static_cast<wide<T>>(a.divisor));
}

} // namespace

extern "C" rw_status rw_gather_cuda(const rw_kernel *k)
{
    if (!k->out[0].layout->numel) return RW_OK;
    switch (rw_dtype_size(k->out[0].dtype)) {
    case 1: return take<uint8_t>(k);
    case 2: return take<uint16_t>(k);
    case 4: return take<uint32_t>(k);
    default: return take<uint64_t>(k);
    }
}

/* ---- sums by index ---- */

extern "C" size_t rw_gather_back_workspace_cuda(const rw_op_call *call)
{
    const int64_t n = call->in[1].layout->numel;
    return rw_gather_flat_bytes(n) + rw_embedding_space_of(n, 1, call->out[0].dtype).bytes;
}

extern "C" rw_status rw_gather_back_cuda(const rw_kernel *k)
{
    rw_row_sums r;
    const int64_t n = k->in[1].layout->numel, numel = k->out[0].layout->numel;
    if (!numel) return RW_OK;
    int32_t *const flat = static_cast<int32_t *>(k->workspace);
    if (n) {
        RW_LAUNCH(flat_kernel, blocks_for(n, THREADS), THREADS, 0, k, static_cast<const int32_t *>(k->in[1].data), flat,
                  places(k, k->out[0].layout));
        const rw_status status = rw_cuda_launched(k);
        if (status) return status;
    }
    rw_row_sums_kernel(k, &r, n, numel, 1, flat, static_cast<char *>(k->workspace) + rw_gather_flat_bytes(n));
    return rw_embedding_backward_cuda(&r.k);
}

extern "C" size_t rw_index_select_back_workspace_cuda(const rw_op_call *call)
{
    const rw_gather_attrs *const a = static_cast<const rw_gather_attrs *>(call->attrs);
    int64_t tokens = call->in[1].layout->numel, width = 1;
    for (int i = 0; i < a->axis; i++) tokens *= a->dim[i];
    for (int i = static_cast<int>(a->axis) + 1; i < a->rank; i++) width *= a->dim[i];
    return rw_gather_flat_bytes(tokens) + rw_embedding_space_of(tokens, width, call->in[0].dtype).bytes;
}

/* Flattens the list and runs the embedding's gradient. */
extern "C" rw_status rw_index_select_back_cuda(const rw_kernel *k)
{
    rw_row_sums r;
    if (!k->out[0].layout->numel) return RW_OK;
    rw_row_sums_of(k, &r);
    const int64_t n = r.outer * r.listed;
    int32_t *const flat = static_cast<int32_t *>(k->workspace);
    if (n) {
        map_divider listed;
        listed.set(r.listed);
        RW_LAUNCH(flat_rows_kernel, blocks_for(n, THREADS), THREADS, 0, k, static_cast<const int32_t *>(k->in[1].data),
                  flat, n, listed, r.extent);
        const rw_status status = rw_cuda_launched(k);
        if (status) return status;
    }
    rw_row_sums_kernel(k, &r, n, r.outer * r.extent, r.width, flat,
                static_cast<char *>(k->workspace) + rw_gather_flat_bytes(n));
    return rw_embedding_backward_cuda(&r.k);
}

/* Launches embedding_bag for the type of the table. */
extern "C" rw_status rw_embedding_bag_cuda(const rw_kernel *k)
{
    bag_args a = {};
    a.n = k->out[0].layout->numel;
    a.m = k->in[1].layout->dim[1];
    a.rows = k->in[0].layout->dim[0];
    a.divisor = *static_cast<const int64_t *>(k->attrs) && a.m ? a.m : 1;
    if (!a.n) return RW_OK;
    a.width.set(k->in[0].layout->dim[1]);
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(bag_kernel<T>, blocks_for(a.n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<const int32_t *>(k->in[1].data), static_cast<T *>(k->out[0].data), a, guard_of(k));
        return rw_cuda_launched(k);
    });
}
