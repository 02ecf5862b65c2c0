/*
 * The magnitudes M of op_cases.h for ops whose own result at absolute values is not enough. Each is the sum of the
 * magnitudes of the terms of an element, as the kernels add them up, so that an error relative to a term is relative to
 * M. All are computed in float64.
 *
 * Where a term is a function of something that has an error itself, that error is weighted by the function's slope:
 * - sigmoid and tanh have slopes below their own size or below 1; gelu's erf and density: |z erf'(z)| < 1/2 and |x^3
 *   density(x)| < 1/2, so x and 1 + |x| cover them; gelu_tanh's argument: 1 + the slope of |x|.
 * - exp(x - max) of a softmax: its argument is off by 2 u |x| from shifting and 2 u |x| from scaling, in the numerator
 *   and in the sum: K = 1 + 8 max|scaled x| times the exponential.
 * - an angle of rope is off by a few u times itself: 1 + angle.
 */
#include "support/op_builds.h"

#include <math.h>
#include <stdlib.h>

static rw_tensor *product(rw_tape *t, rw_tensor *a, rw_tensor *b, rw_tensor *c)
{
    return rw_mul(t, rw_mul(t, a, b), c);
}

static rw_tensor *one_plus(rw_tape *t, rw_tensor *x)
{
    return rw_add_scalar(t, x, 1);
}

static rw_tensor *absolute(rw_tape *t, rw_tensor *x)
{
    return rw_abs(t, x);
}

void op_values(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    /* A marker: the harness uses the case's own gradient at |w| */
    (void)t, (void)c, (void)x, (void)w, (void)y, (void)m;
}

/* A rounding of b - 1 has weight |(b - 1) log a|. */
void op_sizes_pow(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    rw_tensor *const up = absolute(t, w), *const log = absolute(t, rw_log(t, x[0]));
    rw_tensor *const b = rw_add_scalar(t, x[1], -1);
    rw_tensor *const weight = one_plus(t, rw_mul(t, absolute(t, b), log));
    rw_tensor *const steep = product(t, absolute(t, x[1]), rw_pow(t, x[0], b), weight);
    m[0] = y;
    m[1] = rw_sum_to(t, rw_mul(t, up, steep), c->in[0].shape);
    m[2] = rw_sum_to(t, product(t, up, y, log), c->in[1].shape);
}

void op_sizes_tanh(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)c, (void)x;
    m[0] = y;
    m[1] = rw_mul(t, w, one_plus(t, rw_scale(t, rw_mul(t, y, y), 2)));
}

void op_sizes_sigmoid(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)c, (void)x;
    m[0] = y;
    m[1] = rw_mul(t, w, y);
}

void op_sizes_silu(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)c;
    m[0] = y;
    m[1] = product(t, w, rw_sigmoid(t, x[0]), one_plus(t, absolute(t, x[0])));
}

void op_sizes_gelu(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)c, (void)y;
    m[0] = x[0];
    m[1] = rw_mul(t, w, one_plus(t, absolute(t, x[0])));
}

void op_sizes_gelu_tanh(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)c, (void)y;
    rw_tensor *const cube = one_plus(t, rw_scale(t, rw_mul(t, x[0], x[0]), 3 * 0.044715));
    m[0] = x[0];
    m[1] = rw_mul(t, w, one_plus(t, rw_mul(t, rw_scale(t, absolute(t, x[0]), sqrt(2 / M_PI)), cube)));
}

/*
 * The function's argument is z = x weight^T + bias, which is off by some u |x| |weight|^T + u |bias|. That is weighted
 * by the largest slope, 1.129, in the result, and by the slope's largest slope, 0.798, in the gradient.
 */
void op_sizes_linear_gelu(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    const rw_shape s = rw_tensor_shape(w);
    const int64_t out = s.dim[s.rank - 1], in = c->in[1].shape.dim[1];
    rw_tensor *const bias = c->n == 3 ? absolute(t, x[2]) : RW_NONE;
    rw_tensor *const z = absolute(t, rw_linear(t, x[0], x[1], c->n == 3 ? x[2] : RW_NONE));
    rw_tensor *const terms = rw_linear(t, absolute(t, x[0]), absolute(t, x[1]), bias);
    rw_tensor *const cube = one_plus(t, rw_scale(t, rw_mul(t, z, z), 3 * 0.044715));
    rw_tensor *const steep = rw_mul(t, rw_scale(t, z, sqrt(2 / M_PI)), cube);
    rw_tensor *const dz = rw_mul(t, absolute(t, w), one_plus(t, rw_add(t, steep, rw_scale(t, terms, 0.798))));
    int64_t n = 1;
    for (int i = 0; i < s.rank - 1; i++) n *= s.dim[i];
    rw_tensor *const rows = rw_reshape(t, dz, RW_SHAPE(n, out));
    rw_tensor *const inputs = rw_reshape(t, absolute(t, x[0]), RW_SHAPE(n, in));
    m[0] = rw_scale(t, terms, 1.129);
    m[1] = rw_reshape(t, rw_matmul(t, rows, absolute(t, x[1])), c->in[0].shape);
    m[2] = rw_matmul(t, rw_transpose(t, rows, 0, 1), inputs);
    if (c->n == 3) m[3] = rw_sum_to(t, rows, RW_SHAPE(out));
}

void op_sizes_swiglu(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)c;
    m[0] = y;
    m[1] = rw_mul(t, product(t, w, x[1], rw_sigmoid(t, x[0])), one_plus(t, absolute(t, x[0])));
    m[2] = rw_mul(t, w, rw_silu(t, x[0]));
}

/* xh: (|x| + |mean|) / sqrt(var + eps), where var is of the values with their mean subtracted. */
void op_sizes_norm(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    rw_tensor *const one = rw_full(t, RW_F64, RW_SCALAR, 1);
    rw_tensor *const size = absolute(t, x[0]), *const gain = c->n > 1 ? absolute(t, x[1]) : one;
    rw_tensor *const up = absolute(t, w);
    rw_tensor *const centred = c->rms ? x[0] : rw_sub(t, x[0], rw_mean(t, x[0], RW_AXES(-1), true));
    rw_tensor *const var = rw_mean(t, rw_mul(t, centred, centred), RW_AXES(-1), true);
    rw_tensor *const r = rw_pow_scalar(t, rw_add_scalar(t, var, (double)(float)c->value), -0.5);
    rw_tensor *const parts = c->rms ? size : rw_add(t, size, rw_mean(t, size, RW_AXES(-1), true));
    rw_tensor *const xh = rw_mul(t, parts, r), *h = rw_mul(t, up, gain);
    rw_tensor *const inner = rw_mul(t, xh, rw_mean(t, rw_mul(t, h, xh), RW_AXES(-1), true));
    if (!c->rms) h = rw_add(t, h, rw_mean(t, h, RW_AXES(-1), true));
    m[0] = rw_mul(t, xh, gain);
    if (c->n == 3) m[0] = rw_add(t, m[0], absolute(t, x[2]));
    m[1] = rw_mul(t, r, rw_add(t, h, inner));
    if (c->n > 1) m[2] = rw_sum_to(t, rw_mul(t, up, xh), rw_tensor_shape(x[1]));
    if (c->n == 3) m[3] = rw_sum_to(t, up, rw_tensor_shape(x[1]));
    if (c->keep) m[0] = rw_add(t, m[0], size), m[1] = rw_add(t, m[1], up);
}

/* 1 + 8 max|x| over some axes. */
static rw_tensor *steepness(rw_tape *t, rw_tensor *x, uint32_t axes)
{
    return one_plus(t, rw_scale(t, rw_max(t, absolute(t, x), axes, true), 8));
}

/* As op_sizes_norm(), of x as [segments, rows, groups, channels of a group]. */
void op_sizes_groups(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    const rw_shape s = rw_tensor_shape(x[0]), vector = RW_SHAPE(s.dim[1]);
    const bool batch = c->build == op_build_batchnorm || c->build == op_build_batchnorm_eval;
    const int64_t groups = c->build == op_build_group_norm ? c->axis : s.dim[1];
    int64_t pixels = 1;
    rw_shape last = s; /* channels last */
    int in[RW_MAX_RANK] = { 0 }, out[RW_MAX_RANK] = { 0 };
    for (int i = 0; i < s.rank; i++) {
        const int at = i > 1 ? i - 1 : i ? s.rank - 1 : 0;
        in[at] = i, out[i] = at, last.dim[at] = s.dim[i];
        if (i > 1) pixels *= s.dim[i];
    }
    const rw_shape row = RW_SHAPE(groups, groups ? s.dim[1] / groups : 1);
    const rw_shape cut = RW_SHAPE(batch ? 1 : s.dim[0], batch ? s.dim[0] * pixels : pixels, groups, row.dim[1]);
    rw_tensor *const inside = rw_reshape(t, rw_permute(t, x[0], in), cut);
    rw_tensor *const up = absolute(t, rw_reshape(t, rw_permute(t, w, in), cut));
    rw_tensor *const one = rw_full(t, RW_F64, row, 1), *const size = absolute(t, inside);
    rw_tensor *const gain = c->n > 1 ? absolute(t, rw_reshape(t, x[1], row)) : one;
    rw_tensor *mean = rw_mean(t, inside, RW_AXES(1, 3), true), *of_size = rw_mean(t, size, RW_AXES(1, 3), true);
    rw_tensor *const centred = rw_sub(t, inside, mean);
    rw_tensor *var = rw_mean(t, rw_mul(t, centred, centred), RW_AXES(1, 3), true);
    const bool given = c->build == op_build_batchnorm_eval;
    if (given) {
        of_size = absolute(t, rw_reshape(t, op_statistic(t, RW_F64, s.dim[1], false), row));
        var = rw_reshape(t, op_statistic(t, RW_F64, s.dim[1], true), row);
    }
    rw_tensor *const r = rw_pow_scalar(t, rw_add_scalar(t, var, (double)(float)c->value), -0.5);
    rw_tensor *const xh = rw_mul(t, rw_add(t, size, of_size), r), *const h = rw_mul(t, up, gain);
    rw_tensor *const inner = rw_mul(t, xh, rw_mean(t, rw_mul(t, h, xh), RW_AXES(1, 3), true));
    rw_tensor *const means = rw_add(t, inner, rw_mean(t, h, RW_AXES(1, 3), true));
    m[0] = rw_mul(t, xh, gain);
    if (c->n > 2) m[0] = rw_add(t, m[0], absolute(t, rw_reshape(t, x[2], row)));
    m[1] = rw_mul(t, r, given ? h : rw_add(t, h, means));
    if (c->n > 1) m[2] = rw_reshape(t, rw_sum_to(t, rw_mul(t, up, xh), row), vector);
    if (c->n > 2) m[3] = rw_reshape(t, rw_sum_to(t, up, row), vector);
    for (int i = 0; i < 2; i++) m[i] = rw_permute(t, rw_reshape(t, m[i], last), out);
}

void op_sizes_softmax(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const uint32_t axes = RW_AXES(c->axis);
    rw_tensor *const up = absolute(t, w), *const k = steepness(t, rw_scale(t, x[0], c->value), axes);
    m[0] = rw_mul(t, y, k);
    m[1] = rw_scale(t, rw_mul(t, m[0], rw_add(t, up, rw_sum(t, rw_mul(t, y, up), axes, true))), c->value);
}

void op_sizes_log_softmax(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const uint32_t axes = RW_AXES(c->axis);
    rw_tensor *const up = absolute(t, w), *const total = absolute(t, rw_logsumexp(t, x[0], axes, true));
    rw_tensor *const k = rw_add(t, steepness(t, x[0], axes), total);
    m[0] = rw_add(t, k, absolute(t, y));
    m[1] = rw_add(t, up, product(t, rw_exp(t, y), m[0], rw_sum(t, up, axes, true)));
}

void op_sizes_logsumexp(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    rw_tensor *const total = rw_logsumexp(t, x[0], c->axes, true);
    rw_tensor *const k = rw_add(t, steepness(t, x[0], c->axes), absolute(t, total));
    m[0] = rw_reshape(t, k, rw_tensor_shape(y));
    m[1] = product(t, rw_exp(t, rw_sub(t, x[0], total)), k, rw_reshape(t, w, rw_tensor_shape(total)));
}

/* ---- attention ---- */

/* [b, kv_heads, s, d] as [b, heads, s, d], and the inverse as a sum. */
static rw_tensor *repeated(rw_tape *t, rw_tensor *x, int64_t heads)
{
    const rw_shape s = rw_tensor_shape(x);
    const int64_t group = heads / s.dim[1];
    rw_tensor *const one = rw_reshape(t, x, RW_SHAPE(s.dim[0], s.dim[1], 1, s.dim[2], s.dim[3]));
    rw_tensor *const all = rw_broadcast_to(t, one, RW_SHAPE(s.dim[0], s.dim[1], group, s.dim[2], s.dim[3]));
    return rw_reshape(t, all, RW_SHAPE(s.dim[0], heads, s.dim[2], s.dim[3]));
}

static rw_tensor *gathered(rw_tape *t, rw_tensor *x, int64_t kv_heads)
{
    const rw_shape s = rw_tensor_shape(x);
    rw_tensor *const groups = rw_reshape(t, x, RW_SHAPE(s.dim[0], kv_heads, s.dim[1] / kv_heads, s.dim[2], s.dim[3]));
    return rw_sum(t, groups, RW_AXES(2), false);
}

static rw_tensor *times_transposed(rw_tape *t, rw_tensor *a, rw_tensor *b)
{
    return rw_matmul(t, a, rw_transpose(t, b, -1, -2));
}

/* Dropout removes terms and scales the others: no sum of magnitudes exceeds that of all of them. */
void op_sizes_attention(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    const int64_t heads = c->in[0].shape.dim[1], kv_heads = c->in[1].shape.dim[1], d = c->in[0].shape.dim[3];
    const double scale = c->value != 0 ? (double)(float)c->value : 1 / sqrt((double)d), kept = 1 / (1 - c->dropout);
    rw_tensor *const q = absolute(t, x[0]), *const all_k = repeated(t, x[1], heads), *const k = absolute(t, all_k);
    rw_tensor *const v = absolute(t, repeated(t, x[2], heads)), *const up = absolute(t, w);
    rw_tensor *const scores = rw_scale(t, times_transposed(t, x[0], all_k), scale);
    rw_tensor *const p = c->causal ? rw_causal_softmax(t, scores, 1) : rw_softmax(t, scores, -1);
    rw_tensor *const terms = rw_scale(t, times_transposed(t, q, k), scale);
    rw_tensor *const pk = rw_mul(t, p, steepness(t, terms, RW_AXES(-1)));
    rw_tensor *const dots = rw_sum(t, rw_mul(t, up, rw_matmul(t, p, v)), RW_AXES(-1), true);
    rw_tensor *const slopes = rw_add(t, times_transposed(t, up, v), rw_scale(t, dots, 2));
    rw_tensor *const ds = rw_scale(t, rw_mul(t, pk, slopes), fabs(scale) * kept);
    m[0] = rw_scale(t, rw_matmul(t, pk, v), kept);
    m[1] = rw_matmul(t, ds, k);
    m[2] = gathered(t, rw_matmul(t, rw_transpose(t, ds, -1, -2), q), kv_heads);
    m[3] = rw_scale(t, gathered(t, rw_matmul(t, rw_transpose(t, pk, -1, -2), up), kv_heads), kept);
}

/* ---- rope and the losses ---- */

/* Splits the last axis into pairs: first elements, then second elements; and the inverse. */
static rw_tensor *halves(rw_tape *t, rw_tensor *x, bool interleaved)
{
    const rw_shape s = rw_tensor_shape(x);
    if (!interleaved) return x;
    rw_tensor *const two = rw_reshape(t, x, RW_SHAPE(s.dim[0], s.dim[1], s.dim[2], s.dim[3] / 2, 2));
    return rw_reshape(t, rw_transpose(t, two, -1, -2), s);
}

static rw_tensor *pairs(rw_tape *t, rw_tensor *x)
{
    const rw_shape s = rw_tensor_shape(x);
    rw_tensor *const two = rw_reshape(t, x, RW_SHAPE(s.dim[0], s.dim[1], s.dim[2], 2, s.dim[3] / 2));
    return rw_reshape(t, rw_transpose(t, two, -1, -2), s);
}

/* A rotated element: the sum of both elements of its pair, weighted by the error of its angle. */
static void sizes_rope(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor **m,
                       bool interleaved)
{
    const int64_t seq = c->in[0].shape.dim[2], d = c->in[0].shape.dim[3], half = d / 2;
    double *const angles = malloc((size_t)(seq * half + 1) * sizeof *angles);
    for (int64_t i = 0; i < seq * half; i++) {
        const int64_t position = c->shape.rank ? op_index(c, i / half, INT32_MAX) : i / half;
        const bool given = c->build == op_build_rope_with;
        const double frequency = given ? op_number(OP_POSITIVE, i % half, 5) / 4
                                       : pow(c->value, -(double)(i % half) / (double)half);
        angles[i] = (1 + (double)position * frequency) * (given ? fabs(c->value) : 1);
    }
    rw_tensor *const weight = rw_input(t, RW_F64, RW_SHAPE(seq, half), angles, (size_t)(seq * half) * sizeof *angles);
    free(angles);
    for (int i = 0; i < 2; i++) {
        rw_tensor *const from = halves(t, absolute(t, i ? w : x[0]), interleaved);
        rw_tensor *const parts = rw_add(t, rw_slice(t, from, -1, 0, half), rw_slice(t, from, -1, half, d));
        rw_tensor *const one = rw_mul(t, parts, weight);
        rw_tensor *const both = rw_concat(t, ((rw_tensor *[]){ one, one }), 2, -1);
        m[i] = interleaved ? pairs(t, both) : both;
    }
}

void op_sizes_rope(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    sizes_rope(t, c, x, w, m, false);
}

void op_sizes_rope_interleaved(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                               rw_tensor **m)
{
    (void)y;
    sizes_rope(t, c, x, w, m, true);
}

void op_sizes_rope_with(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    sizes_rope(t, c, x, w, m, c->keep);
}

void op_sizes_cross_entropy(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                            rw_tensor **m)
{
    (void)y;
    const rw_shape s = c->in[0].shape;
    const int64_t classes = s.dim[s.rank - 1], rows = rw_shape_numel(c->shape);
    double *const hits = calloc((size_t)(rows * classes + 1), sizeof *hits);
    double *const counted = calloc((size_t)rows + 1, sizeof *counted);
    double n = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int32_t target = op_index(c, i, classes);
        if (c->ignoring && target == c->axis) continue;
        hits[i * classes + target] = counted[i] = 1;
        n++;
    }
    rw_shape keep = s;
    keep.dim[s.rank - 1] = 1;
    rw_tensor *const hit = rw_input(t, RW_F64, s, hits, (size_t)rw_shape_numel(s) * sizeof *hits),
                     *const live = rw_input(t, RW_F64, keep, counted, (size_t)rw_shape_numel(keep) * sizeof *counted);
    free(hits), free(counted);
    rw_tensor *const total = absolute(t, rw_logsumexp(t, x[0], RW_AXES(-1), true));
    rw_tensor *const k = rw_add(t, steepness(t, x[0], RW_AXES(-1)), total);
    rw_tensor *const own = rw_sum(t, rw_mul(t, hit, absolute(t, x[0])), RW_AXES(-1), true);
    const double share = n > 0 ? 1 / n : 0;
    m[0] = rw_scale(t, rw_sum(t, rw_mul(t, live, rw_add(t, k, own)), RW_ALL_AXES, false), share);
    m[1] = rw_scale(t, rw_mul(t, live, rw_add(t, rw_mul(t, rw_softmax(t, x[0], -1), k), hit)), share);
    if (w) m[1] = rw_mul(t, m[1], absolute(t, w));
}

/*
 * For rows of logits with options: the target probability of each class, `share` [rows, classes], and the mean's
 * factor.
 */
static rw_tensor *shares(rw_tape *t, const struct op_case *c, rw_shape logits, double *ret_factor)
{
    const int64_t classes = logits.dim[logits.rank - 1], rows = rw_shape_numel(c->shape);
    double *const share = calloc((size_t)(rows * classes + 1), sizeof *share), total = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int32_t target = op_index(c, i, classes);
        if (c->ignoring && target == c->axis) continue;
        total += c->loss.weighted ? op_class_weight(target) : 1;
        for (int64_t k = 0; k < classes; k++)
            share[i * classes + k] = (c->loss.weighted ? op_class_weight(k) : 1) *
                                     (c->loss.smoothing / (double)classes + (k == target ? 1 - c->loss.smoothing : 0));
    }
    rw_tensor *const all = rw_input(t, RW_F64, logits, share, (size_t)rw_shape_numel(logits) * sizeof *share);
    free(share);
    *ret_factor = c->loss.reduction != RW_REDUCTION_MEAN ? 1 : total > 0 ? 1 / total : 0;
    return all;
}

/*
 * k: the error factor of a row's log-sum-exp, as in op_sizes_cross_entropy(), where each logit itself is off by `off`
 * [rows, 1] or less. z l^2 is off by 2 z |l| k; p (s + 2 z l) by p k (s + 2 z |l|) and p 2 z k.
 */
static void row_sizes(rw_tape *t, const struct op_case *c, rw_tensor *x, rw_tensor *off, rw_tensor *w, rw_tensor **m)
{
    const rw_shape s = rw_tensor_shape(x);
    rw_shape keep = s;
    double factor;
    keep.dim[s.rank - 1] = 1;
    rw_tensor *const share = shares(t, c, s, &factor), *const total = rw_sum(t, share, RW_AXES(-1), true);
    rw_tensor *const l = absolute(t, rw_logsumexp(t, x, RW_AXES(-1), true));
    rw_tensor *k = rw_add(t, steepness(t, x, RW_AXES(-1)), l);
    if (off) k = rw_add(t, k, rw_scale(t, off, 2));
    rw_tensor *const own = rw_sum(t, rw_mul(t, share, absolute(t, x)), RW_AXES(-1), true);
    rw_tensor *const rows = rw_add(t, rw_add(t, rw_mul(t, total, k), own), rw_scale(t, rw_mul(t, l, k), 2 * c->loss.z));
    rw_tensor *const steep = rw_add(t, total, rw_scale(t, one_plus(t, l), 2 * c->loss.z));
    rw_tensor *const slope = rw_add(t, product(t, rw_softmax(t, x, -1), k, steep), share);
    m[0] = c->loss.reduction == RW_REDUCTION_NONE ? rw_reshape(t, rows, c->shape)
                                                  : rw_scale(t, rw_sum(t, rows, RW_ALL_AXES, false), factor);
    m[1] = rw_scale(t, slope, factor);
    if (w && c->loss.reduction == RW_REDUCTION_NONE) m[1] = rw_mul(t, m[1], rw_reshape(t, absolute(t, w), keep));
    else if (w) m[1] = rw_mul(t, m[1], absolute(t, w));
}

void op_sizes_row_loss(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    row_sizes(t, c, x[0], NULL, w, m);
}

/* As row_sizes(), with target probabilities from operand 1, smoothed and weighted. */
void op_sizes_soft_loss(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    const rw_shape s = rw_tensor_shape(x[0]);
    const int64_t classes = s.dim[s.rank - 1], rows = rw_shape_numel(s) / classes;
    double *const each = calloc((size_t)classes + 1, sizeof *each);
    for (int64_t i = 0; i < classes; i++) each[i] = c->loss.weighted ? op_class_weight(i) : 1;
    rw_tensor *const gain = rw_input(t, RW_F64, RW_SHAPE(classes), each, (size_t)classes * sizeof *each);
    free(each);
    const double factor = c->loss.reduction != RW_REDUCTION_MEAN ? 1 : rows ? 1 / (double)rows : 0;
    rw_tensor *const soft = rw_scale(t, absolute(t, x[1]), 1 - c->loss.smoothing);
    rw_tensor *const share = rw_mul(t, rw_add_scalar(t, soft, c->loss.smoothing / (double)classes), gain);
    rw_tensor *const total = rw_sum(t, share, RW_AXES(-1), true);
    rw_tensor *const l = absolute(t, rw_logsumexp(t, x[0], RW_AXES(-1), true));
    rw_tensor *const k = rw_add(t, steepness(t, x[0], RW_AXES(-1)), l);
    rw_tensor *const far = rw_add(t, k, absolute(t, x[0]));
    rw_tensor *const loss = rw_add(t, rw_sum(t, rw_mul(t, share, far), RW_AXES(-1), true),
                                   rw_scale(t, rw_mul(t, l, k), 2 * c->loss.z));
    rw_tensor *const steep = rw_add(t, total, rw_scale(t, one_plus(t, l), 2 * c->loss.z));
    m[0] = c->loss.reduction == RW_REDUCTION_NONE ? rw_reshape(t, loss, c->shape)
                                                  : rw_scale(t, rw_sum(t, loss, RW_ALL_AXES, false), factor);
    m[1] = rw_scale(t, rw_add(t, product(t, rw_softmax(t, x[0], -1), k, steep), share), factor);
    m[2] = rw_scale(t, rw_mul(t, far, gain), factor);
    rw_shape keep = s;
    keep.dim[s.rank - 1] = 1;
    for (int i = 1; w && i < 3; i++)
        m[i] = rw_mul(t, m[i], c->loss.reduction == RW_REDUCTION_NONE ? rw_reshape(t, absolute(t, w), keep)
                                                                      : absolute(t, w));
}

/* Logits are off by some u |x| |weight|^T. */
void op_sizes_linear_loss(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                          rw_tensor **m)
{
    (void)y;
    const int64_t classes = c->in[1].shape.dim[0], d = c->in[1].shape.dim[1], rows = rw_shape_numel(c->shape);
    rw_tensor *const a = absolute(t, x[0]), *const b = absolute(t, x[1]);
    rw_tensor *const bias = c->n > 2 ? x[2] : RW_NONE, *const size = c->n > 2 ? absolute(t, x[2]) : RW_NONE;
    rw_tensor *const off = rw_max(t, rw_linear(t, a, b, size), RW_AXES(-1), true);
    row_sizes(t, c, rw_linear(t, x[0], x[1], bias), off, w, m);
    rw_tensor *const slope = rw_reshape(t, m[1], RW_SHAPE(rows, classes));
    m[1] = rw_reshape(t, rw_matmul(t, slope, b), c->in[0].shape);
    m[2] = rw_matmul(t, rw_transpose(t, slope, 0, 1), rw_reshape(t, a, RW_SHAPE(rows, d)));
    if (c->n > 2) m[3] = rw_sum(t, slope, RW_AXES(0), false);
}

/* The terms of each element's loss and of its derivatives, as the reduction weights them. */
static void element_sizes(rw_tape *t, const struct op_case *c, rw_tensor *w, rw_tensor *loss, rw_tensor **slope,
                          rw_tensor **m)
{
    const int64_t n = rw_shape_numel(rw_tensor_shape(loss));
    const double factor = c->loss.reduction == RW_REDUCTION_MEAN && n ? 1 / (double)n : 1;
    m[0] = c->loss.reduction == RW_REDUCTION_NONE ? loss : rw_scale(t, rw_sum(t, loss, RW_ALL_AXES, false), factor);
    for (int i = 0; i < c->n; i++) {
        rw_tensor *const all = rw_broadcast_to(t, rw_scale(t, slope[i], factor), rw_tensor_shape(loss));
        m[1 + i] = rw_sum_to(t, w ? rw_mul(t, all, absolute(t, w)) : all, c->in[i].shape);
    }
}

/* x, y, p and the weight; the last two may be absent. */
void op_sizes_bce(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    rw_tensor *const z = absolute(t, x[1]), *const one = one_plus(t, rw_scale(t, z, 0));
    rw_tensor *const p = c->n > 2 ? absolute(t, x[2]) : one;
    rw_tensor *const missed = rw_softplus(t, rw_neg(t, x[0])), *const far = absolute(t, x[0]);
    rw_tensor *const all = one_plus(t, rw_mul(t, one_plus(t, p), z));
    rw_tensor *const weight = c->n > 3 ? absolute(t, x[3]) : NULL;
    rw_tensor *loss = rw_add(t, rw_mul(t, one_plus(t, z), far), rw_mul(t, all, missed));
    rw_tensor *slope[] = { rw_add(t, rw_mul(t, all, rw_sigmoid(t, x[0])), rw_mul(t, p, z)),
                           rw_add(t, far, rw_mul(t, one_plus(t, p), missed)), rw_mul(t, z, missed), loss };
    for (int i = 0; weight && i < 3; i++) slope[i] = rw_mul(t, slope[i], weight);
    if (weight) loss = rw_mul(t, loss, weight);
    element_sizes(t, c, w, loss, slope, m);
}

static void huber_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor **m, double over)
{
    rw_tensor *const d = absolute(t, rw_sub(t, x[0], x[1]));
    rw_tensor *const loss = rw_add(t, rw_mul(t, d, d), rw_scale(t, rw_add_scalar(t, d, c->value), c->value));
    rw_tensor *const slope = rw_scale(t, d, over);
    element_sizes(t, c, w, rw_scale(t, loss, over), (rw_tensor *[]){ slope, slope }, m);
}

void op_sizes_mse_with(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    rw_tensor *const d = absolute(t, rw_sub(t, x[0], x[1])), *const slope = rw_scale(t, d, 2);
    element_sizes(t, c, w, rw_mul(t, d, d), (rw_tensor *[]){ slope, slope }, m);
}

void op_sizes_huber(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    huber_sizes(t, c, x, w, m, 1);
}

/* With a beta of 0: |d|, and a slope of 1. */
void op_sizes_smooth_l1(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    rw_tensor *const d = absolute(t, rw_sub(t, x[0], x[1])), *const one = one_plus(t, rw_scale(t, d, 0));
    if (c->value > 0) huber_sizes(t, c, x, w, m, 1 / c->value);
    else element_sizes(t, c, w, d, (rw_tensor *[]){ one, one }, m);
}

void op_sizes_kl(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    rw_tensor *const p = c->keep ? rw_exp(t, x[1]) : x[1], *const l = absolute(t, c->keep ? x[1] : rw_log(t, x[1]));
    rw_tensor *const both = rw_add(t, l, absolute(t, x[0])), *const slope = one_plus(t, both);
    element_sizes(t, c, w, rw_mul(t, p, both), (rw_tensor *[]){ p, c->keep ? rw_mul(t, p, slope) : slope }, m);
}

void op_sizes_nll(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    rw_shape keep = c->in[0].shape;
    double factor;
    keep.dim[keep.rank - 1] = 1;
    rw_tensor *const share = shares(t, c, c->in[0].shape, &factor);
    rw_tensor *const rows = rw_sum(t, rw_mul(t, share, absolute(t, x[0])), RW_AXES(-1), false);
    m[0] = c->loss.reduction == RW_REDUCTION_NONE ? rows : rw_scale(t, rw_sum(t, rows, RW_ALL_AXES, false), factor);
    m[1] = rw_scale(t, share, factor);
    if (w) m[1] = rw_mul(t, m[1], c->loss.reduction == RW_REDUCTION_NONE ? rw_reshape(t, absolute(t, w), keep)
                                                                         : absolute(t, w));
}

/* A distance from the mean is off by some u (|x| + mean |x|), and is in a term of the sum twice. */
void op_sizes_var(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    rw_tensor *const size = absolute(t, x[0]), *const mean = rw_mean(t, size, c->axes, true);
    rw_tensor *const d = rw_add(t, size, mean), *const sum = rw_sum(t, rw_mul(t, d, d), c->axes, true);
    const int64_t results = rw_shape_numel(rw_tensor_shape(sum));
    const int64_t n = results ? rw_shape_numel(c->in[0].shape) / results : 2;
    const double over = 1 / (double)(n - c->causal);
    rw_tensor *const up = rw_scale(t, rw_reshape(t, absolute(t, w), rw_tensor_shape(sum)), 2 * over);
    rw_tensor *const term = rw_mul(t, d, up);
    m[0] = rw_reshape(t, rw_scale(t, sum, over), rw_tensor_shape(w));
    m[1] = rw_add(t, term, rw_mean(t, term, c->axes, true));
}

/* dy over the norm, and y times the sum of the gradients of the norm. */
void op_sizes_normalize(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const uint32_t axes = RW_AXES(c->axis);
    rw_tensor *const size = absolute(t, x[0]), *const up = absolute(t, w), *const out = absolute(t, y);
    rw_tensor *const norm = c->value == 2   ? rw_pow_scalar(t, rw_sum(t, rw_mul(t, size, size), axes, true), 0.5)
                            : c->value == 1 ? rw_sum(t, size, axes, true)
                                            : rw_max(t, size, axes, true);
    rw_tensor *const into = rw_sum(t, rw_mul(t, up, out), axes, true);
    rw_tensor *const slope = c->value == 2 ? out : one_plus(t, rw_scale(t, out, 0));
    m[0] = out;
    m[1] = rw_div(t, rw_add(t, up, rw_mul(t, slope, into)), rw_add_scalar(t, norm, 1e-30));
}

void op_sizes_mse(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    rw_tensor *d = absolute(t, rw_sub(t, x[0], x[1]));
    const int64_t n = rw_shape_numel(rw_tensor_shape(d));
    if (w) d = rw_mul(t, d, absolute(t, w));
    m[0] = y;
    for (int i = 0; i < 2; i++) m[1 + i] = rw_sum_to(t, rw_scale(t, d, n ? 2 / (double)n : 0), c->in[i].shape);
}
