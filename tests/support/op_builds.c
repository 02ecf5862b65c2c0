/* The build functions of op_cases.c: what each case records, on which operands. */
#include "support/op_builds.h"

#include "ops/matmul/matmul.h"

#include <stdlib.h>

/* ---- operands ---- */

/* GCC 12 omits the rounding when it vectorizes two of them: hence volatile. */
double op_single(double value)
{
    const volatile float narrow = (float)value;
    return (double)narrow;
}

double op_number(enum op_range range, int64_t i, int salt)
{
    const uint64_t mixed = ((uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)(salt + 1) * 0xd1b54a32d192ed03u) ^
                           (uint64_t)i >> 7;
    const int k = (int)((mixed * 0xbf58476d1ce4e5b9u) >> 57); /* 0 to 127 */
    switch (range) {
    case OP_POSITIVE: return (k + 8) / 32.0;
    case OP_WIDE: return (2 * k - 127) / 16.0;
    case OP_SCORES: return (k - 64) / 16.0;
    case OP_TIES: return k % 9 / 2.0 - 2;
    default: return (k - 64) / 32.0;
    }
}

rw_shape op_base_shape(const struct op_operand *o)
{
    rw_shape s = o->shape;
    const int last = s.rank - 1;
    const int64_t swap = s.rank > 1 ? s.dim[o->layout == OP_MIDDLE ? 1 : last] : 0;
    switch (o->layout) {
    case OP_TURNED: s.dim[last] = s.dim[last - 1], s.dim[last - 1] = swap; break;
    case OP_MIDDLE: s.dim[1] = s.dim[2], s.dim[2] = swap; break;
    case OP_SLICED: s.dim[last] += 3; break;
    case OP_CUT: s.dim[0] += 2; break;
    case OP_EXPANDED: s.dim[0] = 1; break;
    default: break;
    }
    return s;
}

rw_tensor *op_operand_of(rw_tape *t, const struct op_operand *o, rw_tensor *base)
{
    const rw_shape s = o->shape;
    switch (o->layout) {
    case OP_TURNED: return rw_transpose(t, base, -1, -2);
    case OP_MIDDLE: return rw_transpose(t, base, 1, 2);
    case OP_SLICED: return rw_slice(t, base, -1, 1, 1 + s.dim[s.rank - 1]);
    case OP_CUT: return rw_slice(t, base, 0, 2, 2 + s.dim[0]);
    case OP_EXPANDED: return rw_broadcast_to(t, base, s);
    default: return base;
    }
}

int64_t op_expansion(const struct op_operand *o)
{
    return o->layout == OP_EXPANDED ? o->shape.dim[0] : 1;
}

int32_t op_index(const struct op_case *c, int64_t i, int64_t below)
{
    if (c->indexes) return c->indexes[i];
    if (c->ignoring && i % 3 == 1) return c->axis;
    const int64_t most = below < OP_INDEXES ? below : OP_INDEXES;
    return (int32_t)((i * 7 + i * i * 3 + 2) % most);
}

static rw_tensor *indexes(rw_tape *t, const struct op_case *c, int64_t below)
{
    const int64_t n = rw_shape_numel(c->shape);
    int32_t *const data = malloc((size_t)(n + 1) * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = op_index(c, i, below);
    rw_tensor *const index = rw_input(t, RW_I32, c->shape, data, (size_t)n * sizeof *data);
    free(data);
    return index;
}

/* ---- what is recorded ---- */

#define B(name, ...)                                                                                                   \
    rw_tensor *op_build_##name(rw_tape *t, rw_tensor **x, const struct op_case *c)                                     \
    {                                                                                                                  \
        (void)x, (void)c;                                                                                              \
        return __VA_ARGS__;                                                                                            \
    }
B(add, rw_add(t, x[0], x[1]))
B(sub, rw_sub(t, x[0], x[1]))
B(mul, rw_mul(t, x[0], x[1]))
B(div, rw_div(t, x[0], x[1]))
B(maximum, rw_maximum(t, x[0], x[1]))
B(minimum, rw_minimum(t, x[0], x[1]))
B(pow, rw_pow(t, x[0], x[1]))
B(pow_scalar, rw_pow_scalar(t, x[0], c->value))
/* Custom gradients that equal the slope. The detached sign carries no gradient. */
B(detach, rw_mul(t, x[0], rw_detach(t, rw_straight_through(t, rw_sign(t, x[0]), x[0]))))
B(straight_through, rw_straight_through(t, rw_add(t, rw_detach(t, x[0]), rw_sign(t, x[0])), x[0]))

static rw_status twice_x(rw_grad_call *g, const void *data)
{
    rw_tape *const t = rw_grad_tape(g);
    (void)data;
    return rw_grad_set(g, 1, rw_mul(t, rw_grad_upstream(g, 0), rw_scale(t, rw_grad_input(g, 1), 2)));
}

B(custom_grad, rw_custom_grad(t, rw_mul(t, x[0], x[0]), x, 1, twice_x, NULL, 0))
B(swiglu, rw_swiglu(t, x[0], x[1]))
B(matmul, rw_matmul(t, x[0], x[1]))
/* keep: the sum is read later; else this is its last use, and the result may overwrite it */
B(matmul_add, rw_matmul_add_at(RW_HERE, t, c->keep ? x[0] : rw_scale(t, x[0], 1), x[1], x[2]))
B(linear, rw_linear(t, x[0], x[1], c->n == 3 ? x[2] : RW_NONE))
B(linear_gelu, rw_linear_gelu(t, x[0], x[1], c->n == 3 ? x[2] : RW_NONE))
/* The residual is operand 0; keep as for matmul_add. */
B(linear_add,
  rw_linear_add(t, x[1], x[2], c->n == 4 ? x[3] : RW_NONE, c->keep ? x[0] : rw_scale(t, x[0], 1)))
/* keep: in a residual stream, where x is read later and the norm's gradient is added to its gradient */
#define BESIDE(x, y) (c->keep ? rw_add(t, x, y) : (y))
#define WEIGHT (c->n > 1 ? x[1] : RW_NONE)
#define BIAS (c->n > 2 ? x[2] : RW_NONE)
B(layernorm, BESIDE(x[0], rw_layernorm(t, x[0], WEIGHT, BIAS, op_single(c->value))))
B(rmsnorm, BESIDE(x[0], rw_rmsnorm(t, x[0], WEIGHT, op_single(c->value))))
B(sum, rw_sum(t, x[0], c->axes, c->keep))
B(mean, rw_mean(t, x[0], c->axes, c->keep))
B(max, rw_max(t, x[0], c->axes, c->keep))
B(logsumexp, rw_logsumexp(t, x[0], c->axes, c->keep))
B(sum_to, rw_sum_to(t, x[0], c->shape))
B(softmax, rw_softmax(t, x[0], c->axis))
B(log_softmax, rw_log_softmax(t, x[0], c->axis))
B(causal_softmax, rw_causal_softmax(t, x[0], op_single(c->value)))
B(attention,
  rw_attention(t, x[0], x[1], x[2],
               &(rw_attention_params){ .causal = c->causal, .scale = op_single(c->value),
                                       .dropout = op_single(c->dropout) }))
B(rope_interleaved,
  rw_rope_with(t, x[0], c->shape.rank ? indexes(t, c, INT32_MAX) : RW_NONE,
               &(rw_rope_params){ .base = op_single(c->value), .interleaved = true }))
/* shape: stride, padding, dilation, groups; axis: the output's padding */
#define CONV(c)                                                                                                        \
    &(rw_conv2d_params)                                                                                                \
    {                                                                                                                  \
        .stride = { (int)c->shape.dim[0], (int)c->shape.dim[0] },                                                      \
        .padding = { (int)c->shape.dim[1], (int)c->shape.dim[1] },                                                     \
        .dilation = { (int)c->shape.dim[2], (int)c->shape.dim[2] }, .output_padding = { c->axis, c->axis },            \
        .groups = (int)c->shape.dim[3]                                                                                 \
    }
B(conv2d, rw_conv2d(t, x[0], x[1], c->n == 3 ? x[2] : RW_NONE, CONV(c)))
rw_tensor *op_statistic(rw_tape *t, rw_dtype dtype, int64_t n, bool variance)
{
    double *const wide = malloc((size_t)(n + 1) * sizeof *wide);
    float *const narrow = malloc((size_t)(n + 1) * sizeof *narrow);
    for (int64_t i = 0; i < n; i++) narrow[i] = (float)(wide[i] = op_number(variance ? OP_POSITIVE : OP_SIGNED, i, 9));
    rw_tensor *const x = dtype == RW_F64 ? rw_input(t, RW_F64, RW_SHAPE(n), wide, (size_t)n * sizeof *wide)
                                         : rw_input(t, RW_F32, RW_SHAPE(n), narrow, (size_t)n * sizeof *narrow);
    free(wide), free(narrow);
    return x;
}

static rw_tensor *evaluated(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const int64_t n = c->in[0].shape.dim[1];
    const rw_dtype dtype = rw_tensor_dtype(x[0]);
    rw_tensor *const mean = op_statistic(t, dtype, n, false), *const var = op_statistic(t, dtype, n, true);
    return rw_batchnorm(t, x[0], WEIGHT, BIAS, mean, var,
                        &(rw_batchnorm_params){ .eps = op_single(c->value), .evaluate = true });
}

B(batchnorm,
  rw_batchnorm(t, x[0], WEIGHT, BIAS, RW_NONE, RW_NONE, &(rw_batchnorm_params){ .eps = op_single(c->value) }))
B(batchnorm_eval, evaluated(t, x, c))
B(group_norm, rw_group_norm(t, x[0], c->axis, WEIGHT, BIAS, op_single(c->value)))
B(instance_norm, rw_instance_norm(t, x[0], WEIGHT, BIAS, op_single(c->value)))
/* shape: extents of the kernel, stride, padding[, dilation, whether extents are rounded up, divisor]; keep: padding
   does not count */
#define POOL(c)                                                                                                        \
    &(rw_pool2d_params)                                                                                                \
    {                                                                                                                  \
        .kernel = { (int)c->shape.dim[0], (int)c->shape.dim[1] },                                                      \
        .stride = { (int)c->shape.dim[2], (int)c->shape.dim[2] },                                                      \
        .padding = { (int)c->shape.dim[3], (int)c->shape.dim[3] }, .exclude_padding = c->keep,                         \
        .dilation = { (int)c->shape.dim[4], (int)c->shape.dim[4] }, .ceil_mode = c->shape.dim[5],                      \
        .divisor_override = (int)c->shape.dim[6]                                                                       \
    }
B(max_pool2d, rw_max_pool2d(t, x[0], POOL(c)))
B(avg_pool2d, rw_avg_pool2d(t, x[0], POOL(c)))
B(global_avg_pool2d, rw_global_avg_pool2d(t, x[0]))
/* shape: extents of the result */
B(adaptive_avg_pool2d, rw_adaptive_avg_pool2d(t, x[0], c->shape.dim[0], c->shape.dim[1]))
B(adaptive_max_pool2d, rw_adaptive_max_pool2d(t, x[0], c->shape.dim[0], c->shape.dim[1]))
B(conv_transpose2d, rw_conv_transpose2d(t, x[0], x[1], c->n == 3 ? x[2] : RW_NONE, CONV(c)))
B(rope, rw_rope(t, x[0], c->shape.rank ? indexes(t, c, INT32_MAX) : RW_NONE, op_single(c->value)))
/* shape: of positions; keep: interleaved pairs; value: scale. */
static rw_tensor *rotated(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const int64_t half = c->in[0].shape.dim[3] / 2;
    double *const f = malloc((size_t)(half + 1) * sizeof *f);
    for (int64_t i = 0; i < half; i++) f[i] = op_number(OP_POSITIVE, i, 5) / 4;
    const rw_rope_params params = { .interleaved = c->keep,
                                    .frequencies = rw_input(t, RW_F64, RW_SHAPE(half), f, (size_t)half * sizeof *f),
                                    .scale = op_single(c->value) };
    free(f);
    return rw_rope_with(t, x[0], c->shape.rank ? indexes(t, c, INT32_MAX) : RW_NONE, &params);
}
B(rope_with, rotated(t, x, c))
/* keep: the table has another reader, and the gradient is added to the other's */
static rw_tensor *embedded(rw_tape *t, rw_tensor *table, const struct op_case *c)
{
    rw_tensor *const rows = rw_embedding(t, table, indexes(t, c, c->in[0].shape.dim[0]));
    return c->keep ? rw_add(t, rows, rw_sum(t, table, RW_AXES(0), true)) : rows;
}
B(embedding, embedded(t, x[0], c))
/* axis: the padding */
B(embedding_with,
  rw_embedding_with(t, x[0], indexes(t, c, c->in[0].shape.dim[0]),
                    &(rw_embedding_params){ .has_padding_index = true, .padding_index = c->axis }))
/* value: a common offset of all logits, added only if float32 or wider holds the sum. The losses do not depend on
   it. */
static rw_tensor *logits_of(rw_tape *t, rw_tensor *x, const struct op_case *c)
{
    if (!c->value) return x;
    return rw_add_scalar(t, rw_cast(t, x, rw_tensor_dtype(x) == RW_F64 ? RW_F64 : RW_F32), c->value);
}
B(cross_entropy,
  c->axis == -100
      ? rw_cross_entropy(t, logits_of(t, x[0], c), indexes(t, c, c->in[0].shape.dim[c->in[0].shape.rank - 1]))
      : rw_cross_entropy_with(t, logits_of(t, x[0], c), indexes(t, c, c->in[0].shape.dim[c->in[0].shape.rank - 1]),
                              RW_NONE, &(rw_cross_entropy_params){ .has_ignore_index = true, .ignore_index = c->axis }))
double op_class_weight(int64_t class)
{
    return (double)(class % 5 + 1) / 4;
}

static rw_cross_entropy_params params_of(const struct op_case *c)
{
    return (rw_cross_entropy_params){ .reduction = c->loss.reduction, .label_smoothing = op_single(c->loss.smoothing),
                                      .z_loss = op_single(c->loss.z), .has_ignore_index = c->axis != -100,
                                      .ignore_index = c->axis != -100 ? c->axis : 0, .chunk = c->loss.chunk };
}

static rw_tensor *class_weights(rw_tape *t, const struct op_case *c, int64_t n)
{
    if (!c->loss.weighted) return RW_NONE;
    double *const data = malloc((size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = op_class_weight(i);
    rw_tensor *const w = rw_input(t, RW_F64, RW_SHAPE(n), data, (size_t)n * sizeof *data);
    free(data);
    return w;
}

rw_tensor *op_build_cross_entropy_with(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_cross_entropy_params params = params_of(c);
    const int64_t n = c->in[0].shape.dim[c->in[0].shape.rank - 1];
    rw_tensor *const target = indexes(t, c, n);
    return rw_cross_entropy_with(t, logits_of(t, x[0], c), target, class_weights(t, c, n), &params);
}

rw_tensor *op_build_linear_cross_entropy(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const int64_t classes = c->in[1].shape.dim[0];
    rw_cross_entropy_params params = params_of(c);
    params.bias = c->n > 2 ? x[2] : NULL;
    params.class_weight = class_weights(t, c, classes);
    return rw_linear_cross_entropy(t, x[0], x[1], indexes(t, c, classes), &params);
}

/* Probabilities are operand 1; they need not add up to 1. */
rw_tensor *op_build_soft_cross_entropy(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_cross_entropy_params params = params_of(c);
    const rw_shape s = c->in[0].shape;
    return rw_cross_entropy_with(t, logits_of(t, x[0], c), x[1], class_weights(t, c, s.dim[s.rank - 1]), &params);
}
rw_tensor *op_build_nll_loss(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_cross_entropy_params params = params_of(c);
    const int64_t n = c->in[0].shape.dim[c->in[0].shape.rank - 1];
    rw_tensor *const target = indexes(t, c, n);
    return rw_nll_loss(t, x[0], target, class_weights(t, c, n), &params);
}

B(bce_with_logits,
  rw_bce_with_logits(t, x[0], x[1], c->n > 3 ? x[3] : RW_NONE, c->n > 2 ? x[2] : RW_NONE, c->loss.reduction))
B(huber_loss, rw_huber_loss(t, x[0], x[1], op_single(c->value), c->loss.reduction))
B(smooth_l1_loss, rw_smooth_l1_loss(t, x[0], x[1], op_single(c->value), c->loss.reduction))
/* keep: the target is logarithms */
B(kl_div, rw_kl_div(t, x[0], x[1], c->keep, c->loss.reduction))
/* causal: the unbiased variance; value: the order of a norm */
B(prod, rw_prod(t, x[0], c->axes, c->keep))
B(var, rw_var(t, x[0], c->axes, c->causal, c->keep))
B(norm, rw_norm(t, x[0], c->value, c->axes, c->keep))
B(normalize, rw_normalize(t, x[0], c->value, c->axis, op_single(0.0078125)))
B(einsum, rw_einsum(t, c->equation, x, c->n))
B(mse_loss, rw_mse_loss(t, x[0], x[1]))
B(mse_loss_with, rw_mse_loss_with(t, x[0], x[1], c->loss.reduction))
B(reshape, rw_reshape(t, x[0], c->shape))
B(permute, rw_permute(t, x[0], (const int[]){ 2, 0, 1 }))
B(contiguous, rw_contiguous(t, x[0]))
B(slice, rw_slice(t, x[0], c->axis, 1, 4))
B(broadcast_to, rw_broadcast_to(t, x[0], c->shape))
B(concat, rw_concat(t, x, c->n, c->axis))
B(cast, rw_cast(t, rw_mul(t, x[0], x[0]), c->dtype))
B(dropout, rw_dropout(t, x[0], op_single(c->dropout)))
/* keep: both inputs are read later; else this is their last use, and the result may overwrite one */
B(dropout_add,
  c->keep ? rw_dropout_add(t, x[0], x[1], op_single(c->dropout))
          : rw_dropout_add(t, rw_scale(t, x[0], 1), rw_scale(t, x[1], 1), op_single(c->dropout)))
B(rand, rw_rand(t, c->dtype, c->shape))
B(randn, rw_randn(t, c->dtype, c->shape))

rw_tensor *op_build_split(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *part[3];
    const rw_shape s = rw_tensor_shape(x[0]);
    if (!x[0]) return NULL; /* NULL: the case has no such axis */
    const int64_t n = s.dim[c->axis < 0 ? s.rank + c->axis : c->axis];
    if (rw_split(t, x[0], c->axis, (const int64_t[]){ 1, n - 3, 2 }, 3, part)) return NULL;
    return rw_concat(t, (rw_tensor *const[]){ part[2], part[0], part[1] }, 3, c->axis);
}

/* ---- choices by booleans, which are not compared as numbers themselves ---- */

/* x times the result, as 1 and 0, of comparison number c->axis of x and z. */
rw_tensor *op_build_compare(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *const truth[] = { rw_eq(t, x[0], x[1]), rw_ne(t, x[0], x[1]), rw_lt(t, x[0], x[1]),
                                 rw_le(t, x[0], x[1]), rw_gt(t, x[0], x[1]), rw_ge(t, x[0], x[1]) };
    return rw_mul(t, rw_add(t, x[0], x[1]), rw_cast(t, truth[c->axis], rw_tensor_dtype(x[0])));
}

/* keep: the inputs are read later; else this is their last use, and the result may overwrite one */
B(where,
  rw_mul(t, x[0], rw_where(t, rw_gt_scalar(t, x[0], 2), c->keep ? x[1] : rw_scale(t, x[1], 1),
                           c->keep ? x[2] : rw_scale(t, x[2], 1))))
B(where_number, rw_where(t, rw_logical_or(t, rw_lt(t, x[0], x[1]), rw_gt_scalar(t, x[0], 1)), x[1], x[0]))
B(masked_fill,
  rw_add(t, x[1], rw_masked_fill(t, x[0], rw_logical_and(t, rw_gt_scalar(t, x[1], 1.0 / 64), rw_isfinite(t, x[1])),
                                 c->value)))
B(clamp, rw_clamp(t, x[0], -0.5, 0.75))
B(clamp_tensor, rw_clamp_tensor(t, x[0], x[1], c->n == 3 ? x[2] : RW_NONE))

/* ---- parts of a tensor ---- */

B(select, rw_select(t, x[0], c->axis, c->keep ? -1 : 1))
B(unsqueeze, rw_unsqueeze(t, x[0], c->axis))
B(stack, rw_stack(t, x, c->n, c->axis))
/* Windows of shape[0] elements, shape[1] apart. */
B(unfold, rw_unfold(t, x[0], c->axis, c->shape.dim[0], c->shape.dim[1]))
B(roll, rw_roll(t, x[0], (int64_t)c->value, c->axis))
B(flip, rw_flip(t, x[0], c->axis))

/* All parts of an axis except the first, the last part in front: the first part has no gradient. */
rw_tensor *op_build_unbind(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *part[16];
    const rw_shape s = rw_tensor_shape(x[0]);
    const int n = (int)s.dim[c->axis < 0 ? s.rank + c->axis : c->axis];
    if (rw_unbind(t, x[0], c->axis, part, n)) return NULL;
    rw_tensor *const first = part[1];
    part[1] = part[n - 1], part[n - 1] = first;
    return rw_stack(t, part + 1, n - 1, c->axis);
}

/* Mode c->axis. c->keep: number of axes, counted from the last. */
rw_tensor *op_build_pad(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    static const int64_t around[] = { 1, 2, 2, 0 }, cut[] = { -1, 2, 3, -2 };
    return rw_pad(t, x[0], c->causal ? cut : around, c->keep ? 4 : 2, (rw_pad_mode)c->axis, c->value);
}

/* Leaves of one shape and of x's type, which have no gradient. */
rw_tensor *op_build_numbers(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_dtype type = rw_tensor_dtype(x[0]);
    const int64_t n = c->in[0].shape.dim[c->in[0].shape.rank - 1];
    static const int32_t place[] = { 2, 0 };
    rw_tensor *const hot = rw_select(t, rw_one_hot(t, rw_input(t, RW_I32, RW_SHAPE(2), place, sizeof place), n, type),
                                     0, 0);
    rw_tensor *const row = rw_add(t, rw_arange(t, type, 3, 3 - 0.5 * (double)n, -0.5), hot);
    rw_tensor *const flat = rw_sub(t, rw_full(t, type, c->in[0].shape, 0.75), rw_ones(t, type, RW_SHAPE(n)));
    return rw_add(t, rw_mul(t, x[0], row), rw_add(t, flat, rw_zeros(t, type, RW_SCALAR)));
}

/* ---- by index ---- */

rw_tensor *op_build_topk(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *values, *places;
    if (rw_topk(t, x[0], (int64_t)c->value, c->axis, &values, &places)) return NULL;
    return values;
}

/* The largest, whose gradient goes to its position; and the smallest. */
B(argmax,
  rw_straight_through(t, rw_max(t, x[0], RW_AXES(c->axis), true),
                      rw_gather(t, x[0], c->axis, rw_argmax(t, x[0], c->axis, true))))
B(argmin,
  rw_straight_through(t, rw_neg(t, rw_max(t, rw_neg(t, x[0]), RW_AXES(c->axis), true)),
                      rw_gather(t, x[0], c->axis, rw_argmin(t, x[0], c->axis, true))))

static int64_t along(const struct op_case *c)
{
    const rw_shape s = c->in[0].shape;
    return s.dim[c->axis < 0 ? s.rank + c->axis : c->axis];
}

B(gather, rw_gather(t, x[0], c->axis, indexes(t, c, along(c))))
/* keep: the sum is read later; else this is its last use, and the result may overwrite it */
B(scatter_add, rw_scatter_add(t, c->keep ? x[0] : rw_scale(t, x[0], 1), c->axis, indexes(t, c, along(c)), x[1]))
B(index_select, rw_index_select(t, x[0], c->axis, indexes(t, c, along(c))))
B(embedding_bag, rw_embedding_bag(t, x[0], indexes(t, c, c->in[0].shape.dim[0]), c->keep ? RW_BAG_MEAN : RW_BAG_SUM))

/* axis: the mode; value: the padding, -1 none; operand 1: weights; causal: bags of 0, 3, 0 ... places, by offsets;
   keep: offsets include the end of the last bag */
rw_tensor *op_build_embedding_bag_with(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const int64_t n = rw_shape_numel(c->shape), bags = 4;
    const int32_t offsets[] = { 0, 0, (int32_t)(n < 3 ? n : 3), (int32_t)(n < 3 ? n : 3), (int32_t)n };
    const rw_embedding_bag_params params = { .mode = (rw_bag_mode)c->axis,
                                             .weights = c->n > 1 ? x[1] : NULL,
                                             .has_padding_index = c->value >= 0,
                                             .padding_index = c->value >= 0 ? (int64_t)c->value : 0,
                                             .offsets = c->causal
                                                            ? rw_input(t, RW_I32, RW_SHAPE(bags + c->keep), offsets,
                                                                       (size_t)(bags + c->keep) * sizeof *offsets)
                                                            : NULL,
                                             .ends = c->keep };
    return rw_embedding_bag_with(t, x[0], indexes(t, c, c->in[0].shape.dim[0]), &params);
}
