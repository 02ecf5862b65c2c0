/*
 * Attention for cuDNN's graph API: one operation per step, in the pattern that its fused engines recognize. The order
 * of the operations and the types of the intermediate tensors are part of that pattern.
 */
#include "device/cuda/cudnn/sdpa_graph.h"

struct attention {
    struct rw_dnn_graph g;
    const struct rw_sdpa_signature *s;
};

static cudnnDataType_t element_type(const struct attention *a)
{
    return a->s->dtype == RW_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* Describes an operand in memory: [batch, heads, rows, d], or with the last two axes exchanged. */
static struct rw_dnn_tensor operand(struct attention *a, enum rw_sdpa_operand id, int64_t heads, int64_t rows,
                                    const int64_t *stride, bool exchanged)
{
    const int64_t d = a->s->d;
    const int64_t dim[] = { a->s->batch, heads, exchanged ? d : rows, exchanged ? rows : d };
    const int64_t strides[] = { stride[0], stride[1], exchanged ? 1 : stride[2], exchanged ? stride[2] : 1 };
    return rw_dnn_tensor(&a->g, id, element_type(a), dim, strides, true, false);
}

static struct rw_dnn_tensor query(struct attention *a, enum rw_sdpa_operand id, const int64_t *stride)
{
    return operand(a, id, a->s->heads, a->s->seq, stride, false);
}

/* An intermediate tensor: a number per score, or per row of them. */
static struct rw_dnn_tensor scores(struct attention *a, cudnnDataType_t type)
{
    return rw_dnn_dense(&a->g, 0, type, a->s->batch, a->s->heads, a->s->seq, a->s->kv_seq);
}

static struct rw_dnn_tensor rows(struct attention *a, int64_t id)
{
    return rw_dnn_dense(&a->g, id, CUDNN_DATA_FLOAT, a->s->batch, a->s->heads, a->s->seq, 1);
}

/* Replaces scores of later keys, if attention is causal. */
static struct rw_dnn_tensor masked(struct attention *a, struct rw_dnn_tensor x)
{
    if (!a->s->causal) return x;
    const struct rw_dnn_tensor row = rw_dnn_pointwise_to(
        &a->g, x, (struct rw_dnn_step){ CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2 }, scores(a, CUDNN_DATA_INT32));
    const struct rw_dnn_tensor col = rw_dnn_pointwise_to(
        &a->g, x, (struct rw_dnn_step){ CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 3 }, scores(a, CUDNN_DATA_INT32));
    const struct rw_dnn_tensor seen = rw_dnn_pointwise_to(
        &a->g, row, (struct rw_dnn_step){ CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, .b = &col },
        scores(a, CUDNN_DATA_BOOLEAN));
    const struct rw_dnn_tensor lowest = rw_dnn_number(&a->g, RW_SDPA_LOWEST);
    return rw_dnn_pointwise_to(
        &a->g, x, (struct rw_dnn_step){ CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, .b = &lowest, .mask = &seen },
        scores(a, CUDNN_DATA_FLOAT));
}

/* O = softmax(scale Q K^T) V, with the logarithms of the rows' sums in stats. */
static void forward(struct attention *a)
{
    const struct rw_sdpa_signature *const s = a->s;
    const struct rw_dnn_tensor q = query(a, RW_SDPA_Q, s->q),
                               k = operand(a, RW_SDPA_K, s->kv_heads, s->kv_seq, s->k, true);
    const struct rw_dnn_tensor v = operand(a, RW_SDPA_V, s->kv_heads, s->kv_seq, s->v, false),
                               o = query(a, RW_SDPA_O, s->o);
    const struct rw_dnn_tensor scale = rw_dnn_number(&a->g, RW_SDPA_SCALE);
    const struct rw_dnn_tensor scaled = rw_dnn_pointwise(
        &a->g, CUDNN_POINTWISE_MUL, rw_dnn_matmul(&a->g, q, k, scores(a, CUDNN_DATA_FLOAT)), &scale);
    const struct rw_dnn_tensor x = masked(a, scaled);
    const struct rw_dnn_tensor most = rw_dnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_MAX, x, rows(a, 0));
    const struct rw_dnn_tensor e = rw_dnn_pointwise(&a->g, CUDNN_POINTWISE_EXP,
                                                    rw_dnn_pointwise(&a->g, CUDNN_POINTWISE_SUB, x, &most), NULL);
    const struct rw_dnn_tensor sum = rw_dnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_ADD, e, rows(a, 0));
    const struct rw_dnn_tensor logarithm = rw_dnn_pointwise(&a->g, CUDNN_POINTWISE_LOG, sum, NULL);
    rw_dnn_pointwise_to(&a->g, most, (struct rw_dnn_step){ CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, .b = &logarithm },
                        rows(a, RW_SDPA_STATS));
    const struct rw_dnn_tensor p = rw_dnn_pointwise_to(
        &a->g, e, (struct rw_dnn_step){ CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, .b = &sum }, scores(a, element_type(a)));
    rw_dnn_matmul(&a->g, p, v, o);
}

/* A product for k or v: heads that share one are summed. */
static void key_gradient(struct attention *a, struct rw_dnn_tensor x, struct rw_dnn_tensor y, enum rw_sdpa_operand id)
{
    const struct rw_sdpa_signature *const s = a->s;
    const struct rw_dnn_tensor to = operand(a, id, s->kv_heads, s->kv_seq, s->dk, false);
    if (s->heads == s->kv_heads) rw_dnn_matmul(&a->g, x, y, to);
    else
        rw_dnn_reduce(
            &a->g, CUDNN_REDUCE_TENSOR_ADD,
            rw_dnn_matmul(&a->g, x, y, rw_dnn_dense(&a->g, 0, element_type(a), s->batch, s->heads, s->kv_seq, s->d)),
            to);
}

/* dV = P^T dO, dS = scale P (dO V^T - rowsum(dO O)), dK = dS^T Q, dQ = dS K. */
static void backward(struct attention *a)
{
    const struct rw_sdpa_signature *const s = a->s;
    const struct rw_dnn_tensor q = query(a, RW_SDPA_Q, s->q), o = query(a, RW_SDPA_O, s->o),
                               dy = query(a, RW_SDPA_DY, s->dy);
    const struct rw_dnn_tensor k = operand(a, RW_SDPA_K, s->kv_heads, s->kv_seq, s->k, true);
    const struct rw_dnn_tensor v = operand(a, RW_SDPA_V, s->kv_heads, s->kv_seq, s->v, true);
    const struct rw_dnn_tensor stats = rows(a, RW_SDPA_STATS), scale = rw_dnn_number(&a->g, RW_SDPA_SCALE),
                               one = rw_dnn_number(&a->g, RW_SDPA_ONE);
    const struct rw_dnn_tensor product = rw_dnn_pointwise_to(
        &a->g, dy, (struct rw_dnn_step){ CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, .b = &o },
        rw_dnn_dense(&a->g, 0, CUDNN_DATA_FLOAT, s->batch, s->heads, s->seq, s->d));
    const struct rw_dnn_tensor dot = rw_dnn_pointwise_to(
        &a->g, rw_dnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_ADD, product, rows(a, 0)),
        (struct rw_dnn_step){ CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, .b = &one }, rows(a, RW_SDPA_DOT));
    const struct rw_dnn_tensor scaled = rw_dnn_pointwise(
        &a->g, CUDNN_POINTWISE_MUL, rw_dnn_matmul(&a->g, q, k, scores(a, CUDNN_DATA_FLOAT)), &scale);
    const struct rw_dnn_tensor p = rw_dnn_pointwise(
        &a->g, CUDNN_POINTWISE_EXP, masked(a, rw_dnn_pointwise(&a->g, CUDNN_POINTWISE_SUB, scaled, &stats)), NULL);
    key_gradient(a, rw_dnn_exchange(&a->g, p, element_type(a)), dy, RW_SDPA_DV);
    const struct rw_dnn_tensor dp = rw_dnn_pointwise(&a->g, CUDNN_POINTWISE_SUB,
                                                     rw_dnn_matmul(&a->g, dy, v, scores(a, CUDNN_DATA_FLOAT)), &dot);
    const struct rw_dnn_tensor ds = rw_dnn_pointwise(&a->g, CUDNN_POINTWISE_MUL,
                                                     rw_dnn_pointwise(&a->g, CUDNN_POINTWISE_MUL, dp, &p), &scale);
    key_gradient(a, rw_dnn_exchange(&a->g, ds, element_type(a)), q, RW_SDPA_DK);
    rw_dnn_matmul(&a->g, ds, rw_dnn_exchange(&a->g, k, CUDNN_DATA_FLOAT), query(a, RW_SDPA_DQ, s->dq));
}

cudnnStatus_t rw_sdpa_build(const struct rw_cudnn *dnn, const struct rw_sdpa_signature *s, size_t limit,
                            struct rw_dnn_plan *plan)
{
    struct attention a = { .g = { .dnn = dnn, .to = plan, .next = RW_SDPA_OPERANDS, .failed = CUDNN_STATUS_SUCCESS },
                           .s = s };
    if (s->backward) backward(&a);
    else forward(&a);
    return rw_dnn_plan(&a.g, limit);
}
