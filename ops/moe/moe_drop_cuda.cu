/* Capacity of experts on CUDA: one thread per slot computes whether it is kept. */
/* machine_code.py: drop_kernel<.*>: a few numbers a token */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/moe/moe.h"
}

namespace {

constexpr int THREADS = 256;

template <typename T> struct drop_args {
    const int32_t *index, *order, *inverse, *offsets;
    const T *weights; /* NULL: by position */
    int32_t *to;
    int64_t n, experts, capacity;
};

/* Ranks a slot among its expert's rows and marks it as kept or dropped. */
template <typename T>
__global__ void __launch_bounds__(THREADS) drop_kernel(const drop_args<T> a, index_guard guard)
{
    const int64_t slot = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (slot >= a.n) return;
    const int32_t expert = a.index[slot];
    a.to[slot] = expert;
    if (expert == RW_MOE_DROPPED) return;
    const bool sound = !a.weights || widen(a.weights[slot]) == widen(a.weights[slot]);
    if (expert < 0 || expert >= a.experts || !sound) {
        guard.report();
        return;
    }
    const moe_range rows = rw_moe_rows_of(a.offsets, expert, a.n);
    if (rows.to - rows.from <= a.capacity) return;
    int64_t place = a.inverse[slot] - rows.from;
    if (a.weights) {
        const wide<T> own = widen(a.weights[slot]);
        place = 0;
        for (int64_t r = rows.from; r < rows.to && place < a.capacity; r++) {
            const int64_t other = rw_moe_within(a.order[r], a.n);
            const wide<T> w = widen(a.weights[other]);
            place += w > own || (w == own && other < slot);
        }
    }
    if (place >= a.capacity) a.to[slot] = RW_MOE_DROPPED;
}

} // namespace

/* Checks the routes and launches the kernel for the type of the weights. */
extern "C" rw_status rw_moe_drop_cuda(const rw_kernel *k)
{
    const int64_t n = k->in[0].layout->numel;
    if (!n) return RW_OK;
    return with_float_type(k->n_inputs == 5 ? k->in[4].dtype : RW_F32, [&](auto type) {
        using T = decltype(type);
        drop_args<T> a = {};
        a.index = static_cast<const int32_t *>(k->in[0].data), a.order = static_cast<const int32_t *>(k->in[1].data);
        a.inverse = static_cast<const int32_t *>(k->in[2].data);
        a.offsets = static_cast<const int32_t *>(k->in[3].data);
        a.weights = k->n_inputs == 5 ? static_cast<const T *>(k->in[4].data) : nullptr;
        a.to = static_cast<int32_t *>(k->out[0].data);
        a.n = n, a.experts = k->in[3].layout->numel - 1;
        a.capacity = static_cast<const rw_moe_drop_attrs *>(k->attrs)->capacity;
        RW_LAUNCH(drop_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k, a, guard_of(k));
        return rw_cuda_launched(k);
    });
}
