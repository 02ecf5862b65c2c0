/* The rows of ops.golden. */
#include "golden/op_table.h"

/* A composed op: attention with its scores in memory. */
static rw_tensor *attention_scores(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *const scores = rw_matmul(t, x[0], rw_transpose(t, x[1], -1, -2));
    return rw_matmul(t, rw_causal_softmax(t, scores, op_single(c->value)), x[2]);
}

static rw_tensor *with_rand(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    (void)c;
    return rw_mul(t, x[0], rw_rand(t, rw_tensor_dtype(x[0]), rw_tensor_shape(x[0])));
}

static rw_tensor *with_randn(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    (void)c;
    return rw_mul(t, x[0], rw_randn(t, rw_tensor_dtype(x[0]), rw_tensor_shape(x[0])));
}

static rw_tensor *transpose(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    (void)c;
    return rw_contiguous(t, rw_transpose(t, x[0], 0, -1));
}

static rw_tensor *split(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *part[3];
    const int64_t n = c->in[0].shape.dim[2];
    if (rw_split(t, x[0], -1, (const int64_t[]){ 1, 2, n - 3 }, 3, part)) return NULL;
    return rw_concat(t, (rw_tensor *const[]){ part[2], part[0] }, 2, -1);
}

/*
 * Scores and probabilities are stored, and the gradients of both: dq and dk have scores, p, dp and ds in one term, and
 * scores and p once more in the other, p sum(p dp). The arithmetic is that of the fused op.
 */
static void count_attention_scores(struct op_case *c)
{
    op_count_attention(c);
    c->r[0].s = 2;
    c->r[1].s = c->r[2].s = 6;
    c->r[3].s = 2;
}

static const struct golden_row rows[] = {
    COUNTED(add, add, broadcast, .r = { { 1, 0 } }),
    COUNTED(sub, sub, broadcast, .r = { { 1, 0 } }),
    COUNTED(mul, mul, broadcast, .r = { { 1, 0 }, { 1, 1 }, { 1, 1 } }),
    COUNTED(div, div, broadcast, .r = { { 1, 0 }, { 1, 1 }, { 4, 3 } }),
    COUNTED(maximum, maximum, broadcast, .r = { { 0, 0 } }),
    COUNTED(minimum, minimum, broadcast, .r = { { 0, 0 } }),
    ROW(pow_negative, pow_scalar, .value = -0.5, .r = { { N_POW, 0 }, { N_POW_G, 0 } }),
    ROW(swiglu, swiglu, .r = { { N_SWIGLU, 0 }, { N_SWIGLU_G, 0 }, { N_SWIGLU, 0 } }),
    COUNTED(matmul, matmul, product, ),
    COUNTED(matmul_flat, matmul, product, ),
    COUNTED(matmul_transposed, matmul, product, .in = { { .layout = OP_TURNED }, { .layout = OP_TURNED } }),
    COUNTED(linear, linear, linear, ),
    COUNTED(linear_no_bias, linear, linear, ),
    COUNTED(linear_gelu, linear_gelu, linear_gelu, ),
    COUNTED(linear_gelu_no_bias, linear_gelu, linear_gelu, ),
    COUNTED(linear_add, linear_add, linear_add, ),
    COUNTED(linear_add_no_bias, linear_add, linear_add, .keep = true),
    COUNTED(layernorm, layernorm, norm, .value = 1e-3),
    COUNTED(layernorm_no_bias, layernorm, norm, .value = 1e-3),
    COUNTED(rmsnorm, rmsnorm, norm, .value = 1e-3),
    COUNTED(sum, sum, sum, .axes = 5),
    COUNTED(sum_middle, sum, sum, .axes = 2, .keep = true),
    COUNTED(sum_all, sum, sum, .axes = RW_ALL_AXES),
    COUNTED(mean_last, mean, mean, .axes = 4, .keep = true),
    COUNTED(mean_middle, mean, mean, .axes = 2),
    COUNTED(max_middle, max, max, .axes = 2, .keep = true),
    COUNTED(max_outer, max, max, .axes = 5),
    COUNTED(sum_to, sum_to, sum_to, SHAPE(5, 1)),
    COUNTED(sum_to_vector, sum_to, sum_to, SHAPE(21)),
    COUNTED(softmax, softmax, softmax, .axis = -1),
    COUNTED(softmax_middle, softmax, softmax, .axis = 1),
    COUNTED(causal_softmax, causal_softmax, softmax, .axis = -1, .value = 0.7),
    COUNTED(log_softmax, log_softmax, log_softmax, .axis = -1),
    COUNTED(log_softmax_middle, log_softmax, log_softmax, .axis = 1),
    COUNTED(logsumexp, logsumexp, logsumexp, .axes = 2, .keep = true),
    COUNTED(logsumexp_outer, logsumexp, logsumexp, .axes = 5),
    COUNTED(attention_causal, attention, attention, .causal = true),
    COUNTED(attention_full, attention, attention, .value = 0.3),
    COUNTED(attention_dropout, attention, attention, .causal = true, .dropout = 0.3),
    { "attention_scores", { .build = attention_scores, .value = 0.35 }, count_attention_scores },
    COUNTED(rope, rope, rope, .value = 10000),
    COUNTED(rope_positions, rope, rope, .value = 50),
    COUNTED(rope_with, rope_with, rope_with, .value = 1.25),
    COUNTED(rope_with_pairs, rope_with, rope_with, .value = 1, .keep = true),
    ROW(dropout, dropout, .dropout = 0.3, .r = { { N_DROPOUT, 0 }, { N_DROPOUT, 0 } }),
    ROW(dropout_add, dropout_add, .dropout = 0.3, .r = { { N_DROPOUT + 1, 0 }, { N_DROPOUT, 0 }, { 0, 0 } }),
    /* the deviate, stored, and a product; words are exact in float64, and so are deviates */
    { "rand", { .build = with_rand, .r = { { 2, 1 }, { 2, 1 } } }, NULL },
    { "randn", { .build = with_randn, .r = { { N_RANDN + 2, 1 }, { N_RANDN + 2, 1 } } }, NULL },
    COUNTED(embedding, embedding, embedding, ),
    COUNTED(embedding_padded, embedding_with, embedding, .axis = 2),
    COUNTED(cross_entropy, cross_entropy, cross_entropy, .axis = -100, .no_sum = true),
    COUNTED(cross_entropy_ignore, cross_entropy, cross_entropy, .axis = 1, .no_sum = true),
    COUNTED(mse_loss, mse_loss, mse, .no_sum = true),
    ROW(reshape, reshape, SHAPE(6, -1)),
    ROW(reshape_turned, reshape, SHAPE(6, -1), .in = { { .layout = OP_TURNED } }),
    ROW(permute, permute, ),
    { "transpose", { .build = transpose }, NULL },
    ROW(contiguous, contiguous, .in = { { .layout = OP_TURNED } }),
    ROW(slice, slice, .axis = 1),
    ROW(slice_last, slice, .axis = -1),
    COUNTED(broadcast_to, broadcast_to, broadcast_to, SHAPE(3, 4, 6)),
    ROW(concat, concat, .axis = 1),
    { "split", { .build = split }, NULL },
    /* Squares have 16 bits: rounded once to a 16-bit type, by the product or by the cast. */
    ROW(cast_bf16, cast, .dtype = RW_BF16, .r = { { 1, 0 }, { 2, 1 } }),
    ROW(cast_f32, cast, .dtype = RW_F32, .r = { { 1, 1 }, { 2, 1 } }),
    ROW(cast_f64, cast, .dtype = RW_F64, .r = { { 1, 1 }, { 2, 1 } }),
};

const struct golden_set golden_ops = { "ops.golden", rows, sizeof rows / sizeof *rows };
