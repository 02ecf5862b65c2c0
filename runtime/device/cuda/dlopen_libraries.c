/* Opens cuBLASLt and cuDNN at run time with dlopen(). */
#include "device/cuda/dlopen_libraries.h"

#ifdef RW_CUDASIM
#include <cudasim.h> /* a test chooses which libraries the simulator has */
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The major versions of the headers in this build: other versions have other structures. */
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static const char *const files[] = {
    [RW_LIBRARY_CUBLASLT] = "libcublasLt.so." TEXT(RW_CUBLASLT_MAJOR),
    [RW_LIBRARY_CUDNN] = "libcudnn.so." TEXT(RW_CUDNN_MAJOR),
};

#ifndef RW_CUDASIM /* its libraries are in no folder */
/* RW_CUDA_LIBRARY_DIRS: folders of the build machine, each followed by a colon. */
static void *open_in_folders(const char *file)
{
    char path[1024];
    void *found = NULL;
    for (const char *dir = RW_CUDA_LIBRARY_DIRS; *dir && !found;) {
        const size_t n = strcspn(dir, ":");
        if ((size_t)snprintf(path, sizeof path, "%.*s/%s", (int)n, dir, file) < sizeof path)
            found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        dir += n + (dir[n] == ':');
    }
    return found;
}
#endif

/* Opens a library and looks up its functions. */
rw_status rw_cuda_library(struct rw_cuda *cuda, enum rw_library library, const char *const *names, void *const *to,
                          size_t n)
{
#ifdef RW_CUDASIM
    /* The simulator's functions are part of the program. */
    void *handle = dlopen(cudasim_has_library(files[library]) ? NULL : files[library], RTLD_NOW);
#else
    void *handle = dlopen(files[library], RTLD_NOW | RTLD_LOCAL);
    if (!handle) handle = open_in_folders(files[library]);
#endif
    if (!handle) return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "CUDA: %s was not found: %s", files[library], dlerror());
    for (size_t i = 0; i < n; i++) {
        void *const function = dlsym(handle, names[i]);
        if (!function) return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "CUDA: %s has no %s", files[library], names[i]);
        memcpy(to[i], &function, sizeof function);
    }
    return RW_OK;
}
