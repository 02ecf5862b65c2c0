/* cuDNN's functions, opened at run time. It includes cudnn.h, so only files that need that include it. */
#ifndef RW_DEVICE_CUDA_CUDNN_LIBRARY_H
#define RW_DEVICE_CUDA_CUDNN_LIBRARY_H

#include "device/cuda/cuda.h"

#include <cudnn.h>

/* By name: X(Create) is cudnnCreate. */
#define CUDNN_FUNCTIONS(X)                                                                                             \
    X(Create)                                                                                                          \
    X(Destroy) X(SetStream) X(GetVersion) X(GetErrorString) X(BackendCreateDescriptor) X(BackendDestroyDescriptor)     \
        X(BackendSetAttribute) X(BackendGetAttribute) X(BackendFinalize) X(BackendExecute)

struct rw_cudnn {
#define CUDNN_MEMBER(name) __typeof__(&cudnn##name) name;
    CUDNN_FUNCTIONS(CUDNN_MEMBER)
#undef CUDNN_MEMBER
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t described; /* description of a device, for making plans without a handle */
};

/* Finds the functions. RW_ERR_UNSUPPORTED if the library does not exist or is too old. Needs no device. */
rw_status rw_cudnn_load(struct rw_cudnn *dnn, struct rw_cuda *cuda);

/* Loads it, and makes a handle on the device's stream. */
rw_status rw_cudnn_open(struct rw_cudnn *dnn, struct rw_cuda *cuda);
void rw_cudnn_close(struct rw_cudnn *dnn);

/* RW_OK, or the failure of `call`, recorded in cuda->message. */
rw_status rw_cudnn_status(const struct rw_cudnn *dnn, struct rw_cuda *cuda, cudnnStatus_t status, const char *call);

#endif
