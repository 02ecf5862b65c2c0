/* Operands of cuDNN's attention, and the construction of its plan. */
#ifndef RW_DEVICE_CUDA_CUDNN_SDPA_GRAPH_H
#define RW_DEVICE_CUDA_CUDNN_SDPA_GRAPH_H

#include "device/cuda/cudnn/graph.h"
#include "device/cuda/cudnn/sdpa_signature.h"

/* Numbers of the operands in a plan. */
enum rw_sdpa_operand {
    RW_SDPA_Q = 1,
    RW_SDPA_K,
    RW_SDPA_V,
    RW_SDPA_O,
    RW_SDPA_STATS,
    RW_SDPA_SCALE,  /* on the host, as the next two */
    RW_SDPA_LOWEST, /* replaces a masked score */
    RW_SDPA_ONE,
    RW_SDPA_DY,
    RW_SDPA_DQ,
    RW_SDPA_DK,
    RW_SDPA_DV,
    RW_SDPA_DOT, /* sum of dy o for each row, in the workspace */
    RW_SDPA_OPERANDS
};

/* Describes the computation and makes a plan, like rw_dnn_plan(). */
cudnnStatus_t rw_sdpa_build(const struct rw_cudnn *dnn, const struct rw_sdpa_signature *s, size_t limit,
                            struct rw_dnn_plan *plan);

#endif
