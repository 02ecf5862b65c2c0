/*
 * Operations and plans of cuDNN's graph API: one operation per step, then a plan of the first engine that takes them.
 */
#include "device/cuda/cudnn/graph.h"

#include <string.h>

#define CHOICES_MAX 64 /* for a convolution in float32 the first thirty may round to TF32 */

#define NOTES_MAX 32
/* Descriptors that take_first() adds to those of make(): the engine's configuration and the plan. */
#define ADDED 2

/* As numbers, because headers of the first releases of cuDNN 9 have no names for them. */
#define HEURISTICS_DEVICEPROP ((cudnnBackendAttributeName_t)204)
#define PLAN_DEVICEPROP ((cudnnBackendAttributeName_t)407)

typedef cudnnBackendDescriptor_t descriptor;

/* ---- descriptors; after a failure nothing is done ---- */

static descriptor make(struct rw_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;
    if (!g->failed && g->to->n == RW_DNN_DESCRIPTORS - ADDED) g->failed = CUDNN_STATUS_INTERNAL_ERROR;
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

/* Sets the device of a plan: the handle's, or one that is only described. */
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

/* Describes a tensor of four axes, aligned to 16 bytes. */
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
    if (!g->failed && g->n_operations == RW_DNN_OPERATIONS) g->failed = CUDNN_STATUS_INTERNAL_ERROR;
    if (!g->failed) g->operations[g->n_operations++] = d;
    return d;
}

/* Adds an elementwise operation with result y. */
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

/* In float, with the shape of x. */
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

/* Attributes of an operation, by its kind. */
struct convolution_attributes {
    cudnnBackendAttributeName_t alpha, beta, conv, w, x, y;
};

/* The three kinds have the same attributes under different numbers. */
static struct convolution_attributes attributes_of(cudnnBackendDescriptorType_t kind)
{
    if (kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
        return (struct convolution_attributes){
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y
        };
    if (kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
        return (struct convolution_attributes){
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY
        };
    return (struct convolution_attributes){
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY
    };
}

static descriptor convolution(struct rw_dnn_graph *g, const struct rw_dnn_convolution *c)
{
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t axes = 2;
    const descriptor d = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &c->precision);
    set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes);
    set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, axes, c->padding);
    set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, axes, c->padding);
    set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, axes, c->stride);
    set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, axes, c->dilation);
    finalize(g, d);
    return d;
}

/* Adds a convolution with factors of 1 and 0, in the type of its sums. */
void rw_dnn_convolve(struct rw_dnn_graph *g, const struct rw_dnn_convolution *c, struct rw_dnn_tensor x,
                     struct rw_dnn_tensor w, struct rw_dnn_tensor y)
{
    static const double one = 1, zero = 0;
    static const float narrow_one = 1, narrow_zero = 0;
    const struct convolution_attributes at = attributes_of(c->kind);
    const bool wide = c->precision == CUDNN_DATA_DOUBLE;
    const cudnnBackendAttributeType_t type = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
    const descriptor d = convolution(g, c), op = operation(g, c->kind);
    set(g, op, at.alpha, type, 1, wide ? (const void *)&one : &narrow_one);
    set(g, op, at.beta, type, 1, wide ? (const void *)&zero : &narrow_zero);
    set_descriptor(g, op, at.conv, d);
    set_descriptor(g, op, at.w, w.d);
    set_descriptor(g, op, at.x, x.d);
    set_descriptor(g, op, at.y, y.d);
    finalize(g, op);
}

/* ---- choice of the engine ---- */

/* Makes a descriptor that is only read, and is not part of a plan. */
static descriptor borrow(struct rw_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;
    if (!g->failed) g->failed = g->dnn->BackendCreateDescriptor(type, &d);
    return d;
}

/* Did the call succeed? A refusal is not a failure of the graph. */
static bool took(struct rw_dnn_graph *g, cudnnStatus_t status)
{
    if (status && !rw_dnn_is_refusal(status)) g->failed = status;
    return status == CUDNN_STATUS_SUCCESS;
}

/* Do its notes allow the engine? For attention the form of the graph makes it deterministic; this is a final check. */
static bool is_taken(struct rw_dnn_graph *g, descriptor config)
{
    const uint32_t refused = g->refused | 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    cudnnBackendNumericalNote_t notes[NOTES_MAX];
    descriptor engine = borrow(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t n = 0;
    bool taken = !g->failed;
    taken = taken && took(g, g->dnn->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine));
    taken = taken && took(g, g->dnn->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                         CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX, &n, notes));
    if (n > NOTES_MAX) taken = false; /* a later library's: the list is incomplete */
    for (int64_t i = 0; taken && i < n; i++) taken = (unsigned)notes[i] < 32 && !(refused >> notes[i] & 1);
    if (engine) g->dnn->BackendDestroyDescriptor(engine);
    return taken;
}

/* Makes a plan of this engine, and returns its workspace. */
static bool query_workspace(struct rw_dnn_graph *g, descriptor plan, descriptor config, int64_t *ret)
{
    int64_t n = 0;
    set_device(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, PLAN_DEVICEPROP);
    set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    return !g->failed && took(g, g->dnn->BackendFinalize(plan)) &&
           took(g, g->dnn->BackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                               ret)) &&
           *ret >= 0;
}

/* Keeps the plan if its workspace is within the limit. Both descriptors then belong to the plan. */
static bool make_plan(struct rw_dnn_graph *g, descriptor config, size_t limit)
{
    struct rw_dnn_plan *const to = g->to;
    int64_t bytes = 0;
    const descriptor plan = borrow(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    const bool has = query_workspace(g, plan, config, &bytes);
    if (has && (uint64_t)bytes <= limit) {
        to->all[to->n++] = config;
        to->plan = to->all[to->n++] = plan;
        to->workspace = (size_t)bytes;
        return true;
    }
    if (has && (!to->least_refused || (size_t)bytes < to->least_refused)) to->least_refused = (size_t)bytes;
    if (plan) g->dnn->BackendDestroyDescriptor(plan);
    return false;
}

/* Takes the first of the library's choices that is allowed and fits. */
static void take_first(struct rw_dnn_graph *g, descriptor heuristics, size_t limit)
{
    descriptor configs[CHOICES_MAX];
    int64_t n = 0;
    for (int i = 0; i < CHOICES_MAX; i++) configs[i] = borrow(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!g->failed && took(g, g->dnn->BackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, CHOICES_MAX, &n, configs)))
        for (int64_t i = 0; i < n && i < CHOICES_MAX && !g->failed && !g->to->plan; i++)
            if (is_taken(g, configs[i]) && make_plan(g, configs[i], limit)) configs[i] = NULL;
    for (int i = 0; i < CHOICES_MAX; i++)
        if (configs[i]) g->dnn->BackendDestroyDescriptor(configs[i]);
}

static void choose(struct rw_dnn_graph *g, descriptor graph, cudnnBackendHeurMode_t mode, size_t limit)
{
    const descriptor heuristics = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    if (!g->dnn->handle) set_descriptor(g, heuristics, HEURISTICS_DEVICEPROP, g->dnn->described);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!g->failed && took(g, g->dnn->BackendFinalize(heuristics))) take_first(g, heuristics, limit);
}

cudnnStatus_t rw_dnn_plan(struct rw_dnn_graph *g, size_t limit)
{
    const descriptor graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (g->dnn->handle) set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->dnn->handle);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_operations, g->operations);
    finalize(g, graph);
    choose(g, graph, CUDNN_HEUR_MODE_A, limit);
    if (!g->failed && !g->to->plan) choose(g, graph, CUDNN_HEUR_MODE_FALLBACK, limit);
    return g->failed;
}

void rw_dnn_free_plan(const struct rw_cudnn *dnn, struct rw_dnn_plan *plan)
{
    while (plan->n) dnn->BackendDestroyDescriptor(plan->all[--plan->n]);
    plan->plan = NULL;
    plan->least_refused = plan->workspace = 0;
}

/* The descriptor of the operands is made for each run. */
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
