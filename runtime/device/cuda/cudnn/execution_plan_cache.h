/*
 * Pinned cuDNN plans of one family of ops (law 6): for each signature a plan, or the fact that the library has none.
 * The library is opened if the environment requested it when the context was created. Entries stay for the life of the
 * context. A failure that is not a refusal (memory, a lost device) pins nothing and is reported; the next call tries
 * again.
 */
#ifndef RW_DEVICE_CUDA_CUDNN_EXECUTION_PLAN_CACHE_H
#define RW_DEVICE_CUDA_CUDNN_EXECUTION_PLAN_CACHE_H

#include "device/cuda/cudnn/graph.h"

/*
 * Maximum number of signatures of a family: plans take host memory, and shapes may vary without end. Further signatures
 * have no plan.
 */
#define RW_DNN_PINS_MAX 1024

struct rw_dnn_pin {
    struct rw_dnn_pin *next; /* in its bucket */
    struct rw_dnn_plan plan; /* .plan is NULL: use the op's own kernels */
    int64_t pieces;          /* equal parts of the batch, each of them one run of the plan */
    unsigned char signature[];
};

struct rw_dnn_pins;

/* Makes pin->plan for a signature, and may set pin->pieces. A refusal, or success without a plan: there is none. */
typedef cudnnStatus_t (*rw_dnn_build_fn)(const struct rw_dnn_pins *p, const void *signature, struct rw_dnn_pin *pin);

struct rw_dnn_pins {
    struct rw_cuda *cuda;
    struct rw_cudnn dnn;
    rw_dnn_build_fn build;
    size_t size; /* of a signature, which is compared by bytes */
    bool wanted; /* otherwise nothing is opened */
    bool opened; /* searched for, whether it was found or not */
    bool has;
    struct rw_dnn_pin *bucket[RW_DNN_PINS_MAX / 2]; /* by the signature's hash */
    int n;
};

/* variable: an environment variable; "cudnn" requests the library. */
void rw_dnn_pins_init(struct rw_dnn_pins *p, struct rw_cuda *cuda, const char *variable, size_t size,
                      rw_dnn_build_fn build);
void rw_dnn_pins_finish(struct rw_dnn_pins *p);

/* The entry of a signature with a plan; NULL if there is none. Does not query the library. */
const struct rw_dnn_pin *rw_dnn_pinned(const struct rw_dnn_pins *p, const void *signature);

/*
 * Pins a signature that has no entry. Call it where an op's workspace is requested, outside of a graph's capture. plan:
 * its name in the message of a failure.
 */
rw_status rw_dnn_pin(struct rw_dnn_pins *p, const void *signature, const char *plan);

/* Alignment of a workspace and of its parts. */
#define RW_DNN_ALIGN 256
static inline size_t rw_dnn_aligned(size_t bytes)
{
    return (bytes + RW_DNN_ALIGN - 1) / RW_DNN_ALIGN * RW_DNN_ALIGN;
}

#endif
