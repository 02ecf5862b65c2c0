/*
 * A runtime of its own for a shared object, as one has that is linked with a static libcudart: its calls have a last
 * error of their own. The object is compiled with -DCUDASIM_OWN_RUNTIME and linked with own_runtime.cc; without, its
 * calls are everybody's.
 */
#ifndef CUDASIM_OWN_RUNTIME_H
#define CUDASIM_OWN_RUNTIME_H

#include <cudasim.h>
#include <cuda_runtime.h>

namespace cudasim {

#ifdef CUDASIM_OWN_RUNTIME
__attribute__((visibility("hidden"))) int own_runtime();
#else
static inline int own_runtime() { return 0; }
#endif

/* The thread's calls are made to this object's runtime while one lives. */
class calling_own_runtime {
public:
    calling_own_runtime() : before(cudasim_call_runtime(own_runtime())) {}
    ~calling_own_runtime() { cudasim_call_runtime(before); }

private:
    const int before;
};

/* kernel<<<grid, block, shared, stream>>>, which waits for its arguments: what launches.py makes of it. */
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
