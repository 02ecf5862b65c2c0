/*
 * The calls of an object with a runtime of its own (static_cudart.h). They are hidden, so only that object is bound to
 * them; each forwards to the simulator's call for the object's runtime.
 */
#include "static_cudart.h"

#include <dlfcn.h>

namespace cudasim {

int own_runtime()
{
    static const int runtime = cudasim_new_runtime();
    return runtime;
}

} // namespace cudasim

#define OWN(name, parameters, ...)                                                        \
    extern "C" __attribute__((visibility("hidden"))) cudaError_t name parameters          \
    {                                                                                     \
        using call = cudaError_t(*) parameters;                                           \
        static const auto simulated = reinterpret_cast<call>(dlsym(RTLD_DEFAULT, #name)); \
        const cudasim::calling_own_runtime here;                                          \
        return simulated(__VA_ARGS__);                                                    \
    }

OWN(cudaGetLastError, (void))
OWN(cudaPeekAtLastError, (void))
OWN(cudaMalloc, (void **p, size_t size), p, size)
OWN(cudaFree, (void *p), p)
OWN(cudaMemsetAsync, (void *p, int value, size_t size, cudaStream_t stream), p, value, size, stream)
OWN(cudaMemcpyAsync, (void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t stream), to, from,
    size, kind, stream)
OWN(cudaStreamSynchronize, (cudaStream_t stream), stream)
