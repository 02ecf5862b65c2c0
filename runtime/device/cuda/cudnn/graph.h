/*
 * Builds a cuDNN graph of operations, and an execution plan of it.
 *
 *     struct rw_dnn_graph g = { .dnn = dnn, .to = &plan, .next = NUMBER };   numbers from there on are the graph's own
 *     ... rw_dnn_tensor(), rw_dnn_matmul(), ...
 *     status = rw_dnn_plan(&g, limit);
 *     status = rw_dnn_execute(dnn, &plan, n, ids, addresses, workspace);     as often as wanted
 *     rw_dnn_free_plan(dnn, &plan);
 *
 * After a failure all later calls do nothing, and rw_dnn_plan() returns the first failure. An operand is a tensor in
 * memory with a number; other tensors are between two operations.
 */
#ifndef RW_DEVICE_CUDA_CUDNN_GRAPH_H
#define RW_DEVICE_CUDA_CUDNN_GRAPH_H

#include "device/cuda/cudnn/library.h"

#define RW_DNN_DESCRIPTORS 192
#define RW_DNN_OPERATIONS 40

/* All descriptors of a plan, in the order of creation. */
struct rw_dnn_plan {
    cudnnBackendDescriptor_t all[RW_DNN_DESCRIPTORS];
    int n;
    cudnnBackendDescriptor_t plan; /* NULL: the library has none */
    size_t workspace;              /* the plan's own */
    size_t least_refused; /* minimum workspace of the plans that exceeded the limit; 0: there were none */
};

struct rw_dnn_graph {
    const struct rw_cudnn *dnn;
    struct rw_dnn_plan *to;
    cudnnBackendDescriptor_t operations[RW_DNN_OPERATIONS];
    int n_operations;
    int64_t next; /* number of the next tensor that is not in memory */
    uint32_t refused; /* engines that are refused, besides nondeterministic ones: bits by numerical note */
    cudnnStatus_t failed;
};

struct rw_dnn_tensor {
    cudnnBackendDescriptor_t d;
    int64_t dim[4], stride[4];
};

struct rw_dnn_tensor rw_dnn_tensor(struct rw_dnn_graph *g, int64_t id, cudnnDataType_t type, const int64_t *dim,
                                   const int64_t *stride, bool in_memory, bool by_value);
/* One float on the host. */
struct rw_dnn_tensor rw_dnn_number(struct rw_dnn_graph *g, int64_t id);
/* Dense; id 0: not in memory. */
struct rw_dnn_tensor rw_dnn_dense(struct rw_dnn_graph *g, int64_t id, cudnnDataType_t type, int64_t a, int64_t b,
                                  int64_t c, int64_t d);

struct rw_dnn_step {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t precision;
    int64_t axis;                         /* of an index, otherwise 0 */
    const struct rw_dnn_tensor *b, *mask; /* second operand, and the mask that selects; NULL if there is none */
};

/* Each function returns its result. */
struct rw_dnn_tensor rw_dnn_pointwise_to(struct rw_dnn_graph *g, struct rw_dnn_tensor x, struct rw_dnn_step step,
                                         struct rw_dnn_tensor y);
/* In float, with the shape of x. */
struct rw_dnn_tensor rw_dnn_pointwise(struct rw_dnn_graph *g, cudnnPointwiseMode_t mode, struct rw_dnn_tensor x,
                                      const struct rw_dnn_tensor *b);
struct rw_dnn_tensor rw_dnn_matmul(struct rw_dnn_graph *g, struct rw_dnn_tensor a, struct rw_dnn_tensor b,
                                   struct rw_dnn_tensor c);
struct rw_dnn_tensor rw_dnn_reduce(struct rw_dnn_graph *g, cudnnReduceTensorOp_t operator, struct rw_dnn_tensor x,
                                   struct rw_dnn_tensor y);
/* x with its last two axes exchanged. */
struct rw_dnn_tensor rw_dnn_exchange(struct rw_dnn_graph *g, struct rw_dnn_tensor x, cudnnDataType_t type);

struct rw_dnn_convolution {
    cudnnBackendDescriptorType_t kind; /* CUDNN_BACKEND_OPERATION_CONVOLUTION_..._DESCRIPTOR */
    cudnnDataType_t precision;         /* of the sums */
    const int64_t *stride, *padding, *dilation;
};

/* Two of x, w and y are read and one is the result, by kind. Groups follow from the channels. */
void rw_dnn_convolve(struct rw_dnn_graph *g, const struct rw_dnn_convolution *c, struct rw_dnn_tensor x,
                     struct rw_dnn_tensor w, struct rw_dnn_tensor y);

/*
 * A refusal depends only on the graph, the library and the device, so it is the same every time. Other failures may
 * come from lack of memory or from earlier work, and must not decide which engine is used.
 */
static inline bool rw_dnn_is_refusal(cudnnStatus_t status)
{
    const int category = CUDNN_STATUS_CATEGORY(status);
    return category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM ||
           (category == CUDNN_STATUS_INTERNAL_ERROR && status != CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED &&
            status != CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
}

/*
 * Queries engines and makes a plan of the first deterministic one that takes the graph within `limit` bytes of
 * workspace.
 * @return CUDNN_STATUS_SUCCESS also if there is none, otherwise the failure. In any case the plan must be freed.
 */
cudnnStatus_t rw_dnn_plan(struct rw_dnn_graph *g, size_t limit);
void rw_dnn_free_plan(const struct rw_cudnn *dnn, struct rw_dnn_plan *plan);

/* Queues a run of the plan, with n operands by number and address. */
cudnnStatus_t rw_dnn_execute(const struct rw_cudnn *dnn, const struct rw_dnn_plan *plan, int64_t n, const int64_t *ids,
                             void *const *addresses, void *workspace);

#endif
