/*
 * Thread indexes, shared memory, barriers and launches of the simulator. C++17.
 *
 * One kernel runs at a time, so the state of the running thread is global; the scheduler (block.cc) sets it whenever it
 * switches threads.
 */
#ifndef CUDASIM_DEVICE_H
#define CUDASIM_DEVICE_H

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

#define __host__
#define __device__
#define __global__
#define __constant__
#ifdef __SANITIZE_ADDRESS__
/* Forced inlining would give each kernel its own instrumented copy of each function, which would take most of the
   compile time. */
#define __forceinline__ inline
#else
#define __forceinline__ inline __attribute__((always_inline))
#endif
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))

namespace cudasim {

extern uint3 thread_index, block_index;
extern dim3 block_dimensions, grid_dimensions;
extern uint64_t block_serial; /* a new number for every block that is run */

/*
 * One per `__shared__` declaration, in the same function. The first thread of a block that reaches it fills the
 * function's shared arrays with a pattern (shared.cc), so that a read before the first write is visible.
 */
struct shared_mark {
    uint64_t serial;
};
void enter_shared(shared_mark *mark);

static inline void touch_shared(shared_mark *mark)
{
    if (mark->serial != block_serial) enter_shared(mark);
}

/* The block's dynamic shared memory, aligned to exactly 16 bytes. */
void *dynamic_shared();

/*
 * Does what kernel<<<grid, block, shared, stream>>>(...) does: errors are left for cudaGetLastError(). `function` is
 * the kernel's address, for its attributes; without it more than 48 KiB of dynamic shared memory is allowed.
 * `parameters` are those of the thread function, for tests that run the kernel's compiled code instead.
 */
void launch(const char *name, const void *function, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
            std::function<void()> thread, std::vector<char> parameters = {});

void pack_parameter(std::vector<char> &all, const void *p, size_t size, size_t align);

/* Concatenates a kernel's parameters, each at an offset of its alignment. */
template <typename... P> std::vector<char> pack_parameters(const P &...parameters)
{
    std::vector<char> all;
    (pack_parameter(all, &parameters, sizeof parameters, alignof(P)), ...);
    return all;
}

/*
 * The result of a tensor core for 16 products and an addend (tensor.cc): their sum rounded once, or with
 * CUDASIM_TENSOR=truncate truncated as by hardware.
 */
float tensor_sum(float c, const double (&products)[16]);

static inline void launch(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                          std::function<void()> thread)
{
    launch(name, nullptr, grid, block, shared, stream, std::move(thread));
}

enum class barrier { plain, count, all, any };
int block_barrier(barrier kind, int value, const char *file, int line);
[[noreturn]] void trap();
void pause_thread(); /* lets the other threads of the block run */

} // namespace cudasim

inline constexpr const uint3 &threadIdx = cudasim::thread_index;
inline constexpr const uint3 &blockIdx = cudasim::block_index;
inline constexpr const dim3 &blockDim = cudasim::block_dimensions;
inline constexpr const dim3 &gridDim = cudasim::grid_dimensions;
inline constexpr int warpSize = 32;

#define CUDASIM_MARK_(n) static cudasim::shared_mark cudasim_mark_##n; cudasim::touch_shared(&cudasim_mark_##n); static
#define CUDASIM_MARK(n) CUDASIM_MARK_(n)
#define __shared__ CUDASIM_MARK(__COUNTER__)

/* The source location of the call, for reports, and to distinguish barriers. */
#define CUDASIM_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(CUDASIM_PLACE)
{
    cudasim::block_barrier(cudasim::barrier::plain, 0, file, line);
}

static inline int __syncthreads_count(int predicate, CUDASIM_PLACE)
{
    return cudasim::block_barrier(cudasim::barrier::count, predicate, file, line);
}

static inline int __syncthreads_and(int predicate, CUDASIM_PLACE)
{
    return cudasim::block_barrier(cudasim::barrier::all, predicate, file, line);
}

static inline int __syncthreads_or(int predicate, CUDASIM_PLACE)
{
    return cudasim::block_barrier(cudasim::barrier::any, predicate, file, line);
}

static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
[[noreturn]] static inline void __trap() { cudasim::trap(); }
static inline void __nanosleep(unsigned) { cudasim::pause_thread(); }
long long clock64();

#endif
