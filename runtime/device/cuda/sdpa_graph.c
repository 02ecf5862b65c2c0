/*
 * Attention as cuDNN's graph API takes it: one operation per step, in the pattern that its fused engines know. The
 * order of the operations and the types of what lies between them are part of that pattern. See sdpa_graph.h.
 */
#include "device/cuda/sdpa_graph.h"

#include <float.h>
#include <string.h>

#define MOST_OPERATIONS 40
#define MOST_CHOICES 8

typedef cudnnBackendDescriptor_t descriptor;

struct graph {
    const struct rw_cudnn *dnn;
    const struct rw_sdpa_signature *s;
    struct rw_sdpa_plan *to;
    descriptor operations[MOST_OPERATIONS];
    int n_operations;
    int64_t next; /* number of the next tensor that is not in memory */
    cudnnStatus_t failed;
};

struct tensor {
    descriptor d;
    int64_t dim[4], stride[4];
};

/* ---- descriptors. After a failure nothing is done any more. ---- */

static descriptor make(struct graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;
    if (!g->failed && g->to->n == RW_SDPA_DESCRIPTORS) g->failed = CUDNN_STATUS_INTERNAL_ERROR;
    if (!g->failed) g->failed = g->dnn->BackendCreateDescriptor(type, &d);
    if (d) g->to->all[g->to->n++] = d;
    return d;
}

static void set(struct graph *g, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n, const void *values)
{
    if (!g->failed) g->failed = g->dnn->BackendSetAttribute(d, name, type, n, values);
}

static void set_descriptor(struct graph *g, descriptor d, cudnnBackendAttributeName_t name, descriptor value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* What a plan is for: the handle's device, or one that is only described. */
static void set_device(struct graph *g, descriptor d, cudnnBackendAttributeName_t handle,
                       cudnnBackendAttributeName_t described)
{
    if (g->dnn->handle) set(g, d, handle, CUDNN_TYPE_HANDLE, 1, &g->dnn->handle);
    else set_descriptor(g, d, described, g->dnn->described);
}

static void finalize(struct graph *g, descriptor d)
{
    if (!g->failed) g->failed = g->dnn->BackendFinalize(d);
}

/* ---- tensors ---- */

static struct tensor make_tensor(struct graph *g, int64_t id, cudnnDataType_t type, const int64_t *dim,
                                 const int64_t *stride, bool in_memory, bool by_value)
{
    struct tensor t = { .d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR) };
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

static cudnnDataType_t element_type(const struct graph *g)
{
    return g->s->dtype == RW_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* An operand in memory: [batch, heads, rows, d], or the last two axes exchanged. */
static struct tensor operand(struct graph *g, enum rw_sdpa_operand id, int64_t heads, int64_t rows,
                             const int64_t *stride, bool exchanged)
{
    const int64_t d = g->s->d;
    const int64_t dim[] = { g->s->batch, heads, exchanged ? d : rows, exchanged ? rows : d };
    const int64_t strides[] = { stride[0], stride[1], exchanged ? 1 : stride[2], exchanged ? stride[2] : 1 };
    return make_tensor(g, id, element_type(g), dim, strides, true, false);
}

static struct tensor query(struct graph *g, enum rw_sdpa_operand id, const int64_t *stride)
{
    return operand(g, id, g->s->heads, g->s->seq, stride, false);
}

static struct tensor number(struct graph *g, enum rw_sdpa_operand id)
{
    const int64_t one[] = { 1, 1, 1, 1 };
    return make_tensor(g, id, CUDNN_DATA_FLOAT, one, one, true, true);
}

static struct tensor dense(struct graph *g, int64_t id, cudnnDataType_t type, int64_t a, int64_t b, int64_t c,
                           int64_t d)
{
    const int64_t dim[] = { a, b, c, d }, stride[] = { b * c * d, c * d, d, 1 };
    return make_tensor(g, id ? id : g->next++, type, dim, stride, id != 0, false);
}

/* Between two operations: a number for each score, or for each row of them. */
static struct tensor scores(struct graph *g, cudnnDataType_t type)
{
    return dense(g, 0, type, g->s->batch, g->s->heads, g->s->seq, g->s->kv_seq);
}

static struct tensor rows(struct graph *g, int64_t id)
{
    return dense(g, id, CUDNN_DATA_FLOAT, g->s->batch, g->s->heads, g->s->seq, 1);
}

/* ---- operations ---- */

static descriptor operation(struct graph *g, cudnnBackendDescriptorType_t type)
{
    const descriptor d = make(g, type);
    if (g->n_operations == MOST_OPERATIONS) g->failed = CUDNN_STATUS_INTERNAL_ERROR;
    if (!g->failed) g->operations[g->n_operations++] = d;
    return d;
}

struct step {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t precision;
    int64_t axis;             /* of an index, else 0 */
    const struct tensor *b, *mask; /* second operand, and what selects; NULL when there is none */
};

static struct tensor pointwise_to(struct graph *g, struct tensor x, struct step step, struct tensor y)
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
static struct tensor pointwise(struct graph *g, cudnnPointwiseMode_t mode, struct tensor x, const struct tensor *b)
{
    const struct tensor y = make_tensor(g, g->next++, CUDNN_DATA_FLOAT, x.dim, x.stride, false, false);
    return pointwise_to(g, x, (struct step){ mode, CUDNN_DATA_FLOAT, .b = b }, y);
}

static struct tensor matmul(struct graph *g, struct tensor a, struct tensor b, struct tensor c)
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

static struct tensor reduce(struct graph *g, cudnnReduceTensorOp_t operator, struct tensor x, struct tensor y)
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
static struct tensor exchange(struct graph *g, struct tensor x, cudnnDataType_t type)
{
    const int64_t dim[] = { x.dim[0], x.dim[1], x.dim[3], x.dim[2] };
    const int64_t stride[] = { x.stride[0], x.stride[1], x.stride[3], x.stride[2] };
    const struct tensor y = make_tensor(g, g->next++, type, dim, stride, false, false);
    const descriptor op = operation(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.d);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.d);
    finalize(g, op);
    return y;
}

/* ---- attention ---- */

static struct tensor masked(struct graph *g, struct tensor x)
{
    if (!g->s->causal) return x;
    const struct tensor row = pointwise_to(g, x, (struct step){ CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2 },
                                           scores(g, CUDNN_DATA_INT32));
    const struct tensor col = pointwise_to(g, x, (struct step){ CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 3 },
                                           scores(g, CUDNN_DATA_INT32));
    const struct tensor seen = pointwise_to(
        g, row, (struct step){ CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, .b = &col }, scores(g, CUDNN_DATA_BOOLEAN));
    const struct tensor lowest = number(g, RW_SDPA_LOWEST);
    return pointwise_to(g, x,
                        (struct step){ CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, .b = &lowest, .mask = &seen },
                        scores(g, CUDNN_DATA_FLOAT));
}

static void forward(struct graph *g)
{
    const struct rw_sdpa_signature *const s = g->s;
    const struct tensor q = query(g, RW_SDPA_Q, s->q), k = operand(g, RW_SDPA_K, s->kv_heads, s->kv_seq, s->k, true);
    const struct tensor v = operand(g, RW_SDPA_V, s->kv_heads, s->kv_seq, s->v, false), o = query(g, RW_SDPA_O, s->o);
    const struct tensor scale = number(g, RW_SDPA_SCALE);
    const struct tensor scaled = pointwise(g, CUDNN_POINTWISE_MUL, matmul(g, q, k, scores(g, CUDNN_DATA_FLOAT)),
                                           &scale);
    const struct tensor x = masked(g, scaled);
    const struct tensor most = reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, rows(g, 0));
    const struct tensor e = pointwise(g, CUDNN_POINTWISE_EXP, pointwise(g, CUDNN_POINTWISE_SUB, x, &most), NULL);
    const struct tensor sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, rows(g, 0));
    const struct tensor logarithm = pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL);
    pointwise_to(g, most, (struct step){ CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, .b = &logarithm },
                 rows(g, RW_SDPA_STATS));
    const struct tensor p = pointwise_to(g, e, (struct step){ CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, .b = &sum },
                                         scores(g, element_type(g)));
    matmul(g, p, v, o);
}

/* A product for k or v: heads that share one are added up. */
static void key_gradient(struct graph *g, struct tensor a, struct tensor b, enum rw_sdpa_operand id)
{
    const struct rw_sdpa_signature *const s = g->s;
    const struct tensor to = operand(g, id, s->kv_heads, s->kv_seq, s->dk, false);
    if (s->heads == s->kv_heads) matmul(g, a, b, to);
    else
        reduce(g, CUDNN_REDUCE_TENSOR_ADD,
               matmul(g, a, b, dense(g, 0, element_type(g), s->batch, s->heads, s->kv_seq, s->d)), to);
}

/* dV = P^T dO, dS = scale P (dO V^T - rowsum(dO O)), dK = dS^T Q, dQ = dS K. */
static void backward(struct graph *g)
{
    const struct rw_sdpa_signature *const s = g->s;
    const struct tensor q = query(g, RW_SDPA_Q, s->q), o = query(g, RW_SDPA_O, s->o), dy = query(g, RW_SDPA_DY, s->dy);
    const struct tensor k = operand(g, RW_SDPA_K, s->kv_heads, s->kv_seq, s->k, true);
    const struct tensor v = operand(g, RW_SDPA_V, s->kv_heads, s->kv_seq, s->v, true);
    const struct tensor stats = rows(g, RW_SDPA_STATS), scale = number(g, RW_SDPA_SCALE), one = number(g, RW_SDPA_ONE);
    const struct tensor product =
        pointwise_to(g, dy, (struct step){ CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, .b = &o },
                     dense(g, 0, CUDNN_DATA_FLOAT, s->batch, s->heads, s->seq, s->d));
    const struct tensor dot =
        pointwise_to(g, reduce(g, CUDNN_REDUCE_TENSOR_ADD, product, rows(g, 0)),
                     (struct step){ CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, .b = &one }, rows(g, RW_SDPA_DOT));
    const struct tensor scaled = pointwise(g, CUDNN_POINTWISE_MUL, matmul(g, q, k, scores(g, CUDNN_DATA_FLOAT)),
                                           &scale);
    const struct tensor p = pointwise(g, CUDNN_POINTWISE_EXP,
                                      masked(g, pointwise(g, CUDNN_POINTWISE_SUB, scaled, &stats)), NULL);
    key_gradient(g, exchange(g, p, element_type(g)), dy, RW_SDPA_DV);
    const struct tensor dp = pointwise(g, CUDNN_POINTWISE_SUB, matmul(g, dy, v, scores(g, CUDNN_DATA_FLOAT)), &dot);
    const struct tensor ds = pointwise(g, CUDNN_POINTWISE_MUL, pointwise(g, CUDNN_POINTWISE_MUL, dp, &p), &scale);
    key_gradient(g, exchange(g, ds, element_type(g)), q, RW_SDPA_DK);
    matmul(g, ds, exchange(g, k, CUDNN_DATA_FLOAT), query(g, RW_SDPA_DQ, s->dq));
}

/* ---- the choice ---- */

/* A last check: the form of the graph is what makes it deterministic. */
static bool is_deterministic(struct graph *g, descriptor config)
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
static bool make_plan(struct graph *g, descriptor config, size_t limit)
{
    int64_t bytes = 0, n = 0;
    const descriptor plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_device(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
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

static void choose(struct graph *g, descriptor graph, cudnnBackendHeurMode_t mode, size_t limit)
{
    descriptor configs[MOST_CHOICES];
    int64_t n = 0;
    const descriptor heuristics = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    if (!g->dnn->handle) set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->dnn->described);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    for (int i = 0; i < MOST_CHOICES; i++) configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->failed || g->dnn->BackendFinalize(heuristics)) return;
    if (g->dnn->BackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                    MOST_CHOICES, &n, configs))
        return;
    for (int64_t i = 0; i < n && i < MOST_CHOICES && !g->to->plan; i++)
        if (is_deterministic(g, configs[i])) make_plan(g, configs[i], limit);
}

cudnnStatus_t rw_sdpa_build(const struct rw_cudnn *dnn, const struct rw_sdpa_signature *s, size_t limit,
                            struct rw_sdpa_plan *plan)
{
    struct graph g = { .dnn = dnn, .s = s, .to = plan, .next = RW_SDPA_OPERANDS, .failed = CUDNN_STATUS_SUCCESS };
    if (s->backward) backward(&g);
    else forward(&g);
    const descriptor graph = make(&g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (dnn->handle) set(&g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle);
    set(&g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g.n_operations, g.operations);
    finalize(&g, graph);
    choose(&g, graph, CUDNN_HEUR_MODE_A, limit);
    if (!plan->plan) choose(&g, graph, CUDNN_HEUR_MODE_FALLBACK, limit);
    return g.failed;
}

void rw_sdpa_free_plan(const struct rw_cudnn *dnn, struct rw_sdpa_plan *plan)
{
    while (plan->n) dnn->BackendDestroyDescriptor(plan->all[--plan->n]);
    plan->plan = NULL;
    plan->least_refused = plan->workspace = 0;
}
