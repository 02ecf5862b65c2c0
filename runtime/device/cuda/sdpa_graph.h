/* Inside cuDNN's attention: the library's functions in use, a pinned plan, and how one is built. See sdpa.h. */
#ifndef RW_DEVICE_CUDA_SDPA_GRAPH_H
#define RW_DEVICE_CUDA_SDPA_GRAPH_H

#include "device/cuda/sdpa.h"

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
    cudnnBackendDescriptor_t described; /* a device's description, with which plans are made where there is no handle */
};

/* Operands by their numbers in a plan. */
enum rw_sdpa_operand {
    RW_SDPA_Q = 1,
    RW_SDPA_K,
    RW_SDPA_V,
    RW_SDPA_O,
    RW_SDPA_STATS,
    RW_SDPA_SCALE,  /* on the host, as the next two */
    RW_SDPA_LOWEST, /* what stands for a masked score */
    RW_SDPA_ONE,
    RW_SDPA_DY,
    RW_SDPA_DQ,
    RW_SDPA_DK,
    RW_SDPA_DV,
    RW_SDPA_DOT, /* sum of dy o for each row, in the workspace */
    RW_SDPA_OPERANDS
};

#define RW_SDPA_DESCRIPTORS 192

/* Everything that a plan is made of, in the order of its making. */
struct rw_sdpa_plan {
    cudnnBackendDescriptor_t all[RW_SDPA_DESCRIPTORS];
    int n;
    cudnnBackendDescriptor_t plan; /* NULL: the library has none */
    size_t workspace;              /* the plan's own */
    size_t least_refused; /* of the plans that wanted more than the limit: the smallest workspace; 0: there were none */
};

/*
 * Describes the computation, asks for engines and makes a plan of the first that takes it within `limit` bytes of
 * workspace.
 * @return CUDNN_STATUS_SUCCESS also when there is none; else what failed. Whatever it returns, `plan` is to be freed.
 */
cudnnStatus_t rw_sdpa_build(const struct rw_cudnn *dnn, const struct rw_sdpa_signature *s, size_t limit,
                            struct rw_sdpa_plan *plan);
void rw_sdpa_free_plan(const struct rw_cudnn *dnn, struct rw_sdpa_plan *plan);

#endif
