/* Loads cuDNN, checks its version and translates its errors. */
#include "device/cuda/cudnn/library.h"

#include "device/cuda/dlopen_libraries.h"

#define VERSION_MIN 91100 /* earlier versions have known errors in attention's backward */

rw_status rw_cudnn_status(const struct rw_cudnn *dnn, struct rw_cuda *cuda, cudnnStatus_t status, const char *call)
{
    if (status == CUDNN_STATUS_SUCCESS) return RW_OK;
    if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_EXECUTION_FAILED) {
        const rw_status earlier = rw_cuda_earlier_error(cuda, call);
        if (earlier) return earlier;
    }
    const bool memory = status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                        status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    return rw_cuda_fail(cuda, memory ? RW_ERR_MEMORY : RW_ERR_DEVICE, "cuDNN: %s: %s (%d)", call,
                        dnn->GetErrorString(status), (int)status);
}

rw_status rw_cudnn_load(struct rw_cudnn *dnn, struct rw_cuda *cuda)
{
    static const char *const names[] = {
#define NAME(name) "cudnn" #name,
        CUDNN_FUNCTIONS(NAME)
#undef NAME
    };
    void *const to[] = {
#define POINTER(name) &dnn->name,
        CUDNN_FUNCTIONS(POINTER)
#undef POINTER
    };
    const rw_status status = rw_cuda_library(cuda, RW_LIBRARY_CUDNN, names, to, sizeof names / sizeof *names);
    return !status && dnn->GetVersion() < VERSION_MIN ? RW_ERR_UNSUPPORTED : status;
}

rw_status rw_cudnn_open(struct rw_cudnn *dnn, struct rw_cuda *cuda)
{
    rw_status status = rw_cudnn_load(dnn, cuda);
    if (!status) status = rw_cudnn_status(dnn, cuda, dnn->Create(&dnn->handle), "cudnnCreate");
    if (!status) status = rw_cudnn_status(dnn, cuda, dnn->SetStream(dnn->handle, cuda->stream), "cudnnSetStream");
    if (status) rw_cudnn_close(dnn);
    return status;
}

void rw_cudnn_close(struct rw_cudnn *dnn)
{
    if (dnn->handle) dnn->Destroy(dnn->handle);
    dnn->handle = NULL;
}
