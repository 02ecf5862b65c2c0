/*
 * The CUDA device's state, as its own files and the kernels' host code see it. C11 and C++17.
 *
 * One compute stream: kernels are queued on it in plan order, so nothing has to be waited for but results that the host
 * reads. No kernel allocates, waits or talks to the host. Values leave the device's memory and come back on streams of
 * their own (lanes.h), and from there to files (files.h); another one brings the caller's bytes (staging.h).
 */
#ifndef RW_DEVICE_CUDA_CUDA_H
#define RW_DEVICE_CUDA_CUDA_H

#include "device/lane.h"

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
    void *context;  /* the driver's; NULL: not known */
    int capability; /* 90 for compute capability 9.0 */
    bool tf32;      /* rw_context_params */
    int shared_per_block, shared_per_multiprocessor; /* bytes of shared memory, the former by opt-in */
    const void **large; /* kernels that were allowed more than 48 KiB of dynamic shared memory */
    size_t n_large, cap_large;
    cudaStream_t lane[RW_LANES]; /* by enum rw_lane */
    cudaStream_t stream;         /* the compute lane's */
    /* What is added to the first block of every ticket: 0, but for a graph that is launched again. In device memory. */
    uint64_t *ticket_base;
    uint64_t known_base; /* what was put there last */
    struct rw_blaslt *blaslt;
    struct rw_sdpa *sdpa;
    struct rw_dnn_conv *conv;
    struct rw_staging *staging;
    struct rw_cuda_files *files; /* NULL before the first store in a file */
    cudaEvent_t *marks; /* for a trace's times */
    size_t n_marks, cap_marks;
    /* Products of two 8-bit factors that were queued: by FP8 units, and of factors decoded to bfloat16. */
    uint64_t fp8_products, decoded_products;
    bool dead;                     /* an error that the CUDA runtime does not recover from */
    char message[RW_CUDA_MESSAGE]; /* what failed, until somebody takes it; "" when nothing did */
};

/* RW_OK, or notes "call: text (name, code)" and gives RW_ERR_MEMORY or RW_ERR_DEVICE. Clears what can be cleared. */
rw_status rw_cuda_status(struct rw_cuda *cuda, cudaError_t error, const char *call);

/* Notes a failure that is not a cudaError_t. */
rw_status rw_cuda_fail(struct rw_cuda *cuda, rw_status status, const char *fmt, ...) RW_PRINTF(3, 4);

/*
 * After a library's call failed to execute: the error that the device had before it, whose cause may be an earlier
 * kernel, noted with the call's name; RW_OK when it had none. While the stream is captured nothing is asked: the
 * question would invalidate the capture.
 */
rw_status rw_cuda_earlier_error(struct rw_cuda *cuda, const char *call);

/*
 * Allows a kernel all the dynamic shared memory that the device gives a block. The limit belongs to the function on the
 * device, and contexts share it: it is the same constant in each of them, so that none lowers it between another one's
 * call and launch. Asked for once per context and kernel.
 */
rw_status rw_cuda_allow_shared(struct rw_cuda *cuda, const void *kernel);

/* After the launches of one node: RW_OK, or why the last of them was refused. */
static inline rw_status rw_cuda_launched(const rw_kernel *k)
{
    const cudaError_t error = cudaPeekAtLastError();
    return error ? rw_cuda_status((struct rw_cuda *)k->device, error, k->op ? k->op->name : "launch") : RW_OK;
}

#ifdef __cplusplus
}
#endif

#endif
