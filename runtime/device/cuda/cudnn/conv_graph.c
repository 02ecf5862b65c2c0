/* Builds the graph of a convolution, and selects the numerical notes that are refused. */
#include "device/cuda/cudnn/conv_graph.h"

static cudnnDataType_t element_type(const struct rw_dnn_conv_signature *s)
{
    switch (s->dtype) {
    case RW_F64: return CUDNN_DATA_DOUBLE;
    case RW_BF16: return CUDNN_DATA_BFLOAT16;
    case RW_F16: return CUDNN_DATA_HALF;
    default: return CUDNN_DATA_FLOAT;
    }
}

static cudnnBackendDescriptorType_t operation_of(const struct rw_dnn_conv_signature *s)
{
    if (s->kind == RW_DNN_CONV_FORWARD) return CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
    return s->kind == RW_DNN_CONV_DATA ? CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                                       : CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
}

/* Bits by note. In float32 tensor cores read TF32 factors, which are used only if the context allows it. */
static uint32_t refused_notes(const struct rw_dnn_conv_signature *s, bool tf32)
{
    const uint32_t always = 1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                            1u << CUDNN_NUMERICAL_NOTE_WINOGRAD | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 |
                            1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
                            1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    const uint32_t rounded = 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    if (s->dtype != RW_F32) return always | rounded;
    return tf32 ? always : always | rounded | 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
}

/* An image with contiguous channels, with axes in the library's order [n, c, h, w]. id 0: not in memory. */
static struct rw_dnn_tensor image(struct rw_dnn_graph *g, int64_t id, cudnnDataType_t type, int64_t n, int64_t h,
                                  int64_t w, int64_t c)
{
    const int64_t dim[] = { n, c, h, w }, stride[] = { h * w * c, 1, w * c, c };
    return rw_dnn_tensor(g, id ? id : g->next++, type, dim, stride, id != 0, false);
}

/* Describes the operands, the product and the bias, and makes the plan. */
cudnnStatus_t rw_dnn_conv_build(const struct rw_cudnn *dnn, const struct rw_dnn_conv_signature *s, bool tf32,
                                size_t limit, struct rw_dnn_plan *plan)
{
    struct rw_dnn_graph g = { .dnn = dnn,
                              .to = plan,
                              .next = RW_DNN_CONV_OPERANDS,
                              .refused = refused_notes(s, tf32),
                              .failed = CUDNN_STATUS_SUCCESS };
    const cudnnDataType_t type = element_type(s), sums = s->dtype == RW_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    const struct rw_dnn_convolution c = { .kind = operation_of(s),
                                          .precision = sums,
                                          .stride = s->stride,
                                          .padding = s->padding,
                                          .dilation = s->dilation };
    const struct rw_dnn_tensor x = image(&g, RW_DNN_CONV_X, type, s->n, s->h, s->w, s->c);
    const struct rw_dnn_tensor w = rw_dnn_dense(&g, RW_DNN_CONV_W, type, s->oc, s->c / s->groups, s->kh, s->kw);
    const struct rw_dnn_tensor y = image(&g, RW_DNN_CONV_Y, type, s->n, s->oh, s->ow, s->oc);
    const struct rw_dnn_tensor sum = s->bias ? image(&g, 0, sums, s->n, s->oh, s->ow, s->oc) : y;
    rw_dnn_convolve(&g, &c, x, w, sum);
    if (s->bias) {
        const struct rw_dnn_tensor bias = image(&g, RW_DNN_CONV_BIAS, type, 1, 1, 1, s->oc);
        rw_dnn_pointwise_to(&g, sum, (struct rw_dnn_step){ CUDNN_POINTWISE_ADD, sums, .b = &bias }, y);
    }
    return rw_dnn_plan(&g, limit);
}
