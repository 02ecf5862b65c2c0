/*
 * cuDNN's graph API: descriptors, their attributes, the checks of finalization, and the entry of a run. Supported
 * graphs are a convolution, and one with a bias added to it; for others no engine is offered. Engines and arithmetic:
 * convolution.cc.
 */
#include "dnn.h"

#include <string.h>

#include <map>
#include <memory>
#include <set>
#include <string>

namespace cudasim {

struct dnn_descriptor;
using descriptor_ptr = std::shared_ptr<dnn_descriptor>;

struct value {
    int64_t count;
    std::vector<char> bytes;
    std::vector<descriptor_ptr> descriptors;
};

struct dnn_descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized;
    std::map<int, value> values;
    /* The result of finalizing. */
    dnn_tensor tensor;
    std::shared_ptr<dnn_convolution> convolution;
    std::vector<const dnn_engine *> choices;
    const dnn_engine *engine;

    bool has(int name) const { return values.count(name) != 0; }
    template <typename T> T get(int name, int64_t i = 0) const
    {
        T to;
        memcpy(&to, values.at(name).bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
        return to;
    }
    const descriptor_ptr &descriptor(int name) const { return values.at(name).descriptors[0]; }
};

static std::map<const void *, descriptor_ptr> alive;
static std::set<cudnnHandle_t> handles;

void free_all_dnn()
{
    for (cudnnHandle_t h : handles) delete h;
    handles.clear();
    alive.clear();
}

void count_dnn(struct cudasim_live *live)
{
    live->dnn_objects = alive.size() + handles.size();
}

/* Entered by every call: takes the lock, returns a planted status. */
class dnn_entry {
public:
    explicit dnn_entry(const char *function) : inner(function) {}
    cudnnStatus_t planted() const
    {
        return inner.is_planted() ? static_cast<cudnnStatus_t>(inner.refused()) : CUDNN_STATUS_SUCCESS;
    }
    /* For calls that need a device. */
    cudnnStatus_t refused() const
    {
        if (inner.is_planted() || !inner.refused()) return planted();
        return broken ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_NOT_INITIALIZED;
    }

private:
    entry inner;
};

/* ---- attributes of descriptors ---- */

#define CONVOLUTION_OF(kind) CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind##_DESCRIPTOR

struct attribute {
    int of, name;
    cudnnBackendAttributeType_t type;
    int64_t most;
    bool needed;
    int holds; /* for a descriptor: its type */
};

static const int anything = -1;

#define OPERATION(kind, prefix, of_w, of_x, of_y)                                                             \
    { CONVOLUTION_OF(kind), prefix##_ALPHA, CUDNN_TYPE_FLOAT, 1, true, 0 },                                   \
    { CONVOLUTION_OF(kind), prefix##_BETA, CUDNN_TYPE_FLOAT, 1, true, 0 },                                    \
    { CONVOLUTION_OF(kind), prefix##_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true,                       \
      CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR },                                                                 \
    { CONVOLUTION_OF(kind), of_w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR },  \
    { CONVOLUTION_OF(kind), of_x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR },  \
    { CONVOLUTION_OF(kind), of_y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR }

#define POINTWISE_OPERAND(name, needed, holds)                                                  \
    { CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_##name,      \
      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, needed, holds }

static const attribute attributes[] = {
    { CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true, 0 },
    { CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 8, true, 0 },
    { CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 8, true, 0 },
    { CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, true, 0 },
    { CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, true, 0 },
    { CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, false, 0 },
    { CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, false, 0 },
    { CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true, 0 },
    { CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, true, 0 },
    { CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, true, 0 },
    { CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 3, true, 0 },
    { CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 3, true, 0 },
    { CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 3, true, 0 },
    { CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 3, true, 0 },
    { CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, true, 0 },
    { CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, true, 0 },
    { CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, false, 0 },
    POINTWISE_OPERAND(PW_DESCRIPTOR, true, CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
    POINTWISE_OPERAND(XDESC, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    POINTWISE_OPERAND(BDESC, false, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    POINTWISE_OPERAND(TDESC, false, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    POINTWISE_OPERAND(YDESC, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    OPERATION(FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y),
    OPERATION(BACKWARD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY),
    OPERATION(BACKWARD_FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY),
    { CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, true, 0 },
    { CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 100, true,
      anything },
    { CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
      true, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR },
    { CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, true, 0 },
    { CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, true, 0 },
    { CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
      1, true, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR },
    { CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1000, true, 0 },
    { CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1000, true,
      0 },
    { CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, true, 0 },
};

static bool is_convolution(int type)
{
    return type == CONVOLUTION_OF(FORWARD) || type == CONVOLUTION_OF(BACKWARD_DATA) ||
           type == CONVOLUTION_OF(BACKWARD_FILTER);
}

static bool is_operation(int type)
{
    return is_convolution(type) || type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE: return 8;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
    default: return 4;
    }
}

static const attribute *find(int of, int name)
{
    for (const attribute &a : attributes)
        if (a.of == of && a.name == name) return &a;
    return nullptr;
}

/* Scale factors of a product in double are doubles. */
static bool takes_type(const attribute &a, cudnnBackendAttributeType_t type)
{
    return a.type == type || (is_convolution(a.of) && a.type == CUDNN_TYPE_FLOAT && type == CUDNN_TYPE_DOUBLE);
}

/* Only a finalized descriptor can be part of another one. */
static cudnnStatus_t hold(value *to, const attribute &a, const void *elements)
{
    for (int64_t i = 0; i < to->count; i++) {
        const auto found = alive.find(static_cast<void *const *>(elements)[i]);
        if (found == alive.end()) return CUDNN_STATUS_BAD_PARAM;
        const descriptor_ptr &d = found->second;
        if (a.holds == anything ? !is_operation(d->type) : d->type != a.holds)
            return CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE;
        if (!d->finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
        to->descriptors.push_back(d);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Stores an attribute's elements, if type and count are valid. */
static cudnnStatus_t set(dnn_descriptor *d, const attribute &a, cudnnBackendAttributeType_t type, int64_t count,
                         const void *elements)
{
    value to = {};
    if (!takes_type(a, type)) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    if (count < 1 || count > a.most) return CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND;
    if (!elements) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    to.count = count;
    const char *const from = static_cast<const char *>(elements);
    to.bytes.assign(from, from + static_cast<size_t>(count) * size_of(type));
    if (type == CUDNN_TYPE_HANDLE && !handles.count(*static_cast<const cudnnHandle_t *>(elements)))
        return CUDNN_STATUS_BAD_PARAM;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        if (const cudnnStatus_t s = hold(&to, a, elements)) return s;
    d->values[a.name] = to;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- finalizing ---- */

/* What the library does beyond is not documented. */
static bool are_counted(const int64_t *counts, int n)
{
    for (int i = 0; i < n; i++) {
        if (counts[i] <= static_cast<int64_t>(config.max_count)) continue;
        report("cudnn: %lld: more than %llu", static_cast<long long>(counts[i]),
               static_cast<unsigned long long>(config.max_count));
        return false;
    }
    return true;
}

static bool is_counted(const dnn_tensor &t)
{
    if (!are_counted(t.dim, 4) || !are_counted(t.stride, 4)) return false;
    const int64_t elements = static_cast<int64_t>(dnn_bytes(t) / dnn_size(t.type));
    return t.is_virtual || are_counted(&elements, 1);
}

static cudnnStatus_t finish_tensor(dnn_descriptor *d)
{
    dnn_tensor *const t = &d->tensor;
    if (d->values[CUDNN_ATTR_TENSOR_DIMENSIONS].count != 4 || d->values[CUDNN_ATTR_TENSOR_STRIDES].count != 4)
        return CUDNN_STATUS_BAD_PARAM; /* the simulator has no other type */
    t->type = d->get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    t->id = d->get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    t->alignment = d->get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    for (int i = 0; i < 4; i++) {
        t->dim[i] = d->get<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, i);
        t->stride[i] = d->get<int64_t>(CUDNN_ATTR_TENSOR_STRIDES, i);
        if (t->dim[i] < 1 || t->stride[i] < 1) return CUDNN_STATUS_BAD_PARAM;
    }
    if (!dnn_size(t->type)) return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    if (t->alignment < 1 || t->alignment & (t->alignment - 1) || t->alignment % static_cast<int64_t>(dnn_size(t->type)))
        return CUDNN_STATUS_BAD_PARAM;
    t->is_virtual = d->has(CUDNN_ATTR_TENSOR_IS_VIRTUAL) && d->get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    if (d->has(CUDNN_ATTR_TENSOR_IS_BY_VALUE) && d->get<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE))
        return CUDNN_STATUS_NOT_SUPPORTED;
    return is_counted(*t) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

static cudnnStatus_t finish_convolution(dnn_descriptor *d)
{
    if (d->get<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2) return CUDNN_STATUS_NOT_SUPPORTED;
    for (const int name : { CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
                            CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS }) {
        const bool padding =
            name == CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS || name == CUDNN_ATTR_CONVOLUTION_POST_PADDINGS;
        if (d->values[name].count != 2) return CUDNN_STATUS_BAD_PARAM;
        for (int i = 0; i < 2; i++) {
            const int64_t count = d->get<int64_t>(name, i);
            if (count < (padding ? 0 : 1) || !are_counted(&count, 1)) return CUDNN_STATUS_BAD_PARAM;
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

/* The ids of an operation's attributes, in the order of OPERATION above. */
static int name_of(const dnn_descriptor *d, int i)
{
    for (const attribute &a : attributes)
        if (a.of == d->type && !i--) return a.name;
    return 0;
}

enum { ALPHA, BETA, CONVOLUTION, W, X, Y };

static double factor(const dnn_descriptor *d, int i)
{
    const bool wide = d->values.at(name_of(d, i)).bytes.size() == 8;
    return wide ? d->get<double>(name_of(d, i)) : static_cast<double>(d->get<float>(name_of(d, i)));
}

static bool shapes_agree(const dnn_convolution &c, const dnn_descriptor *conv)
{
    if (c.x.dim[0] != c.y.dim[0] || c.w.dim[0] != c.y.dim[1]) return false;
    if (c.x.dim[1] % c.w.dim[1] || c.y.dim[1] % (c.x.dim[1] / c.w.dim[1])) return false;
    for (int i = 0; i < 2; i++) {
        const int64_t padded = c.x.dim[2 + i] + conv->get<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i) +
                               conv->get<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, i);
        const int64_t reach = c.dilation[i] * (c.w.dim[2 + i] - 1) + 1;
        if (padded < reach || c.y.dim[2 + i] != (padded - reach) / c.stride[i] + 1) return false;
    }
    return true;
}

static cudnnStatus_t types_agree(const dnn_convolution &c, const dnn_descriptor *d)
{
    const bool wide = c.precision == CUDNN_DATA_DOUBLE;
    for (const int i : { ALPHA, BETA })
        if (d->values.at(name_of(d, i)).bytes.size() != (wide ? 8u : 4u)) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    if (c.x.type != c.w.type || c.y.type != (c.y.is_virtual ? c.precision : c.x.type))
        return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    if (c.precision != (c.x.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT))
        return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    return CUDNN_STATUS_SUCCESS;
}

/* Checks an operation's tensors and shapes. */
static cudnnStatus_t finish_operation(dnn_descriptor *d)
{
    const dnn_descriptor *const conv = d->descriptor(name_of(d, CONVOLUTION)).get();
    dnn_convolution c = {};
    c.kind = d->type;
    c.precision = conv->get<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
    c.alpha = factor(d, ALPHA), c.beta = factor(d, BETA);
    c.w = d->descriptor(name_of(d, W))->tensor;
    c.x = d->descriptor(name_of(d, X))->tensor;
    c.y = d->descriptor(name_of(d, Y))->tensor;
    for (int i = 0; i < 2; i++) {
        c.stride[i] = conv->get<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i);
        c.dilation[i] = conv->get<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS, i);
        c.padding[i] = conv->get<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i);
    }
    if (conv->get<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION)
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (c.x.id == c.w.id || c.x.id == c.y.id || c.w.id == c.y.id) return CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES;
    if (!shapes_agree(c, conv)) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    d->convolution = std::make_shared<dnn_convolution>(c);
    return types_agree(c, d);
}

/* y + bias, with one number for each channel, in the type of the sums. */
static cudnnStatus_t add_bias(dnn_convolution *c, const dnn_descriptor *op)
{
    const dnn_descriptor *const how = op->descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR).get();
    const dnn_tensor &x = op->descriptor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)->tensor;
    if (!op->has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) || op->has(CUDNN_ATTR_OPERATION_POINTWISE_TDESC) ||
        how->get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) != CUDNN_POINTWISE_ADD ||
        how->get<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC) != c->precision || x.id != c->y.id ||
        c->kind != CONVOLUTION_OF(FORWARD))
        return CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN;
    c->bias = op->descriptor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)->tensor;
    c->to = op->descriptor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)->tensor;
    c->biased = true;
    const int64_t one_each[] = { 1, c->y.dim[1], 1, 1 };
    if (memcmp(c->bias.dim, one_each, sizeof one_each) || memcmp(c->to.dim, c->y.dim, sizeof c->y.dim))
        return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    if (c->bias.type != c->x.type || c->to.type != c->x.type) return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    return c->bias.is_virtual || c->to.is_virtual ? CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_graph(dnn_descriptor *d)
{
    const std::vector<descriptor_ptr> &operations = d->values[CUDNN_ATTR_OPERATIONGRAPH_OPS].descriptors;
    const bool biased =
        operations.size() == 2 && operations[1]->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
    if (!is_convolution(operations[0]->type) || (operations.size() != 1 && !biased))
        return CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN;
    d->convolution = std::make_shared<dnn_convolution>(*operations[0]->convolution);
    const dnn_convolution &c = *d->convolution;
    if (c.x.is_virtual || c.w.is_virtual || c.y.is_virtual != biased) return CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN;
    return biased ? add_bias(d->convolution.get(), operations[1].get()) : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_heuristics(dnn_descriptor *d)
{
    d->convolution = d->descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->convolution;
    d->choices = dnn_choices(*d->convolution, d->get<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE));
    return CUDNN_STATUS_SUCCESS;
}

/* It loads code, which is not allowed during a capture. */
static cudnnStatus_t finish_plan(dnn_descriptor *d)
{
    const dnn_descriptor *const config = d->descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).get();
    if (refuse_unsafe()) return CUDNN_STATUS_EXECUTION_FAILED_CUDART;
    if (config->engine->refuses) return CUDNN_STATUS_NOT_SUPPORTED_SHAPE;
    d->engine = config->engine;
    d->convolution = config->convolution;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_pack(dnn_descriptor *d)
{
    std::set<int64_t> ids;
    const int64_t n = d->values[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].count;
    if (n != d->values[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS].count) return CUDNN_STATUS_BAD_PARAM;
    for (int64_t i = 0; i < n; i++) {
        if (!d->get<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
        if (!ids.insert(d->get<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i)).second)
            return CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Checks that all needed attributes are set, then finalizes by the descriptor's type. */
static cudnnStatus_t finish(dnn_descriptor *d)
{
    for (const attribute &a : attributes)
        if (a.of == d->type && a.needed && !d->has(a.name)) return CUDNN_STATUS_BAD_PARAM;
    switch (static_cast<int>(d->type)) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return finish_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: return finish_convolution(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return finish_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return finish_heuristics(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: return finish_plan(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: return finish_pack(d);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return CUDNN_STATUS_SUCCESS;
    default: return is_convolution(d->type) ? finish_operation(d) : CUDNN_STATUS_BAD_PARAM;
    }
}

/* ---- queries ---- */

/* The caller's descriptor i of an array, if it has the type and is empty. */
static dnn_descriptor *to_fill(void *elements, int64_t i, cudnnBackendDescriptorType_t type)
{
    const auto found = alive.find(static_cast<void **>(elements)[i]);
    return found == alive.end() || found->second->type != type || found->second->finalized ? nullptr
                                                                                             : found->second.get();
}

static cudnnStatus_t give_choices(const dnn_descriptor *d, int64_t requested, int64_t *count, void *elements)
{
    const int64_t has = static_cast<int64_t>(d->choices.size());
    *count = requested && requested < has ? requested : has;
    for (int64_t i = 0; i < requested && i < has; i++) {
        dnn_descriptor *const to = to_fill(elements, i, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        if (!to) return CUDNN_STATUS_BAD_PARAM;
        to->engine = d->choices[static_cast<size_t>(i)];
        to->convolution = d->convolution;
        to->finalized = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t give_engine(const dnn_descriptor *d, int64_t requested, int64_t *count, void *elements)
{
    dnn_descriptor *const to = requested ? to_fill(elements, 0, CUDNN_BACKEND_ENGINE_DESCRIPTOR) : nullptr;
    if (!to) return CUDNN_STATUS_BAD_PARAM;
    *count = 1;
    to->engine = d->engine;
    to->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t give(int64_t requested, int64_t *count, void *elements, const void *from, size_t size, int64_t n)
{
    *count = requested && requested < n ? requested : n;
    if (requested && *count) memcpy(elements, from, static_cast<size_t>(*count) * size);
    return CUDNN_STATUS_SUCCESS;
}

/* Answers a query of an attribute. */
static cudnnStatus_t ask(const dnn_descriptor *d, int name, cudnnBackendAttributeType_t type, int64_t requested,
                         int64_t *count, void *elements)
{
    const bool descriptors = type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
    if (d->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS)
        return descriptors ? give_choices(d, requested, count, elements) : CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    if (d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && name == CUDNN_ATTR_ENGINECFG_ENGINE)
        return descriptors ? give_engine(d, requested, count, elements) : CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    if (d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE)
        return type != CUDNN_TYPE_NUMERICAL_NOTE
                   ? CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE
                   : give(requested, count, elements, d->engine->notes.data(), sizeof(cudnnBackendNumericalNote_t),
                          static_cast<int64_t>(d->engine->notes.size()));
    if (d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX) {
        const int64_t id = d->engine->id;
        return type == CUDNN_TYPE_INT64 ? give(requested, count, elements, &id, sizeof id, 1)
                                        : CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    }
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        const int64_t bytes = static_cast<int64_t>(dnn_workspace(*d->engine, *d->convolution));
        return type == CUDNN_TYPE_INT64 ? give(requested, count, elements, &bytes, sizeof bytes, 1)
                                        : CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    }
    return CUDNN_STATUS_BAD_PARAM;
}

/* ---- runs ---- */

static cudnnStatus_t wrong(const std::string &what)
{
    report("cudnnBackendExecute: %s", what.c_str());
    return CUDNN_STATUS_BAD_PARAM;
}

static bool overlap(const void *a, size_t a_size, const void *b, size_t b_size)
{
    const uintptr_t x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return x < y + b_size && y < x + a_size;
}

/* The address that a variant pack has for a tensor, or null. */
static void *address_of(const dnn_descriptor *pack, int64_t id)
{
    for (int64_t i = 0; i < pack->values.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count; i++)
        if (pack->get<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i) == id)
            return pack->get<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
    return nullptr;
}

/*
 * Checks operands against the alignment that the plan was promised and against allocations. Violations of the latter
 * are reported, because they are errors of the program, to which a device responds with anything from wrong numbers to
 * a lost context.
 */
static cudnnStatus_t check_operands(const dnn_run &r)
{
    const struct {
        const dnn_tensor *t;
        const void *at;
    } all[] = { { &r.c.x, r.x }, { &r.c.w, r.w }, { r.c.biased ? &r.c.to : &r.c.y, r.y },
                { &r.c.bias, r.bias } };
    const size_t scratch = dnn_workspace(*r.engine, r.c);
    for (const auto &o : all) {
        if (o.t == &r.c.bias && !r.c.biased) continue;
        if (!o.at) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
        if (reinterpret_cast<uintptr_t>(o.at) % static_cast<uintptr_t>(o.t->alignment))
            return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
        if (!is_device(o.at, dnn_bytes(*o.t)))
            return wrong("operand " + std::to_string(o.t->id) + " is not in one device allocation");
        if (scratch && overlap(o.at, dnn_bytes(*o.t), r.workspace, scratch))
            return wrong("operand " + std::to_string(o.t->id) + " overlaps the workspace");
        for (const auto &other : all)
            if (other.t != o.t && o.t == &r.c.result() && other.at &&
                overlap(o.at, dnn_bytes(*o.t), other.at, dnn_bytes(*other.t)))
                return wrong("the result overlaps operand " + std::to_string(other.t->id));
    }
    if (!scratch) return CUDNN_STATUS_SUCCESS;
    if (!r.workspace) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (reinterpret_cast<uintptr_t>(r.workspace) % 16) return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    return is_device(r.workspace, scratch) ? CUDNN_STATUS_SUCCESS : wrong("the workspace is too small");
}

/* Checks the operands of a run and queues it. */
static cudnnStatus_t execute(cudnnHandle_t handle, const dnn_descriptor *plan, const dnn_descriptor *pack)
{
    const auto r = std::make_shared<dnn_run>();
    if (plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || pack->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE;
    if (!plan->finalized || !pack->finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    if (plan->get<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != handle) return CUDNN_STATUS_BAD_PARAM;
    if (!is_stream(handle->stream) || !is_here(handle->stream)) return CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH;
    r->c = *plan->convolution;
    r->engine = plan->engine;
    r->x = address_of(pack, r->c.x.id);
    r->w = address_of(pack, r->c.w.id);
    r->y = address_of(pack, r->c.biased ? r->c.to.id : r->c.y.id);
    r->bias = r->c.biased ? address_of(pack, r->c.bias.id) : nullptr;
    r->workspace = pack->get<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (const cudnnStatus_t s = check_operands(*r)) return s;
    const cudaError_t queued = enqueue(handle->stream, cudaGraphNodeTypeKernel, [r] {
        device_access access;
        return run_convolution(*r);
    });
    return queued ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

bool cudasim_has_library(const char *file)
{
    dnn_entry here(__func__);
    return config.cudnn || strncmp(file, "libcudnn", strlen("libcudnn"));
}

size_t cudnnGetVersion(void)
{
    dnn_entry here(__func__);
    return static_cast<size_t>(config.cudnn);
}

#define STATUSES(X)                                                                                                  \
    X(SUCCESS) X(NOT_INITIALIZED) X(BAD_PARAM) X(BAD_PARAM_NULL_POINTER) X(BAD_PARAM_MISALIGNED_POINTER)             \
    X(BAD_PARAM_NOT_FINALIZED) X(BAD_PARAM_OUT_OF_BOUND) X(BAD_PARAM_STREAM_MISMATCH) X(BAD_PARAM_SHAPE_MISMATCH)    \
    X(BAD_PARAM_DUPLICATED_ENTRIES) X(BAD_PARAM_ATTRIBUTE_TYPE) X(BAD_PARAM_DESCRIPTOR_TYPE) X(NOT_SUPPORTED)        \
    X(NOT_SUPPORTED_GRAPH_PATTERN) X(NOT_SUPPORTED_SHAPE) X(NOT_SUPPORTED_DATA_TYPE) X(INTERNAL_ERROR)               \
    X(INTERNAL_ERROR_HOST_ALLOCATION_FAILED) X(INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) X(EXECUTION_FAILED)          \
    X(EXECUTION_FAILED_CUDA_DRIVER) X(EXECUTION_FAILED_CUDART)

const char *cudnnGetErrorString(cudnnStatus_t status)
{
#define STATUS_NAME(name) if (status == CUDNN_STATUS_##name) return "CUDNN_STATUS_" #name;
    STATUSES(STATUS_NAME)
    return "CUDNN_UNKNOWN_STATUS";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    dnn_entry here(__func__);
    if (here.refused()) return here.refused();
    if (!handle) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (refuse_legacy() || refuse_unsafe()) return CUDNN_STATUS_NOT_INITIALIZED; /* it allocates device memory */
    *handle = new cudnnContext{ nullptr };
    handles.insert(*handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    dnn_entry here(__func__);
    if (here.planted()) return here.planted();
    if (!handles.erase(handle)) return CUDNN_STATUS_BAD_PARAM;
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    dnn_entry here(__func__);
    if (here.refused()) return here.refused();
    if (!handles.count(handle)) return CUDNN_STATUS_BAD_PARAM;
    if (!is_stream(stream) || !is_here(stream)) return CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* Descriptors that queries fill, and those with attributes of their own. */
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor)
{
    dnn_entry here(__func__);
    if (here.planted()) return here.planted();
    if (!descriptor) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    bool known = type == CUDNN_BACKEND_ENGINE_DESCRIPTOR || type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    for (const attribute &a : attributes) known = known || a.of == type;
    if (!known) return CUDNN_STATUS_NOT_SUPPORTED;
    const descriptor_ptr made = std::make_shared<dnn_descriptor>();
    made->type = type;
    alive[made.get()] = made;
    *descriptor = made.get();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    dnn_entry here(__func__);
    if (here.planted()) return here.planted();
    return alive.erase(descriptor) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *elements)
{
    dnn_entry here(__func__);
    if (here.planted()) return here.planted();
    const auto found = alive.find(descriptor);
    if (found == alive.end()) return CUDNN_STATUS_BAD_PARAM;
    if (found->second->finalized) return CUDNN_STATUS_NOT_INITIALIZED;
    const attribute *const a = find(found->second->type, name);
    return a ? set(found->second.get(), *a, type, count, elements) : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t *count,
                                       void *elements)
{
    dnn_entry here(__func__);
    int64_t own = 0;
    if (here.planted()) return here.planted();
    const auto found = alive.find(descriptor);
    if (found == alive.end() || requested < 0) return CUDNN_STATUS_BAD_PARAM;
    if (!found->second->finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    if (requested && !elements) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    return ask(found->second.get(), name, type, requested, count ? count : &own, elements);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    dnn_entry here(__func__);
    if (here.planted()) return here.planted();
    const auto found = alive.find(descriptor);
    if (found == alive.end()) return CUDNN_STATUS_BAD_PARAM;
    if (found->second->finalized) return CUDNN_STATUS_SUCCESS;
    const cudnnStatus_t s = finish(found->second.get());
    found->second->finalized = !s;
    return s;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    dnn_entry here(__func__);
    if (here.refused()) return here.refused();
    const auto a = alive.find(plan), b = alive.find(pack);
    if (!handles.count(handle) || a == alive.end() || b == alive.end()) return CUDNN_STATUS_BAD_PARAM;
    return execute(handle, a->second.get(), b->second.get());
}

} // extern "C"
