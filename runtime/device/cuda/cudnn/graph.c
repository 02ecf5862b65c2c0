/*
 * The graph API of cuDNN: one operation per step, then a plan of the first engine that takes them. See graph.h.
 */
#include "device/cuda/cudnn/graph.h"

#include <string.h>

#define MOST_CHOICES 8

/* By their numbers: headers of the first releases of cuDNN 9 name neither. */
#define HEURISTICS_DEVICEPROP ((cudnnBackendAttributeName_t)204)
#define PLAN_DEVICEPROP ((cudnnBackendAttributeName_t)407)

typedef cudnnBackendDescriptor_t descriptor;

/* ---- descriptors. After a failure nothing is done any more. ---- */

static descriptor make(struct rw_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;
    if (!g->failed && g->to->n == RW_DNN_DESCRIPTORS) g->failed = CUDNN_STATUS_INTERNAL_ERROR;
    if (!g->failed) g->failed = g->dnn->BackendCreateDescriptor(type, &d);
    if (d) g->to->all[g->to->n++] = d;
    return d;
}

static void set(struct rw_dnn_graph *g, descriptor d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (!g->failed) g->failed = g->dnn->BackendSetAttribute(d, name, type, n, values);
}

static void set_descriptor(struct rw_dnn_graph *g, descriptor d, cudnnBackendAttributeName_t name, descriptor value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* What a plan is for: the handle's device, or one that is only described. */
static void set_device(struct rw_dnn_graph *g, descriptor d, cudnnBackendAttributeName_t handle,
                       cudnnBackendAttributeName_t described)
{
    if (g->dnn->handle) set(g, d, handle, CUDNN_TYPE_HANDLE, 1, &g->dnn->handle);
    else set_descriptor(g, d, described, g->dnn->described);
}

static void finalize(struct rw_dnn_graph *g, descriptor d)
{
    if (!g->failed) g->failed = g->dnn->BackendFinalize(d);
}

/* ---- tensors ---- */

struct rw_dnn_tensor rw_dnn_tensor(struct rw_dnn_graph *g, int64_t id, cudnnDataType_t type, const int64_t *dim,
                                   const int64_t *stride, bool in_memory, bool by_value)
{
    struct rw_dnn_tensor t = { .d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR) };
    const int64_t alignment = 16;
    const bool not_in_memory = !in_memory;
    memcpy(t.dim, dim, sizeof t.dim);
    memcpy(t.stride, stride, sizeof t.stride);
    set(g, t.d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, t.d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(g, t.d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(g, t.d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, t.d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, t.d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &not_in_memory);
    set(g, t.d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(g, t.d);
    return t;
}

struct rw_dnn_tensor rw_dnn_number(struct rw_dnn_graph *g, int64_t id)
{
    const int64_t one[] = { 1, 1, 1, 1 };
    return rw_dnn_tensor(g, id, CUDNN_DATA_FLOAT, one, one, true, true);
}

struct rw_dnn_tensor rw_dnn_dense(struct rw_dnn_graph *g, int64_t id, cudnnDataType_t type, int64_t a, int64_t b,
                                  int64_t c, int64_t d)
{
    const int64_t dim[] = { a, b, c, d }, stride[] = { b * c * d, c * d, d, 1 };
    return rw_dnn_tensor(g, id ? id : g->next++, type, dim, stride, id != 0, false);
}

/* ---- operations ---- */

static descriptor operation(struct rw_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    const descriptor d = make(g, type);
    if (g->n_operations == RW_DNN_OPERATIONS) g->failed = CUDNN_STATUS_INTERNAL_ERROR;
    if (!g->failed) g->operations[g->n_operations++] = d;
    return d;
}

struct rw_dnn_tensor rw_dnn_pointwise_to(struct rw_dnn_graph *g, struct rw_dnn_tensor x, struct rw_dnn_step step,
                                         struct rw_dnn_tensor y)
{
    const descriptor d = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &step.mode);
    set(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &step.precision);
    if (step.axis) set(g, d, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &step.axis);
    finalize(g, d);
    const descriptor op = operation(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.d);
    if (step.b) set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, step.b->d);
    if (step.mask) set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, step.mask->d);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.d);
    finalize(g, op);
    return y;
}

/* In float, of the shape of x. */
struct rw_dnn_tensor rw_dnn_pointwise(struct rw_dnn_graph *g, cudnnPointwiseMode_t mode, struct rw_dnn_tensor x,
                                      const struct rw_dnn_tensor *b)
{
    const struct rw_dnn_tensor y = rw_dnn_tensor(g, g->next++, CUDNN_DATA_FLOAT, x.dim, x.stride, false, false);
    return rw_dnn_pointwise_to(g, x, (struct rw_dnn_step){ mode, CUDNN_DATA_FLOAT, .b = b }, y);
}

struct rw_dnn_tensor rw_dnn_matmul(struct rw_dnn_graph *g, struct rw_dnn_tensor a, struct rw_dnn_tensor b,
                                   struct rw_dnn_tensor c)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const descriptor d = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finalize(g, d);
    const descriptor op = operation(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.d);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.d);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.d);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, d);
    finalize(g, op);
    return c;
}

struct rw_dnn_tensor rw_dnn_reduce(struct rw_dnn_graph *g, cudnnReduceTensorOp_t operator, struct rw_dnn_tensor x,
                                   struct rw_dnn_tensor y)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const descriptor d = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operator);
    set(g, d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finalize(g, d);
    const descriptor op = operation(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.d);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.d);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, d);
    finalize(g, op);
    return y;
}

/* x with its last two axes exchanged. */
struct rw_dnn_tensor rw_dnn_exchange(struct rw_dnn_graph *g, struct rw_dnn_tensor x, cudnnDataType_t type)
{
    const int64_t dim[] = { x.dim[0], x.dim[1], x.dim[3], x.dim[2] };
    const int64_t stride[] = { x.stride[0], x.stride[1], x.stride[3], x.stride[2] };
    const struct rw_dnn_tensor y = rw_dnn_tensor(g, g->next++, type, dim, stride, false, false);
    const descriptor op = operation(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.d);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.d);
    finalize(g, op);
    return y;
}

/* ---- the choice ---- */

/* A last check: the form of the graph is what makes it deterministic. */
static bool is_deterministic(struct rw_dnn_graph *g, descriptor config)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    descriptor engine = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t n = 0;
    if (g->failed ||
        g->dnn->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine))
        return false;
    if (g->dnn->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                    CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return true;
}

/* An engine may refuse a plan: that is no failure. */
static bool make_plan(struct rw_dnn_graph *g, descriptor config, size_t limit)
{
    int64_t bytes = 0, n = 0;
    const descriptor plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_device(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, PLAN_DEVICEPROP);
    set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (g->failed || g->dnn->BackendFinalize(plan)) return false;
    if (g->dnn->BackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &bytes))
        return false;
    if (bytes < 0) return false;
    if ((uint64_t)bytes > limit) {
        if (!g->to->least_refused || (size_t)bytes < g->to->least_refused) g->to->least_refused = (size_t)bytes;
        return false;
    }
    g->to->plan = plan;
    g->to->workspace = (size_t)bytes;
    return true;
}

static void choose(struct rw_dnn_graph *g, descriptor graph, cudnnBackendHeurMode_t mode, size_t limit)
{
    descriptor configs[MOST_CHOICES];
    int64_t n = 0;
    const descriptor heuristics = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    if (!g->dnn->handle) set_descriptor(g, heuristics, HEURISTICS_DEVICEPROP, g->dnn->described);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    for (int i = 0; i < MOST_CHOICES; i++) configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->failed || g->dnn->BackendFinalize(heuristics)) return;
    if (g->dnn->BackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                    MOST_CHOICES, &n, configs))
        return;
    for (int64_t i = 0; i < n && i < MOST_CHOICES && !g->to->plan; i++)
        if (is_deterministic(g, configs[i])) make_plan(g, configs[i], limit);
}

cudnnStatus_t rw_dnn_plan(struct rw_dnn_graph *g, size_t limit)
{
    const descriptor graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (g->dnn->handle) set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->dnn->handle);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_operations, g->operations);
    finalize(g, graph);
    choose(g, graph, CUDNN_HEUR_MODE_A, limit);
    if (!g->to->plan) choose(g, graph, CUDNN_HEUR_MODE_FALLBACK, limit);
    return g->failed;
}

void rw_dnn_free_plan(const struct rw_cudnn *dnn, struct rw_dnn_plan *plan)
{
    while (plan->n) dnn->BackendDestroyDescriptor(plan->all[--plan->n]);
    plan->plan = NULL;
    plan->least_refused = plan->workspace = 0;
}

cudnnStatus_t rw_dnn_execute(const struct rw_cudnn *dnn, const struct rw_dnn_plan *plan, int64_t n, const int64_t *ids,
                             void *const *addresses, void *workspace)
{
    descriptor pack;
    cudnnStatus_t status = dnn->BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status) return status;
    status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, addresses);
    if (!status) status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    if (!status)
        status = dnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (!status) status = dnn->BackendFinalize(pack);
    if (!status) status = dnn->BackendExecute(dnn->handle, plan->plan, pack);
    dnn->BackendDestroyDescriptor(pack);
    return status;
}
