/*
 * Libraries that are opened at run time: cuBLASLt and cuDNN. A binary of Rewind does not link to them, so it starts on
 * a machine without CUDA and reports what is missing.
 */
#ifndef RW_DEVICE_CUDA_DLOPEN_LIBRARIES_H
#define RW_DEVICE_CUDA_DLOPEN_LIBRARIES_H

#include "device/cuda/cuda.h"

enum rw_library { RW_LIBRARY_CUBLASLT, RW_LIBRARY_CUDNN };

/*
 * Stores the addresses of n functions. The library stays loaded for the life of the process. It is searched for where
 * the system does, and then in the folders that this build was configured with.
 * @return RW_ERR_UNSUPPORTED, with the reason in cuda->message, if the library or a function does not exist.
 */
rw_status rw_cuda_library(struct rw_cuda *cuda, enum rw_library library, const char *const *names, void *const *to,
                          size_t n);

#endif
