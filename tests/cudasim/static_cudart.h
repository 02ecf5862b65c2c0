/*
 * A separate runtime for a shared object, as for one that is linked with a static libcudart: its calls have their own
 * last error. The object is compiled with -DCUDASIM_OWN_RUNTIME and linked with static_cudart.cc; without that, it uses
 * the common runtime.
 */
#ifndef CUDASIM_STATIC_CUDART_H
#define CUDASIM_STATIC_CUDART_H

#include <cudasim.h>
#include <cuda_runtime.h>

namespace cudasim {

#ifdef CUDASIM_OWN_RUNTIME
__attribute__((visibility("hidden"))) int own_runtime();
#else
static inline int own_runtime() { return 0; }
#endif

/* During its lifetime the thread's calls are made to this object's runtime. */
class calling_own_runtime {
public:
    calling_own_runtime() : before(cudasim_call_runtime(own_runtime())) {}
    ~calling_own_runtime() { cudasim_call_runtime(before); }

private:
    const int before;
};

/* kernel<<<grid, block, shared, stream>>>, to be called with its arguments: launches.py generates it. */
template <typename... P> struct configured {
    const char *name;
    void (*kernel)(P...);
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;

    template <typename... A> void operator()(A... args) const
    {
        const calling_own_runtime here;
        const auto run = kernel;
        launch(name, reinterpret_cast<const void *>(run), grid, block, shared, stream,
               [=] { run(static_cast<P>(args)...); });
    }
};

template <typename... P>
static inline configured<P...> configure(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                         size_t shared = 0, cudaStream_t stream = nullptr)
{
    return { name, kernel, grid, block, shared, stream };
}

} // namespace cudasim

#endif
