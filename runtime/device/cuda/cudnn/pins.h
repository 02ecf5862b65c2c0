/*
 * cuDNN for one family of ops: opened where the environment asked for it when the context was made, and what is pinned
 * (law 6): for each signature a plan, or that the library has none. Both stay for the life of the context. A failure
 * that is no refusal (memory, a device that is lost) pins nothing and is told; it is asked again.
 */
#ifndef RW_DEVICE_CUDA_CUDNN_PINS_H
#define RW_DEVICE_CUDA_CUDNN_PINS_H

#include "device/cuda/cudnn/graph.h"

/* Signatures of a family: plans take host memory, and shapes may vary without end. Those behind have no plan. */
#define RW_DNN_PINS_MOST 1024

struct rw_dnn_pin {
    struct rw_dnn_pin *next; /* in its bucket */
    struct rw_dnn_plan plan; /* .plan is NULL: the op's own kernels */
    int64_t pieces;          /* equal ones of the batch, each a run of the plan */
    unsigned char signature[];
};

struct rw_dnn_pins;

/* Makes pin->plan of a signature and may set pin->pieces. A refusal, or no plan and success: there is none. */
typedef cudnnStatus_t (*rw_dnn_build_fn)(const struct rw_dnn_pins *p, const void *signature, struct rw_dnn_pin *pin);

struct rw_dnn_pins {
    struct rw_cuda *cuda;
    struct rw_cudnn dnn;
    rw_dnn_build_fn build;
    size_t size; /* of a signature, whose bytes all count */
    bool wanted; /* else nothing is opened */
    bool opened; /* looked for, and found or not */
    bool has;
    struct rw_dnn_pin *bucket[RW_DNN_PINS_MOST / 2]; /* by the signature's hash */
    int n;
};

/* variable: of the environment; "cudnn" asks for it. */
void rw_dnn_pins_init(struct rw_dnn_pins *p, struct rw_cuda *cuda, const char *variable, size_t size,
                      rw_dnn_build_fn build);
void rw_dnn_pins_finish(struct rw_dnn_pins *p);

/* What is pinned for a signature, with a plan; NULL where there is none. Asks nobody. */
const struct rw_dnn_pin *rw_dnn_pinned(const struct rw_dnn_pins *p, const void *signature);

/*
 * Pins a signature that was not asked about before. Call it where an op's workspace is asked for: outside of a graph's
 * capture. plan: what to call it in the message of a failure.
 */
rw_status rw_dnn_pin(struct rw_dnn_pins *p, const void *signature, const char *plan);

/* Bytes at which a workspace, or a part of it, begins. */
#define RW_DNN_ALIGN 256
static inline size_t rw_dnn_aligned(size_t bytes)
{
    return (bytes + RW_DNN_ALIGN - 1) / RW_DNN_ALIGN * RW_DNN_ALIGN;
}

#endif
