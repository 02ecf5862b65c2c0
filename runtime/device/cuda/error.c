/* CUDA errors: one message with the call, the text and the code; and whether the device is still usable. */
#include "device/cuda/cuda.h"

#include <stdarg.h>
#include <stdio.h>

rw_status rw_cuda_fail(struct rw_cuda *cuda, rw_status status, const char *fmt, ...)
{
    if (cuda->message[0]) return status; /* the first failure is the cause */
    va_list args;
    va_start(args, fmt);
    vsnprintf(cuda->message, sizeof cuda->message, fmt, args);
    va_end(args);
    return status;
}

/* Errors after which every call of this process on this device fails. Others are cleared. */
static bool is_sticky(cudaError_t error)
{
    switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown:
    case cudaErrorContextIsDestroyed: return true;
    default: return false;
    }
}

rw_status rw_cuda_earlier_error(struct rw_cuda *cuda, const char *call)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(cuda->stream, &capture) == cudaSuccess && capture != cudaStreamCaptureStatusNone)
        return RW_OK;
    const cudaError_t error = cudaStreamQuery(cuda->stream);
    return error == cudaErrorNotReady ? RW_OK : rw_cuda_status(cuda, error, call);
}

rw_status rw_cuda_status(struct rw_cuda *cuda, cudaError_t error, const char *call)
{
    if (!error) return RW_OK;
    cudaGetLastError(); /* clears the error, unless it is sticky */
    if (is_sticky(error)) cuda->dead = true;
    return rw_cuda_fail(cuda, error == cudaErrorMemoryAllocation ? RW_ERR_MEMORY : RW_ERR_DEVICE,
                        "CUDA: %s: %s (%s, %d)%s", call, cudaGetErrorString(error), cudaGetErrorName(error), (int)error,
                        cuda->dead ? "; this process cannot use the device any more" : "");
}
