/*
 * A replacement of libcuda.so.1 with which cuDNN compiles its kernels and makes plans without a device. Every call
 * succeeds and does nothing. For conv_plans.c and sdpa_plans.c.
 */
#define DOES_NOTHING(X)                                                                                                \
    X(cuCtxGetCurrent) X(cuCtxGetLimit) X(cuCtxPopCurrent) X(cuCtxPushCurrent) X(cuDeviceGet) X(cuDeviceGetCount)      \
    X(cuGetErrorName) X(cuGetErrorString) X(cuKernelGetAttribute) X(cuKernelSetAttribute)                              \
    X(cuLaunchCooperativeKernel) X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuLibraryLoadFromFile) X(cuLibraryUnload)     \
    X(cuLinkAddData) X(cuLinkComplete) X(cuLinkCreate) X(cuLinkDestroy) X(cuOccupancyMaxPotentialClusterSize)          \
    X(cuStreamGetCtx)

#define DEFINE(name)                                                                                                   \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return 0;                                                                                                      \
    }
DOES_NOTHING(DEFINE)

static int something;

int cuLibraryLoadData(void **library);
int cuLibraryLoadData(void **library)
{
    *library = &something;
    return 0;
}

int cuLibraryGetKernel(void **kernel);
int cuLibraryGetKernel(void **kernel)
{
    *kernel = &something;
    return 0;
}

int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}
