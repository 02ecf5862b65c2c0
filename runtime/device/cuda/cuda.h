/*
 * State of the CUDA device, for its own files and the kernels' host code. C11 and C++17.
 *
 * There is one compute stream: kernels are queued on it in plan order, so only results that the host reads are waited
 * for. No kernel allocates, waits or communicates with the host. Offloaded values are copied on streams of their own
 * (copy_streams.h), and from there to files (offload_file_store_cuda.h). Another stream uploads the caller's bytes
 * (staging.h).
 */
#ifndef RW_DEVICE_CUDA_CUDA_H
#define RW_DEVICE_CUDA_CUDA_H

#include "device/lane_queues.h"

#include <rewind/op.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RW_CUDA_ALIGNMENT 512
#define RW_CUDA_MESSAGE 512

struct rw_blaslt;
struct rw_sdpa;
struct rw_dnn_conv;
struct rw_staging;
struct rw_cuda_files;

struct rw_cuda {
    int ordinal;
    void *context;  /* the driver's; NULL: unknown */
    int capability; /* 90 for compute capability 9.0 */
    bool tf32;      /* rw_context_params */
    /* Maximum of each extent and stride, and of the elements of a matrix or tensor, that a library is given: INT32_MAX.
       Larger operations run in parts or in our kernels. Tests set less. */
    int64_t max_count;
    int shared_per_block, shared_per_multiprocessor; /* bytes of shared memory, the former by opt-in */
    const void **large; /* kernels that were allowed more than 48 KiB of dynamic shared memory */
    size_t n_large, cap_large;
    cudaStream_t lane[RW_LANES]; /* by enum rw_lane */
    cudaStream_t stream;         /* the compute lane's */
    /* Added to the first block of every ticket: 0, except for a graph that is launched again. In device memory. */
    uint64_t *ticket_base;
    uint64_t known_base; /* its last value */
    struct rw_blaslt *blaslt;
    struct rw_sdpa *sdpa;
    struct rw_dnn_conv *conv;
    struct rw_staging *staging;
    struct rw_cuda_files *files; /* NULL before the first store in a file */
    cudaEvent_t *marks; /* times of a trace */
    size_t n_marks, cap_marks;
    /* Queued products of two 8-bit factors: by FP8 units, and with factors decoded to bfloat16. */
    uint64_t fp8_products, decoded_products;
    bool dead;                     /* after an error from which the CUDA runtime does not recover */
    char message[RW_CUDA_MESSAGE]; /* the first failure, until a caller takes it; "" if there is none */
};

/*
 * RW_OK, or records "call: text (name, code)" and returns RW_ERR_MEMORY or RW_ERR_DEVICE. Clears the error if possible.
 */
rw_status rw_cuda_status(struct rw_cuda *cuda, cudaError_t error, const char *call);

/* Records a failure that is not a cudaError_t. */
rw_status rw_cuda_fail(struct rw_cuda *cuda, rw_status status, const char *fmt, ...) RW_PRINTF(3, 4);

/*
 * For a library's call that failed to execute: returns and records, with the call's name, the error that the device had
 * before it, whose cause may be an earlier kernel; RW_OK if there was none. During capture it does not query the
 * stream, because that would invalidate the capture.
 */
rw_status rw_cuda_earlier_error(struct rw_cuda *cuda, const char *call);

/*
 * Allows a kernel all the dynamic shared memory that the device gives a block. The limit belongs to the function on the
 * device and is shared by contexts. Each of them sets the same constant, so none lowers it between another one's call
 * and launch. Set once per context and kernel.
 */
rw_status rw_cuda_allow_shared(struct rw_cuda *cuda, const void *kernel);

/* For use after the launches of one node: RW_OK, or why the last of them was refused. */
static inline rw_status rw_cuda_launched(const rw_kernel *k)
{
    const cudaError_t error = cudaPeekAtLastError();
    return error ? rw_cuda_status((struct rw_cuda *)k->device, error, k->op ? k->op->name : "launch") : RW_OK;
}

#ifdef __cplusplus
}
#endif

#endif
